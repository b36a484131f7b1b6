"""The page of lab/bench_arithmetic.py: what is covered, by the table's noise and by noise chosen elsewhere."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from programs.arithmetic_runs import PRODUCT_LEVELS, RECURRENT_LEVELS, TABLE

__all__ = ["FAMILIES", "Figures", "chosen", "family", "figures", "held_out", "page", "stated"]

Record: TypeAlias = dict[str, Any]
Noise: TypeAlias = Mapping[str, tuple[float, float]]
"""Format -> half units of noise of products and of recurrent layers."""

LIMITS = {"float16": 0.02, "bfloat16": 0.05}
SLACK = 1.02  # of what is stated, that still covers
FAMILIES = ("silero", "onnx-asr", "openwakeword")
OTHER_FAMILY = "the rest"
_ANOTHER_FILE = 0.02  # by which an emulated error may differ between two CPUs


def family(model: str) -> str:
    """Return the family of a model, whose members are alike."""
    return next((name for name in FAMILIES if name in model), OTHER_FAMILY)


def stated(record: Record, noise: Noise) -> float:
    """Return the error that a verdict states: the larger of that emulated once and that of the worst draw."""
    return max(float(record["emulated"]), *_draws(record, noise))


def _draws(record: Record, noise: Noise) -> list[float]:
    """Return the errors of the draws at the nearest levels: those of what a model does not have were not tried."""
    product, recurrent = noise[record["dtype"]]
    *_, errors = min(record["errors"], key=lambda row: (abs(row[0] - product), abs(row[1] - recurrent)))
    return list(errors)


class Figures:
    """How what is stated holds on the device.

    Args:
        pairs: a record, and what is stated of it.
    """

    def __init__(self, pairs: Sequence[tuple[Record, float]]) -> None:
        self.pairs = pairs
        self.covered = sum(record["device"] <= SLACK * number for record, number in pairs)
        wrong = [(record, number) for record, number in pairs if record["device"] > LIMITS[record["dtype"]]]
        right = [(record, number) for record, number in pairs if record["device"] <= LIMITS[record["dtype"]]]
        self.false = len(wrong)
        self.caught = sum(number > LIMITS[record["dtype"]] for record, number in wrong)
        self.refused = [_name(record) for record, number in right if number > LIMITS[record["dtype"]]]
        self.estimated = [_name(record) for record, _ in right if record["unmeasured"]]
        self.missed = [_name(record) for record, number in pairs if record["device"] > SLACK * number]
        self.ratios = sorted(number / record["device"] for record, number in pairs if record["device"])

    @property
    def rank(self) -> tuple[float, ...]:
        """The less the better: false ones missed, good ones refused, errors not covered, what is stated too much."""
        over = sum(abs(math.log(ratio)) for ratio in self.ratios if math.isfinite(ratio) and ratio)
        return self.false - self.caught, len(self.refused), len(self.pairs) - self.covered, over

    def row(self, label: str) -> str:
        """Return a row of the table of totals."""
        spread = (statistics.median(self.ratios), self.ratios[int(0.9 * len(self.ratios))], self.ratios[-1])
        cells = [
            f"{self.covered} of {len(self.pairs)}",
            f"{self.caught} of {self.false}",
            str(len(self.refused)),
            str(len(self.estimated)),
            *(f"{ratio:.2f}" for ratio in spread),
        ]
        return f"| {label} | {' | '.join(cells)} |"


def figures(records: Sequence[Record], noise: Noise) -> Figures:
    """Return the figures of records at one noise."""
    return Figures([(record, stated(record, noise)) for record in records])


def chosen(records: Sequence[Record]) -> Noise:
    """Return the noise of the grid that does best on records."""
    grid = itertools.product(PRODUCT_LEVELS, PRODUCT_LEVELS, RECURRENT_LEVELS)
    noises = [{"float16": (half, layer), "bfloat16": (brain, layer)} for half, brain, layer in grid]
    return min(noises, key=lambda noise: figures(records, noise).rank)


def held_out(records: Sequence[Record]) -> tuple[Figures, dict[str, Noise]]:
    """Return the figures where each family is judged by noise that the others chose, and that noise."""
    pairs: list[tuple[Record, float]] = []
    noises: dict[str, Noise] = {}
    for name in (*FAMILIES, OTHER_FAMILY):
        inside = [record for record in records if family(record["model"]) == name]
        if inside:
            noises[name] = chosen([record for record in records if family(record["model"]) != name])
            pairs += [(record, stated(record, noises[name])) for record in inside]
    return Figures(pairs), noises


# ---- the page ----
_HEAD = """# A device's arithmetic

Written by `lab/bench_arithmetic.py --write`. A run on an NVIDIA H100 converted these models at level auto (commit
4ba23a0) and compared them there with float32, in ONNX Runtime 1.31; here the same files run on a CPU. *Emulated* is
the error of a program that rounds the result of every low node once. *Rule* is that of the program rewritten into the
kernels that the device runs, by the table `amp_transpiler/targets/data/arithmetic.txt`; *draws* are the least and the
largest of eight draws of what these kernels may do otherwise. A verdict states the largest of these errors. It *covers*
the device's if that is no more than 2 % larger. [How it works](../concepts/emulation.md).
"""
_COLUMNS = "| | covered | false verdicts caught | good refused | good estimated | stated/device: median | 90 % | most |"
_TABLE_HEAD = "| model | format | emulated | rule | draws | device | stated / device | |"


def page(records: Sequence[Record]) -> str:
    """Return the page."""
    once = Figures([(record, record["emulated"]) for record in records])
    inside = figures(records, TABLE)
    outside, noises = held_out(records)
    rows = [
        once.row("emulated once"),
        inside.row("worst of the draws, noise of the table"),
        outside.row("worst of the draws, noise chosen without the family"),
    ]
    totals = "\n".join((_COLUMNS, _line(_COLUMNS), *rows))
    table = "\n".join((_TABLE_HEAD, _line(_TABLE_HEAD), *(_row(record) for record in records)))
    parts = [_HEAD, totals, _notes(records, inside, outside, noises), "## Every model", table]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _line(head: str) -> str:
    return "| --- " * (head.count("|") - 1) + "|"


def _notes(records: Sequence[Record], inside: Figures, outside: Figures, noises: Mapping[str, Noise]) -> str:
    words = [f"{name}: {_words(noise)}" for name, noise in noises.items()]
    others = [_name(record) for record in records if _is_another_file(record)]
    unverified = [_name(record) for record in records if not record["verified"]]
    return "\n".join(
        (
            "- A verdict is false where the device's error is above 2 % in float16, 5 % in bfloat16.",
            f"- Not covered by the table's noise: {_list(inside.missed)}; held out: {_list(outside.missed)}.",
            f"- Refused though good: {_list(inside.refused)}; held out: {_list(outside.refused)}.",
            f"- Noise chosen by the other families (float16 products, bfloat16 products, layers): {'; '.join(words)}.",
            f"- Emulated otherwise than on the device's host, by more than 2 %: {_list(others)}.",
            f"- Not verified when it ran: {_list(unverified)}.",
        )
    )


def _words(noise: Noise) -> str:
    (half, layer), (brain, _) = noise["float16"], noise["bfloat16"]
    return f"{half:g}, {brain:g}, {layer:g}"


def _is_another_file(record: Record) -> bool:
    then, now = float(record["emulated_then"]), float(record["emulated"])
    return abs(now - then) > _ANOTHER_FILE * max(now, then)


def _name(record: Record) -> str:
    return f"{record['model'].removesuffix('.onnx')} in {record['dtype']}"


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _row(record: Record) -> str:
    draws, device = _draws(record, TABLE), record["device"]
    number = stated(record, TABLE)
    note = "" if device <= SLACK * number else "not covered"
    ratio = f"{number / device:.2f}" if device else "-"
    cells = [record["model"], record["dtype"], _percent(record["emulated"]), _percent(draws[0])]
    cells += [f"{_percent(min(draws))} to {_percent(max(draws))}", _percent(device), ratio, note]
    return f"| {' | '.join(cells)} |"


def _percent(error: float) -> str:
    return f"{100 * error:.3g} %"
