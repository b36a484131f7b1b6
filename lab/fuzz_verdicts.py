#!/usr/bin/env python3
"""Looks for wrong verdicts: random real models, converted on random samples, judged on what their verdicts claim.

    python lab/fuzz_verdicts.py CORPUS --count 200 --seed 1 --jobs 2
    python lab/fuzz_verdicts.py CORPUS --seed 1 --index 17      # one trial again

A trial draws a model, a format and a limit, and changes the sample beside it: other levels of signals and pictures,
shorter lengths, masked ends, the other value of a switch or a sampling rate. It converts at level auto on that sample.
Where the result is *verified* or *estimated*, the tests' oracle (`tests/oracle`, which shares no code with the package)
rounds it on the sample and, where the verdict names levels, on those. A float output
that is off by more than twice the limit is a wrong verdict, and exit status 1. A trial depends on the run's seed, its
number and the corpus alone.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import importlib
import multiprocessing
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported, which comes later
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import amp_transpiler as amp
from amp_transpiler.graph.input_roles import ModelInput
from amp_transpiler.report.verdict import judgement_of
from amp_transpiler.verification.signal_levels import scaled_inputs

# By name: the tests are not type-checked, and mypy would follow an import into them.
_JUDGE: Any = importlib.import_module("tests.oracle.judge")

Sample = dict[str, np.ndarray]

_TOLERANCES = {"float16": (0.001, 0.005, 0.02), "bfloat16": (0.02, 0.05)}
_LEVELS = (0.1, 1.0, 3.0)  # those that a verdict names
_ALLOWED = 2.0  # times the limit: two judges add up in another order
_RATES = (8000, 16000)
_CERTAIN = ("verified", "estimated")


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of one trial.

    Attributes:
        number: of the trial.
        told: model, format, limit and changes, in words.
        outcome: `wrong`, `right`, a verdict that claims nothing, or why there is none.
        detail: the error and the verdict.
    """

    number: int
    told: str
    outcome: str
    detail: str = ""


def main() -> int:
    options = _options()
    models = _models(options.corpus, options.largest)
    if options.index is not None:
        trial = attempt(options.seed, options.index, models)
        print(f"{trial.number}: {trial.told}\n{trial.outcome}: {trial.detail}")
        return int(trial.outcome == "wrong")
    counts: collections.Counter[str] = collections.Counter()
    context = multiprocessing.get_context("spawn")  # a forked ONNX Runtime would wait for threads that it does not have
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        numbers = range(options.start, options.start + options.count)
        started = [pool.submit(attempt, options.seed, number, models) for number in numbers]
        for done in concurrent.futures.as_completed(started):
            trial = done.result()
            counts[trial.outcome] += 1
            if trial.outcome == "wrong":
                print(f"WRONG {trial.number}: {trial.told}: {trial.detail}", flush=True)
            elif options.verbose:
                print(f"{trial.number}: {trial.told}: {trial.outcome} {trial.detail}", flush=True)
    print(f"\n| outcome | of {options.count} trials, seed {options.seed}, {len(models)} models |\n|---|---|")
    for outcome, count in counts.most_common():
        print(f"| {outcome} | {count} |")
    return int(counts["wrong"] > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0, help="of the run (default 0)")
    parser.add_argument("--count", type=int, default=100, help="trials (default 100)")
    parser.add_argument("--start", type=int, default=0, metavar="I", help="the first trial (default 0)")
    parser.add_argument("--index", type=int, metavar="I", help="run this trial alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    parser.add_argument("--largest", type=float, default=4.0, help="size of a model's file in MB (default 4)")
    parser.add_argument("--verbose", action="store_true", help="a line for every trial")
    return parser.parse_args()


def _models(corpus: pathlib.Path, largest: float) -> list[pathlib.Path]:
    """List the models that have a sample beside them and are small enough for the oracle."""
    paths = sorted(path for path in corpus.rglob("*.onnx") if path.with_suffix(".inputs.npz").exists())
    models = [path for path in paths if path.stat().st_size <= 1e6 * largest]
    if not models:
        raise SystemExit(f"{corpus} has no model of at most {largest} MB with NAME.inputs.npz beside it")
    return models


def attempt(seed: int, number: int, models: list[pathlib.Path]) -> Trial:
    """Run a trial."""
    draw = np.random.default_rng([seed, number])
    model = models[draw.integers(len(models))]
    dtype: Literal["float16", "bfloat16"] = "float16" if draw.random() < 0.5 else "bfloat16"
    tolerance = float(draw.choice(_TOLERANCES[dtype]))
    sample, changes = _changed(model, _JUDGE.read_feeds(model.with_suffix(".inputs.npz")), draw)
    told = f"{model.parent.name}/{model.stem} {dtype} {tolerance:.2%}, {', '.join(changes) or 'as shipped'}"
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder, "low.onnx")
        try:
            report = amp.transpile(
                model, written, dtype=dtype, tolerance=tolerance, inputs=sample, cache=False, prefer="size"
            )
        except amp.AmpError as error:
            return Trial(number, told, f"no result: {type(error).__name__}", str(error).splitlines()[0][-200:])
        if report.verdict_word not in _CERTAIN or not report.low_nodes:
            word = report.verdict_word if report.low_nodes else "float32 throughout"
            return Trial(number, told, str(word), report.verdict)
        try:
            levels = {level: _worst(model, written, at, report) for level, at in _claimed(model, sample, report)}
        except (_JUDGE.CannotEvaluate, _JUDGE.CannotRun) as reason:
            return Trial(number, told, "not judged by the oracle", str(reason))
    level = max(levels, key=lambda level_name: levels[level_name])
    outcome = "wrong" if levels[level] > _ALLOWED * tolerance else "right"
    return Trial(number, told, outcome, f"{levels[level]:.3%} off at {level:g} times; {report.verdict}")


def _claimed(model: pathlib.Path, sample: Sample, report: amp.Report) -> Iterator[tuple[float, Sample]]:
    """Yield the samples that a verdict speaks of, each with its level."""
    yield 1.0, sample
    if report.gains:
        names = scaled_inputs(amp.load(model).model, sample)
        for level in _LEVELS:
            yield level, {name: _times(value, level) if name in names else value for name, value in sample.items()}


def _worst(model: pathlib.Path, written: pathlib.Path, sample: Sample, report: amp.Report) -> float:
    inputs = written.with_name(f"{len(list(written.parent.iterdir()))}.npz")
    save: Any = np.savez  # its keywords are taken for options by its types
    save(inputs, **sample)
    values = _JUDGE.judge_values(model, written, inputs)
    unjudged = judgement_of(report.verdict).basis.get("unjudged", "")
    judged = {name for name in values.errors if f"'{name}'" not in unjudged}
    return max((values.errors[name] for name in judged), default=0.0)


def _changed(model: pathlib.Path, sample: Sample, draw: np.random.Generator) -> tuple[Sample, list[str]]:
    """Return a sample changed at random, and the changes in words."""
    graph = amp.load(model).model.graph
    inputs = {str(value.name): ModelInput.of(value) for value in graph.inputs if str(value.name) in sample}
    signals = scaled_inputs(amp.load(model).model, sample)
    changes: list[str] = []
    for change in (_length, _mask, _switch):
        if draw.random() < 0.5:
            sample, said = change(inputs, sample, draw)
            changes += [said] if said else []
    if signals and draw.random() < 0.7:
        gain = 10.0 ** draw.uniform(-2.0, 0.5)
        sample = {name: _times(value, gain) if name in signals else value for name, value in sample.items()}
        changes.append(f"{gain:.3g} times the level")
    return sample, changes


def _length(inputs: dict[str, ModelInput], sample: Sample, draw: np.random.Generator) -> tuple[Sample, str]:
    """Cut an open axis, of one name in all inputs, to a part of its length."""
    open_axes = sorted({d for info in inputs.values() for d in info.dims or () if isinstance(d, str)})
    if not open_axes:
        return sample, ""
    axis, part = open_axes[draw.integers(len(open_axes))], draw.uniform(0.3, 1.0)
    cut = dict(sample)
    for name, info in inputs.items():
        for place, dim in enumerate(info.dims or ()):
            if dim == axis and sample[name].ndim > place:
                keep = max(1, int(sample[name].shape[place] * part))
                cut[name] = np.ascontiguousarray(np.take(cut[name], np.arange(keep), axis=place))
    return cut, f"{part:.0%} of '{axis}'"


def _mask(inputs: dict[str, ModelInput], sample: Sample, draw: np.random.Generator) -> tuple[Sample, str]:
    """Mask the end of every mask."""
    names = [name for name, info in inputs.items() if info.role == "one" and sample[name].ndim > 1]
    masked, part = dict(sample), draw.uniform(0.2, 0.9)
    for name in names:
        masked[name] = sample[name].copy()
        masked[name][..., max(1, int(sample[name].shape[-1] * part)) :] = 0
    return masked, f"{part:.0%} unmasked" if names else ""


def _switch(inputs: dict[str, ModelInput], sample: Sample, draw: np.random.Generator) -> tuple[Sample, str]:
    """Take the other value of a truth value or a sampling rate."""
    switched, names = dict(sample), []
    for name, info in inputs.items():
        value = sample[name]
        if info.dtype == np.bool_ and value.size == 1:
            switched[name] = ~value
        elif info.role == "rate" and value.size == 1:
            switched[name] = np.full_like(value, draw.choice(_RATES))
        else:
            continue
        names.append(name)
    return switched, f"{', '.join(names)} switched" if names else ""


def _times(value: np.ndarray, gain: float) -> np.ndarray:
    if value.dtype.kind == "f":
        return np.asarray(value * gain, value.dtype)
    info: Any = np.iinfo(value.dtype)
    return np.asarray(np.clip(np.rint(value * gain), info.min, info.max), value.dtype)


if __name__ == "__main__":
    sys.exit(main())
