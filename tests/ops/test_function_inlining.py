"""The bodies of operators, written out by an `onnx` that knows the functions of models only, and by a newer one."""

import numpy as np
import pytest

from amp_transpiler.ops import function_inlining
from amp_transpiler.ops.function_inlining import inline_schema_function, inlined_as_a_function_of_the_model
from tests.support import parse, run

# The node with its attributes written out, and the opset.
NODES = [
    ("y = Mish (x)", 22),
    ("y = Elu <alpha=0.5> (x)", 21),
    ("y = Softsign (x)", 21),
    ("y = HardSwish (x)", 21),
    ("y = ReduceLogSumExp <keepdims=1, noop_with_empty_axes=0> (x)", 18),
    ("y = MeanVarianceNormalization <axes=[0, 1]> (x)", 13),
    ("y = Softmax <axis=1> (x)", 13),
    ("y = Clip (x, low)", 13),
    ("y = Clip (x, , low)", 13),
    ('y = Gelu <approximate="tanh"> (x)', 20),
    ("y = CastLike <saturate=1> (x, low)", 19),
    ("y = Celu <alpha=2.0> (x)", 12),
]


def model_of(node, opset):
    return parse(f"(float[2,3] x, float low) => (float[2,3] y) {{ {node} }}", opset=opset, ir_version=8)


@pytest.mark.parametrize(("node", "opset"), NODES)
def test_the_body_computes_what_the_operator_does(node, opset):
    before = model_of(node, opset)
    after = inlined_as_a_function_of_the_model(before)
    op_type = before.graph.node[0].op_type
    assert op_type not in {inner.op_type for inner in after.graph.node}
    assert not after.functions
    feeds = {"x": np.float32([[-3, -0.5, 0.25], [0.75, 1, 4]]), "low": np.array(0.5, np.float32)}
    np.testing.assert_allclose(run(after, feeds)["y"], run(before, feeds)["y"], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(("node", "opset"), [row for row in NODES if ", ," not in row[0]])  # which onnx's refuses
def test_the_body_is_the_one_that_onnx_takes(node, opset):
    if not function_inlining._KNOWS_SCHEMAS:
        pytest.skip("this onnx writes out no function of a schema")
    before = model_of(node, opset)
    ours, theirs = inlined_as_a_function_of_the_model(before), inline_schema_function(before)
    assert [inner.op_type for inner in ours.graph.node] == [inner.op_type for inner in theirs.graph.node]


@pytest.mark.parametrize("node", ["y = Relu (x)", "y = Add (x, low)", "y = Identity (x)"])
def test_an_operator_without_a_body_stays(node):
    before = model_of(node, 13)
    assert inlined_as_a_function_of_the_model(before) == before
