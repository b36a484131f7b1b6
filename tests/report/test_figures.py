"""The figures of outputs, and which of them the table and the page show."""

import dataclasses
import io
import math
import re

import pytest
from rich.console import Console

from amp_transpiler.report import OutputComparison, Report
from amp_transpiler.report.as_html import page
from amp_transpiler.report.figures import FIGURES, figures_of, has_floats, share_that_agrees
from amp_transpiler.report.table import outputs_worst_first, summary

FLOATS = OutputComparison("y", "float32", (2, 4), 1.25e-3, 4e-4, 0.9999, elements=8)
LABELS = OutputComparison("label", "int64", (8,), 0.0, 0.0, 1.0, elements=8)


def with_(output=FLOATS, **changes):
    return dataclasses.replace(output, **changes)


# Output -> its figures, by the heads of their columns.
ROWS = {
    "floats": (FLOATS, {"max abs": "1.25e-03", "relative": "0.04%", "SNR dB": "68.0", "cosine": "0.999900"}),
    "exact": (
        with_(relative=0.0, max_abs=0.0, cosine=1.0),
        {"max abs": "0", "relative": "0%", "SNR dB": "exact", "cosine": "1.000000"},
    ),
    "scores": (with_(top1=0.995, top5=1.0), {"top-1": "99.5%", "top-5": "100%"}),
    "scores that hardly differ": (with_(top1=0.99996, top5=0.9994), {"top-1": ">99.9%", "top-5": "99.9%"}),
    "scores that all differ": (with_(top1=0.0, top5=0.0), {"top-1": "0%", "top-5": "0%"}),
    "a mask": (with_(iou=0.25), {"IoU": "25%"}),
    "an empty agreement": (with_(iou=0.0), {"IoU": "0%"}),
    "labels": (LABELS, {"differ": "0%"}),
    "labels that differ": (with_(LABELS, mismatched=2), {"differ": "25%"}),
    "labels some of which are excused": (with_(LABELS, mismatched=3, excused=1), {"differ": "25% +1 excused"}),
    "another shape": (with_(structure_differs=True, relative=math.inf), {"relative": "inf", "differ": "structure"}),
    "keys of a map": (with_(dtype="map", mismatched=2), {"relative": "0.04%", "differ": "25%"}),
    "not finite": (with_(nonfinite=3, relative=math.inf), {"non-finite": "3", "SNR dB": "-inf"}),
    "nor in float32": (with_(nonfinite=3, nonfinite_reference=5), {"non-finite": "3 (5 in float32)"}),
    "in float32 alone": (with_(nonfinite_reference=5), {"non-finite": "0 (5 in float32)"}),
}
OF_FLOATS = {"max abs", "relative", "SNR dB", "cosine"}


@pytest.mark.parametrize("case", ROWS)
def test_an_output_has_the_figures_of_its_kind(case):
    output, expected = ROWS[case]
    texts = {figure.head: figure.of(output) for figure in FIGURES}
    assert {head: texts[head] for head in expected} == expected
    with_text = {head for head, text in texts.items() if text != "-"}
    assert with_text == set(expected) | (OF_FLOATS if "float" in output.dtype or output.dtype == "map" else set())
    assert [figure.head for figure in figures_of([output])] == [head for head in texts if head in with_text]


BAD = {
    "floats": set(),
    "labels": set(),
    "labels that differ": {"differ"},
    "another shape": {"differ"},
    "not finite": {"non-finite"},
    "in float32 alone": set(),
}


@pytest.mark.parametrize("case", BAD)
def test_faults_are_marked(case):
    assert {figure.head for figure in FIGURES if figure.is_bad(ROWS[case][0])} == BAD[case]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", True),
        ("bfloat16", True),
        ("float8e4m3fn", True),
        ("double", True),
        ("complex64", True),
        ("sequence(float32)", True),
        ("map", True),
        ("int64", False),
        ("bool", False),
        ("string", False),
        ("sequence(int64)", False),
        ("none", False),
    ],
)
def test_what_has_floats(dtype, expected):
    assert has_floats(with_(dtype=dtype)) is expected


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100%"), (0.99999, ">99.9%"), (0.9995, "100%"), (0.9994, "99.9%"), (0.5, "50%"), (0.0, "0%")],
)
def test_a_share_is_a_hundred_percent_only_if_all_agree(share, text):
    assert share_that_agrees(share) == (">99.9%" if 0.9995 <= share < 1 else text)


def shown(*outputs, width=80):
    report = Report("a", "auto", "float16", "cuda", outputs={output.name: output for output in outputs})
    file = io.StringIO()
    Console(file=file, width=width, markup=False, highlight=False, emoji=False).print(summary(report))
    return file.getvalue().partition("output ")[2].splitlines()


def heads(*outputs, **changes):
    return re.split(r"  +", shown(*outputs, **changes)[0].strip())


ALL = [
    with_(name="scores", top1=1.0, top5=1.0),
    with_(name="mask", iou=1.0),
    LABELS,
    with_(name="bad", nonfinite=1),
    with_(name="rare", rare=0.5),
    with_(name="near", neighbours=0.9),
    with_(name="slices", part="sample 2", whole=1e-5, of_spread=0.5),
]
LONG = "a_name_of_thirty_characters___"


@pytest.mark.parametrize(
    ("outputs", "width", "expected"),
    [
        ([FLOATS], 80, "type, max abs, relative, SNR dB, cosine"),
        ([LABELS], 80, "type, differ"),
        ([with_(top1=1.0, top5=1.0)], 80, "type, max abs, relative, SNR dB, cosine, top-1, top-5"),
        ([with_(name=LONG, top1=1.0, top5=1.0)], 80, "type, max abs, relative, cosine, top-1, top-5"),
        (ALL, 140, ", ".join(["type", *(figure.head for figure in FIGURES)])),
        (ALL, 90, "type, relative, top-1, IoU, rare class, neighbours, differ, non-finite"),
        (ALL, 66, "type, relative, top-1, IoU, differ, non-finite"),
    ],
)
def test_the_table_leaves_out_what_no_output_has_and_then_what_has_no_room(outputs, width, expected):
    assert ", ".join(heads(*outputs, width=width)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("width", [66, 70, 80, 90, 120])
def test_no_figure_is_cut_and_no_line_is_too_long(width):
    outputs = [with_(output, name=f"{output.name}_{LONG}") for output in ALL]
    lines = shown(*outputs, width=width)
    assert max(map(len, lines[1:])) <= width
    for line, output in zip(lines[1:], outputs_worst_first(outputs), strict=True):
        figures = [figure.of(output) for figure in figures_of(outputs) if figure.head in heads(*outputs, width=width)]
        assert line.split()[-len(figures) :] == figures


def test_a_narrow_table_keeps_eight_columns_for_names():
    assert shown(*(with_(output, name=LONG) for output in ALL), width=40)[1].split()[0].startswith("a_name_")


def test_the_page_shows_the_same_figures():
    report = Report("a", "auto", "float16", "cuda", outputs={output.name: output for output in ALL})
    text = page([(report, None)])
    for figure in FIGURES:
        assert f'<th scope="col" class="n">{figure.head}</th>' in text
    assert '<td class="n" data-k="100.0">100%</td>' in text
    assert '<td class="n bad-text" data-k="1.0">1</td>' in text
    alone = page([(Report("a", "auto", "float16", "cuda", outputs={"y": FLOATS}), None)])
    assert [head for head in re.findall(r'<th scope="col" class="n">([^<]+)</th>', alone) if head != "nodes"] == [
        *("max abs", "relative", "SNR dB", "cosine"),
        *("elements", "samples"),
    ]


def test_a_notebook_shows_them_too():
    report = Report("a", "auto", "float16", "cuda", outputs={"y": with_(top1=0.5, top5=1.0)})
    assert "<th>top-1</th><th>top-5</th>" in report._repr_html_()
    assert "<td>50%</td><td>100%</td>" in report._repr_html_()


def test_excused_labels_are_not_the_worst():
    outputs = [with_(LABELS, mismatched=3, excused=3), with_(LABELS, name="z", mismatched=1), FLOATS]
    assert [output.name for output in outputs_worst_first(outputs)] == ["z", "y", "label"]
