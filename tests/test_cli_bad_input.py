"""Bad input gets one clear line, exit status 2, and leaves nothing behind."""

import hashlib
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from amp_transpiler import cli
from amp_transpiler.files.saving import Staged

ROOT = pathlib.Path(__file__).resolve().parent.parent

MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x) => (float[1, 3] y)
<float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{
    h = MatMul(x, w)
    y = Relu(h)
}
"""

INVALID = """
<ir_version: 10, opset_import: ["": 17]>
net (float[4] x, int64[4] n) => (float[4] y) { y = Add(x, n) }
"""


def write(path: pathlib.Path, text: str = MODEL) -> str:
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


def write_bytes(path: pathlib.Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def write_wide(path: pathlib.Path, width: int, **storage: object) -> str:
    """Write a model whose weights take 16 * `width` bytes."""
    model = onnx.parser.parse_model(MODEL.replace("float[1, 3] y", f"float[1, {width}] y"))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((4, width), np.float32), "w"))
    onnx.save(model, path, **storage)
    return str(path)


def truncated(folder: pathlib.Path) -> str:
    data = onnx.parser.parse_model(MODEL).SerializeToString()
    return write_bytes(folder / "model.onnx", data[: len(data) * 2 // 3])


def cyclic(folder: pathlib.Path) -> str:
    model = onnx.parser.parse_model(MODEL)
    model.graph.node[0].input[0] = "y"
    onnx.save(model, folder / "model.onnx")
    return str(folder / "model.onnx")


def external(folder: pathlib.Path, *, location: str = "weights.bin", data: bytes | None = None) -> str:
    """Write a model whose weights are at `location`; the file itself only where `data` is given."""
    model = onnx.parser.parse_model(MODEL)
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "48")):
        tensor.external_data.add(key=key, value=value)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if data is not None:
        (folder / location).write_bytes(data)
    return str(folder / "model.onnx")


def linked_weights(folder: pathlib.Path) -> str:
    inside = folder / "inside"
    inside.mkdir()
    (folder / "elsewhere.bin").write_bytes(bytes(48))
    (inside / "weights.bin").symlink_to(folder / "elsewhere.bin")
    return external(inside)


def folder_as_model(folder: pathlib.Path) -> str:
    (folder / "model.onnx").mkdir()
    return str(folder / "model.onnx")


def pipe_as_model(folder: pathlib.Path) -> str:
    os.mkfifo(folder / "model.onnx")
    return str(folder / "model.onnx")


# What is wrong with the model -> how to make it, and what the message must say.
BAD_MODELS = {
    "text": (lambda folder: write_bytes(folder / "model.onnx", b"this is not a model\n" * 9), ["not an ONNX model"]),
    "zeros": (lambda folder: write_bytes(folder / "model.onnx", bytes(64)), ["not an ONNX model"]),
    "empty": (lambda folder: write_bytes(folder / "model.onnx", b""), ["empty"]),
    "truncated": (truncated, ["truncated"]),
    "missing": (lambda folder: str(folder / "model.onnx"), ["no such file"]),
    "folder": (folder_as_model, ["folder"]),
    "pipe": (pipe_as_model, ["not a regular file"]),
    "cycle": (cyclic, ["cycle"]),
    "external data missing": (external, ["'w'", "weights.bin", "missing"]),
    "external data cut": (lambda folder: external(folder, data=bytes(40)), ["'w'", "weights.bin", "truncated"]),
    "external data above": (lambda folder: external(folder, location="../weights.bin"), ["'w'", "outside"]),
    "external data absolute": (lambda folder: external(folder, location="/etc/hostname"), ["'w'", "outside"]),
    "external data linked": (linked_weights, ["'w'", "weights.bin", "outside"]),
    "invalid types": (lambda folder: write(folder / "model.onnx", INVALID), ["Add"]),
    "unknown operator": (
        lambda folder: write(folder / "model.onnx", MODEL.replace("Relu", "Rellu")),
        ["Rellu"],
    ),
}


# Options, with {folder} for the place of a good `model.onnx` -> what the message must say.
BAD_OPTIONS = {
    "unknown option": (["{folder}/model.onnx", "--fast"], ["--fast"]),
    "abbreviated option": (["{folder}/model.onnx", "--prom"], ["--prom"]),
    "level": (["{folder}/model.onnx", "--level", "O5"], ["--level", "'O5'", "auto", "O2"]),
    "dtype": (["{folder}/model.onnx", "--dtype", "float8"], ["--dtype", "'float8'", "float16", "bfloat16"]),
    "target": (["{folder}/model.onnx", "--target", "rocm"], ["--target", "'rocm'", "tensorrt"]),
    "preset": (["{folder}/model.onnx", "--preset", "mp2"], ["'mp2'", "reserved", "mp1"]),
    "preset and level": (["{folder}/model.onnx", "--preset", "mp1", "--level", "O2"], ["mp1", "O2", "drop one"]),
    "policy": (["{folder}/model.onnx", "--policy", "jax"], ["--policy", "'jax'", "mxnet"]),
    "policy and level": (["{folder}/model.onnx", "--policy", "raf", "--level", "O2"], ["raf", "O2"]),
    "policy and promote": (["{folder}/model.onnx", "--policy", "raf", "--promote"], ["raf", "use_promote"]),
    "mixed operators": (["{folder}/model.onnx", "--mixed-ops", "conv"], ["'conv'", "gemm or softmax"]),
    "mixed operators, none named": (["{folder}/model.onnx", "--mixed-ops", ","], ["--mixed-ops", "','", "gemm"]),
    "mixed operators, empty": (["{folder}/model.onnx", "--mixed-ops", ""], ["--mixed-ops", "names no operator"]),
    **{
        f"{asked} {option[0]}": (
            ["{folder}/model.onnx", *asked.split(), *option],
            [f"{asked} copies", option[0], "drop one"],
        )
        for asked in ("--preset mp0", "--level O0")
        for option in (
            ("--inputs", "{folder}/shape.npz"),
            ("--tolerance", "1%"),
            ("--white", "Relu"),
            ("--black", "Relu"),
            ("--black-var", "h"),
            ("--guard", ".*"),
            ("--disable-amp", ".*"),
            ("--io-types", "low"),
            ("--io-types", "x=low"),
            ("--promote",),
            ("--benchmark",),
        )
    },
    "preset mp0, two without effect": (
        ["{folder}/model.onnx", "--preset", "mp0", "--guard", ".*", "--tolerance", "1%"],
        ["--guard, --tolerance would have no effect"],
    ),
    "white": (["{folder}/model.onnx", "--white", "Convv"], ["--white Convv", "did you mean Conv"]),
    "black": (
        ["{folder}/model.onnx", "--black", "LayerNormalisation"],
        ["LayerNormalisation", "did you mean LayerNormalization"],
    ),
    "black without a near match": (["{folder}/model.onnx", "--black", "zzzz"], ["--black zzzz"]),
    "white and black": (["{folder}/model.onnx", "--white", "Add", "--black", "Add"], ["'Add'", "both"]),
    "black variable": (["{folder}/model.onnx", "--black-var", "hh"], ["--black-var hh", "'h'"]),
    "guard is no pattern": (["{folder}/model.onnx", "--guard", "("], ["--guard", "'('"]),
    "disable-amp is no pattern": (["{folder}/model.onnx", "--disable-amp", "[a"], ["--disable-amp", "'[a'"]),
    "guard matches nothing": (["{folder}/model.onnx", "--guard", "^absent$"], ["^absent$"]),
    "disable-amp matches nothing": (["{folder}/model.onnx", "--disable-amp", "^absent$"], ["^absent$"]),
    "tolerance is no number": (["{folder}/model.onnx", "--tolerance", "tight"], ["--tolerance", "'tight'", "0.01"]),
    "tolerance below zero": (["{folder}/model.onnx", "--tolerance=-1"], ["--tolerance", "'-1'"]),
    **{
        f"tolerance {text} without a percent sign": (
            ["{folder}/model.onnx", "--tolerance", text],
            ["--tolerance", f"write {percent}", "without a percent sign"],
        )
        for text, percent in {
            "1": "1%",
            "5": "5%",
            "1.0": "1.0%",
            "2.5": "2.5%",
            "y=1": "1%",
            "0.01,y=3": "3%",
            " 1 ": "1%",
        }.items()
    },
    "tolerance is NaN": (["{folder}/model.onnx", "--tolerance", "nan"], ["--tolerance", "'nan'"]),
    "tolerance of no output": (["{folder}/model.onnx", "--tolerance", "nothing=1%"], ["tolerance names 'nothing'"]),
    "two tolerances": (["{folder}/model.onnx", "--tolerance", "1%,2%"], ["--tolerance", "two tolerances"]),
    "mismatch above all": (["{folder}/model.onnx", "--mismatch", "101%"], ["--mismatch", "from 0 to 1"]),
    "mismatch unverified": (["{folder}/model.onnx", "--mismatch", "1%", "--no-verify"], ["--no-verify"]),
    "tolerance unverified": (["{folder}/model.onnx", "--tolerance", "1%", "--no-verify"], ["--no-verify"]),
    "io-types word": (["{folder}/model.onnx", "--io-types", "high"], ["--io-types", "'high'", "keep"]),
    "io-types kind": (["{folder}/model.onnx", "--io-types", "x=float8"], ["--io-types", "'x=float8'"]),
    "io-types name": (["{folder}/model.onnx", "--io-types", "z=low"], ["--io-types z=low", "x, y"]),
    "inputs missing": (["{folder}/model.onnx", "--inputs", "{folder}/no.npz"], ["no.npz"]),
    "inputs of another kind": (["{folder}/model.onnx", "--inputs", "{folder}/model.onnx"], ["model.onnx"]),
    "inputs lack a name": (["{folder}/model.onnx", "--inputs", "{folder}/other.npz"], ["other.npz", "x"]),
    "inputs of a wrong shape": (["{folder}/model.onnx", "--inputs", "{folder}/shape.npz"], ["shape.npz", "x"]),
    "inputs in an empty folder": (["{folder}/model.onnx", "--inputs", "{folder}/out"], ["out"]),
    "output is the input": (["{folder}/model.onnx", "-o", "{folder}/model.onnx"], ["same file"]),
    "output is the input, spelled otherwise": (
        ["{folder}/model.onnx", "-o", "{folder}/out/../model.onnx"],
        ["same file"],
    ),
    "output links to the input": (["{folder}/model.onnx", "-o", "{folder}/link.onnx"], ["same file"]),
    "output is a folder": (["{folder}/model.onnx", "-o", "{folder}/out"], ["out", "regular file"]),
    "output is a pipe": (["{folder}/model.onnx", "-o", "{folder}/pipe"], ["pipe", "regular file"]),
    "output is a device": (["{folder}/model.onnx", "-o", "/dev/null"], ["/dev/null", "regular file"]),
    "output folder missing": (["{folder}/model.onnx", "-o", "{folder}/no/a.onnx"], ["{folder}/no", "does not exist"]),
    "output below a file": (["{folder}/model.onnx", "-o", "{folder}/shape.npz/a.onnx"], ["shape.npz"]),
    "output where nobody can write": (["{folder}/model.onnx", "-o", "/proc/a.onnx"], ["/proc/a.onnx"]),
    "several into a file": (["{folder}/model.onnx", "{folder}/two.onnx", "-o", "{folder}/shape.npz"], ["shape.npz"]),
    "several, folder not creatable": (["{folder}/model.onnx", "{folder}/two.onnx", "-o", "{folder}/no/no"], ["no/no"]),
    "several into one file": (["{folder}/model.onnx", "{folder}/out/../model.onnx"], ["both"]),
    "one result over another model": (["{folder}/two.onnx", "{folder}/two.fp16.onnx"], ["two.fp16.onnx", "replace"]),
    "report folder missing": (
        ["{folder}/model.onnx", "--report", "{folder}/no/r.html"],
        ["--report", "does not exist"],
    ),
    "report is a folder": (["{folder}/model.onnx", "--report", "{folder}/out"], ["--report", "folder"]),
    "json is the model": (["{folder}/model.onnx", "--json", "{folder}/model.onnx"], ["--json", "model.onnx"]),
    "json is the output": (
        ["{folder}/model.onnx", "--json", "{folder}/model.fp16.onnx"],
        ["--json", "model.fp16.onnx"],
    ),
    "json is the report": (
        ["{folder}/model.onnx", "--json", "{folder}/r", "--report", "{folder}/r"],
        ["--json", "own"],
    ),
}

PATTERNS = {
    "unclosed groups": "((((",
    "a repeat of more than memory": "a{99999999999}",
    "an unclosed class": "[a",
    "nothing to repeat": "*a",
    "an unknown escape": "\\p{Nope",
    "a bad range": "[z-a]",
    "groups 9,000 deep": "(" * 9000 + ")" * 9000,
    "brackets 9,000 deep": "[" * 9000,
    "repeats of repeats": "((a{9999}){9999}){9999}",
    "a group that is not there": "(?P=none)",
}
PATTERN_OPTIONS = ("--guard", "--disable-amp", "--black-varnames", "--black", "--white", "--include")

INPUT_FILES = {
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "a link to a pipe": lambda path: (os.mkfifo(path.with_name("p")), path.symlink_to("p")),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "no file": lambda path: None,
}


def snapshot(folder: pathlib.Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        for path in folder.rglob("*")
    }


def check_refusal(status: int, stdout: str, stderr: str, expected: list[str]) -> None:
    assert "Traceback" not in stderr
    lines = stderr.splitlines()
    assert len(lines) == 1, f"not one message but {len(lines)}:\n{stderr}"
    assert lines[0].startswith("amp-transpile: error: ")
    for text in expected:
        assert text in lines[0]
    assert stdout == ""
    assert status == 2


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "model.onnx")
    write(tmp_path / "two.onnx")
    write(tmp_path / "two.fp16.onnx")
    (tmp_path / "out").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "model.onnx")
    os.mkfifo(tmp_path / "pipe")
    np.savez(tmp_path / "other.npz", z=np.ones((1, 4), np.float32))
    np.savez(tmp_path / "shape.npz", x=np.ones((2, 7), np.float32))
    return tmp_path


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_model(case, tmp_path, capfd):
    make, expected = BAD_MODELS[case]
    model = make(tmp_path)
    before = snapshot(tmp_path)
    status = cli.main([model])
    check_refusal(status, *capfd.readouterr(), [model, *expected])
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_option(case, folder, capfd):
    arguments, expected = BAD_OPTIONS[case]
    before = snapshot(folder)
    status = cli.main([argument.format(folder=folder) for argument in arguments])
    check_refusal(status, *capfd.readouterr(), [text.format(folder=folder) for text in expected])
    assert snapshot(folder) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a read-only folder")
def test_read_only_folder(folder, capfd):
    (folder / "out").chmod(0o555)
    status = cli.main([str(folder / "model.onnx"), "-o", str(folder / "out" / "a.onnx")])
    check_refusal(status, *capfd.readouterr(), ["out/a.onnx", "writable"])


def test_full_disk(folder):
    """A limit on the size of files stands in for a full disk: both end in an error of `write`."""
    write_wide(folder / "model.onnx", 30000)
    before = snapshot(folder)
    code = (
        "import resource, sys; from amp_transpiler.cli.command import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000)); sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.run(
        [sys.executable, "-B", "-c", code, str(folder / "model.onnx"), "--prefer", "size"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
    check_refusal(process.returncode, process.stdout, process.stderr, ["model.fp16.onnx", "File too large"])
    assert snapshot(folder) == before


def test_an_interrupt_leaves_nothing_half_written(folder, capfd, monkeypatch):
    def interrupt(staged):
        assert staged.path.exists()  # the result lies there, but not yet under its name
        raise KeyboardInterrupt

    monkeypatch.setattr(Staged, "commit", interrupt)
    before = snapshot(folder)
    assert cli.main([str(folder / "model.onnx")]) == 130
    assert capfd.readouterr() == ("", "amp-transpile: error: interrupted\n")
    assert snapshot(folder) == before


def test_weights_of_the_source_are_not_overwritten(folder, capfd):
    model = write_wide(folder / "a.onnx", 300, save_as_external_data=True, location="b.onnx")
    before = snapshot(folder)
    status = cli.main([model, "-o", str(folder / "b.onnx")])
    check_refusal(status, *capfd.readouterr(), [f"{folder / 'b.onnx'}: ", "external data"])
    assert snapshot(folder) == before


def test_external_weights_of_any_size_are_read(folder, capfd):
    model = external(folder, data=np.ones((4, 3), np.float32).tobytes())
    assert cli.main([model]) == 0
    assert capfd.readouterr().err == ""


def test_nodes_out_of_order_are_sorted_not_refused(folder, capfd):
    model = onnx.parser.parse_model(MODEL)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, folder / "model.onnx")
    assert cli.main([str(folder / "model.onnx")]) == 0
    assert capfd.readouterr().err == ""


def test_a_failing_model_does_not_stop_the_others(folder, capfd):
    write_bytes(folder / "bad.onnx", b"no")
    models = [str(folder / "bad.onnx"), str(folder / "model.onnx")]
    status = cli.main([*models, "-o", str(folder / "made"), "--prefer", "size"])
    stdout, stderr = capfd.readouterr()
    assert status == 2
    assert [line for line in stderr.splitlines() if "bad.onnx" in line] == stderr.splitlines()
    assert "2 models: 1 converted, 1 failed" in stdout
    assert [path.name for path in (folder / "made").iterdir()] == ["model.fp16.onnx"]


def test_a_folder_made_in_vain_is_removed(folder, capfd):
    for name in ("bad.onnx", "worse.onnx"):
        write_bytes(folder / name, b"no")
    assert cli.main([str(folder / "bad.onnx"), str(folder / "worse.onnx"), "-o", str(folder / "made")]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 2
    assert not (folder / "made").exists()


@pytest.mark.parametrize("option", PATTERN_OPTIONS)
@pytest.mark.parametrize("case", PATTERNS)
def test_a_pattern_that_does_not_compile_is_one_message_within_seconds(case, option, tmp_path, capfd):
    write(tmp_path / "model.onnx")
    start = time.perf_counter()
    status = cli.main([str(tmp_path / "model.onnx"), f"{option}={PATTERNS[case]}"])
    assert time.perf_counter() - start < 10
    check_refusal(status, *capfd.readouterr(), [option.removeprefix("--")[:4]])
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("case", INPUT_FILES)
def test_inputs_that_are_no_file_are_not_waited_for(case, tmp_path, capfd):
    write(tmp_path / "model.onnx")
    INPUT_FILES[case](tmp_path / "samples.npz")
    start = time.perf_counter()
    status = cli.main([str(tmp_path / "model.onnx"), "--inputs", str(tmp_path / "samples.npz")])
    assert time.perf_counter() - start < 10
    check_refusal(status, *capfd.readouterr(), ["samples.npz"])
    assert not (tmp_path / "model.fp16.onnx").exists()
