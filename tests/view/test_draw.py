"""`program.draw`: before and after side by side, as SVG that parses, with and without graphviz."""

import os
import stat
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import static
from amp_transpiler.errors import InputError, OptionError, OutputError
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.view.layout import lay_out
from tests.support import array, parse

SVG = "{http://www.w3.org/2000/svg}"
MODEL = "(float[n,4] x) => (float[n,4] y) { [first] h = MatMul (x, w) [soft] s = Softmax (h) y = Add (s, h) }"


def loaded():
    return amp.load(parse(MODEL, w=array(4, 4)))


@pytest.fixture(autouse=True)
def _without_graphviz(monkeypatch, tmp_path):
    """Tests draw without graphviz, wherever it is installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def drawn(program, folder, **options):
    """Return the boxes of a drawing: (class, label, first line of the title), and the texts of its heads."""
    program.draw(folder / "before_after.svg", **options)
    return parsed((folder / "before_after.svg").read_text(encoding="utf-8"))


def parsed(text):
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert {"width", "height", "viewBox"} <= set(root.attrib)
    boxes = [
        (group.get("class"), group.find(f"{SVG}text").text, group.find(f"{SVG}title").text.splitlines()[0])
        for group in root.iter(f"{SVG}g")
        if group.get("class")
    ]
    heads = [text.text for text in root.iter(f"{SVG}text") if text.get("font-size") == "15"]
    return boxes, heads


def test_a_converted_model_shows_both_sides(tmp_path):
    program = loaded()
    amp.cast_model_to_fp16(program, level="O1")
    boxes, heads = drawn(program, tmp_path)
    assert heads == [
        "before: 3 nodes, 0 in lower precision, 0 casts",
        "after: 5 nodes, 1 in lower precision, 2 casts",
    ]
    left, right = boxes[: len(boxes) - 7], boxes[-7:]
    assert [kind for kind, _, _ in left] == ["value", "float32", "float32", "float32", "value"]
    assert [label for _, label, _ in right] == [
        "x", "Cast to float16", "MatMul", "Cast to float32", "Softmax", "Add", "y",
    ]  # fmt: skip
    assert [kind for kind, _, _ in right[1:4]] == ["cast", "low", "cast"]
    assert right[2][2] == "MatMul first"


def test_every_shape_has_a_title_and_lies_in_the_picture(tmp_path):
    program = loaded()
    amp.cast_model_to_fp16(program)
    program.draw(tmp_path / "a.svg")
    root = ET.parse(tmp_path / "a.svg").getroot()
    width, height = float(root.get("width")), float(root.get("height"))
    paths = list(root.iter(f"{SVG}path"))
    assert len(paths) > 8
    assert all(path.find(f"{SVG}title").text for path in paths)
    for panel in root.iter(f"{SVG}g"):
        if shift := panel.get("transform"):
            dx, dy = map(float, shift.removeprefix("translate(").removesuffix(")").split())
            for box in panel.iter(f"{SVG}rect"):
                assert 0 <= dx + float(box.get("x")) <= width - float(box.get("width"))
                assert 0 <= dy + float(box.get("y")) <= height - float(box.get("height"))


WAYS = {
    "transpile": lambda model: amp.transpile(model, level="O2", verify=False).program,
    "transpile, verified": lambda model: amp.transpile(model, prefer="size").program,
    "autocast": amp.autocast,
    "convert_model": amp.convert_model,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_keeps_what_was_before(way, tmp_path):
    _, heads = drawn(WAYS[way](parse(MODEL, w=array(4, 4))), tmp_path)
    assert [head.partition(":")[0] for head in heads] == ["before", "after"]
    assert heads[0].startswith("before: 3 nodes, 0 in lower")


def test_a_report_draws_too(tmp_path):
    report = amp.transpile(parse(MODEL, w=array(4, 4)), verify=False, prefer="size")
    report.draw(tmp_path / "report.svg")
    assert len(parsed((tmp_path / "report.svg").read_text())[1]) == 2
    report.program = None
    with pytest.raises(InputError, match="nothing was converted"):
        report.draw(tmp_path / "report.svg")


def test_a_program_that_was_not_converted_is_drawn_alone(tmp_path):
    _, heads = drawn(loaded(), tmp_path)
    assert heads == ["program: 3 nodes, 0 in lower precision, 0 casts"]


def test_another_program_may_stand_on_the_left(tmp_path):
    converted = amp.transpile(parse(MODEL, w=array(4, 4)), level="O2", verify=False).program
    other = amp.load(parse("(float[4] a) => (float[4] b) { b = Exp (a) }"))
    boxes, _ = drawn(converted, tmp_path, before=other)
    assert [label for _, label, _ in boxes[:3]] == ["a", "Exp", "b"]


def trained():
    """The document's case: a program that is built, and decorated with pure fp16."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        with amp.fp16_guard():
            y = F.relu(static.nn.fc(x, 4))
        with amp.disable_amp():
            loss = F.mse_loss(y, x)
        amp.decorate(amp.optimizer.Adam(0.1, multi_precision=True), use_pure_fp16=True).minimize(loss, startup)
    return main


def test_minimize_on_a_built_program_can_be_drawn(tmp_path):
    main = trained()
    boxes, heads = drawn(main, tmp_path)
    assert heads[0].startswith("before: ")
    assert heads[0].endswith("0 in lower precision, 0 casts")
    assert {"low", "cast", "float32"} <= {kind for kind, _, _ in boxes}
    assert "fc_0.w_0" not in {label for _, label, _ in boxes}, "parameters are no inputs"
    whole, _ = drawn(main, tmp_path, whole=True)
    assert len(whole) > 2 * len(boxes)
    assert 'stroke-dasharray="4 2"' in (tmp_path / "before_after.svg").read_text(), "what a region keeps"


def test_what_is_kept_holds_no_weights():
    program = loaded()
    amp.cast_model_to_fp16(program)
    reached = [program.before]
    seen = set()
    while reached:
        item = reached.pop()
        assert not isinstance(item, np.ndarray)
        assert type(item).__module__.partition(".")[0] not in ("onnx_ir", "onnx", "numpy")
        if id(item) in seen or isinstance(item, str):
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            reached += [*item.keys(), *item.values()]
        elif isinstance(item, tuple):
            reached += item
        elif hasattr(item, "__slots__"):
            reached += [getattr(item, name) for name in item.__slots__]


def test_a_clone_can_be_drawn_the_same(tmp_path):
    program = loaded()
    amp.cast_model_to_fp16(program)
    assert drawn(program.clone(), tmp_path) == drawn(program, tmp_path)


def test_hostile_names_are_text(tmp_path):
    program = loaded()
    program.value("h").name = '<script>&"\x00\x1b\ud800'
    program.value("s").producer().name = "]]><!-- \n"
    program.touch()
    boxes, _ = drawn(program, tmp_path)
    assert len(boxes) == 5


def test_control_flow_is_one_box_that_reads_what_its_bodies_read(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x, bool c) => (float[2] y) {
        h = Exp(x)
        y = If(c) < then_branch = t () => (float[2] p) { p = Exp(h) },
                    else_branch = e () => (float[2] q) { q = Abs(h) } >
    }""")
    boxes, _ = drawn(amp.load(model), tmp_path)
    assert [(kind, label) for kind, label, _ in boxes] == [
        ("value", "x"), ("value", "c"), ("float32", "Exp"), ("other", "If"), ("value", "y"),
    ]  # fmt: skip
    text = (tmp_path / "before_after.svg").read_text()
    assert text.count("<title>h: float32[2]</title>") == 1


def test_a_large_program_is_cut(tmp_path):
    calls = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(60))
    program = amp.load(parse(f"(float[4] v0) => (float[4] v60) {{ {calls} }}"))
    boxes, heads = drawn(program, tmp_path, limit=10)
    assert len(boxes) == 11
    assert heads[0].endswith("the first 10 drawn")
    assert len(drawn(program, tmp_path, limit=None)[0]) == 62


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("a.png", OptionError, r"\.svg file, or \.dot"),
        ("nowhere/a.svg", OutputError, "cannot be written: No such file"),
    ],
)
def test_a_file_that_cannot_be(name, error, message, tmp_path):
    with pytest.raises(error, match=message):
        loaded().draw(tmp_path / name)
    assert not (tmp_path / name).exists()


# ---- graphviz ----


def test_the_language_of_graphviz(tmp_path):
    program = loaded()
    amp.cast_model_to_fp16(program, level="O1")
    program.draw(tmp_path / "a.dot")
    text = (tmp_path / "a.dot").read_text()
    assert text.startswith("digraph program {")
    assert text.count("subgraph cluster_") == 2
    assert 'label="Cast to float16"' in text
    assert text.count("{") == text.count("}")


SCRIPTS = {
    # what stands for graphviz: (script, whether its drawing is taken)
    "works": ("#!/bin/sh\n/bin/cat > /dev/null; echo '<svg xmlns=\"http://www.w3.org/2000/svg\"/>'", True),
    "fails": ("#!/bin/sh\nexit 3", False),
    "is broken": ("no program", False),
}


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for graphviz")
@pytest.mark.parametrize("name", SCRIPTS)
def test_graphviz_draws_if_it_is_there_and_works(name, tmp_path):
    script, taken = SCRIPTS[name]
    dot = tmp_path / "bin" / "dot"
    dot.write_text(script)
    dot.chmod(dot.stat().st_mode | stat.S_IXUSR)
    loaded().draw(tmp_path / "a.svg")
    assert ("MatMul" not in (tmp_path / "a.svg").read_text()) is taken


# ---- notebooks ----


def test_a_notebook_shows_a_small_program_as_a_drawing_and_a_large_one_as_text():
    small = loaded()
    amp.cast_model_to_fp16(small)
    html = small._repr_html_()
    assert len(parsed(html.removeprefix('<div style="overflow:auto">').removesuffix("</div>"))[1]) == 2
    calls = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(400))
    large = amp.load(parse(f"(float[4] v0) => (float[4] v400) {{ {calls} }}"))._repr_html_()
    assert large.startswith("<pre>Program")
    assert "to_text()" in large
    assert "-&gt;" in large


# ---- places ----


def test_places_do_not_overlap_and_edges_go_down():
    edges = [(0, 2), (1, 2), (2, 3), (2, 4), (0, 4), (3, 5), (4, 5), (0, 5)]
    widths = [60.0, 80.0, 50.0, 70.0, 90.0, 40.0]
    places = lay_out(widths, edges, row=50, gap=10)
    assert all(places.places[target][1] > places.places[source][1] for source, target in edges)
    assert all(
        path[0] == places.places[s] and path[-1] == places.places[t]
        for path, (s, t) in zip(places.edges, edges, strict=True)
    )
    for i, (x, y) in enumerate(places.places):
        assert widths[i] / 2 - 1e-6 <= x <= places.width - widths[i] / 2 + 1e-6
        assert 0 < y < places.height
        for j, (other, level) in enumerate(places.places[:i]):
            assert level != y or abs(x - other) >= (widths[i] + widths[j]) / 2 + 10 - 1e-6


def test_many_long_edges_cost_no_more_than_a_few_places_each():
    count = 400
    edges = [(i, i + 1) for i in range(count - 1)] + [(i, i + 50) for i in range(count - 50)]
    places = lay_out([50.0] * count, edges, row=50, gap=10)
    assert len(places.edges) == len(edges)
    assert sum(map(len, places.edges)) < 20 * count


def test_an_empty_program_has_a_picture(tmp_path):
    boxes, heads = drawn(static.Program(), tmp_path)
    assert (boxes, heads) == ([], ["program: 0 nodes, 0 in lower precision, 0 casts"])
