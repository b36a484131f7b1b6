"""`amp-transpile diff`."""

import json

import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.cli import main
from tests.support import array, parse


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(parse("(float[2,4] x) => (float[2,4] y) { y = MatMul(x, w) }", w=array(4, 4)), "a.onnx")
    amp.transpile("a.onnx", "b.onnx", level="O2", verify=False)
    return tmp_path


def test_two_models_are_shown_side_by_side(models, capsys):
    assert main(["diff", "a.onnx", "b.onnx", "--report", "d.html", "--json", "d.json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for expected in ("a.onnx", "b.onnx", "weights", "predicted time on H100", "on one made-up sample"):
        assert expected in said.out
    assert "a.onnx and b.onnx" in (models / "d.html").read_text()
    record = json.loads((models / "d.json").read_text())
    assert (record["second"]["casts"], record["device"]) == (2, "H100")
    assert "amp_transpiler" in record["versions"]


def test_json_can_be_printed_in_place_of_the_tables(models, capsys):
    assert main(["diff", "a.onnx", "b.onnx", "--no-run", "--json", "-", "--device", "A100"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["compared"], record["device"]) == ("not run", "A100")


FAULTS = {
    "one model": (["a.onnx"], "SECOND"),
    "a model that is not there": (["a.onnx", "c.onnx"], "c.onnx"),
    "an unknown device": (["a.onnx", "b.onnx", "--device", "abacus"], "expected one of"),
    "no size": (["a.onnx", "b.onnx", "--dim", "n"], "NAME=SIZE"),
    "an unknown size": (["a.onnx", "b.onnx", "--dim", "n=3"], "open dimension 'n'"),
    "size 0": (["a.onnx", "b.onnx", "--dim", "n=0"], "NAME=SIZE"),
    "an option of a conversion": (["a.onnx", "b.onnx", "--level", "O1"], "--level"),
    "a report over a model": (["a.onnx", "b.onnx", "--report", "b.onnx"], "is also b.onnx"),
    "two reports in one file": (["a.onnx", "b.onnx", "--report", "d", "--json", "d"], "is also d"),
    "no folder": (["a.onnx", "b.onnx", "--json", "no/d.json"], "folder that exists"),
    "inputs that do not fit": (["a.onnx", "b.onnx", "--inputs", "none.npz"], "none.npz"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_is_wrong_is_said_in_a_line(case, models, capsys):
    arguments, expected = FAULTS[case]
    before = sorted((file.name, file.read_bytes()) for file in models.iterdir())
    assert main(["diff", *arguments]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1
    assert sorted((file.name, file.read_bytes()) for file in models.iterdir()) == before


def test_help_tells_of_it(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "amp-transpile diff" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["diff", "--help"])
    assert "the other is measured by" in capsys.readouterr().out


def test_a_model_named_diff_can_be_converted(models, capsys):
    (models / "a.onnx").rename(models / "diff")
    assert main(["./diff", "--dry-run", "--no-verify"]) == 0
