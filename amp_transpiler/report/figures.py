"""Lists the figures of an output: one row each, for the table and the page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

from amp_transpiler.report.record import OutputComparison
from amp_transpiler.report.wording import human_number, percent

__all__ = ["FIGURES", "Figure", "figures_of", "has_floats", "share_that_agrees"]

_ABSENT = "-"


def has_floats(output: OutputComparison) -> bool:
    """Whether an output has floating-point or complex numbers, so that it has an error; the scores of a map are."""
    return any(word in output.dtype.lower() for word in ("float", "double", "complex", "map"))


def share_that_agrees(share: float) -> str:
    """Return a share as a percentage that is 100 only if nothing differs."""
    text = percent(share)
    return ">99.9%" if text == "100%" and share < 1.0 else text


def _decibels(output: OutputComparison) -> str:
    return "exact" if output.snr_db == math.inf else f"{output.snr_db:.1f}"


def _differing(output: OutputComparison) -> str:
    if output.structure_differs:
        return "structure"
    excused = f" +{output.excused} excused" if output.excused else ""
    return f"{percent(output.mismatch)}{excused}"


def _nonfinite(output: OutputComparison) -> str:
    return (
        f"{output.nonfinite} ({output.nonfinite_reference} in float32)"
        if output.nonfinite_reference
        else str(output.nonfinite)
    )


def _has_elements_to_count(output: OutputComparison) -> bool:
    return not has_floats(output) or output.mismatched > 0 or output.structure_differs


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure that outputs may have.

    Attributes:
        head: the head of its column.
        text: the figure of an output that has it.
        has: whether an output has it.
        is_bad: whether it tells of a fault.
        spared: its place in the order in which figures are left out where the room is too small; 0: never.
    """

    head: str
    text: Callable[[OutputComparison], str]
    has: Callable[[OutputComparison], bool]
    is_bad: Callable[[OutputComparison], bool] = lambda _: False
    spared: int = 0

    def of(self, output: OutputComparison) -> str:
        """Return the figure, or a dash."""
        return self.text(output) if self.has(output) else _ABSENT


FIGURES = (
    Figure("max abs", lambda o: human_number(o.max_abs), has_floats, spared=5),
    Figure("relative", lambda o: percent(o.relative), has_floats),
    Figure("whole", lambda o: percent(o.of_all), lambda o: bool(o.part), spared=3),
    Figure("of spread", lambda o: percent(o.of_spread or 0.0), lambda o: o.of_spread is not None, spared=4),
    Figure("SNR dB", _decibels, has_floats, spared=1),
    Figure("cosine", lambda o: f"{o.cosine:.6f}", has_floats, spared=2),
    Figure("top-1", lambda o: share_that_agrees(o.top1 or 0.0), lambda o: o.top1 is not None),
    Figure("top-5", lambda o: share_that_agrees(o.top5 or 0.0), lambda o: o.top5 is not None, spared=6),
    Figure("IoU", lambda o: share_that_agrees(o.iou or 0.0), lambda o: o.iou is not None),
    Figure(
        "rare class",
        lambda o: percent(o.rare or 0.0),
        lambda o: o.rare is not None and o.rare > o.relative,
        spared=7,
    ),
    Figure(
        "neighbours",
        lambda o: share_that_agrees(o.neighbours or 0.0),
        lambda o: o.neighbours is not None,
        spared=8,
    ),
    Figure("differ", _differing, _has_elements_to_count, lambda o: o.mismatch > 0 or o.structure_differs),
    Figure("non-finite", _nonfinite, lambda o: o.nonfinite + o.nonfinite_reference > 0, lambda o: o.nonfinite > 0),
)


def figures_of(outputs: Iterable[OutputComparison]) -> list[Figure]:
    """Return the figures that at least one of the outputs has."""
    outputs = list(outputs)
    return [figure for figure in FIGURES if any(map(figure.has, outputs))]
