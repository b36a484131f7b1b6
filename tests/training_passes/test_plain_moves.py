"""Known rows of tables as slices, and Concats of what was split or padded."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import PadInLow, SimplifyConcats, SliceKnownRows
from tests.support import array
from tests.training_passes.training_step import outline, same_after, step

ROWS = {
    "rows that follow each other": (
        "(float[9,2] w) => (float[3,2] y) { g = Gather (w, i) y = Exp (g) }",
        [4, 5, 6],
        "Reshape Slice Reshape Exp",
    ),
    "in another shape, from the end": (
        "(float[9,2] w) => (float[1,2,2] y) { g = Gather (w, i) y = Exp (g) }",
        [[-2, -1]],
        "Reshape Slice Reshape Exp",
    ),
    "the whole table": (
        "(float[3,2] w) => (float[3,2] y) { g = Gather (w, i) y = Exp (g) }",
        [0, 1, 2],
        "Reshape Reshape Exp",
    ),
    "rows of a slice": (
        """(float[9,2] w) => (float[2,2] y)
        <int64[1] a = {3}, int64[1] b = {8}, int64[1] zero = {0}, int64[2] s = {5, 2}>
        { v = Unsqueeze (w, zero) u = Squeeze (v, zero) p = Slice (u, a, b, zero) r = Reshape (p, s)
        g = Gather (r, i) y = Exp (g) }""",
        [1, 2],
        "Reshape Slice Reshape Exp",
    ),
    "rows of a slice of columns": (
        """(float[4,5] w) => (float[2,3] y) <int64[1] a = {1}, int64[1] b = {4}, int64[1] one = {1}>
        { p = Slice (w, a, b, one) g = Gather (p, i) y = Exp (g) }""",
        [1, 2],
        "Slice Reshape Slice Reshape Exp",
    ),
    "one row for all": (
        "(float[3,4] w, float[2,3,4] x) => (float[2,3,4] y) { g = Gather (w, i) y0 = Add (x, g) y = Exp (y0) }",
        [[1, 1, 1]],
        "Reshape Slice Reshape Add Exp",
    ),
    "one row in its own shape": (
        "(float[3,4] w, float[4] x) => (float[1,3,4] y) { g = Gather (w, i) y0 = Add (x, g) y = Exp (y0) }",
        [[1, 1, 1]],
        None,
    ),
    "rows in another order": ("(float[9,2] w) => (float[2,2] y) { g = Gather (w, i) y = Exp (g) }", [5, 4], None),
    "columns": ("(float[9,2] w) => (float[9,2] y) { g = Gather <axis = 1> (w, i) y = Exp (g) }", [0, 1], None),
}


@pytest.mark.parametrize("case", ROWS.values(), ids=ROWS)
def test_known_rows_are_slices(case, run):
    text, rows, left = case
    check(SliceKnownRows(), text, run, left, i=np.array(rows, np.int64))


def test_rows_that_are_not_there_are_an_error_of_the_run():
    model = step("(float[3,2] w) => (float[2,2] y) { g = Gather (w, i) y = Exp (g) }", "", i=np.array([2, 3]))
    assert run_pass(SliceKnownRows(), model).count == 0


CONCATS = {
    "all parts of a Split": (
        """(float[1,6] x, float[2] z) => (float[8] y) <int64[1] s = {2}>
        { a, b, c = Split <axis = 1, num_outputs = 3> (x) d = Reshape (a, s) e = Reshape (b, s) f = Reshape (c, s)
        j = Concat <axis = 0> (z, d, e, f) y = Exp (j) }""",
        "Reshape Reshape Concat Reshape Exp",
    ),
    "nothing else": (
        """(float[6,2] x) => (float[6,2] y)
        { a, b = Split <num_outputs = 2> (x) j = Concat <axis = 0> (a, b) y = Exp (j) }""",
        "Reshape Reshape Exp",
    ),
    "parts that something else reads, too": (
        """(float[6,2] x, float[2,2] z) => (float[8,2] y, float[3,2] u)
        { a, b = Split <num_outputs = 2> (x) j = Concat <axis = 0> (a, b, z) y = Exp (j) u = Exp (b) }""",
        "Split Reshape Reshape Concat Reshape Exp Exp",
    ),
    "some parts of a Split": (
        """(float[6,2] x) => (float[4,2] y)
        { a, b, c = Split <num_outputs = 3> (x) j = Concat <axis = 0> (a, b) y = Exp (j) }""",
        None,
    ),
    "parts in another order": (
        """(float[6,2] x) => (float[6,2] y)
        { a, b = Split <num_outputs = 2> (x) j = Concat <axis = 0> (b, a) y = Exp (j) }""",
        None,
    ),
    "parts side by side": (
        """(float[2,6] x) => (float[4,3] y)
        { a, b = Split <axis = 1, num_outputs = 2> (x) j = Concat <axis = 0> (a, b) y = Exp (j) }""",
        None,
    ),
    "padded behind": (
        """(float[3,2] x, float[4,2] z) => (float[9,2] y) <int64[4] p = {0, 0, 2, 0}>
        { a = Pad (x, p) j = Concat <axis = 0> (a, z) y = Exp (j) }""",
        "Reshape ConstantOfShape Reshape Concat Reshape Exp",
    ),
    "padded on both sides": (
        """(float16[1,3] x, float16[4] z) => (float16[10] y)
        <int64[4] p = {0, 1, 0, 2}, int64[1] s = {6}, float16 o = {0}>
        { a = Pad (x, p, o) b = Reshape (a, s) j = Concat <axis = 0> (z, b) y = Exp (j) }""",
        "Reshape ConstantOfShape Reshape ConstantOfShape Concat Reshape Exp",
    ),
    "padded with ones": (
        """(float[3,2] x, float[4,2] z) => (float[9,2] y) <int64[4] p = {0, 0, 2, 0}, float o = {1}>
        { a = Pad (x, p, o) j = Concat <axis = 0> (a, z) y = Exp (j) }""",
        None,
    ),
    "padded rows": (
        """(float[3,2] x, float[4,3] z) => (float[7,3] y) <int64[4] p = {0, 0, 0, 1}>
        { a = Pad (x, p) j = Concat <axis = 0> (a, z) y = Exp (j) }""",
        None,
    ),
    "padded and read elsewhere": (
        """(float[3,2] x, float[4,2] z) => (float[9,2] y, float[5,2] u) <int64[4] p = {0, 0, 2, 0}>
        { a = Pad (x, p) j = Concat <axis = 0> (a, z) y = Exp (j) u = Exp (a) }""",
        None,
    ),
}


@pytest.mark.parametrize("case", CONCATS.values(), ids=CONCATS)
def test_a_concat_reads_what_was_split_or_padded(case, run):
    text, left = case
    check(SimplifyConcats(), text, run, left)


WIDE, LOW = "to = 1", "to = 10"
PADS = {
    "padded in float32": (
        f"""(float16[2,3] x) => (float16[2,6] y) <int64[4] p = {{0, 1, 0, 2}}>
        {{ a = Cast <{WIDE}> (x) b = Pad (a, p) c = Cast <{LOW}> (b) y = Exp (c) }}""",
        "Expand Expand Concat Exp",
    ),
    "read elsewhere in float32": (
        f"""(float16[2,3] x) => (float16[4,3] y, float[2,3] z) <int64[4] p = {{0, 0, 2, 0}}>
        {{ a = Cast <{WIDE}> (x) b = Pad (a, p) c = Cast <{LOW}> (b) y = Exp (c) z = Exp (a) }}""",
        "FLOAT Expand Concat Exp Exp",
    ),
    "read in float32, too": (
        f"""(float16[2,3] x) => (float16[4,3] y, float[4,3] z) <int64[4] p = {{0, 0, 2, 0}}>
        {{ a = Cast <{WIDE}> (x) b = Pad (a, p) c = Cast <{LOW}> (b) y = Exp (c) z = Exp (b) }}""",
        None,
    ),
    "cast to another type": (
        f"""(float16[2,3] x) => (double[4,3] y) <int64[4] p = {{0, 0, 2, 0}}>
        {{ a = Cast <{WIDE}> (x) b = Pad (a, p) c = Cast <to = 11> (b) y = Exp (c) }}""",
        None,
    ),
    "along two axes": (
        f"""(float16[2,3] x) => (float16[4,4] y) <int64[4] p = {{0, 0, 2, 1}}>
        {{ a = Cast <{WIDE}> (x) b = Pad (a, p) c = Cast <{LOW}> (b) y = Exp (c) }}""",
        None,
    ),
}


@pytest.mark.parametrize("case", PADS.values(), ids=PADS)
def test_what_is_padded_in_float32_is_joined_with_zeros(case, run):
    text, left = case
    check(PadInLow(), text, run, left)


def check(pass_, text, run, left, **weights):
    """Run the pass: the outputs stay the same to the bit, and the outline is the expected one."""
    model = step(text, "", **weights)
    before = outline(model)
    feeds = {x.name: array(*x.shape).astype(x.dtype.numpy()) for x in model.graph.inputs}
    same_after(pass_, model, run, feeds, int(left is not None))
    assert outline(model) == (before if left is None else left)
