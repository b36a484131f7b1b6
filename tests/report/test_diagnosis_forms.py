"""A diagnosis as text, as JSON and as a page: the answer first, nothing that controls a terminal or a browser."""

import collections.abc
import dataclasses
import html
import io
import json
import math
import re
import shlex
import types
import typing

import pytest
from rich.console import Console

import amp_transpiler as amp
from amp_transpiler.graph.user_patterns import compile_pattern
from amp_transpiler.precision.histogram import Histogram
from amp_transpiler.report.as_json import dump, plain
from amp_transpiler.report.diagnosis import Cure, Diagnosis, Fault
from amp_transpiler.report.diagnosis_chart import error_course
from amp_transpiler.report.diagnosis_page import diagnosis_page, every_node_table
from amp_transpiler.report.diagnosis_text import (
    FAULT_WORDS,
    answer,
    circumstances,
    cure_options,
    cure_words,
    diagnosis_text,
    path_words,
    something_is_wrong,
    suspects_table,
)
from amp_transpiler.report.picture import graphs_of
from tests.report.diagnoses import CASES, HOSTILE, LONG, NOTHING, OVERFLOW, diagnosis, of_many_nodes, row, suspect
from tests.support import parse


def text_of(record, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width, markup=False, highlight=False, emoji=False).print(diagnosis_text(record))
    return stream.getvalue()


def words_of(text):
    """Return the text of a page without tags, style and script."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def cells(table, head):
    column = [name for name, _ in table.heads].index(head)
    return [cells[column].text for cells in table.rows]


@pytest.mark.parametrize("case", CASES)
def test_the_first_sentence_answers_the_question(case):
    record, expected = CASES[case]
    said = answer(record)
    assert expected in said
    assert said.endswith(".")
    assert ".." not in said


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", [80, 120])
def test_the_text_fits_and_controls_nothing(case, width):
    text = text_of(CASES[case][0], width)
    assert max(map(len, text.splitlines())) <= width
    assert all(character.isprintable() for line in text.split("\n") for character in line)


@pytest.mark.parametrize("case", CASES)
def test_the_page_is_whole_and_its_names_are_text(case):
    record, _ = CASES[case]
    page = diagnosis_page(record)
    assert page.startswith("<!doctype html>")
    assert page.count("<script>") == 1
    assert all(character.isprintable() or character == "\n" for character in page)
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    said = words_of(page)
    if case != "hostile names":
        assert " ".join(answer(record).split()) in said
    assert ("verdict bad" in page) == something_is_wrong(record)
    assert f"Every result ({len(record.nodes)})" in said or not record.nodes


NUMBERS = ("Infinity", "-Infinity", "NaN")


def fits(value, form):
    """Whether plain JSON has the form that an annotation names."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if dataclasses.is_dataclass(form):
        hints = typing.get_type_hints(form)
        derived = {name for name, member in vars(form).items() if isinstance(member, property)}
        named = isinstance(value, dict) and set(value) == {*hints, *derived}
        return named and all(fits(value[name], hint) for name, hint in hints.items())
    if origin in (types.UnionType, typing.Union):
        return any(value is None if each is types.NoneType else fits(value, each) for each in arguments)
    if origin is tuple:
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if origin is collections.abc.Mapping:
        return isinstance(value, dict) and all(fits(item, arguments[1]) for item in value.values())
    if origin is typing.Literal:
        return value in arguments
    if form is float:
        return value in NUMBERS or (isinstance(value, int | float) and math.isfinite(value))
    return isinstance(value, form)


@pytest.mark.parametrize("case", CASES)
def test_json_has_the_form_of_the_record(case):
    record, _ = CASES[case]
    read = json.loads(dump(plain(record)))
    assert fits(read, Diagnosis)
    assert len(read["nodes"]) == len(record.nodes)
    assert read["notes"] == list(record.notes)


@pytest.mark.parametrize(
    ("field", "value"), [("passes", "3"), ("path", "a"), ("guilty", {}), ("error", "inf"), ("outputs", []), ("more", 1)]
)
def test_another_form_is_seen(field, value):
    assert not fits({**json.loads(dump(plain(OVERFLOW))), field: value}, Diagnosis)


def test_json_of_what_is_infinite():
    read = plain(OVERFLOW)
    assert (read["error"], read["excess"], read["guilty"]["contribution"]) == ("Infinity",) * 3
    assert read["nodes"][2]["smallest"] == "Infinity"
    assert read["nodes"][0]["histogram"] == {"lowest": -10, "counts": [1, 30, 5]}


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (OVERFLOW, True),
        (NOTHING, False),
        (CASES["kernel"][0], True),
        (CASES["nobody is guilty"][0], True),
        (dataclasses.replace(NOTHING, excess=math.nan), True),
        (dataclasses.replace(NOTHING, excess=1.0), False),
    ],
)
def test_whether_something_is_wrong(record, wrong):
    assert something_is_wrong(record) == wrong


def test_every_fault_has_words():
    assert set(FAULT_WORDS) == set(typing.get_args(Fault))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "converted to float16 for the diagnosis; 4 samples, 3 passes over them"),
        ({"low": "low.onnx", "samples": 1, "passes": 1}, "float16; 1 sample, one pass over it"),
        (
            {"given": False, "samples": 2},
            "converted to float16 for the diagnosis; 2 made-up samples, 3 passes over them",
        ),
    ],
)
def test_on_what_it_was_found(changes, expected):
    assert circumstances(dataclasses.replace(OVERFLOW, **changes)) == expected


PATHS = {
    "none": ((), ""),
    "a node that is no output": (("a",), "a"),
    "to an output": (("/layer3/Add", "/head/Gemm"), "/layer3/Add -> /head/Gemm -> output 'logits'"),
    "just short enough": (tuple("abcdef"), "a -> b -> c -> d -> e -> f"),
    "cut in the middle": (tuple("abcdefg"), "a -> b -> c -> ... 2 more ... -> f -> g"),
}


@pytest.mark.parametrize("case", PATHS)
def test_the_path_is_cut_in_its_middle(case):
    path, expected = PATHS[case]
    record = dataclasses.replace(OVERFLOW, path=path)
    assert path_words(record, ends=(3, 2)) == expected
    assert path_words(record).count(" -> ") == max(len(path) - 1, 0) + ("output" in expected)


@pytest.mark.parametrize(
    "name", ["/layer3/Add", HOSTILE, "a.b*(c)[d]{3}|e", "it's", "a\nb", "\x9b\x00\u2028z", "é\U0001f600", " "]
)
def test_an_option_of_the_cure_keeps_that_node_and_no_other(name):
    [option] = cure_options(Cure(nodes=(name,), error=0.0, excess=0.0, runs=1))
    assert option.isprintable()
    flag, pattern = shlex.split(option)
    assert flag == "--disable-amp"
    compiled = compile_pattern(pattern, flag)
    assert compiled.search(name)
    assert not any(compiled.search(other) for other in (f"{name}_1", f"x{name}", f"/{name}", ""))


def test_a_cure_without_nodes_is_a_conversion_as_it_is():
    words = cure_words(Cure(nodes=(), error=0.01, excess=0.5, runs=1))
    assert words.startswith("A conversion of the float32 model is right as it is: the largest error of an output is 1%")


def test_the_text_has_ten_suspects_and_all_of_them_are_on_the_page():
    many = of_many_nodes(60)
    text = text_of(many)
    assert "/layer0/node_8 " in text
    assert "/layer0/node_9" not in text
    assert "and 3 more (--json and --report have them all)" in text
    assert len(suspects_table(many).rows) == 13
    assert "its sum reaches 81,240" in words_of(diagnosis_page(many))


def test_a_long_name_is_whole_where_it_counts_and_else_its_end():
    text = text_of(CASES["long names"][0], 200)
    assert text.startswith(f"'{LONG}' (Add)")
    assert f"…{LONG[-41:]}_0 " in text
    assert f"-> …{LONG[-41:]}_1 ->" in text
    assert f"{LONG[1:]}_0$" in text.replace("\\", "")
    assert f"{LONG}_39" in words_of(diagnosis_page(CASES["long names"][0]))


def test_a_suspect_that_was_not_compared_has_no_own_error():
    record = dataclasses.replace(OVERFLOW, suspects=(*OVERFLOW.suspects, suspect("gone", "kernel", "it differs")))
    assert cells(suspects_table(record), "own error") == ["infinite", "0%", "-"]
    assert cells(suspects_table(record, reasons=True), "why")[2] == "it differs"


def test_an_error_of_the_finite_numbers_is_not_the_whole_error():
    rows = (
        row("/layer3/Add", 0, error=1e-8, own_error=1e-9, infinite=0.02, own_infinite=0.01),
        row("b", 1, infinite=1.0),
    )
    record = dataclasses.replace(OVERFLOW, nodes=rows)
    table = every_node_table(record)
    assert cells(table, "error") == ["infinite", "infinite"]
    assert cells(table, "own error") == ["infinite", "0%"]
    assert cells(table, "infinite") == ["2%", "100%"]
    assert cells(suspects_table(record), "own error")[0] == "infinite"
    assert "/layer3/Add (Add): error infinite, by itself infinite" in error_course(record)


def test_a_mended_model_is_named():
    assert "Written to out.onnx." in text_of(CASES["a mended model"][0])
    assert "--fix OUT.onnx writes" in text_of(OVERFLOW)
    assert "cure" not in text_of(CASES["no cure"][0])


def test_the_table_of_every_result():
    table = every_node_table(of_many_nodes(30))
    assert table.heads[0][0] == "precision"  # by which the page filters
    assert table.filters == ("float16", "float32")
    assert cells(table, "error")[15] == "infinite"
    assert cells(table, "adds")[:2] == ["-", "0.0001%"]
    assert "zero by itself" not in [head for head, _ in table.heads]  # nothing has it
    assert "result" not in [head for head, _ in table.heads]
    assert all("<svg" in cells[-1].picture for cells in table.rows)


def test_a_node_with_several_results_has_a_row_for_each():
    rows = (row("split", 0, value="a"), row("split", 0, value="b"), row("ids", 1, op="ArgMax", precision="int64"))
    table = every_node_table(dataclasses.replace(OVERFLOW, nodes=rows))
    assert cells(table, "result") == ["a", "b", "-"]
    assert table.rows[2][0].kind == "untouched"
    assert table.rows[0][0].kind == "low"


def test_suspects_lead_to_their_rows():
    page = diagnosis_page(OVERFLOW)
    assert 'href="#n1"' in page
    assert '<tr id="n1">' in page


def test_the_range_stands_beside_that_of_the_format():
    for dtype in ("float16", "bfloat16"):
        page = diagnosis_page(diagnosis("overflow", "too large", dtype=dtype))
        assert f"{dtype} has normal numbers from" in page
        assert "largest.</p>" in page


COURSES = {
    "nothing compared": ((), 0),
    "no error": ((row("a", 0), row("b", 1)), 0),
    "one node": ((row("a", 0, error=0.1, own_error=0.1),), 2),
    "no finite error": ((row("a", 0, error=math.inf, own_error=math.nan), row("b", 1)), 3),
    "the least numbers": ((row("a", 0, error=1e-300), row("b", 1, error=5e-324, own_error=1e300)), 3),
}


@pytest.mark.parametrize("case", COURSES)
def test_the_picture_of_errors(case):
    nodes, dots = COURSES[case]
    svg = error_course(dataclasses.replace(OVERFLOW, nodes=nodes))
    assert svg.count("<circle") == dots
    assert "nan" not in svg.replace("NaN", "")
    assert bool(svg) == bool(dots)


def test_the_picture_marks_the_guilty_node_and_its_path():
    svg = error_course(of_many_nodes(300))
    assert svg.count('class="ring"') == 1
    assert svg.count('class="error path"') == 9
    assert ">guilty</text>" in svg
    assert ">infinite</text>" in svg
    assert "/layer15/node_150 (Conv): error infinite, by itself infinite" in svg


def test_the_picture_of_many_nodes_is_small_and_has_the_worst_ones():
    svg = error_course(of_many_nodes(9000))
    assert svg.count("<circle") < 2500
    assert "/layer450/node_4500 (" in svg


def test_the_guilty_node_is_in_the_picture_without_a_path_and_among_worse_ones():
    nodes = tuple(row(f"n{number}", number, error=math.nan if number % 2 else 0.5) for number in range(3000))
    guilty = suspect("n1002", "kernel", "it differs")
    svg = error_course(dataclasses.replace(OVERFLOW, nodes=nodes, path=(), guilty=guilty))
    assert svg.count('class="ring"') == 1
    assert "n1002 (Add): error 50%" in svg
    assert svg.count("error NaN") == 600


def test_the_picture_has_no_path_where_there_is_none():
    svg = error_course(dataclasses.replace(OVERFLOW, path=(), guilty=None))
    assert "<path" not in svg
    assert "ring" not in svg


def test_a_histogram_of_what_is_beyond_the_format_is_drawn():
    record = dataclasses.replace(OVERFLOW, nodes=(row("a", 0, histogram=Histogram(20, (3, 1))),))
    assert 'class="beyond"' in every_node_table(record).rows[0][-1].picture


def chain_of_four():
    """Return the graph of four nodes that `diagnosis` is of, and a body-less node that it does not know."""
    model = parse(
        "(float[2,4] x) => (float[2,4] logits)"
        "{ [c] a = Relu(x)  [d] b = Add(a, a)  [e] c = Relu(b)  [f] d = Neg(c)  [g] logits = Abs(d) }"
    )
    names = ("/layer2/Conv", "/layer3/Add", "/layer4/Relu", "/head/Gemm", "unknown")
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return graphs_of(amp.load(model))


def test_the_graph_has_the_colours_of_the_errors():
    page = diagnosis_page(OVERFLOW, chain_of_four())
    boxes = re.findall(r'<g class="box ([^"]*)"><title>([^<]*)</title>', page)
    kinds = {title.split("&#10;")[0].split(" ", 1)[1]: kind for kind, title in boxes}
    assert kinds["/layer2/Conv"] == "low e1"
    assert kinds["/layer3/Add"] == "low e5 guilty"
    assert kinds["/layer4/Relu"] == "low e5 on-path"
    assert kinds["/head/Gemm"] == "high e5 on-path"
    assert kinds["unknown"] == "high"
    assert "largest error infinite" in page
    assert "its sum reaches 81,240, and float16 ends at 65,504&#10;" in page
    assert '<a href="#n1"><g class="box low e5 guilty">' in page
    assert re.search(r'class="by-error" checked> by error', page)
    assert page.count(" checked>") == 1


def test_no_graph_is_drawn_where_none_is_known():
    assert "The float32 graph" not in diagnosis_page(OVERFLOW)


def test_integers_are_neither_low_nor_high_in_the_graph():
    record = dataclasses.replace(OVERFLOW, nodes=(row("/layer2/Conv", 0, precision="int64"),), guilty=None, path=())
    assert '<g class="box untouched">' in diagnosis_page(record, chain_of_four())


def test_rounding_is_no_fault_that_stands_out():
    table = every_node_table(dataclasses.replace(OVERFLOW, nodes=(*OVERFLOW.nodes, row("r", 9, fault="rounding"))))
    column = [head for head, _ in table.heads].index("what is wrong")
    assert [cells[column].kind for cells in table.rows] == ["", "bad-text", "", "", ""]


def test_a_device_is_beside_the_emulation_in_every_form():
    record = CASES["a run on a device"][0]
    said = "Run as written and fused on NVIDIA H100, 40 results compared with the emulation: 2 kernels depart from it."

    assert said in " ".join(text_of(record).split())
    assert said in words_of(diagnosis_page(record))
    assert "25% infinite or NaN" in text_of(record, 200)
    assert json.loads(dump(plain(record)))["on_device"]["departures"][1]["infinite"] == 0.25


def test_a_device_that_agrees_has_no_table():
    said = text_of(CASES["a device that agrees"][0], 200)
    assert "compared with the emulation: all agree." in said
    assert "kernel" not in said


def test_another_format_is_a_cure():
    record = CASES["another format"][0]
    said = "Many roundings add up, and a conversion to float16 holds as it is: the largest error of an output is 0.1%"
    assert said in " ".join(text_of(record).split())
    assert "--dtype float16" in text_of(record)
    assert "--dtype float16" in words_of(diagnosis_page(record))


def test_powers_of_two_are_a_cure():
    record = CASES["powers of two"][0]
    said = "If 'w' by 2^-7, 'eps of norm' by 2^-14 are scaled, which changes no float32 result, and these 2 nodes stay"
    assert said in " ".join(text_of(record).split())
    assert said in words_of(diagnosis_page(record))
    assert json.loads(dump(plain(record)))["cure"]["rescaled"] == {"w": -7, "eps of norm": -14}
