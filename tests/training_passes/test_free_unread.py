"""Results that nobody reads are read by a Size, behind the node that makes them."""

import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.training_passes import FreeUnread
from tests.support import parse

# nodes, outputs -> what a Size reads
CASES = [
    ("n, m, i = LayerNormalization (x, s) z = Add (m, i)", "float[4,1] z", ["n"]),
    ("n, m, i = LayerNormalization (x, s) z = Add (n, x)", "float[4,6] z", ["m", "i"]),
    ("n, m = LayerNormalization (x, s)", "float[4,6] n, float[4,1] m", []),
    ("n = LayerNormalization (x, s)", "float[4,6] n", []),
]


@pytest.mark.parametrize(("nodes", "outputs", "wanted"), CASES)
def test_each_has_one_reader(nodes, outputs, wanted):
    model = ir.from_proto(parse(f"(float[4,6] x, float[6] s) => ({outputs}) {{ {nodes} }}", opset=20))
    propagate_types(model)
    result = FreeUnread()(model)
    verify(model, "freeing")
    _, *rest = model.graph
    sizes = [node for node in rest if node.op_type == "Size"]
    assert sorted(node.inputs[0].name for node in sizes) == sorted(wanted)
    assert rest[: len(sizes)] == sizes  # at once behind the node
    assert (result.count, result.modified) == (len(wanted), bool(wanted))
