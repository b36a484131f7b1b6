#!/usr/bin/env python3
"""Train with steps that this project did not make, and with what every level, policy and preset makes of them.

    python lab/foreign_steps.py                     # all steps, 400 times: about an hour on two cores
    python lab/foreign_steps.py --quick             # a few of them, 100 times: a minute
    python lab/foreign_steps.py --only mlp torch    # steps whose name contains a word
    python lab/foreign_steps.py --markdown          # the tables of docs/evidence/foreign_steps.md

A cell is how far all weights together end from where fp32 takes them: norm of the difference over norm of the movement,
in percent, lower precision emulated. Where that is more than 5 %, what exact float32 masters give stands behind it, in
brackets: the source with a rounding before and behind each node of the forward and backward pass that is low. A cell
with an exclamation mark is beyond 5 % and beyond 1.5 times that; then the exit status is 1. Steps from torch need the
extra `torch`, and are left out without it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import importlib.util
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from foreign.library import by_hand
from foreign.own_steps import saved
from foreign.torch_steps import Exporter, from_torch
from foreign.ways import CONVERSIONS, DTYPES, Outcome, convert, masters_alone, measure, train
from foreign.writer import ForeignStep

RATES = (1e-3, 1e-4, 1e-5)
STEPS, QUICK_STEPS = 400, 100

BY_HAND = (
    ("linear", "sgd"), ("gemm", "sgd_input_rate"), ("mlp", "momentum"), ("mlp", "nesterov"), ("mlp", "adam"),
    ("mlp", "lamb"), ("mlp", "flattened"), ("conv", "adamw_clipped"), ("batch_norm", "adamw_clipped"),
    ("embedding", "adam"), ("transformer", "adamw_clipped"), ("unbatched", "adam"),
)  # fmt: skip
FROM_TORCH: tuple[tuple[str, Exporter], ...] = (
    ("normalised", "dynamo"),
    ("convolutional", "torchscript"),
    ("transformer", "dynamo"),
)
QUICK = ("linear, sgd", "mlp, adam")


@dataclasses.dataclass(frozen=True)
class Source:
    """A step of some rate, by a name for the table."""

    name: str
    make: Callable[[float], ForeignStep]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table: one step, rate and format, under every conversion."""

    name: str
    rate: float
    dtype: str
    losses: tuple[float, float]
    outcomes: dict[str, Outcome]

    def cells(self) -> list[str]:
        losses = " to ".join(f"{loss:.3f}" for loss in self.losses)
        return [self.name, f"{self.rate:g}", self.dtype, losses, *map(_cell, self.outcomes.values())]


def _cell(outcome: Outcome) -> str:
    figure = f"{100 * outcome.relative:.2g}"
    if outcome.relative <= 0.05:
        return figure
    return f"{figure} ({100 * outcome.expected:.2g}){'' if outcome.holds else '!'}"


def sources(folder: pathlib.Path) -> Iterator[Source]:
    for network, optimizer in BY_HAND:
        yield Source(f"{network}, {optimizer}", functools.partial(by_hand, network, optimizer))
    yield Source("save_training_program", functools.partial(saved, "fp32", folder))
    needed = {"torchscript": ("torch",), "dynamo": ("torch", "onnxscript")}
    for network, exporter in FROM_TORCH:
        if all(importlib.util.find_spec(name) for name in needed[exporter]):
            yield Source(f"torch, {network}, {exporter}", functools.partial(from_torch, network, exporter))
        else:
            print(f"left out: {network} from torch, which needs {' and '.join(needed[exporter])}", file=sys.stderr)


def rows_of(source: Source, rates: Sequence[float], count: int) -> Iterator[Row]:
    for rate in rates:
        step = source.make(rate)
        batches = step.data(count)
        fp32 = train(step, batches)
        for dtype in DTYPES:
            known: dict[str, Outcome] = {}
            outcomes = {}
            for name, options in CONVERSIONS.items():
                report = convert(step, options, dtype)
                assert report.program is not None
                key = hashlib.sha256(report.program.to_onnx().SerializeToString(deterministic=True)).hexdigest()
                if key not in known:  # many conversions of a small model are the same
                    expected = train(step, batches, masters_alone(step, report))
                    low = train(step, batches, report)
                    known[key] = Outcome(measure(step, fp32, low), measure(step, fp32, expected))
                outcomes[name] = known[key]
            yield Row(source.name, rate, dtype, _ends(fp32.losses), outcomes)


def _ends(losses: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the first tenth of the losses, and of the last: batches differ."""
    tenth = max(1, len(losses) // 10)
    return sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few steps, fewer times")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="steps whose name contains one of the words")
    parser.add_argument("--steps", type=int, help=f"how many steps (default: {STEPS}, with --quick {QUICK_STEPS})")
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, metavar="RATE", help="learning rates")
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    chosen = parser.parse_args(argv)
    count = chosen.steps or (QUICK_STEPS if chosen.quick else STEPS)
    heads = ["step", "rate", "format", "fp32's loss", *CONVERSIONS]
    bad = 0
    print(_line(heads, markdown=chosen.markdown))
    if chosen.markdown:
        print("|" + "---|" * len(heads))
    with tempfile.TemporaryDirectory() as folder:
        for source in sources(pathlib.Path(folder)):
            words = chosen.only or (QUICK if chosen.quick else ("",))
            if any(word in source.name for word in words):
                for row in rows_of(source, chosen.rates, count):
                    print(_line(row.cells(), markdown=chosen.markdown), flush=True)
                    bad += sum(not outcome.holds for outcome in row.outcomes.values())
    print(f"{bad} cells beyond what can be had" if bad else "every cell is what can be had", file=sys.stderr)
    return 1 if bad else 0


def _line(cells: Sequence[str], *, markdown: bool) -> str:
    if markdown:
        return f"| {' | '.join(cells)} |"
    widths = (32, 6, 9, 17, *[9] * len(CONVERSIONS))
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


if __name__ == "__main__":
    sys.exit(main())
