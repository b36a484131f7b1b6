"""Writes what two runs computed as a workbook with the sheets and columns of Paddle's `compare_accuracy`."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.paddle.static.tensor_stats import TensorStats

__all__ = ["Row", "Sheet", "workbook"]

Row = tuple[str, TensorStats | None, TensorStats | None]
"""A tensor's name, and its statistics in either run; None where a run does not have it."""

_Mark = Literal["title", "both", "bad", "low", "apart"]
_Cell = tuple[object, _Mark | None]
_COLOURS: dict[_Mark, str] = {"title": "6495ED", "both": "F5F5F5", "bad": "FF0000", "low": "FFFF00", "apart": "FFA500"}

_OPERATOR = {"op_type": 24, "tensor_name": 60, "numel": 10, "infinite": 8}  # column -> width in characters
_NUMBERS = {"dtype": 8, "max_value": 16, "min_value": 16, "mean_value": 16, "num_zero": 10}
_FLAWS = {"num_inf": 8, "num_nan": 8}
_RATIOS = {"max_value": 16, "min_value": 16, "mean_value": 16}
_GROUPS = (("", _OPERATOR), ("fp32", _NUMBERS), ("fp16 (scale={scale:g})", _NUMBERS | _FLAWS), ("fp16 / fp32", _RATIOS))

_MOST_ELEMENTS = 2**31 - 1
_NEAR = 0.01  # relative and absolute difference of a gradient from float32's
_NEAR_RATIO = 0.05
_TITLE_LENGTH = 31  # characters, of a sheet's name
_FORBIDDEN = re.compile(r"[\\\[\]:*?/]")  # in a sheet's name
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # no character of a cell


@dataclasses.dataclass(frozen=True, slots=True)
class Sheet:
    """Holds what one worker logged.

    Attributes:
        title: the name of its log.
        rows: its tensors.
    """

    title: str
    rows: list[Row]


def workbook(sheets: Sequence[Sheet], loss_scale: float) -> bytes:
    """Return an XLSX file.

    Args:
        sheets: its sheets.
        loss_scale: what gradients of the second run were multiplied by.

    Raises:
        EnvironmentProblem: openpyxl is not installed.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise EnvironmentProblem(
            "compare_accuracy: a workbook needs openpyxl: pip install 'amp-transpiler[xlsx]'; or give a name that ends "
            "in .csv"
        ) from error
    book = openpyxl.Workbook(write_only=True)
    for sheet in sheets:
        page = book.create_sheet(_FORBIDDEN.sub("_", sheet.title)[:_TITLE_LENGTH])
        _write_heads(page, loss_scale)
        for row in sheet.rows:
            page.append([_styled(page, cell) for cell in _cells(row, loss_scale)])
    if not sheets:
        book.create_sheet("empty")  # a workbook without a sheet cannot be opened
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def _write_heads(page: Any, loss_scale: float) -> None:
    """Write two lines: the run of each group of columns, and the columns."""
    from openpyxl.utils import get_column_letter

    groups: list[_Cell] = []
    for title, columns in _GROUPS:
        first = len(groups) + 1
        groups += [(title.format(scale=loss_scale), "title" if title else None), *[(None, None)] * (len(columns) - 1)]
        if title:
            page.merged_cells.add(f"{get_column_letter(first)}1:{get_column_letter(len(groups))}1")
        for place, width in enumerate(columns.values(), first):
            page.column_dimensions[get_column_letter(place)].width = width
    page.append([_styled(page, cell) for cell in groups])
    page.append([_styled(page, (name, "title")) for _, columns in _GROUPS for name in columns])


def _styled(page: Any, cell: _Cell) -> Any:
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Alignment, Font, PatternFill

    content, mark = cell
    if isinstance(content, float) and not math.isfinite(content):
        content = str(content)  # a sheet has no such numbers
    styled = WriteOnlyCell(page, _CONTROL.sub("", content) if isinstance(content, str) else content)
    if mark is not None:
        styled.font, styled.fill = Font(bold=True), PatternFill("solid", fgColor=_COLOURS[mark])
        if mark == "title":
            styled.alignment = Alignment(horizontal="center")
    return styled


# ---- the cells of a tensor ----


def _cells(row: Row, loss_scale: float) -> Iterator[_Cell]:
    name, first, second = row
    some = first or second
    assert some is not None  # a row is of some run
    is_bad = _is_bad(first, second, loss_scale)
    yield some.op, None
    yield name, "both" if first is not None and second is not None else None
    yield some.numel, "bad" if some.numel > _MOST_ELEMENTS else None
    yield int(is_bad), "bad" if is_bad else None
    yield from _numbers(first)
    yield from _numbers(second)
    for count in ("num_inf", "num_nan"):
        number = None if second is None else getattr(second, count)
        if number is None:
            yield "--", None
        else:
            yield number, "bad" if number else None
    for field in ("max", "min", "mean"):
        yield _ratio(first, second, field, loss_scale)


def _numbers(stats: TensorStats | None) -> Iterator[_Cell]:
    if stats is None:
        yield from [("--", None)] * len(_NUMBERS)
        return
    yield stats.dtype, "low" if stats.dtype in ("fp16", "bf16") else None
    for number in (stats.max, stats.min, stats.mean):
        yield number, "bad" if _leaves_float16(number) else None
    yield stats.num_zero, None


def _ratio(first: TensorStats | None, second: TensorStats | None, field: str, loss_scale: float) -> _Cell:
    if first is None or second is None:
        return "--", None
    divisor = getattr(first, field)
    ratio = getattr(second, field) / divisor if divisor else 1.0
    is_near = any(abs(ratio / scale - 1) < _NEAR_RATIO for scale in (1, loss_scale))
    return ratio, None if is_near else "apart"


def _is_bad(first: TensorStats | None, second: TensorStats | None, loss_scale: float) -> bool:
    """Whether a tensor is worth a look: by Paddle's rules."""
    sides = [stats for stats in (first, second) if stats is not None]
    numbers = [number for stats in sides for number in (stats.max, stats.min)]
    scaled: list[float] = []
    if first is not None and first.op.endswith("grad"):
        scaled = [loss_scale * first.max, loss_scale * first.min]
    if any(stats.numel > _MOST_ELEMENTS for stats in sides) or any(map(_leaves_float16, [*numbers, *scaled])):
        return True
    if second is None:
        return False
    pairs = zip((second.max, second.min), scaled, strict=False)
    return not second.is_finite or not all(np.isclose(low, high, rtol=_NEAR, atol=_NEAR) for low, high in pairs)


def _leaves_float16(number: float) -> bool:
    with np.errstate(over="ignore"):
        return not np.isfinite(np.float16(number))
