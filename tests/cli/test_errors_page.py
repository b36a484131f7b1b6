"""`docs/errors.md` lists every error, and every error ends with a link to its topic there."""

import pathlib
import pickle
import re
import tomllib
import traceback
import urllib.parse
import urllib.request

import pytest

import amp_transpiler as amp
from amp_transpiler import errors, static
from amp_transpiler.cli.command import main
from amp_transpiler.errors import PAGE, AmpError, OptionError, help_link, topic_of, topics
from errors_page.page import page
from errors_page.provocations import provocations, unprovoked
from errors_page.raised import PACKAGE, listed
from errors_page.shipped import shipped

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SHIPPED = ROOT / "amp_transpiler" / "errors.html"
ANCHORS = {
    re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
}


def test_the_page_is_written_from_the_source():
    assert page() == TEXT, "run python scripts/error_docs.py --write"
    assert shipped() == SHIPPED.read_text(encoding="utf-8"), "run python scripts/error_docs.py --write"


def test_the_link_leads_to_a_file_of_the_package_that_has_every_topic():
    assert pathlib.Path(urllib.request.url2pathname(urllib.parse.urlsplit(PAGE).path)) == SHIPPED
    assert set(re.findall(r'<h2 id="([^"]*)"', SHIPPED.read_text(encoding="utf-8"))) == ANCHORS
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert wheel == {"packages": ["amp_transpiler"]}  # all files in it


def test_every_message_has_a_topic():
    assert [row.key for row in listed() if topic_of(row.module, row.kind) not in ANCHORS] == []


def test_every_topic_is_one_of_the_page_and_has_messages():
    assert [topic["anchor"] for topic in topics() if topic["anchor"] not in ANCHORS] == []
    used = {topic_of(row.module, row.kind) for row in listed()}
    assert [topic["title"] for topic in topics() if topic["anchor"] not in used] == []


def test_every_module_of_a_topic_is_there():
    gone = []
    for topic in topics():
        for name in topic["modules"]:
            module, _, kind = name.partition("#")
            place = PACKAGE.joinpath(*module.split("."))
            gone += [] if place.is_dir() or place.with_suffix(".py").is_file() else [name]
            gone += [] if not kind or hasattr(errors, kind) else [name]
    assert gone == []


def test_every_class_is_on_the_page():
    kinds = [
        name
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type) and issubclass(kind, AmpError)
    ]
    assert [name for name in kinds if f"| `{name}` |" not in TEXT.split("##")[0]] == []


# What a user does -> the topic.
LINKS = {
    "reading-a-model": lambda: amp.load("gone.onnx"),
    "options": lambda: amp.transpile("gone.onnx", level="O7", prefer="size"),
    "names-operators-and-patterns": lambda: amp.AutoMixedPrecisionLists({"Relu"}, {"Relu"}),
    "programs-and-variables": lambda: static.data(3, [1]),
    "the-installation": lambda: amp.CUDAPlace(-1),
    "what-there-is-not": lambda: amp.paddle.grad([], []),
}


@pytest.mark.parametrize("topic", LINKS)
def test_an_exception_ends_with_the_link(topic):
    with pytest.raises(AmpError) as caught:
        LINKS[topic]()
    assert caught.value.topic == topic in ANCHORS
    assert "".join(traceback.format_exception(caught.value)).endswith(f"\nSee {PAGE}#{topic}\n")
    assert PAGE not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "topic"),
    [
        (["gone.onnx"], "reading-a-model"),
        (["gone.onnx", "--level", "O7"], "options"),
        (["gone.onnx", "--opset", "x"], "options"),
        (["a.onnx", "b.onnx", "-o", "-"], "where-results-go"),
        (["gone.onnx", "--tolerance", "much"], "options"),
        (["diff", "gone.onnx", "gone.onnx"], "reading-a-model"),
        (["debug", "gone.onnx"], "reading-a-model"),
        (["debug", "gone.onnx", "--fix", "."], "where-results-go"),
        (["--check", "gone.onnx"], "options"),
    ],
)
def test_an_error_of_the_command_ends_with_the_link(arguments, topic, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert capsys.readouterr().err.endswith(f" ({PAGE}#{topic})\n")
    assert topic in ANCHORS


def test_a_bug_leads_to_the_topic_about_bugs():
    assert help_link(RuntimeError("no such luck")) == f"{PAGE}#a-bug-in-this-package"
    assert "a-bug-in-this-package" in ANCHORS


def test_an_error_raised_outside_of_the_package_leads_to_the_page():
    assert help_link(OptionError("mine")) == PAGE


def test_a_link_survives_a_process():
    with pytest.raises(AmpError) as caught:
        amp.load("gone.onnx")
    restored = pickle.loads(pickle.dumps(caught.value))
    assert (str(restored), restored.topic, restored.__notes__) == (
        str(caught.value),
        "reading-a-model",
        caught.value.__notes__,
    )


def test_every_message_is_provoked_by_a_test():
    """After new tests: pytest -p errors_page.provoked --provoked FILE, then scripts/error_docs.py --provoked FILE."""
    missing = unprovoked()
    assert not missing, "\n".join(missing)


def test_the_tests_that_provoke_messages_are_there():
    gone, sources = [], {}
    for test in sorted(set(provocations().values())):
        file, *_, name = test.split("::")
        if file not in sources:
            path = ROOT / file
            sources[file] = path.read_text(encoding="utf-8") if path.is_file() else ""
        gone += [] if f"def {name}(" in sources[file] or f"\n{name} = " in sources[file] else [test]
    assert gone == []
