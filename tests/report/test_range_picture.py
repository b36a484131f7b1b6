"""Ranges as small histograms: what is counted, where it stands in the report, and how it is drawn."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.magnitudes import measure
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.precision.histogram import NO_NUMBERS, OCTAVES, Histogram
from amp_transpiler.report import DecisionRow, Report
from amp_transpiler.report.as_html import page
from amp_transpiler.report.as_json import dump, report_as_dict
from amp_transpiler.report.range_picture import range_picture, range_words
from amp_transpiler.report.sections import nodes_table
from tests.support import array, chain

EMPTY = Report("a.onnx", "auto", "float16", "cuda", device="H100", low_nodes=3, high_nodes=1, casts=2)

# numbers -> their histogram
NUMBERS = {
    "none": ([], NO_NUMBERS),
    "zeros": ([0.0, -0.0], NO_NUMBERS),
    "not finite": ([math.inf, -math.inf, math.nan], NO_NUMBERS),
    "one": ([1.0], Histogram(0, (1,))),
    "both signs": ([3.0, -2.0, -0.5], Histogram(-2, (1, 2))),
    "a gap": ([1.0, 1000.0], Histogram(0, (1, 0, 0, 0, 1))),
    "beside what is not finite": ([math.nan, 5.0, math.inf], Histogram(2, (1,))),
    "float16's least normal number, and just less": ([2.0**-14, 2.0**-14 * 0.999], Histogram(-16, (1, 1))),
    "float16's largest number, and more": ([65504.0, 65536.0], Histogram(14, (1, 1))),
    "bfloat16's least normal number": ([2.0**-126], Histogram(-126, (1,))),
    "float32's least number": ([2.0**-149, 2.0**-127], Histogram(-128, (2,))),
    "float32's largest number": ([float(np.finfo(np.float32).max)], Histogram(126, (1,))),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_are_counted_by_magnitude(case):
    numbers, expected = NUMBERS[case]
    assert measure(np.array(numbers, np.float32), FLOAT16.smallest).histogram == expected


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e4, 1e20])
def test_counts_are_numpys(scale):
    numbers = array(1 << 17, 3, scale=scale)  # more than are looked at together
    counts = measure(numbers, FLOAT16.smallest).histogram
    edges = 2.0 ** np.arange(counts.lowest, counts.lowest + OCTAVES * len(counts.counts) + 1, OCTAVES)
    assert counts.counts == tuple(np.histogram(np.abs(numbers.astype(np.float64)), edges)[0])
    assert sum(counts.counts) == np.count_nonzero(numbers)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (NO_NUMBERS, NO_NUMBERS, NO_NUMBERS),
        (NO_NUMBERS, Histogram(2, (1,)), Histogram(2, (1,))),
        (Histogram(2, (1,)), NO_NUMBERS, Histogram(2, (1,))),
        (Histogram(2, (1, 2)), Histogram(2, (3,)), Histogram(2, (4, 2))),
        (Histogram(-4, (1,)), Histogram(2, (5, 6)), Histogram(-4, (1, 0, 0, 5, 6))),
        (Histogram(2, (5, 6)), Histogram(-4, (1, 2, 3, 4)), Histogram(-4, (1, 2, 3, 9, 6))),
    ],
)
def test_histograms_add_up(first, second, expected):
    assert first + second == expected


X = {"x": array(8, 4, scale=3.0)}


def test_a_row_has_the_numbers_that_its_node_reads_and_makes():
    model = chain("Exp ({})", "Neg ({})", shape="float[8,4]")
    report = amp.transpile(model, inputs=X, frontier=True, cache=False)
    exp, neg = report.decisions
    x, results = (measure(numbers, FLOAT16.smallest).histogram for numbers in (X["x"], np.exp(X["x"])))
    assert exp.histogram == x + results
    assert neg.histogram == results + results
    assert exp.largest == pytest.approx(np.exp(X["x"]).max(), rel=1e-5)
    record = json.loads(dump(report_as_dict(report)))["decisions"][0]["histogram"]
    assert Histogram(record["lowest"], tuple(record["counts"])) == exp.histogram


def test_a_value_that_is_read_twice_counts_once():
    model = chain("Mul ({0}, {0})", shape="float[8,4]")
    report = amp.transpile(model, inputs=X, prefer="size", cache=False)
    assert sum(report.decisions[0].histogram.counts) == 2 * X["x"].size


@pytest.mark.parametrize("frontier", [True, False])
def test_the_cache_keeps_it(frontier, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = chain("MatMul ({}, w)", "Exp ({})", shape="float[8,4]", w=array(4, 4))
    options = {"inputs": X, "frontier": frontier, "tolerance": 1e-4, "prefer": "size"}
    first, second = (amp.transpile(model, **options) for _ in range(2))
    assert [row.histogram for row in second.decisions] == [row.histogram for row in first.decisions]
    assert all(row.histogram is not None for row in first.decisions)


def test_without_runs_there_is_none():
    report = amp.transpile(chain("Exp ({})"), verify=False)
    assert [row.histogram for row in report.decisions] == [None]
    assert '<svg class="range"' not in page([(report, None)])


# a histogram, the format -> classes of bars
PICTURES = {
    "ordinary": (Histogram(-4, (1, 5, 2)), FLOAT16, ["inside"]),
    "small": (Histogram(-20, (1, 1, 1)), FLOAT16, ["below"]),
    "large": (Histogram(16, (1,)), FLOAT16, ["beyond"]),
    "the largest that fits": (Histogram(14, (1,)), FLOAT16, ["inside"]),
    "the least that is normal": (Histogram(-14, (1,)), FLOAT16, ["inside"]),
    "all": (Histogram(-40, (1,) * 60), FLOAT16, ["below", "inside", "beyond"]),
    "a mask": (Histogram(-2, (9, *[0] * 63, 1)), FLOAT16, ["inside", "beyond"]),
    "a mask in bfloat16": (Histogram(-2, (9, *[0] * 63, 1)), BFLOAT16, ["inside"]),
    "everything in bfloat16": (Histogram(-128, (1,) * 128), BFLOAT16, ["below", "inside"]),
    "zeros": (NO_NUMBERS, FLOAT16, []),
}


@pytest.mark.parametrize("case", PICTURES)
def test_a_picture_shows_what_fits(case):
    seen, low, kinds = PICTURES[case]
    svg = range_picture(seen, low)
    assert re.findall(r'<path class="(below|inside|beyond)"', svg) == kinds
    assert svg.count('class="limit"') == 1
    width = float(re.search(r'width="([\d.]+)"', svg)[1])
    places = [float(place) for place in re.findall(r"M([\d.]+) ", svg)]
    heights = [float(height) for height in re.findall(r"v-([\d.]+)h", svg)]
    assert all(0 <= place <= width <= 128 for place in places)
    assert all(0 < height <= 22 for height in heights)
    assert f"{low.max:.5g}</title>" in svg


def test_every_number_stands_for_a_bar_that_is_seen():
    svg = range_picture(Histogram(0, (10**9, 0, 1)), FLOAT16)
    assert len(re.findall(r"v-[\d.]+h", svg)) == 2
    assert "v-1.5h" in svg


@pytest.mark.parametrize(
    ("seen", "words"),
    [(NO_NUMBERS, "zero"), (Histogram(0, (1,)), "2^0 to 2^2"), (Histogram(-14, (1, 0, 2)), "2^-14 to 2^-8")],
)
def test_words(seen, words):
    assert range_words(seen) == words
    assert words in range_picture(seen, FLOAT16)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_table_of_nodes_has_a_picture_a_row(dtype):
    rows = tuple(DecisionRow(f"n{i}", "Add", dtype, "why", histogram=Histogram(2 * i, (1,))) for i in range(3))
    report = dataclasses.replace(EMPTY, dtype=dtype, decisions=(*rows, DecisionRow("n3", "Add", dtype, "why")))
    heads = [head for head, _ in nodes_table(report).heads]
    column = [row[heads.index("magnitudes")] for row in nodes_table(report).rows]
    assert [cell.text for cell in column] == ["2^0 to 2^2", "2^2 to 2^4", "2^4 to 2^6", "-"]
    text = page([(report, None)])
    assert text.count('<svg class="range"') == 3
    assert f"{dtype} has normal numbers" in text
