#!/usr/bin/env python3
"""Count and price what sessions of a file ask of a GPU, without one: a default session, and one with options.

    python lab/bench_sessions.py MODEL.onnx...            # MODEL.inputs.npz beside it are its inputs, else zeros
    python lab/bench_sessions.py MODEL.onnx --dim past=128 --dim total=129
    python lab/bench_sessions.py MODEL.onnx --kernels     # and the time of each kernel

Sessions open on ONNX Runtime's CUDA provider over stand-ins (`lab/launches.py`: Linux on x86-64, gcc, binutils and the
GPU wheel). Launches are counted in the third run. Busy milliseconds are the price list's for the graph that the
provider made of the file, on the price list's own device.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

from gpu.models import inputs_beside

LAB = pathlib.Path(__file__).resolve().parent
SESSIONS: Mapping[str, tuple[str, ...]] = {"default": (), "no MatMulAddFusion": ("MatMulAddFusion",)}
"""Session -> optimizers of ONNX Runtime that are off in it."""
CANNOT_TELL = 3  # the exit status of launches.py where this machine cannot count
Record = dict[str, Any]


def main() -> int:
    """Print a row a session."""
    if sys.argv[1:2] == ["--child"]:
        return _count(*json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="an open dimension's size (1)")
    parser.add_argument("--kernels", action="store_true", help="print the time of each kernel, too")
    options = parser.parse_args()
    dims = {name: int(size) for name, _, size in (text.partition("=") for text in options.dim)}
    print("| file | session | launches | casts | gemm | copies | busy ms | by a rule |", "| --- " * 8 + "|", sep="\n")
    for model in options.models:
        for session, off in SESSIONS.items():
            record = measure(model, off, dims)
            print(_row(model, session, record), flush=True)
            if options.kernels:
                print(*_kernels(record), sep="\n")
    return 0


def measure(model: pathlib.Path, off: tuple[str, ...] = (), dims: Mapping[str, int] | None = None) -> Record:
    """Return counts of a run, with `busy`, `ruled` and `kernels` of the price list; `error` where it cannot run.

    Args:
        model: an ONNX file.
        off: names of optimizers that are off.
        dims: name of an open dimension -> its size.
    """
    with tempfile.TemporaryDirectory() as folder:
        optimized = pathlib.Path(folder, "optimized.onnx")
        task = json.dumps([str(model), list(off), dict(dims or {}), str(optimized)])
        command = [sys.executable, str(LAB / "launches.py"), "run", str(LAB / "bench_sessions.py"), "--child", task]
        path = os.pathsep.join([str(LAB.parent), str(LAB)])
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if done.returncode == CANNOT_TELL:
            raise SystemExit(done.stderr.strip())
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
        counts: Record = json.loads(done.stdout.splitlines()[-1])
        return counts | _priced(optimized, dims or {})


def _count(model: str, off: list[str], dims: dict[str, int], optimized: str) -> int:
    """Write the graph that the provider makes of a file, and print the counts of a run; on the stand-ins."""
    import numpy as np
    import onnxruntime as ort

    import launches

    options = ort.SessionOptions()
    options.log_severity_level, options.optimized_model_filepath = 4, optimized
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    ort.InferenceSession(
        model, options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"], disabled_optimizers=off
    )
    inputs = inputs_beside(pathlib.Path(model))
    feeds = None
    if inputs is not None:
        with np.load(inputs) as file:
            feeds = dict(file)
    print(json.dumps(launches.count_model(model, feeds, dims, disabled_optimizers=off)))
    return 0


def _priced(optimized: pathlib.Path, dims: Mapping[str, int]) -> Record:
    import onnx_ir as ir

    from amp_transpiler.cost import DEVICES, predicted, traffic
    from amp_transpiler.cost.work import is_measured, seconds_of
    from amp_transpiler.targets.price_list import price_list

    device = DEVICES[price_list().device]
    costs = [cost for cost in traffic(ir.load(optimized), dims) if not cost.rare]
    kernels: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0.0])
    for work in (work for cost in costs for work in cost.kernels):
        entry = kernels[f"{work.kernel}, {work.format}{'' if is_measured(work) else ', by a rule'}"]
        entry[0] += work.count
        entry[1] += 1e3 * seconds_of(work, device)
    run = predicted(costs, device)
    return {"busy": run.busy_milliseconds, "ruled": run.unmeasured, "predicted": run.launches, "kernels_ms": kernels}


def _row(model: pathlib.Path, session: str, record: Record) -> str:
    if "error" in record:
        return f"| {model.name} | {session} | {record['error'][:200]} |"
    copies = sum(kind["count"] for kind in record["memcpy"].values())
    kinds = record["kinds"]
    numbers = [record["launches"], kinds.get("cast", 0), kinds.get("gemm", 0), copies]
    cells = [model.name, session, *map(str, numbers), f"{record['busy']:.3f}", f"{record['ruled']:.0%}"]
    return f"| {' | '.join(cells)} |"


def _kernels(record: Record) -> Iterator[str]:
    for name, (count, time) in sorted(record.get("kernels_ms", {}).items(), key=lambda item: -item[1][1]):
        yield f"{time:9.4f} ms {count:5}  {name}"


if __name__ == "__main__":
    sys.exit(main())
