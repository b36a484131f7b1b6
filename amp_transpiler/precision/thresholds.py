"""Keeps nodes float32 whose values, constants or sums are beyond a threshold: the user's, or the range of an engine."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import in_order
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import Reason

if TYPE_CHECKING:
    from amp_transpiler.precision.evidence import TensorRange

__all__ = ["ThresholdFaults", "Thresholds", "checked_thresholds", "masks_limited"]


@dataclasses.dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds; infinite for none.

    Attributes:
        data_max: the largest magnitude of what a node reads and computes.
        init_max: the largest finite magnitude of the constants that it reads.
        depth: the most terms that it sums into one number.
        seen: value -> the range that data showed, for `data_max`.
    """

    data_max: float = math.inf
    init_max: float = math.inf
    depth: float = math.inf
    seen: Mapping[str, TensorRange] = dataclasses.field(default_factory=dict)

    @property
    def needs_data(self) -> bool:
        """Whether the ranges of values must be known."""
        return self.data_max < math.inf


def checked_thresholds(data_max: Any, init_max: Any, depth: Any, *, decides: bool, runs: bool) -> Thresholds:
    """Return the thresholds of the options `data_max`, `init_max` and `max_depth_of_reduction`.

    Args:
        data_max: the option, or None.
        init_max: likewise.
        depth: likewise.
        decides: whether anything becomes low at all.
        runs: whether the model is run.

    Raises:
        OptionError: one is no positive number, or has no meaning.
    """
    options = {"data_max": data_max, "init_max": init_max, "max_depth_of_reduction": depth}
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise OptionError(f"{name} is {value!r}: expected a number above 0, such as 512")
        if not decides:
            raise OptionError(f"{name} has no meaning where nothing becomes low: drop it, or choose another level")
    if data_max is not None and data_max < math.inf and not runs:
        raise OptionError("data_max needs the ranges of values, which only runs show: drop it, or verify")
    limits = [math.inf if value is None else float(value) for value in options.values()]
    return Thresholds(limits[0], limits[1], limits[2])


def masks_limited(model: ir.Model, seen: Mapping[str, TensorRange], low: LowFormat) -> Mapping[str, TensorRange]:
    """Return the ranges with those of masks as the low format will have them: at most its largest number.

    Args:
        model: the typed program that ran.
        seen: value -> the range that data showed.
        low: the low format.
    """
    if all(each.largest <= low.max for each in seen.values()):
        return seen
    from amp_transpiler.precision.masks import find_masks  # few programs have values beyond the format
    from amp_transpiler.precision.numerics import from_integers

    nodes = list(in_order(model.graph))
    integers = {value for node in from_integers(nodes) for value in node.outputs}
    masks = {str(value.name) for value in find_masks(nodes, RangeFaults(low), integers).values}
    limited = {
        name: dataclasses.replace(seen[name], largest=min(seen[name].largest, low.max)) for name in masks & set(seen)
    }
    return {**seen, **limited}


class ThresholdFaults:
    """Says which nodes of a program are beyond a threshold.

    Args:
        model: a typed program.
        thresholds: the thresholds.
        ranges: a look-up of constants.
        dims: name of an open dimension of the inputs -> its size.
    """

    def __init__(self, model: ir.Model, thresholds: Thresholds, ranges: RangeFaults, dims: Mapping[str, int]) -> None:
        self._thresholds, self._ranges = thresholds, ranges
        self._terms: Callable[[ir.Node], int] | None = None
        if thresholds.depth < math.inf:
            from amp_transpiler.cost.shapes import sizes_of
            from amp_transpiler.precision.reductions import terms

            self._terms = functools.partial(terms, sizes=sizes_of(model, dims))

    def of(self, node: ir.Node) -> Reason | None:
        """Say why a node must stay float32; None if no threshold keeps it there."""
        limits = self._thresholds
        for value in node.inputs if limits.init_max < math.inf else ():
            if (largest := self._ranges.largest(value)) > limits.init_max:
                return Reason("init-max", {"largest": largest, "most": limits.init_max})
        for name in _names(node) if limits.seen else ():
            seen = limits.seen.get(name)
            if seen is not None and seen.largest > limits.data_max:
                values = {"value": name, "largest": seen.largest, "sample": seen.sample or "the data"}
                return Reason("data-max", {**values, "most": limits.data_max})
        if self._terms is not None and (depth := self._terms(node)) > limits.depth:
            return Reason("reduction-depth", {"terms": depth, "most": limits.depth})
        return None


def _names(node: ir.Node) -> Iterator[str]:
    """Yield the names of what a node reads and computes."""
    return (str(value.name) for value in (*node.inputs, *node.outputs) if value is not None)
