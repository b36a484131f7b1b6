#!/usr/bin/env python3
"""Hold the table of a device's arithmetic to the errors that a device has shown on ONNX's node cases.

    python lab/node_arithmetic.py CASES                     # minutes: every case that the device computed otherwise
    python lab/node_arithmetic.py CASES --all               # the others, too, in which no rule may change anything
    python lab/node_arithmetic.py CASES --only layer_norm   # cases whose name holds a word

CASES is `onnx_backend/node` of what `lab/fetch_corpus.py` fills. Each case is converted at level O2 and emulated,
then rewritten into the kernels that the device runs and emulated again. The error of the second against float32 should
be the device's, which `tests/data/node_errors_h100.txt` has to 10 digits.

A case *follows* to 7 digits if its error is the device's but for a ten-millionth. The cases that do not are named, by
the family of their operators. A case that is not converted as it was then, by the count of its low nodes, is left out.
"""

from __future__ import annotations

import argparse
import collections
import math
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

import amp_transpiler as amp
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.program.program import Program
from amp_transpiler.targets.arithmetic import arithmetic_of
from gpu.compare import apart
from gpu.models import case_feeds

__all__ = ["ERRORS", "Case", "Outcome", "examine", "read"]

ERRORS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "data" / "node_errors_h100.txt"
DIGITS = (7, 4, 2)
_ANOTHER = -1  # of another conversion


class Case(NamedTuple):
    """A case as the device computed it.

    Attributes:
        name: of the case, such as `test_abs`.
        dtype: the format.
        low: how many nodes were low.
        emulated: the error of the emulation that rounds each result once.
        device: the device's.
        is_same: whether the device's outputs were those of that emulation.
    """

    name: str
    dtype: str
    low: int
    emulated: float
    device: float
    is_same: bool


class Outcome(NamedTuple):
    """A case beside what the table says of it.

    Attributes:
        case: the case.
        plain: the error of the emulation here.
        ruled: that of the rewritten program.
        reason: why there is none; empty if there is.
    """

    case: Case
    plain: float
    ruled: float
    reason: str

    @property
    def digits(self) -> int:
        """To how many of `DIGITS` the error is the device's; 0 for none of them."""
        if self.reason:
            return _ANOTHER
        device = self.case.device
        if self.ruled == device or (math.isinf(device) and math.isinf(self.ruled)):
            return DIGITS[0]
        if math.isinf(device):
            return 0
        return next((n for n in DIGITS if abs(self.ruled - device) <= 10.0**-n * abs(device)), 0)

    def __str__(self) -> str:
        case = self.case
        figures = self.reason or f"emulated {self.plain:.7g}, rule {self.ruled:.7g}"
        return f"{case.name} {case.dtype}: {figures}, device {case.device:.7g}"


def read() -> list[Case]:
    """Return the cases that the device computed."""
    lines = [line for line in ERRORS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [_case(*line.split(" | ")) for line in lines]


def _case(name: str, dtype: str, low: str, emulated: str, device: str, same: str) -> Case:
    return Case(name, dtype, int(low), float(emulated), float(device), same == "yes")


def examine(folder: pathlib.Path, case: Case) -> Outcome:
    """Return what the table says of a case; why nothing, if it says nothing."""
    try:
        return _examined(folder / case.name, case)
    except Exception as error:  # noqa: BLE001  whatever fails is the finding
        return Outcome(case, math.nan, math.nan, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")


def _examined(path: pathlib.Path, case: Case) -> Outcome:
    feeds = case_feeds(path)
    if feeds is None:
        return Outcome(case, math.nan, math.nan, "no float32 tensor among its inputs")
    model = onnx.load(path / "model.onnx")
    low, count = _converted(model, case)
    if count != case.low:
        return Outcome(case, math.nan, math.nan, f"{count} low nodes instead of {case.low}")
    shapes = {name: np.shape(value) for name, value in feeds.items()}
    ruled = simulated(low, arithmetic_of("H100", "1.31"), shapes).program
    wide = _outputs(amp.load(model), feeds)
    plain, with_rules = (apart(wide, _outputs(amp.emulate(program), feeds))["error"] for program in (low, ruled))
    return Outcome(case, plain, with_rules, "")


def _converted(model: onnx.ModelProto, case: Case) -> tuple[Program, int]:
    """Convert a case as it was then, and count its low nodes: what a guard has made float32 since is low by force."""
    for index, node in enumerate(model.graph.node):  # `include` goes by names
        node.name = node.name or f"node_{index}"
    options: dict[str, Any] = {"level": "O2", "dtype": case.dtype, "verify": False}
    report = amp.transpile(model, **options, prefer="size")
    if report.low_nodes != case.low:
        names = [row.name for row in report.decisions if row.precision == "float32"]
        report = amp.transpile(model, **options, include=names or ".*", prefer="size")
    assert report.program is not None  # without verification nothing is refused
    return report.program, report.low_nodes


def _outputs(program: Program, feeds: Mapping[str, Any]) -> list[Any]:
    with amp.Session(program, amp.CPUPlace(), emulate=False) as session:
        names = {info.name for info in session.inputs}
        return list(session.run({name: value for name, value in feeds.items() if name in names}))


def family(name: str) -> str:
    """Return the family of a case: its name's first words."""
    words = re.sub(r"^test_|_expanded.*|_ver\d+", "", name).split("_")
    stem = "_".join(words[:2]) if words[0] in ("layer", "group", "rms", "affine", "reduce", "hard") else words[0]
    return f"{stem}, expanded" if "_expanded" in name else stem


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what is said of cases that differ."""
    counted = [outcome for outcome in outcomes if not outcome.reason]
    yield f"{len(outcomes)} case-formats; {len(counted)} converted as then"
    for digits in DIGITS:
        yield f"  to {digits} digits: {sum(outcome.digits >= digits for outcome in counted)}"
    by_family: dict[str, list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        if outcome.digits < DIGITS[0]:
            by_family[family(outcome.case.name)].append(outcome)
    for name, rest in sorted(by_family.items(), key=lambda item: -len(item[1])):
        yield f"{name}: {len(rest)}"
        yield from (f"    {outcome}" for outcome in rest)


def main() -> int:
    """Print what follows and what does not; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="also the cases that the device computed as emulated")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    arguments = parser.parse_args()
    cases = [case for case in read() if arguments.only in case.name and (arguments.all or not case.is_same)]
    for line in lines([examine(arguments.cases, case) for case in cases]):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
