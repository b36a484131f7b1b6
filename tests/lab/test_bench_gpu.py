"""The one run that a GPU is needed for: its parts work on a CPU, and one that fails or hangs does not cost the rest."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import time
import types
from typing import ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest

import bench_gpu
from amp_transpiler.runtime.provider_options import EXACT_FLOAT32
from gpu import inference, kernels, models, results, running, table
from gpu.conversions import VARIANTS
from gpu.records import Task, Unavailable, attempt
from gpu.results import Results
from gpu.running import Part, run_all
from tests.support import parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "lab" / "bench_gpu.py"


def run(*arguments: str, out: pathlib.Path, status: int = 0) -> Results:
    path = os.pathsep.join([str(ROOT), str(ROOT / "lab")])
    command = [sys.executable, str(SCRIPT), "--smoke", "--out", str(out), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == status, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    [file] = out.glob("*.jsonl")
    return results.read(file)


@pytest.mark.slow
def test_a_smoke_run_measures_inference_training_and_truths(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    ours, theirs = "training:raf.fp32,raf.O2.float16", "torch_training:raf.float16"
    variants = [variant for variant in VARIANTS if variant.file in ("auto.float16", "O2.float16")]
    chosen = ["--only", "truths", ours, theirs, "inference:pointwise", "--variants", *[file.file for file in variants]]
    outcome = run(*chosen, "--seconds", "600", out=tmp_path)
    assert {part["ended"] for part in outcome.of("part")} == {"done"}, outcome.of("part")
    assert outcome.run["smoke"]
    assert outcome.run["device"] == "CPU"
    rows = {(row["stage"], row["variant"], row["dtype"]): row for row in outcome.records if "variant" in row}
    for variant in (VARIANTS[0], *variants):
        row = rows["inference", variant.name, variant.dtype]
        assert row["ms"] > 0, row
        assert row["loop_ms"] > 0
        assert row["predicted_launches"] > 0
        assert row["error"] < 0.1
    assert rows["inference", "O2", "float16"]["error_from_emulation"] < 1e-6
    losses = [row["loss"] for row in outcome.of("training", "torch_training")]
    assert len(losses) == 3
    assert all(loss < 5 for loss in losses)  # below ln 50 times a little: they are of the same network
    assert len(outcome.of("truths")) > 500


@pytest.mark.slow
def test_it_starts_on_the_stand_ins(counted, tmp_path):
    """Nothing computes there, so that outputs are wrong; but every part of ours finds its way to the provider."""
    options = ["--smoke", "--place", "cuda", "--device", "H100", "--out", str(tmp_path)]
    program = textwrap.dedent(f"""
        import json, runpy, sys
        sys.argv = ["bench_gpu.py", *{options}, "--only", "training:rocm"]
        try:
            runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
        except SystemExit as end:
            print(json.dumps(end.code))
    """)
    assert counted.program(program) == 0
    outcome = results.read(tmp_path / next(tmp_path.glob("*-stand-in*.jsonl")).name)
    rows = {row["variant"]: row for row in outcome.of("training")}
    assert {variant: "failed" in row for variant, row in rows.items()} == dict.fromkeys(rows, False)
    assert all(row["predicted_ms"] > 0 for row in rows.values())
    assert set(rows) == {"fp32", "torch", "O2", "O2, CUDA graph"}
    assert table.against_the_model(outcome.records)["training"]["programs"] == 4


@pytest.fixture
def folder_of_models(tmp_path):
    folder = tmp_path / "models" / "inner"
    folder.mkdir(parents=True)
    model = parse("(float[2,8] x) => (float[2,8] y) { a = MatMul (x, w) y = Relu (a) }", w=np.eye(8, dtype=np.float32))
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    for name, inputs in (("a", "a.onnx.inputs.npz"), ("b", "b.inputs.npz"), ("none", None)):
        onnx.save(model, folder / f"{name}.onnx")
        if inputs:
            np.savez(folder / inputs, x=x)
    return tmp_path / "models"


def write_case(folder, name, body, **inputs):
    case = folder / name / "test_data_set_0"
    case.mkdir(parents=True)
    kinds = {"float32": "float", "int64": "int64"}
    types_of = ", ".join(f"{kinds[value.dtype.name]}[{value.size}] {key}" for key, value in inputs.items())
    output = kinds[inputs["x"].dtype.name]
    onnx.save(parse(f"({types_of}) => ({output}[{inputs['x'].size}] y) {{ {body} }}"), case.parent / "model.onnx")
    for index, value in enumerate(inputs.values()):
        (case / f"input_{index}.pb").write_bytes(onnx.numpy_helper.from_array(value).SerializeToString())


@pytest.fixture
def folder_of_cases(tmp_path):
    x = np.linspace(-1, 2, 5, dtype=np.float32)
    write_case(tmp_path / "cases", "test_add", "y = Add (x, z)", x=x, z=x)
    write_case(tmp_path / "cases", "test_exp", "y = Exp (x)", x=x)
    write_case(tmp_path / "cases", "test_ints", "y = Abs (x)", x=np.arange(3))
    return tmp_path / "cases"


def test_models_with_inputs_beside_them_are_compared(tmp_path, folder_of_models):
    names = models.model_names(folder_of_models)
    assert names == ["inner/a.onnx", "inner/b.onnx"]
    task = Task("models", names[0], "cpu", tmp_path, tiny=True, source=folder_of_models)
    models.models(task)
    rows = {(row["variant"], row["dtype"]): row for row in task.found()}
    assert rows["fp32", "float32"]["error"] == 0
    for key in (("auto", "float16"), ("O2", "float16"), ("auto", "bfloat16")):
        assert 0 < rows[key]["error"] < 0.01
        assert rows[key]["error_from_emulation"] == 0
        assert rows[key]["low_nodes"] > 0
    assert rows["auto", "float16"]["verdict"].startswith("verified")


def test_node_cases_are_judged_in_both_formats(tmp_path, folder_of_cases):
    assert models.node_slices(folder_of_cases) == ["0-3"]
    task = Task("nodes", "0-3", "cpu", tmp_path, tiny=True, source=folder_of_cases)
    models.nodes(task)
    rows = {row["case"]: row for row in task.found()}
    assert set(rows) == {"test_add", "test_exp"}  # the other has no float32 input
    assert rows["test_exp"]["fp32.float32"] == {"error": 0.0}
    for dtype in ("float16", "bfloat16"):
        assert 0 < rows["test_exp"][f"O2.{dtype}"]["error"] < 0.01
        assert rows["test_exp"][f"O2.{dtype}"]["error_from_emulation"] == 0


def test_a_case_that_ended_the_process_is_named_and_left_out(tmp_path, folder_of_cases):
    task = Task("nodes", "0-3", "cpu", tmp_path, tiny=True, source=folder_of_cases)
    (tmp_path / "nodes.0-3.started").write_text("test_add")
    models.nodes(task)
    rows = {row["case"]: row for row in task.found()}
    assert rows["test_add"] == {"stage": "nodes", "name": "0-3", "case": "test_add", "failed": "it ended the process"}
    assert "error" in rows["test_exp"]["O2.float16"]
    assert list(table.node_faults(Results({}, task.found()))) == [("test_add", "", "it ended the process")]


@pytest.mark.parametrize(
    ("wanted", "value", "outcome"),
    [
        ([3.0, 4.0], [3.0, 4.5], {"error": 0.1}),
        ([3.0, np.nan], [3.0, 5.0], {"error": 0.0}),
        ([3.0, 4.0], [3.0, np.inf], {"error": np.inf}),
        ([3.0, 4.0], [3.0], {"error": np.inf}),
        ([1, 2, 3, 4], [1, 2, 3, 5], {"error": 0.0, "error_integers": 0.25}),
        (["a"], ["b"], {"error": 0.0}),
    ],
)
def test_outputs_of_any_kind_are_compared(wanted, value, outcome):
    from gpu.compare import apart

    assert apart([np.array(wanted)], [np.array(value)]) == outcome


class _Device:
    """A session on a device with TF32, which is wrong by a thousandth where it may take TF32."""

    opened: ClassVar[list[dict[str, str]]] = []

    def __init__(self, *_, provider_options=None, **_others):
        self.opened.append(dict(provider_options or {}))
        self.tf32, self.cuda_graph, self.cpu_nodes, self.place = "use_tf32" not in self.opened[-1], False, (), None
        self.outputs = [types.SimpleNamespace(name="y")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, feeds):
        return [feeds["x"] * (1.001 if self.tf32 else 1.0)]

    def bind(self, _):
        return lambda: None


@pytest.fixture
def watched(monkeypatch):
    """End what `Sessions` does to all sessions of the process, each of which would write its graph from then on."""
    for name in ("__init__", "run", "run_with_iobinding", "run_async"):
        monkeypatch.setattr(onnxruntime.InferenceSession, name, getattr(onnxruntime.InferenceSession, name))
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", "off")


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize(
    ("variant", "body", "options", "error"),
    [
        ("fp32.float32", "y = MatMul (x, w)", [{}, EXACT_FLOAT32], 0.0),
        ("auto.float16", "h = Cast <to = 10> (x) z = MatMul (h, h) y = Cast <to = 1> (z)", [{}], 0.001),
    ],
)
def test_errors_are_told_without_tf32(tmp_path, monkeypatch, variant, body, options, error):
    model = parse(f"(float[2,2] x) => (float[2,2] y) {{ {body} }}", w=np.eye(2, dtype=np.float32))
    onnx.save(model, tmp_path / f"net.{variant}.onnx")
    x = np.ones((2, 2), np.float32)
    np.savez(tmp_path / "net.feeds.npz", x=x)
    np.savez(tmp_path / "net.fp32.float32.npz", y=x)
    monkeypatch.setattr(inference.amp, "Session", _Device)
    monkeypatch.setattr(inference, "predictions", lambda *_args, **_options: {})
    monkeypatch.setattr(_Device, "opened", [])
    task = part(tmp_path, "inference", "net")
    inference.inference(task)
    [outcome] = task.found()
    assert _Device.opened == options
    assert outcome["error"] == pytest.approx(error, abs=1e-6)
    assert ("error_with_tf32" in outcome) == (len(options) == 2)


def test_without_a_gpu_it_says_so_and_ends_with_2(monkeypatch, capsys):
    monkeypatch.setattr(bench_gpu, "driver_device_count", lambda: 0)
    monkeypatch.setattr("sys.argv", ["bench_gpu.py"])
    assert bench_gpu.main() == 2
    assert "no NVIDIA GPU answers" in capsys.readouterr().err


def part(tmp_path, stage, name):
    return Task(stage, name, "cpu", tmp_path, tiny=True)


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """Parts that do as their names say."""
    script = tmp_path / "gpu" / "part.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent("""
            import json, os, sys, time
            task = json.load(open(sys.argv[1]))
            name = task["name"]
            if name == "hangs":
                print("so far", file=sys.stderr, flush=True)
                time.sleep(60)
            if name == "lacks":
                print("transformers not installed", file=sys.stderr)
            if name == "fails":
                print("Traceback\\n  in a line\\nValueError: no", file=sys.stderr)
            if name == "crashes":
                os.abort()
            if name.startswith("pinned"):
                print(json.dumps(task["cores"]), file=open(f"{task['folder']}/{name}.cores", "w"))
            sys.exit({"lacks": 3, "fails": 1}.get(name, 0))
        """)
    )
    monkeypatch.setattr(running, "LAB", tmp_path)
    monkeypatch.setitem(running.STAGES, "truths", running.Stage(3, beside=True))


@pytest.mark.slow
def test_a_part_that_hangs_is_stopped_and_one_that_cannot_run_is_skipped(tmp_path, scripted):
    stages = {"hangs": "truths", "lacks": "training", "fails": "training", "crashes": "torch", "works": "training"}
    heard: list[Part] = []
    parts = run_all([part(tmp_path, stage, name) for name, stage in stages.items()], 300, heard.append)
    assert parts == heard
    assert [row.task.name for row in parts] == list(stages)
    ended = {row.task.name: row.ended for row in parts}
    assert ended["works"] == "done"
    assert ended["lacks"] == "skipped: transformers not installed"
    assert ended["hangs"].startswith("stopped after")
    assert ended["fails"] == "failed: ValueError: no"
    assert ended["crashes"] == "ended by SIGABRT"
    errors = (tmp_path / "errors.txt").read_text()
    assert "Traceback\n  in a line\nValueError: no" in errors, "whole, not the last line alone"
    assert "so far" in errors
    assert "transformers" not in errors


def test_parts_that_are_not_timed_run_on_cores_of_their_own(tmp_path, scripted, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    tasks = [part(tmp_path, "truths", f"pinned{index}") for index in range(3)]
    assert {row.ended for row in run_all(tasks, 60, lambda _: None)} == {"done"}
    cores = {tuple(json.loads(file.read_text())) for file in tmp_path.glob("*.cores")}
    assert cores <= {(0, 1), (2, 3), (4, 5)}


def test_when_no_time_is_left_parts_are_named(tmp_path):
    (only,) = run_all([part(tmp_path, "training", "raf")], 0, lambda _: None)
    assert only.ended == "skipped: no time was left"
    assert only.record() == {"stage": "part", "of": "training", "name": "raf", "ended": only.ended, "s": only.seconds}


def test_a_home_that_cannot_be_written_to_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert running.environment(tmp_path)["HOME"] == str(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    there = running.environment(tmp_path / "scratch")
    assert there["HOME"] == str(tmp_path)
    assert there["AMP_TRANSPILER_CACHE"].startswith(str(tmp_path / "scratch"))


def chosen(*only, **folders):
    options = bench_gpu._options(["--only", *only, "--smoke"])
    vars(options).update(folders)
    return [(task.stage, task.name) for task in bench_gpu.tasks(options, pathlib.Path("scratch"), "cpu", None)]


def test_parts_are_chosen_by_stage_and_by_the_beginning_of_their_names():
    assert chosen("truths", "training:raf.fp32,rocm.torch") == [
        ("truths", "kernels"),
        ("training", "rocm.torch.float16"),
        ("training", "raf.fp32.float32"),
    ]
    assert chosen("inference:bert_base_b1") == [("prepare", "bert_base_b1"), ("inference", "bert_base_b1")]
    assert chosen("models", "nodes") == []


def test_models_and_cases_come_from_their_folders(folder_of_models, folder_of_cases):
    names = chosen("models", "nodes", models=folder_of_models, nodes=folder_of_cases)
    assert names == [("models", "inner/a.onnx"), ("models", "inner/b.onnx"), ("nodes", "0-3")]


@pytest.mark.parametrize(("only", "message"), [("truth", "no stage 'truth'"), ("training:x", "nothing named x")])
def test_what_is_not_there_cannot_be_chosen(only, message):
    with pytest.raises(SystemExit, match=message):
        chosen(only)


def test_a_task_is_read_as_it_was_written(tmp_path):
    plain = Task("models", "inner/a.onnx", "cpu", tmp_path, tiny=True)
    full = dataclasses.replace(plain, source=tmp_path / "models", cores=(2, 3), variants=("auto.float16",))
    assert [Task.read(task.written()) for task in (plain, full)] == [plain, full]


def test_a_failure_is_a_record_and_what_was_found_before_it_stays(tmp_path):
    task = part(tmp_path, "inference", "pointwise")

    def pieces():
        yield {"ms": 1.0}
        yield {"busy_ms": 0.5}

    def fail():
        yield {"ms": 2.0}
        raise ValueError("what\nwent wrong")

    def lack():
        yield {}
        raise Unavailable("no transformers")

    attempt(task, "fp32", "float32", pieces)
    attempt(task, "O2", "float16", fail)
    with pytest.raises(Unavailable):
        attempt(task, "auto", "float16", lack)
    first, second, _ = task.found()
    assert (first["ms"], first["busy_ms"]) == (1.0, 0.5)
    assert (second["ms"], second["failed"]) == (2.0, "ValueError: what went wrong")
    errors = task.errors.read_text()
    assert "inference pointwise O2 float16" in errors
    assert "in fail" in errors, "the whole traceback"


def test_what_is_not_installed_skips_the_part(tmp_path):
    def import_it():
        yield {}
        raise ModuleNotFoundError("No module named 'transformers'")

    with pytest.raises(ModuleNotFoundError):
        attempt(part(tmp_path, "torch", "bert"), "torch eager", "float16", import_it)


def test_the_run_starts_without_what_parts_need():
    absent = ("torch", "tomli_w", "rich", "jinja2", "scipy")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import bench_gpu"
    path = os.pathsep.join([str(ROOT), str(ROOT / "lab")])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def event(name, start, end, device="DeviceType.CUDA"):
    span = types.SimpleNamespace(start=start, end=end)
    return types.SimpleNamespace(name=name, device_type=device, time_range=span, device_time_total=end - start)


def test_kernels_are_summed_by_name_and_copies_apart():
    events = [
        event("gemm", 0, 4000),
        event("add", 4000, 5000),
        event("gemm", 10000, 14000),
        event("Memcpy HtoD", 5000, 5500),
        event("cudaLaunchKernel", 0, 20000, device="DeviceType.CPU"),
    ]
    assert kernels.summary(events, 2, 1) == {
        "busy_ms": 4.5,
        "kernels": 1.5,
        "span_ms": 7.0,
        "copies": [("Memcpy HtoD", 0.5, 0.25)],
        "costliest": [("gemm", 1.0, 4.0)],
    }
    assert kernels.summary([], 2)["kernels"] == 0


# ---- results ----
def test_results_are_a_file_of_lines_and_names_do_not_collide(tmp_path):
    run_line = {"device": "NVIDIA H100 80GB HBM3", "date": "2026-11-26"}
    path = results.free_name(tmp_path, run_line)
    assert path.name == "2026-11-26-h100.jsonl"
    written = Results(run_line, [{"stage": "truths", "op": "Exp"}, {"stage": "part", "of": "truths"}])
    written.write(path)
    assert results.read(path) == written
    assert written.of("truths") == [{"stage": "truths", "op": "Exp"}]
    assert results.free_name(tmp_path, run_line).name == "2026-11-26-h100-2.jsonl"
    assert results.free_name(tmp_path, {"device": "My GPU (9)", "date": "d"}).name == "d-my-gpu-9.jsonl"


def test_the_line_of_a_run_names_versions_and_what_is_missing(monkeypatch):
    monkeypatch.setattr(results, "MODULES", ["numpy", "no_such_module"])
    line = results.environment("cpu", ["bench_gpu.py", "--smoke"])
    assert line["missing"] == ["no_such_module"]
    assert line["device"] == "CPU"
    assert line["command"] == "bench_gpu.py --smoke"
    assert line["versions"]["numpy"] == np.__version__
    time.strptime(line["date"], "%Y-%m-%d")


def record(**more):
    plain = {"stage": "inference", "name": "pointwise", "variant": "O2", "dtype": "float16", "ms": 2.0}
    return plain | {"p90_ms": 3.0, "loop_ms": 2.5} | more


@pytest.mark.parametrize(
    ("row", "faulty"),
    [
        (record(error_from_emulation=0.002), False),
        (record(error_from_emulation=0.02), True),
        (record(error_from_emulation=float("inf")), True),
        (record(error_from_emulation=0.02, dtype="bfloat16"), False),
        (record(failed="ValueError: no"), True),
        (record(failed="ValueError: no", variant="onnxruntime"), False),
        (record(failed="ValueError: no", stage="torch", variant="torch eager"), False),
        ({"stage": "part", "of": "training", "name": "raf", "ended": "stopped after 3 s"}, True),
        ({"stage": "part", "of": "torch", "name": "raf", "ended": "failed: no"}, False),
        ({"stage": "part", "of": "training", "name": "raf", "ended": "skipped: no torch"}, False),
    ],
)
def test_only_what_is_ours_is_a_fault(row, faulty):
    assert bool(list(table.faults(Results({}, [row])))) == faulty


@pytest.mark.parametrize(
    ("fp32", "low", "faulty"),
    [
        ({"error": 0.0}, {"error_from_emulation": 0.002}, False),
        ({"error": 0.0}, {"error_from_emulation": 0.2}, True),
        ({"error": 0.5}, {"error_from_emulation": 0.2}, False),
        ({"error": 0.0}, {"failed": "no kernel"}, True),
        ({"failed": "no kernel"}, {"failed": "no kernel"}, False),
    ],
)
def test_a_node_case_is_a_fault_where_float32_is_right(fp32, low, faulty):
    case = {"stage": "nodes", "name": "0-1", "case": "test_x", "fp32.float32": fp32, "O2.float16": low}
    assert bool(list(table.faults(Results({}, [case])))) == faulty


def test_times_are_held_against_float32_and_the_model():
    records = [
        record(variant="fp32", dtype="float32", ms=4.0, predicted_ms=2.0),
        record(ms=2.0, predicted_ms=4.0, error=0.01, memory_mb=2.0, busy_ms=1.5, kernels=12.0),
        record(stage="torch", variant="torch eager", ms=8.0),
    ]
    cells = table.cells(records[1], records)
    assert cells[4:12] == ["2.000", "3.000", "2.500", "1.500", "12.0", "2.00", "2", "1.00%"]
    assert table.cells(records[2], records)[9] == "0.50"
    assert table.against_the_model(records)["inference"] == {"mean": 1.0, "least": 0.5, "most": 2.0, "programs": 2}


@pytest.mark.parametrize(
    ("device", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_the_cost_model_s_row_is_found_by_the_device_s_name(device, row):
    assert results.row_of(device) == row
