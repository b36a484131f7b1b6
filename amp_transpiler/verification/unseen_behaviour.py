"""What data leave unseen: branches of an If that no sample took, further trips of a Loop, outputs that show nothing.

What never ran is not verified: a verdict names it, and is not *verified* for that. It concerns only what a conversion
changed: a branch or a body without a low node is the source's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.walk import all_nodes, bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.phrases import counted
from amp_transpiler.program.program import Program
from amp_transpiler.report import OutputComparison
from amp_transpiler.verification.fixed_sample import inline_branches

__all__ = ["never_ran", "shows_nothing", "taken_branches"]

_BRANCHES = {"then_branch": True, "else_branch": False}
_LOOPS = ("Loop", "Scan")
# Operators whose results end at -1, 0 or 1, however large their inputs are.
_SATURATE = frozenset("Sigmoid HardSigmoid Tanh Softmax Erf Softsign".split())
_MOVES = frozenset("Identity Cast Reshape Flatten Squeeze Unsqueeze Transpose Slice Concat".split())
_ENDS = (-1.0, 0.0, 1.0)


def never_ran(
    program: Program, low: Collection[str], samples: Sequence[Mapping[str, Any]], dtype: str
) -> tuple[str, ...]:
    """Return what of a conversion no sample shows, in words.

    Args:
        program: the prepared program, whose nodes have the names of the converted one's; not changed.
        low: the names of the low nodes.
        samples: the inputs of `program`.
        dtype: the low format.

    Raises:
        RUN_ERRORS: the program does not run.
    """
    ifs = [node for node in all_nodes(program.model) if node.op_type == "If" and is_standard(node)]
    unseen: list[str] = []
    if any(_low_inside(body, low) for node in ifs for _, body in bodies(node)):
        seen = taken_branches(program, samples)
        in_loops = {str(node.name) for node in _inside_loops(program.model)}
        for node in ifs:
            unseen += _untaken(node, low, seen, in_loops, dtype)
    for node in all_nodes(program.model):
        count = sum(_low_inside(body, low) for _, body in bodies(node)) if node.op_type == "Loop" else 0
        if count and is_standard(node) and not _trips_are_fixed(node):
            unseen.append(f"further trips of Loop '{node.name}' ({counted(count, f'{dtype} node')})")
    return tuple(unseen)


def taken_branches(program: Program, samples: Sequence[Mapping[str, Any]]) -> set[tuple[str, bool]]:
    """Return each If outside loops that ran, by its first output, with the truth value of each branch that was taken.

    Raises:
        RUN_ERRORS: the program does not run.
    """
    seen: set[tuple[str, bool]] = set()
    for sample in samples:
        copy = program.clone()
        copy.source = None
        inline_branches(copy, sample, branches=seen)
    return seen


def _untaken(
    node: ir.Node, low: Collection[str], seen: set[tuple[str, bool]], in_loops: Collection[str], dtype: str
) -> Iterator[str]:
    for attribute, body in bodies(node):
        count = _low_inside(body, low)
        if not count or (str(node.outputs[0].name), _BRANCHES[attribute]) in seen:
            continue
        words = f"{attribute.replace('_', ' ')} of If '{node.name}' ({counted(count, f'{dtype} node')})"
        yield f"{words}, which may not have run in its loop" if node.name in in_loops else words


def _low_inside(body: ir.Graph, low: Collection[str]) -> int:
    return sum(node.name in low for node in body.all_nodes())


def _inside_loops(model: ir.Model) -> Iterator[ir.Node]:
    for node in all_nodes(model):
        if node.op_type in _LOOPS:
            for _, body in bodies(node):
                yield from body.all_nodes()


def _trips_are_fixed(node: ir.Node) -> bool:
    """Whether a Loop makes the same number of trips on all inputs."""
    _, body = next(iter(bodies(node)))
    most = node.inputs[0] if node.inputs else None
    condition = node.inputs[1] if len(node.inputs) > 1 else None
    going_on = body.outputs[0]
    producer = going_on.producer()
    while producer is not None and producer.op_type == "Identity" and producer.inputs[0] is not None:
        going_on = producer.inputs[0]
        producer = going_on.producer()
    always = going_on is body.inputs[1] or constant_array(going_on) is not None
    started = condition is None or constant_array(condition) is not None
    return constant_array(most) is not None and always and started


# ---- outputs ----


def shows_nothing(row: OutputComparison, value: ir.Value | None, outputs: Sequence[Mapping[str, Any]]) -> str:
    """Say why the data show nothing of a float output, though it was computed; empty if they show something.

    Args:
        row: its comparison.
        value: the output in the float32 program's graph; None if it has none.
        outputs: what float32 computed, one mapping per sample.
    """
    if row.elements and row.nonfinite_reference > row.elements:
        share = row.nonfinite_reference / (row.nonfinite_reference + row.elements)
        return f"NaN or infinite in {100 * share:.3g}% of float32's elements"
    values = [sample.get(row.name) for sample in outputs]
    arrays = [np.asarray(entry) for entry in values if isinstance(entry, np.ndarray) and "float" in entry.dtype.name]
    if len(arrays) < len(values) or not any(array.size for array in arrays):
        return ""
    if not any(array.any() for array in arrays):
        return "zero in all the data"
    if _saturates(value) and all(np.isin(array.astype(np.float32), _ENDS).all() for array in arrays):
        return "saturated in all the data"
    return ""


def _saturates(value: ir.Value | None) -> bool:
    """Whether a value comes of an operator whose results end at a bound."""
    node = None if value is None else value.producer()
    while node is not None and is_standard(node) and node.op_type in _MOVES and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and is_standard(node) and node.op_type in _SATURATE
