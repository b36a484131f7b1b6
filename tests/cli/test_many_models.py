"""A call for many models: samples for each, folders inside folders, the end of the output, and what is skipped."""

import json
import pathlib
import signal
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from amp_transpiler import cli, pipeline
from amp_transpiler.cli import workers
from amp_transpiler.cli.termination import Terminated
from amp_transpiler.errors import CheckFailed, InputError
from amp_transpiler.report import Report

MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x) => (float[1, 3] y)
<float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{ h = MatMul(x, w)  y = Relu(h) }
"""
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132735\n"


def write(path, text=MODEL):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), path)


def sample(path, values=(1, 2, 3, 4)):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=np.array([values], np.float32))


def data_set(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    tensor = onnx.numpy_helper.from_array(np.ones((1, 4), np.float32))
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", str(tmp_path / "cache"))
    for name in ("zoo/a.onnx", "zoo/b.onnx", "zoo/deep/c.onnx", "zoo/deep/er/d.onnx", "zoo/.hidden/e.onnx"):
        write(name)
    sample("zoo/a.inputs.npz")
    sample("samples/a.npz")
    sample("samples/b.npz")
    sample("samples/deep/c.npz")
    data_set("zoo/deep/er/test_data_set_0")
    data_set("zoo/test_data_set_0")  # of a folder with two models, so it is nobody's
    return tmp_path


@pytest.fixture
def calls(monkeypatch):
    """Replaces `transpile`; model -> the samples that it was to take and the file that it was to write."""
    by_name = {}

    def transpile(src, dst=None, **options):
        by_name[str(src)] = (options["inputs"], None if dst is None else str(dst))
        if pathlib.Path(src).stem == "bad":
            raise InputError("bad.onnx: unreadable")
        report = Report(source=str(src), level="auto", dtype="float16", target="cuda", seconds=0.5)
        if dst is not None:
            pathlib.Path(dst).write_bytes(b"made")
            report.destination = str(dst)
        return report

    monkeypatch.setattr(pipeline, "transpile", transpile)
    return by_name


# Arguments -> model -> its samples.
SAMPLES = {
    "zoo": {"zoo/a.onnx": "zoo/a.inputs.npz", "zoo/b.onnx": None},
    "zoo/a.onnx": {"zoo/a.onnx": "zoo/a.inputs.npz"},
    "zoo/deep -r": {"zoo/deep/c.onnx": None, "zoo/deep/er/d.onnx": "zoo/deep/er/test_data_set_0"},
    "zoo --inputs made-up": {"zoo/a.onnx": None, "zoo/b.onnx": None},
    "zoo --no-verify": {"zoo/a.onnx": None, "zoo/b.onnx": None},
    "zoo --level O0": {"zoo/a.onnx": None, "zoo/b.onnx": None},
    "zoo --inputs samples/a.npz": {"zoo/a.onnx": "samples/a.npz", "zoo/b.onnx": "samples/a.npz"},
    "zoo --inputs samples/{stem}.npz": {"zoo/a.onnx": "samples/a.npz", "zoo/b.onnx": "samples/b.npz"},
    "zoo/deep zoo/a.onnx --inputs {folder}/{stem}.npz": {
        "zoo/deep/c.onnx": "zoo/deep/c.npz",
        "zoo/a.onnx": "zoo/a.npz",
    },
    "zoo -r --inputs samples/{path}.npz": {
        "zoo/a.onnx": "samples/a.npz",
        "zoo/b.onnx": "samples/b.npz",
        "zoo/deep/c.onnx": "samples/deep/c.npz",
        "zoo/deep/er/d.onnx": "samples/deep/er/d.npz",
    },
    "zoo -r --inputs zoo.toml": {
        "zoo/a.onnx": "samples/own.npz",  # its own row, not that of the pattern above it
        "zoo/b.onnx": "samples/b.npz",
        "zoo/deep/c.onnx": None,  # made-up
        "zoo/deep/er/d.onnx": "zoo/deep/er/test_data_set_0",  # without a row: what lies beside it
    },
    "zoo --inputs samples/zoo.json": {"zoo/a.onnx": "samples/../x.npz", "zoo/b.onnx": "zoo/b.npz"},
}
MANIFESTS = {
    "zoo.toml": '"[ab].onnx" = "samples/{stem}.npz"\n"a.onnx" = "samples/own.npz"\n"zoo/*/c.onnx" = "made-up"\n',
    "samples/zoo.json": '{"a.onnx": "../x.npz", "../zoo/b.onnx": "{folder}/{stem}.npz"}',
}


@pytest.mark.parametrize("arguments", SAMPLES)
def test_samples_of_each_model(arguments, zoo, calls):
    for name, text in MANIFESTS.items():
        (zoo / name).write_text(text, encoding="utf-8")
    assert cli.main([*arguments.split(), "-q"]) == 0
    assert {model: inputs for model, (inputs, _) in calls.items()} == SAMPLES[arguments]


# Manifest, or --inputs itself -> what the error says.
WRONG = {
    "samples/{name}.npz": ["{name}", "{stem}"],
    "{stem}/{x}.npz": ["{x}", "{stem}"],
    "none.toml": ["none.toml", "cannot be read"],
    'bad.toml: "a.onnx" = ': ["bad.toml", "cannot be read"],
    "bad.json: {": ["bad.json", "cannot be read"],
    "bad.json: []": ["bad.json", "no rows"],
    "bad.toml: ": ["bad.toml", "no rows"],
    'bad.json: {"a.onnx": 3}': ["'a.onnx'", "is 3", "samples/resnet50.npz"],
    'bad.toml: "a.onnx" = ""': ["'a.onnx'"],
}


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("given", WRONG)
def test_wrong_samples(given, calls, capsys):
    name, colon, text = given.partition(": ")
    if colon:
        pathlib.Path(name).write_text(text, encoding="utf-8")
    assert cli.main(["zoo", "--inputs", name]) == 2
    stderr = capsys.readouterr().err
    assert all(word in stderr for word in WRONG[given]), stderr
    assert not calls


@pytest.mark.usefixtures("calls")
def test_a_row_that_fits_nothing_is_told(zoo, capsys):
    (zoo / "zoo.toml").write_text('"a.onnx" = "made-up"\n"A.onnx" = "x"\n"q*.onnx" = "y"\n', encoding="utf-8")
    assert cli.main(["zoo", "--inputs", "zoo.toml"]) == 0
    assert "'A.onnx' and 1 more row fit none" in capsys.readouterr().err


@pytest.mark.usefixtures("zoo")
def test_found_samples_that_do_not_fit(capsys):
    np.savez("zoo/b.inputs.npz", other=np.zeros(3, np.float32))
    assert cli.main(["zoo/b.onnx"]) == 2
    stderr = capsys.readouterr().err
    assert "zoo/b.inputs.npz" in stderr
    assert "--inputs made-up does without it" in stderr


@pytest.mark.usefixtures("zoo")
def test_folders_inside_a_folder(calls):
    assert cli.main(["zoo", "--recursive", "-o", "out"]) == 0
    assert [place for _, place in calls.values()] == [
        "out/a.fp16.onnx",
        "out/b.fp16.onnx",
        "out/deep/c.fp16.onnx",
        "out/deep/er/d.fp16.onnx",
    ]


@pytest.mark.usefixtures("zoo", "calls")
def test_folders_of_results_go_again_where_nothing_was_written(capsys):
    write("other/x/bad.onnx")
    assert cli.main(["other", "-r", "-o", "out"]) == 2
    assert not pathlib.Path("out").exists()
    assert cli.main(["other", "-o", "out"]) == 2
    assert "--recursive" in capsys.readouterr().err


@pytest.mark.usefixtures("zoo", "calls")
def test_the_end_of_the_output(capsys):
    write("zoo/bad.onnx")
    assert cli.main(["zoo", "--junit", "r.xml", "--sarif", "r.sarif"]) == 2
    lines = capsys.readouterr().out.splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("model "))
    assert lines[head].split() == ["model", "verdict", "error", "size", "seconds", "predicted"]
    assert [line.split()[:2] for line in lines[head + 1 : head + 4]] == [
        ["zoo/a.onnx", "not"],
        ["zoo/b.onnx", "not"],
        ["zoo/bad.onnx", "failed"],
    ]
    assert lines[-2:] == ["3 models: 2 converted, 1 failed", "failed: zoo/bad.onnx"]
    suite = ET.parse("r.xml").getroot()[0]
    assert suite.attrib == {"name": "amp-transpile", "errors": "0", "tests": "3", "failures": "1", "skipped": "0"}
    assert [(case.get("name"), case.get("time")) for case in suite] == [
        ("zoo/a.onnx", "0.500"),
        ("zoo/b.onnx", "0.500"),
        ("zoo/bad.onnx", None),
    ]
    assert suite[2][0].get("type") == "wrong-input"
    (result,) = json.loads(pathlib.Path("r.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("wrong-input", "error")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "zoo/bad.onnx"


# What transpile does -> rules that are found.
OUTCOMES = {
    "well": (Report("m", "auto", "float16", "cuda"), []),
    "warned": (Report("m", "auto", "float16", "cuda", warnings=("first", "second")), ["warned", "warned"]),
    "input": (InputError("no"), ["wrong-input"]),
    "check": (CheckFailed("no", Report("m", "auto", "float16", "cuda", warnings=("first",))), ["check-failed"]),
    "internal": (ZeroDivisionError("no"), ["internal"]),
}


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("name", OUTCOMES)
def test_what_is_found_about_a_conversion(name, monkeypatch):
    def transpile(*_, **__):
        if isinstance(OUTCOMES[name][0], Exception):
            raise OUTCOMES[name][0]
        return OUTCOMES[name][0]

    monkeypatch.setattr(pipeline, "transpile", transpile)
    cli.main(["zoo/a.onnx", "-q", "--sarif", "r.sarif"])
    results = json.loads(pathlib.Path("r.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == OUTCOMES[name][1]


@pytest.mark.usefixtures("zoo", "calls")
def test_a_silent_call_names_what_failed_at_its_end(capsys):
    write("zoo/bad.onnx")
    write("zoo/deep/bad.onnx")
    assert cli.main(["zoo", "-r", "-q"]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.splitlines()[-1].endswith("2 of 6 models failed: zoo/bad.onnx, zoo/deep/bad.onnx")


@pytest.mark.usefixtures("zoo", "calls")
@pytest.mark.parametrize("others", [[], ["zoo/c.onnx"]], ids=["the last", "in the middle"])
def test_a_silent_call_names_a_single_failure_once_more_unless_it_was_the_last(others, capsys):
    for model in ["zoo/bad.onnx", *others]:
        write(model)
    assert cli.main(["zoo", "-q"]) == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1].endswith("1 of 4 models failed: zoo/bad.onnx") is bool(others)


# ---- models that are named like results ----

# Files of a folder, recursively -> those that a warning names.
NAMES = {
    "a result": (["a.onnx", "a.fp32.onnx"], []),
    "a source named so": (["a.onnx", "b.fp32.onnx"], ["models/b.fp32.onnx"]),
    "one in a folder inside": (["a.onnx", "in/c.onnx", "in/d.FP32.onnx"], ["models/in/d.FP32.onnx"]),
    "a folder of results": (["a.onnx", "out/b.fp32.onnx", "out/c.fp16.onnx"], []),
    "16 bits": (["a.onnx", "b.fp16.onnx"], []),
}


@pytest.mark.usefixtures("zoo", "calls")
@pytest.mark.parametrize("case", NAMES)
def test_a_float32_model_that_is_named_like_a_result_is_told(case, capsys):
    names, told = NAMES[case]
    for name in names:
        write(f"models/{name}")
    assert cli.main(["models", "-r", "-q", "-o", "converted/"]) == 0
    err = capsys.readouterr().err
    assert ("named like results, and not taken: " in err) is bool(told)
    assert all(name in err for name in told)


# ---- unchanged models ----

# What happens after a call -> the models that the same call with --skip-unchanged converts.
CHANGES = {
    "nothing": (lambda: None, []),
    "another weight": (lambda: write("zoo/a.onnx", MODEL.replace("0.5", "0.75")), ["zoo/a.onnx"]),
    "a new model": (lambda: write("zoo/n.onnx"), ["zoo/n.onnx"]),
    "other samples": (lambda: sample("zoo/a.inputs.npz", (4, 3, 2, 1)), ["zoo/a.onnx"]),
    "new samples": (lambda: sample("zoo/b.inputs.npz"), ["zoo/b.onnx"]),
    "no result": (lambda: pathlib.Path("out/b.fp16.onnx").unlink(), ["zoo/b.onnx"]),
    "another result": (lambda: pathlib.Path("out/b.fp16.onnx").write_bytes(b"theirs"), ["zoo/b.onnx"]),
}


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_unchanged_is_skipped(name, calls, capsys):
    change, again = CHANGES[name]
    assert cli.main(["zoo", "-o", "out"]) == 0
    calls.clear()
    change()
    assert cli.main(["zoo", "-o", "out", "--skip-unchanged", "--json", "r.json", "--junit", "r.xml"]) == 0
    assert list(calls) == again
    records = json.loads(pathlib.Path("r.json").read_text(encoding="utf-8"))
    assert [record["model"] for record in records if not record["skipped"]] == again
    assert all(record["verdict_word"] == "not checked" for record in records), "a skipped one has its report"
    skipped = len(records) - len(again)
    counts = f"{len(records)} models: {len(again)} converted, 0 failed"
    assert capsys.readouterr().out.splitlines()[-1] == counts + (f", {skipped} skipped as unchanged" if skipped else "")
    assert ET.parse("r.xml").getroot().get("skipped") == str(skipped)


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("other", ["--level O1", "--tolerance 1%", "--dtype bf16", "-o out2", "--inputs made-up"])
def test_another_question_is_not_skipped(other, calls):
    assert cli.main(["zoo", "-o", "out"]) == 0
    calls.clear()
    assert cli.main(["zoo", "-o", "out", "--skip-unchanged", *other.split()]) == 0
    assert "zoo/a.onnx" in calls


@pytest.mark.usefixtures("zoo")
def test_what_failed_is_tried_again(calls):
    write("zoo/bad.onnx")
    for _ in range(2):
        calls.clear()
        assert cli.main(["zoo", "-o", "out", "--skip-unchanged"]) == 2
        assert "zoo/bad.onnx" in calls
    assert list(calls) == ["zoo/bad.onnx"]


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("cut", [KeyboardInterrupt(), Terminated(signal.SIGTERM)], ids=["Ctrl-C", "SIGTERM"])
def test_a_call_that_was_cut_goes_on(cut, calls, monkeypatch, capsys):
    convert = workers.convert

    def until_b(job, options):
        if job.model.stem == "b":
            raise cut
        return convert(job, options)

    monkeypatch.setattr(workers, "convert", until_b)
    assert cli.main(["zoo", "-r", "-o", "out"]) in (130, 143)
    assert "1 of 4 models are done; the same call with --skip-unchanged goes on" in capsys.readouterr().err
    monkeypatch.setattr(workers, "convert", convert)
    calls.clear()
    assert cli.main(["zoo", "-r", "-o", "out", "--skip-unchanged"]) == 0
    assert list(calls) == ["zoo/b.onnx", "zoo/deep/c.onnx", "zoo/deep/er/d.onnx"]


@pytest.mark.usefixtures("zoo")
def test_a_record_that_cannot_be_read_is_made_anew(zoo, calls, capsys):
    assert cli.main(["zoo", "-o", "out"]) == 0
    for number, record in enumerate(sorted((zoo / "cache" / "converted").iterdir())):
        record.write_text(["{", '{"row": {"x": 1}, "record": {}, "result": ""}'][number], encoding="utf-8")
    calls.clear()
    assert cli.main(["zoo", "-o", "out", "--skip-unchanged"]) == 0
    assert len(calls) == 2
    assert "made anew" in capsys.readouterr().err


@pytest.mark.parametrize(
    "other", ["--report r.html", "--save-recipe r.toml", "--explain", "--benchmark", "--no-cache", "--dry-run", "-o -"]
)
def test_what_a_skipped_model_cannot_give(other, capsys):
    assert cli.main(["m.onnx", "--skip-unchanged", *other.split()]) == 2
    assert "--skip-unchanged" in capsys.readouterr().err


# ---- pointers of Git LFS ----

POINTERS = {
    "zoo/a.onnx": ["zoo/a.onnx"],
    "zoo/a.inputs.npz": ["zoo/a.onnx"],
    "zoo/deep/er/test_data_set_0/input_0.pb": ["zoo/deep/er/d.onnx"],
    "zoo/large.data": ["zoo/large.onnx"],
    "samples/a.npz": ["zoo/b.onnx", "--inputs", "samples/a.npz"],
}


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("file", POINTERS)
def test_a_pointer_of_git_lfs_is_named(file, capsys):
    model = onnx.parser.parse_model(MODEL)
    tensor = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(model.graph.initializer[0]), "w")
    model.graph.initializer[0].CopyFrom(tensor)  # only raw data moves out
    onnx.save(model, "zoo/large.onnx", save_as_external_data=True, location="large.data", size_threshold=0)
    pathlib.Path(file).write_text(POINTER, encoding="utf-8")
    assert cli.main(POINTERS[file]) == 2
    stderr = capsys.readouterr().err
    assert pathlib.Path(file).name in stderr
    assert "is a pointer of Git LFS" in stderr
    assert "run git lfs pull" in stderr
