"""The parts of the page that show errors, times, ranges, casts and the graph."""

import dataclasses
import html
import io
import math
import re
import shutil
import subprocess

import numpy as np
import pytest
from rich.console import Console

import amp_transpiler as amp
from amp_transpiler.report import DecisionRow, FrontierPoint, PredictedTimes, Report
from amp_transpiler.report.as_html import page
from amp_transpiler.report.frontier_chart import frontier_chart
from amp_transpiler.report.headline import headline, predicted_words, slower_words
from amp_transpiler.report.page_table import Cell
from amp_transpiler.report.picture import MOST_NODES, graphs_of, levels_of
from amp_transpiler.report.sections import (
    casts_table,
    costly_table,
    frontier_table,
    nodes_table,
    sources_table,
    times_table,
)
from amp_transpiler.report.table import summary
from amp_transpiler.report.text_table import text_table
from amp_transpiler.report.wording import human_time
from amp_transpiler.report.worst import costliest_fp32, squared_error_shares, worst_sources
from tests.report.large_report import POINTS, deep_model, dressed, large_report
from tests.support import array, chain, parse


@pytest.fixture(scope="module")
def report():
    return large_report(2)


def cells(table, head):
    column = [name for name, _ in table.heads].index(head)
    return [row[column].text for row in table.rows]


def plain(text):
    """Return the text of a page without tags, style and script."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


EMPTY = Report("a.onnx", "auto", "float16", "cuda", device="H100", low_nodes=3, high_nodes=1, casts=2)

PAYS = "; it pays from batch 8 on"

# Changes of a report -> its headline, and what is said if it is slower than fp32.
SENTENCES = {
    "nothing known": ({}, "3 of 4 float nodes run in float16, with 2 casts.", ""),
    "one cast": ({"casts": 1}, "3 of 4 float nodes run in float16, with 1 cast.", ""),
    "a copy": ({"is_copy": True}, "The result is a copy of the source: nothing was changed.", ""),
    "faster": (
        {"times": PredictedTimes(3.0, 1.5)},
        "3 of 4 float nodes run in float16, with 2 casts; predicted 1.5 ms instead of 3 ms on H100 (2 times as fast).",
        "",
    ),
    "slower": (
        {"times": PredictedTimes(1.0, 1.25, "batch 8")},
        (
            "3 of 4 float nodes run in float16, with 2 casts; predicted 1.25 ms instead of 1 ms on H100 "
            "(1.25 times as slow)."
        ),
        "predicted slower than float32 at these shapes on H100: 1.25 ms instead of 1 ms (25% more)" + PAYS,
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_the_first_sentence(case):
    changes, expected, slower = SENTENCES[case]
    page_report = dataclasses.replace(EMPTY, **changes)
    assert (headline(page_report), slower_words(page_report)) == (expected, slower)
    assert expected in plain(page([(page_report, None)]))
    assert slower in plain(page([(page_report, None)])).replace("Predicted", "predicted")
    assert slower in page_report._repr_html_()


@pytest.mark.parametrize("after", [0.995, 1.0, 1.005])
def test_times_that_hardly_differ_are_equal(after):
    page_report = dataclasses.replace(EMPTY, times=PredictedTimes(1.0, after))
    assert predicted_words(page_report) == f"{human_time(after)} on H100, as in float32"
    assert slower_words(page_report) == ""


def test_the_first_sentence_names_the_worst_output(report):
    assert headline(report).endswith("the worst output is off by 0.04%.")
    bad = dataclasses.replace(report.outputs["logits"], relative=math.nan)
    assert headline(dataclasses.replace(report, outputs={"y": bad})).endswith("off by inf.")


def test_times_of_which_one_is_not_known_are_not_compared():
    for times in ((None, 1.0), (1.0, None), (None, None)):
        assert predicted_words(dataclasses.replace(EMPTY, times=PredictedTimes(*times))) == ""


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.0, "0 µs"), (0.0125, "12.5 µs"), (1.0, "1 ms"), (1.8349, "1.83 ms"), (999.0, "999 ms"), (2400.0, "2.4 s")],
)
def test_times(milliseconds, text):
    assert human_time(milliseconds) == text


ROWS = tuple(
    DecisionRow(f"n{i}", "Add", precision, "why", error=error, milliseconds_fp32=time)
    for i, (precision, error, time) in enumerate(
        [("low", 0.03, 9.0), ("low", 0.04, 8.0), ("high", 0.5, 1.0), ("high", None, 2.0), ("low", None, 7.0)]
    )
)


def test_the_worst_come_first_and_only_low_nodes_spoil_the_result():
    page_report = dataclasses.replace(EMPTY, decisions=ROWS)
    assert [row.name for row in worst_sources(page_report.decisions)] == ["n1", "n0"]
    assert [row.name for row in costliest_fp32(page_report.decisions)] == ["n3", "n2"]
    shares = squared_error_shares(page_report.decisions)
    assert shares == {"n0": pytest.approx(0.36), "n1": pytest.approx(0.64)}
    assert cells(sources_table(page_report), "error") == ["4%", "3%"]
    assert cells(costly_table(page_report), "in float32") == ["2 ms", "1 ms"]


def test_nodes_that_overflow_share_all_of_the_error():
    rows = tuple(
        DecisionRow(f"n{i}", "Add", "float16", "", error=error) for i, error in enumerate([math.inf, 1.0, math.inf])
    )
    page_report = dataclasses.replace(EMPTY, decisions=rows)
    assert squared_error_shares(page_report.decisions) == {"n0": 0.5, "n1": 0.0, "n2": 0.5}
    assert [row.name for row in worst_sources(page_report.decisions)] == ["n0", "n2", "n1"]
    assert 'data-k="Infinity">inf<' in page([(page_report, None)])


@pytest.mark.parametrize("error", [1e-300, 1e300])
def test_shares_of_errors_of_any_size(error):
    rows = tuple(DecisionRow(f"n{i}", "Add", "float16", "", error=error) for i in range(4))
    assert set(squared_error_shares(rows).values()) == {0.25}


@pytest.mark.parametrize(
    ("key", "text"),
    [(None, ""), (2, "2"), (0.5, "0.5"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "")],
)
def test_a_script_reads_the_number_that_a_cell_sorts_by(key, text):
    assert Cell("x", key=key).sorts_by == text


def test_ten_are_enough(report):
    assert len(sources_table(report).rows) == len(costly_table(report).rows) == 10


def test_the_table_of_nodes_has_a_column_for_what_is_known(report):
    bare = dataclasses.replace(EMPTY, decisions=(DecisionRow("n", "Add", "float16", "why"),))
    assert [head for head, _ in nodes_table(bare).heads] == ["precision", "operator", "node", "reason"]
    heads = [head for head, _ in nodes_table(report).heads]
    assert heads[4:8] == ["error", "largest value", "becomes zero", "moves"]
    assert heads[8:] == ["predicted", "in float32", "bound by", "to change it"]
    assert cells(nodes_table(report), "largest value")[1] == "3 in sample 1"
    assert cells(nodes_table(report), "becomes zero")[:2] == ["-", "1%"]
    assert nodes_table(report).filters == ("float16", "float32")


def test_casts_are_listed_with_their_neighbours(report):
    table = casts_table(report)
    assert len(table.rows) == report.casts
    assert "x" in cells(table, "value")
    assert "input or weight" in cells(table, "made by")
    assert "Where the casts are" in page([(report, None)])


def test_a_link_leads_to_an_anchor_that_is_there(report):
    text = page([(report, None), (report, "failed")])
    anchors = re.findall(r'id="([^"]+)"', text)
    assert len(anchors) == len(set(anchors))
    assert {*re.findall(r'href="#([^"]+)"', text)} <= set(anchors)


def test_every_node_has_a_box_and_every_box_says_its_precision():
    report = large_report(4)
    levels = levels_of(report, "m1")
    pictures = "".join(level.svg for level in _all(levels))
    nodes = re.findall(r'class="box (low|high|cast|untouched)', pictures)
    graph = report.program.outline()
    assert len(nodes) == len(graph.nodes)
    assert nodes.count("low") == report.low_nodes
    assert nodes.count("high") == report.high_nodes
    assert nodes.count("cast") == report.casts
    assert f"{report.low_nodes} float16, {report.high_nodes} float32, {report.casts} casts" in levels[0].summary
    assert ">float16</text>" in pictures
    assert len(levels[0].levels) == 4


def _all(levels):
    for level in levels:
        yield level
        yield from _all(level.levels)


def test_an_edge_joins_what_reads_with_what_makes_and_inner_edges_are_drawn_inside():
    levels = levels_of(large_report(4), "m1")
    outer = levels[0].svg
    assert outer.count('class="edge') == outer.count("<path")
    assert "layer.3" in outer
    assert ">Softmax</text>" not in outer
    assert ">x</text>" in outer
    assert ">y</text>" in outer


def test_bodies_have_pictures_of_their_own():
    model = parse("""(float[2,4] x, bool c) => (float[2,4] y)
    {
        a = MatMul(x, w)
        y = If (c) <then_branch = t () => (float[2,4] p) { p = Exp(a) },
                    else_branch = e () => (float[2,4] q) { q = Abs(a) }>
    }""", w=array(4, 4))  # fmt: skip
    report = amp.transpile(model, level="O1", verify=False)
    titles = [level.title for level in levels_of(report, "m1")]
    assert len(titles) == 3
    assert titles[0] == "the graph"
    assert {title.rpartition("/")[2] for title in titles[1:]} == {"then_branch", "else_branch"}


def test_a_report_from_another_process_has_the_same_picture(report):
    sent = dataclasses.replace(report, program=None, graphs=graphs_of(report.program))
    assert levels_of(sent, "m1") == levels_of(report, "m1") != ()
    assert levels_of(dataclasses.replace(report, program=None), "m1") == ()


@pytest.mark.slow
def test_a_huge_graph_is_not_drawn_but_listed():
    report = amp.transpile(deep_model(MOST_NODES // 50), level="O0", verify=False)
    assert levels_of(report, "m1") == ()
    assert len(nodes_table(report).rows) == len(report.decisions)


def test_error_colours_are_offered_where_errors_are_known(report):
    assert 'class="by-error"' in page([(report, None)])
    bare = dataclasses.replace(
        report, decisions=tuple(dataclasses.replace(row, error=None) for row in report.decisions)
    )
    assert 'class="by-error"' not in page([(bare, None)])


def test_the_frontier_is_a_picture_and_a_table(report):
    assert cells(frontier_table(report), "error") == ["0%", "0.01%", "0.1%", "0.3%"]
    assert cells(frontier_table(report), "point") == ["", "", "chosen", ""]
    assert cells(frontier_table(report), "known by") == ["measured", "predicted", "measured", "predicted"]
    chart = frontier_chart(POINTS, "float16")
    assert (chart.count('class="measured"'), chart.count('class="predicted"'), chart.count('class="ring"')) == (2, 2, 1)
    circles = [tuple(map(float, place)) for place in re.findall(r'edicted" cx="([\d.]+)" cy="([\d.]+)"', chart)]
    assert circles[0] > circles[1], "a faster point is further left"
    assert circles[0][1] > circles[1][1], "a larger error is higher up"


ODD = {
    "one point": [FrontierPoint(0.01, 1.0, 1.0, 0)],
    "no errors": [FrontierPoint(0.0, 1.0, 0.0, 0), FrontierPoint(0.0, 2.0, 1.0, 0)],
    "no times": [FrontierPoint(0.0, None, 0.0, 0), FrontierPoint(0.1, None, 1.0, 0)],
    "errors of many sizes": [FrontierPoint(10.0**-exponent, exponent, 0.5, 0) for exponent in range(1, 20)],
    "infinite": [FrontierPoint(math.inf, 1.0, 1.0, 0), FrontierPoint(0.1, 1.0, 1.0, 0)],
}


@pytest.mark.parametrize("case", ODD)
def test_every_frontier_can_be_drawn(case):
    chart = frontier_chart(ODD[case], "float16")
    places = [float(number) for number in re.findall(r'c[xy]="([^"]+)"', chart)]
    assert all(0 <= place <= 720 for place in places)
    assert chart.count('class="grid"') <= 6
    assert ("below 0.0001%" in chart) == (case == "errors of many sizes")
    assert ("share of float16 nodes" in chart) == (case == "no times")


def test_hostile_names_are_text_in_every_part():
    name = "<script>alert('x')</script>\x1b/</title>"
    model = deep_model(1)
    for node in model.graph.node:
        node.name = f"{name}{node.name}"
    report = dressed(amp.transpile(model, level="O1", verify=False))
    text = page([(report, None)])
    assert text.count("<script>") == 1
    assert "\x1b" not in text
    assert "alert('x')" not in text
    assert "\x1b" not in report._repr_html_()
    assert "<script>" not in report._repr_html_()


def test_a_notebook_folds_what_is_long(report):
    text = report._repr_html_()
    assert text.count("<details>") == 3
    for expected in ("What adds most to the error", "Where float32 takes most time", "What else could be chosen"):
        assert f"<summary>{expected}</summary>" in text
    assert "predicted 1.9 ms instead of 3.1 ms on H100" in plain(text)
    assert "<script" not in text
    assert len(text) < 12_000


def test_the_frontier_in_the_terminal(report):
    file = io.StringIO()
    Console(file=file, width=80).print(text_table(frontier_table(report)))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert lines[0] == ["point", "error", "known", "by", "predicted", "in", "float16", "casts"]
    assert lines[3] == ["chosen", "0.1%", "measured", "1.9", "ms", "90%", "5"]


def test_the_curve_of_the_summary_goes_from_the_largest_error_to_the_least(report):
    file = io.StringIO()
    Console(file=file, width=80).print(summary(report))
    lines = [line.strip() for line in file.getvalue().splitlines()]
    _, *curve = lines[lines.index("from the largest error to the least") + 1 :]
    assert [line.split()[0] for line in curve] == ["0.3%", "0.1%", "0.01%", "0%"]
    assert [line.endswith("<- chosen") for line in curve] == [False, True, False, False]


# what takes the time of rows (operator, milliseconds, bound): the table's rows
TIMES = {
    "one": ([("Conv", 2.0, "arithmetic")], [("Conv", "1", "2 ms", "100%", "arithmetic 100%")]),
    "two bounds": (
        [("Add", 3.0, "bytes"), ("Add", 1.0, "launch")],
        [("Add", "2", "4 ms", "100%", "bytes 75%, launch 25%")],
    ),
    "the longest first": (
        [("Add", 1.0, "launch"), ("Conv", 3.0, "bytes")],
        [("Conv", "1", "3 ms", "75%", "bytes 100%"), ("Add", "1", "1 ms", "25%", "launch 100%")],
    ),
    "some free": ([("Add", 0.0, ""), ("Relu", 1.0, "bytes")], [("Relu", "1", "1 ms", "100%", "bytes 100%")]),
    "not known": ([("Add", None, "")], []),
    "without nodes": ([], []),
}


@pytest.mark.parametrize("case", TIMES)
def test_times_by_operator_say_what_bounds_them(case):
    rows, expected = TIMES[case]
    decisions = tuple(
        DecisionRow(f"n{i}", op, "float16", "why", milliseconds=time, bound=bound)
        for i, (op, time, bound) in enumerate(rows)
    )
    timed = dataclasses.replace(EMPTY, decisions=decisions)
    assert [tuple(cell.text for cell in row) for row in times_table(timed).rows] == expected
    assert ("Predicted time by operator" in page([(timed, None)])) == bool(expected)


@pytest.mark.parametrize("options", [{}, {"frontier": True}, {"level": "O1"}, {"level": "O2"}, {"policy": "torch"}])
@pytest.mark.parametrize(
    ("model", "dims", "bound"),
    [
        (chain("Relu ({})"), {}, "launch"),
        (chain("Relu ({})", shape="float[N, 4]"), {"N": 100_000_000}, "bytes"),
        (
            chain("MatMul ({}, w)", shape="float[N, 4096]", w=np.zeros((4096, 4096), np.float32)),
            {"N": 100_000},
            "arithmetic",
        ),
    ],
)
def test_what_bounds_a_node_follows_from_its_work(model, dims, bound, options):
    report = amp.transpile(model, verify=not dims, dims=dims, **options)
    assert [row.bound for row in report.priced_decisions()] == [bound]
    assert report.priced_decisions() is report.decisions
    assert "Predicted time by operator" in page([(report, None)])
    assert None not in report.predicted_ms


@pytest.mark.parametrize("options", [{"target": "cpu"}, {"target": "tensorrt"}, {"level": "O0"}, {"dtype": "float32"}])
def test_without_prices_no_node_has_a_time(options):
    report = amp.transpile(chain("Relu ({})"), verify=False, **options)
    assert [(row.milliseconds, row.bound) for row in report.decisions] == [(None, "")]
    assert report.predicted_ms == (None, None)
    assert "Predicted time by operator" not in page([(report, None)])


LONG = "/model/backbone/stages.3/blocks.11/attention/query_key_value/projection/MatMul"


@pytest.mark.parametrize("name", [LONG, LONG * 3, "n" * 41, "n" * 40, "short"])
def test_a_long_name_is_whole_in_the_page_and_takes_no_more_room_than_others(name):
    text = page([(dataclasses.replace(EMPTY, decisions=(DecisionRow(name, "MatMul", "float16", "why"),)), None)])
    title = f' title="{name}"' if len(name) > 40 else ""
    assert f"<code{title}><bdi>{name}</bdi></code>" in text
    assert "text-overflow: ellipsis" in text


def test_the_graph_has_tools_that_show_up_with_the_script():
    converted = amp.transpile(chain("Relu ({})"), verify=False)
    text = page([(converted, None)])
    assert '<form class="tools" hidden>' in text
    script = text.split("<script>")[1]
    for part in ("makePicture", "wheel", "mousedown", "scrollTo", '"found"', "zoom("):
        assert part in script
    assert '<form class="tools"' not in page([(EMPTY, None)])  # nothing is drawn


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_script_is_javascript(tmp_path):
    (tmp_path / "page.js").write_text(page([(EMPTY, None)]).split("<script>")[1].split("</script>")[0])
    subprocess.run(["node", "--check", tmp_path / "page.js"], check=True)
