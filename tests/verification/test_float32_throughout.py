"""A result that is float32 throughout: "within 0 %" says what TF32 does to it, and to the source."""

import re

import pytest

import amp_transpiler as amp
from tests.support import array, parse

W = array(64, 64, seed=3)

# name: (the graph, black operators, target, whether TF32 is told)
CASES = {
    "a product": ("y = MatMul (x, w)", ["MatMul"], "cuda", True),
    "a product with a bias": ("y = Gemm (x, w)", ["Gemm"], "cuda", True),
    "a product before a function": ("m = MatMul (x, w) y = Tanh (m)", ["MatMul", "Tanh"], "cuda", True),
    "no product": ("y = Tanh (x)", ["Tanh"], "cuda", False),
    "a target without TF32": ("y = MatMul (x, w)", ["MatMul"], "cpu", False),
    "a low product": ("y = MatMul (x, w)", [], "cuda", False),
    "a low function after a float32 product": ("m = MatMul (x, w) y = Tanh (m)", ["MatMul"], "cuda", False),
}


@pytest.mark.parametrize(("text", "black", "target", "told"), CASES.values(), ids=CASES)
def test_what_tf32_does_to_both_is_told(text, black, target, told, tmp_path):
    weights = {"w": W} if "w)" in text else {}
    model = parse(f"(float[8, 64] x) => (float[8, 64] y) {{ {text} }}", **weights)
    lists = amp.AutoMixedPrecisionLists(custom_black_list=black)
    x = {"x": array(8, 64, seed=1)}
    report = amp.transpile(model, tmp_path / "y.onnx", level="O2", amp_lists=lists, target=target, inputs=x)
    notes = [note for note in report.notes if note.startswith("the result is float32 throughout")]
    assert len(notes) == told
    for note in notes:
        (percents,) = re.findall(r"take both up to ([\d.]+)% off float32", note)
        assert 0.01 < float(percents) < 0.3  # a rounding to 11 significant digits, twice a product
