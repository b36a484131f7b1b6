"""Weights with more columns: which ones, by the price list, and that no result changes."""

import numpy as np
import onnx
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler.cost.padded_products import paddings
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.targets.devices import find_device
from tests.support import array, parse

X = {"x": array(512, 512, seed=9)}
W = array(512, 2001, scale=0.05)
# name -> a model whose product is large enough, and how many columns the weight has and gets
LARGE = {
    "a product": ("y = MatMul(x, w)", {"w": W}, 2008),
    "behind a node": ("h = Tanh(x) y = MatMul(h, w)", {"w": W}, 2008),
    "before a node": ("h = MatMul(x, w) y = Tanh(h)", {"w": W}, 2008),
    "a turned weight": ("y = Gemm<transB = 1>(x, w)", {"w": W.T.copy()}, 2008),
    "with a bias": ("y = Gemm(x, w, b)", {"w": W, "b": array(2001, seed=1)}, 2008),
    "scaled": ("y = Gemm<alpha = 0.5, beta = 2.0>(x, w, b)", {"w": W, "b": array(2001)}, 2008),
    "whole tiles": ("y = MatMul(x, w)", {"w": array(512, 6399, scale=0.05)}, 6400),
}
DEEP = {
    "rows": ("y = MatMul(h, w)", {"w": array(2001, 2048, scale=0.05)}, [2008, 2048]),
    "rows and columns": ("y = MatMul(h, w)", {"w": array(2001, 2041, scale=0.05)}, [2008, 2048]),
    "rows behind a batch": (
        "k = Reshape(h, four) y = MatMul(k, w)",
        {"w": array(2001, 2048, scale=0.05), "four": np.array([8, 256, 2001])},
        [2008, 2048],
    ),
    "a Gemm, whose rows stay": ("y = Gemm(h, w)", {"w": array(2001, 2048, scale=0.05)}, [2001, 2048]),
}
AS_IT_IS = {
    "aligned": ("y = MatMul(x, w)", {"w": array(512, 2000)}),
    "small": ("y = MatMul(x, w)", {"w": array(512, 11)}),
    "read twice": ("h = MatMul(x, w) k = MatMul(x, w) y = Add(h, k)", {"w": W}),
    "a bias that is no vector": ("y = Gemm(x, w, b)", {"w": W, "b": array(1, 2001)}),
    "no constant": ("t = Transpose<perm = [1, 0]>(x) y = MatMul(x, t)", {}),
}


def model_of(body, weights):
    return parse(f"(float[512,512] x) => (float[N,M] y) {{ {body} }}", **weights)


def paddings_of(model, dtype="float16"):
    program = amp.load(model)
    propagate_types(program.model)
    return paddings(program.model, low_format(dtype), find_device("H100"))


def run(model, sample):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, sample)[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", LARGE)
def test_a_weight_gets_columns_and_no_result_changes(case, dtype):
    body, weights, width = LARGE[case]
    model = model_of(body, weights)
    plain, padded = (
        amp.transpile(model, level="O2", dtype=dtype, fuse="none", verify=False, pad_weights=wish)
        for wish in (False, True)
    )
    shapes = {tensor.name: list(tensor.dims) for tensor in padded.program.to_onnx().graph.initializer}
    assert width in shapes["w"]

    results = [run(amp.emulate(report.program).to_onnx(), X) for report in (plain, padded)]

    assert results[0].shape == results[1].shape
    # Sums of the same products; how a CPU orders them may depend on the columns.
    assert np.allclose(results[0].astype(np.float32), results[1].astype(np.float32), rtol=2.0**-7, atol=1e-2)
    assert np.mean(results[0] == results[1]) > 0.99


@pytest.mark.parametrize("case", DEEP)
def test_a_weight_gets_rows_and_no_result_changes(case):
    body, weights, expected = DEEP[case]
    model = parse(f"(float[2048,2001] x) => (float y) {{ h = Tanh(x) {body} }}", **weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    plain, padded = (
        amp.transpile(model, level="O2", fuse="none", verify=False, pad_weights=wish) for wish in (False, True)
    )
    shapes = {tensor.name: list(tensor.dims) for tensor in padded.program.to_onnx().graph.initializer}
    assert shapes["w"] == expected
    assert ("Pad" in {node.op_type for node in padded.program.to_onnx().graph.node}) == (expected[0] == 2008)
    sample = {"x": array(2048, 2001, seed=9)}
    results = [run(amp.emulate(report.program).to_onnx(), sample).astype(np.float32) for report in (plain, padded)]
    assert results[0].shape == results[1].shape
    assert np.allclose(*results, rtol=2.0**-7, atol=1e-2)


@pytest.mark.parametrize("case", AS_IT_IS)
def test_what_gains_nothing_or_is_read_by_others_stays(case):
    assert paddings_of(model_of(*AS_IT_IS[case])) == ()


def test_what_is_saved_is_the_price_lists_word():
    (padding,) = paddings_of(model_of(*LARGE["a product"][:2]))
    assert (padding.columns, padding.width) == (2001, 2008)
    assert 0.0 < padding.saved < 1e-3


def test_what_the_page_says_of_gpt2():
    model = parse(
        "(float[128,768] x) => (float[128,50257] y) { y = MatMul(x, w) }", w=np.ones((768, 50257), np.float32)
    )
    (padding,) = paddings_of(model)
    assert 1e6 * padding.saved == pytest.approx(57.0, abs=0.5)


def test_names_are_kept_and_the_result_is_valid(tmp_path):
    body, weights, _ = LARGE["with a bias"]
    report = amp.transpile(model_of(body, weights), tmp_path / "m.onnx", level="O2", inputs=X, pad_weights=True)

    written = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert [value.name for value in written.graph.output] == ["y"]
    assert "Gemm_y" in {node.name for node in written.graph.node}
    assert any("padded weights, predicted to save" in note for note in report.notes)


def test_nothing_is_padded_unless_the_user_wishes():
    body, weights, _ = LARGE["a product"]
    program = amp.transpile(model_of(body, weights), level="O2", verify=False).program
    assert [list(tensor.dims) for tensor in program.to_onnx().graph.initializer] == [[512, 2001]]


def test_a_listed_value_keeps_its_maker():
    body, weights, _ = LARGE["before a node"]
    lists = amp.AutoMixedPrecisionLists(custom_black_varnames=["h"])
    report = amp.transpile(model_of(body, weights), level="O2", verify=False, pad_weights=True, amp_lists=lists)
    assert any("no weight padded" in note for note in report.notes)


def test_a_recipe_has_the_wish(tmp_path):
    body, weights, width = LARGE["a product"]
    report = amp.transpile(model_of(body, weights), level="O2", verify=False, pad_weights=True)
    report.save_recipe(tmp_path / "m.recipe.toml")

    again = amp.transpile(model_of(body, weights), recipe=tmp_path / "m.recipe.toml", verify=False)

    shapes = {tensor.name: list(tensor.dims) for tensor in again.program.to_onnx().graph.initializer}
    assert shapes["w"] == [512, width]


@pytest.mark.parametrize("target", ["cpu", "any", "tensorrt"])
def test_other_targets_have_no_prices(target):
    body, weights, _ = LARGE["a product"]
    with pytest.raises(OptionError, match="pad_weights has no meaning"):
        amp.transpile(model_of(body, weights), level="O2", target=target, verify=False, pad_weights=True)
