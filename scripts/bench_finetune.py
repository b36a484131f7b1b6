#!/usr/bin/env python3
"""Fine-tuning of the models at hand: ten steps of each, in float32 and at O2, as a table.

    python scripts/bench_finetune.py CORPUS --results finetune.jsonl      # CORPUS as scripts/fetch_corpus.py fills it
    python scripts/bench_finetune.py --results finetune.jsonl --write docs/benchmarks/finetune.md

A model counts if it is no larger than `--most` MB, has a float output and does not read or make quantised integers. Its
loss is the mean square of the difference between its first float output and a target: what ONNX Runtime computes of the
model, with noise of a tenth of its deviation. The difference is divided by the size of the noise, so that the loss is
about 1 before the first step. `static.from_onnx` imports it as it is; every third parameter is frozen
(`stop_gradient`); Adam at 1e-4 makes the steps on one core, at O2 with a loss scale that begins at 1024. Where the
first size of all fed inputs is free, every second step feeds the data twice, so that sizes differ from step to step.
Where no initializer is a weight, constants of nodes are trained (`constant_nodes=True`), as Paddle2ONNX writes them.

A model passes if all losses are finite, something has changed and nothing that is frozen has. Each case runs in a
process of its own; results are one JSON line each, and a second run goes on where the first stopped. Seconds are
processor time of the process and its children: importing, building, and three steps; and all ten.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

LEVELS = ("float32", "O2")
STEPS = 10
SECONDS = 600  # for one case
Record = dict[str, Any]


# ---- one case, in a process of its own ----
def one_case(path: pathlib.Path, level: str) -> Record:
    """Return what ten steps of a model give."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    floats = [output.name for output in session.get_outputs() if output.type in ("tensor(float)", "tensor(float16)")]
    if not floats:
        return {"skipped": "it has no float output"}
    feeds = given_feeds(path, [value.name for value in session.get_inputs()])
    first = target_of(session, floats[0], feeds)
    doubled = twice(session, floats[0], feeds, first)
    return train(path, level, floats[0], [(feeds, first), doubled or (feeds, first)]) | {"sizes": 2 if doubled else 1}


def given_feeds(path: pathlib.Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the data beside a model."""
    beside = path.with_name(f"{path.stem}.inputs.npz")
    with np.load(beside if beside.exists() else path.with_name("inputs.npz")) as arrays:
        return {name: arrays[name] for name in names}


def target_of(session: Any, output: str, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return what a model computes, with noise."""
    [y] = session.run([output], dict(feeds))
    noise = np.random.default_rng(0).normal(size=y.shape)
    return np.asarray(y + 0.1 * deviation(y) * noise, np.float32)


def deviation(y: np.ndarray) -> float:
    """Return the standard deviation of an output, and no less than a thousandth."""
    return float(np.std(y.astype(np.float64))) + 1e-3


def twice(
    session: Any, output: str, feeds: Mapping[str, np.ndarray], target: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
    """Return the data twice with its target; None if the model takes or makes no batch of another size."""
    free = {value.name for value in session.get_inputs() if value.shape and not isinstance(value.shape[0], int)}
    if free != set(feeds) or not target.ndim:
        return None
    doubled = {name: np.concatenate([array, array]) for name, array in feeds.items()}
    try:
        found = target_of(session, output, doubled)
    except Exception:  # noqa: BLE001  # a batch in name alone: the model itself refuses two
        return None
    return (doubled, found) if found.shape == (2 * target.shape[0], *target.shape[1:]) else None


def train(
    path: pathlib.Path, level: str, output: str, data: Sequence[tuple[Mapping[str, np.ndarray], np.ndarray]]
) -> Record:
    """Import a model, put a loss on an output, and make the steps."""
    from amp_transpiler import CPUPlace, optimizer, static
    from amp_transpiler.paddle import tensor

    startup, scope = static.Program(), static.Scope()
    main = static.from_onnx(str(path), startup)
    if not main.all_parameters():
        startup = static.Program()
        main = static.from_onnx(str(path), startup, constant_nodes=True)
    parameters = main.all_parameters()
    if not parameters:
        return {"skipped": "it has no weights"}
    frozen = [parameter.name for parameter in parameters[1::3]]
    for name in frozen:
        main.var(name).stop_gradient = True
    with static.program_guard(main, startup):
        target = static.data("target__", [-1] * data[0][1].ndim, "float32")
        difference = (tensor.cast(main.var(output), "float32") - target) * (10 / deviation(data[0][1]))
        loss = tensor.mean(difference * difference)
        adam: Any = optimizer.Adam(1e-4, multi_precision=level != "float32")
        if level != "float32":
            adam = static.amp.decorate(adam, level=level, init_loss_scaling=1024.0)
        adam.minimize(loss, startup)
    exe = static.Executor(CPUPlace())
    exe.run(startup, scope=scope)
    if level != "float32":
        adam.amp_init(CPUPlace(), scope)
    before = {parameter.name: np.array(scope[parameter.name]) for parameter in parameters}
    known = {str(value.name) for value in main.model.graph.inputs}
    losses, after_three = [], 0.0
    for step in range(STEPS):
        feeds, wanted = data[step % 2]
        fed = {name: array for name, array in feeds.items() if name in known} | {"target__": wanted}
        losses.append(float(exe.run(main, feed=fed, fetch_list=[loss], scope=scope)[0]))
        after_three = seconds() if step == 2 else after_three
    changed = [
        name for name, array in before.items() if not np.array_equal(array, np.array(scope[name]), equal_nan=True)
    ]
    return {
        "parameters": len(parameters),
        "losses": losses,
        "changed": len(changed),
        "frozen": len(frozen),
        "frozen_changed": sorted(set(changed) & set(frozen)),
        "seconds": round(after_three, 1),
        "seconds_of_all": round(seconds(), 1),
    }


def seconds() -> float:
    """Return the processor time of this process and its children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


# ---- all cases ----
def models(folders: Sequence[pathlib.Path], most: float) -> Iterator[tuple[pathlib.Path, str]]:
    """Yield the models with data beside them, small ones first, and their names."""
    found = [(path, folder) for folder in folders for path in folder.rglob("*.onnx")]
    sized = sorted((size_of(path), path, folder) for path, folder in found)
    for size, path, folder in sized:
        has_data = path.with_name(f"{path.stem}.inputs.npz").exists() or path.with_name("inputs.npz").exists()
        if size <= most * 1e6 and has_data:
            yield path, path.relative_to(folder).with_suffix("").as_posix()


def size_of(path: pathlib.Path) -> int:
    """Return the bytes of a model and of its weights in a file of their own."""
    data = path.with_name(path.name + ".data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def run_all(folders: Sequence[pathlib.Path], results: pathlib.Path, most: float) -> None:
    """Run the cases that have no result yet."""
    known = {(record["model"], record["level"]) for record in read(results)}
    for path, name in models(folders, most):
        for level in LEVELS:
            if (name, level) in known:
                continue
            record = {"model": name, "level": level, "mb": round(size_of(path) / 1e6, 1)} | in_a_child(path, level)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            print(name, level, summary(record), flush=True)


def in_a_child(path: pathlib.Path, level: str) -> Record:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--one", str(path), "--level", level]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {SECONDS} seconds"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    return {"error": f"the process ended with {done.returncode}: {' '.join(done.stderr.split())[-200:]}"}


def read(results: pathlib.Path) -> list[Record]:
    """Return the results so far."""
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] if results.exists() else []


# ---- the page ----
def passes(record: Record) -> bool:
    """Whether ten steps went as they should."""
    losses = record.get("losses", ())
    return bool(losses) and bool(np.isfinite(losses).all()) and record["changed"] > 0 and not record["frozen_changed"]


def summary(record: Record) -> str:
    """Return a result in a few words."""
    if "losses" not in record:
        return str(record.get("skipped") or record.get("error"))[:200]
    state = "passes" if passes(record) else "fails"
    return f"{state}: {record['losses'][0]:.3g} to {record['losses'][-1]:.3g}, {record['seconds']} s"


def page(records: Sequence[Record]) -> str:
    """Return the document."""
    by_model: dict[str, dict[str, Record]] = {}
    for record in records:
        by_model.setdefault(record["model"], {})[record["level"]] = record
    by_model = {name: both for name, both in by_model.items() if len(both) == len(LEVELS)}
    tried = {name: both for name, both in by_model.items() if not any("skipped" in record for record in both.values())}
    good = [name for name, both in tried.items() if all(map(passes, both.values()))]
    rows = [row(name, both) for name, both in sorted(tried.items())]
    left_out = {name: next(iter(both.values())) for name, both in by_model.items() if name not in tried}
    skipped = [f"- {name}: {record['skipped']}" for name, record in left_out.items()]
    return "\n".join(
        [
            "# Fine-tuning",
            "",
            "`python scripts/bench_finetune.py CORPUS --results finetune.jsonl`, then `--write`; its docstring tells",
            "what is done. Ten steps of Adam in float32 and at O2 (float16, emulated), every third parameter",
            "frozen; where the batch is free, every second step has twice the data. Seconds are processor time of one",
            "core for three steps, with importing and building.",
            "",
            f"{len(good)} of {len(tried)} models pass at both levels.",
            "",
            "| model | MB | parameters | sizes | float32: first loss, last | s | O2: first loss, last | s |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            "Left out:",
            "",
            *skipped,
            "",
        ]
    )


def row(name: str, both: Mapping[str, Record]) -> str:
    """Return a model's row."""
    cells = []
    for level in LEVELS:
        record = both.get(level, {"error": "not tried"})
        if "losses" in record:
            mark = "" if passes(record) else " (fails)"
            cells += [f"{record['losses'][0]:.3g}, {record['losses'][-1]:.3g}{mark}", f"{record['seconds']:.0f}"]
        else:
            cells += [str(record["error"]).replace("|", "/")[:160], ""]
    any_of = next((record for record in both.values() if "losses" in record), {})
    facts = [name, next(iter(both.values()))["mb"], any_of.get("parameters", ""), any_of.get("sizes", "")]
    return f"| {' | '.join(map(str, [*facts, *cells]))} |"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*", type=pathlib.Path, help="folders of models")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("finetune.jsonl"))
    parser.add_argument("--most", type=float, default=100.0, help="MB of a model")
    parser.add_argument("--write", type=pathlib.Path, help="the page to write")
    parser.add_argument("--one", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--level", choices=LEVELS, default=LEVELS[0], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        try:
            record = one_case(options.one, options.level)
        except Exception as error:  # noqa: BLE001  # of any kind: it is the result
            record = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        print(json.dumps(record))
        return
    if options.corpus:
        run_all(options.corpus, options.results, options.most)
    if options.write:
        options.write.write_text(page(read(options.results)), encoding="utf-8")


if __name__ == "__main__":
    main()
