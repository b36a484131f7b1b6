"""Notes on what other data may do to a result: values near the end of the low format's range."""

import re
import types

import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.assess.risks import risks
from amp_transpiler.precision.evidence import Evidence, TensorRange
from amp_transpiler.report import DecisionRow
from tests.support import parse

NODES = {"a": "p = Relu (x)", "b": "q = Relu (p)", "c": "y = Relu (p)"}
# values beyond the format, precision of a, b and c (a makes p, b and c read it): what is said.
PRECISIONS = {
    ("p", "float32", "float32", "float32"): "1 value goes .* no node that makes or reads them is float16: 'p' 5e\\+04",
    ("p", "float32", "float16", "float32"): "1 value goes .* some nodes that make or read them are float16: 'p'",
    ("p", "float16", "float32", "float32"): "1 value goes .* some nodes that make or read them are float16: 'p'",
    ("q", "float16", "float32", "float16"): "1 value goes .* no node that makes or reads them is float16: 'q'",
    ("p q", "float16", "float32", "float16"): "1 value goes .* no node .*: 'q' .*\n1 value goes .* some nodes .*: 'p'",
    ("q y", "float16", "float32", "float32"): "2 values go .* no node .*: 'q' 5e\\+04 in s, 'y'",
    ("p", "float16", "float16", "float16"): "",  # masks, which are limited
    ("", "float16", "float32", "float16"): "",
}


@pytest.mark.parametrize("case", PRECISIONS, ids=" ".join)
def test_a_note_on_ranges_says_which_nodes_are_float16_and_claims_no_cause(case):
    far, *decided = case
    model = ir.from_proto(parse(f"(float[2] x) => (float[2] y, float[2] q) {{ {' '.join(NODES.values())} }}"))
    nodes = dict(zip(NODES, model.graph, strict=True))
    rows = tuple(DecisionRow(name, "Relu", precision, "") for name, precision in zip(NODES, decided, strict=True))
    evidence = Evidence(ranges=dict.fromkeys(far.split(), TensorRange(5e4, sample="s")), given=True)
    policy = types.SimpleNamespace(low=amp.graph.dtypes.FLOAT16, headroom=4.0)
    notes = "\n".join(risks(rows, nodes, evidence, policy))
    assert "so that" not in notes
    assert re.fullmatch(f"{PRECISIONS[case]}.*" if PRECISIONS[case] else "", notes)
