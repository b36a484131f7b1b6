"""Counts bytes, FLOPs and launches of every node of a model, from its shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.cost.call import Call
from amp_transpiler.cost.fusions import NO_PLAN, Fused, Plan, plan_of
from amp_transpiler.cost.launched import launched
from amp_transpiler.cost.operators import (
    ALIASES,
    FLOPS,
    HOST,
    HOST_INPUTS,
    LAUNCHES,
    LOW,
    MOVES,
    ONLY_SHAPES,
    READS_WHAT_IT_WRITES,
    SCATTERS,
    SCRATCH,
    WITHOUT_FLOAT32,
    WITHOUT_KERNEL,
    adds_bias,
    copied_bytes,
    in_place,
    requantized,
)
from amp_transpiler.cost.shapes import Sizes, sizes_of
from amp_transpiler.cost.work import Work
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import all_nodes, has_bodies, scopes
from amp_transpiler.targets.devices import Rate

__all__ = ["NodeCost", "costs_of", "traffic"]

RATES: Mapping[ir.DataType | None, Rate] = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}
SMALL = 100  # elements of a constant that ONNX Runtime leaves on the host as well


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCost:
    """Counts the work of one run of a node on a GPU.

    Attributes:
        node: the node.
        launches: kernels and library calls.
        read: bytes that its kernels read, each input once.
        written: bytes that they write.
        copied: bytes among `written` that the device copies without a kernel.
        flops: floating-point operations of matrix products and convolutions; 0 for what memory bounds anyway.
        rate: the format in which the device multiplies.
        kernels: what its kernels go through, which is what they are charged for.
        rare: it is in the smaller branch of an `If` of which it is not known which branch runs.
        waits: copies between the device and main memory, for each of which the host waits.
    """

    node: ir.Node
    launches: int
    read: int
    written: int
    copied: int
    flops: int
    rate: Rate
    kernels: tuple[Work, ...] = ()
    rare: bool = False
    waits: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that move between the device's memory and its kernels."""
        return self.read + self.written


def traffic(
    model: ir.Model,
    dims: Mapping[str, int] | None = None,
    *,
    tf32: bool = True,
    fuse: bool = False,
    written: bool = False,
    spreads_biases: bool = False,
) -> list[NodeCost]:
    """Return the cost of every node, bodies' nodes included, in the model's order.

    A body counts as often as it runs where that follows from sizes, else once. Reshape and its like are free, and so is
    what computes sizes from sizes, which ONNX Runtime leaves on the CPU.

    Args:
        model: a model.
        dims: name of an open dimension of the inputs -> its size; see `open_dims` for the others.
        tf32: whether the device multiplies float32 in TF32, as ONNX Runtime does by default.
        fuse: whether ONNX Runtime is yet to optimize the model: what it fuses counts as one node, the one that computes
            most, and what it folds as nothing. Otherwise everything is counted as it stands.
        written: whether this package will write the file, with all shapes: ONNX Runtime fuses more where it knows them.
        spreads_biases: whether biases of batches of rows become part of a Gemm; see `plan_of`.
    """
    sizes, graphs = sizes_of(model, dims), (scope.graph for scope in scopes(model))
    plan = plan_of(graphs, sizes, written=written, spreads_biases=spreads_biases) if fuse else NO_PLAN
    return costs_of(model, sizes, plan, tf32=tf32)


def costs_of(model: ir.Model, sizes: Sizes, plan: Plan, *, tf32: bool = True) -> list[NodeCost]:
    """Return the cost of every node: see `traffic`."""
    wide: Rate = "tf32" if tf32 else "float32"
    fused_at = {node: fused for fused in plan.fused for node in fused.nodes}
    on_host: set[ir.Value] = set()
    is_quantized = plan is not NO_PLAN and any(node.op_type == "DequantizeLinear" for node in model.graph)
    costs = []
    for node in all_nodes(model):
        fused = fused_at.get(node)
        if _is_on_host(node, on_host, sizes, plan):
            on_host.update(node.outputs)
            costs.append(_nothing(node))
        elif _runs_elsewhere(node):
            costs.append(_casts_around(node, sizes))
        elif node.op_type in WITHOUT_FLOAT32 and sizes.dtype(node.inputs[0]) == ir.DataType.FLOAT:
            costs.append(_repeated(_copies_around(node, sizes), sizes.runs(node.graph)))
        elif node in plan.gone or (fused is not None and fused.anchor is not node):
            costs.append(_nothing(node))
        else:
            cost = _cost(node, sizes, wide) if fused is None else _cost_of_fused(fused, sizes, wide)
            if node.op_type == "Conv" and (adds_bias(node) or fused is not None):
                cost = dataclasses.replace(cost, launches=2)  # ONNX Runtime adds the bias in a separate launch
            if is_quantized and node.op_type in MOVES:
                cost = dataclasses.replace(cost, launches=cost.launches + requantized(node))
            cost = _repeated(cost, sizes.runs(node.graph))
            costs.append(dataclasses.replace(cost, rare=True) if sizes.is_rare(node.graph) else cost)
    return costs


def _runs_elsewhere(node: ir.Node) -> bool:
    return node.op_type in WITHOUT_KERNEL or node.domain == "ai.onnx.ml"


def _nothing(node: ir.Node) -> NodeCost:
    return NodeCost(node, 0, 0, 0, 0, 0, "float32")


def _casts_around(node: ir.Node, sizes: Sizes) -> NodeCost:
    """Return the cost of the casts that ONNX Runtime adds around a kernel of the CPU that is only for float32.

    They run on the CPU as well, hence no launches. Their bytes count at the rate of the device, which is less than
    what they take.
    """
    read = [value for value in node.inputs if value is not None and constant_of(value) is None]
    taken, results = (
        sum(sizes.bytes(value) for value in values if sizes.dtype(value) in LOW) for values in (read, node.outputs)
    )
    return dataclasses.replace(_nothing(node), read=taken + 2 * results, written=2 * taken + results)


def _copies_around(node: ir.Node, sizes: Sizes) -> NodeCost:
    """Return the cost of a float32 node that the CPU runs: each operand is copied there, and each result back.

    Copies are no launches, but the host waits for each. They are charged, like the operations, as those of a kernel
    without a price, at rates of the device, which is far less than what they take. What is fed goes to the CPU at once.
    """
    read = [value for value in node.inputs if value is not None and value.producer() is not None]
    read = [value for value in read if constant_of(value) is None and sizes.dtype(value) == ir.DataType.FLOAT]
    written = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    copied = tuple(
        Work("Copy from or to the CPU", "float32", sizes.elements(value), bytes=sizes.bytes(value))
        for value in (*read, *written)
    )
    flops = FLOPS[node.op_type](node, sizes) if node.op_type in FLOPS else 0
    taken, results = (sum(map(sizes.bytes, values)) for values in (read, written))
    computed = Work(f"{node.op_type} on the CPU", "float32", sizes.elements(node.outputs[0]), flops=flops)
    kernels = (*copied, computed)
    return NodeCost(node, 0, taken, results, 0, flops, "float32", kernels, waits=len(copied))


def _repeated(cost: NodeCost, runs: int) -> NodeCost:
    if runs == 1:
        return cost
    counted = {name: runs * getattr(cost, name) for name in ("launches", "read", "written", "copied", "flops", "waits")}
    kernels = tuple(dataclasses.replace(work, count=runs * work.count) for work in cost.kernels)
    return dataclasses.replace(cost, kernels=kernels, **counted)


def _cost_of_fused(fused: Fused, sizes: Sizes, wide: Rate) -> NodeCost:
    """Return the cost of one operator: it reads what comes from outside, once, and writes the last result."""
    cost = _cost(fused.anchor, sizes, wide)
    if fused.name == "Gemm":
        biases = [value for value in fused.last.inputs if value and value.producer() not in fused.nodes]
        adds_bias_apart = any(sizes.elements(value) != sizes.elements(fused.last.outputs[0]) for value in biases)
        cost = dataclasses.replace(cost, launches=1 + adds_bias_apart)
    read = {value for node in fused.nodes for value in node.inputs if value and value.producer() not in fused.nodes}
    cost = dataclasses.replace(
        cost,
        launches=max(1, cost.launches),
        read=sum(map(sizes.bytes, read)),
        written=sum(map(sizes.bytes, fused.last.outputs)),
        copied=0,
    )
    return dataclasses.replace(cost, kernels=_kernels_of_fused(fused, cost, sizes))


def _kernels_of_fused(fused: Fused, cost: NodeCost, sizes: Sizes) -> tuple[Work, ...]:
    """Return the kernels of a fused operator: of a product with a bias, or those that go through the result."""
    anchor, output = fused.anchor, fused.last.outputs[0]
    if cost.flops:
        call = Call(fused.name or anchor.op_type, anchor, tuple(anchor.inputs), output, sizes, cost.rate, biased=True)
    else:
        outside = [value for value in anchor.inputs if value is not None and value.producer() not in fused.nodes]
        same = [value for value in outside if sizes.elements(value) == sizes.elements(output)]
        call = Call(fused.name or anchor.op_type, anchor, (*same[:1], output)[:1], output, sizes, cost.rate)
    return launched(call, cost.bytes, cost.flops)


def _is_on_host(node: ir.Node, on_host: set[ir.Value], sizes: Sizes, plan: Plan) -> bool:
    """Whether a node computes only with sizes, and with small constants and inputs of the model."""
    if node.op_type in HOST:
        return True
    if has_bodies(node) or not any(value in on_host for value in node.inputs):
        return False
    from_host = HOST_INPUTS.get(node.op_type, frozenset())
    for index, value in enumerate(node.inputs):
        if value is None or (value not in on_host and (value.is_graph_input() or _is_small(value, sizes, plan))):
            continue
        if value not in on_host or index in from_host or sizes.dtype(value) in LOW:
            return False
    return True


def _is_small(value: ir.Value, sizes: Sizes, plan: Plan) -> bool:
    return (constant_of(value) is not None or value in plan.constants) and sizes.elements(value) <= SMALL


def _cost(node: ir.Node, sizes: Sizes, wide: Rate) -> NodeCost:
    op = node.op_type
    if op in ALIASES:
        copied = copied_bytes(node, sizes)
        return NodeCost(node, 0, copied, copied, copied, 0, wide, _copies(copied))
    if op == "Constant" or has_bodies(node):
        return NodeCost(node, 0, 0, 0, 0, 0, wide)
    written = sum(map(sizes.bytes, node.inputs[2:] if op in SCATTERS and in_place(node) else node.outputs))
    launches = LAUNCHES[op](node, sizes) if op in LAUNCHES else 1
    flops = FLOPS[op](node, sizes) if op in FLOPS else 0
    read, scratch = _read(node, sizes, written), SCRATCH[op](node, sizes) if op in SCRATCH else 0
    types = map(sizes.dtype, node.inputs)
    rate = next((RATES[dtype] for dtype in types if dtype in RATES), wide)
    copied = copied_bytes(node, sizes)
    cost = NodeCost(node, launches, read + scratch, written + scratch, copied, flops, rate)
    return dataclasses.replace(cost, kernels=(*_copies(copied), *_kernels(cost, sizes)))


def _copies(copied: int) -> tuple[Work, ...]:
    return (Work("Copy", "float32", copied // 4, bytes=2 * copied),) if copied else ()


def _kernels(cost: NodeCost, sizes: Sizes) -> tuple[Work, ...]:
    node = cost.node
    if not cost.launches or not node.outputs:
        return ()
    call = Call(node.op_type, node, tuple(node.inputs), node.outputs[0], sizes, cost.rate)
    return launched(call, cost.bytes, cost.flops)


def _read(node: ir.Node, sizes: Sizes, written: int) -> int:
    if node.op_type in ONLY_SHAPES:
        return 0
    inputs = list(dict.fromkeys(value for value in node.inputs if value is not None))
    if node.op_type in SCATTERS and in_place(node):
        inputs = inputs[1:]
    if node.op_type in READS_WHAT_IT_WRITES:
        indices = 0 if node.op_type == "Slice" else sum(map(sizes.bytes, inputs[1:]))
        return min(written, sizes.bytes(inputs[0])) + indices
    if node.op_type == "EmbedLayerNormalization":
        return 3 * written
    return sum(map(sizes.bytes, inputs))
