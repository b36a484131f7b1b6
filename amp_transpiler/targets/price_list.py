"""The price list: `data/prices.txt`, what kernels of ONNX Runtime take on a device that was asked, read once.

A row is a law: `start + max(element * elements, step * steps) + max(flops / rate, bytes / stream)`, the last
only of products. Steps are what one block of threads goes through one after another: the elements of a row, the inner
dimension of a product.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, cast, get_args

__all__ = ["Mark", "PriceList", "PriceRow", "parse_prices", "price_list"]

Mark: TypeAlias = Literal["measured", "derived", "inferred"]
_COLUMNS = ("kernel", "format", "start us", "element ps", "step ns", "TFLOP/s", "mark", "evidence")
_HEADER = (
    "device",
    "release",
    "runs",
    "gap",
    "gap in a graph",
    "stream",
    "other bandwidth",
    "other rate",
    "other least",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """The price of one kernel in one format.

    Attributes:
        kernel: its name in the list.
        format: the format of what it computes with.
        start: seconds that it takes with next to nothing to do.
        element: seconds an element.
        step: seconds a step.
        rate: floating-point operations a second; 0 for a kernel that does not multiply matrices.
        mark: `measured`: read out of measured programs; `derived`: follows from measured rows; `inferred`: a guess from
            source, which never counts as measured.
        evidence: the programs and kernels that show it.
    """

    kernel: str
    format: str
    start: float
    element: float
    step: float
    rate: float
    mark: Mark
    evidence: str

    @property
    def counts(self) -> bool:
        """Whether what it charges is measured time."""
        return self.mark != "inferred"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """The rows, and where they come from.

    Attributes:
        device: name of the device in `targets.devices`.
        release: of ONNX Runtime.
        runs: the files with the measurements, and the commit that was measured.
        gap: seconds between two kernels of a run whose host is ahead of the device.
        gap_in_graph: the same where a CUDA graph replays the run.
        stream: bytes a second that a product reads and writes at most.
        other_bandwidth: bytes a second of a kernel without a row.
        other_rate: operations a second of its products.
        other_least: seconds that it takes at least.
        rows: kernel and format -> price.
    """

    device: str
    release: str
    runs: str
    gap: float
    gap_in_graph: float
    stream: float
    other_bandwidth: float
    other_rate: float
    other_least: float
    rows: Mapping[tuple[str, str], PriceRow]


@functools.cache
def price_list() -> PriceList:
    """Return the list of this package."""
    return parse_prices((pathlib.Path(__file__).parent / "data" / "prices.txt").read_text("utf-8").splitlines())


def parse_prices(lines: Iterable[str]) -> PriceList:
    """Return the list that some lines spell.

    Args:
        lines: comments that begin with `#`, lines `name: value`, a line with the names of the columns, and the rows,
            whose cells are separated by `|`. A row may have several formats.

    Raises:
        ValueError: a fact is missing, a row has another number of cells, an unknown mark or no evidence, or a kernel
            has two prices in a format.
    """
    facts: dict[str, str] = {}
    rows: dict[tuple[str, str], PriceRow] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        cells = tuple(cell.strip() for cell in text.split("|"))
        if len(cells) == 1:
            name, _, value = text.partition(":")
            facts[name.strip()] = value.strip()
        elif cells != _COLUMNS:
            for row in _rows(cells, number):
                if (row.kernel, row.format) in rows:
                    raise ValueError(f"prices, line {number}: {row.kernel} has a second price in {row.format}")
                rows[row.kernel, row.format] = row
    _serve_bfloat16(rows)
    if missing := [name for name in _HEADER if name not in facts]:
        raise ValueError(f"prices: no line for {', '.join(missing)}; expected `name: value` above the rows")
    return PriceList(
        device=facts["device"],
        release=facts["release"],
        runs=facts["runs"],
        gap=_number(facts["gap"], 1e-6),
        gap_in_graph=_number(facts["gap in a graph"], 1e-6),
        stream=_number(facts["stream"], 1e12),
        other_bandwidth=_number(facts["other bandwidth"], 1e12),
        other_rate=_number(facts["other rate"], 1e12),
        other_least=_number(facts["other least"], 1e-6),
        rows=MappingProxyType(rows),
    )


def _serve_bfloat16(rows: dict[tuple[str, str], PriceRow]) -> None:
    """Let float16's prices serve bfloat16 where it has none of its own: the same kernels, and as many bytes."""
    for kernel, dtype in list(rows):
        if dtype == "float16" and (kernel, "bfloat16") not in rows:
            row = rows[kernel, dtype]
            mark: Mark = "inferred" if row.mark == "inferred" else "derived"
            rows[kernel, "bfloat16"] = dataclasses.replace(row, format="bfloat16", mark=mark)


def _rows(cells: tuple[str, ...], number: int) -> Iterable[PriceRow]:
    if len(cells) != len(_COLUMNS):
        raise ValueError(f"prices, line {number}: {len(cells)} cells, expected {len(_COLUMNS)}: {', '.join(_COLUMNS)}")
    kernel, formats, start, element, step, rate, mark, evidence = cells
    if mark not in get_args(Mark) or not evidence:
        raise ValueError(
            f"prices, line {number}: mark {mark!r} and evidence {evidence!r}; expected one of "
            f"{', '.join(get_args(Mark))}, and what shows the price"
        )
    for name in formats.split():
        yield PriceRow(
            kernel=kernel,
            format=name,
            start=_number(start, 1e-6),
            element=_number(element, 1e-12),
            step=_number(step, 1e-9),
            rate=_number(rate, 1e12),
            mark=cast("Mark", mark),
            evidence=evidence,
        )


def _number(text: str, unit: float) -> float:
    """Return a number of a cell in seconds or a second; the unit may follow it, and `-` is 0."""
    return 0.0 if text == "-" else float(text.split(maxsplit=1)[0]) * unit
