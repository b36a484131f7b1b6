#!/usr/bin/env python3
"""Checks that need a GPU, in one command of under eight minutes.

    python scripts/gpu_check.py --json gpu.json
    python scripts/gpu_check.py --models paddle_lenet bert_1layer
    python scripts/gpu_check.py --rehearse              # on the CPU: shows that the script works, and nothing else

For every model of `models/`, and for ResNet-50 and BERT-base exported here where torch and transformers are installed:
converted at level auto to float16 and bfloat16, and by ONNX Runtime's own converter to float16; on CUDA the outputs
against the emulation on the CPU and against fp32, median latency, peak device memory, nodes left on the CPU. Then the
truths of `gpu_truths.py`: do GEMM, Conv, ReduceSum, ReduceMean, Softmax and LayerNormalization accumulate in float32?

Exit status: 0 all is well, 1 a conversion failed or a result is not what its emulation says, 2 no GPU answers here.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import amp_transpiler as amp
import gpu_truths
from amp_transpiler.runtime.benchmark import benchmark
from amp_transpiler.runtime.cuda import driver_device_count
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.runtime.places import Place
from amp_transpiler.systems.choice import DtypeName
from amp_transpiler.verification.compare import compare_outputs

MODELS = pathlib.Path(__file__).resolve().parent.parent / "models"
SECONDS = 420  # no further model is begun after this
# Largest relative norm error, device against emulation: kernels order sums their own way, and fuse roundings away.
EMULATION_TOLERANCE = {"float16": 0.01, "bfloat16": 0.04}
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model to check: its file, the inputs it is run on, and the seconds its export took."""

    name: str
    path: pathlib.Path
    feeds: dict[str, np.ndarray]


# ---- the models ----
# How often a sample is repeated along each axis, to give a GPU something to do.
REPEATS = {"paddle_lenet": (64,), "bert_1layer": (16,), "rocm_convnet": (1, 1, 16, 16)}
EXPORTED = ("resnet50", "bert_base")


def subjects(wanted: list[str], folder: pathlib.Path) -> Iterator[Subject | str]:
    """Yield every wanted model, or a line that says why one is skipped."""
    for path in sorted(MODELS.glob("*.onnx")):
        name = path.stem
        if name in wanted:
            with np.load(path.with_name(f"{name}.inputs.npz")) as arrays:
                yield Subject(name, path, {key: _repeat(arrays[key], REPEATS.get(name, ())) for key in arrays})
    for name in EXPORTED:
        if name in wanted:
            missing = [module for module in ("torch", "transformers") if importlib.util.find_spec(module) is None]
            yield f"{name}: skipped: {', '.join(missing)} not installed" if missing else _export(name, folder)


def _repeat(array: np.ndarray, repeats: tuple[int, ...]) -> np.ndarray:
    return np.tile(array, (*repeats, *(1,) * (array.ndim - len(repeats))))


def _export(name: str, folder: pathlib.Path) -> Subject:
    """Export from seeded weights by tracing, which needs torch and transformers alone."""
    import torch

    from corpus.architectures import ARCHITECTURES
    from corpus.exporting import export_torchscript
    from corpus.torch_tools import SEED, to_numpy

    torch.manual_seed(SEED)
    built = ARCHITECTURES["bert_base_12l" if name == "bert_base" else name].build(folder)
    path = folder / f"{name}.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what tracing takes for constant, and is
        export_torchscript(built, path, dynamic=True, raw=False)
    repeats = (8, 2) if name == "bert_base" else (16,)  # 8 x 128 tokens, 16 pictures
    return Subject(name, path, {key: _repeat(to_numpy(value), repeats) for key, value in built.inputs.items()})


# ---- one model ----
def check(subject: Subject, place: Place, folder: pathlib.Path, runs: int) -> list[Record]:
    """Return a record for each conversion of one model: ours in both formats, ONNX Runtime's in float16."""
    reference = _outputs(subject.path, subject, place)
    records = []
    formats: tuple[DtypeName, ...] = ("float16", "bfloat16")
    for dtype in formats:
        target = folder / f"{subject.name}.{dtype}.onnx"

        def convert(target: pathlib.Path = target, dtype: DtypeName = dtype) -> Record:
            report = amp.transpile(subject.path, target, dtype=dtype, inputs=subject.feeds)
            return {"low_nodes": report.low_nodes, "nodes": report.nodes, "casts": report.casts}

        records.append(_check_one(subject, "ours", dtype, target, convert, reference, place, runs))
    target = folder / f"{subject.name}.runtime.onnx"

    def convert_with_runtime() -> Record:
        return _convert_with_runtime(subject.path, target)

    records.append(_check_one(subject, "onnxruntime", "float16", target, convert_with_runtime, reference, place, runs))
    return records


def _check_one(
    subject: Subject,
    converter: str,
    dtype: str,
    target: pathlib.Path,
    convert: Callable[[], Record],
    reference: dict[str, Any],
    place: Place,
    runs: int,
) -> Record:
    record: Record = {"model": subject.name, "converter": converter, "dtype": dtype}
    try:
        record.update(convert())
        session = amp.Session(target, place)  # in a rehearsal it is emulated: the CPU has few bfloat16 kernels
        low, record["cpu_nodes"] = _named(session, session.run(subject.feeds)), len(session.cpu_nodes)
        del session  # its memory is no part of what is measured below
        record["error"] = _worst(reference, low)
        if converter == "ours":
            record["error_from_emulation"] = _worst(_outputs(target, subject, amp.CPUPlace()), low)
        measured = benchmark(subject.path, target, subject.feeds, place, runs=runs)
    except Exception as error:  # noqa: BLE001  whatever fails is the finding, and the other models go on
        record["failed"] = f"{type(error).__name__}: {error_text(error, 400)}"
        return record
    record.update(
        fp32_ms=measured.reference_ms,
        low_ms=measured.low_ms,
        fp32_peak=measured.reference_peak,
        low_peak=measured.low_peak,
    )
    return record


def _outputs(path: pathlib.Path, subject: Subject, place: Place) -> dict[str, Any]:
    session = amp.Session(path, place)
    return _named(session, session.run(subject.feeds))


def _named(session: amp.Session, outputs: list[Any]) -> dict[str, Any]:
    return {info.name: value for info, value in zip(session.outputs, outputs, strict=True)}


def _worst(reference: dict[str, Any], result: dict[str, Any]) -> float:
    """Return the largest relative norm error of any output; infinite where one is not finite."""
    rows = compare_outputs([reference], [result]).values()
    return max(math.inf if row.nonfinite else row.relative for row in rows)


def _convert_with_runtime(source: pathlib.Path, target: pathlib.Path) -> Record:
    import onnx
    from onnxruntime.transformers import float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    converted = OnnxModel(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True))
    converted.topological_sort()  # the converter puts casts behind their readers
    onnx.save(converted.model, target)
    return {"nodes": len(converted.model.graph.node), "casts": len(converted.get_nodes_by_op_type("Cast"))}


def faults(records: list[Record]) -> list[str]:
    """Return what is wrong with our own conversions, a line each."""
    found = []
    for record in records:
        if record["converter"] != "ours":
            continue
        label, limit = f"{record['model']} {record['dtype']}", EMULATION_TOLERANCE[record["dtype"]]
        if "failed" in record:
            found.append(f"{label}: {record['failed']}")
        elif not record["error_from_emulation"] <= limit:
            error = record["error_from_emulation"]
            found.append(f"{label}: the device differs from the emulation by {error:.2%}, more than {limit:.0%}")
    return found


# ---- showing ----
def _mb(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:.0f}"


def show(records: list[Record], truths: list[gpu_truths.Verdict], gemm_error: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 130)
    table = Table(
        "model", "converter", "dtype", "error", "from emulation", "fp32 ms", "low ms", "speed-up", "MB", "CPU nodes"
    )
    for record in records:
        head = [record["model"], record["converter"], record["dtype"]]
        if "failed" in record:
            table.add_row(*head, "failed")
            continue
        emulated = record.get("error_from_emulation")
        table.add_row(
            *head,
            f"{record['error']:.2%}",
            "" if emulated is None else f"{emulated:.2%}",
            f"{record['fp32_ms']:.3f}",
            f"{record['low_ms']:.3f}",
            f"{record['fp32_ms'] / record['low_ms']:.2f}",
            f"{_mb(record['fp32_peak'])} > {_mb(record['low_peak'])}",
            str(record["cpu_nodes"]),
        )
    console.print(table)
    for record in records:
        if "failed" in record:
            console.print(
                f"{record['model']} {record['converter']} {record['dtype']}: {record['failed']}", markup=False
            )
    table = Table("kernel", "dtype", "accumulates in", "error in ulps", "partial sums beyond 65504")
    for truth in truths:
        survives = {None: "", True: "come out right", False: "overflow"}[truth.survives_range]
        table.add_row(truth.question, truth.dtype, truth.accumulates_in, f"{truth.ulps}", survives)
    console.print(table)
    precision = "TF32" if gemm_error > 1e-5 else "float32"
    console.print(f"a float32 GEMM is computed in {precision} (largest relative error {gemm_error:.1e})")


def environment(place: Place) -> Record:
    """Return what the numbers depend on."""
    import onnxruntime

    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        device = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        device = "nvidia-smi does not answer"
    return {
        "place": str(place),
        "device": device,
        "onnxruntime": onnxruntime.__version__,
        "amp_transpiler": amp.__version__,
        "python": platform.python_version(),
    }


def run_truth(place: Place) -> gpu_truths.Run:
    """Return the function that runs a model of one output on `place`, as it is."""

    def run(model: Any, arrays: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(amp.Session(model, place, emulate=False).run(arrays)[0])

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*sorted(path.stem for path in MODELS.glob("*.onnx") if "." not in path.stem), *EXPORTED]
    parser.add_argument("--models", nargs="*", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--runs", type=int, default=50, help="timed runs of each program (default: 50)")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--rehearse", action="store_true", help="run it all on the CPU; says nothing of a GPU")
    options = parser.parse_args()
    place: Place = amp.CPUPlace()
    if options.rehearse:
        print("rehearsal on the CPU: none of these numbers is a GPU's")
    elif driver_device_count() == 0:
        print("gpu_check.py: no NVIDIA GPU answers on this machine (no driver, or no visible device)", file=sys.stderr)
        return 2
    else:
        place = amp.CUDAPlace(0)
        try:
            gpu_truths.float32_gemm_error(run_truth(place))
        except amp.EnvironmentProblem as problem:
            print(f"gpu_check.py: {problem}", file=sys.stderr)
            return 2
    start = time.perf_counter()
    records: list[Record] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        for subject in subjects(options.models, pathlib.Path(scratch)):
            if isinstance(subject, str):
                skipped.append(subject)
            elif time.perf_counter() - start > SECONDS:
                skipped.append(f"{subject.name}: skipped: {SECONDS} s are over")
            else:
                records += check(subject, place, pathlib.Path(scratch), options.runs)
                print(f"{subject.name}: done after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    truths = gpu_truths.all_truths(run_truth(place))
    gemm_error = gpu_truths.float32_gemm_error(run_truth(place))
    show(records, truths, gemm_error)
    wrong = faults(records)
    for line in [*skipped, *wrong]:
        print(line)
    if options.json:
        result = {
            "environment": environment(place),
            "rehearsal": options.rehearse,
            "seconds": time.perf_counter() - start,
            "models": records,
            "truths": [dataclasses.asdict(truth) for truth in truths],
            "float32_gemm_error": gemm_error,
            "skipped": skipped,
            "faults": wrong,
        }
        options.json.write_text(json.dumps(result, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
