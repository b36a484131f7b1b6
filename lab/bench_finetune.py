#!/usr/bin/env python3
"""Fine-tuning of the models at hand: ten steps of each, in float32 and at O2, as a table.

    python lab/bench_finetune.py CORPUS --results finetune.jsonl      # CORPUS as lab/fetch_corpus.py fills it
    python lab/bench_finetune.py CORPUS --results finetune.jsonl --torch PYTHON   # and PyTorch's losses beside ours
    python lab/bench_finetune.py --results finetune.jsonl --write docs/benchmarks/finetune.md

A model counts if it is no larger than `--most` MB, has a float output and does not read or make quantised integers.
`static.from_onnx` imports the model as it is; every third parameter is frozen (`stop_gradient`). The target is what
the program computes for the first float output in float32 after every trained weight was multiplied by 1 + 0.1 n, n
from the standard normal distribution: so training can reach it. Where that makes the output infinite or of another
size, 0.1 is divided by 10 until it does not. The loss is the mean square of the difference, computed in float32 at
both levels, and divided by what it is at the weights of the file: it begins at 1, and 0.1 says that nine tenths of
what was asked for are learned. Adam makes the steps on one core, at O2 with a loss scale that begins at 1024; steps
that are skipped until it fits are made again, and not counted. Where the first size of all fed inputs is free, every
second step feeds the data twice, so that sizes differ from step to step. Where no initializer is a weight, constants
of nodes are trained (`constant_nodes=True`), as Paddle2ONNX writes them.

The learning rate comes from a line search in float32: the rates 1e-3, 3e-4, 1e-4 and so on make three steps each on
the first data, until one does worse than the one before; the mean of the second and third loss tells. If the loss of
the ten steps then comes back to where it began, from the third step on, the next smaller rate is taken. O2 takes the
same rate. A model passes if all losses are finite, the last is below the first and below 1, something has changed and
nothing that is frozen has. Each case runs in a process of its own; results are one JSON line each, and a second run
goes on where the first stopped. Seconds are processor time of the process and its children: importing, building, and
three steps; and all ten; making the target and looking for the rate do not count.

With `--torch`, the interpreter of an environment for lab/export_corpus.py, models that PyTorch exported make
the ten steps in PyTorch, too, all parameters trained: `lab/programs/finetune_twin.py`. "folded" in the table: the
exporter folded normalisations into weights or made one of equal parameters, so that other numbers are trained. Where
the losses differ, PyTorch makes the steps three times more: in float64; in float64 after every weight was changed by
2**-24 of itself, which float32 cannot tell; and in float32 with the channels last, which sums in another order.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from programs.finetune_page import LEVELS, SAME, TWIN, WHITE_LIST, Record, fails, page, summary, twin_difference

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later

REFEREES = ("float64", "nudged", "channels last")  # of PyTorch, where the losses differ
STEPS = 10
MOST_SKIPPED = 30  # of a case, until its loss scale fits
SCALE = 1024.0
RATES = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7)
PERTURBATIONS = (0.1, 0.01, 0.001)
SECONDS = 1800  # for one case


# ---- one case, in a process of its own ----
def one_case(
    path: pathlib.Path, level: str, rate: float | None, torch: str | None, known: pathlib.Path | None
) -> Record:
    """Return what ten steps of a model give."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  # it has no exception of its own: no kernel for bfloat16, or an invalid model
        return {"skipped": "ONNX Runtime does not open it on a CPU"}
    floats = [output.name for output in session.get_outputs() if output.type in ("tensor(float)", "tensor(float16)")]
    if not floats:
        return {"skipped": "it has no float output"}
    if is_quantized(path):
        return {"skipped": "it is quantised, so no gradient passes"}
    feeds = given_feeds(path, [value.name for value in session.get_inputs()])
    began = seconds()
    case, parts = case_of(session, path, floats[0], feeds, known)
    if case is None:
        return parts
    seconds_to_build = seconds() - began
    if level == TWIN:
        place = [output.name for output in session.get_outputs()].index(floats[0])
        return beside_torch(path, case, rate, place, str(torch))
    return train(path, level, case, rate, seconds_to_build) | parts


def is_quantized(path: pathlib.Path) -> bool:
    """Whether a model computes with quantised integers."""
    import onnx_ir

    graph = onnx_ir.load(path).graph
    return any(any(sign in node.op_type for sign in ("Quantize", "Integer", "QLinear")) for node in graph.all_nodes())


@dataclasses.dataclass(frozen=True)
class Case:
    """An output, the data with its target for even and for odd steps, and the mean square that the loss divides by."""

    output: str
    data: Sequence[tuple[Mapping[str, np.ndarray], np.ndarray]]
    square: float


def given_feeds(path: pathlib.Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the data beside a model."""
    beside = path.with_name(f"{path.stem}.inputs.npz")
    with np.load(beside if beside.exists() else path.with_name("inputs.npz")) as arrays:
        return {name: arrays[name] for name in names}


def case_of(
    session: Any, path: pathlib.Path, output: str, feeds: dict[str, np.ndarray], known: pathlib.Path | None
) -> tuple[Case | None, Record]:
    """Return what to learn, and facts for the record: why there is nothing, if there is not.

    Args:
        session: the model in ONNX Runtime.
        path: the model.
        output: the output that the loss is put on.
        feeds: its data.
        known: a file that keeps the target for the model's other cases.
    """
    if known is not None and known.exists():
        with np.load(known) as arrays:
            target, square, size = arrays["target"], float(arrays["square"]), float(arrays["size"])
    else:
        model = Imported(path, freezes=True)
        if not model.parameters:
            return None, {"skipped": "it has no weights"}
        before = model.outputs(output, feeds)
        for size in PERTURBATIONS:
            target = model.outputs(output, feeds, size)
            square = float(np.mean((target - before) ** 2.0)) if target.shape == before.shape else 0.0
            if np.isfinite(square) and square > 0:
                break
        else:
            return None, {"skipped": "no trained weight changes its first float output"}
        if known is not None:
            np.savez(known, target=target, square=square, size=size)
    doubled = twice(session, output, feeds, target)
    data = [(feeds, target), doubled or (feeds, target)]
    return Case(output, data, square), {"sizes": 2 if doubled else 1, "perturbed": size}


class Imported:
    """A model as `static.from_onnx` gives it, without a loss."""

    def __init__(self, path: pathlib.Path, *, freezes: bool) -> None:
        from amp_transpiler import CPUPlace, static
        from amp_transpiler.paddle import set_flags

        set_flags({"FLAGS_check_index_range": False})  # made-up ids may be negative: ONNX counts them from the end
        self.startup, self.scope, self.exe = static.Program(), static.Scope(), static.Executor(CPUPlace())
        main = static.from_onnx(str(path), self.startup)
        if not main.all_parameters():
            self.startup = static.Program()
            main = static.from_onnx(str(path), self.startup, constant_nodes=True)
        self.main = main
        self.parameters = [parameter.name for parameter in main.all_parameters()]
        self.has_batch_norms = any(each.kind == "statistic" for each in main.persistables.values())
        self.frozen = self.parameters[1::3] if freezes else []
        for name in self.frozen:
            main.var(name).stop_gradient = True
        self.known = {str(value.name) for value in main.model.graph.inputs}

    def outputs(self, output: str, feeds: Mapping[str, np.ndarray], perturbed: float = 0.0) -> np.ndarray:
        """Return an output, with trained weights changed by this part of themselves."""
        self.exe.run(self.startup, scope=self.scope)
        draws = np.random.default_rng(0)
        for name in self.parameters if perturbed else ():
            if name not in self.frozen:
                array = np.array(self.scope[name])
                self.scope[name] = (array * (1 + perturbed * draws.standard_normal(array.shape))).astype(array.dtype)
        fed = {name: array for name, array in feeds.items() if name in self.known}
        [fetched] = self.exe.run(self.main, feed=fed, fetch_list=[self.main.var(output)], scope=self.scope)
        return np.asarray(fetched, np.float32)


def twice(
    session: Any, output: str, feeds: Mapping[str, np.ndarray], target: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
    """Return the data and the target twice; None if the model takes or makes no batch of another size."""
    free = {value.name for value in session.get_inputs() if value.shape and not isinstance(value.shape[0], int)}
    if free != set(feeds) or not target.ndim:
        return None
    doubled = {name: np.concatenate([array, array]) for name, array in feeds.items()}
    try:
        [output_of_doubled] = session.run([output], doubled)
    except Exception:  # noqa: BLE001  # a batch in name alone: the model itself refuses two
        return None
    both = np.concatenate([target, target])
    return (doubled, both) if output_of_doubled.shape == both.shape else None


def train(path: pathlib.Path, level: str, case: Case, rate: float | None, uncounted: float = 0.0) -> Record:
    """Import a model, put a loss on an output, and make the steps."""
    trial = Trial(path, level, case)
    began = seconds()
    rate = trial.find_rate() if rate is None else rate
    uncounted += seconds() - began
    trial.start(rate)
    before = trial.weights()
    losses, skipped, after_three = [], 0, 0.0
    for step in range(STEPS):
        began = seconds()
        losses.append(trial.step(step))
        while trial.overflowed and skipped < MOST_SKIPPED:  # the scale was halved: the step is made again
            skipped, uncounted, began = skipped + 1, uncounted + seconds() - began, seconds()
            losses[-1] = trial.step(step)
        after_three = seconds() if step == 2 else after_three
    after = trial.weights()
    changed = [name for name, array in before.items() if not np.array_equal(array, after[name], equal_nan=True)]
    return {
        "parameters": len(before),
        "has_batch_norms": trial.has_batch_norms,
        "rate": rate,
        "losses": losses,
        "skipped_steps": skipped,
        "changed": len(changed),
        "frozen": len(trial.frozen),
        "frozen_changed": sorted(set(changed) & set(trial.frozen)),
        "seconds": round(after_three - uncounted, 1),
        "seconds_of_all": round(seconds() - uncounted, 1),
    }


class Trial(Imported):
    """A model with a loss and an optimizer."""

    def __init__(self, path: pathlib.Path, level: str, case: Case) -> None:
        from amp_transpiler import CPUPlace, disable_amp, optimizer, static
        from amp_transpiler.paddle import tensor

        super().__init__(path, freezes=level != TWIN)
        self.level, self.case, self.place, main = level, case, CPUPlace(), self.main
        self.overflowed = False
        target = case.data[0][1]
        with static.program_guard(main, self.startup):
            wanted = static.data("target__", [-1] * target.ndim, "float32")
            with disable_amp():
                difference = (tensor.cast(main.var(case.output), "float32") - wanted) * case.square**-0.5
                self.loss = tensor.mean(difference * difference)
            self.adam: Any = optimizer.Adam(RATES[0], multi_precision=level == "O2")
            if level in ("O1", "O2"):
                self.adam = static.amp.decorate(
                    self.adam, level=level, init_loss_scaling=SCALE, decr_every_n_nan_or_inf=1, decr_ratio=0.5
                )
            self.adam.minimize(self.loss, self.startup)

    def start(self, rate: float) -> None:
        """Give everything its initial value."""
        self.exe.run(self.startup, scope=self.scope)
        if self.level in ("O1", "O2"):
            self.adam.amp_init(self.place, self.scope)
        self.adam.set_lr(rate, self.scope)

    def step(self, number: int) -> float:
        """Make a step, and return its loss; `overflowed` tells whether a loss scaler skipped it."""
        feeds, target = self.case.data[number % len(self.case.data)]
        fed = {name: array for name, array in feeds.items() if name in self.known} | {"target__": target}
        scaled = [self.adam.found_inf.name] if self.level in ("O1", "O2") else []
        loss, *infinite = self.exe.run(self.main, feed=fed, fetch_list=[self.loss, *scaled], scope=self.scope)
        self.overflowed = any(map(bool, infinite))
        return float(loss)

    def find_rate(self) -> float:
        """Return the rate with the lowest second and third loss on the first data, in the mean, if ten steps hold."""
        best, lowest = RATES[-1], 1.0
        for rate in RATES:
            self.start(rate)
            mean = sum([self.step(0) for _ in range(3)][1:]) / 2
            if mean < lowest:
                best, lowest = rate, mean
            elif lowest < 1:
                break
        smaller = RATES[RATES.index(best) :]
        return next((rate for rate in smaller if self.holds(rate)), RATES[-1])

    def holds(self, rate: float) -> bool:
        """Whether the loss of ten steps does not come back to where it began."""
        self.start(rate)
        first, _, *rest = (self.step(number) for number in range(STEPS))
        return bool(max(rest) < first)

    def weights(self) -> dict[str, np.ndarray]:
        """Return a copy of all parameters."""
        return {name: np.array(self.scope[name]) for name in self.parameters}


def beside_torch(path: pathlib.Path, case: Case, rate: float | None, place: int, torch: str) -> Record:
    """Make the steps here and in PyTorch, on the first data, nothing frozen, and return both losses."""
    case = dataclasses.replace(case, data=case.data[:1])
    model = Imported(path, freezes=False)
    [(_, target)] = case.data
    request: Record = {"path": str(path.resolve()), "place": place, "steps": STEPS, "rate": rate}
    sizes = [int(np.prod(model.main.var(name).shape)) for name in model.parameters]
    request |= {"has_batch_norms": model.has_batch_norms, "numbers": sum(sizes), "as": "float32"}
    with tempfile.TemporaryDirectory() as folder:
        np.save(pathlib.Path(folder, "target.npy"), target)
        request |= {"target": str(pathlib.Path(folder, "target.npy")), "scale": case.square**-0.5}
        theirs = in_torch(torch, request)
        if "skipped" in theirs:
            return {"twin": theirs}
        record = train(path, TWIN, case, rate) | {"twin": theirs}
        if (twin_difference(record) or 0.0) >= SAME:
            record["referees"] = {form: in_torch(torch, request | {"as": form}) for form in REFEREES}
    return record


def in_torch(torch: str, request: Record) -> Record:
    """Return what PyTorch makes of a request."""
    command = [torch, str(pathlib.Path(__file__).with_name("programs") / "finetune_twin.py"), json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return last_record(done.stdout) or {"error": " ".join(done.stderr.split())[-300:]}


def seconds() -> float:
    """Return the processor time of this process and its children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


# ---- all cases ----
def models(folders: Sequence[pathlib.Path], most: float) -> Iterator[tuple[pathlib.Path, str]]:
    """Yield the models with data beside them, small ones first, and their names."""
    pairs = [(path, folder) for folder in folders for path in folder.rglob("*.onnx")]
    sized = sorted((size_of(path), path, folder) for path, folder in pairs)
    for size, path, folder in sized:
        has_data = path.with_name(f"{path.stem}.inputs.npz").exists() or path.with_name("inputs.npz").exists()
        if size <= most * 1e6 and has_data:
            yield path, path.relative_to(folder).with_suffix("").as_posix()


def size_of(path: pathlib.Path) -> int:
    """Return the bytes of a model and of its weights in a file of their own."""
    data = path.with_name(path.name + ".data")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def run_all(folders: Sequence[pathlib.Path], results: pathlib.Path, most: float, torch: str | None) -> None:
    """Run the cases that have no result yet."""
    known = {(record["model"], record["level"]): record for record in read(results)}
    for path, name in models(folders, most):
        has_twin = torch is not None and path.parent.parent.name == "exported"
        with tempfile.TemporaryDirectory() as folder:
            more = ["--target", str(pathlib.Path(folder, "target.npz")), *([] if torch is None else ["--torch", torch])]
            for level in (*LEVELS, WHITE_LIST, TWIN) if has_twin else (*LEVELS, WHITE_LIST):
                if (name, level) in known or (level == WHITE_LIST and not fails(known.get((name, "O2"), {}))):
                    continue
                record = {"model": name, "level": level, "mb": round(size_of(path) / 1e6, 1)}
                record |= in_a_child(path, level, known.get((name, LEVELS[0]), {}), more)
                known[name, level] = record
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                print(name, level, summary(record), flush=True)


def in_a_child(path: pathlib.Path, level: str, plain: Record, more: Sequence[str]) -> Record:
    """Run one case in a process of its own, with the rate that `plain`, the float32 one, has found."""
    if "skipped" in plain:
        return {"skipped": plain["skipped"]}
    command = [sys.executable, __file__, "--one", str(path), "--level", level, *more]
    if "losses" in plain:
        command += ["--rate", str(plain["rate"])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {SECONDS} seconds"}
    ended = f"the process ended with {done.returncode}: {' '.join(done.stderr.split())[-200:]}"
    return last_record(done.stdout) or {"error": ended}


def last_record(text: str) -> Record | None:
    """Return the last line that is a record."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1])) if lines else None


def read(results: pathlib.Path) -> list[Record]:
    """Return the results so far."""
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] if results.exists() else []


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="*", type=pathlib.Path, help="folders of models")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("finetune.jsonl"))
    parser.add_argument("--most", type=float, default=100.0, help="MB of a model")
    parser.add_argument("--write", type=pathlib.Path, help="the page to write")
    parser.add_argument("--no-run", action="store_true", help="write the page of the results that are there")
    parser.add_argument("--one", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--torch", metavar="PYTHON", help="the interpreter of an environment for export_corpus.py")
    parser.add_argument("--level", choices=(*LEVELS, WHITE_LIST, TWIN), default=LEVELS[0], help=argparse.SUPPRESS)
    parser.add_argument("--target", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        try:
            record = one_case(options.one, options.level, options.rate, options.torch, options.target)
        except Exception as error:  # noqa: BLE001  # of any kind: it is the result
            record = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        print(json.dumps(record))
        return
    if options.corpus and not options.no_run:
        run_all(options.corpus, options.results, options.most, options.torch)
    if options.write:
        names = [name for _, name in models(options.corpus, options.most)]
        options.write.write_text(page(read(options.results), names), encoding="utf-8")


if __name__ == "__main__":
    main()
