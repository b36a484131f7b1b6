"""`amp-transpile debug`: with a stand-in for the engine that finds the guilty node, and a few with that engine."""

import dataclasses
import json
import pathlib
import shlex
import sys
import types

import pytest

from amp_transpiler.cli import main
from amp_transpiler.cli.completion import SHELLS, completion_script
from amp_transpiler.cli.debug_options import debug_parser
from amp_transpiler.errors import InputError
from amp_transpiler.report.diagnosis_text import something_is_wrong
from amp_transpiler.report.recipe import recipe_beside
from tests.page_files import overflowing_files
from tests.report.diagnoses import CASES, NOTHING, OVERFLOW

ENGINE = "amp_transpiler.diagnosis.debug"


@pytest.fixture
def engine(monkeypatch):
    """Put an engine in place that returns what a test says, and notes how it is called."""
    calls = []

    def debug(*arguments, **keywords):
        calls.append((arguments, keywords))
        if isinstance(stand_in.diagnosis, Exception):
            raise stand_in.diagnosis
        return stand_in.diagnosis

    stand_in = types.SimpleNamespace(calls=calls, diagnosis=OVERFLOW)
    module = types.ModuleType(ENGINE)
    module.debug = debug
    monkeypatch.setitem(sys.modules, ENGINE, module)
    if ENGINE.rpartition(".")[0] not in sys.modules:
        monkeypatch.setitem(sys.modules, ENGINE.rpartition(".")[0], types.ModuleType(ENGINE.rpartition(".")[0]))
    return stand_in


DEFAULTS = {
    "inputs": None,
    "dtype": None,
    "level": "O2",
    "target": "cuda",
    "ort": None,
    "device": "H100",
    "tolerance": None,
    "cure": True,
    "device_check": "no",
    "fix": None,
}

# Arguments -> those that differ from the defaults.
CALLS = {
    "nothing": ([], {}),
    "data": (["--inputs", "s.npz"], {"inputs": "s.npz"}),
    "a format": (["--dtype", "bfloat16"], {"dtype": "bfloat16"}),
    "a level": (["--level", "auto"], {"level": "auto"}),
    "a target": (
        ["--target", "any", "--ort", "1.20", "--device", "A100"],
        {"target": "any", "ort": "1.20", "device": "A100"},
    ),
    "a tolerance": (["--tolerance", "1%"], {"tolerance": 0.01}),
    "tolerances": (["--tolerance", "y=1%"], {"tolerance": "y=1%"}),
    "no cure": (["--no-cure"], {"cure": False}),
    "a run on the device": (["--device-check", "yes"], {"device_check": "yes"}),
    "a mended model": (["--fix", "out.onnx"], {"fix": pathlib.Path("out.onnx")}),
}


@pytest.mark.parametrize("case", CALLS)
def test_the_options_reach_the_engine(case, models, engine):
    arguments, changes = CALLS[case]
    main(["debug", *arguments, "a.onnx"])
    assert engine.calls == [(("a.onnx", None), {**DEFAULTS, **changes})]


def test_a_low_model_reaches_the_engine(models, engine):
    main(["debug", "a.onnx", "low.onnx"])
    assert engine.calls == [(("a.onnx", "low.onnx"), DEFAULTS)]


@pytest.mark.parametrize("case", CASES)
def test_the_status_says_whether_something_is_wrong(case, models, engine, capsys):
    engine.diagnosis = record = CASES[case][0]
    mended = record.cure is not None and record.cure.written is not None
    assert main(["debug", "a.onnx"]) == int(something_is_wrong(record) and not mended)
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.strip()
    assert "\x1b" not in said.out


# What the engine says -> the status with `--fix`, and what is said of it.
MENDED = {
    "written": (dataclasses.replace(OVERFLOW, cure=dataclasses.replace(OVERFLOW.cure, written="out.onnx")), 0, ""),
    "refused": (OVERFLOW, 1, "out.onnx is not written: the checks of a conversion refuse it"),
    "no cure": (CASES["no cure"][0], 1, "out.onnx is not written: there is no cure"),
    "nothing wrong": (NOTHING, 0, "out.onnx is not written: there is nothing to mend"),
}


@pytest.mark.parametrize("case", MENDED)
def test_the_status_where_a_mended_model_is_asked_for(case, models, engine, capsys):
    engine.diagnosis, status, expected = MENDED[case]
    assert main(["debug", "a.onnx", "--fix", "out.onnx"]) == status
    said = capsys.readouterr().err
    assert expected in said
    assert bool(said) == bool(expected)


def test_the_table_fits_a_terminal(models, engine, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main(["debug", "a.onnx"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("'/layer3/Add' (Add) is to blame: its sum reaches 81,240")


def test_reports_are_written(models, engine, capsys):
    assert main(["debug", "a.onnx", "--report", "d.html", "--json", "d.json"]) == 1
    assert "is to blame" in capsys.readouterr().out
    record = json.loads((models / "d.json").read_text())
    assert (record["guilty"]["node"], record["error"]) == ("/layer3/Add", "Infinity")
    assert "amp_transpiler" in record["versions"]
    page = (models / "d.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "The float32 graph" in page


def test_json_can_be_printed_in_place_of_the_table(models, engine, capsys):
    assert main(["debug", "a.onnx", "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out)["dtype"] == "float16"


FAULTS = {
    "no model": ([], "FLOAT32"),
    "three models": (["a.onnx", "low.onnx", "c.onnx"], "unrecognized"),
    "an unknown format": (["a.onnx", "--dtype", "float8"], "float16"),
    "an unknown level": (["a.onnx", "--level", "O0"], "auto"),
    "an unknown target": (["a.onnx", "--target", "abacus"], "cuda"),
    "no tolerance": (["a.onnx", "--tolerance", "much"], "--tolerance"),
    "an option of a conversion": (["a.onnx", "--black", "Add"], "--black"),
    "a cure that is not looked for": (["a.onnx", "--fix", "b.onnx", "--no-cure"], "drop one of them"),
    "a mended model over the source": (["a.onnx", "--fix", "a.onnx"], "choose another name"),
    "a mended model over the low one": (["a.onnx", "low.onnx", "--fix", "low.onnx"], "choose another name"),
    "a mended model on stdout": (["a.onnx", "--fix", "-"], "give the name of a file"),
    "a mended model without a folder": (["a.onnx", "--fix", "no/b.onnx"], "folder that exists"),
    "a mended model that is a folder": (["a.onnx", "--fix", "."], "give the mended model a name"),
    "a mended model without a name": (["a.onnx", "--fix", ""], "the name is empty"),
    "a recipe that is a folder": (["a.onnx", "--fix", "taken.onnx"], "taken.recipe.toml cannot be written"),
    "a report over the mended model": (["a.onnx", "--fix", "b.onnx", "--report", "b.onnx"], "written by --fix b.onnx"),
    "a report over the recipe": (["a.onnx", "--fix", "b.onnx", "--json", "b.recipe.toml"], "written by --fix b.onnx"),
    "a report over a model": (["a.onnx", "low.onnx", "--report", "low.onnx"], "is also low.onnx"),
    "two reports in one file": (["a.onnx", "--report", "d", "--json", "d"], "is also d"),
    "no folder": (["a.onnx", "--json", "no/d.json"], "folder that exists"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_is_wrong_is_said_in_a_line(case, models, engine, capsys):
    (models / "taken.recipe.toml").mkdir()
    arguments, expected = FAULTS[case]
    before = sorted(file.name for file in models.iterdir())
    assert main(["debug", *arguments]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1
    assert engine.calls == []
    assert sorted(file.name for file in models.iterdir()) == before


@pytest.mark.parametrize(("error", "status"), [(InputError("c.onnx: is not there"), 2), (ZeroDivisionError("bug"), 3)])
def test_what_the_engine_raises(error, status, models, engine, capsys):
    engine.diagnosis = error
    assert main(["debug", "a.onnx"]) == status
    assert str(error) in capsys.readouterr().err


def test_the_recipe_lies_beside_the_model():
    assert recipe_beside("folder/model.fixed.onnx") == pathlib.Path("folder/model.fixed.recipe.toml")
    assert recipe_beside("model") == pathlib.Path("model.recipe.toml")


def test_help_tells_of_it(capsys):
    for arguments in (["--help"], ["--help", "all"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "amp-transpile debug" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["debug", "--help"])
    said = capsys.readouterr().out
    assert "to blame" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_model_named_debug_can_be_converted(models):
    (models / "a.onnx").rename(models / "debug")
    assert main(["./debug", "--dry-run", "--no-verify"]) == 0


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_completes_its_options(shell):
    script = completion_script(shell)
    for action in debug_parser()._actions:
        for flag in action.option_strings:
            assert flag in script or f"-l {flag[2:]} " in script or f"-s {flag[1:]} " in script


# ---- with the engine ----


@pytest.fixture
def overflowing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overflowing_files()
    return tmp_path


def test_the_guilty_node_is_named(overflowing, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["encoder.onnx", "--inputs", "samples.npz", "--report", "d.html", "--json", "d.json"]
    assert main(["debug", *arguments]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith("'/block.0/down' (MatMul) is to blame: its result reaches 318,917")
    assert max(map(len, said.out.splitlines())) <= 80
    record = json.loads((overflowing / "d.json").read_text())
    assert record["guilty"]["fault"] == "overflow"
    assert record["cure"]["nodes"] == ["/block.0/residual", "/block.1/norm"]
    assert 'guilty"><title>MatMul /block.0/down' in (overflowing / "d.html").read_text()


def test_the_options_of_the_cure_mend_a_conversion(overflowing, capsys):
    assert main(["debug", "encoder.onnx", "--inputs", "samples.npz"]) == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    options = [word for line in lines if line.startswith("--disable-amp") for word in shlex.split(line)]
    assert options
    arguments = ["encoder.onnx", "-o", "m.onnx", "--level", "O2", "--inputs", "samples.npz", *options, "-q"]
    assert main(arguments) == 0
    assert main(["debug", "encoder.onnx", "m.onnx", "--inputs", "samples.npz"]) == 0
    assert "Nothing is wrong" in capsys.readouterr().out


def test_a_mended_model_is_written(overflowing):
    assert main(["debug", "encoder.onnx", "--inputs", "samples.npz", "--fix", "mended.onnx"]) == 0
    assert main(["debug", "encoder.onnx", "mended.onnx", "--inputs", "samples.npz"]) == 0


def test_bfloat16_has_the_range(overflowing, capsys):
    assert main(["debug", "encoder.onnx", "--inputs", "samples.npz", "--dtype", "bfloat16"]) == 0
    assert "converted to bfloat16" in capsys.readouterr().out


def test_what_is_no_model_is_said_in_a_line(overflowing, capsys):
    assert main(["debug", "gone.onnx"]) == 2
    said = capsys.readouterr().err
    assert "gone.onnx" in said
    assert said.count("\n") == 1
