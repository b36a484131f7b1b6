#!/usr/bin/env python3
"""Everything that needs a GPU, in one run of at most six minutes: the arithmetic of kernels, times, memory, outputs.

    PYTHONPATH=. python lab/bench_gpu.py --models MODELS --nodes CASES
    python lab/bench_gpu.py --only truths training:raf,rocm inference:bert     # what a change touches
    python lab/bench_gpu.py --smoke                     # on the CPU, small: shows that the script works, no more
    python lab/bench_gpu.py --page                      # docs/benchmarks/gpu.md from the files beside it

It needs no network: models are built from configurations with random weights, with torch, and transformers for BERT,
GPT-2, ViT and ResNet-50; what is not installed is left out, by name.

Stages, in the order of their worth: truths, the arithmetic of the device's kernels (`amp_transpiler.runtime.probe`);
prepare and inference: float32, our levels in both formats, ONNX Runtime's float16 converter; training: AMD's network
and RAF's BERT as in their documents, two ResNets, a transformer of four layers, at Paddle's levels; torch_training,
compiled_training, torch and compiled: PyTorch's, eager and compiled, with a fused optimizer and a scaler; options:
options of the provider against each other; models: a folder of models with MODEL.inputs.npz beside; nodes: ONNX's node
cases. Outputs are compared with float32 and with the emulation on the CPU. Kernels are counted by CUPTI. Every time of
ours stands beside what `amp_transpiler.cost` predicted from the graph that ran.

Each part runs in a process of its own with a limit in time; what fails, hangs or does not fit is named, and the rest
goes on. OUT gets DATE-DEVICE.jsonl, which is whole after every part, and DATE-DEVICE.errors.txt: in full what failed.
Exit status: 0 all is well, 1 a part of ours failed or a result is not what its emulation says, 2 no GPU is here.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from amp_transpiler.cost import DEVICES
from amp_transpiler.runtime.cuda import cuda_problem, driver_device_count
from gpu import models, page, table
from gpu.names import (
    COMPILED,
    COMPILED_BY_TORCH,
    MODELS_WITH_OPTIONS,
    STEPS_WITH_OPTIONS,
    TRAINED,
    TRAINED_BY_TORCH,
)
from gpu.records import Record, Task
from gpu.results import Results, environment, free_name, row_of
from gpu.running import STAGES, Part, run_all
from gpu.subjects import SUBJECTS

SECONDS = 350  # nothing runs longer


def names_of(stage: str, options: argparse.Namespace) -> Sequence[str]:
    """Return the names of a stage's parts."""
    if stage == "models":
        return models.model_names(options.models)
    if stage == "nodes":
        return models.node_slices(options.nodes)
    known: dict[str, Sequence[str]] = {
        "truths": ("kernels",),
        "training": TRAINED,
        "torch_training": TRAINED_BY_TORCH,
        "compiled_training": COMPILED_BY_TORCH,
        "compiled": COMPILED,
        "options": MODELS_WITH_OPTIONS + STEPS_WITH_OPTIONS,
    }
    return known.get(stage, tuple(SUBJECTS))


def tasks(options: argparse.Namespace, folder: pathlib.Path, place: str, device: str | None) -> Iterator[Task]:
    """Yield the chosen tasks, in their order.

    Raises:
        SystemExit: nothing has a name that was chosen.
    """
    plain = Task("", "", place, folder, options.smoke, device, variants=tuple(options.variants))
    for stage, beginnings in _chosen(options.only):
        names = [name for name in names_of(stage, options) if name.startswith(beginnings)]
        if beginnings != ("",) and not names:
            raise SystemExit(f"bench_gpu.py: {stage} has nothing named {', '.join(beginnings)}")
        source = {"models": options.models, "nodes": options.nodes}.get(stage)
        for name in names:
            yield dataclasses.replace(plain, stage=stage, name=name, source=source)


def _chosen(only: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield stages with the beginnings of names; inference and options need what prepare writes."""
    wanted = [word.partition(":")[::2] for word in only]
    stages = [stage for stage, _ in wanted]
    for stage, names in wanted:
        if stage not in STAGES:
            raise SystemExit(f"bench_gpu.py: there is no stage {stage!r}; stages are {', '.join(STAGES)}")
        beginnings = tuple(names.split(","))
        if stage in ("inference", "options") and "prepare" not in stages:
            subjects = tuple(name for name in beginnings if any(known.startswith(name) for known in SUBJECTS))
            if subjects:
                stages.append("prepare")
                yield "prepare", subjects
        yield stage, beginnings


def problem_of(place: str) -> str | None:
    """Return why nothing can be measured."""
    if place != "cuda":
        return None
    return cuda_problem() if driver_device_count() else "no NVIDIA GPU answers (no driver, or no visible device)"


def measure(options: argparse.Namespace, place: str) -> Results:
    """Run what was chosen, and return the results, which are in OUT from the first part on."""
    options.out.mkdir(parents=True, exist_ok=True)
    run: Record = environment(place, ["lab/bench_gpu.py", *sys.argv[1:]]) | {"smoke": options.smoke, "seconds": 0.0}
    path = free_name(options.out, run)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", ignore_cleanup_errors=True) as scratch:
        folder = pathlib.Path(scratch)
        chosen = list(tasks(options, folder, place, options.device or row_of(run["device"])))
        records: list[Record] = []

        def write(part: Part) -> None:
            records.extend([*part.task.found(), part.record()])
            run["seconds"] = round(time.monotonic() - start, 1)
            Results(run, records).write(path)
            if (errors := folder / "errors.txt").exists():
                shutil.copyfile(errors, path.with_suffix(".errors.txt"))

        run_all(chosen, options.seconds, write)
    print(f"results are in {path}", file=sys.stderr)
    return Results(run, records)


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(STAGES),
        metavar="STAGE[:NAME,...]",
        help=f"stages, or parts of them by the beginnings of their names; stages are {', '.join(STAGES)}",
    )
    parser.add_argument(
        "--variants", nargs="+", default=[], metavar="LEVEL.DTYPE", help="of models, such as auto.float16; default: all"
    )
    parser.add_argument("--models", type=pathlib.Path, metavar="FOLDER", help="models with MODEL.inputs.npz beside")
    parser.add_argument("--nodes", type=pathlib.Path, metavar="FOLDER", help="ONNX's node cases")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-results"), help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of the whole run (%(default)s)")
    parser.add_argument("--device", choices=DEVICES, help="the cost model's row; default: by the device's name")
    parser.add_argument("--smoke", action="store_true", help="small sizes, on the CPU unless --place says otherwise")
    parser.add_argument("--page", action="store_true", help="measure nothing: write docs/benchmarks/gpu.md")
    parser.add_argument("--place", choices=("cpu", "cuda"), help="default: cuda, or cpu with --smoke")
    return parser.parse_args(arguments)


def main() -> int:
    options = _options()
    if options.page:
        page.PAGE.write_text(page.page(), encoding="utf-8")
        return 0
    place = options.place or ("cpu" if options.smoke else "cuda")
    problem = problem_of(place)
    if problem:
        print(f"bench_gpu.py: {problem}", file=sys.stderr)
        return 2
    results = measure(options, place)
    table.show(results)
    return 1 if list(table.faults(results)) else 0


if __name__ == "__main__":
    sys.exit(main())
