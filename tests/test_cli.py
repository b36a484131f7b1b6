"""The command: what it hands to `transpile`, what it prints, and its exit status."""

import dataclasses
import json
import logging
import pathlib
import subprocess
import sys
import time
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest

from amp_transpiler import pipeline
from amp_transpiler.cli import command as cli, progress as progress_module
from amp_transpiler.cli.progress import PHASES
from amp_transpiler.errors import PAGE, CheckFailed, EnvironmentProblem, ModelError, OptionError, VerificationError
from amp_transpiler.report import DecisionRow, OutputComparison, Report

ROOT = pathlib.Path(__file__).resolve().parent.parent

MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x, int64[1] n) => (float[1, 3] y, int64[1] m)
<float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{
    [product] h = MatMul(x, w)
    [positive] y = Relu(h)
    [same] m = Identity(n)
}
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


class Recorder:
    """Stands in for `transpile`: keeps what it is called with, and reports or raises what it is told to."""

    def __init__(self):
        self.calls = []
        self.error = None

    def __call__(self, src, dst=None, **options):
        self.calls.append((src, dst, options))
        if self.error is not None:
            raise self.error
        return Report(
            source=str(src),
            destination=None if dst is None else str(dst),
            level=options["level"],
            dtype=options["dtype"],
            target=options["target"],
            decisions=(DecisionRow("product", "MatMul", "float16", "white list"),),
            nodes=1,
            low_nodes=1,
            outputs={"y": OutputComparison("y", "float32", (1, 3), 1e-4, 1e-4, 1.0)},
            verdict="verified",
        )


@pytest.fixture
def transpile(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(pipeline, "transpile", recorder)
    return recorder


# ---- options ----


@pytest.mark.parametrize(
    ("arguments", "option", "expected"),
    [
        ([], "level", "auto"),
        ([], "dtype", "float16"),
        ([], "target", "cuda"),
        ([], "keep_io_types", True),
        ([], "amp_lists", None),
        ([], "use_promote", False),
        ([], "guard", ()),
        ([], "disable_amp", ()),
        ([], "inputs", None),
        ([], "tolerance", None),
        ([], "verify", True),
        (["--level", "O1"], "level", "O1"),
        (["--dtype", "bfloat16"], "dtype", "bfloat16"),
        (["--dtype", "FP16"], "dtype", "float16"),
        (["--dtype", "bf16"], "dtype", "bfloat16"),
        (["--target", "tensorrt"], "target", "tensorrt"),
        (["--io-types", "keep"], "keep_io_types", True),
        (["--io-types", "low"], "keep_io_types", False),
        (["--io-types", "x=low"], "keep_io_types", {"x": "low"}),
        (["--io-types", "x=low,y=low"], "keep_io_types", {"x": "low", "y": "low"}),
        (["--promote"], "use_promote", True),
        (["--guard", "a.*", "--guard", "b"], "guard", ("a.*", "b")),
        (["--disable-amp", "a"], "disable_amp", ("a",)),
        (["--inputs", "data.npz"], "inputs", "data.npz"),
        (["--tolerance", "0.01"], "tolerance", 0.01),
        (["--tolerance", "1%"], "tolerance", 0.01),
        (["--tolerance", "2%,y=1%"], "tolerance", "2%,y=1%"),
        ([], "mismatch", None),
        (["--mismatch", "0.1%"], "mismatch", 0.001),
        (["--no-verify"], "verify", False),
    ],
)
def test_option_reaches_transpile(arguments, option, expected, model, transpile):
    assert cli.main([str(model), *arguments]) == 0
    assert transpile.calls[0][2][option] == expected


def test_lists_reach_transpile(model, transpile):
    arguments = ["--white", "Relu", "--white", "conv2d", "--black", "MatMul", "--black-var", "h", "--dtype", "bf16"]
    assert cli.main([str(model), *arguments]) == 0
    lists = transpile.calls[0][2]["amp_lists"]
    assert lists.custom_white_list == {"Relu", "conv2d"}
    assert lists.custom_black_list == {"MatMul"}
    assert lists.black_varnames == {"h"}


def put(*places):
    """Write files that are there to be named."""
    for place in map(pathlib.Path, places):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"a model")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a/m.onnx"], ["a/m.fp16.onnx"]),
        (["a/m.onnx", "--dtype", "bfloat16"], ["a/m.bf16.onnx"]),
        (["a/m.v2.onnx"], ["a/m.v2.fp16.onnx"]),
        (["a/m"], ["a/m.fp16.onnx"]),
        (["a/m.onnx", "-o", "b/c.onnx"], ["b/c.onnx"]),
        (["a/m.onnx", "b/n.onnx"], ["a/m.fp16.onnx", "b/n.fp16.onnx"]),
        (["a/m.onnx", "b/n.onnx", "-o", "made"], ["made/m.fp16.onnx", "made/n.fp16.onnx"]),
        (["a/m.onnx", "--dry-run"], [None]),
    ],
)
def test_destination(arguments, expected, tmp_path, monkeypatch, transpile):
    monkeypatch.chdir(tmp_path)
    put("a/m.onnx", "a/m.v2.onnx", "a/m", "b/n.onnx")
    assert cli.main(arguments) == 0
    assert [None if dst is None else str(dst) for _, dst, _ in transpile.calls] == expected


# ---- exit status ----


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ModelError("model.onnx: bad"), 2, "model.onnx: bad"),
        (OptionError("no such   pattern"), 2, "no such pattern"),
        (EnvironmentProblem("install one wheel"), 2, "install one wheel"),
        (VerificationError("Add: float and float16"), 1, "Add: float and float16; nothing was written"),
        (RuntimeError("sur\nprise"), 3, "internal error: RuntimeError: sur prise; please report it"),
        (MemoryError(), 3, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_status_of_an_error(error, status, message, model, transpile, capsys):
    transpile.error = error
    assert cli.main([str(model)]) == status
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert stderr.startswith(f"amp-transpile: error: {message}")
    assert len(stderr.splitlines()) == 1


def test_traceback_of_an_internal_error_is_shown_when_asked_for(model, transpile, capsys):
    transpile.error = RuntimeError("surprise")
    assert cli.main([str(model), "-v"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_failed_check_shows_the_report_and_writes_the_reports_asked_for(model, transpile, capsys):
    report = Report(source="model.onnx", level="auto", dtype="float16", target="cuda", verdict="failed: y is inf")
    transpile.error = CheckFailed("y: 3 values are not finite", report)
    target = model.with_suffix(".json")
    assert cli.main([str(model), "--json", str(target)]) == 1
    stdout, stderr = capsys.readouterr()
    assert "model.onnx -> nothing written" in stdout
    assert stderr == f"amp-transpile: error: y: 3 values are not finite ({PAGE}#a-failed-check)\n"
    record = json.loads(target.read_text())
    assert record["exit_status"] == 1
    assert record["error"] == "y: 3 values are not finite"


def test_the_worst_status_of_several_models_counts(tmp_path, monkeypatch, capsys):
    def transpile(src, dst, **options):
        report = Report(source=str(src), level="auto", dtype="float16", target="cuda")
        if src.name == "b.onnx":
            raise CheckFailed("not exact enough", report)
        if src.name == "c.onnx":
            raise ModelError("unreadable")
        return report

    monkeypatch.setattr(pipeline, "transpile", transpile)
    put(*(tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx")))
    assert cli.main([str(tmp_path / name) for name in ("a.onnx", "b.onnx")]) == 1
    assert cli.main([str(tmp_path / name) for name in ("a.onnx", "c.onnx", "b.onnx")]) == 2
    stdout, stderr = capsys.readouterr()
    assert f"{tmp_path / 'c.onnx'}: unreadable" in stderr  # the message alone does not name the model
    assert "3 models: 1 converted, 2 failed" in stdout


# ---- what is printed ----


def test_json_to_stdout_is_all_there_is_on_it(model, transpile, capsys):
    assert cli.main([str(model), "--json", "-", "--explain", "--io-types", "x=low"]) == 0
    stdout, stderr = capsys.readouterr()
    record = json.loads(stdout)
    assert stderr == ""
    assert record["low_nodes"] == 1
    assert record["options"]["io_types"] == ["x"]
    assert record["exit_status"] == 0
    assert "onnx" in record["versions"]


def test_json_of_several_models_is_a_list_that_tells_of_failures(tmp_path, transpile, capsys):
    transpile.error = ModelError("unreadable")
    put(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert cli.main([str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--json", "-"]) == 2
    records = json.loads(capsys.readouterr().out)
    assert [record["exit_status"] for record in records] == [2, 2]
    assert records[1]["error"].endswith("b.onnx: unreadable")


def test_explain_names_every_node(model, transpile, capsys):
    assert cli.main([str(model), "--explain"]) == 0
    assert "float16    MatMul    product  -      white list" in capsys.readouterr().out


def test_quiet_prints_nothing(model, transpile, capsys):
    assert cli.main([str(model), "-q", "--explain"]) == 0
    assert capsys.readouterr() == ("", "")


def test_reports_are_written_even_on_a_dry_run_and_the_model_is_not(model, transpile):
    page, record = model.with_suffix(".html"), model.with_suffix(".json")
    assert cli.main([str(model), "--dry-run", "--report", str(page), "--json", str(record)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(record.read_text())["destination"] is None
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.html", "model.json", "model.onnx"]


def test_a_report_goes_to_a_device_too(model, transpile):
    assert cli.main([str(model), "--json", "/dev/null"]) == 0
    assert pathlib.Path("/dev/null").is_char_device()


def test_verbose_shows_the_log_and_leaves_logging_as_it_was(model, monkeypatch, capsys):
    def transpile(src, dst, **options):
        logging.getLogger("amp_transpiler.pipeline").info("guarded everywhere")
        logging.getLogger("amp_transpiler.pipeline").warning("odd")
        return Report(source=str(src), level="auto", dtype="float16", target="cuda")

    monkeypatch.setattr(pipeline, "transpile", transpile)
    logger = logging.getLogger("amp_transpiler")
    before = logger.level, list(logger.handlers)
    cli.main([str(model)])
    assert capsys.readouterr().err == "amp-transpile: warning: odd\n"
    cli.main([str(model), "-v"])
    assert "amp-transpile: info: guarded everywhere" in capsys.readouterr().err
    assert (logger.level, logger.handlers) == before


def test_warnings_of_other_libraries_are_shown_the_same_way(model, monkeypatch, capsys):
    def transpile(src, dst, **options):
        logging.getLogger("onnx_ir.some").warning("dim \x1b[31m")
        warnings.warn("value \x07\nsecond line", stacklevel=1)
        return Report(source=str(src), level="auto", dtype="float16", target="cuda")

    monkeypatch.setattr(pipeline, "transpile", transpile)
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as an ordinary process has it, where a warning is no error
        cli.main([str(model)])
    first, second = capsys.readouterr().err.splitlines()
    assert first == "amp-transpile: warning: dim \\x1b[31m"
    assert second.startswith("amp-transpile: warning: ")
    assert "value \\x07 second line" in second


def test_no_bar_where_stderr_is_no_terminal(model, transpile, capsys):
    cli.main([str(model)])
    assert transpile.calls[0][2]["progress"] is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "shows"), [(60.0, False), (0.0, True)])
def test_bar_appears_on_a_terminal_only_after_a_second(seconds, shows, model, monkeypatch, capsys):
    def transpile(src, dst, *, progress, **options):
        for step in range(4):
            progress("convert", step / 4)
            time.sleep(0.2)
        return Report(source=str(src), level="auto", dtype="float16", target="cuda")

    monkeypatch.setattr(pipeline, "transpile", transpile)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert progress_module._SECONDS_BEFORE_IT_SHOWS == 1.0
    monkeypatch.setattr(progress_module, "_SECONDS_BEFORE_IT_SHOWS", seconds)
    assert cli.main([str(model)]) == 0
    assert ("convert" in capsys.readouterr().err) == shows


# ---- as a process ----


def run(*arguments, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "amp_transpiler", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False, **options)


def test_help_is_quick_because_it_imports_nothing_heavy():
    code = (
        "import sys; from amp_transpiler.cli.command import main\n"
        "try: main(['--help', 'all'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert process.stderr == "[]\n"
    assert "exit status:" in process.stdout


def test_real_conversion(model):
    samples = model.with_name("samples.npz")
    np.savez(samples, x=np.ones((1, 4), np.float32), n=np.ones(1, np.int64))
    record = model.with_suffix(".json")
    process = run(
        model,
        "--prefer",
        "size",
        "--inputs",
        samples,
        "--explain",
        "--json",
        record,
        "--report",
        model.with_suffix(".html"),
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert "\x1b" not in process.stdout
    assert "model.fp16.onnx" in process.stdout.replace("\n", "")
    record_read = json.loads(record.read_text())
    assert {row["name"]: row["precision"] for row in record_read["decisions"]} == {
        "product": "float16",
        "positive": "float16",
        "same": "unchanged",
    }
    assert record_read["outputs"]["y"]["relative"] < 1e-3
    assert set(record_read["phases"]) <= set(PHASES)  # what the bar knows
    low = onnx.load(model.with_name("model.fp16.onnx"))
    assert low.graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    onnx.checker.check_model(low, full_check=True)


def test_dry_run_writes_nothing(model):
    assert run(model, "--dry-run").returncode == 0
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


def test_a_reader_that_leaves_early_is_no_fault(model):
    process = subprocess.Popen(
        [sys.executable, "-m", "amp_transpiler", str(model), "--prefer", "size", "--explain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 0
    assert stderr == ""
    assert model.with_name("model.fp16.onnx").exists()


@pytest.mark.slow
def test_benchmark_is_printed(model):
    process = run(model, "--benchmark")
    assert process.returncode == 0, process.stderr
    assert "fp32" in process.stdout
    assert "ms" in process.stdout


def test_report_fields_do_not_collide_with_what_the_command_adds():
    assert not {field.name for field in dataclasses.fields(Report)} & {"model", "exit_status", "error", "options"}
