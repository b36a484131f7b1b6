"""Tests `ReadBeforeUpdate`: a node that reads old state runs before the one that writes the new, and results stay."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.graph.precedence import Precedence
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.update_passes import ReadBeforeUpdate

HEAD = '<ir_version: 10, opset_import: ["": 20]> step '
RATE = "float[1] rate, float[3] w, float[3] g"

ROWS = {
    # the body, the nodes that are waited for
    "a late product": (
        f"({RATE}) => (float[3] new, float[3] y) {{ s = Mul(rate, g)  new = Sub(w, s)  y = Mul(w, g) }}",
        1,
    ),
    "a late product of a view": (
        (
            f"({RATE}) => (float[3] new, float[3,1] y) <int64[2] shape = {{3, 1}}> {{"
            " s = Mul(rate, g)  new = Sub(w, s)  view = Reshape(w, shape)  y = Neg(view) }"
        ),
        2,
    ),
    "two late products": (
        (
            f"({RATE}) => (float[3] new, float[3] y, float[3] z) {{"
            " s = Mul(rate, g)  new = Sub(w, s)  y = Mul(w, g)  z = Neg(w) }"
        ),
        2,
    ),
    "a late integer": (
        "(int64[1] w) => (int64[1] new, float[1] y) <int64[1] one = {1}> { new = Add(w, one)  y = Cast<to = 1>(w) }",
        1,
    ),
    "none is late": (
        f"({RATE}) => (float[3] new, float[3] s) {{ n = Neg(w)  s = Mul(rate, n)  new = Sub(w, s) }}",
        0,
    ),
    "no factor of few numbers": (
        "(float[8,1024] w, float[8,1024] g) => (float[8,1024] new, float[8,1024] y) { new = Sub(w, g)  y = Mul(w, g) }",
        0,
    ),
    "the late node reads the factor's product": (
        f"({RATE}) => (float[3] new, float[3] y) {{ s = Mul(rate, g)  new = Identity(s)  y = Mul(w, s) }}",
        0,
    ),
}


@pytest.mark.parametrize(("body", "count"), ROWS.values(), ids=ROWS)
def test_late_readers_are_waited_for_and_results_stay(body, count):
    proto = onnx.parser.parse_model(HEAD + body)
    model = ir.from_proto(proto)
    infer_shapes(model)
    result = PassManager([ReadBeforeUpdate({"w": "new"})])(model)
    assert result.count == count
    random = np.random.default_rng(0)
    feeds = {
        value.name: np.asarray(random.normal(size=value.shape.numpy()), value.dtype.numpy())
        for value in model.graph.inputs
    }
    edited = ir.to_proto(model)
    onnx.checker.check_model(edited, full_check=True)
    for before, after in zip(computed(proto, feeds), computed(edited, feeds), strict=True):
        np.testing.assert_array_equal(before, after)
    if count:
        value = next(value for value in model.graph.inputs if value.name == "w")
        writer = model.graph.outputs[0].producer()
        assert set(Precedence(model.graph).late_readers(value, writer)) <= {writer}


def computed(proto, feeds):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)
