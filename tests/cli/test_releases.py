"""`amp-transpile debug --ort OLD NEW`: the options, the exit status, and the forms of the result."""

import dataclasses
import json
import sys
import types

import pytest

from amp_transpiler.cli import main
from amp_transpiler.cli.debug_options import parse_debug
from tests.report.release_differences import CASES, NOTHING, TABLES

ENGINE = "amp_transpiler.diagnosis.releases.compare"


@pytest.fixture
def engine(monkeypatch):
    """Put an engine in place that returns what a test says, and notes how it is called."""
    calls = []

    def compare_releases(*arguments, **keywords):
        calls.append((arguments, keywords))
        return stand_in.difference

    stand_in = types.SimpleNamespace(calls=calls, difference=TABLES)
    module = types.ModuleType(ENGINE)
    module.compare_releases = compare_releases
    monkeypatch.setitem(sys.modules, ENGINE, module)
    return stand_in


DEFAULTS = {
    "ort": ("1.24", "1.31"),
    "inputs": None,
    "python": (),
    "dtype": None,
    "level": "O2",
    "target": "cuda",
    "device": "H100",
    "tolerance": None,
}

# Arguments -> those that differ from the defaults.
CALLS = {
    "behind the model": (["a.onnx", "--ort", "1.24", "1.31"], {}),
    "before the model": (["--ort", "1.24", "1.31", "a.onnx"], {}),
    "patches": (["a.onnx", "--ort", "1.24.4", "1.31.1"], {"ort": ("1.24.4", "1.31.1")}),
    "in one word": (["a.onnx", "--ort=1.24,1.31"], {}),
    "interpreters": (["a.onnx", "--ort", "1.24", "1.31", "--python", "p", "q"], {"python": ("p", "q")}),
    "an interpreter twice": (
        ["--python", "p", "--python", "q", "--ort", "1.24", "1.31", "a.onnx"],
        {"python": ("p", "q")},
    ),
    "options": (
        ["a.onnx", "--ort", "1.24", "1.31", "--dtype", "bfloat16", "--level", "O1", "--target", "any"],
        {"dtype": "bfloat16", "level": "O1", "target": "any"},
    ),
    "a tolerance": (["a.onnx", "--ort", "1.24", "1.31", "--tolerance", "1%"], {"tolerance": 0.01}),
}


@pytest.mark.parametrize("case", CALLS)
def test_the_options_reach_the_engine(case, models, engine):
    arguments, changes = CALLS[case]
    main(["debug", *arguments])
    assert engine.calls == [(("a.onnx", None), {**DEFAULTS, **changes})]


def test_one_release_is_followed_by_the_models():
    for model in ("a.onnx", "./1.31", "1.31"):
        options = parse_debug(["--ort", "1.24", model] if model != "1.31" else ["--ort", "1.24", "--", model])
        assert (options.ort, options.releases, options.float32) == ("1.24", None, model)


@pytest.mark.parametrize("case", CASES)
def test_the_status_says_whether_something_changes(case, models, engine, capsys):
    engine.difference = CASES[case][0]
    assert main(["debug", "a.onnx", "--ort", "1.24", "1.31"]) == int(engine.difference.something_changes)
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.strip()
    assert "\x1b" not in said.out


def test_reports_are_written(models, engine, capsys):
    main(["debug", "a.onnx", "--ort", "1.24", "1.31", "--report", "d.html", "--json", "d.json"])
    record = json.loads((models / "d.json").read_text())
    assert record["placement"][0]["node"] == TABLES.placement[0].node
    assert record["something_changes"] is True
    assert (models / "d.html").read_text().startswith("<!doctype html>")
    capsys.readouterr()
    main(["debug", "a.onnx", "--ort", "1.24", "1.31", "--json", "-"])
    assert json.loads(capsys.readouterr().out)["old"] == "1.24"


FAULTS = {
    "interpreters of one release": (["a.onnx", "--python", "p"], "--python names interpreters of two releases"),
    "a cure": (["a.onnx", "--ort", "1.24", "1.31", "--fix", "b.onnx"], "drop them"),
    "no cure": (["a.onnx", "--ort", "1.24", "1.31", "--no-cure"], "drop them"),
    "tolerances": (["a.onnx", "--ort", "1.24", "1.31", "--tolerance", "y=1%"], "--tolerance is one number"),
    "a report over the model": (["a.onnx", "--ort", "1.24", "1.31", "--report", "a.onnx"], "is also a.onnx"),
    "models behind interpreters": (["--ort", "1.24", "1.31", "--python", "p", "a.onnx"], "FLOAT32"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_is_wrong_is_said_in_a_line(case, models, engine, capsys):
    arguments, expected = FAULTS[case]
    assert main(["debug", *arguments]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1
    assert engine.calls == []


def test_the_text_fits_a_terminal(models, engine, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for difference, _ in CASES.values():
        engine.difference = dataclasses.replace(difference, source="a.onnx")
        main(["debug", "a.onnx", "--ort", "1.24", "1.31"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    engine.difference = NOTHING
    assert main(["debug", "a.onnx", "--ort", "1.24", "1.31"]) == 0


def test_without_a_stand_in(models, capsys):
    assert main(["debug", "a.onnx", "--ort", "1.30", "1.31"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith("Nothing changes between ONNX Runtime 1.30 and 1.31 by the tables.")
