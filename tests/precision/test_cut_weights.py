"""The two aims of a cut: the most lower precision at the fewest casts, and the least predicted time."""

import dataclasses
import itertools

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import prepare_and_convert
from amp_transpiler.errors import OptionError
from amp_transpiler.precision.cut_weights import LowWeights, TimeWeights, WithErrors
from amp_transpiler.precision.evidence import Evidence, TensorRange
from amp_transpiler.systems.choice import Request, choose_policy
from tests.support import array, assert_valid, parse

W = array(4, 4, seed=1)


def converted(model, objective="low", request=None, **options):
    """Convert a model; return its conversion and program."""
    policy = dataclasses.replace(choose_policy(request or Request(level="auto")), objective=objective, **options)
    program = amp.load(model)
    return prepare_and_convert(program, policy), program


def low_nodes(conversion):
    return {node.name for node, decision in conversion.assignment.decisions.items() if decision.precision == "low"}


def reasons(conversion):
    return {node.name: str(decision.reason) for node, decision in conversion.assignment.decisions.items()}


def model_of(body, outputs="float[N,A] y", **weights):
    weights = {"w": W, "k": W[0], "two": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)} | weights
    used = {name: values for name, values in weights.items() if f" {name})" in body or f"({name}," in body}
    return parse(f"(float[N,4] x) => ({outputs}) {{ {body} }}", **used)


GELU = "[a] d = Div (h, two) [b] e = Erf (d) [c] f = Add (e, one) [d] g = Mul (h, f) [i] i = Mul (g, half)"
LOW = {
    # name: (outputs, body, low nodes, casts)
    "casts of inputs and outputs are accepted": ("float[N,A] y", "[a] y = Sigmoid (x)", {"a"}, 2),
    "but not for values that only move": ("float[N,A] y", "[a] h = Transpose (x) [b] y = Transpose (h)", set(), 0),
    "an island between float32 operators": (
        "float[N,A] y",
        "[e] h = Exp (x) [a] r = Relu (h) [b] s = Tanh (r) [c] t = Neg (s) [f] y = Exp (t)",
        set(),
        0,
    ),
    "four cheap operators are worth two casts": (
        "float[N,A] y",
        "[e] h = Exp (x) [a] r = Relu (h) [b] s = Tanh (r) [c] t = Neg (s) [d] u = Abs (t) [f] y = Exp (u)",
        {"a", "b", "c", "d"},
        2,
    ),
    "an operator that is written as five counts as one": (
        "float[N,A] y",
        f"[e] h = Exp (x) {GELU} [f] y = Exp (i)",
        set(),
        0,
    ),
    "a product is worth any casts": ("float[N,A] y", "[e] h = Exp (x) [a] r = MatMul (h, w) [f] y = Exp (r)", {"a"}, 2),
    "values are moved on the low side of a cast": (
        "float[N,A] y",
        "[a] r = MatMul (x, w) [b] t = Transpose (r) [f] y = Exp (t)",
        {"a", "b"},
        2,
    ),
    "a cheap tail saves no cast": (
        "float[N,A] y",
        "[a] r = MatMul (x, w) [b] t = Relu (r) [f] y = Exp (t)",
        {"a", "b"},
        2,
    ),
    "a cheap tail whose input is cast anyway": (
        "float[N,A] y, float[N,A] z",
        "[a] r = MatMul (x, w) [e] z = Exp (r) [b] t = Relu (r) [f] y = Exp (t)",
        {"a"},
        2,
    ),
    "part of an island stays low": (
        "float[N,A] y, float[N,A] z",
        "[a] r = MatMul (x, w) [b] t = Relu (r) [c] s = Tanh (t) [e] u = Exp (t) [d] z = Add (u, s) [f] y = Exp (s)",
        {"a", "b"},
        2,
    ),
}


@pytest.mark.parametrize("name", LOW)
def test_the_most_lower_precision_at_the_fewest_casts(name):
    outputs, body, expected, casts = LOW[name]
    conversion, program = converted(model_of(body, outputs))
    assert_valid(program)
    assert low_nodes(conversion) == expected
    assert conversion.casts == casts
    for node, reason in reasons(conversion).items():
        if node in "abcdi" and node not in expected:
            assert reason.startswith(("an island: ", "exponentials")), node


def test_the_reason_counts():
    body = "[e] h = Exp (x) [a] r = Relu (h) [b] s = Tanh (r) [f] y = Exp (s)"
    told = reasons(converted(model_of(body))[0])
    assert told["a"] == told["b"] == "an island: lower precision costs 2 more casts for 2 cheap operators"
    told = reasons(converted(model_of("[a] h = Transpose (x) [b] y = Transpose (h)"))[0])
    assert told["a"] == "an island: lower precision costs 2 more casts for nodes that only move values"


WISHES = {
    # name: (request, options, low nodes); without a wish none is low
    "none": ({}, {}, set()),
    "a custom white list binds": ({"lists": amp.AutoMixedPrecisionLists(custom_white_list={"Relu"})}, {}, {"a"}),
    "a custom black list binds": ({"lists": amp.AutoMixedPrecisionLists(custom_black_list={"Relu"})}, {}, set()),
    "low inputs and outputs cost no casts": ({}, {"low_io": frozenset({"x", "y"})}, {"a", "b"}),
}


@pytest.mark.parametrize("name", WISHES)
def test_the_wishes_of_the_user_bind(name):
    request, options, expected = WISHES[name]
    body = (
        "[a] h = Transpose (x) [b] y = Transpose (h)" if options else "[e] h = Exp (x) [a] r = Relu (h) [f] y = Exp (r)"
    )
    conversion, program = converted(model_of(body), request=Request(level="auto", **request), **options)
    assert_valid(program)
    assert low_nodes(conversion) == expected


def test_a_loop_has_one_type_for_its_state():
    model = parse(
        """(float[4,4] x) => (float[4,4] y) <int64 n = {3}, bool c = {1}> {
            h = MatMul (x, w)
            r = Loop (n, c, h) <body = b (int64 i, bool k, float[4,4] a) => (bool k2, float[4,4] a2) {
                k2 = Identity (k) a2 = MatMul (a, w) }>
            [f] y = Exp (r) }""",
        w=W,
    )
    conversion, program = converted(model)
    assert_valid(program)
    assert conversion.casts == 2  # of the input, and of the loop's result
    (loop,) = [node for node in program.model.graph if node.op_type == "Loop"]
    assert loop.outputs[0].dtype == loop.inputs[2].dtype == loop.attributes["body"].as_graph().inputs[2].dtype
    assert loop.outputs[0].dtype.name == "FLOAT16"


# ---- quantized programs ----
def quantized(body):
    names = {"s": np.float32(0.1), "z": np.int8(0), "w": W}
    return parse(f"(float[4,4] x) => (float[4,4] y) {{ {body} }}", opset=21, **names)


def test_what_lies_between_quantized_operators_is_low_without_casts():
    """Integers need none. That of the input stays: float32 decides its integers."""
    body = """[q] a = QuantizeLinear (x, s, z) [d] b = DequantizeLinear (a, s, z) [r] r = Relu (b)
        [p] e = QuantizeLinear (r, s, z) [t] y = DequantizeLinear (e, s, z)"""
    conversion, _ = converted(quantized(body))
    assert low_nodes(conversion) == set("drpt")
    assert conversion.casts == 1  # of the output


def test_a_low_value_is_quantized_low():
    """Where the product is low; a cast in between would round no less."""
    body = "[m] h = MatMul (x, w) [r] r = Relu (h) [q] a = QuantizeLinear (r, s, z) [d] y = DequantizeLinear (a, s, z)"
    conversion, _ = converted(quantized(body))
    assert {"m", "r", "q"} <= low_nodes(conversion)


# ---- time ----
def image(size, count=6, batch="1"):
    """Convolutions one after the other: where they are small, each saves less than a launch."""
    names = ["x", *"abcdefgh"[: count - 1], "y"]
    body = " ".join(f"[{to}] {to} = Conv <pads = [1, 1, 1, 1]> ({of}, v)" for of, to in itertools.pairwise(names))
    shape = f"float[{batch},64,{size},{size}]"
    return parse(f"({shape} x) => ({shape} y) {{ {body} }}", v=array(64, 64, 3, 3, scale=0.05))


def test_time_decides_by_size():
    small, _ = converted(image(8), "time")
    assert low_nodes(small) == set()
    assert reasons(small)["a"] == "an island: predicted to be no faster in lower precision, with 2 more casts"
    assert low_nodes(converted(image(512), "time")[0]) == set("abcdey")


def test_time_decides_by_open_dimensions():
    model = image(8, batch="N")
    assert low_nodes(converted(model, "time")[0]) == set()
    assert low_nodes(converted(model, "time", dims={"N": 256})[0]) == set("abcdey")
    with pytest.raises(OptionError):
        converted(model, "time", dims={"M": 256})


def test_casts_around_a_norm_that_is_fused_take_no_time():
    """Its squares must be float32, but ONNX Runtime makes one operator of it all, casts included."""
    norm = """q = Pow ({x}, two) m{n} = ReduceMean <keepdims = 1> (q, last) e{n} = Add (m{n}, small) r{n} = Sqrt (e{n})
        d{n} = Div (one, r{n}) n{n} = Mul ({x}, d{n}) [g{n}] h{n} = Mul (n{n}, k) [p{n}] a{n} = MatMul (h{n}, w)
        [s{n}] x{n} = Add ({x}, a{n})"""
    parts = [norm.replace("q =", "q{n} =").replace("(q,", "(q{n},").format(x=x, n=n) for n, x in enumerate(("x", "x0"))]
    model = parse(
        f"(float[40,1024,64] x) => (float[40,1024,64] y) {{ {' '.join(parts)} [end] y = MatMul (x1, w) }}",
        w=array(64, 64),
        k=array(64),
        two=np.float32(2),
        one=np.float32(1),
        small=np.float32(1e-6),
        last=np.array([-1]),
    )
    conversion, program = converted(model, "time")
    assert_valid(program)
    assert {"g0", "p0", "s0", "g1", "p1", "s1", "end"} == low_nodes(conversion)


def test_a_device_that_is_not_known():
    with pytest.raises(OptionError, match="unknown device 'abacus'"):
        converted(image(8), "time", device="abacus")


# ---- weights ----
@dataclasses.dataclass
class Prices:
    low: dict
    high: dict

    def cast(self, _value):
        return 5e-6


def one_node():
    program = amp.load(model_of("[a] y = Relu (x)"))
    (node,) = program.model.graph
    return node


def test_weights_of_time_are_prices():
    node = one_node()
    weights = TimeWeights(Prices({node: 1e-6}, {node: 3e-6}))
    assert (weights.low(node), weights.high(node)) == (1e-6, 3e-6)
    assert weights.cast_to_low(node.inputs[0]) == weights.cast_to_high(node.outputs[0]) == pytest.approx(5e-6, abs=2e-9)
    assert TimeWeights(Prices({}, {})).cast_to_low(node.inputs[0]) > 0


def test_errors_have_a_price():
    node, plain = one_node(), LowWeights()
    weights = WithErrors(plain, {"a": 0.5}, {"x": 0.25}, multiplier=8)
    assert (weights.low(node), weights.high(node)) == (4.0, plain.high(node))
    assert weights.cast_to_low(node.inputs[0]) == plain.cast_to_low(node.inputs[0]) + 2
    assert weights.cast_to_high(node.outputs[0]) == plain.cast_to_high(node.outputs[0])


def test_an_infinite_error_forbids_at_any_price():
    assert WithErrors(LowWeights(), {"a": float("inf")}, {}, multiplier=0).low(one_node()) == float("inf")


# ---- data ----
SEEN = {
    # largest magnitude of r, headroom, low nodes
    "it fits": (10_000.0, 4, {"a", "b", "c"}),
    "it fits, but not four times": (20_000.0, 4, {"c"}),
    "with another headroom it does": (20_000.0, 2, {"a", "b", "c"}),
}


@pytest.mark.parametrize("name", SEEN)
@pytest.mark.parametrize("objective", ["rules", "low"])
def test_ranges_that_data_showed_must_fit(name, objective):
    largest, headroom, expected = SEEN[name]
    model = model_of("[a] r = MatMul (x, w) [b] s = Relu (r) [c] y = MatMul (s, w)")
    seen = Evidence({"r": TensorRange(largest, sample="dark.npz"), "w": TensorRange(9e4)})
    conversion, _ = converted(model, objective, evidence=seen, headroom=headroom)
    assert low_nodes(conversion) == expected
    if "a" not in expected:
        assert reasons(conversion)["a"].startswith(f"'r' reaches 2e+04 in dark.npz; {headroom} times that is beyond")


def test_the_range_of_a_limited_mask_does_not_count():
    model = parse(
        "(float[4,4] x, bool[4,4] c) => (float[4,4] y) "
        "{ [a] m = MatMul (x, w) [b] r = Where (c, m, inf) [s] t = Softmax (r) [d] y = MatMul (t, w) }",
        w=W,
        inf=np.float32(-3.4e38),
    )
    seen = Evidence({"r": TensorRange(3.4e38), "m": TensorRange(4.0)})
    assert low_nodes(converted(model, evidence=seen)[0]) == {"a", "b", "s", "d"}
