"""Thresholds of the user's: magnitudes of values and constants, and terms of a sum, from which nodes stay float32."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.cli import main
from amp_transpiler.errors import OptionError
from tests.support import array, parse

MODEL = """(float[4,64] x) => (float[4,8] y) {
    [wide] a = MatMul(x, w1) [grown] b = Mul(a, gain) [bent] c = Tanh(b) [narrow] y = MatMul(c, w2) }"""
WEIGHTS = {"w1": array(64, 16, scale=0.1), "gain": np.float32([700.0]), "w2": array(16, 8, scale=0.1)}
SAMPLE = {"x": array(4, 64)}


def high(level="O2", model=None, **options):
    """Return node -> reason for the nodes that stay float32."""
    source = parse(MODEL, **WEIGHTS) if model is None else model
    report = amp.transpile(source, level=level, **options, prefer="size")
    return {row.name: row.reason for row in report.decisions if row.precision == "high"}


def test_without_a_threshold_all_is_low():
    assert high() == {}


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_nodes_that_read_or_compute_large_values_stay_float32(level):
    wide = high(level, inputs=SAMPLE, data_max=300)
    assert set(wide) == {"grown", "bent"}
    assert wide["grown"].startswith("'b' reaches ")
    assert wide["grown"].endswith("in sample 1, above --data-max 300")
    assert high(level, inputs=SAMPLE, data_max=1e4) == {}


def test_made_up_inputs_show_ranges_too():
    assert {"grown", "bent"} <= set(high(data_max=30))


LOUD = {"x": 300 * array(4, 64)}  # 'b' leaves float16
TENSORRT = {"level": "O2", "target": "tensorrt", "inputs": LOUD, "build": "no"}
WITHOUT_WORD = {
    "an engine": ({}, {"grown", "bent"}),
    "for RTX": ({"target": "tensorrt-rtx"}, {"grown", "bent"}),
    "by the rules of another system": ({"level": "auto", "policy": "raf"}, {"grown", "bent"}),
    "quiet inputs": ({"inputs": SAMPLE}, set()),
    "the user's threshold": ({"data_max": 1e9}, set()),
    "no threshold": ({"data_max": float("inf")}, set()),
    "unverified": ({"inputs": None, "verify": False}, set()),
    "a format with float32's range": ({"dtype": "bfloat16"}, set()),
    "ONNX Runtime": ({"target": "cuda"}, set()),
}


@pytest.mark.parametrize(("options", "kept"), WITHOUT_WORD.values(), ids=WITHOUT_WORD)
def test_what_leaves_float16_stays_float32_in_engines(options, kept):
    reasons = high(**{**TENSORRT, **options})
    assert {name for name, reason in reasons.items() if "above --data-max 65504" in reason} == kept


def test_a_replayed_recipe_has_no_further_threshold(tmp_path):
    amp.transpile(parse(MODEL, **WEIGHTS), **TENSORRT | {"inputs": SAMPLE}).save_recipe(tmp_path / "r.toml")
    again = amp.transpile(parse(MODEL, **WEIGHTS), recipe=tmp_path / "r.toml", inputs=LOUD, build="no")
    assert {row.precision for row in again.decisions} == {"float16"}


MASKED = """(float[4,8] x, bool[4,8] shown) => (float[4,8] y) {
    [hide] s = Where(shown, x, least) [soft] y = Softmax(s) }"""


@pytest.mark.parametrize(("data_max", "kept"), [(None, set()), (1e5, set()), (6e4, {"hide", "soft"})])
def test_masks_count_as_the_format_has_them(data_max, kept):
    model = parse(MASKED, least=np.float32(-1e9))
    sample = {"x": array(4, 8), "shown": np.arange(32).reshape(4, 8) % 3 > 0}
    assert set(high(model=model, **TENSORRT | {"inputs": sample, "data_max": data_max})) == kept


def test_nodes_that_read_large_constants_stay_float32():
    assert high(init_max=512) == {"grown": "constant reaches 700, above --init-max 512"}
    assert high(init_max=512, dtype="bfloat16", target="tensorrt") == high(init_max=512)
    assert high(init_max=1000) == {}


def test_an_infinite_constant_does_not_count():
    model = parse("(float[2] x) => (float[2] y) { [top] y = Min(x, most) }", most=np.float32([np.inf, 3]))
    assert high(model=model, init_max=512) == {}


def test_nodes_that_sum_many_terms_stay_float32():
    assert high(max_depth_of_reduction=63) == {
        "wide": "sums 64 terms into one number, more than --max-depth-of-reduction 63"
    }
    assert set(high(max_depth_of_reduction=15)) == {"wide", "narrow"}
    assert high(max_depth_of_reduction=64) == {}


CALLS = {
    "Conv": ("(float[1,4,8,8] x) => (float[1,6,6,6] y) { y = Conv(x, w) }", {"w": array(6, 4, 3, 3)}, 36),
    "grouped": ("(float[1,4,8,8] x) => (float[1,6,6,6] y) { y = Conv<group = 2>(x, w) }", {"w": array(6, 2, 3, 3)}, 18),
    "ConvTranspose": (
        "(float[1,4,3,3] x) => (float[1,6,4,4] y) { y = ConvTranspose(x, w) }",
        {"w": array(4, 6, 2, 2)},
        16,
    ),
    "Gemm": ("(float[5,7] x) => (float[7,3] y) { y = Gemm<transA = 1>(x, w) }", {"w": array(5, 3)}, 5),
    "ReduceMean": ("(float[2,3,4] x) => (float[2] y) { y = ReduceMean<keepdims = 0>(x, axes) }", {"axes": [1, -1]}, 12),
    "every axis": ("(float[2,3,4] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }", {}, 24),
    "AveragePool": ("(float[1,1,8,8] x) => (float[1,1,6,7] y) { y = AveragePool<kernel_shape = [3, 2]>(x) }", {}, 6),
    "GlobalAveragePool": ("(float[1,2,5,3] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }", {}, 15),
    "Sum": ("(float[2] x) => (float[2] y) { y = Sum(x, x, x) }", {}, 3),
}


@pytest.mark.parametrize(("text", "weights", "count"), CALLS.values(), ids=CALLS)
def test_the_terms_of_an_operator(text, weights, count):
    model = parse(text, **{name: np.asarray(value) for name, value in weights.items()})
    options = {"model": model, "target": "tensorrt", "verify": False}
    assert [
        f"sums {count} terms" in reason for reason in high(**options, max_depth_of_reduction=count - 1).values()
    ] == [True]
    assert high(**options, max_depth_of_reduction=count) == {}


def test_a_dimension_of_the_inputs_may_be_named():
    model = parse("(float[rows,inner] x, float[inner,4] w) => (float[rows,4] y) { [product] y = MatMul(x, w) }")
    assert high(model=model, max_depth_of_reduction=1000, dims={"inner": 999}) == {}
    assert set(high(model=model, max_depth_of_reduction=1000, dims={"inner": 1001})) == {"product"}


def test_force_is_stronger():
    assert set(high(init_max=512, include="grown")) == set()


def test_all_policies_heed_them():
    assert "grown" in high(level="auto", policy="torch", init_max=512)
    assert "wide" in high(level="auto", policy="raf", max_depth_of_reduction=63)


WRONG = {
    "zero": ({"data_max": 0}, "data_max is 0: expected a number above 0"),
    "text": ({"init_max": "512"}, "init_max is '512': expected a number"),
    "true": ({"max_depth_of_reduction": True}, "max_depth_of_reduction is True"),
    "nan": ({"init_max": float("nan")}, "init_max is nan"),
    "unverified": ({"data_max": 512, "verify": False}, "only runs show: drop it, or verify"),
    "copies": ({"init_max": 512, "level": "O0"}, "no meaning where nothing becomes low"),
    "float32": ({"init_max": 512, "level": "auto", "dtype": "float32"}, "no meaning where nothing becomes low"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_threshold_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        high(**options)


def test_the_command_has_them(tmp_path, capsys):
    import onnx

    onnx.save(parse(MODEL, **WEIGHTS), tmp_path / "m.onnx")
    options = ["--level", "O2", "--explain", "--init-max", "512", "--max-depth-of-reduction", "63", "--data-max", "1e4"]
    assert main([str(tmp_path / "m.onnx"), *options]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "above --init-max 512" in shown
    assert "more than --max-depth-of-reduction 63" in shown
