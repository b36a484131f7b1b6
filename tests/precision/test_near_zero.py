"""What is read near zero by logarithms, quotients and roots, and bounds that float16 cannot hold, stay float32."""

import math

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.precision.near_zero import LowerBounds, near_zero, steep_input
from amp_transpiler.precision.ranges import RangeFaults
from tests import support
from tests.support import array, parse

NUMBERS = {
    "w": array(4, 4, seed=1),
    "tiny": np.float32(1e-10),
    "least": np.float32(2.0**-24),
    "fair": np.float32(1e-3),
    "one": np.float32(1.0),
    "beside_one": np.float32(1.0 - 1e-6),
    "half": np.float32(0.5),
    "two": np.float32(2.0),
    "large": np.float32(3e38),
    "several": np.float32([1e-12, 1.0, 1.0, 1.0]),
    "four": np.int64([4]),
}


def nodes_of(text):
    model = ir.from_proto(parse(f"(float[4,4] x, float[4,4] p) => (float[4,4] y) {{ {text} }}", **NUMBERS))
    propagate_types(model)
    return list(model.graph)


def found(text, ranges=None, low=FLOAT16):
    seen = {name: TensorRange(1.0, least) for name, least in (ranges or {}).items()}
    return "".join(sorted(str(node.name) for node in near_zero(nodes_of(text), low, seen, 4.0)))


# name: (body; its nodes that stay float32 without data)
READ = {
    "a logarithm of features": ("[m] h = MatMul (x, w) [l] y = Log (h)", "lm"),
    "a reciprocal": ("[m] h = MatMul (x, w) [l] y = Reciprocal (h)", "lm"),
    "the lower side of a quotient": ("[m] h = MatMul (x, w) [l] y = Div (p, h)", "lm"),
    "not its upper side": ("[m] h = MatMul (x, w) [l] y = Div (h, two)", ""),
    "a root": ("[m] h = MatMul (x, w) [l] y = Sqrt (h)", "lm"),
    "a root as a power": ("[m] h = MatMul (x, w) [l] y = Pow (h, half)", "lm"),
    "not a square": ("[m] h = MatMul (x, w) [l] y = Pow (h, two)", ""),
    "through moves": ("[m] h = MatMul (x, w) [t] t = Transpose (h) [n] n = Abs (t) [l] y = Log (n)", "lmnt"),
    "through a bound that is too small": ("[m] h = MatMul (x, w) [c] c = Clip (h, tiny) [l] y = Log (c)", "clm"),
    "through Max": ("[m] h = MatMul (x, w) [c] c = Max (tiny, h) [l] y = Log (c)", "clm"),
    "through the least number of the format": ("[m] h = MatMul (x, w) [c] c = Max (least, h) [l] y = Log (c)", "clm"),
    "through an epsilon": ("[m] h = MatMul (x, w) [c] c = Add (h, least) [l] y = Log (c)", "clm"),
    "through a scale": ("[m] h = MatMul (x, w) [c] c = Mul (h, half) [l] y = Log (c)", "clm"),
    "not through arithmetic of features": ("[m] h = MatMul (x, w) [c] c = Mul (h, p) [l] y = Log (c)", "cl"),
    "not above a bound that the format holds": ("[m] h = MatMul (x, w) [c] c = Clip (h, fair) [l] y = Log (c)", ""),
    "nor where that is moved": ("[m] h = MatMul (x, w) c = Max (h, fair) t = Transpose (c) [l] y = Div (p, t)", ""),
    "nor above one": ("[m] h = MatMul (x, w) e = Exp (h) [a] a = Add (e, one) [l] y = Div (p, a)", ""),
    "nor above one, by magnitudes": ("[m] h = Abs (x) [a] a = Add (one, h) [l] y = Reciprocal (a)", ""),
    "nor above a root of a bound": ("[m] h = MatMul (x, w) c = Max (h, fair) s = Sqrt (c) [l] y = Div (p, s)", ""),
    "an epsilon beside numbers of any sign": ("[m] h = MatMul (x, w) [a] a = Add (h, one) [l] y = Log (a)", "alm"),
}


@pytest.mark.parametrize(("text", "expected"), READ.values(), ids=READ)
def test_what_stays_float32_without_data(text, expected):
    assert found(text) == expected
    assert found(text, low=BFLOAT16) == ""


# name: (body, least magnitudes that data showed, the nodes that stay float32)
CHAIN = "[m] h = MatMul (x, w) [t] t = Transpose (h) [l] y = Log (t)"
ON_DATA = {
    "numbers that are large enough": (CHAIN, {"t": 1e-3}, ""),
    "too small with headroom": (CHAIN, {"t": 1e-4}, "lmt"),
    "subnormal": (CHAIN, {"t": 1e-6}, "lmt"),
    "smaller than the format's least": (CHAIN, {"t": 1e-12}, "lmt"),
    "all of them zero": (CHAIN, {"t": math.inf}, ""),
    "only what is read counts": (CHAIN, {"h": 1e-9, "t": 1e-3}, ""),
    "a small bound counts more than data": (
        "[m] h = Abs (x) [c] c = Clip (h, tiny) [l] y = Log (c)",
        {"c": 0.5},
        "clm",
    ),
    "a fair bound, too": ("[m] h = Abs (x) [c] c = Clip (h, fair) [l] y = Log (c)", {"c": 1e-3}, ""),
}


@pytest.mark.parametrize(("text", "ranges", "expected"), ON_DATA.values(), ids=ON_DATA)
def test_what_stays_float32_on_data(text, ranges, expected):
    assert found(text, ranges) == expected


def test_zeros_alone_say_nothing():
    nodes = nodes_of("[l] y = Log (x)")
    assert list(near_zero(nodes, FLOAT16, {"x": TensorRange(0.0, math.inf)}, 4.0)) == nodes


def test_counts_are_no_small_numbers_unless_a_bound_makes_them():
    nodes = nodes_of("[c] c = Clip (x, tiny) [d] y = Div (p, c) [e] z = Div (p, x)")
    integers = {value for node in nodes for value in node.inputs if value.name in ("x", "c")}
    assert {node.name for node in near_zero(nodes, FLOAT16, {}, 4.0, (), integers)} == {"c", "d"}


def test_parts_of_a_whole_that_is_safe_are_no_concern():
    nodes = nodes_of("[m] h = MatMul (x, w) [l] y = Log (h)")
    assert not near_zero(nodes, FLOAT16, {}, 4.0, safe=nodes[-1:])


LOWER = {
    "relu": ("y = Relu (x)", 0.0),
    "a square": ("y = Mul (x, x)", 0.0),
    "an even power": ("y = Pow (x, two)", 0.0),
    "a bound and more": ("a = Max (x, two) y = Add (a, one)", 3.0),
    "a product": ("a = Max (x, two) b = Max (p, half) y = Mul (a, b)", 1.0),
    "a part": ("a = Max (x, two) y = Div (a, two)", 1.0),
    "a root": ("a = Max (x, two) y = Sqrt (a)", math.sqrt(2.0)),
    "a choice": ("a = Max (x, two) b = Max (p, half) c = Greater (x, p) y = Where (c, a, b)", 0.5),
    "a mean": ("a = Max (x, two) y = ReduceMean (a)", 2.0),
    "a sum of numbers below zero is less": ("a = Max (x, two) b = Sub (a, p) y = ReduceSum (b)", -math.inf),
    "any product": ("y = MatMul (x, w)", -math.inf),
}


@pytest.mark.parametrize(("text", "expected"), LOWER.values(), ids=LOWER)
def test_lower_bounds(text, expected):
    nodes = nodes_of(text)
    assert LowerBounds(nodes).of(nodes[-1].outputs[0]) == pytest.approx(expected)


def test_steep_operators():
    assert steep_input(nodes_of("y = Sqrt (x)")[0].outputs[0].producer()).name == "x"
    assert steep_input(nodes_of("y = Tanh (x)")[0].outputs[0].producer()) is None


# name: (body, whether node b stays float32)
BOUND = {
    "Clip": ("[b] c = Clip (h, tiny)", True),
    "Max": ("[b] c = Max (h, tiny)", True),
    "Min": ("[b] c = Min (tiny, h)", True),
    "a comparison": ("[b] g = Greater (h, tiny) c = Where (g, h, x)", True),
    "the other one": ("[b] g = Less (h, tiny) c = Where (g, h, x)", True),
    "one of several numbers": ("[b] c = Max (h, several)", True),
    "beside one": ("[b] c = Min (h, beside_one)", True),
    "that is repeated": ("e = Expand (tiny, four) [b] c = Max (h, e)", True),
    "filled in": ("e = ConstantOfShape <value = float[1] {1e-9}> (four) [b] c = Max (h, e)", True),
    "not: one that the format holds": ("[b] c = Clip (h, fair)", False),
    "not: one": ("[b] c = Min (h, one)", False),
    "not: none": ("[b] c = Clip (h, , large)", False),
    "not: between features": ("[b] c = Max (h, x)", False),
}


@pytest.mark.parametrize(("text", "high"), BOUND.values(), ids=BOUND)
def test_a_bound_that_the_format_cannot_hold(text, high):
    model = parse(f"(float[4,4] x) => (float[4,4] y) {{ h = MatMul (x, w) {text} y = MatMul (c, w) }}", **NUMBERS)
    decided = support.decisions(amp.transpile(model, verify=False, prefer="size"))
    assert decided["b"] == ("high" if high else "low")


def test_bfloat16_has_the_range_of_float32():
    (node,) = nodes_of("y = Clip (x, tiny)")
    assert RangeFaults(FLOAT16).of_bound(node.inputs[1])
    assert not RangeFaults(BFLOAT16).of_bound(node.inputs[1])


def test_a_bound_that_is_an_attribute():
    nodes = list(ir.from_proto(parse("(float[4] x) => (float[4] y) { y = Clip <min = 1e-10> (x) }", opset=6)).graph)
    assert str(RangeFaults(FLOAT16).of_bound_attributes(nodes[0])) == "bound 1e-10 becomes 5.960464e-08 in float16"
    assert not RangeFaults(FLOAT16, strict=False).of_bound_attributes(nodes[0])


def decided(bound, least=1.0, **options):
    """Return the precisions of a logarithm of squares above a bound."""
    model = parse(
        """(float[4, 64] x) => (float[4, 16] y) {
        [product] h = MatMul (x, v) [square] s = Mul (h, h) [bound] c = Max (s, b) [log] l = Log (c)
        [after] y = MatMul (l, w) }""",
        v=np.diag(np.geomspace(least, 1.0, 64)).astype(np.float32),
        b=np.float32(bound),
        w=array(64, 16, seed=2),
    )
    report = amp.transpile(
        model, inputs={"x": np.full((4, 64), 1.5, np.float32)}, tolerance=0.05, **options, prefer="size"
    )
    return support.decisions(report)


def test_a_logarithm_may_be_low_above_a_bound_that_the_format_holds():
    assert decided(1e-3, least=3.5e-4) == dict.fromkeys(("product", "square", "bound", "log", "after"), "low")


def test_it_is_float32_with_all_before_it_above_one_that_it_cannot_hold():
    assert decided(1e-12) == {"product": "low", "square": "high", "bound": "high", "log": "high", "after": "low"}
