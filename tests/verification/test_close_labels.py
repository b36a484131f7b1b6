"""Labels that float32 decided by a hair's breadth: which ones are excused, and how many."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.precision.limits import Limits
from amp_transpiler.verification.close_labels import label_source
from amp_transpiler.verification.verify import make_reference
from tests.support import parse

ROWS, CLASSES = 400, 10
CLOSE = [3, 40, 77]  # rows whose best two scores differ by less than float16 can tell
SCORES = np.tile(np.linspace(-3.0, 3.0, CLASSES, dtype=np.float32), (ROWS, 1))
SCORES = np.random.default_rng(5).permuted(SCORES, axis=1)
SCORES[CLOSE, 2], SCORES[CLOSE, 7] = 5.0, 5.0001
CONSTANTS = {
    "e": np.eye(CLASSES, dtype=np.float32),
    "first": np.int64(0),
    "most": np.array([3]),
    "shape": np.array([-1, 4]),
    "start": np.array([0]),
    "end": np.array([1]),
    "axis": np.array([1]),
}


def convert(tail, output, scores=SCORES, **options):
    text = f"(float[{len(scores)},{CLASSES}] x) => ({output} y) {{ h = MatMul (x, e) {tail} }}"
    try:
        return amp.transpile(parse(text, **CONSTANTS), inputs={"x": scores}, **{"level": "O2", **options})
    except amp.CheckFailed as error:
        return error.report


# tail: (operators after the scores, output, labels that differ)
EXCUSED = {
    "ArgMax": ("y = ArgMax <axis = 1> (h)", "int64[400,1]", 3),
    "without its axis": ("y = ArgMax <axis = -1, keepdims = 0> (h)", "int64[400]", 3),
    "ArgMin": ("n = Neg (h) y = ArgMin <axis = 1> (n)", "int64[400,1]", 3),
    "along the first axis": (
        "t = Transpose <perm = [1, 0]> (h) y = ArgMax <keepdims = 0> (t)",
        "int64[400]",
        3,
    ),
    "recast and moved": (
        "a = ArgMax <axis = 1> (h) b = Cast <to = 6> (a) c = Reshape (b, shape) y = Transpose <perm = [1, 0]> (c)",
        "int32[4,100]",
        3,
    ),
    "the best of TopK": ("v, a = TopK <axis = 1> (h, most) y = Gather <axis = 1> (a, first)", "int64[400]", 3),
    "a slice of TopK": ("v, a = TopK (h, most) y = Slice (a, start, end, axis)", "int64[400,1]", 3),
    "TopK": ("v, y = TopK <axis = 1> (h, most)", "int64[400,3]", 6),
}


@pytest.mark.parametrize(("tail", "output", "count"), EXCUSED.values(), ids=EXCUSED)
def test_close_labels_are_excused_and_counted(tail, output, count):
    report = convert(tail, output, tolerance="1%")
    row = report.outputs["y"]
    assert (row.mismatched, row.excused, row.mismatch) == (count, count, 0.0)
    assert report.verdict.startswith(
        f"verified: all {row.elements} integers agree with float32, but for {count} that are"
    )
    [note] = [note for note in report.notes if "excused" in note]
    assert note.startswith(f"{count} of {row.elements} labels of 'y' differ where float32 itself decided")
    assert "closer than 1% of the spread" in note


ARGMAX = EXCUSED["ArgMax"][0]
DISTANT = SCORES.copy()
DISTANT[CLOSE, 7] = 5.0015  # float16 tells numbers near 5 apart by 0.004
WIDE = DISTANT.copy()
WIDE[CLOSE, 0] = -60000.0
# Scores and options of each case, how many labels differ, and how many of them are excused.
COUNTED = {
    "in the tolerance": (SCORES, {"tolerance": "1%"}, 3, 3),
    "of the spread of the row": (SCORES, {"tolerance": 0.0001 / 10}, 3, 0),
    "a margin beyond it": (DISTANT, {"tolerance": 0.0001}, 3, 0),
    "the same margin, a larger spread": (WIDE, {"tolerance": 0.0001}, 3, 3),
    "one in a hundred": (SCORES[:200], {"tolerance": "1%"}, 3, 2),
    "rounded down": (SCORES[:199], {"tolerance": "1%"}, 3, 1),
    "of few labels none": (SCORES[:99], {"tolerance": "1%"}, 3, 0),
    "a tolerance of its own": (SCORES, {"tolerance": "y=1%"}, 3, 3),
    "no tolerance": (SCORES, {}, 3, 0),
    "a mismatch alone": (SCORES, {"mismatch": 0}, 3, 0),
}


@pytest.mark.parametrize(("scores", "options", "differing", "excused"), COUNTED.values(), ids=COUNTED)
def test_how_many_labels_are_excused(scores, options, differing, excused):
    report = convert(ARGMAX, f"int64[{len(scores)},1]", scores, **options)
    row = report.outputs["y"]
    assert (row.mismatched, row.excused) == (differing, excused)
    fails = bool(options) and differing > excused
    assert report.verdict_word == ("failed" if fails else "verified" if options else "compared")


def test_what_is_not_excused_is_repaired_at_auto():
    report = convert(ARGMAX, "int64[99,1]", SCORES[:99], level="auto", prefer="size")
    assert report.verdict.startswith("verified: all 99 integers agree")
    assert report.repaired


NO_LABELS = {
    "integers of another kind": "h = Cast <to = 7> (x) y = Add (h, h)",
    "floats": "y = Relu (x)",
    "labels that are computed with": "a = ArgMax <axis = 1> (x) y = Add (a, a)",
    "the values of TopK": "y, i = TopK <axis = 1> (x, most)",
    "a size": "y = Shape (x)",
    "an input": "y = Identity (x)",
}


@pytest.mark.parametrize("text", NO_LABELS.values(), ids=NO_LABELS)
def test_other_outputs_are_not_of_labels(text):
    kind = "float" if "Relu" in text or "TopK" in text or "Identity" in text else "int64"
    model = parse(f"(float[4,4] x) => ({kind}[a,b] y) {{ {text} }}", **CONSTANTS)
    assert label_source(amp.load(model).model.graph.outputs[0]) is None


def compared(result, scores=SCORES):
    """Compare made-up labels with those of fp32."""
    text = f"(float[{ROWS},{CLASSES}] x) => (int64[{ROWS}] y) {{ y = ArgMax <axis = 1, keepdims = 0> (x) }}"
    program = amp.load(parse(text))
    reference = make_reference(program, program, [{"x": scores}, {"x": scores}])
    plain = reference.outputs[0]["y"]
    return reference.compare_results([{"y": plain}, {"y": result(plain.copy())}], Limits(0.01))["y"]


def changed(rows, label):
    def change(labels):
        labels[rows] = label
        return labels

    return change


def test_the_scores_may_be_an_input_and_samples_keep_their_own():
    row = compared(changed(CLOSE, 2))
    assert (row.elements, row.mismatched, row.excused) == (2 * ROWS, 3, 3)


@pytest.mark.parametrize("label", [1, -1, CLASSES, 2**40])
def test_a_label_that_is_far_off_or_none_at_all_is_not_excused(label):
    row = compared(changed(CLOSE, label))
    assert (row.mismatched, row.excused) == (3, 0)


@pytest.mark.parametrize(("wrong", "excused"), [(2, 3), (1, 0)])
def test_a_mask_does_not_make_the_spread_infinite(wrong, excused):
    scores = SCORES.copy()
    scores[CLOSE, 0] = -np.inf
    assert compared(changed(CLOSE, wrong), scores).excused == excused


def test_labels_of_another_shape_are_not_excused():
    row = compared(lambda labels: labels[:, None])
    assert (row.structure_differs, row.excused) == (True, 0)
