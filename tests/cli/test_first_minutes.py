"""The first minutes: the command without arguments, `doctor` on stand-ins for machines, and completion in a shell."""

import dataclasses
import json
import shutil
import subprocess

import pytest

from amp_transpiler import telemetry, wheels
from amp_transpiler.cli import doctor as doctor_module, installation, measuring
from amp_transpiler.cli.command import main
from amp_transpiler.cli.completion import SHELLS, completion_script
from amp_transpiler.cli.diagnosis import diagnose, what_runs_where
from amp_transpiler.cli.installation import EXTRAS, Gpu, Installation, look
from amp_transpiler.cli.parser import build_parser
from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.options.table import OPTIONS
from amp_transpiler.runtime import cuda
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.probe import measure
from amp_transpiler.runtime.probe.elementwise import tails
from amp_transpiler.wheels import INSTALL


def test_without_arguments_three_examples_are_shown(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    examples = [line for line in captured.err.splitlines() if line.startswith("  amp-transpile ")]
    assert len(examples) == 3
    assert "amp-transpile doctor" in captured.err
    assert max(map(len, captured.err.splitlines())) <= 120


# ---- doctor ----

GPU = Gpu("NVIDIA H100 80GB HBM3", 85_000_000_000, (9, 0))
LIBRARIES = ("libcublas.so.13", "libcudnn.so.9")

WORKS = Installation(
    package="1.2.3",
    python="3.12.1",
    system="Linux x86_64",
    wheels={"onnxruntime-gpu": "1.31.1"},
    runtime="1.31.1",
    providers=("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"),
    built_for="13.0",
    driver="580.65.06",
    driver_cuda=(13, 0),
    gpus=(GPU,),
    extras=dict.fromkeys(EXTRAS, "1.0"),
    cache="/home/me/.cache/amp_transpiler",
    free_temporary=50_000_000_000,
    memory=16_000_000_000,
)


def machine(**changes):
    return dataclasses.replace(WORKS, **changes)


# A machine -> the rows that are not ok: (part, state, a part of what is found, the remedy).
MACHINES = {
    "everything works": (WORKS, []),
    "no GPU": (
        machine(driver=None, driver_cuda=None, gpus=(), missing=LIBRARIES, cuda_problem="no NVIDIA device answers"),
        [
            ("NVIDIA driver", "note", "none; all work is done on the CPU", ""),
            ("CUDA and cuDNN", "note", "libcublas.so.13, libcudnn.so.9; not needed without a device", ""),
        ],
    ),
    "a driver that is too old": (
        machine(driver="550.54.14", driver_cuda=(12, 4), cuda_problem="the NVIDIA driver knows CUDA 12.4"),
        [
            (
                "NVIDIA driver",
                "problem",
                "550.54.14, knows CUDA 12.4; ONNX Runtime is built for CUDA 13.0",
                "update the driver to 580.65.06 or newer",
            ),
            ("device 0", "problem", "not usable yet", ""),
        ],
    ),
    "a build for the CPU beside a GPU": (
        machine(
            wheels={"onnxruntime": "1.31.1"},
            providers=("CPUExecutionProvider",),
            built_for=None,
            cuda_problem="the installed onnxruntime has no CUDA provider",
        ),
        [
            (
                "ONNX Runtime",
                "problem",
                "a build for the CPU; providers: CPU; it cannot use the NVIDIA device",
                "pip install --force-reinstall --no-deps onnxruntime-gpu",
            ),
            ("device 0", "problem", "not usable yet", ""),
        ],
    ),
    "a build for the CPU without a GPU": (
        machine(wheels={"onnxruntime": "1.31.1"}, built_for=None, driver=None, driver_cuda=None, gpus=()),
        [("NVIDIA driver", "note", "none", "")],
    ),
    "too old for training": (
        machine(training_problem="it needs onnx 1.22 or newer, and 1.17.0 is installed", training_remedy="pip -U onnx"),
        [("training", "note", "it needs onnx 1.22 or newer", "pip -U onnx")],
    ),
    "two wheels, and the one with CUDA won": (
        machine(wheels={"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}),
        [
            (
                "ONNX Runtime",
                "note",
                "CPU; they share a folder, and the files of the one installed last are used",
                "",
            )
        ],
    ),
    "two wheels, and the one without CUDA won": (
        machine(
            wheels={"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"},
            built_for=None,
            cuda_problem="the installed onnxruntime and onnxruntime-gpu has no CUDA provider",
        ),
        [
            (
                "ONNX Runtime",
                "problem",
                "it cannot use the NVIDIA device",
                "pip install --force-reinstall --no-deps onnxruntime-gpu",
            ),
            ("device 0", "problem", "not usable yet", ""),
        ],
    ),
    "two wheels without a GPU": (
        machine(
            wheels={"onnxruntime": "1.31.1", "onnxruntime-openvino": "1.24.1"},
            built_for=None,
            driver=None,
            driver_cuda=None,
            gpus=(),
        ),
        [("ONNX Runtime", "note", "they share a folder", ""), ("NVIDIA driver", "note", "none", "")],
    ),
    "a newer ONNX Runtime than the tables": (
        machine(wheels={"onnxruntime-gpu": "1.99.0"}, runtime="1.99.0"),
        [
            ("ONNX Runtime", "note", "ONNX Runtime 1.99 is newer than the kernel tables: those of 1.31 decide", ""),
            ("arithmetic", "note", "verdicts for 1.99 are estimates", ""),
        ],
    ),
    "no ONNX Runtime": (
        machine(wheels={}, runtime=None, runtime_error="no wheel of it is installed", runtime_remedy=INSTALL),
        [("ONNX Runtime", "problem", "no wheel of it is installed", "pip install 'amp-transpiler[cpu]'")],
    ),
    "cuDNN is missing": (
        machine(missing=("libcudnn.so.9",), cuda_problem="ONNX Runtime cannot load the cuDNN libraries"),
        [
            ("device 0", "problem", "not usable yet", ""),
            ("CUDA and cuDNN", "problem", "libcudnn.so.9", "pip install 'amp-transpiler[cuda]'"),
        ],
    ),
    "devices are hidden": (
        machine(gpus=(), hidden="", cuda_problem="no NVIDIA device answers"),
        [("device", "problem", "CUDA_VISIBLE_DEVICES is ''", "unset CUDA_VISIBLE_DEVICES")],
    ),
    "no device answers": (
        machine(gpus=(), cuda_problem="no NVIDIA device answers"),
        [("device", "problem", "none answers", "look at what nvidia-smi says")],
    ),
    "a container without the driver's library": (
        machine(driver_cuda=None, gpus=(), cuda_problem="no NVIDIA device answers"),
        [("NVIDIA driver", "problem", "this process cannot open it", "docker run --gpus all")],
    ),
    "little room": (
        machine(cache="/nowhere", cache_is_writable=False, free_temporary=10**8, memory=10**9),
        [
            ("cache", "note", "/nowhere cannot be written", "export AMP_TRANSPILER_CACHE=FOLDER"),
            ("temporary files", "note", "0.1 GB free", "export TMPDIR=FOLDER"),
            ("memory", "note", "1.0 GB free", "--no-verify"),
        ],
    ),
    "telemetry that the user wants": (
        machine(telemetry="ORT_DISABLE_TELEMETRY is '0'"),
        [("telemetry", "note", "on: ORT_DISABLE_TELEMETRY is '0'", "export ORT_DISABLE_TELEMETRY=1")],
    ),
    "a place that is not one": (
        machine(wanted_place="gpu", place_problem="AMP_TRANSPILER_PLACE is 'gpu': expected a place"),
        [("default place", "problem", "AMP_TRANSPILER_PLACE is 'gpu'", "unset AMP_TRANSPILER_PLACE")],
    ),
    "the CPU is wanted": (machine(wanted_place="cpu"), []),
    "the second device is wanted": (machine(gpus=(GPU, Gpu("NVIDIA L4", 24_000_000_000)), wanted_place="cuda:1"), []),
    "no extras": (
        machine(extras=dict.fromkeys(EXTRAS), cache=None, memory=None),
        [
            ("torch", "note", "not installed; for training on several GPUs", "amp-transpiler[distributed]"),
            ("matplotlib", "note", "not installed; for pictures of loss curves", "amp-transpiler[plot]"),
        ],
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_missing_is_named_with_the_line_that_mends_it(name, monkeypatch, capsys):
    facts, expected = MACHINES[name]
    rows = [row for row in diagnose(facts) if row.state != "ok"]
    assert [(row.part, row.state) for row in rows] == [(part, state) for part, state, _, _ in expected]
    for row, (_, _, words, remedy) in zip(rows, expected, strict=True):
        assert words in row.found
        assert remedy in row.remedy
    monkeypatch.setattr(installation, "look", lambda: facts)
    status = main([doctor_module.DOCTOR])
    out = capsys.readouterr().out
    assert status == int(any(row.state == "problem" for row in rows))
    assert all(row.remedy in out for row in rows)


@pytest.mark.parametrize(
    ("name", "work", "place"),
    [
        ("everything works", "amp.Session, training", "CUDA:0 (NVIDIA H100 80GB HBM3)"),
        ("everything works", "conversion", "needs no GPU"),
        ("everything works", "the check of a result", "then CUDA:0 (NVIDIA H100 80GB HBM3), whose word counts"),
        ("no GPU", "the check of a result", "rounded as a GPU rounds them"),
        ("no GPU", "amp.Session, training", "emulated"),
        ("a driver that is too old", "--benchmark", "the CPU"),
        ("a place that is not one", "the check of a result", "nothing runs until AMP_TRANSPILER_PLACE is corrected"),
        ("a place that is not one", "amp.Session, training", "nothing runs until AMP_TRANSPILER_PLACE is corrected"),
        ("the CPU is wanted", "amp.Session, training", "emulated"),
        ("the CPU is wanted", "--benchmark", "the CPU, whose times"),
        ("the second device is wanted", "amp.Session, training", "CUDA:1 (NVIDIA L4)"),
        ("no ONNX Runtime", "conversion", "nowhere: it needs an ONNX Runtime"),
        ("too old for training", "amp.Session", "CUDA:0 (NVIDIA H100 80GB HBM3)"),
        ("too old for training", "training", "nowhere: it needs onnx 1.22 or newer, and 1.17.0 is installed"),
    ],
)
def test_what_will_run_where(name, work, place):
    assert place in dict(what_runs_where(MACHINES[name][0]))[work]


def test_doctor_knows_what_training_refuses(monkeypatch):
    assert installation.look().training_problem == ""
    monkeypatch.setattr(wheels, "OLDEST_ONNX_FOR_TRAINING", "99.0")
    machine = installation.look()
    assert machine.training_problem.startswith("it needs onnx 99.0 or newer, and ")
    assert machine.training_remedy == "pip install -U onnx"
    with pytest.raises(EnvironmentProblem, match=machine.training_problem.removeprefix("it ")):
        wheels.require_for_training.__wrapped__()


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("Linux x86_64", "off: ORT_DISABLE_TELEMETRY was set before ONNX Runtime was imported"),
        ("Windows AMD64", "ONNX Runtime's events go to Windows, whose settings of privacy decide"),
    ],
)
def test_where_telemetry_goes(system, words):
    rows = {row.part: row for row in diagnose(machine(system=system))}
    assert (rows["telemetry"].state, rows["telemetry"].found) == ("ok", words)


def test_this_machine_as_json(capsys):
    status = main([doctor_module.DOCTOR, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert status == int(any(part["state"] == "problem" for part in record["parts"]))
    assert {"amp-transpiler", "ONNX Runtime"} <= {part["part"] for part in record["parts"]}
    assert record["installation"]["runtime"] is not None
    assert record["installation"]["telemetry"] == telemetry.why_on()
    assert "conversion" in record["runs"]


def test_a_broken_onnx_runtime_is_told_and_not_raised(monkeypatch):
    fault = ("a library is missing", "pip install it")
    monkeypatch.setattr(installation, "fault_of_runtime", lambda: fault)
    looked = look()
    assert (looked.runtime, looked.runtime_error, looked.runtime_remedy) == (
        None,
        "a library is missing",
        "pip install it",
    )


class _Driver:
    """A stand-in for libcuda."""

    def cuDeviceGetName(self, text, _length, number):  # noqa: N802  the driver's own name
        text.value = f"NVIDIA L4 {number}".encode()

    def cuDeviceTotalMem_v2(self, pointer, _number):  # noqa: N802  likewise
        pointer._obj.value = 24_000_000_000


def test_devices_are_named_as_the_driver_does(monkeypatch):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 2)
    monkeypatch.setattr(cuda, "driver_library", _Driver)
    monkeypatch.setattr(cuda, "driver_cuda_version", lambda: (13, 0))
    monkeypatch.setattr(cuda, "cuda_problem", lambda _device_id=0: "the provider does not load")
    looked = look()
    assert [(gpu.name, gpu.memory) for gpu in looked.gpus] == [
        ("NVIDIA L4 0", 24_000_000_000),
        ("NVIDIA L4 1", 24_000_000_000),
    ]
    assert looked.cuda_problem == "the provider does not load"


@pytest.mark.parametrize(
    ("wanted", "problem", "row"),
    [
        ("", None, None),
        ("CPU", None, ("ok", "CPU, as AMP_TRANSPILER_PLACE says")),
        ("gpu", "AMP_TRANSPILER_PLACE is 'gpu'", ("problem", "AMP_TRANSPILER_PLACE is 'gpu'")),
        ("CUDA:99", "there is no CUDA device 99", ("problem", "there is no CUDA device 99: 1 visible")),
    ],
)
def test_the_place_of_the_variable_is_looked_at(monkeypatch, wanted, problem, row):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 1)
    monkeypatch.setattr(cuda, "driver_library", _Driver)
    monkeypatch.setattr(cuda, "driver_cuda_version", lambda: (13, 0))
    plain = cuda.cuda_problem.__wrapped__
    monkeypatch.setattr(cuda, "cuda_problem", lambda device_id=0: plain(device_id) if device_id else None)
    monkeypatch.setenv("AMP_TRANSPILER_PLACE", wanted)
    looked = look()
    assert looked.wanted_place == wanted
    assert (looked.place_problem is None) if problem is None else (problem in looked.place_problem)
    rows = [(each.state, each.found) for each in diagnose(looked) if each.part == "default place"]
    assert len(rows) == (row is not None)
    assert all(state == row[0] and row[1] in text for state, text in rows)


def test_doctor_refuses_other_options(capsys):
    assert main([doctor_module.DOCTOR, "model.onnx"]) == 2
    assert "unrecognized arguments: model.onnx; see amp-transpile doctor --help" in capsys.readouterr().err


# ---- doctor --measure ----
@pytest.fixture
def few_questions(monkeypatch, tmp_path):
    """A device that answers, which is the CPU, and a second's worth of questions."""
    monkeypatch.setenv("AMP_TRANSPILER_CACHE", str(tmp_path))
    monkeypatch.setattr(installation, "look", lambda: WORKS)
    monkeypatch.setattr(measuring, "device", CPUPlace)
    monkeypatch.setattr(measure, "questions", lambda: tails(low_format("float16")))
    return tmp_path


def test_the_device_is_measured_and_its_rows_are_kept(few_questions, capsys):
    assert main([doctor_module.DOCTOR, "--measure"]) == 0
    out = capsys.readouterr().out
    assert "the arithmetic of CPU" in out
    assert "12 rows: 12 kernels answered, 0 refused, 0 ran on the CPU" in out
    assert "other results in every run: none" in out
    [file] = (few_questions / "truths").iterdir()
    assert f"kept in {file}" in "".join(out.split("\n"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["condition"] for row in rows][:2] == ["tanh, n=1", "n=1"]
    assert {row["device"] for row in rows} == {"CPU"}


def test_what_was_measured_as_json(few_questions, capsys):
    assert main([doctor_module.DOCTOR, "--measure", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert (measured["device"], measured["summary"]["rows"]) == ("CPU", 12)
    assert measured["file"].startswith(str(few_questions))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no GPU", "no NVIDIA device answers"),
        ("a driver that is too old", "the NVIDIA driver knows CUDA"),
        ("two wheels, and the one without CUDA won", "has no CUDA provider"),
        ("no ONNX Runtime", "ONNX Runtime does not work here"),
        ("the CPU is wanted", "AMP_TRANSPILER_PLACE is CPU"),
        ("a place that is not one", "AMP_TRANSPILER_PLACE is 'gpu'"),
    ],
)
def test_without_a_device_measuring_says_why_and_ends_with_1(name, reason, monkeypatch, capsys):
    monkeypatch.setattr(installation, "look", lambda: MACHINES[name][0])
    monkeypatch.setattr(measuring, "device", lambda: pytest.fail("nothing may be opened"))
    assert main([doctor_module.DOCTOR, "--measure"]) == 1
    captured = capsys.readouterr()
    assert "doctor --measure: there is no device to ask: " in captured.err
    assert reason in captured.err
    assert "what runs where" in captured.out
    assert main([doctor_module.DOCTOR, "--measure", "--json"]) == 1
    assert reason in json.loads(capsys.readouterr().out)["measured"]["problem"]


# ---- completion ----


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_is_completed(shell, capsys):
    assert main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    for option in OPTIONS:
        for flag in option.flags:
            long, short = flag.removeprefix("--"), flag.removeprefix("-")
            assert flag in script if shell != "fish" else f"-l {long} " in script or f"-s {short} " in script, flag


@pytest.mark.parametrize(
    ("shell", "check"), [("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "-n"])]
)
def test_the_shell_reads_its_script(shell, check, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    path = tmp_path / "script"
    path.write_text(completion_script(shell), encoding="utf-8")
    subprocess.run([*check, str(path)], check=True)


WORDS = [
    ("amp-transpile --le", "--level"),
    ("amp-transpile --level ", "auto O0 OD O1 O2"),
    ("amp-transpile model.onnx --dtype b", "bfloat16"),
    ("amp-transpile --policy m", "mxnet"),
    ("amp-transpile d", "debug diff doctor"),
    ("amp-transpile diff --no", "--no-run"),
    ("amp-transpile debug --no", "--no-cure"),
    ("amp-transpile debug --level ", "auto OD O1 O2"),
    ("amp-transpile debug a.onnx --dtype b", "bfloat16"),
    ("amp-transpile doctor --j", "--json"),
    ("amp-transpile doctor --m", "--measure"),
    ("amp-transpile --check --fo", "--format"),
    ("amp-transpile models --check --format s", "sarif"),
    ("amp-transpile --check --fail-on n", "note never"),
    ("amp-transpile --completion f", "fish"),
    ("amp-transpile mo", "model.onnx models"),
    ("amp-transpile --inputs sa", "sample data.npz"),
]


def test_what_bash_offers(tmp_path):
    """The words that bash itself offers, as where TAB is pressed behind each line."""
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    (tmp_path / "models").mkdir()
    for name in ("model.onnx", "sample data.npz"):
        (tmp_path / name).touch()
    script = completion_script("bash").replace("compopt", ": compopt")  # only known while TAB is being handled
    lines = [script]
    for line, _ in WORDS:
        words = " ".join(f"'{word}'" for word in line.split(" "))
        lines.append(f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); _amp_transpile")
        lines.append("printf '%s ' \"${COMPREPLY[@]}\"; echo")
    done = subprocess.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    offered = [" ".join(sorted(line.split())) for line in done.stdout.splitlines()]
    assert offered == [" ".join(sorted(expected.split())) for _, expected in WORDS]


@pytest.mark.parametrize("arguments", [[], ["tcsh"], ["bash", "zsh"]])
def test_an_unknown_shell(arguments, capsys):
    assert main(["--completion", *arguments]) == 2
    assert "expected bash, zsh, fish; such as --completion bash" in capsys.readouterr().err


def test_help_names_every_command():
    text = build_parser().format_help()
    for word in ("diff", "debug", "doctor", "--check", "--completion"):
        assert f"amp-transpile {word}" in text
