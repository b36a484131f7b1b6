"""Where the command reads and writes: folders, standard streams, and files that must not be replaced."""

import json
import os
import pathlib
import subprocess
import sys

import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from amp_transpiler import cli, pipeline
from amp_transpiler.report import Report

ROOT = pathlib.Path(__file__).resolve().parent.parent

MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x) => (float[1, 3] y)
<float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{ h = MatMul(x, w)  y = Relu(h) }
"""


def write(path, *, weights=None):
    """Write a small model, with its weights in a file of their own if that is named."""
    model = onnx.parser.parse_model(MODEL)
    tensor = model.graph.initializer[0]
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), "w"))  # only raw data moves out
    storage = {"save_as_external_data": True, "location": weights, "size_threshold": 0} if weights else {}
    onnx.save(model, path, **storage)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("b.onnx", "a.onnx", "a.fp16.onnx", "c.bf16.onnx", "d.fp32.onnx", ".hidden.onnx", "e.ONNX"):
        write(tmp_path / "models" / name)
    (tmp_path / "models" / "deeper").mkdir()
    write(tmp_path / "models" / "deeper" / "f.onnx")
    (tmp_path / "models" / "notes.txt").touch()
    (tmp_path / "results").mkdir()
    write(tmp_path / "results" / "a.fp16.onnx")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "m.onnx")
    write(tmp_path / "large.onnx", weights="large.data")
    write(tmp_path / "other.onnx", weights="other.data")
    os.link(tmp_path / "other.data", tmp_path / "hard_link")
    (tmp_path / "link").symlink_to("large.data")
    (tmp_path / "samples.npz").touch()
    return tmp_path


@pytest.fixture
def calls(monkeypatch):
    """Replaces `transpile`; lists what it was to read and write."""
    called = []

    def transpile(src, dst=None, **options):
        called.append(f"{src} -> {dst}")
        return Report(source=str(src), level="auto", dtype="float16", target="cuda")

    monkeypatch.setattr(pipeline, "transpile", transpile)
    return called


# Arguments -> what is converted, and to where.
PLACES = {
    "m.onnx -o out/": ["m.onnx -> out/m.fp16.onnx"],
    "m.onnx -o ./": ["m.onnx -> m.fp16.onnx"],
    "m.onnx -o empty/ --dtype bf16": ["m.onnx -> empty/m.bf16.onnx"],
    "m.onnx -o out/ --dry-run": ["m.onnx -> None"],
    "m.onnx --level O1 models/deeper/f.onnx -o out": [
        "m.onnx -> out/m.fp16.onnx",
        "models/deeper/f.onnx -> out/f.fp16.onnx",
    ],
    "-o out/ -- -dash.onnx": ["-dash.onnx -> out/-dash.fp16.onnx"],
    "models": [f"models/{name} -> models/{name[:1]}.fp16.onnx" for name in ("a.onnx", "b.onnx", "e.ONNX")],
    "models/deeper -o out": ["models/deeper/f.onnx -> out/f.fp16.onnx"],
    "m.onnx models/deeper/ -o out": ["m.onnx -> out/m.fp16.onnx", "models/deeper/f.onnx -> out/f.fp16.onnx"],
    "results/a.fp16.onnx": ["results/a.fp16.onnx -> results/a.fp16.fp16.onnx"],
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("arguments", PLACES)
def test_places(arguments, calls):
    pathlib.Path("-dash.onnx").write_bytes(b"a model")
    assert cli.main(arguments.split()) == 0
    assert calls == PLACES[arguments]
    assert not pathlib.Path("out").exists(), "nothing was written, so the folder made for it is gone"


# Arguments -> what the one line on stderr says.
REFUSED = {
    "empty": ["empty", "no .onnx file"],
    "results": ["results", "a.fp16.onnx", "one by one"],
    "m.onnx empty": ["empty", "no .onnx file"],
    "m.onnx -o .": ["-o .", "is a folder", "-o ./"],
    "m.onnx -o ..": ["-o ..", "is a folder", "-o ../"],
    "m.onnx -o empty": ["is a folder", "-o empty/"],
    "m.onnx -o m.onnx/": ["m.onnx/", "is a file"],
    "m.onnx -o /dev/stdout": ["/dev/stdout", "-o -"],
    "m.onnx a.onnx -o -": ["-o -", "one model", "folder"],
    "models/deeper -o -": ["-o -", "one model", "folder"],
    "large.onnx -o -": ["-o -", "large.data"],
    "m.onnx -o - --json -": ["-o -", "--json -", "file"],
    "- -o x.onnx m.onnx": ["-: standard input", "only model"],
    "-": ["standard input", "-o"],
    "m.onnx --jobs 0": ["--jobs", "'0'", "expected 1"],
    "m.onnx --jobs many": ["--jobs", "'many'"],
    "m.onnx --jobs 2 --benchmark": ["--jobs", "--benchmark"],
    "m.onnx -o out/ --report out/deeper/r.html": ["--report", "does not exist"],
    "m.onnx -o out/ --report out/r.html --dry-run": ["--report", "does not exist"],
    # Files of sources and results, under whatever name.
    "large.onnx -o large.data": ["large.data"],
    "large.onnx -o link": ["link"],
    "other.onnx -o hard_link": ["hard_link"],
    "large.onnx --json large.data": ["--json large.data", "own"],
    "other.onnx --json hard_link": ["--json hard_link", "other.data"],
    "large.onnx --report link": ["--report link", "large.data"],
    "large.onnx other.onnx --report other.data": ["--report other.data", "own"],
    "large.onnx --json other.onnx other.onnx": ["--json other.onnx", "own"],
    "m.onnx --json out.onnx.0123456789abcdef.data -o out.onnx": ["--json", "out.onnx"],
    "m.onnx --json m.fp16.onnx.0123456789abcdef.data": ["--json", "m.fp16.onnx"],
    "m.onnx --json ./models/../out.onnx -o out.onnx": ["--json", "out.onnx"],
    "m.onnx --inputs samples.npz --json samples.npz": ["--json samples.npz", "own"],
    "m.onnx --inputs models --json models/notes.txt": ["--json models/notes.txt", "own"],
}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("arguments", REFUSED)
def test_refused(arguments, folder, capfd):
    before = contents(folder)
    check_refused(arguments.split(), REFUSED[arguments], capfd)
    assert contents(folder) == before


def check_refused(arguments, expected, capfd):
    assert cli.main(arguments) == 2
    stdout, stderr = capfd.readouterr()
    assert (stdout, len(stderr.splitlines())) == ("", 1)
    for text in expected:
        assert text in stderr


@pytest.mark.usefixtures("folder")
def test_no_model_is_written_to_a_terminal(monkeypatch, capfd):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    check_refused(["m.onnx", "-o", "-"], ["terminal"], capfd)


NOT_UTF_8 = os.fsdecode(b"caf\xe9.onnx")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["", "x" * 300, NOT_UTF_8, "a\0b"], ids=["empty", "long", "not UTF-8", "null"])
@pytest.mark.parametrize("option", ["", "-o", "--json", "--report", "--inputs"])
def test_impossible_names(option, name, capfd):
    arguments = ["m.onnx", option, name] if option else [name]
    check_refused(arguments, [option or "MODEL"], capfd)


def test_a_model_with_an_impossible_name_does_not_stop_the_others(folder, capfd):
    write(folder / "models" / "deeper" / NOT_UTF_8)
    assert cli.main(["models/deeper", "--no-verify", "-q", "--prefer", "size"]) == 2
    assert "caf\\udce9.onnx: the name is not UTF-8" in capfd.readouterr().err
    assert (folder / "models" / "deeper" / "f.fp16.onnx").exists()


def test_a_result_over_the_weights_of_another_model(folder, capfd):
    write(folder / "x.onnx", weights="large.fp16.onnx")
    check_refused(["large.onnx", "x.onnx"], ["large.fp16.onnx"], capfd)


@pytest.mark.parametrize("option", ["-o", "--json", "--report", "--save-recipe"])
def test_nothing_is_written_over_the_weights_of_a_model_that_is_not_converted(folder, option, capfd):
    write(folder / "x.bak", weights="x.onnx.data")
    check_refused(["m.onnx", "--no-verify", option, "x.onnx.data"], ["holds weights of", "x.bak"], capfd)


@pytest.mark.usefixtures("folder")
def test_a_folder_of_one_model_is_reported_as_many(calls, capfd):
    assert cli.main(["models/deeper", "--json", "-"]) == 0
    assert [record["model"] for record in json.loads(capfd.readouterr().out)] == ["models/deeper/f.onnx"]
    assert len(calls) == 1


@pytest.mark.usefixtures("folder", "calls")
def test_reports_may_go_to_the_folder_that_is_made_for_the_results():
    assert cli.main(["m.onnx", "-o", "out/", "--report", "out/r.html", "--json", "./out/r.json"]) == 0
    assert sorted(path.name for path in pathlib.Path("out").iterdir()) == ["r.html", "r.json"]


HOSTILE = "\x1b[31m\x07\u202e[bold]"

# What holds control characters -> the arguments.
CONTROLLING = {
    "name of a missing model": [f"{HOSTILE}.onnx"],
    "name of a model": [f"in{HOSTILE}.onnx", "--explain"],
    "name of a folder": [f"no{HOSTILE}/m.onnx"],
    "output": ["m.onnx", "-o", f"no{HOSTILE}/m.onnx"],
    "operator": ["m.onnx", "--white", HOSTILE],
    "black variable": ["m.onnx", "--black-var", HOSTILE],
    "pattern": ["m.onnx", "--guard", HOSTILE],
    "unknown option": ["m.onnx", f"--{HOSTILE}"],
    "level": ["m.onnx", "--level", HOSTILE],
    "json": ["m.onnx", "--json", f"{HOSTILE}/r"],
}


@pytest.mark.parametrize("case", CONTROLLING)
def test_nothing_controls_the_terminal(case, folder, capfd):
    model = onnx.parser.parse_model(MODEL)
    model.graph.node[0].name = f"node{HOSTILE}"
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = f"value{HOSTILE}"
    onnx.save(model, folder / f"in{HOSTILE}.onnx")
    cli.main([*CONTROLLING[case], "-v"])
    printed = "".join(capfd.readouterr())
    assert not set(HOSTILE[:1] + HOSTILE[5:7]) & set(printed)
    assert "\\x1b[31m\\x07\\u202e" in printed
    assert "[bold]" in printed, "not taken for markup of `rich`"


# ---- as a process ----


def run(arguments, **options):
    command = [sys.executable, "-m", "amp_transpiler", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, timeout=120, check=False, env=environment, **options)


def test_a_model_comes_from_standard_input_and_goes_to_standard_output(folder):
    model = (folder / "m.onnx").read_bytes()
    process = run(["-", "-o", "-", "--no-verify", "--prefer", "size"], input=model, capture_output=True)
    assert process.returncode == 0, process.stderr
    assert onnx.load_from_string(process.stdout).graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    assert b"standard input -> standard output" in process.stderr
    assert cli.main(["m.onnx", "--no-verify", "-q", "--prefer", "size"]) == 0
    assert process.stdout == (folder / "m.fp16.onnx").read_bytes()


# Arguments, what comes in, what the message says.
STREAMS = {
    "nothing comes in": ("- -o x.onnx", b"", "standard input"),
    "no model comes in": ("- -o x.onnx", b"no model", "standard input: not an ONNX model"),
    "weights that do not come along": ("- -o x.onnx", "large.onnx", "large.data"),
}


@pytest.mark.parametrize("case", STREAMS)
def test_bad_standard_input(case, folder, capfd, monkeypatch):
    arguments, data, expected = STREAMS[case]
    data = (folder / data).read_bytes() if isinstance(data, str) else data
    (folder / "stream").write_bytes(data)
    with (folder / "stream").open("rb") as stream:
        descriptor = f"/dev/fd/{stream.fileno()}"
        check_refused([descriptor, *arguments.split()[1:]], [expected], capfd)
    assert not (folder / "x.onnx").exists()


# What becomes of the streams -> whether stderr is left to say something, and what it says.
LOST = {
    "| head -c1 > /dev/null": "",
    "> /dev/full": "warning: cannot print on stdout: No space left on device",
    "<&- >&- 2>&-": "",
}


@pytest.mark.parametrize("streams", LOST)
def test_lost_streams_stop_nothing(streams, folder):
    options = "-o out --no-verify --prefer size --explain"
    command = f"{sys.executable} -m amp_transpiler m.onnx models/deeper/f.onnx {options} {streams}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["f.fp16.onnx", "m.fp16.onnx"]
    assert process.stderr.removeprefix("amp-transpile: ").rstrip() == LOST[streams]


def test_a_model_that_cannot_be_delivered_is_an_error(folder):
    with pathlib.Path("/dev/full").open("wb") as full:
        process = run(["m.onnx", "-o", "-", "--no-verify", "-q"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (process.returncode, "No space left" in process.stderr) == (2, True)
