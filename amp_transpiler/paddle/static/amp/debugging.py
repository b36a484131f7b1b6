"""Counts a program's operators by precision; has the settings of the tensor checker under their shorter path."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.static.operator_stats import OperatorStats, count_operators, print_operator_stats
from amp_transpiler.paddle.static.program import working_type
from amp_transpiler.paddle.static.tensor_checker import (
    DebugMode,
    TensorCheckerConfig,
    disable_tensor_checker,
    enable_tensor_checker,
)
from amp_transpiler.program.program import Program

__all__ = [
    "DebugMode",
    "OperatorStats",
    "TensorCheckerConfig",
    "collect_operator_stats",
    "disable_tensor_checker",
    "enable_tensor_checker",
]


def collect_operator_stats(program: Program | None = None, print_subblocks: bool = False) -> dict[str, OperatorStats]:
    """Count the nodes of each operator by the element type they compute in, and print the table.

    A node computes in the type of its first floating-point input or, without one, of its first output.

    Args:
        program: the program; the default main program unless given.
        print_subblocks: also count nodes inside the bodies of control flow.

    Returns:
        operator -> counts, sorted by operator.
    """
    if program is None:
        program = default_main_program()
    stats = count_operators(
        (operator_name(node), working_type(node)) for node in _nodes(program, inner=print_subblocks)
    )
    print_operator_stats(stats)
    return {name: stats[name] for name in sorted(stats)}


def _get_op_stats_list(program: Program) -> list[dict[str, OperatorStats]]:
    """Return for each block Paddle's name of an operator -> counts, as Paddle's own tests read them."""
    return [count_operators((op.type, op.dtype) for op in block.ops) for block in program.blocks]


def _nodes(program: Program, *, inner: bool) -> Iterator[ir.Node]:
    return all_nodes(program.model) if inner else iter(program.model.graph)
