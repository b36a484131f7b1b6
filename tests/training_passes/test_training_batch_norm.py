"""BatchNormalization in training mode, in operators that CUDA has, against ONNX Runtime's own on the CPU."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.targets import CUDA
from amp_transpiler.targets.operator import operator_of
from amp_transpiler.training_passes import LowerBatchNorm
from tests.support import array, parse


def batch_norm(shape, *, x="float", stats="float", attributes="", opset=21, channels=3):
    """One BatchNormalization over `shape`, which may name dimensions, all three outputs used."""
    c = f"{stats}[{channels}]"
    outputs = f"{x}[{shape}] y, {c} mean_out, {c} var_out"
    proto = parse(
        f"({x}[{shape}] x, {c} scale, {c} bias, {c} mean, {c} var) => ({outputs}) {{"
        f" [bn] y, mean_out, var_out = BatchNormalization <training_mode = 1 {attributes}>"
        " (x, scale, bias, mean, var) }",
        opset=opset,
    )
    model = ir.from_proto(proto)
    propagate_types(model)
    return model


def feeds_for(shape, x=np.float32, stats=np.float32, offset=2.0):
    c = shape[1] if len(shape) > 1 else 1
    return {
        "x": (array(*shape) * 3 + offset).astype(x),
        "scale": array(c, seed=1).astype(stats),
        "bias": array(c, seed=2).astype(stats),
        "mean": array(c, seed=3).astype(stats),
        "var": np.abs(array(c, seed=4)).astype(stats),
    }


CASES = [
    ("4,3,5,6", (4, 3, 5, 6), ""),
    ("N,3,H,W", (2, 3, 5, 7), ", momentum = 0.5, epsilon = 0.001"),
    ("N,3", (8, 3), ", momentum = 0.99"),
    ("N,3,L", (4, 3, 9), ", epsilon = 0.1"),
    ("2,3,2,3,4", (2, 3, 2, 3, 4), ""),
]


@pytest.mark.parametrize("opset", [15, 17, 21, 22])
@pytest.mark.parametrize(("declared", "shape", "attributes"), CASES)
def test_values_are_those_of_onnx_runtime(run, declared, shape, attributes, opset):
    model, feeds = batch_norm(declared, attributes=attributes, opset=opset), feeds_for(shape)
    expected = run(model, feeds)
    assert LowerBatchNorm()(model).count == 1
    verify(model, "lowering")
    assert not any("training_mode" in node.attributes for node in model.graph)
    for result, wanted in zip(run(model, feeds), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-6)
    assert [value.name for value in model.graph.outputs] == ["y", "mean_out", "var_out"]


def test_the_backward_pass_shares_the_statistics(tmp_path):
    """The same formula written again, by another builder, costs nothing once ONNX Runtime has merged it."""
    model = batch_norm("4,3,2,2")
    LowerBatchNorm(by_rows=False)(model)
    builder = GraphBuilder(model)
    x = builder.high(model.graph.inputs[0])
    centred = builder.sub(x, builder.mean(x, [0, 2, 3]))
    var = builder.mean(builder.mul(centred, centred), [0, 2, 3])
    inv = builder.div(1.0, builder.op("Sqrt", [builder.add(var, 1e-5)]))
    model.graph.outputs.append(builder.mul(centred, inv))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    left = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    assert (left.count("ReduceMean"), left.count("Sqrt"), left.count("Reciprocal")) == (2, 1, 1)


def test_a_large_mean_does_not_cancel(run):
    model, feeds = batch_norm("64,3,8,8"), feeds_for((64, 3, 8, 8), offset=3000.0)
    LowerBatchNorm()(model)
    var = feeds["x"].astype(np.float64).var((0, 2, 3))
    np.testing.assert_allclose(run(model, feeds)[2], feeds["var"] * 0.9 + var * 0.1, rtol=1e-5)


@pytest.mark.parametrize("stats", ["float", "float16"])
def test_low_data_has_statistics_in_float32(run, stats):
    model = batch_norm("64,3,8,8", x="float16", stats=stats)
    feeds = feeds_for((64, 3, 8, 8), np.float16, np.float16 if stats == "float16" else np.float32, offset=300.0)
    assert LowerBatchNorm()(model).count == 1
    verify(model, "lowering")
    (norm,) = (n for n in model.graph if n.op_type == "LayerNormalization")
    assert [value.dtype.name for value in norm.outputs] == ["FLOAT16", "FLOAT", "FLOAT"]
    y, mean, var = run(model, feeds)
    wide = feeds["x"].astype(np.float64)
    batch_mean, batch_var = wide.mean((0, 2, 3)), wide.var((0, 2, 3))
    column = lambda vector: np.asarray(vector, np.float64).reshape(-1, 1, 1)  # noqa: E731  # shorter than a def
    normal = (wide - column(batch_mean)) / np.sqrt(column(batch_var) + 1e-5)
    np.testing.assert_allclose(y, normal * column(feeds["scale"]) + column(feeds["bias"]), rtol=1e-3, atol=1e-3)
    limit = 1e-5 if stats == "float" else 1e-3
    np.testing.assert_allclose(mean, feeds["mean"] * 0.9 + batch_mean * 0.1, rtol=limit)
    np.testing.assert_allclose(var, feeds["var"] * 0.9 + batch_var * 0.1, rtol=limit)
    assert [out.dtype for out in (y, mean, var)] == [np.float16] + [np.dtype(mean.dtype)] * 2


@pytest.mark.parametrize("opset", [21, 22])
@pytest.mark.parametrize("x", ["float", "float16", "bfloat16"])
def test_every_operator_has_a_cuda_kernel(x, opset):
    model = batch_norm("N,3,4,4", x=x, opset=opset)
    LowerBatchNorm()(model)
    for node in model.graph:
        assert CUDA.has_kernel(operator_of(node, (("", opset),))), node.op_type


def test_only_what_is_used_is_computed_and_metadata_is_kept(run):
    text = """(float[4,3] x, float[3] s, float[3] m) => (float[4,3] z) {
        [bn] y = BatchNormalization <training_mode = 1> (x, s, s, m, s)
        z = Relu (y)
    }"""
    model = ir.from_proto(parse(text, opset=21))
    propagate_types(model)
    next(iter(model.graph)).metadata_props["role"] = "forward"
    feeds = {"x": array(4, 3), "s": np.ones(3, np.float32), "m": np.zeros(3, np.float32)}
    assert LowerBatchNorm()(model).count == 1
    *nodes_before, relu = model.graph
    assert all(node.metadata_props["role"] == "forward" and node.name.startswith("bn/") for node in nodes_before)
    assert not model.graph.inputs[2].uses()
    assert relu.inputs[0].name == "y"
    x = feeds["x"].astype(np.float64)
    expected = np.maximum((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) + 1, 0)
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def test_inference_mode_is_left_alone():
    model = ir.from_proto(
        parse("(float[4,3] x, float[3] s) => (float[4,3] y) { y = BatchNormalization (x, s, s, s, s) }", opset=21)
    )
    propagate_types(model)
    assert LowerBatchNorm()(model).count == 0
    assert [node.op_type for node in model.graph] == ["BatchNormalization"]


def test_an_unknown_rank_is_an_error_that_names_the_value():
    model = batch_norm("4,3")
    model.graph.inputs[0].shape = None
    with pytest.raises(ModelError, match="rank of 'x'"):
        LowerBatchNorm()(model)


@pytest.mark.parametrize("by_rows", [True, False])
def test_a_bfloat16_program_is_well_typed(by_rows):
    """By rows, factors of the data are rounded, and the shift is made with the rounded scale; statistics are not."""
    model = batch_norm("4,3,2,2", x="bfloat16", stats="float")
    LowerBatchNorm(by_rows=by_rows)(model)
    verify(model, "lowering")
    casts = [(node.inputs[0].name, node.outputs[0].dtype.name) for node in model.graph if node.op_type == "Cast"]
    if by_rows:
        assert [dtype for _, dtype in casts] == ["BFLOAT16", "FLOAT", "BFLOAT16"]
    else:
        assert [name for _, name in casts] == ["FLOAT", "BFLOAT16"]
    assert next(value for value in model.graph.outputs if value.name == "y").dtype == ir.DataType.BFLOAT16
