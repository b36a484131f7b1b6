"""Computes statistics of tensors, writes them as lines of Paddle's debugging logs, and reads such lines."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

import numpy as np

from amp_transpiler.errors import InputError

__all__ = ["TensorStats", "log_file", "parse_lines", "stats_of"]

_FLOAT16_LARGEST = 65504.0
_FLOAT16_ZERO = 2.0**-25  # what is at most this is zero in float16
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

    @property
    def vanishes_in_float16(self) -> bool:
        """Whether it is float32 or float64, and all of its elements, not all zero, would be zero in float16."""
        return self.dtype in ("fp32", "fp64") and self.is_finite and 0.0 < max(self.max, -self.min) <= _FLOAT16_ZERO

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


def parse_lines(log: str, lines: Iterable[str]) -> Iterator[TensorStats]:
    """Yield what the lines of a log say.

    Args:
        log: the log's name, for messages.
        lines: its lines.

    Raises:
        InputError: a line is none of a tensor checker.
    """
    for number, line in enumerate(lines, 1):
        match = _LINE.match(line)
        if match is None:
            raise InputError(f"compare_accuracy: line {number} of {log} is none of a tensor checker: {line!r:.120}")
        fields = match.groupdict()
        counts = {name: int(fields[name]) for name in ("numel", "num_nan", "num_inf", "num_zero")}
        numbers = {name: float(fields[name]) for name in ("max", "min", "mean")}
        words = {name: fields[name] for name in ("op", "tensor", "dtype", "device")}
        yield TensorStats(**words, **counts, **numbers)  # type: ignore[arg-type]  # mypy joins the types of all fields
