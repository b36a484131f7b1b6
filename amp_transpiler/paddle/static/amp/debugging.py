"""The precision of a program, counted by operator; stopping at infinity and NaN."""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.view.operators import working_type
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.runtime.flags import set_flags

__all__ = [
    "DebugMode",
    "OperatorStats",
    "TensorCheckerConfig",
    "collect_operator_stats",
    "disable_tensor_checker",
    "enable_tensor_checker",
]

logger = logging.getLogger(__name__)

_COLUMNS = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16", ir.DataType.FLOAT: "fp32"}


@dataclasses.dataclass(slots=True)
class OperatorStats:
    """The number of nodes of one operator by the element type they compute in."""

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


def collect_operator_stats(program: Program | None = None, print_subblocks: bool = False) -> dict[str, OperatorStats]:
    """Count the nodes of each operator by the element type they compute in, and log the table.

    A node computes in the type of its first floating-point input or, without one, of its first output.

    Args:
        program: the program; the default main program unless given.
        print_subblocks: also count nodes inside the bodies of control flow.

    Returns:
        operator -> counts, sorted by operator.
    """
    if program is None:
        program = default_main_program()
    found = _count((operator_name(node), working_type(node)) for node in _nodes(program, inner=print_subblocks))
    for name in sorted(found):
        stats = found[name]
        logger.info(
            "%-32s fp16 %5d  bf16 %5d  fp32 %5d  other %5d", name, stats.fp16, stats.bf16, stats.fp32, stats.other
        )
    return {name: found[name] for name in sorted(found)}


def _get_op_stats_list(program: Program) -> list[dict[str, OperatorStats]]:
    """Return for each block Paddle's name of an operator -> counts, as Paddle's own tests read them."""
    return [_count((op.type, op.dtype) for op in block.ops) for block in program.blocks]


def _count(found: Iterable[tuple[str, ir.DataType | None]]) -> dict[str, OperatorStats]:
    stats: dict[str, OperatorStats] = {}
    for name, dtype in found:
        counts = stats.setdefault(name, OperatorStats())
        column = _COLUMNS.get(dtype or ir.DataType.UNDEFINED, "other")
        setattr(counts, column, getattr(counts, column) + 1)
    return stats


def _nodes(program: Program, *, inner: bool) -> Iterator[ir.Node]:
    return all_nodes(program.model) if inner else iter(program.model.graph)


class DebugMode(enum.Enum):
    """The modes of a tensor checker, with Paddle's names; only the first is available."""

    CHECK_NAN_INF_AND_ABORT = 0
    CHECK_NAN_INF = 1
    CHECK_ALL_FOR_OVERFLOW = 2
    CHECK_ALL = 3


@dataclasses.dataclass(frozen=True, slots=True)
class TensorCheckerConfig:
    """Paddle's settings of the tensor checker.

    Attributes:
        enable: whether it checks at all.
        debug_mode: what it does.
    """

    enable: bool
    debug_mode: DebugMode = DebugMode.CHECK_NAN_INF_AND_ABORT


def enable_tensor_checker(checker_config: TensorCheckerConfig) -> None:
    """Stop runs at infinity and NaN, as `paddle.set_flags({"FLAGS_check_nan_inf": True})` does.

    Raises:
        OptionError: the mode is another one than to stop.
    """
    if checker_config.debug_mode is not DebugMode.CHECK_NAN_INF_AND_ABORT:
        raise OptionError(
            f"enable_tensor_checker: {checker_config.debug_mode.name} is not available: take CHECK_NAN_INF_AND_ABORT, "
            "or run with not_finite='skip', which warns and goes on"
        )
    set_flags({"FLAGS_check_nan_inf": checker_config.enable})


def disable_tensor_checker() -> None:
    """Let runs go on, whatever they compute."""
    set_flags({"FLAGS_check_nan_inf": False})
