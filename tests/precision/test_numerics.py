"""Operators that are unsafe in a low format, judged without data."""

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import in_order
from amp_transpiler.ops.kinds import BOUNDED, CAPPED, COMPUTE, EXACT, MOVEMENT, SQUARES
from amp_transpiler.precision.evidence import TensorRange
from amp_transpiler.precision.numerics import (
    UNSAFE,
    exact_positions,
    from_integers,
    normalisations,
    shown_safe,
    unsafe_nodes,
)
from amp_transpiler.precision.range_growth import degrees
from amp_transpiler.precision.ranges import RangeFaults
from tests import support
from tests.support import array, parse

W = array(4, 4, seed=1)
BOTH, FP16, NONE = {"float16", "bfloat16"}, {"float16"}, set()

# name: (body over h, the result of a MatMul; node n's formats in which it is unsafe)
BODIES = {
    # amplifiers
    "Exp": ("[n] y = Exp (h)", BOTH),
    "Log": ("[n] y = Log (h)", BOTH),
    "Reciprocal overflows in float16 alone": ("[n] y = Reciprocal (h)", FP16),
    "ReduceSum likewise": ("[n] y = ReduceSum (h)", FP16),
    "ReduceMean is a kernel that accumulates in float32": ("[n] y = ReduceMean (h)", NONE),
    "Softmax is bounded": ("[n] y = Softmax (h)", NONE),
    "LayerNormalization computes in float32": ("[n] y = LayerNormalization (h, row)", NONE),
    "Relu": ("[n] y = Relu (h)", NONE),
    "MatMul": ("[n] y = MatMul (h, w)", NONE),
    "ReduceL2": ("[n] y = ReduceL2 (h)", BOTH),
    "ScatterND that adds": ('[n] y = ScatterND <reduction = "add"> (h, at, row2)', BOTH),
    "ScatterND that replaces": ("[n] y = ScatterND (h, at, row2)", NONE),
    "a reduction of another domain": ('[n] y = my.domain.Any <reduction = "add"> (h)', NONE),
    "ScatterND that says that it replaces": ('[n] y = ScatterND <reduction = "none"> (h, at, row2)', NONE),
    "an operator of another domain": ("[n] y = my.domain.Exp (h)", NONE),
    # sums of squares
    "a square by Pow": ("[n] p = Pow (h, two) y = ReduceMean (p)", BOTH),
    "a square by Mul": ("[n] p = Mul (h, h) y = ReduceMean (p)", BOTH),
    "a product that is no square": ("[n] p = Mul (h, w2) y = ReduceMean (p)", NONE),
    "a square that is not summed": ("[n] p = Mul (h, h) y = Relu (p)", NONE),
    "the sum of squares": ("p = Mul (h, h) [n] y = ReduceMean (p)", BOTH),
    "epsilon added to it": ("p = Mul (h, h) m = ReduceMean (p) [n] e = Add (m, eps) y = Sqrt (e)", BOTH),
    "the root of it": ("p = Mul (h, h) m = ReduceMean (p) e = Add (m, eps) [n] y = Sqrt (e)", BOTH),
    "the normalisation by it": ("p = Mul (h, h) m = ReduceMean (p) r = Sqrt (m) [n] y = Div (h, r)", BOTH),
    "what comes behind the normalisation": (
        "p = Mul (h, h) m = ReduceMean (p) r = Sqrt (m) d = Div (h, r) [n] y = Relu (d)",
        NONE,
    ),
    "the sum of squares by Pow": ("p = Pow (h, two) [n] y = ReduceMean (p)", BOTH),
    "the sum of another power": ("p = Pow (h, eps) [n] y = ReduceMean (p)", NONE),
    "a sum of one value twice": ("p = Add (h, h) [n] y = ReduceMean (p)", NONE),
    "a product of another domain": ("p = my.domain.Mul (h, h) [n] y = ReduceMean (p)", NONE),
    "a sum of another domain": ("p = Mul (h, h) [n] y = my.domain.ReduceMean (p)", NONE),
    "a root of another domain": ("p = Mul (h, h) m = ReduceMean (p) [n] y = my.domain.Sqrt (m)", NONE),
    "a sum over axes": ("p = Mul (h, h) [n] y = ReduceMean (p, ids)", BOTH),
    "the root of a sum of another domain": ("m = my.domain.ReduceSumSquare (h) [n] y = Sqrt (m)", NONE),
    "a sum of what an input is": ("[n] y = ReduceMean (x)", NONE),
    "a sum scaled by a constant": ("p = Mul (h, h) m = ReduceMean (p) [n] e = Mul (m, eps) y = Sqrt (e)", BOTH),
    "its root": ("p = Mul (h, h) m = ReduceMean (p) e = Mul (m, eps) [n] y = Sqrt (e)", BOTH),
    "a sum times the features normalises": ("p = Mul (h, h) m = ReduceMean (p) d = Mul (h, m) [n] y = Sqrt (d)", NONE),
    "the root of a sum by ReduceSumSquare": ("m = ReduceSumSquare (h) [n] y = Sqrt (m)", BOTH),
    "a matrix product of a sum": ("p = Mul (h, h) m = ReduceMean (p) [n] y = MatMul (m, one_one)", NONE),
    # beyond the range
    "1.1: where a mask is chosen: its constant holds it, not this rule": (
        "[n] s = Where (c, h, off) y = Softmax (s)",
        NONE,
    ),
    "Softmax behind a mask": ("s = Where (c, h, off) [n] y = Softmax (s)", FP16),
    "an Add of what may be beyond": ("s = Mul (h, off) [n] a = Add (h, s) y = Softmax (a)", FP16),
    "behind the Softmax all is well": ("s = Mul (h, off) a = Add (h, s) p = Softmax (a) [n] y = MatMul (p, w)", NONE),
    "movement carries it on": ("s = Mul (h, off) t = Transpose (s) [n] y = Relu (t)", FP16),
    "a division by it makes it small": ("s = Div (h, off) [n] y = Relu (s)", NONE),
    "a division by an ordinary constant does not": ("s = Mul (h, off) d = Div (s, two) [n] y = Relu (d)", FP16),
    "nor a division of the mask by features": ("s = Div (off, h) [n] y = Relu (s)", FP16),
    "a comparison of it is no float": ("s = Mul (h, off) [n] b = Less (s, h) y = Where (b, h, w2)", NONE),
    "nor is what is chosen by it beyond": (
        "s = Mul (h, off) b = Less (s, h) z = Where (b, h, w2) [n] y = Relu (z)",
        NONE,
    ),
    "an operator of another domain, which is not judged": ("s = Mul (h, off) [n] y = com.microsoft.Gelu (s)", NONE),
    "one of two results is a float": ("s = Mul (h, off) [n] v, i = TopK (s, four1) y = MatMul (v, w)", FP16),
    "out of an If": (
        """r = If (yes) <then_branch = t () => (float[2,4] p) { p = Mul (h, off) },
                         else_branch = e () => (float[2,4] q) { q = Relu (h) }> [n] y = Relu (r)""",
        FP16,
    ),
    "captured by an If": (
        """s = Mul (h, off) y = If (yes) <then_branch = t () => (float[2,4] p) { [n] p = Relu (s) },
                                          else_branch = e () => (float[2,4] q) { q = Relu (h) }>""",
        FP16,
    ),
    "into a Loop and out of it": (
        """s = Mul (h, off) r = Loop (four, yes, s) <body = b (int64 i, bool k, float[2,4] a)
            => (bool k2, float[2,4] a2) { k2 = Identity (k) a2 = Identity (a) }> [n] y = Relu (r)""",
        FP16,
    ),
    "into the body of a Loop": (
        """s = Mul (h, off) y = Loop (four, yes, s) <body = b (int64 i, bool k, float[2,4] a)
            => (bool k2, float[2,4] a2) { k2 = Identity (k) t = Neg (a) [n] a2 = Relu (t) }>""",
        FP16,
    ),
    "made in a Loop": (
        """r = Loop (four, yes, h) <body = b (int64 i, bool k, float[2,4] a)
            => (bool k2, float[2,4] a2) { k2 = Identity (k) a2 = Mul (a, off) }> [n] y = Relu (r)""",
        FP16,
    ),
    "no mask in a Loop": (
        """r = Loop (four, yes, h) <body = b (int64 i, bool k, float[2,4] a)
            => (bool k2, float[2,4] a2) { k2 = Identity (k) a2 = Relu (a) }> [n] y = Relu (r)""",
        NONE,
    ),
    "a bound is no mask": ("s = Max (h, off) [n] y = Relu (s)", NONE),
    # index arithmetic
    "positions": ("i = Range (zero, four, one) f = Cast <to = 1> (i) [n] p = Mul (f, small) y = Add (h, p)", BOTH),
    "functions of positions": (
        "i = Range (zero, four, one) f = Cast <to = 1> (i) q = Mul (f, small) [n] p = Sin (q) y = Add (h, p)",
        BOTH,
    ),
    "where they meet features": (
        "i = Range (zero, four, one) f = Cast <to = 1> (i) p = Mul (f, small) [n] y = Add (h, p)",
        NONE,
    ),
    "a 2-D weight ends index arithmetic": ("f = Cast <to = 1> (four) [n] p = Mul (f, m1024) y = Relu (p)", NONE),
    "what follows it is none either": ("f = Cast <to = 1> (four) p = Mul (f, m1024) [n] y = Relu (p)", NONE),
    "a 3-D weight likewise": ("f = Cast <to = 1> (four) [n] p = Mul (f, cube) y = Relu (p)", NONE),
    "a matrix of 1023 is a table of frequencies": (
        "f = Cast <to = 1> (four) [n] p = Mul (f, m1023) y = Relu (p)",
        BOTH,
    ),
    "a long vector, too": ("f = Cast <to = 1> (four) [n] p = Mul (f, v2048) y = Relu (p)", BOTH),
    "two floats from integers": ("f = Cast <to = 1> (four) g = Cast <to = 1> (one) [n] y = Sub (f, g)", BOTH),
    "a float32 range": ("z = Cast <to = 1> (four) f = Range (eps, two, eps) [n] y = Mul (f, two)", BOTH),
    "the range itself": ("[n] f = Range (eps, two, eps) y = Mul (f, two)", BOTH),
    "the cast itself is the user's own": ("[n] f = Cast <to = 1> (four) y = Mul (f, two)", NONE),
    "a choice by integers": ("b = Less (four, one) [n] f = Where (b, eps, two) y = Mul (f, two)", BOTH),
    "a comparison alone is no arithmetic": ("[n] z = Shape (h) f = ConstantOfShape (z) y = Relu (f)", NONE),
    "zeros of some shape are no positions": ("z = Shape (h) [n] f = ConstantOfShape (z) y = Relu (f)", NONE),
    "from a cast of 16 bits": ("q = Cast <to = 10> (h) f = Cast <to = 1> (q) [n] y = Mul (f, two)", NONE),
    "sums along a constant": ("[n] f = CumSum (row, zero) y = Mul (f, two)", BOTH),
    "a float and integers made from positions": (
        "i = Range (zero, four, one) f = Cast <to = 1> (i) [n] v, j = TopK (f, four1) y = Add (h, v)",
        BOTH,
    ),
    "integers made from positions": (
        "i = Range (zero, four, one) f = Cast <to = 1> (i) [n] j = Cast <to = 7> (f) y = Gather (table, j)",
        NONE,
    ),
    "positions in another domain": ("f = Cast <to = 1> (four) [n] y = com.microsoft.Gelu (f)", NONE),
    "a Loop that begins with a position": (
        """f = Cast <to = 1> (four) r = Loop (four, yes, f) <body = b (int64 i, bool k, float a)
            => (bool k2, float a2) { k2 = Identity (k) a2 = ReduceMax <keepdims = 0> (h) }> [n] y = Relu (r)""",
        NONE,
    ),
    "an embedding is no index arithmetic": ("[n] p = Gather (table, ids) y = MatMul (p, w)", NONE),
}


def unsafe(body, low):
    model = ir.from_proto(
        parse(
            f"(float[2,4] x, bool[2,4] c, bool yes) => (float[A,B] y) {{ h = MatMul (x, w) {body} }}",
            imports=', "my.domain": 1, "com.microsoft": 1',
            w=W,
            w2=W[:2],
            row=W[0],
            row2=W[:1],
            two=np.float32(2),
            eps=np.float32(1e-5),
            off=np.float32(-1e9),
            small=np.array([[0.1, 0.2, 0.3, 0.4]], np.float32),
            zero=np.int64(0),
            four=np.int64(4),
            one=np.int64(1),
            at=np.array([[0]]),
            ids=np.array([1, 0]),
            table=array(300, 4),
            one_one=W[:1, :1],
            four1=np.array([4]),
            m1024=array(2, 512),
            m1023=array(1, 1023),
            cube=array(2, 2, 256),
            v2048=array(2048),
        )
    )
    propagate_types(model)
    names = unsafe_nodes(model, low, RangeFaults(low))
    assert all(map(str, names.values())), "every reason is a sentence"
    return {node.name for node in names}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_unsafe(name):
    body, formats = BODIES[name]
    unsafe_in = {low.name for low in (FLOAT16, BFLOAT16) if "n" in unsafe(body, low)}
    assert unsafe_in == formats


@pytest.mark.parametrize("name", ["a mask", "a mask passed into a body"])
def test_a_mask_is_right_at_auto_wherever_it_is_made(name):
    bodies = {
        "a mask": "m = Where (c, h, off) s = Softmax (m) y = MatMul (s, w)",
        "a mask passed into a body": """m = Where (c, h, off)
            y = If (yes) <then_branch = t () => (float[2,4] p) { s = Softmax (m) p = MatMul (s, w) },
                          else_branch = e () => (float[2,4] q) { q = Relu (m) }>""",
    }
    model = parse(
        f"(float[2,4] x, bool[2,4] c, bool yes) => (float[2,4] y) {{ h = MatMul (x, w) {bodies[name]} }}",
        w=W,
        off=np.float32(-3.4e38),
    )
    feeds = {"x": array(2, 4), "c": np.array([[1, 0, 0, 1], [0, 0, 0, 0]], bool), "yes": np.array(True)}
    for level in ("auto", "O2"):
        support.convert(model, feeds, level)


COUNT = "[count] i = Range (zero, n, one) [cast] f = Cast <to = 1> (i) [scale] p = Mul (f, two)"
POSITIONS = {
    "met by features": (f"{COUNT} [meet] y = Add (x, p)", set()),
    "moved": (f"{COUNT} [move] q = Reshape (p, shape) [meet] y = Add (x, q)", set()),
    "a function": (f"{COUNT} [bend] q = Sin (p) [meet] y = Add (x, q)", {"cast", "scale", "bend"}),
    "a comparison": (f"{COUNT} [compare] b = Less (p, x) [choose] y = Where (b, x, x)", {"cast", "scale"}),
    "an index": (f"{COUNT} [index] j = Cast <to = 7> (p) [look] y = Gather (x, j)", {"cast", "scale"}),
    "a size": (f"{COUNT} [size] s = Shape (p) [grow] q = Expand (p, s) [meet] y = Add (x, q)", set()),
}


def counting_model(body):
    constants = {"zero": 0, "one": 1, "two": np.float32(2), "shape": [4]}
    read = {name: np.asarray(value) for name, value in constants.items() if re.search(rf"\b{name}\b", body)}
    return parse(f"(float[4] x, int64 n) => (float[4] y) {{ {body} }}", **read)


@pytest.mark.parametrize(("body", "expected"), POSITIONS.values(), ids=POSITIONS)
def test_positions_that_must_be_exact(body, expected):
    model = ir.from_proto(counting_model(body))
    propagate_types(model)
    assert {node.name for node in exact_positions(from_integers(list(in_order(model.graph))))} == expected


@pytest.mark.parametrize("name", ["met by features", "a function"])
def test_an_engine_counts_in_bfloat16_what_need_not_be_exact(name):
    """A float32 Range has no bfloat16 form: what follows it would be cast."""
    floats = "t = Cast <to = 1> (n) [cast] f = Range (two, t, two)"
    model = counting_model(floats + POSITIONS[name][0].partition("(i)")[2])
    options = {"level": "O2", "dtype": "bfloat16", "target": "tensorrt", "verify": False, "build": "no"}
    decided = {row.name: row.precision for row in amp.transpile(model, **options).decisions}
    assert decided["meet"] == "bfloat16"
    assert (decided["scale"] == "float32") is (name == "a function")


def test_nodes_come_in_the_order_of_execution():
    model = ir.from_proto(
        parse(
            """(float[2] x, bool c) => (float[2] y) {
                [a] h = Relu (x)
                [if] b = If (c) <then_branch = t () => (float[2] p) { [in] p = Neg (h) },
                                 else_branch = e () => (float[2] q) { [out] q = Abs (h) }>
                [z] y = Exp (b)
            }"""
        )
    )
    names = [node.name for node in in_order(model.graph)]
    assert names == ["a", "in", "out", "if", "z"]


TABLES = {
    "UNSAFE": UNSAFE,
    "COMPUTE": COMPUTE,
    "MOVEMENT": MOVEMENT,
    "BOUNDED": BOUNDED,
    "SQUARES": SQUARES,
    "EXACT": EXACT,
    "CAPPED": CAPPED,
}
NOT_YET_IN_ONNX = {"CumProd"}  # newer than the oldest onnx that is supported


@pytest.mark.parametrize("name", TABLES)
def test_every_operator_of_a_table_exists(name):
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    known |= {f"{schema.domain}::{schema.name}" for schema in state.get_all_operator_schema() if schema.domain}
    assert set(TABLES[name]) - known <= NOT_YET_IN_ONNX


@pytest.mark.parametrize("op_type", sorted(EXACT))
def test_an_exact_operator_makes_no_new_numbers(op_type):
    """Emulation rounds no result of these: each must be exact in float16 where its inputs are."""
    assert op_type not in BOUNDED or op_type == "Sign"
    assert op_type not in UNSAFE


def test_auto_follows_these_rules_and_o2_does_not():
    model = parse("(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) [n] e = Exp (h) y = MatMul (e, w) }", w=W)
    assert support.decisions(amp.transpile(model, level="auto", verify=False, prefer="size"))["n"] == "high"
    assert support.decisions(amp.transpile(model, level="O2", verify=False))["n"] == "low"


# name: (node, ranges of what it reads and computes: (largest, smallest), whether it counts, whether float16 is safe)
SHOWN = {
    "an exponential of small numbers": ("y = Exp (x)", {"x": (2.7, 0.1), "y": (14.9, 0.9)}, False, True),
    "one of numbers of which four times as much overflows": (
        "y = Exp (x)",
        {"x": (5.0, 0.1), "y": (148.0, 0.9)},
        False,
        False,
    ),
    "one of numbers below zero": ("y = Exp (x)", {"x": (90.0, 0.1), "y": (1.0, 0.0)}, False, True),
    "a hyperbolic cosine": ("y = Cosh (x)", {"x": (5.0, 0.1), "y": (74.0, 1.0)}, False, False),
    "a power of a constant": ("y = Pow (ten, x)", {"x": (2.0, 0.1), "y": (100.0, 1.0)}, False, False),
    "a value that was not seen": ("y = Exp (x)", {"x": (2.0, 0.1)}, False, False),
    "a logarithm": ("y = Log (x)", {"x": (9.0, 0.01), "y": (4.6, 0.1)}, False, True),
    "a quotient": ("y = Div (x, p)", {"x": (1.0, 2e-7), "p": (9.0, 0.1), "y": (9.0, 2e-8)}, False, True),
    "a sum of exponentials": ("e = Exp (x) y = ReduceSum (e)", {"e": (12.0, 0.1), "y": (40.0, 0.1)}, False, False),
    "a small one": ("e = Exp (x) y = ReduceSum (e)", {"e": (5.0, 0.1), "y": (15.0, 0.1)}, False, True),
    "a logarithm of one": (
        "e = Exp (x) s = ReduceSum (e) y = Log (s)",
        {"s": (40.0, 0.1), "y": (3.7, 0.1)},
        False,
        False,
    ),
    "a square": ("y = Mul (x, x)", {"x": (63.0, 0.1), "y": (3969.0, 0.1)}, False, True),
    "one that is too large with headroom before it": (
        "y = Mul (x, x)",
        {"x": (65.0, 0.1), "y": (4225.0, 0.1)},
        False,
        False,
    ),
    "a square by Pow": ("y = Pow (x, two)", {"x": (65.0, 0.1), "y": (4225.0, 0.1)}, False, False),
    "a cube": ("y = Pow (x, three)", {"x": (11.0, 0.1), "y": (1331.0, 0.1)}, False, False),
    "a product of two": ("y = Mul (x, p)", {"x": (65.0, 0.1), "p": (65.0, 0.1), "y": (4225.0, 0.1)}, False, False),
    "a product with a constant": ("y = Mul (x, ten)", {"x": (422.0, 0.1), "y": (4220.0, 0.1)}, False, True),
    "a sum of squares": ("s = Mul (x, x) y = ReduceSum (s)", {"s": (400.0, 0.1), "y": (4225.0, 0.1)}, False, False),
    "squares that an operator sums": ("y = ReduceSumSquare (x)", {"x": (65.0, 0.1), "y": (4225.0, 0.1)}, False, False),
    "the root of them": ("s = Mul (x, x) y = Sqrt (s)", {"s": (4000.0, 0.1), "y": (65.0, 0.1)}, False, True),
    "small positions": ("y = Mul (x, x)", {"x": (20.0, 1.0), "y": (400.0, 1.0)}, True, True),
    "large positions": ("y = Mul (x, x)", {"x": (30.0, 1.0), "y": (900.0, 1.0)}, True, False),
    "a quantization": ("y = QuantizeLinear (x, scale)", {"x": (1.0, 0.1)}, False, False),
    "an operator of another domain": ("y = my.domain.Exp (x)", {"x": (2.0, 0.1), "y": (7.4, 0.9)}, False, False),
}


@pytest.mark.parametrize(("text", "sizes", "counts", "expected"), SHOWN.values(), ids=SHOWN)
def test_ranges_speak_for_what_is_unsafe_by_nature(text, sizes, counts, expected):
    model = ir.from_proto(
        parse(
            f"(float[4] x, float[4] p) => (float[4] y) {{ {text} }}",
            imports=', "my.domain" : 1',
            scale=np.float32(0.1),
            two=np.float32(2.0),
            three=np.float32(3.0),
            ten=np.float32(10.0),
        )
    )
    propagate_types(model)
    ranges = {name: TensorRange(*seen) for name, seen in sizes.items()}
    powers = degrees(list(model.graph))
    assert shown_safe(model.graph[-1], ranges, FLOAT16, 4.0, counts=counts, degrees=powers) is expected


RMS = "p = Pow ({x}, two) m = ReduceMean (p) e = Add (m, eps) r = Sqrt (e) {y} = Div ({x}, r)"
NORMALISED: dict[str, tuple[str, list[set[str]]]] = {
    "by a root mean square": (RMS.format(x="x", y="y"), [{"p", "m", "e", "r", "y"}]),
    "after centring, which is apart": (
        "a = ReduceMean (x) c = Sub (x, a) " + RMS.format(x="c", y="y"),
        [{"p", "m", "e", "r", "y"}],
    ),
    "by a length": ("l = ReduceL2 (x) y = Div (x, l)", [{"l", "y"}]),
    "two of one sum": (
        "p = Mul (x, x) m = ReduceSum (p) r = Sqrt (m) q = Div (x, r) h = Abs (x) o = Mul (h, r) y = Add (q, o)",
        [{"p", "m", "r", "q", "o"}],
    ),
    "two that meet": (
        "p = Mul (x, x) m = ReduceSum (p) o = Abs (x) q = Mul (o, o) n = ReduceSum (q) s = Add (m, n) y = Sqrt (s)",
        [{"p", "m", "q", "n", "s", "y"}],
    ),
    "two one after the other": (
        "p = Mul (x, x) m = ReduceMean (p) h = Div (x, m) q = Mul (h, h) n = ReduceMean (q) y = Div (h, n)",
        [{"p", "m", "h"}, {"q", "n", "y"}],
    ),
    "nothing": ("y = Mul (x, x)", []),
}


@pytest.mark.parametrize(("text", "expected"), NORMALISED.values(), ids=NORMALISED)
def test_a_normalisation_is_found_whole(text, expected):
    """Nodes are named by what they make."""
    constants = {"two": np.float32(2.0), "eps": np.float32(1e-5)}
    model = ir.from_proto(parse(f"(float[4] x) => (float y) {{ {text} }}", **constants))
    propagate_types(model)
    wholes = normalisations(list(in_order(model.graph)))
    assert [{str(node.outputs[0].name) for node in each} for each in wholes] == expected
