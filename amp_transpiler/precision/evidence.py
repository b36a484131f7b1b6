"""Holds evidence from data: the ranges of a program's values, and what rounding its nodes and values adds to outputs.

Everything is by name, so that it holds for clones of the prepared program that it was collected on. `verification`
collects it (`calibrate.py`, `sensitivity.py`); decisions read it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.histogram import NO_NUMBERS, Histogram
from amp_transpiler.precision.limits import HEADROOM
from amp_transpiler.precision.reasons import Reason

__all__ = ["Evidence", "TensorRange", "near_overflow", "range_fault", "read_key"]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorRange:
    """The finite magnitudes of a value over all samples.

    Attributes:
        largest: the largest magnitude.
        smallest: the least one that is not zero; infinite if all are zero.
        sample: the sample that set `largest`.
        flushed: the share of the elements other than zero that become zero in the low format.
        histogram: how many of them are of which magnitude.
    """

    largest: float
    smallest: float = math.inf
    sample: str = ""
    flushed: float = 0.0
    histogram: Histogram = NO_NUMBERS

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> TensorRange:
        """Return the range that `dataclasses.asdict` made a record of, read from JSON.

        Raises:
            TypeError, KeyError: it is none.
        """
        histogram = record["histogram"]
        return cls(**{**record, "histogram": Histogram(histogram["lowest"], tuple(histogram["counts"]))})


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What runs on data say about a program.

    Errors are squares of shares of an output's norm: those of one assignment add up to the square of its relative
    error. A node's error is that of its own rounding: of its results and constants, on inputs that are low already. The
    rounding of an input is the error of the cast that makes it low, paid once for a value. An infinite error means that
    lower precision overflows there.

    Attributes:
        ranges: value -> its range, for the float32 values that were measured.
        node_errors: node -> what it adds to the worst output when it is low.
        cast_errors: value -> what a cast of it to the low format adds to the worst output.
        node_errors_by_output: output -> node -> the same for this output.
        cast_errors_by_output: output -> value -> likewise.
        read_errors_by_output: output -> place where a node reads a value (`read_key`) -> what it adds that the value is
            rounded there. Those of one value are parts of the error of its cast; where they cancel, they are larger.
        alone_errors: node -> what it adds to the worst output when only it is low, the casts of its inputs included.
        estimated: node -> why its error is an estimate.
        samples: names of the samples.
        given: they are the user's, not made up.
    """

    ranges: Mapping[str, TensorRange] = dataclasses.field(default_factory=dict)
    node_errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cast_errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    node_errors_by_output: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    cast_errors_by_output: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    read_errors_by_output: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    alone_errors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    estimated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    samples: tuple[str, ...] = ()
    given: bool = False

    def predicted(self, low_nodes: Iterable[str], low_casts: Iterable[str] = (), output: str | None = None) -> float:
        """Return the relative error to expect of an output.

        Args:
            low_nodes: names of the nodes that are low.
            low_casts: names of the values that a cast makes low.
            output: the output; None for the worst one.
        """
        if output is not None:
            nodes, casts = self.node_errors_by_output.get(output, {}), self.cast_errors_by_output.get(output, {})
            terms = [nodes.get(name, 0.0) for name in low_nodes] + [casts.get(name, 0.0) for name in low_casts]
            return math.sqrt(math.fsum(terms))
        low_nodes, low_casts = list(low_nodes), list(low_casts)
        every = (self.predicted(low_nodes, low_casts, name) for name in self.node_errors_by_output)
        return max(every, default=0.0)


def read_key(value: str, node: str) -> str:
    """Return the name of a place where a node reads a value."""
    return f"{value}\n{node}"


def range_fault(
    node: ir.Node, form: LowForm, ranges: Mapping[str, TensorRange], low: LowFormat, headroom: float = HEADROOM
) -> Reason | None:
    """Say why the ranges that were seen forbid a node to be low; None if they do not, or nothing was seen.

    Args:
        node: the node.
        form: which of its inputs and outputs would be low.
        ranges: value -> its range.
        low: the low format.
        headroom: how many times a range must fit.
    """
    for value in _low_values(node, form) if ranges else ():
        seen = ranges.get(str(value.name))
        if seen is not None and seen.largest * headroom > low.max:
            sample = seen.sample or "the data"
            values = {"value": str(value.name), "largest": seen.largest, "sample": sample, "headroom": headroom}
            return Reason("range", {**values, "low": low.name, "most": low.max})
    return None


def _low_values(node: ir.Node, form: LowForm) -> Iterator[ir.Value]:
    values = [node.inputs[i] for i in sorted(form.inputs)] + [node.outputs[i] for i in sorted(form.outputs)]
    return (value for value in values if is_float32(value))


def near_overflow(
    ranges: Mapping[str, TensorRange], low: LowFormat, headroom: float = HEADROOM
) -> list[tuple[str, TensorRange]]:
    """Return the values whose seen range times `headroom` does not fit, the largest first."""
    overflowing = [(name, seen) for name, seen in ranges.items() if seen.largest * headroom > low.max]
    return sorted(overflowing, key=lambda item: (-item[1].largest, item[0]))
