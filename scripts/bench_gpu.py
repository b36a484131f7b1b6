#!/usr/bin/env python3
"""Everything that needs a GPU, in one run of under eight minutes: times, memory, outputs, and the truths of kernels.

    PYTHONPATH=. python scripts/bench_gpu.py --json gpu.json
    python scripts/bench_gpu.py --only training truths      # some kinds of parts
    python scripts/bench_gpu.py --smoke                     # on the CPU, small: shows that the script works, no more

It needs no network: models are built from configurations with random weights, with torch, and transformers for BERT,
GPT-2, ViT and ResNet-50; what is not installed is left out, by name.

Truths: in which precision kernels accumulate (`gpu_truths.py`). Inference: float32, our levels auto and O2 in both
formats, with and without --optimize, ONNX Runtime's float16 converter, PyTorch eager under autocast and torch.compile;
outputs against float32 and against the emulation on the CPU. Training: AMD's network and RAF's BERT as in their
documents, ResNet-50, a transformer of four layers, ours at Paddle's levels and PyTorch's with a fused optimizer and a
scaler. Every time of ours stands beside what `amp_transpiler.precision.cost` predicted from the graph that ran.

Each part runs in a process of its own with a limit in time; what fails, hangs or does not fit is named, and the rest
goes on. Exit status: 0 all is well, 1 a part of ours failed or a result is not what its emulation says, 2 no GPU is
here.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import amp_transpiler as amp
from amp_transpiler.precision.cost import DEVICES
from amp_transpiler.runtime.cuda import cuda_problem, driver_device_count
from gpu import table
from gpu.options import NAMES as OPTIONS
from gpu.records import Record, Task
from gpu.subjects import SUBJECTS
from gpu.training import TRAINED

SCRIPTS = pathlib.Path(__file__).resolve().parent
SECONDS = 450  # nothing runs longer
# Kind -> seconds for one part at most. Parts run in this order, those that are prepared on the CPU all at once.
KINDS = {
    "truths": 60,
    "training": 60,
    "torch_training": 60,
    "prepare": 150,
    "options": 90,
    "inference": 90,
    "torch": 45,
    "compiled_training": 90,
    "compiled": 90,
}
UNAVAILABLE = 3


@dataclasses.dataclass(frozen=True)
class Part:
    """A part that ran, or did not: its kind and name, how it ended, and the seconds it took."""

    kind: str
    name: str
    ended: str
    seconds: float


def tasks(options: argparse.Namespace, folder: pathlib.Path, place: str, device: str | None) -> Iterator[Task]:
    """Yield all tasks, in the order of their worth."""
    programs = [f"{name}.{level}.{dtype}" for name, rows in TRAINED.items() for level, dtype in rows]
    names = {
        "options": OPTIONS,
        "truths": ["kernels"],
        "training": programs,
        "torch_training": TRAINED,
        "compiled_training": TRAINED,
    }
    for kind in KINDS:
        if kind in options.only or (kind == "prepare" and {"inference", "options"} & set(options.only)):
            for name in names.get(kind, SUBJECTS):
                if not options.programs or name.split(".")[0] in options.programs:
                    yield Task(kind, name, place, folder, options.smoke, device)


def run_all(given: Sequence[Task], seconds: float) -> list[Part]:
    """Run the tasks within some seconds: preparations beside each other, everything else alone."""
    start = time.monotonic()
    parts = []
    for kind in KINDS:
        group = [task for task in given if task.kind == kind]
        workers = max(1, (os.cpu_count() or 2) // 2) if kind == "prepare" else 1
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for part in pool.map(lambda task: run_part(task, start + seconds), group):
                print(f"{part.kind} {part.name}: {part.ended}, {part.seconds:.0f} s", file=sys.stderr, flush=True)
                parts.append(part)
    return parts


def run_part(task: Task, end: float) -> Part:
    """Run one task in a process of its own, which ends with its limit or with the whole run's."""
    start = time.monotonic()
    limit = min(KINDS[task.kind], end - start)
    if limit < 1:
        return Part(task.kind, task.name, "skipped: no time was left", 0)
    order = task.folder / f"{task.kind}.{task.name}.json"
    order.write_text(json.dumps({**dataclasses.asdict(task), "folder": str(task.folder)}))
    path = os.pathsep.join(filter(None, [str(SCRIPTS.parent), str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(SCRIPTS / "gpu" / "part.py"), str(order)]
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    try:
        _, said = child.communicate(timeout=limit)
        ended = _ending(child.returncode, said)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with the compilers that torch.compile starts
        child.communicate()
        ended = f"stopped after {limit:.0f} s"
    return Part(task.kind, task.name, ended, round(time.monotonic() - start, 1))


def _ending(status: int, said: str) -> str:
    last = (said.strip().splitlines() or [""])[-1][:300]
    if status == 0:
        return "done"
    if status == UNAVAILABLE:
        return f"skipped: {last}"
    return f"failed: {last}" if status > 0 else f"failed: {signal.Signals(-status).name}"


def row_of(device: str) -> str | None:
    """Return the cost model's row of the device that nvidia-smi names, or None."""
    wanted = device.replace(" ", "").upper()
    return next((name for name in DEVICES if name in wanted), None)


def environment(place: str) -> Record:
    """Return what the figures depend on."""
    import onnxruntime

    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        device = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        device = "nvidia-smi does not answer"
    return {
        "place": place,
        "device": device,
        "onnxruntime": onnxruntime.__version__,
        "amp_transpiler": amp.__version__,
        "python": platform.python_version(),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    known = sorted({*SUBJECTS, *TRAINED, "kernels"})
    parser.add_argument("--programs", nargs="+", choices=known, metavar="NAME", help=f"of {', '.join(known)}; all")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="also write everything that was found")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of the whole run (%(default)s)")
    parser.add_argument("--device", choices=DEVICES, help="the cost model's row; default: by the device's name")
    parser.add_argument("--smoke", action="store_true", help="small sizes, on the CPU unless --place says otherwise")
    parser.add_argument("--place", choices=("cpu", "cuda"), help="default: cuda, or cpu with --smoke")
    return parser.parse_args()


def main() -> int:
    options = _options()
    place = options.place or ("cpu" if options.smoke else "cuda")
    if place == "cuda":
        problem = cuda_problem() if driver_device_count() else "no NVIDIA GPU answers (no driver, or no visible device)"
        if problem:
            print(f"bench_gpu.py: {problem}", file=sys.stderr)
            return 2
    found: dict[str, Any] = {"environment": environment(place), "smoke": options.smoke}
    device = options.device or row_of(found["environment"]["device"])
    found["device"] = device
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        given = list(tasks(options, pathlib.Path(folder), place, device))
        parts = run_all(given, options.seconds)
        found["records"] = [record for task in given for record in task.found()]
    found["parts"] = [dataclasses.asdict(part) for part in parts]
    found["seconds"] = round(time.monotonic() - start, 1)
    found["faults"] = list(table.faults(found))
    found["model"] = table.against_the_model(found["records"])
    table.show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
