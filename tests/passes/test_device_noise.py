"""Noise of kernels: none in the first draw, another set in each, the same when repeated, never beyond its bound."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.passes.device_arithmetic.noise import DRAW, TF32
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.passes.device_arithmetic.sums import DRAWS
from amp_transpiler.targets.arithmetic import arithmetic_of
from tests import support
from tests.support import NUMPY, array, parse

H100 = arithmetic_of("H100", "1.31")
ANOTHER = arithmetic_of("A100", "1.31")
DIGITS = {"float16": 11, "bfloat16": 8}
HALF_UNITS = {"float16": 0.05, "bfloat16": 0.01}  # of products, by the table


def product(dtype, rows=32):
    return parse(
        f"({dtype}[{rows},64] x) => ({dtype}[{rows},64] y) {{ y = MatMul (x, w) }}",
        w=array(64, 64, seed=1).astype(NUMPY[dtype]),
    )


class Drawn:
    """A low program on a device, run in any draw."""

    def __init__(self, model, arithmetic=H100, shapes=None):
        self.simulation = simulated(amp.load(model), arithmetic, shapes, draws=True)
        self.session = amp.Session(amp.emulate(self.simulation.program), amp.CPUPlace(), emulate=False)

    def run(self, draw, **feeds):
        return self.session.run({**feeds, DRAW: np.array(draw, np.float32), TF32: np.array(1, np.float32)})[0].astype(
            np.float64
        )


def on_device(model, arithmetic=H100, **feeds):
    program = amp.emulate(simulated(amp.load(model), arithmetic).program)
    return amp.Session(program, amp.CPUPlace(), emulate=False).run(feeds)[0].astype(np.float64)


@pytest.mark.parametrize("dtype", NUMPY)
def test_the_first_draw_is_the_rule(dtype):
    model, x = product(dtype), array(32, 64).astype(NUMPY[dtype])
    np.testing.assert_array_equal(Drawn(model).run(0, x=x), on_device(model, x=x))


@pytest.mark.parametrize("dtype", NUMPY)
def test_draws_differ_and_repeat(dtype):
    drawn, x = Drawn(product(dtype, 512), ANOTHER), array(512, 64).astype(NUMPY[dtype])
    draws = [drawn.run(draw, x=x) for draw in range(DRAWS)]
    assert len({result.tobytes() for result in draws}) == DRAWS
    for draw, result in enumerate(draws):
        np.testing.assert_array_equal(drawn.run(draw, x=x), result)


@pytest.mark.parametrize("arithmetic", [H100, ANOTHER], ids=["measured", "another device"])
@pytest.mark.parametrize("dtype", NUMPY)
def test_noise_keeps_its_bound(dtype, arithmetic):
    """Before rounding: a result may cross the middle between two numbers, but only from nearby."""
    drawn, x = Drawn(product(dtype), arithmetic), array(32, 64).astype(NUMPY[dtype])
    wide = parse(
        "(float[32,64] x) => (float[32,64] y) { y = MatMul (x, w) }",
        w=array(64, 64, seed=1).astype(NUMPY[dtype]).astype(np.float32),
    )
    exact = support.run(wide, {"x": x.astype(np.float32)})["y"].astype(np.float64)
    bound = (HALF_UNITS[dtype] + arithmetic.further_noise) * 2.0 ** -DIGITS[dtype]
    most_apart = np.abs(exact) * (bound + 1e-6)
    edges = (exact - most_apart, exact + most_apart)
    least, most = (edge.astype(np.float32).astype(NUMPY[dtype]).astype(np.float64) for edge in edges)
    for draw in range(1, DRAWS):
        result = drawn.run(draw, x=x)
        assert (least <= result).all()
        assert (result <= most).all()


@hypothesis.settings(max_examples=20, deadline=None, database=None, derandomize=True)
@hypothesis.given(exponent=st.integers(-60, 60), draw=st.integers(1, DRAWS))
def test_noise_depends_on_no_magnitude(exponent, draw):
    """A power of two more or less, and all that differs is the exponent."""
    x = array(8, 64, seed=3).astype(NUMPY["bfloat16"])
    scaled = (x.astype(np.float32) * np.float32(2.0**exponent)).astype(NUMPY["bfloat16"])
    np.testing.assert_array_equal(WIDELY.run(draw, x=scaled), WIDELY.run(draw, x=x) * 2.0**exponent)


WIDELY = Drawn(product("bfloat16", 8), ANOTHER)


def test_zeros_infinities_and_nan_keep_their_kind():
    model = parse("(float16[4] x) => (float16[4] y) { y = Mul (x, x) }")
    drawn, x = Drawn(model, ANOTHER), np.array([0.0, np.inf, np.nan, -np.inf], np.float16)
    np.testing.assert_array_equal(drawn.run(3, x=x), [0.0, np.inf, np.nan, np.inf])


def test_kernels_without_noise_are_left_as_they_are():
    model, x = parse("(float16[64] x) => (float16[64] y) { y = Exp (x) }"), array(64).astype(np.float16)
    drawn = Drawn(model)
    expected = support.run_emulated(model, {"x": x})["y"]
    for draw in range(DRAWS):
        np.testing.assert_array_equal(drawn.run(draw, x=x), expected)
    assert not drawn.simulation.rules


@pytest.mark.parametrize("dtype", NUMPY)
def test_blocks_add_up_in_another_order_in_every_draw(dtype):
    """By numpy: partial sums in float32, rounded, added in the order of a permutation."""
    low = NUMPY[dtype]
    model = parse(f"({dtype}[513,64] x) => ({dtype}[1,64] y) {{ y = ReduceSum (x, a) }}", a=np.array([0]))
    x = (array(513, 64, low=0.5) / 8).astype(low)
    drawn = Drawn(model)
    padded = np.concatenate([x.astype(np.float32), np.zeros((127, 64), np.float32)]).reshape(5, 8, 16, 64)
    partial = padded.sum((0, 2)).astype(low).astype(np.float32)
    results = []
    for draw in range(DRAWS):
        total = np.zeros(64, np.float32)
        for block in np.random.default_rng(draw).permutation(8):
            total = (total + partial[block]).astype(low).astype(np.float32)
        results.append(drawn.run(draw, x=x))
        np.testing.assert_array_equal(results[-1][0], total)
    assert len({result.tobytes() for result in results}) > 1
