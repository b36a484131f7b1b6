"""The error of an output is that of its worst part: what users read is not hidden by what is larger."""

import math

import ml_dtypes
import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.verification import output_error
from amp_transpiler.verification.compare import compare_outputs
from amp_transpiler.verification.output_error import part_weights
from tests.support import parse

RNG = np.random.default_rng(0)


def normal(*shape, scale=1.0):
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def compared(pairs):
    return compare_outputs([{"y": x} for x, _ in pairs], [{"y": y} for _, y in pairs])["y"]


def scaled_slice(shape, axis, index, scale, factor):
    """An output of which one slice is `scale` times as large as the others; in the result it is `factor` times that."""
    x = normal(*shape)
    place = tuple(index if at == axis else slice(None) for at in range(len(shape)))
    x[place] *= scale
    y = x.copy()
    y[place] *= factor
    return x, y


MASKS = RNG.random((64, 50)) < 0.5


def masked(value, factor, added=False):
    logits = normal(64, 50, scale=5)
    x, y = (np.where(MASKS, value + (scores if added else 0), scores) for scores in (logits, factor * logits))
    return x.astype(np.float32), y.astype(np.float32)


QUIET = normal(4, 8, scale=1e-2)
HIDDEN = {  # what is hidden in a norm over everything: pairs of samples, its error, the words for its part
    "class scores beside boxes, lost": ([scaled_slice((1, 8, 500), 1, 6, 1e-4, 0.0)], 1.0, "index 6 of axis 1, of 8"),
    "a column of a table": ([scaled_slice((200, 24), 1, 3, 1e-3, 1.1)], 0.1, "index 3 of the last axis, of 24"),
    "the scores of rows": ([scaled_slice((1, 300, 6), 2, 5, 1e-3, 0.5)], 0.5, "index 5 of the last axis, of 6"),
    "a channel of images": ([scaled_slice((2, 3, 8, 8), 1, 2, 1e-2, 1.2)], 0.2, "index 2 of axis 1, of 3"),
    "channels last": ([scaled_slice((2, 8, 8, 3), 3, 0, 1e-2, 1.2)], 0.2, "index 0 of the last axis, of 3"),
    "a quiet sample": ([(normal(4, 8, scale=100.0),) * 2, (QUIET, 1.03 * QUIET)], 0.03, "sample 2"),
    "a quiet row of a batch": ([scaled_slice((9, 40), 0, 4, 1e-3, 1.5)], 0.5, "sample 1, row 4"),
    "a quiet item of a sequence": (
        [([normal(9, scale=100.0), QUIET], None)],
        0.03,
        "sample 1, item 2",
    ),
    "logits beside masks of -1e4": ([masked(-1e4, 1.04)], 0.04, ""),
    "logits beside masks of -3e38": ([masked(-3e38, 1.04)], 0.04, ""),
    "logits to which masks are added": ([masked(-1e4, 1.04, added=True)], 0.04, ""),
    "logits beside masks of 1e9": ([masked(1e9, 0.9)], 0.1, ""),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_what_a_norm_hides(case):
    pairs, error, part = HIDDEN[case]
    if pairs[0][1] is None:
        pairs = [(pairs[0][0], [pairs[0][0][0], 1.03 * pairs[0][0][1]])]
    error_of = compared(pairs)
    assert error_of.of_all < 0.2 * error
    assert error_of.relative > 0.999 * error
    assert error_of.relative < 1.6 * error
    assert part in error_of.part
    assert error_of.part


FAIR = {  # no part is judged by itself: each is close to zero by chance, or too small to count
    "few elements": (normal(1, 7), 7),
    "a slice of few elements": (normal(4, 5), 20),
    "a row of scores": (normal(1, 1000), 1000),
    "many slices of few elements": (normal(8, 4000), 32000),
    "a number": (np.float32(3.0), 1),
}


@pytest.mark.parametrize("case", FAIR)
def test_unfair_parts_do_not_count(case):
    x, elements = FAIR[case]
    y = (x + normal(*x.shape, scale=1e-3)).astype(np.float32)
    error_of = compared([(x, y)])
    assert error_of.elements == elements
    if case != "many slices of few elements":  # whose rows are samples
        assert (error_of.part, error_of.relative) == ("", error_of.of_all)
    assert error_of.relative < 1.1 * error_of.of_all


@pytest.mark.parametrize("scale", [1e-6, 0.0, 1e-30])
def test_what_float16_cannot_hold_does_not_count(scale):
    x, y = scaled_slice((100, 10), 1, 3, scale, 0.0)
    assert compared([(x, y)]).part != "index 3 of the last axis, of 10"


def test_what_float32_leaves_of_a_sum_does_not_count():
    x, y = scaled_slice((100, 10), 1, 3, 1e-3, 0.0)
    assert compared([(x * 1e4, y * 1e4)]).relative == pytest.approx(1.0)
    far = x * 1e6
    far[:, 3] = 1e-3
    assert compared([(far, np.where(far == np.float32(1e-3), 0, far))]).relative < 1e-6


@pytest.mark.parametrize("count", [0, 1])
def test_one_large_number_is_no_mask(count):
    x = normal(50)
    x[:count] = 1e5
    y = x * np.float32(1.01)
    assert compared([(x, y)]).relative == pytest.approx(0.01, rel=1e-3)


def test_equal_slices_have_the_error_of_the_whole():
    x = normal(4, 16, 500)
    error_of = compared([(x, x.astype(np.float16))])
    assert error_of.relative < 1.5 * error_of.of_all


@pytest.mark.parametrize("low", [np.float16, ml_dtypes.bfloat16])
def test_any_format_and_what_is_not_finite(low):
    x, y = scaled_slice((200, 4), 1, 3, 1e-2, 1.5)
    x[0], y[0] = np.nan, 7
    assert compared([(x, y.astype(low))]).relative == pytest.approx(0.5, rel=0.05)


def test_slices_count_over_all_samples_of_one_size():
    pairs = [scaled_slice((1, 5), 1, 3, 1e-2, 1.5) for _ in range(8)]
    assert compared(pairs).part == "index 3 of the last axis, of 5"
    assert compared(pairs[:7]).part == ""  # seven elements only


def test_blocks_change_nothing(monkeypatch):
    pairs = [scaled_slice((3, 5, 7, 2), 1, 3, 1e-2, 1.5), masked(-1e4, 1.02)]
    whole = [compared([pair]) for pair in pairs]
    for size in (1, 4, 33):
        monkeypatch.setattr(output_error, "_CHUNK", size)
        for pair, expected in zip(pairs, whole, strict=True):
            error_of = compared([pair])
            assert (error_of.part, error_of.relative) == (expected.part, pytest.approx(expected.relative))


def test_the_spread_is_told_beside_it():
    x = (1013.25 + 0.3 * normal(500, 1)).astype(np.float32)
    error_of = compared([(x, x.astype(np.float16))])
    assert error_of.relative < 5e-4
    assert error_of.of_spread == pytest.approx(np.std(x - x.astype(np.float16)) / np.std(x), rel=0.2)
    assert compared([(np.ones(9, np.float32), np.ones(9, np.float32))]).of_spread is None


@pytest.mark.parametrize(
    ("offset", "scale", "warned"),
    [(1013.25, 0.3, True), (1e4, 3.0, True), (-500.0, 0.1, True), (0.0, 1.0, False), (3.0, 1.0, False)],
)
def test_a_signal_that_an_offset_hides_is_warned_of(offset, scale, warned):
    model = parse("(float[50,64] x) => (float[50,8] y) { h = MatMul (x, w) y = Add (h, b) }",
                  w=normal(64, 8, scale=scale / 8), b=np.full(8, offset, np.float32))  # fmt: skip
    report = amp.transpile(model, inputs={"x": normal(50, 64)}, level="O2", device_check="no", cache=False)
    assert bool([text for text in report.warnings if "of its spread" in text]) is warned


def test_weights_are_one_over_the_norms_of_uneven_slices():
    assert part_weights(normal(50, 4)) is None
    x, _ = scaled_slice((50, 4), 1, 3, 1e-2, 1.0)
    weights = part_weights(x)
    expected = 1 / (2 * np.linalg.norm(x, axis=0))
    np.testing.assert_allclose(weights, np.broadcast_to(expected, x.shape), rtol=1e-5)
    assert np.sum(np.square(weights * x)) == pytest.approx(1.0, rel=1e-5)
    logits, _ = masked(-1e4, 1.0)
    weights = part_weights(logits)
    assert weights[~MASKS] == pytest.approx(1 / np.linalg.norm(logits[~MASKS]), rel=1e-5)
    assert math.isfinite(weights.max())


DETECTOR = """(float[200,64] x) => (float[200,14] y) {
    boxes = MatMul (x, wide)
    a = MatMul (x, w)
    b = Add (a, far)
    scores = Sub (b, far)
    y = Concat <axis = 1> (boxes, scores)
}"""


@pytest.mark.parametrize("tolerance", [None, "0.5%", "0.1%"])
def test_auto_repairs_what_the_measure_finds(tolerance):
    """The scores lose their digits beside a large constant; boxes a hundred times as large hide it."""
    weights = {"wide": normal(64, 4, scale=40), "w": normal(64, 10, scale=0.05), "far": normal(10, scale=400)}
    x = normal(200, 64)
    report = amp.transpile(
        parse(DETECTOR, **weights), level="auto", inputs={"x": x}, device_check="no", tolerance=tolerance, prefer="size"
    )
    assert report.verdict.startswith("verified")
    assert report.repaired
    assert report.low_nodes
    low = amp.Session(amp.emulate(report.program)).run({"x": x})[0]
    scores = x @ weights["w"]
    error = np.linalg.norm(low[:, 4:] - scores, axis=0) / np.linalg.norm(scores, axis=0)
    assert error.max() <= float((tolerance or "2%").rstrip("%")) / 100


def test_a_fault_names_the_part():
    weights = {"wide": normal(64, 4, scale=40), "w": normal(64, 10, scale=0.05), "far": normal(10, scale=400)}
    with pytest.raises(amp.CheckFailed, match=r"in relative norm \(index \d+ of the last axis, of 14; the whole by 0"):
        amp.transpile(
            parse(DETECTOR, **weights), level="O2", inputs={"x": normal(200, 64)}, tolerance="2%", device_check="no"
        )
