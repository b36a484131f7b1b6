"""The distance between two sets of outputs."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from amp_transpiler.errors import InputError
from amp_transpiler.verification.compare import compare_outputs

BF16 = ml_dtypes.bfloat16
INF, NAN = np.inf, np.nan


def compare(reference, result):
    return compare_outputs([{"y": reference}], [{"y": result}])["y"]


def floats(*values):
    return np.array(values, np.float32)


def test_the_numbers_of_a_small_case():
    found = compare(floats(3, 4), floats(3, 4.5))
    assert (found.name, found.dtype, found.shape, found.samples) == ("y", "float32", (2,), 1)
    assert found.max_abs == 0.5
    assert found.relative == pytest.approx(0.1)
    assert found.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))
    assert (found.nonfinite, found.nonfinite_reference, found.mismatched) == (0, 0, 0)


def test_samples_count_jointly():
    reference = [{"y": floats(3)}, {"y": floats(4)}]
    found = compare_outputs(reference, [{"y": floats(3)}, {"y": floats(4.5)}])["y"]
    assert found.samples == 2
    assert found.relative == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("reference", "result", "relative", "cosine"),
    [
        ((0, 0), (0, 0), 0.0, 1.0),
        ((0, 0), (1, 0), INF, 0.0),
        ((1, 0), (0, 0), 1.0, 0.0),
        ((1, 1), (-1, -1), 2.0, -1.0),
        ((), (), 0.0, 1.0),
    ],
)
def test_zeros_and_nothing(reference, result, relative, cosine):
    found = compare(floats(*reference), floats(*result))
    assert found.relative == relative
    assert found.cosine == pytest.approx(cosine)


@pytest.mark.parametrize(
    ("reference", "result", "relative", "nonfinite_reference", "nonfinite"),
    [
        ((INF, 1), (INF, 1), 0.0, 1, 0),
        ((INF, 1), (-INF, 1), 0.0, 1, 0),
        ((NAN, 1), (5, 1), 0.0, 1, 0),
        ((INF, 2), (1e6, 3), 0.5, 1, 0),
        ((1, 2), (NAN, 2), INF, 0, 1),
        ((1, 2), (INF, -INF), INF, 0, 2),
    ],
    ids=["same inf", "other inf", "nan became finite", "inf became finite", "became nan", "became inf"],
)
def test_what_is_not_finite(reference, result, relative, nonfinite_reference, nonfinite):
    found = compare(floats(*reference), floats(*result))
    assert found.relative == relative
    assert (found.nonfinite_reference, found.nonfinite) == (nonfinite_reference, nonfinite)
    assert math.isfinite(found.max_abs)
    assert math.isfinite(found.cosine)


@pytest.mark.parametrize("low", [np.float16, BF16, ml_dtypes.float8_e4m3fn], ids=["fp16", "bf16", "fp8"])
def test_low_results_are_compared_in_float64(low):
    reference = floats(1.1, -2.3)
    rounded = reference.astype(low)
    found = compare(reference, rounded)
    error = rounded.astype(np.float64) - reference.astype(np.float64)
    assert found.relative == pytest.approx(np.linalg.norm(error) / np.linalg.norm(reference.astype(np.float64)))
    assert found.relative > 0.0
    assert compare(rounded, rounded).dtype == np.dtype(low).name


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_squares_neither_overflow_nor_vanish(size):
    found = compare(np.array([3.0, 4.0]) * size, np.array([3.0, 4.5]) * size)
    assert found.relative == pytest.approx(0.1)
    assert found.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))
    assert found.max_abs == pytest.approx(0.5 * size)


def test_complex_numbers_are_two_floats():
    found = compare(np.array([3 + 4j]), np.array([3 + 4.5j]))
    assert found.relative == pytest.approx(0.1)
    assert found.max_abs == 0.5


@pytest.mark.parametrize(
    ("reference", "result", "dtype", "mismatched"),
    [
        (np.array([1, 2, 3]), np.array([1, 5, 6]), "int64", 2),
        (np.array([True, False]), np.array([True, True]), "bool", 1),
        (np.array(["a", "b"], object), np.array(["a", "c"]), "string", 1),
        (np.array([255], np.uint8), np.array([255], np.uint8), "uint8", 0),
        (np.array(7), np.array(8), "int64", 1),
        (np.array([1, 2], ml_dtypes.int4), np.array([1, 3], ml_dtypes.int4), "int4", 1),
    ],
)
def test_what_is_no_float_is_counted(reference, result, dtype, mismatched):
    found = compare(reference, result)
    assert (found.dtype, found.mismatched) == (dtype, mismatched)
    assert (found.relative, found.max_abs, found.cosine) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("reference", "result", "elements"),
    [
        (floats(1, 2), floats(1, 2, 3), 2),
        (floats(1, 2), floats(1, 2).reshape(2, 1), 2),
        (floats(1, 2), np.array([1, 2]), 2),
        (np.array([1, 2, 3]), np.array([[1, 2, 3]]), 3),
        ([floats(1), floats(2)], [floats(1)], 2),
        (floats(1), None, 1),
        (None, floats(1), 0),
    ],
    ids=["size", "rank", "kind", "integers", "sequence length", "became none", "was none"],
)
def test_different_structure_is_wholly_different(reference, result, elements):
    found = compare(reference, result)
    assert found.relative == INF
    assert found.max_abs == INF
    assert found.cosine == 0.0
    assert found.mismatched == elements


def test_sequences_count_jointly():
    found = compare([floats(3), floats(4)], [floats(3), floats(4.5)])
    assert (found.dtype, found.shape) == ("sequence(float32)", (2,))
    assert found.relative == pytest.approx(0.1)
    assert compare([], []).dtype == "sequence"


def test_optionals_may_be_empty():
    found = compare(None, None)
    assert (found.dtype, found.shape, found.relative) == ("none", (), 0.0)


def test_maps_compare_labels_and_scores():
    reference = [{"cat": 0.6, "dog": 0.8}]
    assert compare(reference, [{"cat": 0.6, "dog": 0.8}]).relative == 0.0
    assert compare(reference, [{"cat": 0.6, "dog": 0.7}]).relative == pytest.approx(0.1)
    assert compare(reference, [{"cat": 0.6, "cow": 0.8}]).mismatched == 1


def test_samples_and_outputs_must_correspond():
    with pytest.raises(InputError, match="1 reference samples but 0 results"):
        compare_outputs([{"y": floats(1)}], [])
    with pytest.raises(InputError, match=r"sample 0: output 'y' is missing from the result, which has \['z'\]"):
        compare_outputs([{"y": floats(1)}], [{"z": floats(1)}])
    assert compare_outputs([], []) == {}


number = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(number, number), min_size=1, max_size=20), st.integers(1, 19))
def test_splitting_into_samples_or_a_sequence_changes_nothing(pairs, cut):
    x, y = (np.array(column, np.float32) for column in zip(*pairs, strict=True))
    whole = compare(x, y)
    samples = compare_outputs([{"y": x[:cut]}, {"y": x[cut:]}], [{"y": y[:cut]}, {"y": y[cut:]}])["y"]
    sequence = compare([x[:cut], x[cut:]], [y[:cut], y[cut:]])
    for other in (samples, sequence):
        assert other.relative == pytest.approx(whole.relative, rel=1e-9)
        assert other.cosine == pytest.approx(whole.cosine, rel=1e-9, abs=1e-12)
        assert other.max_abs == whole.max_abs
