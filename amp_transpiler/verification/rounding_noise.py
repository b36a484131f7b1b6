"""Finds values that only rounding decides: they change if the inputs change in their last digits.

A comparison of such a value says nothing about a conversion.

The gradient of a bias before a normalisation is zero but for rounding, for example, and so is that of a key's bias in
attention; an optimizer such as Adam makes full steps of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.graph.walk import all_nodes

__all__ = ["DECIDED", "Nudge", "changed_much"]

DECIDED = "only rounding decides it"
"""Why an output is not judged."""


@dataclasses.dataclass(frozen=True, slots=True)
class Nudge:
    """A change of numbers in their last places.

    Attributes:
        size: relative to each number.
        much: a value that changes by this share of itself is decided by rounding.
    """

    size: float
    much: float

    @classmethod
    def of(cls, model: ir.Model) -> Nudge:
        """Return the nudge for a model: it must reach the format that the model computes in."""
        formats = set(_formats(model))
        if ir.DataType.BFLOAT16 in formats:
            return cls(2.0**-7, 0.25)
        return cls(2.0**-10, 0.1) if ir.DataType.FLOAT16 in formats else cls(2.0**-22, 0.01)

    def applied(self, samples: Sequence[Mapping[str, Any]], step: TrainingStep) -> list[dict[str, Any]]:
        """Return samples whose parameters and floating-point data are a little larger or smaller."""
        generator = np.random.default_rng(0)
        unchanged = {state.input for state in step.states if state.role != "parameter"}
        return [dict(self._changed(sample, unchanged, generator)) for sample in samples]

    def _changed(
        self, sample: Mapping[str, Any], unchanged: Collection[str], generator: np.random.Generator
    ) -> Iterator[tuple[str, Any]]:
        for name, value in sample.items():
            if name in unchanged or not isinstance(value, np.ndarray) or value.dtype.kind not in "fV":
                yield name, value
            else:
                signs = generator.integers(0, 2, value.shape) * 2 - 1
                yield name, np.asarray(value * (1 + self.size * signs)).astype(value.dtype)


def _formats(model: ir.Model) -> Iterator[ir.DataType | None]:
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        yield value.dtype
    for node in all_nodes(model):
        if node.op_type == "Cast" and "to" in node.attributes:
            yield ir.DataType(node.attributes["to"].as_int())


def changed_much(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], much: float) -> list[str]:
    """Return the names of floating-point outputs that changed by more than the share `much` of their norm."""
    changed = []
    for name, first in before[0].items():
        if isinstance(first, np.ndarray) and first.dtype.kind in "fV":
            pairs = [
                (_float64(original[name]), _float64(other[name])) for original, other in zip(before, after, strict=True)
            ]
            if not _is_close(pairs, much):
                changed.append(name)
    return changed


def _is_close(pairs: Sequence[tuple[np.ndarray, np.ndarray]], much: float) -> bool:
    if any(first.shape != other.shape for first, other in pairs):
        return True  # shapes that depend on data are no matter of rounding
    difference = sum(float(np.sum(np.square(other - first))) for first, other in pairs)
    size = sum(float(np.sum(np.square(first))) for first, _ in pairs)
    return not difference > much**2 * size  # values that are not finite are judged elsewhere


def _float64(value: Any) -> np.ndarray:
    return np.asarray(value).astype(np.float64)
