"""A model that gains nothing: what the command says of it, what the file is called, and how a recipe replays it."""

import json

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.cli.command import main
from amp_transpiler.report.recipe import Recipe
from tests.support import array, parse

SMALL = parse("(float[N,4] x) => (float[N,4] y) { y = MatMul (x, w) }", w=array(4, 4))
LARGE = parse("(float[N,1024] x) => (float[N,1024] y) { y = MatMul (x, w) }", w=array(1024, 1024))
GAINS = ["--dim", "N=65536"]  # rows, for the large one


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(SMALL, "small.onnx")
    onnx.save(LARGE, "large.onnx")
    return tmp_path


def low_constants(path):
    return {tensor.data_type for tensor in onnx.load(path).graph.initializer} == {onnx.TensorProto.FLOAT16}


def call(*arguments):
    return main([*arguments, "--no-verify"])


def test_it_says_so_first_and_the_file_is_not_named_float16(folder, capsys):
    assert call("small.onnx", "--json", "r.json") == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("kept float32: float16 is predicted no faster at these shapes on H100: ")
    assert "small.onnx -> small.fp32.onnx" in others
    assert sorted(path.name for path in folder.glob("small.*")) == ["small.fp32.onnx", "small.onnx"]
    assert not low_constants("small.fp32.onnx")
    record = json.loads((folder / "r.json").read_text())
    assert (record["kept_float32"], record["slower"], record["destination"]) == (True, False, "small.fp32.onnx")


def test_a_name_that_was_given_is_kept(folder, capsys):
    assert call("small.onnx", "-o", "given.onnx") == 0
    assert "small.onnx -> given.onnx" in capsys.readouterr().out
    assert not low_constants("given.onnx")
    assert not list(folder.glob("*.fp*.onnx"))


def test_in_python_it_is_written_where_it_was_asked(folder):
    report = amp.transpile("small.onnx", "small.fp16.onnx", verify=False)
    assert report.kept_float32
    assert report.destination == "small.fp16.onnx"


@pytest.mark.parametrize("place", [[], ["-o", "out/"]])
def test_a_folder_has_a_row_of_it(folder, place, capsys):
    assert call("small.onnx", "large.onnx", *GAINS, *place) == 0
    table = capsys.readouterr().out.partition("model ")[2]
    rows = [line for line in table.splitlines() if line.startswith(("small.onnx ", "large.onnx "))]
    assert ["kept float32" in row for row in rows] == [True, False]
    written = folder / ("out" if place else ".")
    assert (written / "small.fp32.onnx").exists()
    assert not (written / "small.fp16.onnx").exists()
    assert low_constants(written / "large.fp16.onnx")


def test_an_unchanged_one_is_skipped(folder, capsys, monkeypatch):
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", str(folder / "cache"))
    assert call("small.onnx", "--skip-unchanged") == 0
    capsys.readouterr()
    assert call("small.onnx", "--skip-unchanged") == 0
    assert "skipped, unchanged" in capsys.readouterr().out
    (folder / "small.fp32.onnx").unlink()
    assert call("small.onnx", "--skip-unchanged") == 0
    assert (folder / "small.fp32.onnx").exists()


@pytest.mark.usefixtures("folder")
def test_no_source_is_replaced_by_it(capsys):
    onnx.save(LARGE, "small.fp32.onnx")
    assert call("small.onnx", "small.fp32.onnx") == 2
    assert "would replace small.fp32.onnx" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["small.onnx"], "note: small.onnx: kept float32: "),
        (["small.onnx", "--prefer", "time"], "note: small.onnx: kept float32: "),
        (["small.onnx", "--prefer", "size"], "warning: small.onnx: predicted slower than float32"),
        (["small.onnx", "--prefer", "low"], "warning: small.onnx: predicted slower than float32"),
        (["large.onnx", *GAINS], ""),
        (["small.onnx", "--target", "cpu"], ""),
    ],
)
def test_quietly(arguments, said, capsys):
    assert call(*arguments, "-q") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.removeprefix("amp-transpile: ").startswith(said)
    assert bool(captured.err) is bool(said)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "slower"), [([], False), (["--prefer", "size"], True), (["--prefer", "time"], False)]
)
def test_slower_is_in_json(arguments, slower, capsys):
    assert call("small.onnx", *arguments, "--json", "-") == 0
    (record,) = [json.loads(capsys.readouterr().out)]
    record = record[0] if isinstance(record, list) else record
    assert record["slower"] is slower
    before, after = record["predicted_ms"]
    assert (after > before) is slower


def test_slower_is_in_check(folder, capsys):
    """A 16-bit model that is slower than the float32 one beside it is found; one that was kept float32 is none."""
    assert call("small.onnx") == 0
    capsys.readouterr()
    main(["--check", str(folder)])
    assert "[slower]" not in capsys.readouterr().out
    assert call("small.onnx", "--prefer", "size") == 0
    capsys.readouterr()
    main(["--check", str(folder)])
    assert "[slower]" in capsys.readouterr().out


# ---- recipes ----


@pytest.mark.usefixtures("folder")
def test_a_recipe_of_former_versions_replays_as_it_was():
    made = amp.transpile("small.onnx", "made.onnx", verify=False, prefer="low")
    made.save_recipe("r.toml")
    assert "prefer" not in Recipe.read("r.toml").options, "as former versions wrote it"
    again = amp.transpile("small.onnx", "again.onnx", verify=False, recipe="r.toml")
    assert again.low_nodes == made.low_nodes == 1
    assert (np.fromfile("made.onnx", np.uint8) == np.fromfile("again.onnx", np.uint8)).all()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("prefer", ["balance", "time"])
def test_a_recipe_holds_the_preference(prefer):
    made = amp.transpile("small.onnx", "made.onnx", verify=False, prefer=prefer)
    made.save_recipe("r.toml")
    assert Recipe.read("r.toml").options == {"prefer": prefer}
    again = amp.transpile("small.onnx", "again.onnx", verify=False, recipe="r.toml")
    assert again.kept_float32
    assert (np.fromfile("made.onnx", np.uint8) == np.fromfile("again.onnx", np.uint8)).all()


@pytest.mark.parametrize("options", [{"level": "O2"}, {"level": "O1"}, {"preset": "mp1"}, {"policy": "torch"}])
def test_a_recipe_of_another_level_needs_no_preference(options, tmp_path):
    made = amp.transpile(SMALL, verify=False, **options)
    made.save_recipe(tmp_path / "r.toml")
    again = amp.transpile(SMALL, verify=False, recipe=tmp_path / "r.toml")
    assert [row.precision for row in again.decisions] == [row.precision for row in made.decisions]
