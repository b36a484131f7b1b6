"""Computes statistics of tensors, writes them as lines of Paddle's debugging logs, and compares such logs."""

from __future__ import annotations

import csv
import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

import numpy as np

from amp_transpiler.errors import InputError, OutputError

__all__ = ["TensorStats", "compare_accuracy", "log_file", "stats_of"]

_FLOAT16_LARGEST = 65504.0
_SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_LINE = re.compile(
    r"\[PRECISION\](?: \[ERROR\])? in \[device=(?P<device>[^,]*), op=(?P<op>.*?), tensor=(?P<tensor>.*?), "
    r"dtype=(?P<dtype>\w+)\], numel=(?P<numel>\d+), num_nan=(?P<num_nan>\d+), num_inf=(?P<num_inf>\d+), "
    r"num_zero=(?P<num_zero>\d+), max=(?P<max>\S+), min=(?P<min>\S+), mean=(?P<mean>\S+)$"
)


@dataclasses.dataclass(frozen=True, slots=True)
class TensorStats:
    """Holds the statistics of one tensor in one run.

    Attributes:
        op: Paddle's name of the operator that made it.
        tensor: its name.
        dtype: `fp16`, `bf16`, `fp32` or `fp64`.
        numel: how many elements it has.
        num_nan: how many are NaN.
        num_inf: how many are infinite.
        num_zero: how many are zero.
        max: the largest finite element; NaN if there is none.
        min: the smallest finite element; NaN if there is none.
        mean: that of all elements.
        device: where it was computed, such as `cpu` or `gpu:0`.
    """

    op: str
    tensor: str
    dtype: str
    numel: int
    num_nan: int
    num_inf: int
    num_zero: int
    max: float
    min: float
    mean: float
    device: str = "cpu"

    @property
    def is_finite(self) -> bool:
        """Whether no element is infinite or NaN."""
        return not self.num_nan and not self.num_inf

    @property
    def leaves_float16(self) -> bool:
        """Whether it is float32 or float64, and an element is beyond what float16 can hold."""
        is_wide = self.dtype in ("fp32", "fp64")
        return is_wide and (self.num_inf > 0 or max(self.max, -self.min) > _FLOAT16_LARGEST)

    def __str__(self) -> str:
        error = "" if self.is_finite else " [ERROR]"
        where = f"[device={self.device}, op={self.op}, tensor={self.tensor}, dtype={self.dtype}]"
        counts = f"numel={self.numel}, num_nan={self.num_nan}, num_inf={self.num_inf}, num_zero={self.num_zero}"
        return f"[PRECISION]{error} in {where}, {counts}, max={self.max:e}, min={self.min:e}, mean={self.mean:e}"


def stats_of(array: np.ndarray, op: str, tensor: str, device: str = "cpu") -> TensorStats:
    """Return the statistics of a float array."""
    name, wide = array.dtype.name, array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(wide.mean()) if wide.size else float("nan")
    return TensorStats(
        op,
        tensor,
        _SHORT.get(name, name),
        int(wide.size),
        int(np.isnan(wide).sum()),
        int(np.isinf(wide).sum()),
        int(np.count_nonzero(wide == 0.0)),
        float(finite.max()) if finite.size else float("nan"),
        float(finite.min()) if finite.size else float("nan"),
        mean,
        device,
    )


def log_file(folder: str | os.PathLike[str], device: str, rank: int = 0) -> pathlib.Path:
    """Return the file that a process logs to, named as Paddle's are: `worker_cpu.0.log`, `worker_gpu.1.log`."""
    return pathlib.Path(folder) / f"worker_{device.partition(':')[0]}.{rank}.log"


# ---- two logs side by side ----

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
    it. The last column names what is wrong: `nan or inf` on one side only, or `leaves fp16`.

    Args:
        dump_path: the folder of the first run's logs.
        another_dump_path: that of the second run's.
        output_filename: the file to write, as CSV, which spreadsheets open. (Paddle writes a workbook of Excel.)
        loss_scale: what gradients of the second run were multiplied by; they are divided by it here.
        dump_all_tensors: must be False: whole tensors are not logged.

    Raises:
        InputError: a folder has no logs, or one is not of a tensor checker; or `dump_all_tensors`.
        OutputError: the table cannot be written.
    """
    if dump_all_tensors:
        raise InputError("compare_accuracy: dump_all_tensors=True needs logs of whole tensors, which are not written")
    first, second = _read(dump_path), _read(another_dump_path)
    rows = [_row(key, first.get(key), second.get(key), loss_scale) for key in dict.fromkeys([*first, *second])]
    head = ["worker", "op", "tensor", "occurrence"]
    head += [f"{side}_{column}" for side in ("first", "second") for column in _COLUMNS] + ["found"]
    try:
        with pathlib.Path(output_filename).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([head, *rows])
    except OSError as error:
        raise OutputError(f"compare_accuracy: cannot write {output_filename!s}: {error.strerror}") from error


_Key = tuple[str, str, str, int]


def _read(folder: str | os.PathLike[str]) -> dict[_Key, TensorStats]:
    """Return worker, operator, tensor and how many times it was logged before -> what the log says."""
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
    for worker, text in texts.items():
        for stats in _parsed(worker, text.splitlines()):
            place = (worker.rpartition(".")[0].rpartition(".")[2], stats.op, stats.tensor)
            count = seen[place] = seen.get(place, -1) + 1
            if stats.op != "cast":
                logged[(*place, count)] = stats
    return logged


def _parsed(worker: str, lines: Iterable[str]) -> Iterator[TensorStats]:
    for number, line in enumerate(lines, 1):
        match = _LINE.match(line)
        if match is None:
            raise InputError(f"compare_accuracy: line {number} of {worker} is none of a tensor checker: {line!r:.120}")
        fields = match.groupdict()
        counts = {name: int(fields[name]) for name in ("numel", "num_nan", "num_inf", "num_zero")}
        numbers = {name: float(fields[name]) for name in ("max", "min", "mean")}
        words = {name: fields[name] for name in ("op", "tensor", "dtype", "device")}
        yield TensorStats(**words, **counts, **numbers)  # type: ignore[arg-type]  # mypy joins the types of all fields


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
