"""Quantized programs at levels auto and O2: what computes is low, without casts, and the rest stays."""

import numpy as np
import pytest

import amp_transpiler as amp
from tests import support
from tests.support import array, parse

W8 = np.clip(np.round(array(4, 4, seed=1) * 40), -127, 127).astype(np.int8)
_IN = "q = QuantizeLinear (x, s, z) [d] d = DequantizeLinear (q, s, z) [w] w = DequantizeLinear (w8, s, z)"
_OUT = "[q] r = QuantizeLinear (h, s, z) y = DequantizeLinear (r, s, z)"

# name: (body, nodes that are low in float16; at level auto, if others)
BODIES: dict[str, tuple[str, set[str]] | tuple[str, set[str], set[str]]] = {
    "a product between quantized operators": (f"{_IN} [m] h = MatMul (d, w) {_OUT}", {"d", "w", "m", "q"}),
    "a cheap operator between them": (f"{_IN} [m] h = Relu (d) {_OUT}", set(), {"d", "w", "m", "q"}),
    "a normalisation between them": (f"{_IN} [m] h = LayerNormalization (d, row) {_OUT}", set(), {"d", "w", "m", "q"}),
    "one that moves between them": (f"{_IN} [m] h = Transpose (d) {_OUT}", set(), {"d", "w", "m", "q"}),
    "a product, then a cheap operator": (
        f"{_IN} [m] g = MatMul (d, w) [n] h = Relu (g) {_OUT}",
        {"d", "w", "m", "n", "q"},
    ),
    "16 bits tell what float16 does not": (
        f"{_IN} [m] h = MatMul (d, w) [q] r = QuantizeLinear (h, s, z16) y = DequantizeLinear (r, s, z16)",
        set(),
    ),
    "a bias of 32 bits, for which the CPU has kernels in both precisions": (
        f"{_IN} [b] b = DequantizeLinear (b32, s) [m] h = Gemm (d, w, b) {_OUT}",
        {"d", "w", "b", "m", "q"},
        set(),  # one of 16 integers is another, beyond the tolerance
    ),
    "weights alone are quantized": (
        "[w] w = DequantizeLinear (w8, s, z) [m] h = MatMul (x, w) [n] y = Relu (h)",
        {"w", "m", "n"},
    ),
}
FEEDS = {"x": array(4, 4)}


def model(body, opset=21):
    return parse(
        f"(float[4,4] x) => (float[4,4] y) {{ {body} }}",
        opset=opset,
        w8=W8,
        s=np.float32(0.03125),
        z=np.int8(0),
        z16=np.int16(0),
        b32=np.arange(4, dtype=np.int32),
        row=array(4, seed=3),
        v=array(4, 4, seed=5),
    )


def low_nodes(report):
    named = {"d", "w", "m", "n", "q", "b"}
    return {node for node, precision in support.decisions(report).items() if precision == "low"} & named


@pytest.mark.parametrize("level", ["auto", "O2"])
@pytest.mark.parametrize("name", BODIES)
def test_what_is_low(name, level):
    body, *expected = BODIES[name]
    report = support.convert(model(body), FEEDS, level)
    assert low_nodes(report) == expected[-1 if level == "auto" else 0]


@pytest.mark.parametrize("level", ["auto", "O2"])
def test_a_product_between_quantized_operators_costs_no_cast(level):
    report = support.convert(model(BODIES["a product between quantized operators"][0]), FEEDS, level)
    assert report.casts <= 1  # that of the result


def test_without_low_quantized_operators_their_products_stay():
    """CUDA has none in bfloat16: each product would stand between three casts."""
    report = amp.transpile(
        model(BODIES["a product between quantized operators"][0]),
        level="auto",
        dtype="bfloat16",
        verify=False,
        prefer="size",
    )
    assert not low_nodes(report)
    assert report.casts == 0


# The same, in bfloat16, where quantized operators are float32 on CUDA: a value of theirs costs a cast.
GROUPS: dict[str, tuple[str, set[str]] | tuple[str, set[str], set[str]]] = {
    "one product saves no more than its cast": ("[m] y = MatMul (d, v)", set()),
    "two products save more": ("[m] g = MatMul (d, v) [n] y = MatMul (g, v)", {"m", "n"}),
    "the source's cast between them is gone then": (
        "[m] g = MatMul (d, v) f = Cast <to = 1> (g) [n] y = MatMul (f, v)",
        {"m", "n"},
    ),
    "what is rounded to integers between them parts them": (
        "[m] g = MatMul (d, v) i = Cast <to = 6> (g) f = Cast <to = 1> (i) [n] y = MatMul (f, v)",
        {"n"},
        set(),  # it saves no more than its own casts
    ),
}


@pytest.mark.parametrize("level", ["auto", "O2"])
@pytest.mark.parametrize("name", GROUPS)
def test_a_group_must_save_more_than_the_casts_of_quantized_values(name, level):
    body, *expected = GROUPS[name]
    read = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
    report = amp.transpile(model(f"{read} {body}"), level=level, dtype="bfloat16", verify=False, prefer="size")
    assert low_nodes(report) == expected[-1 if level == "auto" else 0]


def test_integers_of_a_float32_value_stay_exact():
    report = amp.transpile(
        parse(
            """(float[4,4] x) => (float[4,4] y, int8[4,4] r) {
                h = MatMul (x, w) [e] e = Exp (h) [q] r = QuantizeLinear (e, s, z) y = MatMul (h, w) }""",
            opset=21,
            w=array(4, 4),
            s=np.float32(0.125),
            z=np.int8(0),
        ),
        level="auto",
        verify=False,
        prefer="size",
    )
    assert support.decisions(report)["q"] == "high"
    assert support.reasons(report)["q"] == "it decides integers"
