"""A pass in a pipeline of `onnx_ir.passes`."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

import amp_transpiler as amp
from amp_transpiler.compat import MixedPrecisionPass
from tests.support import array, assert_valid, parse, run


def model():
    text = "(float[2,8] x) => (float[2,8] y) { a = MatMul(x, w) b = Identity(a) [root] y = Relu(b) }"
    return ir.from_proto(parse(text, w=array(8, 8)))


def kinds(of):
    return [node.op_type for node in of.graph]


def test_it_takes_its_place_in_a_pipeline():
    source, convert = model(), MixedPrecisionPass()
    passes = ir.passes.PassManager([common.IdentityEliminationPass(), convert, common.TopologicalSortPass()])
    result = passes(source)
    assert result.modified
    assert result.model is source
    assert kinds(source) == ["Cast", "MatMul", "Relu", "Cast"]
    assert convert.report.low_nodes == 2
    assert convert.report.program.model is source
    proto = ir.to_proto(source)
    assert_valid(proto)
    x = array(2, 8)
    np.testing.assert_allclose(run(proto, {"x": x})["y"], run(ir.to_proto(model()), {"x": x})["y"], atol=1e-2)


def test_a_model_that_stays_as_it_is_is_not_touched():
    convert = MixedPrecisionPass()
    source = ir.from_proto(parse("(int64[2] x) => (int64[2] y) { y = Neg(x) }"))
    node = source.graph[0]
    assert not convert(source).modified
    assert source.graph[0] is node
    half = convert(convert(model()).model)
    assert not half.modified


def test_options_are_those_of_transpile():
    source = model()
    MixedPrecisionPass(dtype="bfloat16", target="tensorrt", keep_io_types=False)(source)
    assert {value.dtype for value in (*source.graph.inputs, *source.graph.outputs)} == {ir.DataType.BFLOAT16}
    with pytest.raises(TypeError, match=r"MixedPrecisionPass has no argument 'levle' \(did you mean 'level'"):
        MixedPrecisionPass(levle="O1")
    with pytest.raises(TypeError, match=r"has no argument 'white': the command's --white is amp_lists in Python"):
        MixedPrecisionPass(white=["Conv"])
    with pytest.raises(TypeError, match="no argument 'dst'"):
        MixedPrecisionPass(dst="model.onnx")


def test_an_error_leaves_the_model_as_it_was():
    source = ir.from_proto(parse("(float[64] x) => (float[64] y) { a = Exp(x) y = Sqrt(a) }"))
    before = ir.to_proto(source).SerializeToString(deterministic=True)
    with pytest.raises(amp.CheckFailed):
        MixedPrecisionPass(level="O2", inputs={"x": np.full(64, 20.0, np.float32)})(source)
    assert ir.to_proto(source).SerializeToString(deterministic=True) == before
