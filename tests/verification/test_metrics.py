"""Agreement of best classes, masks and maps of labels, against scikit-learn."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import jaccard_score, top_k_accuracy_score

from amp_transpiler.verification import metrics
from amp_transpiler.verification.metrics import Agreement
from amp_transpiler.verification.output_kind import NUMBERS, OutputKind
from tests.support import array

SCORES = OutputKind("scores")
MAP = OutputKind("class map", axis=1)
MASK = OutputKind("mask")
LABELS = OutputKind("label map")
NAN, INF = np.nan, np.inf
NOTHING = {"top1": None, "top5": None, "iou": None, "rare": None, "neighbours": None}


def figures(kind, *pairs):
    agreement = Agreement(kind)
    for reference, result in pairs:
        agreement.add(np.asarray(reference), np.asarray(result))
    return agreement.figures()


def noisy(*shape, seed=0, by=0.7):
    return array(*shape, seed=seed), array(*shape, seed=seed) + by * array(*shape, seed=seed + 1)


@pytest.fixture(params=[1_000_000, 7], ids=["whole", "in pieces"], autouse=True)
def pieces(request, monkeypatch):
    """Arrays are looked at as a whole and some elements at a time, with the same outcome."""
    monkeypatch.setattr(metrics, "_CHUNK", request.param)


def test_top_1_and_top_5_are_those_of_scikit_learn():
    reference, result = noisy(200, 9)
    shares = figures(SCORES, (reference, result))
    best = reference.argmax(axis=1)
    assert shares["top1"] == pytest.approx(top_k_accuracy_score(best, result, k=1, labels=range(9)))
    assert shares["top5"] == pytest.approx(top_k_accuracy_score(best, result, k=5, labels=range(9)))
    assert 0.4 < shares["top1"] < shares["top5"] < 1.0
    assert shares["iou"] is None


@pytest.mark.parametrize(("chunk", "largest"), [(3, 4), (8, 8), (11, 8), (100, 40)])
def test_no_more_than_a_piece_is_looked_at_together(monkeypatch, chunk, largest):
    monkeypatch.setattr(metrics, "_CHUNK", chunk)
    rows = list(metrics._rows(SCORES, array(10, 4)))
    assert max(piece.size for piece in rows) == largest
    np.testing.assert_array_equal(np.concatenate(rows), array(10, 4).astype(np.float64))
    pieces = list(metrics._pieces(array(10, 4)))
    assert max(piece.size for piece in pieces) == min(chunk, 40)
    np.testing.assert_array_equal(np.concatenate(pieces), array(10, 4).astype(np.float64).ravel())


TIES = {
    "both choose the lower index": ([1, 1, 0], [2, 2, 0], 1.0),
    "the result ties with a lower index": ([0, 1, 0], [1, 1, 0], 0.0),
    "the result ties with a higher index": ([0, 1, 0], [0, 1, 1], 1.0),
    "fp32 ties, the result takes the higher": ([1, 1, 0], [1, 2, 0], 0.0),
    "all equal": ([3, 3, 3], [5, 5, 5], 1.0),
    "NaN in float32 is left out": ([NAN, 1, 0], [0, 1, 2], None),
    "NaN in the result differs, whatever else is best": ([0, 1, 0], [0, 1, NAN], 0.0),
    "minus infinity masks on both sides": ([-INF, 1, 0], [-INF, 1, 0], 1.0),
    "infinity is best": ([INF, 1, 0], [INF, 1, 0], 1.0),
}


@pytest.mark.parametrize("case", TIES)
def test_of_equal_scores_the_lower_index_is_the_better(case):
    reference, result, top1 = TIES[case]
    assert figures(SCORES, (np.array([reference], np.float32), np.array([result], np.float32)))["top1"] == top1


# Scores of the result where fp32's best is class 2 -> whether that is among the best five.
FIVE = {
    "fifth": ([9, 8, 5, 7, 6, 1, 0], 1.0),
    "sixth": ([9, 8, 4, 7, 6, 5, 0], 0.0),
    "fifth by the lower index": ([9, 8, 5, 7, 6, 5, 5], 1.0),
    "sixth by the higher index": ([5, 8, 5, 7, 6, 9, 0], 0.0),
    "NaN": ([9, 8, 7, 6, 5, 4, NAN], 0.0),
}


@pytest.mark.parametrize("case", FIVE)
def test_the_best_five(case):
    result, top5 = FIVE[case]
    shares = figures(SCORES, (np.eye(7, dtype=np.float32)[[2]], np.array([result], np.float32)))
    assert (shares["top1"], shares["top5"]) == (0.0, top5)


@pytest.mark.parametrize(("classes", "has"), [(5, False), (6, True)])
def test_the_best_five_of_five_say_nothing(classes, has):
    assert (figures(SCORES, noisy(4, classes))["top5"] is not None) is has


def test_the_sample_with_the_fewest_classes_decides_whether_there_is_a_top_5():
    assert figures(SCORES, noisy(2, 9), noisy(2, 5), noisy(2, 9))["top5"] is None


def test_rows_lie_along_the_axis_of_the_classes():
    reference, result = noisy(6, 8, 4)
    rows = [np.moveaxis(x, 1, 2).reshape(-1, 8) for x in (reference, result)]
    along = figures(OutputKind("scores", axis=1), (reference, result))
    assert along == figures(SCORES, rows)
    assert along["top1"] == np.mean(reference.argmax(axis=1) == result.argmax(axis=1))


def test_softmax_before_opset_13_has_its_classes_in_all_later_axes():
    reference, result = noisy(30, 2, 3)
    joined = figures(OutputKind("scores", axis=1, joined=True), (reference, result))
    assert joined == figures(SCORES, (reference.reshape(30, 6), result.reshape(30, 6)))
    empty = np.zeros((0, 2, 3), np.float32)
    assert figures(OutputKind("scores", axis=1, joined=True), (empty, empty))["top1"] is None


def test_class_maps_have_the_share_of_pixels_and_the_mean_over_classes():
    reference, result = noisy(2, 4, 5, 6)
    shares = figures(MAP, (reference, result))
    ours, theirs = (x.argmax(axis=1).ravel() for x in (reference, result))
    assert shares["top1"] == pytest.approx(np.mean(ours == theirs))
    assert shares["iou"] == pytest.approx(jaccard_score(ours, theirs, average="macro"))
    assert shares["top5"] is None
    assert 0.2 < shares["iou"] < shares["top1"] < 1.0


def test_a_pixel_that_became_nan_belongs_to_no_class():
    reference, result = noisy(1, 4, 3, 3, by=0.0)
    result[0, 1, 0, 0] = NAN
    shares = figures(MAP, (reference, result))
    labels = reference.argmax(axis=1).ravel()
    others = np.where(np.arange(9) == 0, -1, labels)
    assert shares["top1"] == pytest.approx(8 / 9)
    assert shares["iou"] == pytest.approx(jaccard_score(labels, others, average="macro", zero_division=0))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_shares_are_true_from_one_half_on(dtype):
    reference = np.array([0.25, 0.5, 0.75, 1.0], dtype)
    result = np.array([0.5, 0.5, 0.25, 0.75], dtype)
    assert figures(MASK, (reference, result)) == {**NOTHING, "iou": 2 / 4}


def test_masks_are_those_of_scikit_learn():
    reference, result = noisy(3, 1, 8, 8)
    ours, theirs = reference >= 0.5, result >= 0.5
    expected = pytest.approx(jaccard_score(ours.ravel(), theirs.ravel()))
    assert figures(MASK, (reference, result))["iou"] == expected
    assert figures(None, (ours, theirs))["iou"] == expected
    assert figures(MASK, (ours.astype(np.int64), theirs.astype(np.int64)))["iou"] == expected


MASKS = {
    "NaN in float32 is left out": ([NAN, 1, 0], [1, 1, 0], 1.0),
    "NaN for true": ([1, 1, 0], [NAN, 1, 0], 0.5),
    "NaN for false": ([0, 1, 0], [NAN, 1, 0], 0.5),
    "both are empty": ([0, 0], [0, 0], 1.0),
    "one is empty": ([0, 0], [0, 1], 0.0),
    "no element": ([], [], None),
    "all NaN": ([NAN], [1], None),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks_at_the_edge(case):
    reference, result, iou = MASKS[case]
    assert figures(MASK, (np.array(reference, np.float32), np.array(result, np.float32)))["iou"] == iou


def test_label_maps_have_the_mean_over_the_labels_of_either_side():
    random = np.random.default_rng(3)
    reference = random.integers(0, 6, (2, 9, 9))
    result = np.where(random.random((2, 9, 9)) < 0.3, random.integers(3, 9, (2, 9, 9)), reference)
    shares = figures(LABELS, (reference, result))
    assert shares["iou"] == pytest.approx(jaccard_score(reference.ravel(), result.ravel(), average="macro"))
    assert (shares["top1"], shares["top5"]) == (None, None)


@pytest.mark.parametrize(("labels", "has"), [(4096, True), (4097, False)])
def test_more_labels_than_any_data_set_has_are_numbers(labels, has):
    values = np.arange(labels).reshape(1, -1, 1) * np.ones((1, 1, 2), np.int64)
    assert (figures(LABELS, (values, values))["iou"] == 1.0) is has


def test_labels_are_counted_in_bounded_memory():
    agreement = Agreement(LABELS)
    agreement.add(np.arange(9000).reshape(1, -1, 2), np.arange(9000).reshape(1, -1, 2))
    assert len(agreement._labels) == metrics._MOST_LABELS + 1


def test_numbers_have_no_figures():
    assert figures(NUMBERS, noisy(4, 8)) == figures(SCORES) == NOTHING


def test_samples_that_are_read_differently_are_numbers():
    assert figures(SCORES, noisy(4, 8), noisy(4, 2, 8))["top1"] is None
    assert figures(MAP, noisy(1, 6, 4, 4), noisy(1, 6, 1, 1), noisy(1, 6, 4, 4))["iou"] is None


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(SCORES, (7, 9)), (MAP, (4, 3, 5, 2)), (MASK, (6, 5)), (dataclasses.replace(MAP, axis=3), (2,) * 4)],
)
def test_samples_count_jointly(kind, shape):
    first, second = noisy(*shape), noisy(*shape, seed=5)
    together = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    assert figures(kind, first, second) == figures(kind, together)


KINDS = {"scores": (SCORES, (5, 7)), "map": (MAP, (2, 3, 2, 2)), "mask": (MASK, (4, 4)), "labels": (LABELS, (1, 4, 4))}
number = st.integers(-3, 3) | st.just(0)


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_equal_arrays_agree_and_overlap_is_symmetric(name, data):
    kind, shape = KINDS[name]
    dtype = np.int64 if name == "labels" else np.float32
    first, two = (data.draw(arrays(dtype, shape, elements=number)) for _ in range(2))
    assert {1.0, None} >= set(figures(kind, (first, first)).values())
    there, back = figures(kind, (first, two)), figures(kind, (two, first))
    assert there["iou"] == back["iou"]
    assert all(share is None or 0.0 <= share <= 1.0 for share in there.values())
    assert there["top5"] is None or there["top5"] >= there["top1"]
