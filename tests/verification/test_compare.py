"""The distance between two sets of outputs."""

import math
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from amp_transpiler.errors import InputError
from amp_transpiler.verification import compare as compare_module, metrics
from amp_transpiler.verification.compare import compare_outputs
from amp_transpiler.verification.output_kind import OutputKind
from tests import support

BF16 = ml_dtypes.bfloat16
INF, NAN = np.inf, np.nan


def compare(reference, result):
    return compare_outputs([{"y": reference}], [{"y": result}])["y"]


def floats(*values):
    return np.array(values, np.float32)


def test_the_numbers_of_a_small_case():
    difference = compare(floats(3, 4), floats(3, 4.5))
    assert (difference.name, difference.dtype, difference.shape, difference.samples) == ("y", "float32", (2,), 1)
    assert difference.max_abs == 0.5
    assert difference.relative == pytest.approx(0.1)
    assert difference.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))
    assert (difference.nonfinite, difference.nonfinite_reference, difference.mismatched) == (0, 0, 0)
    assert (difference.elements, difference.structure_differs, difference.excused) == (2, False, 0)
    assert difference.snr_db == pytest.approx(20.0)


def test_samples_count_jointly():
    reference = [{"y": floats(3)}, {"y": floats(4)}]
    difference = compare_outputs(reference, [{"y": floats(3)}, {"y": floats(4.5)}])["y"]
    assert (difference.samples, difference.elements) == (2, 2)
    assert difference.relative == pytest.approx(0.1)
    assert difference.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))
    assert difference.max_abs == 0.5


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
    difference = compare(floats(*reference), floats(*result))
    assert difference.relative == relative
    assert difference.cosine == pytest.approx(cosine)


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
    difference = compare(floats(*reference), floats(*result))
    assert difference.relative == relative
    assert (difference.nonfinite_reference, difference.nonfinite) == (nonfinite_reference, nonfinite)
    assert difference.elements == 2 - nonfinite_reference
    assert math.isfinite(difference.max_abs)
    assert math.isfinite(difference.cosine)


@pytest.mark.parametrize("low", [np.float16, BF16, ml_dtypes.float8_e4m3fn], ids=["fp16", "bf16", "fp8"])
def test_low_results_are_compared_in_float64(low):
    reference = floats(1.1, -2.3)
    rounded = reference.astype(low)
    difference = compare(reference, rounded)
    error = rounded.astype(np.float64) - reference.astype(np.float64)
    assert difference.relative == pytest.approx(np.linalg.norm(error) / np.linalg.norm(reference.astype(np.float64)))
    assert difference.relative > 0.0
    assert compare(rounded, rounded).dtype == np.dtype(low).name


def test_what_is_not_finite_counts_in_all_samples_and_leaves_the_rest_comparable():
    reference = [{"y": floats(3, INF)}, {"y": floats(4, NAN)}, {"y": floats(1, 1)}]
    difference = compare_outputs(reference, [{"y": floats(3, 1)}, {"y": floats(4, 1)}, {"y": floats(NAN, INF)}])["y"]
    assert (difference.nonfinite_reference, difference.nonfinite, difference.elements) == (2, 2, 4)
    assert (difference.max_abs, difference.cosine, difference.relative, difference.snr_db) == (0.0, 1.0, INF, -INF)


@pytest.mark.parametrize("size", [5e-324 * 2**8, 1e-300, 1e-160, 1e160, 1e300, 2.0**1020])
def test_squares_neither_overflow_nor_vanish(size):
    difference = compare(np.array([3.0, 4.0]) * size, np.array([3.0, 4.5]) * size)
    assert difference.relative == pytest.approx(0.1)
    assert difference.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))
    assert difference.max_abs == pytest.approx(0.5 * size)


def test_the_largest_numbers_have_an_error():
    largest = float(np.finfo(np.float64).max)
    difference = compare(np.array([largest, largest]), np.array([largest, -largest]))
    assert (difference.relative, difference.max_abs) == (pytest.approx(math.sqrt(2)), INF)
    assert difference.cosine == pytest.approx(
        0.0, abs=1e-15
    )  # numpy's sum of products leaves -6e-33 on some processors


SIZES = [1.0, 1e-200, 1e200, 2.0, 0.0, 1e199]


@pytest.mark.parametrize("order", [SIZES, SIZES[::-1], sorted(SIZES), sorted(SIZES)[::-1]])
def test_samples_of_any_size_count_jointly_in_any_order(order):
    reference = [{"y": np.array([3.0, 4.0]) * size} for size in order]
    difference = compare_outputs(reference, [{"y": np.array([3.0, 4.5]) * size} for size in order])["y"]
    assert difference.relative == pytest.approx(0.1)
    assert difference.cosine == pytest.approx(27 / (5 * math.hypot(3, 4.5)))
    assert difference.max_abs == pytest.approx(5e199)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_larger_sample_outweighs_a_smaller_one(order):
    """The sums of an earlier sample are in the scale of a later one."""
    pairs = [(floats(3, 0), floats(3, 0.75)), (floats(0, 4), floats(0, 4))]
    for scale in (1.0, 1e3, 1e-3):
        x, y = ([{"y": pairs[i][side] * (scale if i else 1.0)} for i in order] for side in (0, 1))
        norms = math.hypot(3, 4 * scale), math.hypot(3, 0.75, 4 * scale)
        difference = compare_outputs(x, y)["y"]
        assert difference.relative == pytest.approx(0.75 / norms[0])
        assert difference.cosine == pytest.approx(norms[0] / norms[1])


def test_a_result_that_is_larger_than_its_reference_by_far():
    difference = compare(np.array([1.0, 0.0]), np.array([1e200, 0.0]))
    assert (difference.relative, difference.max_abs) == (INF, 1e200)
    assert -1.0 <= difference.cosine <= 1.0
    assert compare(floats(3, 4), floats(3e30, 4e30)).cosine == pytest.approx(1.0)
    assert compare(floats(3, 4), floats(3e30, 4e30)).relative == pytest.approx(1e30)


def test_complex_numbers_are_two_floats():
    difference = compare(np.array([3 + 4j]), np.array([3 + 4.5j]))
    assert difference.relative == pytest.approx(0.1)
    assert (difference.max_abs, difference.elements, difference.dtype) == (0.5, 2, "complex128")
    assert compare(np.array([complex(NAN, 1)]), np.array([0j])).nonfinite_reference == 1


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
    difference = compare(reference, result)
    assert (difference.dtype, difference.mismatched, difference.elements) == (dtype, mismatched, reference.size)
    assert difference.mismatch == mismatched / reference.size
    assert not difference.structure_differs
    assert (difference.relative, difference.max_abs, difference.cosine) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("reference", "result", "elements"),
    [
        (floats(1, 2), floats(1, 2, 3), 2),
        (floats(1, 2), floats(1, 2).reshape(2, 1), 2),
        (floats(1, 2), np.array([1, 2]), 2),
        (np.array([1, 2, 3]), np.array([[1, 2, 3]]), 3),
        ([floats(1), floats(2)], [floats(1)], 2),
        ([floats(1)], [floats(1), floats(2)], 1),
        (floats(1), None, 1),
        (None, floats(1), 0),
        (np.array([1 + 0j]), floats(1), 1),
        (np.array([True, False]), np.array([1, 0]), 2),
        (np.array(["1"]), np.array([1]), 1),
        (np.array([b"1"]), np.array([1]), 1),
        (np.array(["1"], object), np.array([1]), 1),
    ],
    ids=[
        *("size", "rank", "kind", "integers", "shorter sequence", "longer sequence", "became none", "was none"),
        *("complex", "truth values", "text", "bytes", "objects"),
    ],
)
def test_different_structure_is_wholly_different(reference, result, elements):
    difference = compare(reference, result)
    assert difference.relative == INF
    assert difference.max_abs == INF
    assert difference.cosine == 0.0
    assert difference.structure_differs
    assert (difference.mismatched, difference.elements) == (elements, elements)
    assert (difference.top1, difference.iou) == (None, None)


def test_sequences_count_jointly():
    difference = compare([floats(3), floats(4)], [floats(3), floats(4.5)])
    assert (difference.dtype, difference.shape) == ("sequence(float32)", (2,))
    assert difference.relative == pytest.approx(0.1)
    assert compare([], []).dtype == "sequence"
    assert not compare([], []).structure_differs
    assert compare((floats(3), floats(4)), [floats(3), floats(4.5)]) == difference  # any kind of sequence
    assert compare([[floats(3)], [floats(4)]], [[floats(3)], [floats(4.5)]]).relative == difference.relative


def test_a_part_of_another_shape_makes_the_whole_different():
    difference = compare([floats(1, 2), floats(3)], [floats(1, 2), floats(3, 4)])
    assert (difference.structure_differs, difference.mismatched, difference.elements) == (True, 1, 3)
    samples = [{"y": floats(*range(6))[None]}] * 2
    difference = compare_outputs(samples, [samples[0], {"y": floats(1)}])["y"]
    assert (difference.structure_differs, difference.relative, difference.top1) == (True, INF, None)


def test_optionals_may_be_empty():
    difference = compare(None, None)
    assert (difference.dtype, difference.shape, difference.relative) == ("none", (), 0.0)
    assert (difference.elements, difference.mismatch, difference.structure_differs) == (0, 0.0, False)


def test_maps_compare_labels_and_scores():
    reference = [{"cat": 0.6, "dog": 0.8}]
    assert compare(reference, [{"cat": 0.6, "dog": 0.8}]).relative == 0.0
    assert compare(reference, [{"cat": 0.6, "dog": 0.7}]).relative == pytest.approx(0.1)
    difference = compare(reference, [{"cat": 0.6, "cow": 0.8}])
    assert (difference.mismatched, difference.elements, difference.dtype, difference.shape) == (
        1,
        4,
        "sequence(map)",
        (1,),
    )
    assert compare(reference[0], {"cat": 0.6}).structure_differs
    assert (compare({}, {}).dtype, compare(reference[0], reference[0]).shape) == ("map", (2,))


def test_samples_and_outputs_must_correspond():
    with pytest.raises(InputError, match="1 reference samples but 0 results"):
        compare_outputs([{"y": floats(1)}], [])
    with pytest.raises(InputError, match="1 reference samples but 3 results"):
        compare_outputs([{"y": floats(1)}], [{"y": floats(1)}] * 3)
    with pytest.raises(InputError, match="sample 1: output 'y' is missing"):
        compare_outputs([{"y": floats(1)}] * 2, [{"y": floats(1)}, {}])
    with pytest.raises(InputError, match=r"sample 0: output 'y' is missing from the result, which has \['z'\]"):
        compare_outputs([{"y": floats(1)}], [{"z": floats(1)}])
    assert compare_outputs([], []) == {}


def test_outputs_of_the_result_alone_are_ignored_and_some_may_come_late():
    differences = compare_outputs([{"y": floats(1)}, {"z": floats(1)}], [{"x": 1, "y": floats(1)}, {"z": floats(2)}])
    assert {name: (row.name, row.samples) for name, row in differences.items()} == {"y": ("y", 1), "z": ("z", 1)}


def test_samples_are_taken_one_after_the_other():
    """Neither side is held as a whole: memory does not grow with the number of samples."""
    alive = []

    def samples(value):
        for _ in range(9):
            array = floats(value)
            alive.append(weakref.ref(array))
            assert sum(ref() is not None for ref in alive) <= 6  # of the last samples
            yield {"y": array}
            del array

    assert compare_outputs(samples(1), samples(2))["y"].samples == 9


def test_arrays_are_looked_at_some_elements_at_a_time(monkeypatch):
    assert all(1e5 <= module._CHUNK <= 1e7 for module in (compare_module, metrics))
    x, y = support.array(3, 7), support.array(3, 7, seed=1)
    whole = [compare(x, y), compare(x > 0, y > 0)]
    monkeypatch.setattr(compare_module, "_CHUNK", 4)
    for result, expected in zip([compare(x, y), compare(x > 0, y > 0)], whole, strict=True):
        assert result.relative == pytest.approx(expected.relative)
        assert result.cosine == pytest.approx(expected.cosine)
        assert (result.max_abs, result.elements, result.mismatched) == (
            *(expected.max_abs, expected.elements),
            expected.mismatched,
        )
    assert compare(floats(1, 2, 3, 4, 5)[::2], floats(1, 0, 3, 0, 5)[::2]).relative == 0.0


KIND = {"y": OutputKind("mask"), "z": OutputKind("scores", axis=1)}


def test_metrics_follow_from_the_graph_and_not_from_the_shape():
    scores = [{name: support.array(4, 8) for name in "xyz"}]
    differences = compare_outputs(scores, scores, KIND)
    assert (differences["x"].iou, differences["x"].top1, differences["x"].top5) == (None, None, None)
    assert (differences["y"].iou, differences["y"].top1) == (1.0, None)
    assert (differences["z"].iou, differences["z"].top1, differences["z"].top5) == (None, 1.0, 1.0)


def test_metrics_count_over_all_samples_and_arrays():
    def scores(reference, result):
        return compare_outputs([{"z": array} for array in reference], [{"z": array} for array in result], KIND)["z"]

    x, y = support.array(8, 8), support.array(8, 8, seed=1)
    whole = scores([x], [y])
    samples = scores([x[:3], x[3:]], [y[:3], y[3:]])
    assert (samples.top1, samples.top5) == (whole.top1, whole.top5)
    assert scores([[x[:3], x[3:]]], [[y[:3], y[3:]]]).top5 == whole.top5
    assert 0 < whole.top5 < 1


number = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(number, number), min_size=1, max_size=20), st.integers(1, 19))
def test_splitting_into_samples_or_a_sequence_changes_nothing(pairs, cut):
    x, y = (np.array(column, np.float32) for column in zip(*pairs, strict=True))
    whole = compare(x, y)
    samples = compare_outputs([{"y": x[:cut]}, {"y": x[cut:]}], [{"y": y[:cut]}, {"y": y[cut:]}])["y"]
    sequence = compare([x[:cut], x[cut:]], [y[:cut], y[cut:]])
    for other in (samples, sequence):
        assert other.of_all == pytest.approx(whole.of_all, rel=1e-9)
        assert other.cosine == pytest.approx(whole.cosine, rel=1e-9, abs=1e-12)
        assert other.max_abs == whole.max_abs
        assert other.elements == whole.elements == len(pairs)


@given(st.lists(st.tuples(number, number), min_size=1, max_size=20))
def test_all_figures_are_those_of_numpy(pairs):
    x, y = (np.array(column, np.float32).astype(np.float64) for column in zip(*pairs, strict=True))
    difference = compare(x, y)
    assert difference.max_abs == np.max(np.abs(x - y))
    if np.any(x):
        assert difference.of_all == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(x), rel=1e-9)
        assert difference.relative >= difference.of_all
    if np.any(x) and np.any(y):
        assert difference.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-9, abs=1e-12)
    if 0 < difference.of_all < INF:
        assert difference.snr_db == pytest.approx(-20 * math.log10(difference.of_all))
    assert compare(x, x).snr_db == INF
