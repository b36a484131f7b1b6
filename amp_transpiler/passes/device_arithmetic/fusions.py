"""Nodes that ONNX Runtime's CUDA provider fuses at its default level, computed as the fused kernel does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import onnx_ir as ir

from amp_transpiler.cost.fusions import Fused, plan_of
from amp_transpiler.cost.shapes import Sizes
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.constness import constant_of, is_pow_of_two, single_number
from amp_transpiler.graph.dtypes import LOW_DTYPES, low_format
from amp_transpiler.graph.match import bindings, only_read_within, parse_form
from amp_transpiler.graph.silu import silu_at
from amp_transpiler.graph.walk import all_nodes, scopes
from amp_transpiler.passes.device_arithmetic.noise import with_noise
from amp_transpiler.passes.device_arithmetic.steps import Steps
from amp_transpiler.passes.device_arithmetic.wide import computed_wide
from amp_transpiler.passes.inserted_casts import rename_output
from amp_transpiler.targets.arithmetic import DeviceArithmetic

__all__ = ["fuse_as_on_device"]

_BOTH = ("float16", "bfloat16")
_IN_FLOAT32: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "BiasSoftmax": ("float16",),
        "FusedMatMul": _BOTH,
        "LayerNormalization": _BOTH,
        "SimplifiedLayerNormalization": _BOTH,
        "SkipLayerNormalization": _BOTH,
        "SkipSimplifiedLayerNormalization": _BOTH,
    }
)
"""Fused kernels that compute in float32 inside -> the formats in which ONNX Runtime fuses them.

The sum before a normalisation is rounded all the same. Source: the probe of an H100, patterns written out.
"""
_BIASED_SOFTMAX = parse_form("Softmax(total:Add(scores, mask))")
_CORES = frozenset({"Erf", "Gelu", "MatMul", "ReduceMean", "Sigmoid", "Softmax"})
"""Operators of which one is in whatever is fused; a model without any in a low format needs no plan."""


def fuse_as_on_device(
    model: ir.Model, sizes_of_run: Callable[[], Sizes], arithmetic: DeviceArithmetic, draw: ir.Value | None
) -> int:
    """Write groups of low nodes that are fused as their kernel computes them; return how many.

    Args:
        model: a typed model.
        sizes_of_run: returns the sizes of its values.
        arithmetic: the device's.
        draw: the input that says which draw it is; None for no noise.
    """
    if not any(node.op_type in _CORES and _low_name(node) for node in all_nodes(model)):
        return 0
    sizes = sizes_of_run()
    shared = GraphBuilder(model)
    plan = plan_of((scope.graph for scope in scopes(model)), sizes, written=True)
    groups = [*plan.fused, *_biased_softmaxes(model, sizes)]
    count = 0
    for place, group in enumerate(groups, start=1):
        noise = _noise(group, arithmetic)
        steps = Steps(model, group.last, sizes.shape, draw, shared, noise=noise, place=-place)
        count += _fuse(group, steps)
    return count


def _noise(group: Fused, arithmetic: DeviceArithmetic) -> float:
    row = arithmetic.row(f"com.microsoft::{group.name}", _low_name(group.last), lambda _: False)
    return (0.0 if row is None else row.noise) + arithmetic.further_noise


def _low_name(node: ir.Node) -> str:
    dtype = node.outputs[0].dtype if node.outputs else None
    return low_format(dtype).name if dtype in LOW_DTYPES and dtype is not None else ""


def _biased_softmaxes(model: ir.Model, sizes: Sizes) -> Iterator[Fused]:
    """Yield each Softmax of the last axis with the sum of scores and a mask of fewer elements before it."""
    for node in all_nodes(model):
        biased = next(bindings(_BIASED_SOFTMAX, node), None)
        shape = None if biased is None else sizes.shape(biased["total"])
        if biased is None or shape is None or not only_read_within(biased.nodes, node):
            continue
        is_last = node.attributes.get_int("axis", -1) in (-1, len(shape) - 1)
        if is_last and _is_masked(biased.node("total"), sizes):
            yield Fused("BiasSoftmax", biased.nodes, node, node)


def _is_masked(add: ir.Node, sizes: Sizes) -> bool:
    shapes = [sizes.shape(value) for value in add.inputs]
    if any(shape is None for shape in shapes):
        return False
    first, second = (shape or () for shape in shapes)
    return len(first) == len(second) > 1 and first[-1] == second[-1] and first != second


def _fuse(group: Fused, steps: Steps) -> bool:
    low = _low_name(group.last)
    nodes = [node for node in group.nodes if not _stays_apart(node, group)]
    if not low or len(nodes) < 2 or any(_low_name(node) != low for node in nodes if node is not group.anchor):
        return False
    write = _KERNELS.get(group.name)
    if write is not None:
        return write(group, steps)
    if low not in _IN_FLOAT32.get(group.name, ()):
        return False
    _compute_in_float32(nodes, group.last, steps)
    return True


def _stays_apart(node: ir.Node, group: Fused) -> bool:
    """Whether it is the sum before a normalisation, which the kernel rounds."""
    return group.name.startswith("Skip") and node.op_type == "Add" and node is not group.last


def _compute_in_float32(nodes: list[ir.Node], last: ir.Node, steps: Steps) -> None:
    """Compute nodes in float32, and round the result of the last."""
    for node in _in_order(nodes):
        inner = Steps(steps.model, node, steps.shape_in_run, steps.draw, steps, noise=steps.noise, place=steps.place)
        results = _square(node, inner) if is_pow_of_two(node) else computed_wide(node, inner)
        for old, result in zip(node.outputs, results, strict=True):
            if node is last:
                _replace(old, inner.cast(with_noise(result, inner), old.dtype), steps)
            else:
                ir.convenience.replace_all_uses_with(old, result)
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _square(node: ir.Node, steps: Steps) -> list[ir.Value]:
    """Return a square as a product, which ONNX Runtime's CPU provider fuses into nothing."""
    value = node.inputs[0]
    assert value is not None
    wide = steps.high(value)
    return [steps.mul(wide, wide)]


def _in_order(nodes: list[ir.Node]) -> list[ir.Node]:
    graph = nodes[0].graph
    members = set(nodes)
    return [node for node in graph or () if node in members]


def _replace(old: ir.Value, new: ir.Value, steps: Steps) -> None:
    new.shape = old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    rename_output(old, new, steps.names, "device")


def _put(op_type: str, inputs: list[ir.Value], attributes: list[ir.Attr], group: Fused, steps: Steps) -> None:
    """Put ONNX Runtime's own operator in the place of a group."""
    old = group.last.outputs[0]
    result = ir.Value(name=steps.names.fresh(f"{old.name}__fused"), type=old.type, shape=old.shape)
    name = steps.names.fresh(f"{group.last.name}__fused")
    node = ir.Node("com.microsoft", op_type, inputs, attributes, outputs=[result], name=name)
    steps.model.graph.opset_imports.setdefault("com.microsoft", 1)
    steps.graph.insert_before(group.last, node)
    _replace(old, result, steps)
    for member in reversed(_in_order(list(group.nodes))):
        assert member.graph is not None
        member.graph.remove(member, safe=True)


def _quick_gelu(group: Fused, steps: Steps) -> bool:
    """Put QuickGelu in the place of x * Sigmoid(x) or x * Sigmoid(c * x)."""
    silu = silu_at(group.last)
    if silu is None:
        return False
    alpha = single_number(silu.values.get("alpha"))
    _put("QuickGelu", [silu["value"]], [ir.AttrFloat32("alpha", 1.0 if alpha is None else alpha)], group, steps)
    return True


def _bias_gelu(group: Fused, steps: Steps) -> bool:
    """Put BiasGelu in the place of a sum with a vector of constants and GELU by the error function, in float16."""
    first = _in_order(list(group.nodes))[0]
    bias = next((value for value in first.inputs if constant_of(value) is not None), None)
    x = next((value for value in first.inputs if value is not bias), None)
    is_by_tanh = any(node.attributes.get_string("approximate", "none") == "tanh" for node in group.nodes)
    if first.op_type != "Add" or bias is None or x is None or is_by_tanh or _low_name(group.last) != "float16":
        return False
    _put("BiasGelu", [x, bias], [], group, steps)
    return True


def _gelu(group: Fused, steps: Steps) -> bool:
    """Put GELU by the error function in the place of its nodes, in float16: its constants are exact then."""
    x = _only_input(group)
    if x is None or _low_name(group.last) != "float16":
        return False
    _put("Gelu", [x], [], group, steps)
    return True


def _only_input(group: Fused) -> ir.Value | None:
    """Return the value that a group reads from outside, constants aside; None if there are several."""
    read = {
        value
        for node in group.nodes
        for value in node.inputs
        if value is not None and value.producer() not in group.nodes and constant_of(value) is None
    }
    return read.pop() if len(read) == 1 else None


_KERNELS: Mapping[str, Callable[[Fused, Steps], bool]] = MappingProxyType(
    {"BiasGelu": _bias_gelu, "Gelu": _gelu, "QuickGelu": _quick_gelu}
)
"""Fused kernels that round their steps -> what puts them in the place of the nodes."""
