"""The gate: whatever is wrong with a result, it is refused, and no file is there that was not there before.

Every fault of `gate.py` is planted alone, through every door, at every level and under every policy and preset.
"""

import tempfile

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler import cli
from amp_transpiler.errors import CheckFailed, OutputError, VerificationError
from tests.support import array, folder_hash, parse
from tests.verification.gate import FAULTS, OS_FAULTS, SESSION_FAULTS

GRAPH = """(float[3,4] x) => (float[3,4] y, int64[3] label) {
    h = MatMul (x, w) y = Relu (h) label = ArgMax <axis = 1, keepdims = 0> (y)
}"""
FEEDS = {"x": array(3, 4)}
REFUSED = (CheckFailed, VerificationError)  # the second is a pass's own doing, and comes before any check


def model(name="bad"):
    proto = parse(GRAPH, w=array(4, 4, seed=1))
    proto.graph.name = name
    return proto


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with models, an empty one for results, one with old results, and one for temporary files."""
    for folder in ("models", "empty", "old", "temporary"):
        (tmp_path / folder).mkdir()
    for name in ("bad", "good"):
        onnx.save(model(name), tmp_path / "models" / f"{name}.onnx")
        (tmp_path / "old" / f"{name}.onnx").write_bytes(b"what was there before")
    np.savez(tmp_path / "x.npz", **FEEDS)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


# ---- doors: each converts the bad model, and returns (exit status, message) ----


def python(source, destination=None):
    def convert(place, capsys, **options):
        try:
            amp.transpile(
                place / "models" / "bad.onnx" if source == "path" else model(),
                None if destination is None else place / destination / "bad.onnx",
                inputs=FEEDS,
                **options,
                prefer="size",
            )
        except REFUSED as error:
            return 1, str(error)
        except OutputError as error:
            return 2, str(error)
        return 0, ""

    return convert


def arguments(options):
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def command(folder):
    def convert(place, capsys, **options):
        files = [str(place / "models" / "bad.onnx"), "-o", str(place / folder / "bad.onnx")]
        status = cli.main([*files, "--inputs", str(place / "x.npz"), *arguments(options)])
        return status, capsys.readouterr().err

    return convert


def dry_run(place, capsys, **options):
    files = [str(place / "models" / "bad.onnx"), "--inputs", str(place / "x.npz")]
    return cli.main([*files, "--dry-run", *arguments(options)]), capsys.readouterr().err


WRITING = {
    "path to path": python("path", "empty"),
    "path to an old file": python("path", "old"),
    "message to path": python("message", "empty"),
    "command": command("empty"),
    "command, an old file": command("old"),
}
DOORS = WRITING | {"path": python("path"), "message": python("message"), "dry run": dry_run}
MAIN_DOORS = ("path to an old file", "message", "command")  # for every fault; the other doors for some
SOME = ["the checker refuses", "the types are wrong", "the numbers are wrong", "the file is refused"]
STRICT = {"level": "O2", "target": "cpu", "tolerance": 0.01}


def words(message):
    return " ".join(message.split())


@pytest.mark.parametrize("door", DOORS)
def test_without_a_fault_every_door_lets_the_result_pass(door, place, capsys):
    before = folder_hash(place)
    assert DOORS[door](place, capsys, **STRICT) == (0, "")
    changed = {file for file, digest in folder_hash(place).items() if before.get(file) != digest}
    assert len(changed) == (door in WRITING)
    for file in changed:
        onnx.checker.check_model(onnx.load(place / file), full_check=True)


@pytest.mark.parametrize(
    ("fault", "door"),
    [(fault, door) for fault in FAULTS for door in DOORS if fault in SOME or door in MAIN_DOORS],
)
def test_every_fault_stops_every_door(fault, door, place, capsys, monkeypatch):
    plant, said = FAULTS[fault]
    before = folder_hash(place)
    plant(monkeypatch)
    status, message = DOORS[door](place, capsys, **STRICT)
    assert (status, said in words(message)) == (1, True), message
    assert folder_hash(place) == before
    assert not list(place.rglob(".*"))


@pytest.mark.parametrize("door", WRITING)
@pytest.mark.parametrize("fault", OS_FAULTS)
def test_a_failed_write_leaves_everything_as_it_was(fault, door, place, capsys, monkeypatch):
    plant, said = OS_FAULTS[fault]
    before = folder_hash(place)
    plant(monkeypatch)
    status, message = WRITING[door](place, capsys, **STRICT)
    assert (status, said in words(message)) == (2, True), message
    assert folder_hash(place) == before
    assert not list(place.rglob(".*"))


@pytest.mark.parametrize("fault", ["the checker refuses", "the numbers are wrong", "the file is refused"])
def test_the_report_of_a_refused_result_says_failed(fault, place, monkeypatch):
    plant, said = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(CheckFailed) as caught:
        amp.transpile(place / "models" / "bad.onnx", inputs=FEEDS, **STRICT, prefer="size")
    assert caught.value.report.verdict.startswith("failed: ")
    assert said in caught.value.report.verdict


# ---- levels, policies, presets, formats ----

WAYS = {
    "auto": {},
    "O1": {"level": "O1"},
    "O2": {"level": "O2"},
    "torch": {"policy": "torch"},
    "raf": {"policy": "raf"},
    "mxnet": {"policy": "mxnet"},
    "mp1": {"preset": "mp1"},
    "mp4": {"preset": "mp4"},
    "default": {"preset": "default"},
}
FORMATS = ("float16", "bfloat16")


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("way", WAYS)
def test_without_a_fault_every_way_lets_the_result_pass(way, dtype, place, capsys):
    convert = command("empty")
    assert convert(place, capsys, **WAYS[way], dtype=dtype, tolerance="5%") == (0, "")
    assert (place / "empty" / "bad.onnx").exists()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", SOME)
def test_a_fault_stops_every_way(fault, way, dtype, place, capsys, monkeypatch):
    plant, said = FAULTS[fault]
    before = folder_hash(place)
    plant(monkeypatch)
    status, message = python("path", "old")(place, capsys, **WAYS[way], dtype=dtype, tolerance="5%")
    assert (status, said in words(message)) == (1, True), message
    assert folder_hash(place) == before


OVERFLOWS = {"values become non-finite": "cuda", "emulated, it overflows": "cuda", "users' sessions overflow": "cpu"}
OVERFLOWS |= {"emulated, it has another shape": "cuda", "users' sessions give another shape": "cpu"}
# Made float32, a program is not emulated, and its sessions show no such fault.
REPAIRED = {("emulated, it overflows", "auto"), ("emulated, it has another shape", "auto")}


@pytest.mark.parametrize(
    ("fault", "way"), [(fault, way) for fault in OVERFLOWS for way in WAYS if (fault, way) not in REPAIRED]
)
def test_values_that_become_non_finite_and_other_shapes_need_no_limit(fault, way, place, capsys, monkeypatch):
    plant, said = FAULTS[fault]
    before = folder_hash(place)
    plant(monkeypatch)
    status, message = python("path", "old")(place, capsys, **WAYS[way], target=OVERFLOWS[fault])
    assert (status, said in message) == (1, True), message
    assert folder_hash(place) == before


# One label of three differs: options -> whether that is let pass.
LABELS = {
    "auto": ({}, False),
    "O2, no limit": ({"level": "O2"}, True),
    "O2, a tolerance": ({"level": "O2", "tolerance": 0.01}, False),
    "O2, a third at most": ({"level": "O2", "mismatch": "34%"}, True),
    "O2, less than a third": ({"level": "O2", "mismatch": 0.33}, False),
    "O2, both": ({"level": "O2", "tolerance": 0.01, "mismatch": 0.34}, True),
    "torch, no limit": ({"policy": "torch"}, True),
    "torch, a tolerance": ({"policy": "torch", "tolerance": "1%"}, False),
    "mp4, no label": ({"preset": "mp4", "mismatch": 0.0}, False),
}


@pytest.mark.parametrize("door", ["path to path", "command"])
@pytest.mark.parametrize("row", LABELS)
def test_labels_that_differ_are_judged_by_their_limit(row, door, place, capsys, monkeypatch):
    options, passes = LABELS[row]
    FAULTS["users' sessions tell another label"][0](monkeypatch)
    status, message = DOORS[door](place, capsys, **options, target="cpu")
    assert status == (not passes), message
    assert (place / "empty" / "bad.onnx").exists() == passes


def test_the_given_data_are_what_is_compared_on(place, capsys):
    """Made-up inputs are near 1; of these, a product is beyond float16."""
    large = {"x": FEEDS["x"] * np.float32(60_000)}
    source, destination = place / "models" / "bad.onnx", place / "empty" / "bad.onnx"
    with pytest.raises(CheckFailed, match="non-finite"):
        amp.transpile(source, destination, level="O2", inputs=[FEEDS, large])
    assert not destination.exists()
    assert amp.transpile(source, destination, level="O2").verdict.startswith("compared")


def test_what_overflows_is_repaired_at_auto_and_nothing_else(place):
    large = {"x": FEEDS["x"] * np.float32(60_000)}
    source, destination = place / "models" / "bad.onnx", place / "empty" / "bad.onnx"
    report = amp.transpile(source, destination, inputs=[large, FEEDS], prefer="size", rescale="no")
    assert report.verdict.startswith("verified")
    [row] = [row for row in report.decisions if row.name == "MatMul_h"]
    assert row.precision == "high"
    assert "4 times that is beyond float16's" in row.reason
    assert amp.transpile(source, destination, inputs=FEEDS, prefer="size").repaired == ()
    rescaled = amp.transpile(source, destination, inputs=[large, FEEDS], prefer="size")
    assert rescaled.rescaled
    assert rescaled.verdict.startswith("verified")


# ---- users' sessions ----


@pytest.mark.parametrize("target", ["cpu", "any", "cuda", "tensorrt"])
@pytest.mark.parametrize("fault", SESSION_FAULTS)
def test_users_sessions_must_run_what_is_for_the_cpu(fault, target, place, monkeypatch):
    plant, said = SESSION_FAULTS[fault]
    before = folder_hash(place)
    plant(monkeypatch)
    destination = place / "old" / "bad.onnx"
    source = place / "models" / "bad.onnx"
    if target in ("cpu", "any"):
        with pytest.raises(CheckFailed, match="nothing was written") as caught:
            amp.transpile(source, destination, target=target, inputs=FEEDS, prefer="size")
        assert said in str(caught.value)
        assert folder_hash(place) == before
    else:
        report = amp.transpile(source, destination, target=target, inputs=FEEDS, prefer="size")
        assert any(said in note for note in report.notes)
        assert not any("default session" in check for check in report.checks)
        onnx.checker.check_model(onnx.load(destination))


# ---- several models ----


def both(place, *options):
    files = [str(place / "models" / name) for name in ("bad.onnx", "good.onnx")]
    return cli.main(
        [*files, "-o", f"{place / 'empty'}/", "--inputs", str(place / "x.npz"), "--target", "cpu", *options]
    )


@pytest.mark.parametrize("fault", [*FAULTS, *OS_FAULTS])
def test_the_other_models_are_still_converted(fault, place, capsys, monkeypatch):
    plant, said = (FAULTS | OS_FAULTS)[fault]
    plant(monkeypatch)
    assert both(place, "--level", "O2", "--tolerance", "1%") == (2 if fault in OS_FAULTS else 1)
    shown = capsys.readouterr()
    assert said in words(shown.err)
    assert "2 models: 1 converted, 1 failed" in shown.out
    assert [file.name for file in (place / "empty").iterdir()] == ["good.fp16.onnx"]
    onnx.checker.check_model(onnx.load(place / "empty" / "good.fp16.onnx"), full_check=True)


def test_the_worst_exit_status_counts(place, capsys, monkeypatch):
    FAULTS["the file is refused"][0](monkeypatch)
    (place / "models" / "broken.onnx").write_bytes(b"no model")
    files = [str(place / "models" / f"{name}.onnx") for name in ("broken", "bad", "good")]
    assert cli.main([*files, "-o", f"{place / 'empty'}/", "--prefer", "size"]) == 2
    assert "3 models: 1 converted, 2 failed" in capsys.readouterr().out
    assert [file.name for file in (place / "empty").iterdir()] == ["good.fp16.onnx"]
