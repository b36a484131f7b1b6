"""Prices every node of a float32 program, low and high, and the casts between them, in seconds.

They are what a minimum cut adds up. So each node has its price, the longer of its time on the device and that
of its launches; the sum is a little more than `predict` says, where the host runs ahead of a long kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from amp_transpiler.cost.fusions import Plan, joined, plan_of
from amp_transpiler.cost.node_costs import NodeCost, costs_of
from amp_transpiler.cost.operators import ALIASES
from amp_transpiler.cost.prediction import Kernel, kernel_of, node_seconds
from amp_transpiler.cost.shapes import Sizes, sizes_of
from amp_transpiler.cost.work import Work, seconds_of
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import scopes
from amp_transpiler.targets.devices import Device
from amp_transpiler.targets.price_list import price_list

__all__ = ["Prices", "prices"]


@dataclasses.dataclass(frozen=True)
class Prices:
    """Says what nodes and casts cost on a device.

    What ONNX Runtime will fuse has one price, that of the node which computes most; the others of the group cost
    nothing. So do nodes that it folds or leaves to the host, and constants, which are cast when the model is written.

    Attributes:
        low: seconds of each node in the low format, its weights included.
        high: seconds of each node in float32.
        costs_low, costs_high: launches, bytes and operations behind them.
        fused: nodes that become one operator if they have one precision, and more operators otherwise.
        device: where.
        format: the low format.
        sizes: of all values.
        constants: values that ONNX Runtime computes when it loads the model.
    """

    low: Mapping[ir.Node, float]
    high: Mapping[ir.Node, float]
    costs_low: Mapping[ir.Node, NodeCost]
    costs_high: Mapping[ir.Node, NodeCost]
    fused: tuple[frozenset[ir.Node], ...]
    device: Device
    format: LowFormat
    sizes: Sizes
    constants: frozenset[ir.Value]

    def cast(self, value: ir.Value) -> float:
        """Return the seconds of casting a value from float32 to the low format, or back; 0 for a constant."""
        return self.cast_kernel(value).alone(self.device.launch)

    def cast_kernel(self, value: ir.Value) -> Kernel:
        """Return the kernel of such a cast; without calls for a constant."""
        if value.const_value is not None or value in self.constants:
            return Kernel(0.0, 0)
        elements = self.sizes.elements(value)
        moved = elements * (4 + self.format.dtype.bitwidth // 8)
        producer = value.producer()
        runs = self.sizes.runs(None if producer is None else producer.graph)
        work = Work("Cast to 16 bits", self.format.name, elements, bytes=moved, count=runs)
        return Kernel(seconds_of(work, self.device) + runs * price_list().gap, runs)

    def kernel(self, node: ir.Node, *, is_low: bool) -> Kernel:
        """Return the kernel of a node in either precision; without calls where it has none, or seldom runs."""
        cost = (self.costs_low if is_low else self.costs_high).get(node)
        if cost is None or cost.rare or not (cost.bytes or cost.launches):
            return Kernel(0.0, 0)
        return kernel_of(cost, self.device)


@collection_paused()
def prices(
    model: ir.Model,
    low: LowFormat,
    device: Device,
    dims: Mapping[str, int] | None = None,
    together: Iterable[Collection[ir.Node]] = (),
) -> Prices:
    """Return the prices of a prepared float32 program: linear in its nodes.

    Args:
        model: the program.
        low: the low format.
        device: where it runs.
        dims: name of an open dimension of the inputs -> its size; see `open_dims` for the others.
        together: nodes that are decided as one operator, and count as one, besides those that are found here.

    Raises:
        OptionError: no input has an open dimension of that name.
    """
    sizes = sizes_of(model, dims)
    plan = joined(plan_of((scope.graph for scope in scopes(model)), sizes, written=True), together)
    high, costs_high = _prices(model, sizes, plan, device)
    cheaper, costs_low = _prices(model, sizes.lowered(low.dtype), plan, device)
    for node in _making_outputs(model):  # low, they are read by the cast to the output's type: nothing is copied
        if node in costs_low:
            costs_low[node] = dataclasses.replace(costs_low[node], read=0, written=0, copied=0, kernels=())
            cheaper[node] = 0.0
    return Prices(
        low=cheaper,
        high=high,
        costs_low=costs_low,
        costs_high=costs_high,
        fused=tuple(fused.nodes for fused in plan.fused),
        device=device,
        format=low,
        sizes=sizes,
        constants=plan.constants,
    )


def _making_outputs(model: ir.Model) -> list[ir.Node]:
    """Return the operators that only give an output of the program another shape, which is copied then."""
    producers = (value.producer() for value in model.graph.outputs)
    return [node for node in producers if node is not None and node.op_type in ALIASES]


def _prices(
    model: ir.Model, sizes: Sizes, plan: Plan, device: Device
) -> tuple[dict[ir.Node, float], dict[ir.Node, NodeCost]]:
    costs = costs_of(model, sizes, plan)
    return {cost.node: node_seconds(cost, device) for cost in costs}, {cost.node: cost for cost in costs}
