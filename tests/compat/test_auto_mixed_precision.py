"""The behaviours of onnxconverter-common's converters by a validation, in memory and from file to file."""

import inspect

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amp_transpiler.compat import auto_convert_mixed_precision, auto_convert_mixed_precision_model_path
from amp_transpiler.errors import CheckFailed
from tests.support import array, parse, run, run_emulated


def grown():
    """A product whose result is made large and small again: the large values do not fit into float16."""
    return parse(
        """(float[1,1,6,1] x) => (float[2] y) {
            a = Transpose<perm = [0, 1, 3, 2]>(x) b = Transpose<perm = [1, 0]>(w) c = MatMul(a, b)
            [large] d = Mul(c, hundred) [larger] e = Mul(d, ten) f = Reshape(e, shape) y = Div(f, nearly) }""",
        w=np.arange(1, 13, dtype=np.float32).reshape(2, 6),
        hundred=np.float32(100),
        ten=np.float32(10),
        nearly=np.float32(999),
        shape=np.array([2]),
    )


X = np.arange(2, 8, dtype=np.float32).reshape(1, 1, 6, 1)


def close(exact, low):
    return np.allclose(exact[0], low[0], rtol=0.01)


WAYS = {
    "function": {"validate_fn": close},
    "rtol": {"rtol": 0.01},
    "atol": {"atol": 2.0},
    "both": {"validate_fn": close, "rtol": 0.01, "atol": 0.1},
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_result_is_what_the_validation_wants(way, kept):
    model = auto_convert_mixed_precision(grown(), {"x": X}, **way, keep_io_types=kept)
    types = {TensorProto.FLOAT, TensorProto.FLOAT16} if kept else {TensorProto.FLOAT16}
    assert model.graph.input[0].type.tensor_type.elem_type == (TensorProto.FLOAT if kept else TensorProto.FLOAT16)
    assert types & {tensor.data_type for tensor in model.graph.initializer}
    feeds = {"x": X if kept else X.astype(np.float16)}
    expected = run(grown(), {"x": X})["y"]
    for result in (run(model, feeds)["y"], run_emulated(model, feeds)["y"]):
        np.testing.assert_allclose(result, expected, rtol=0.01)


def test_as_much_becomes_float16_as_the_tolerance_allows():
    model = parse(
        "(float[4,16] x) => (float[4,16] y) { [one] a = MatMul(x, w) [two] b = Tanh(a) [three] y = MatMul(b, w) }",
        w=array(16, 16),
    )

    def halves(**tolerance):
        low = auto_convert_mixed_precision(model, {"x": array(4, 16)}, **tolerance, keep_io_types=True)
        stored = {t.name for t in low.graph.initializer if t.data_type == TensorProto.FLOAT16}
        return len(stored), sum(node.op_type == "Cast" for node in low.graph.node)

    assert halves(atol=1.0) == (1, 2)
    assert halves(rtol=0.0, atol=1e-7) == (0, 0)


def test_the_function_gets_lists_in_the_order_of_the_graph():
    model = parse("(float[2] x) => (float[2] late, float[2] early) { late = Relu(x) early = Abs(x) }")
    seen = []

    def validate(exact, low):
        seen.append([values.tolist() for values in exact])
        return len(exact) == len(low) == 2

    auto_convert_mixed_precision(model, {"x": np.float32([-1, 2])}, validate)
    assert seen[0] == [[0, 2], [1, 2]]


def test_a_validation_that_fp32_fails_is_an_error():
    with pytest.raises(CheckFailed):
        auto_convert_mixed_precision(grown(), {"x": X}, lambda exact, low: False)


def test_something_to_validate_by_is_needed():
    with pytest.raises(ValueError, match="`validate_fn` and `rtol` cannot both be None"):
        auto_convert_mixed_precision(grown(), {"x": X})
    with pytest.raises(ValueError, match="expected a function of two lists"):
        auto_convert_mixed_precision(grown(), {"x": X}, 0.01)


FILES = {
    "tolerances": {"rtol": 1e-2, "atol": 1e-2},
    "function": {"customized_validate_func": close},
}


@pytest.mark.parametrize("way", FILES.values(), ids=FILES)
def test_a_file_is_written(way, tmp_path):
    source, target = tmp_path / "model.onnx", tmp_path / "model16.onnx"
    onnx.save(grown(), source)
    auto_convert_mixed_precision_model_path(
        str(source), {"x": X}, str(target), ["CPUExecutionProvider"], **way, keep_io_types=True
    )
    np.testing.assert_allclose(run(onnx.load(target), {"x": X})["y"], run(grown(), {"x": X})["y"], rtol=0.01)


def test_weights_go_to_the_file_that_is_named(tmp_path):
    source, target = tmp_path / "model.onnx", tmp_path / "model16.onnx"
    onnx.save(grown(), source)
    auto_convert_mixed_precision_model_path(source, {"x": X}, target, location="weights.bin", rtol=0.01)
    assert (tmp_path / "weights.bin").stat().st_size > 0
    assert run(onnx.load(target), {"x": X})["y"].shape == (2,)
    with pytest.raises(ValueError, match=r"location is '\.\./w'"):
        auto_convert_mixed_precision_model_path(source, {"x": X}, target, location="../w", rtol=0.01)


@pytest.mark.parametrize("name", ["auto_mixed_precision", "auto_mixed_precision_model_path"])
def test_every_argument_of_the_original_is_in_its_place(name):
    original = pytest.importorskip(
        f"onnxconverter_common.{name}", reason="onnxconverter-common is not installed: install the extra [bench]"
    )
    function = f"auto_convert_{name.removeprefix('auto_')}"
    theirs = list(inspect.signature(getattr(original, function)).parameters)
    assert list(inspect.signature(globals()[function]).parameters)[: len(theirs)] == theirs
