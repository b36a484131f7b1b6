"""`compare_accuracy` puts the logs of two runs side by side: as CSV, or as a workbook with Paddle's sheets."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import pathlib
from collections.abc import Callable, Mapping

from amp_transpiler.errors import InputError, OptionError, OutputError
from amp_transpiler.paddle.static.accuracy_workbook import Sheet, workbook
from amp_transpiler.paddle.static.tensor_stats import TensorStats, parse_lines

__all__ = ["compare_accuracy"]

_COLUMNS = "dtype numel num_nan num_inf num_zero max min mean".split()


def compare_accuracy(
    dump_path: str | os.PathLike[str],
    another_dump_path: str | os.PathLike[str],
    output_filename: str | os.PathLike[str],
    loss_scale: float = 1,
    dump_all_tensors: bool = False,
) -> None:
    """Write what two runs computed side by side, such as one in float32 and one in float16.

    Both were logged by a tensor checker with `debug_mode=CHECK_ALL` and its own `output_dir`. A row of the table is a
    tensor in one step; tensors are paired by operator and name, casts excepted, and each side has what the log says of
    it.

    In CSV the last column names what is wrong: `nan or inf` on one side only, or `leaves fp16`. A workbook has Paddle's
    sheets, one for each worker: what each run computed, float16 divided by float32, and 1 in the column `infinite` for
    what leaves float16, or for a gradient that differs from float32's by more than a hundredth.

    Args:
        dump_path: the folder of the first run's logs.
        another_dump_path: that of the second run's.
        output_filename: the file to write: `.csv`, or `.xlsx` for a workbook, which needs the extra `[xlsx]`.
        loss_scale: what gradients of the second run were multiplied by. CSV has them divided by it; a workbook has
            them as they are, and compares them with as many times those of the first run.
        dump_all_tensors: must be False, as in Paddle: whole tensors are not logged.

    Raises:
        EnvironmentProblem: a workbook is asked for, and openpyxl is not installed.
        InputError: a folder has no logs, or one is not of a tensor checker; or `dump_all_tensors`.
        OptionError: the file's name has another ending, or the loss scale is no positive number.
        OutputError: the table cannot be written.
    """
    if dump_all_tensors:
        raise InputError("compare_accuracy: dump_all_tensors=True needs logs of whole tensors, which are not written")
    if not (math.isfinite(loss_scale) and loss_scale > 0):
        raise OptionError(f"compare_accuracy: loss_scale is a positive number, got {loss_scale!r}")
    path = pathlib.Path(output_filename)
    table = _TABLES.get(path.suffix.lower())
    if table is None:
        raise OptionError(f"compare_accuracy: the file's name must end in .csv or .xlsx, got {str(output_filename)!r}")
    content = table(_read(dump_path), _read(another_dump_path), loss_scale)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise OutputError(f"compare_accuracy: cannot write {output_filename!s}: {error.strerror}") from error


# ---- logs ----

_Key = tuple[str, str, str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Logs:
    """Holds what the logs of a run say.

    Attributes:
        stats: worker, operator, tensor and how many times it was logged before -> its statistics.
        files: worker -> the name of its log.
    """

    stats: Mapping[_Key, TensorStats]
    files: Mapping[str, str]


def _read(folder: str | os.PathLike[str]) -> _Logs:
    try:
        files = sorted(pathlib.Path(folder).glob("worker_*"))
        texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"compare_accuracy: cannot read the logs in {folder!s}: {error}") from error
    if not texts:
        raise InputError(
            f"compare_accuracy: {folder!s} has no worker_*.log: log a run with enable_tensor_checker("
            "TensorCheckerConfig(True, DebugMode.CHECK_ALL, output_dir=...))"
        )
    logged: dict[_Key, TensorStats] = {}
    seen: dict[tuple[str, str, str], int] = {}
    for name, text in texts.items():
        for stats in parse_lines(name, text.splitlines()):
            place = (_worker(name), stats.op, stats.tensor)
            count = seen[place] = seen.get(place, -1) + 1
            if stats.op.partition("@")[0] != "cast":
                logged[(*place, count)] = stats
    return _Logs(logged, {_worker(name): name for name in texts})


def _worker(name: str) -> str:
    """Return the number of a worker, given the name of its log."""
    return name.rpartition(".")[0].rpartition(".")[2]


# ---- CSV ----


def _csv(first: _Logs, second: _Logs, loss_scale: float) -> bytes:
    head = ["worker", "op", "tensor", "occurrence"]
    head += [f"{side}_{column}" for side in ("first", "second") for column in _COLUMNS] + ["found"]
    keys = dict.fromkeys([*first.stats, *second.stats])
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow(head)
    csv.writer(stream).writerows(_row(key, first.stats.get(key), second.stats.get(key), loss_scale) for key in keys)
    return stream.getvalue().encode()


def _row(key: _Key, first: TensorStats | None, second: TensorStats | None, loss_scale: float) -> list[object]:
    if second is not None and loss_scale != 1 and second.op.endswith("grad"):
        scaled = {name: getattr(second, name) / loss_scale for name in ("max", "min", "mean")}
        second = dataclasses.replace(second, **scaled)
    sides = [
        [""] * len(_COLUMNS) if side is None else [getattr(side, name) for name in _COLUMNS] for side in (first, second)
    ]
    return [*key, *sides[0], *sides[1], _difference(first, second)]


def _difference(first: TensorStats | None, second: TensorStats | None) -> str:
    if first is None or second is None:
        return "in one run only"
    if first.is_finite != second.is_finite:
        return "nan or inf"
    return "leaves fp16" if first.leaves_float16 or second.leaves_float16 else ""


# ---- a workbook ----


def _xlsx(first: _Logs, second: _Logs, loss_scale: float) -> bytes:
    sheets: dict[str, Sheet] = {}
    for key in dict.fromkeys([*first.stats, *second.stats]):
        worker, _, tensor, occurrence = key
        title = first.files.get(worker) or second.files[worker]
        row = (f"{tensor}#{occurrence}", first.stats.get(key), second.stats.get(key))
        sheets.setdefault(worker, Sheet(title, [])).rows.append(row)
    return workbook(list(sheets.values()), loss_scale)


_TABLES: Mapping[str, Callable[[_Logs, _Logs, float], bytes]] = {".csv": _csv, ".xlsx": _xlsx}
