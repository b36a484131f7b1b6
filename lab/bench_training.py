#!/usr/bin/env python3
"""Count what a training step would ask of a GPU, without one, and time it on a CPU, both against PyTorch.

    python lab/bench_training.py                     # the tables, as text: about fifteen minutes on two cores
    python lab/bench_training.py --write             # also writes docs/benchmarks/training.md
    python lab/bench_training.py --networks raf rocm --levels O2 --dtypes float16 --no-cpu
    python lab/bench_training.py --small             # sizes that take seconds: shows that everything works
    python lab/bench_training.py --json counts.json  # everything that was counted

Ours: launches, copies and memory of ONNX Runtime's CUDA provider on stand-ins for CUDA's libraries
(`lab/launches.py`: Linux on x86-64, gcc, binutils and the GPU wheel; without them only the CPU's part runs). "In
use" is what tensors take, exactly; "reserved" is what the arena takes from the device, the least of three layouts of
addresses. Bytes moved are what the kernels of the graph that ONNX Runtime made read and write, each tensor once, and
milliseconds are a model (`amp_transpiler.cost`). PyTorch: eager mode with fused attention and a fused
optimizer, counted operator by operator on tensors without contents (`lab/torch_counts.py`). On the CPU: one thread,
float32, steps of both in turns. The networks are in `lab/programs`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from amp_transpiler.cost import DEVICES
from programs import leftover, training_page
from programs.sizes import NETWORKS, small

LAB = pathlib.Path(__file__).resolve().parent
PAGE = LAB.parent / "docs" / "benchmarks" / "training.md"
CANNOT_TELL = 3  # the exit status of launches.py where this machine cannot count
LAYOUTS = 3
WITH_GRAPHS = ("fp32", "O2")
COUNTED = ("rocm", "raf", "resnet18", "resnet50", "transformer")
CPU_STEPS = (("transformer_cpu", 2), ("transformer_cpu", 8), ("cnn_cpu", 0))
CPU_COMPILED = (8, 16, 32)
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One step to count: a network at a level, in a format."""

    network: str
    level: str
    dtype: str


def cases(networks: Sequence[str], levels: Sequence[str], dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield every step; fp32 once, without a format. RAF's network runs with its own autocast, too."""
    for network in networks:
        for level in (*levels[:1], "raf", *levels[1:]) if network == "raf" else levels:
            for dtype in dtypes if level != "fp32" else ("float32",):
                yield Case(network, level, dtype)


# ---- ours, in children ----
def counted(case: Case, layouts: int, *, tiny: bool, jobs: int = 1) -> Record | None:
    """Count a step: exactly once, then what the arena takes under several layouts; None where this cannot be told."""
    arguments = [case.network, case.level, case.dtype, *(["small"] if tiny else [])]

    def under_a_layout(_: int) -> Record | None:
        return _launched([], [*arguments, "layout"], LAUNCHES_RANDOM_LAYOUT="1")

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        exact = pool.submit(_launched, ["--exact-memory"], arguments)
        runs = [run for run in pool.map(under_a_layout, range(layouts)) if run is not None]
        record = exact.result()
    if record is not None and runs:
        record["reserved"] = min(run["memory"]["reserved_peak"] for run in runs)
    if record is not None and case.level in WITH_GRAPHS:
        record["graphs"] = {form: _graph_memory(arguments, form) for form in training_page.GRAPHS}
    return record


def _graph_memory(arguments: list[str], form: str) -> int | None:
    """Return the bytes that a step reserves as CUDA graphs; None if it cannot be run in that form."""
    name, level, dtype, *rest = arguments
    record = _launched([], [name, level, dtype, form, *rest], program="graph_memory.py")
    return record["reserved"] if record is not None and record["as_asked"] else None


def _launched(
    options: list[str], arguments: list[str], program: str = "counted_step.py", **variables: str
) -> Record | None:
    child = LAB / "programs" / program
    command = [sys.executable, str(LAB / "launches.py"), "run", *options, str(child), *arguments]
    done = _run(command, **variables)
    if done.returncode == CANNOT_TELL:
        print(done.stderr.strip(), file=sys.stderr)
        return None
    return _last_line(done)


def on_cpu(*arguments: str) -> Record:
    """Return the times of one comparison, measured in a child."""
    return _last_line(_run([sys.executable, str(LAB / "programs" / "cpu_step.py"), *arguments]))


def _run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(LAB.parent), str(LAB)])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def _last_line(done: subprocess.CompletedProcess[str]) -> Record:
    if done.returncode:
        raise SystemExit(f"{' '.join(done.args)} failed with exit status {done.returncode}:\n{done.stderr[-2000:]}")
    record: Record = json.loads(done.stdout.splitlines()[-1])
    return record


# ---- PyTorch's, in this process ----
def in_torch(network: str, dtype: str, *, tiny: bool) -> Record:
    """Count PyTorch's step of a network."""
    from torch_counts import count_training

    counts = count_training(
        small(NETWORKS[network]) if tiny else NETWORKS[network], None if dtype == "float32" else dtype
    )
    return {
        "launches": counts.launches,
        "bytes": counts.bytes,
        "by_operator": dict(counts.by_name().most_common()),
        "predicted": {name: {"ms": counts.milliseconds(device)} for name, device in DEVICES.items()},
    }


def measure(options: argparse.Namespace) -> Record:
    """Count and time everything that is asked for; a file of an earlier run is written after each step."""
    steps: list[Record] = json.loads(options.resume.read_text()) if options.resume and options.resume.exists() else []
    known = {(step["network"], step["level"], step["dtype"]) for step in steps}
    for case in cases(options.networks, options.levels, options.dtypes):
        if dataclasses.astuple(case) in known:
            continue
        record = counted(case, options.layouts, tiny=options.small, jobs=options.jobs)
        if record is None:
            break
        steps.append({**dataclasses.asdict(case), "ours": record})
        if options.resume:
            options.resume.write_text(json.dumps(steps))
        print(f"counted {case.network} {case.level} {case.dtype}: {record['launches']} launches", file=sys.stderr)
    formats = ("float32", *options.dtypes)
    torch_steps = [
        {"network": network, "dtype": dtype, **in_torch(network, dtype, tiny=options.small)}
        for network in options.networks
        for dtype in formats
    ]
    times: list[Record] = []
    if options.cpu:
        number = "3" if options.small else "15"
        steps_of = CPU_STEPS[:1] if options.small else CPU_STEPS
        compiled = CPU_COMPILED[:1] if options.small else CPU_COMPILED
        times += [_timed("step", name, layers, number) for name, layers in steps_of]
        times += [_timed("compile", "transformer_cpu", layers) for layers in compiled]
    left = leftover.rows(steps, torch_steps)
    return {"steps": steps, "torch": torch_steps, "cpu": times, "leftover": left, "layouts": options.layouts}


def _timed(what: str, name: str, layers: int, *number: str) -> Record:
    times = on_cpu(what, name, str(layers), *number)
    print(f"timed {what} of {name} {layers}: ratio {times['ratio']:.2f}", file=sys.stderr)
    return {"what": what, "network": name, "layers": layers, **times}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=COUNTED, default=COUNTED, help="default: all")
    parser.add_argument("--levels", nargs="+", choices=("fp32", "O1", "O2"), default=("fp32", "O1", "O2"))
    parser.add_argument("--dtypes", nargs="+", choices=("float16", "bfloat16"), default=("float16", "bfloat16"))
    parser.add_argument("--small", action="store_true", help="sizes that take seconds")
    parser.add_argument("--cpu", action=argparse.BooleanOptionalAction, default=True, help="also time steps on the CPU")
    parser.add_argument("--layouts", type=int, default=LAYOUTS, help="layouts of addresses to try (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="children that count at the same time (%(default)s)")
    parser.add_argument("--resume", type=pathlib.Path, metavar="FILE", help="keep counted steps here, and take them up")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="also write everything that was found")
    parser.add_argument("--read", type=pathlib.Path, metavar="IN", help="measure nothing: show what --json wrote")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/training.md")
    options = parser.parse_args()
    record = json.loads(options.read.read_text()) if options.read else measure(options)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))
    print(training_page.tables(record))
    if options.write:
        PAGE.write_text(training_page.page(record), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
