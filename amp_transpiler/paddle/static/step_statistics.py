"""Statistics of a training step that are computed inside the graph: a few numbers a tensor leave the device."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.static.step_tensors import (
    Place,
    first_readers,
    forward_tensors,
    gradients_of,
    loss_scales_of,
)
from amp_transpiler.paddle.static.tensor_checker import exempt
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.scope import Scope

__all__ = ["StepProbe", "StepStatistics", "TensorStatistics"]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Describes a tensor in one step.

    Attributes:
        name: the tensor; for a gradient, its parameter.
        operator: Paddle's name of the operator that makes it; for a gradient, of the first that reads the parameter.
        where: the function and line of the program that this operator comes from.
        numel: how many numbers it has.
        zeros: how many are zero.
        non_finite: how many are infinite or NaN.
        largest: the largest finite magnitude; that of a gradient is scaled.
    """

    name: str
    operator: str
    where: str
    numel: int
    zeros: int
    non_finite: int
    largest: float


@dataclasses.dataclass(frozen=True, slots=True)
class StepStatistics:
    """Describes one step.

    Attributes:
        step: its number, from 1.
        loss_scale: the scale of the step; None if the loss is not scaled.
        gradients: one for each parameter, in the order in which the forward pass reads them.
        tensors: one for each tensor of the forward pass, in its order.
    """

    step: int
    loss_scale: float | None
    gradients: tuple[TensorStatistics, ...]
    tensors: tuple[TensorStatistics, ...]

    def __str__(self) -> str:
        bad = [row for row in self.gradients if row.non_finite]
        zeros = max(self.gradients, key=lambda row: row.zeros / max(row.numel, 1))
        parts = [f"step {self.step}: {zeros.zeros / max(zeros.numel, 1):.0%} of the gradient of '{zeros.name}' is zero"]
        if bad:
            parts.append(
                f"{len(bad)} of {len(self.gradients)} gradients are not finite, nearest to the loss '{bad[-1].name}'"
            )
        if self.tensors:
            top = max(self.tensors, key=lambda row: row.largest)
            parts.append(
                f"the largest number of the forward pass is {top.largest:.4g}, in '{top.name}' ({top.operator})"
            )
        return "; ".join(parts)


class Runs(Protocol):
    """Runs a program, as an `Executor` does."""

    def run(self, program: Program, feed: Any, fetch_list: Any, *, scope: Scope) -> list[Any]:
        """Run a program once."""


class StepProbe:
    """Computes the statistics of a program's step, with a copy of the program that changes nothing.

    Args:
        program: a training program.

    Raises:
        InputError: no parameter has a gradient.
    """

    def __init__(self, program: Program) -> None:
        copy = exempt(program.clone())
        copy.updates.clear()
        gradients, readers = gradients_of(copy), first_readers(copy)
        if not gradients:
            raise InputError(f"train: statistics_every needs gradients, and {program!r} has none of its parameters")
        self._gradients = {name: readers[name] for name in readers if name in gradients}
        self._tensors, self._scales = forward_tensors(copy), loss_scales_of(copy)
        values = [copy.value(name) for name in [*(gradients[name] for name in self._gradients), *self._tensors]]
        self._fetches = _add_statistics(copy.builder("optimize"), values)
        self._program = copy

    def measure(self, executor: Runs, feed: Mapping[Any, Any], scope: Scope, step: int) -> StepStatistics:
        """Return the statistics of the step that comes next; the scope stays as it is."""
        counts, largest = executor.run(self._program, feed, self._fetches, scope=scope)
        places = [*self._gradients.items(), *self._tensors.items()]
        rows = [_row(*place, *numbers) for place, *numbers in zip(places, counts, largest, strict=True)]
        scale = float(np.asarray(scope[self._scales[0]]).item()) if self._scales else None
        count = len(self._gradients)
        return StepStatistics(step, scale, tuple(rows[:count]), tuple(rows[count:]))


def _row(name: str, place: Place, counts: np.ndarray, largest: np.floating) -> TensorStatistics:
    numel, zeros, non_finite = (int(count) for count in counts)
    return TensorStatistics(name, place.operator, place.where, numel, zeros, non_finite, float(largest))


def _add_statistics(builder: GraphBuilder, values: list[ir.Value]) -> list[str]:
    """Add two outputs for some values: how many numbers, zeros and not finite ones each has; its largest magnitude.

    What is computed of a value stands right behind it, so that it need not be kept.
    """
    counts, largest = [], []
    behind = _following(builder.graph)
    for value in values:
        node = value.producer()
        builder.before = None if node is None else behind.get(node)
        wide = builder.cast(builder.high(value), ir.DataType.FLOAT)
        zero = builder.constant(np.zeros((), np.float32))
        not_finite = builder.op("Or", [builder.op("IsNaN", [wide]), builder.op("IsInf", [wide])])
        facts = [builder.op("Equal", [wide, zero]), not_finite]
        sums = [builder.op("ReduceSum", [builder.cast(fact, ir.DataType.INT64)], {"keepdims": 0}) for fact in facts]
        numbers = [builder.reshape(number, [1]) for number in (builder.op("Size", [wide]), *sums)]
        counts.append(builder.reshape(builder.concat(numbers, 0), [1, len(numbers)]))
        finite = builder.where(not_finite, zero, builder.op("Abs", [wide]))
        largest.append(builder.reshape(builder.op("ReduceMax", [finite], {"keepdims": 0}), [1]))
    builder.before = None
    return [str(builder.concat(counts, 0).name), str(builder.concat(largest, 0).name)]


def _following(graph: ir.Graph) -> dict[ir.Node, ir.Node]:
    return dict(itertools.pairwise(graph))
