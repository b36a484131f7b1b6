"""Prints the table at the end of a call for several models: a row a model, their number, and which failed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from amp_transpiler.report import Report
    from amp_transpiler.report.verdict import Tone

__all__ = ["Row", "overview", "row_of"]

_TONES = {"good": "green", "warn": "yellow", "bad": "red"}
_FAILED = "failed"
_KEPT = "kept float32"
_TONES_BESIDE_VERDICTS: Mapping[str, Tone] = {_FAILED: "bad", _KEPT: "good"}


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What the table says about a model.

    Attributes:
        verdict: the word of the verdict, or that the model was kept in float32.
        error: relative error of the worst output, a fraction; None: nothing was compared.
        bytes_before: bytes of the source's files; None: not on disk.
        bytes_after: bytes of the result's files; None: nothing was written.
        seconds: time of the conversion.
        before_ms: predicted time of one run in float32; None: not known.
        after_ms: predicted time of one run of the result; None: not known.
    """

    verdict: str
    error: float | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    seconds: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None


def _word(report: Report) -> str:
    return _KEPT if report.kept_float32 else str(report.verdict_word)


def row_of(report: Report | None, *, failed: bool) -> Row:
    """Return the row of a model.

    Args:
        report: None if the conversion did not get as far.
        failed: whether nothing was written for an error.
    """
    if report is None:
        return Row(_FAILED)
    from amp_transpiler.report.figures import has_floats

    errors = [output.relative for output in report.outputs.values() if has_floats(output)]
    before, after = report.predicted_ms
    worst = max(errors, default=None)
    if any(map(math.isnan, errors)):
        worst = math.inf
    return Row(
        _FAILED if failed else _word(report),
        worst,
        report.file_bytes[0],
        None if failed or report.destination is None else report.file_bytes[1],
        report.seconds,
        before,
        after,
    )


def overview(rows: Sequence[tuple[str, Row, bool]]) -> RenderableType:
    """Return the table for `rich` to print.

    Args:
        rows: for each model its name, its row, and whether it was skipped as unchanged.
    """
    from rich.table import Table
    from rich.text import Text

    from amp_transpiler.report.table import human_bytes, printable
    from amp_transpiler.report.verdict import Verdict, tone_of
    from amp_transpiler.report.wording import percent, speed_words

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("model", overflow="fold", min_width=12)
    table.add_column("verdict", no_wrap=True)
    for head in ("error", "size", "", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("predicted", no_wrap=True)
    for name, row, skipped in rows:
        tone = _TONES_BESIDE_VERDICTS.get(row.verdict) or tone_of(Verdict(row.verdict))
        share = f"{row.bytes_after / row.bytes_before:.0%}" if row.bytes_before and row.bytes_after else ""
        seconds = "-" if row.seconds is None else f"{row.seconds:.1f}"
        table.add_row(
            Text(printable(name)),
            Text(row.verdict, style=_TONES[tone]),
            "-" if row.error is None else percent(row.error),
            human_bytes(row.bytes_after),
            share,
            "skipped" if skipped else seconds,
            speed_words(row.before_ms, row.after_ms) or "-",
        )
    return table
