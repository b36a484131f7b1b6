"""The probe's questions with a device's answers, and how far an emulation of the device is from them."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib

import numpy as np

from amp_transpiler.files.loading import load
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.probe.answers import _bits, _digest, _distances, _sample
from amp_transpiler.runtime.probe.catalogue import questions
from amp_transpiler.runtime.session import Session
from amp_transpiler.targets.arithmetic import arithmetic_of

H100 = arithmetic_of("H100", "1.31")
RUNS = sorted((pathlib.Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu").glob("*.jsonl"))


@functools.cache
def device_rows():
    """(probe, operator, format, condition) -> the device's answer, the first one where several runs have it."""
    records = [json.loads(line) for run in reversed(RUNS) for line in run.read_text(encoding="utf-8").splitlines()]
    rows = [record for record in records if record.get("stage") == "truths"]
    return {(row["probe"], row["op"], row["format"], row["condition"]): row for row in rows}


def key_of(question):
    return question.probe, question.op, question.low.name, question.condition


@functools.cache
def asked():
    """The questions in 16 bits that the device answered: (question, its answer)."""
    rows = device_rows()
    low = [question for question in questions() if question.low.name != "float32"]
    return [(q, rows[key_of(q)]) for q in low if key_of(q) in rows and "refused" not in rows[key_of(q)]]


def answered(question):
    """What the emulation of the device answers."""
    program = emulate(simulated(load(question.model()), H100).program)
    with Session(program, CPUPlace(), emulate=False) as session:
        return np.asarray(session.run(question.feeds(), ["y"])[0])


@dataclasses.dataclass(frozen=True)
class Comparison:
    """An emulated answer and the device's.

    Attributes:
        is_same: equal in every bit; NaN is NaN.
        looks_same: the same distance from every candidate, and the same samples.
        most: at most so many results differ: those that differ from the nearest candidate here, and there.
        of: how many results there are.
    """

    is_same: bool
    looks_same: bool
    most: int
    of: int


def compared(question, row):
    result = answered(question)
    if _digest([result]) == row["outputs_sha256"]:
        return Comparison(True, True, 0, result.size)
    ours, theirs = _distances(question, result), row["candidates"]
    both = {name: ours[name] for name in ours if "differing" in ours[name] and "differing" in theirs.get(name, {})}
    most = min((both[name]["differing"] + theirs[name]["differing"] for name in both), default=result.size)
    samples = np.array([_sample(_bits(result)), row["sample_bits"]], np.uint16).view(result.dtype).astype(np.float32)
    same_samples = np.array_equal(*samples, equal_nan=True)
    tells = any(distances["differing"] for distances in both.values())
    same_distances = tells and all(both[name] == theirs[name] for name in both)
    return Comparison(most == 0, most == 0 or (same_samples and same_distances), min(most, result.size), result.size)
