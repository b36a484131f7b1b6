"""How far two arrays lie apart, against plain formulas of numpy."""

import math

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, strategies
from hypothesis.extra import numpy as arrays

from amp_transpiler.child_process import differences
from amp_transpiler.child_process.differences import Difference, difference, measured

steady = hypothesis.settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
numbers = strategies.floats(
    width=32, allow_nan=True, allow_infinity=True, allow_subnormal=False
) | strategies.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 65504.0, 7e4, 1e-9])


@strategies.composite
def pairs(draw):
    shape = draw(shapes)
    return tuple(draw(arrays.arrays(np.float32, shape, elements=numbers)) for _ in range(2))


def plain(reference, other):
    """Return the difference as its docstring says it, element by element."""
    rows = [(float(a), float(b)) for a, b in zip(reference.reshape(-1), other.reshape(-1), strict=True)]
    rows = [(a, b) for a, b in rows if math.isfinite(a)]
    finite = [(a, b) for a, b in rows if math.isfinite(b)]
    return Difference(
        square=math.fsum((a - b) ** 2 for a, b in finite),
        norm=math.fsum(a * a for a, _ in rows),
        count=len(rows),
        infinite=len(rows) - len(finite),
        nonzero=sum(a != 0.0 for a, _ in rows),
        vanished=sum(a != 0.0 and b == 0.0 for a, b in rows),
        largest=max((abs(b) for _, b in finite), default=0.0),
    )


def assert_same(got, expected):
    assert got.square == pytest.approx(expected.square, rel=1e-12)
    assert got.norm == pytest.approx(expected.norm, rel=1e-12)
    counts = [(each.count, each.infinite, each.nonzero, each.vanished, each.largest) for each in (got, expected)]
    assert counts[0] == counts[1]
    assert got.has_shape == expected.has_shape


@steady
@given(pairs())
def test_a_difference_is_that_of_each_element(both):
    assert_same(difference(*both), plain(*both))


@steady
@given(pairs(), strategies.integers(1, 7))
def test_parts_of_arrays_add_up(both, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(differences, "_CHUNK", size)
        assert_same(difference(*both), plain(*both))


@steady
@given(pairs(), pairs())
def test_samples_add_up(first, second):
    joined = [np.concatenate([a.reshape(-1), b.reshape(-1)]) for a, b in zip(first, second, strict=True)]
    assert_same(difference(*first) + difference(*second), plain(*joined))


@steady
@given(arrays.arrays(np.float32, shapes, elements=numbers))
def test_nothing_differs_from_itself(array):
    facts = difference(array, array)
    assert (facts.square, facts.infinite, facts.vanished, facts.error) == (0.0, 0, 0, 0.0)


WHOLE = np.array([1, 2, 3, 4])

# what should be, what is -> the difference, and its error
CASES = {
    "another shape": (np.ones((2, 3), np.float32), np.ones(6, np.float32), Difference(has_shape=False), math.inf),
    "another shape of integers": (WHOLE, WHOLE[:2], Difference(has_shape=False), math.inf),
    "integers": (WHOLE, np.array([1, 2, 0, 0]), Difference(square=2.0, norm=4.0, count=4), 0.5**0.5),
    "the same integers": (WHOLE, WHOLE, Difference(norm=4.0, count=4), 0.0),
    "truth values": (WHOLE > 2, WHOLE > 3, Difference(square=1.0, norm=4.0, count=4), 0.5),
    "no numbers": (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), Difference(), 0.0),
    "zeros that are others": (
        np.zeros(2, np.float32),
        np.ones(2, np.float32),
        Difference(square=2.0, count=2, largest=1.0),
        math.inf,
    ),
    "infinities that should be": (
        np.array([math.inf, 2.0], np.float32),
        np.array([1.0, 2.0], np.float32),
        Difference(norm=4.0, count=1, nonzero=1, largest=2.0),
        0.0,
    ),
    "infinities that should not be": (
        np.array([1.0, 2.0], np.float32),
        np.array([math.nan, 2.0], np.float32),
        Difference(norm=5.0, count=2, infinite=1, nonzero=2, largest=2.0),
        0.0,
    ),
    "float64": (np.array([3.0, 4.0]), np.array([3.0, 4.5]), Difference(0.25, 25.0, 2, 0, 2, 0, 4.5), 0.1),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_special(case):
    reference, other, expected, error = CASES[case]
    facts = difference(reference, other)
    assert facts == expected
    assert facts.error == pytest.approx(error)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (np.float16, [1.0, 1.0 + 2.0**-12, 0.0], 2.0**-24),
        (np.float16, [70000.0], math.inf),
        (np.float16, [1e-9, math.inf, math.nan], 1e-18),
        (np.float16, [], 0.0),
        (ml_dtypes.bfloat16, [70000.0, 1.0 + 2.0**-9], (70144.0 - 70000.0) ** 2 + 2.0**-18),
    ],
)
def test_the_rounding_of_a_result(dtype, values, expected):
    array = np.array(values, np.float32)
    facts = measured(array, array, array, np.dtype(dtype), 2.0**-24)
    assert facts.rounding == pytest.approx(expected, rel=1e-6)
    assert facts.low.error == facts.own.error == 0.0


def test_what_is_measured_of_integers():
    facts = measured(WHOLE, WHOLE + 1, WHOLE, np.dtype(np.float16), 2.0**-24)
    assert (facts.rounding, facts.magnitudes.nonzero) == (0.0, 0)
    assert (facts.low.error, facts.own.error) == (1.0, 0.0)
