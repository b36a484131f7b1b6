"""Counts operators by their precision: those of one program, or of all that run while counting is enabled."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.program.program import Program

__all__ = [
    "OperatorStats",
    "collecting_operator_stats",
    "count_operators",
    "disable_operator_stats_collection",
    "enable_operator_stats_collection",
    "note_run",
    "print_operator_stats",
]

_COLUMNS = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16", ir.DataType.FLOAT: "fp32"}
_WIDTH = 120


@dataclasses.dataclass(slots=True)
class OperatorStats:
    """Counts the nodes, or calls, of one operator by the element type they compute in."""

    fp16: int = 0
    bf16: int = 0
    fp32: int = 0
    other: int = 0

    @property
    def fp16_calls(self) -> int:
        """Paddle's name of `fp16`."""
        return self.fp16

    @property
    def bf16_calls(self) -> int:
        """Paddle's name of `bf16`."""
        return self.bf16

    @property
    def fp32_calls(self) -> int:
        """Paddle's name of `fp32`."""
        return self.fp32

    @property
    def other_calls(self) -> int:
        """Paddle's name of `other`."""
        return self.other

    def add(self, dtype: ir.DataType | None) -> None:
        """Count one more."""
        column = _COLUMNS.get(dtype or ir.DataType.UNDEFINED, "other")
        setattr(self, column, getattr(self, column) + 1)


def count_operators(found: Iterable[tuple[str, ir.DataType | None]]) -> dict[str, OperatorStats]:
    """Return operator -> counts, given the operator of each node and the type it computes in."""
    stats: dict[str, OperatorStats] = {}
    for name, dtype in found:
        stats.setdefault(name, OperatorStats()).add(dtype)
    return stats


def print_operator_stats(stats: Mapping[str, OperatorStats]) -> None:
    """Print counts as the table that Paddle prints."""
    heads = (f"{f' {kind} Calls ':-^17}" for kind in ("FP16", "BF16", "FP32", "Other"))
    lines = [f"<{' op list ':-^{_WIDTH}}>", f"<{' Op Name ':-^40}|{'|'.join(heads)}>"]
    for name in sorted(stats):
        counts = (stats[name].fp16, stats[name].bf16, stats[name].fp32, stats[name].other)
        lines.append(f"  {name:<40}|" + "|".join(f"  {count:<15}" for count in counts))
    lines.append(f"<{f' op count: {len(stats)} ':-^{_WIDTH}}>")
    sys.stdout.write("\n".join(lines) + "\n")


# ---- of all programs that run in a while ----

_collected: list[dict[str, OperatorStats]] = []  # one while it collects, else none


def enable_operator_stats_collection() -> None:
    """Count, from here on, the operators of every program that an `Executor` runs, by the type they compute in.

    Each run counts each operator of the program once, under Paddle's name, those in bodies of control flow too.
    """
    _collected[:] = [{}]


def disable_operator_stats_collection() -> None:
    """Stop counting, and print the table of what was counted; without a count under way, nothing happens."""
    if _collected:
        print_operator_stats(_collected.pop())


@contextlib.contextmanager
def collecting_operator_stats() -> Iterator[None]:
    """Count the operators of every program that runs in this context, and print the table at its end."""
    enable_operator_stats_collection()
    try:
        yield
    finally:
        disable_operator_stats_collection()


def note_run(program: Program) -> None:
    """Count the operators of a program that is run."""
    for stats in _collected:
        for block in program.blocks:
            for op in block.ops:
                stats.setdefault(op.type, OperatorStats()).add(op.dtype)
