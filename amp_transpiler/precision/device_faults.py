"""Nodes whose 16-bit kernel computes something wrong on the device, or something else in every run.

The rows of `targets/data/arithmetic.txt` that have a fault say which. Such a kernel counts as none: the node is no
candidate for lower precision, at any level. A row may depend on shapes; they are asked for only where one does.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.silu import is_silu_gate
from amp_transpiler.graph.walk import all_nodes, has_bodies
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import signature
from amp_transpiler.precision.known_shapes import KnownShapes
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.row_sums import ROW_SUMS, RowSum, row_sum
from amp_transpiler.targets import Target
from amp_transpiler.targets.arithmetic import DeviceArithmetic, KernelRow
from amp_transpiler.targets.function_bodies import body_of
from amp_transpiler.targets.kernel_conditions import (
    COUNTING,
    GROWING,
    SEVERAL_BLOCKS,
    ShapeOf,
    holds,
    reduction_of,
    summed_axes,
    sums_last_axes,
)
from amp_transpiler.targets.measured import arithmetic_for
from amp_transpiler.targets.operator import Imports, Operator, imports_of, operator_of

if TYPE_CHECKING:
    from amp_transpiler.precision.evidence import TensorRange

__all__ = ["LARGEST_MEAN", "QUICK_GELU", "SKIP_NORMS", "DeviceFaults", "faulty_operators"]

QUICK_GELU = "com.microsoft::QuickGelu"
"""The kernel into which ONNX Runtime fuses `x * Sigmoid(x)`."""

SKIP_NORMS = frozenset({"com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization"})
"""The kernels into which it fuses an Add and a normalisation of the sum."""

LARGEST_MEAN = 16.0
"""The magnitude of a mean that no data showed: as much as activations have."""

_SUMS_FIRST = "sum_then_divide"  # the rule of a mean whose sum must fit into the format
_SEVERAL = 2  # a size that is not 1
_LONG = 1 << 16  # elements of an open dimension in a run with much data


class DeviceFaults:
    """Says which nodes of a program a device computes wrongly in a low format.

    Args:
        model: a typed program, its functions inlined.
        target: the target; only where a measured provider comes first among its own has a node any fault.
        low: the low format.
        device: the device whose kernels count.
        dims: name of an open dimension of the inputs -> its size.
        products: sums over rows may be written as products with a row of ones.
    """

    def __init__(
        self,
        model: ir.Model,
        target: Target,
        low: LowFormat,
        device: str,
        dims: Mapping[str, int] | None = None,
        *,
        products: bool = False,
    ) -> None:
        self._model, self._target, self._low, self._dims = model, target, low, dims or {}
        self._shapes = KnownShapes(model, self._dims)
        self._arithmetic = arithmetic_for(target.providers[0], device)
        self._known: dict[ir.Node, Reason | None] = {}
        self._products: dict[ir.Node, RowSum] | None = {} if products else None

    def of(self, node: ir.Node) -> Reason | None:
        """Say what is wrong with the low kernel of a node; None if nothing is."""
        if node not in self._known:
            self._known[node] = self._fault(node)
        return self._known[node]

    def _fault(self, node: ir.Node) -> Reason | None:
        arithmetic = self._arithmetic
        if arithmetic is None or has_bodies(node) or (is_silu_gate(node) and self._has_sound_gates(arithmetic)):
            return None
        if (operator_name(node), self._low.name) not in arithmetic.rows:
            return self._fault_of_body(node, arithmetic)
        row = self._row(node)
        if row is None or not row.fault or self._is_product(node, row):
            return None
        return _reason(node.op_type, self._low.name, row, arithmetic)

    def _has_sound_gates(self, arithmetic: DeviceArithmetic) -> bool:
        """Whether `x * Sigmoid(x)` is sound as a whole: where a gate is lost, so is most of what it multiplies."""
        row = arithmetic.row(QUICK_GELU, self._low.name, lambda _: False)
        return row is not None and not row.fault

    def _is_product(self, node: ir.Node, row: KernelRow) -> bool:
        """Whether a product computes what the kernel of a row does wrong; take note of it."""
        product = None
        if self._products is not None and row.condition == SEVERAL_BLOCKS:
            product = row_sum(node, self._shapes.known(node, 0), self._low)
        if product is None or self._products is None:
            return False
        self._products[node] = product
        return True

    def product(self, node: ir.Node) -> RowSum | None:
        """Return the product that a node is to be written as if it is low; None if its own kernel is right."""
        if self._products is None or node.op_type not in ROW_SUMS or self.of(node):
            return None
        return self._products.get(node)

    def beyond_sum(self, node: ir.Node, ranges: Mapping[str, TensorRange], headroom: float) -> Reason | None:
        """Say why a mean would be lost in its sum, which CUDA rounds to the format; None if it would not be.

        Args:
            node: the node.
            ranges: value -> the range that data showed. Where it is not known the mean may reach `LARGEST_MEAN`.
            headroom: how many times a range must fit.
        """
        row = self._row(node)
        if row is None or row.computes != _SUMS_FIRST:
            return None
        reduction, seen = reduction_of(node, self._shape_of(node)), ranges.get(str(node.outputs[0].name))
        most = LARGEST_MEAN if seen is None else seen.largest * headroom
        if reduction is None or most * reduction.terms <= self._low.max:
            return None
        values = {"operator": node.op_type, "terms": reduction.terms, "low": self._low.name, "mean": most}
        values["most"] = self._low.max
        if seen is None:
            return Reason("mean-beyond-range", values)
        return Reason("seen-mean-beyond-range", {**values, "headroom": headroom})

    def _row(self, node: ir.Node) -> KernelRow | None:
        """Return the row of a node; None where no row of its operator has a fault, so that no condition is tried."""
        name = operator_name(node)
        rows = () if self._arithmetic is None else self._arithmetic.rows.get((name, self._low.name), ())
        if self._arithmetic is None or not any(row.fault or row.computes == _SUMS_FIRST for row in rows):
            return None
        return self._arithmetic.row(name, self._low.name, lambda condition: self._holds(condition, node))

    def share_shapes(self) -> None:
        """Let decisions about clones of the program share the shapes that faults depend on."""
        rows = {} if self._arithmetic is None else self._arithmetic.rows
        names = {
            operator
            for (operator, name), kernel_rows in rows.items()
            if name == self._low.name and _may_ask(kernel_rows)
        }
        self._shapes.share(node for node in all_nodes(self._model) if operator_name(node) in names)

    def _holds(self, condition: str, node: ir.Node) -> bool:
        """Whether a condition of a row holds for a node, or may hold in a run with other sizes."""
        if condition == SEVERAL_BLOCKS and sums_last_axes(node):
            return False  # shapes need not be known
        if holds(condition, node, self._shape_of(node)):
            return True
        if self._dims or condition not in GROWING | COUNTING:
            return False
        return holds(condition, node, self._shape_of(node, _LONG if condition in GROWING else 1))

    def _shape_of(self, node: ir.Node, opened: int = 0) -> ShapeOf:
        """Return the shapes that a node reads; with `opened`, that is the size of dimensions that are open."""
        places = {value: index for index, value in reversed(list(enumerate(node.inputs)))}

        def shape_of(value: ir.Value | None) -> tuple[int, ...] | None:
            index = places.get(value) if value is not None else None
            trailing = self._trailing(node) if index == 0 else None
            if index is None or trailing is not None or (index == 0 and self._is_not_worth_it(node)):
                return trailing
            counted = self._shapes.counted(node, index)
            return self._opened(node, counted, opened) if opened and index == 0 else counted

        return shape_of

    def _is_not_worth_it(self, node: ir.Node) -> bool:
        """Whether only inference of the whole model would tell how many terms a sum over last axes has."""
        is_last = node.op_type.startswith("Reduce") and sums_last_axes(node)
        return is_last and self._shapes.known(node, 0, infers=False) is None

    def _trailing(self, node: ir.Node) -> tuple[int, ...] | None:
        """Return the shape that the sum over last axes of known sizes reads, whatever the sizes of the others are."""
        infers, is_sum = not sums_last_axes(node), node.op_type.startswith("Reduce")
        known = self._shapes.known(node, 0, infers=infers) if is_sum else None
        axes = None if known is None else summed_axes(node, len(known))
        if not known or not axes or axes != set(range(len(known) - len(axes), len(known))):
            return None
        sizes = tuple(size if axis in axes else _SEVERAL for axis, size in enumerate(known))
        return None if None in sizes else tuple(size for size in sizes if size is not None)

    def _opened(self, node: ir.Node, counted: tuple[int, ...] | None, size: int) -> tuple[int, ...] | None:
        """Return a shape with another size of open dimensions: of all, or of those that are summed, in a batch of 1."""
        known = self._shapes.known(node, 0)
        if known is None or counted is None or len(known) != len(counted):
            return counted
        if size == 1:
            return tuple(fixed or size for fixed in known)
        axes = summed_axes(node, len(known)) or set()
        places = list(enumerate(zip(known, counted, strict=True)))
        batched = [1 if fixed is None and axis < min(axes, default=0) else count for axis, (fixed, count) in places]
        return tuple(size if known[axis] is None and axis in axes else count for axis, count in enumerate(batched))

    # ---- operators that ONNX Runtime writes out, since no kernel computes them ----
    @functools.cached_property
    def _imports(self) -> Imports:
        return imports_of(dict(self._model.graph.opset_imports))

    def _fault_of_body(self, node: ir.Node, arithmetic: DeviceArithmetic) -> Reason | None:
        """Say what is wrong with an operator of the definition of a node; conditions of shapes do not count there."""
        formal = signature("", node.op_type, dict(self._imports).get("", 1)) if is_standard(node) else None
        if formal is None or not formal.has_function or (node.op_type == "Swish" and self._has_sound_gates(arithmetic)):
            return None
        for part in self._written_out(_lowered(operator_of(node, self._imports), f"tensor({self._low.name})")):
            row = arithmetic.row(part.op_type, self._low.name, lambda _: False)
            if row is not None and row.fault:
                fault = _reason(part.op_type, self._low.name, row, arithmetic)
                return Reason("wrong-kernel-inside", {"operator": node.op_type, "fault": fault})
        return None

    def _written_out(self, operator: Operator) -> Iterator[Operator]:
        if self._target.providers[0].takes(operator):
            return
        low = f"tensor({self._low.name})"
        for part in body_of(operator, self._target.release) or ():
            if low in part.outputs:
                yield part


def faulty_operators(target: Target, low: LowFormat, device: str) -> frozenset[str]:
    """Return the operators that have a fault in a format whatever they compute.

    Args:
        target: the target.
        low: the low format.
        device: the device whose kernels count.
    """
    arithmetic = arithmetic_for(target.providers[0], device)
    rows = {} if arithmetic is None else arithmetic.rows
    firsts = {operator: kernel_rows[0] for (operator, name), kernel_rows in rows.items() if name == low.name}
    return frozenset(operator for operator, row in firsts.items() if row.fault and not row.condition)


def _lowered(operator: Operator, low: str) -> Operator:
    def types(listed: tuple[str | None, ...]) -> tuple[str | None, ...]:
        return tuple(low if type_ == "tensor(float)" else type_ for type_ in listed)

    return dataclasses.replace(operator, inputs=types(operator.inputs), outputs=types(operator.outputs))


def _reason(op_type: str, format_name: str, row: KernelRow, arithmetic: DeviceArithmetic) -> Reason:
    device = " ".join(arithmetic.device.split()[:2])
    release = arithmetic.wanted_release if row.releases else arithmetic.release
    values = {"operator": op_type, "low": format_name, "fault": row.fault, "device": device, "release": release}
    return Reason("wrong-kernel", values)


def _may_ask(rows: tuple[KernelRow, ...]) -> bool:
    return any(row.condition and (row.fault or row.computes == _SUMS_FIRST) for row in rows)
