"""Adds up the slopes of a GELU by fewer kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.cost.form_prices import seconds_of_form
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import single_number
from amp_transpiler.graph.match import Binding, bindings, only_read_within, parse_form
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["SumSlopes"]

_SLOPE = "slope:Add(part:HardSigmoid(tail:Erf(a)), part_of_density:Mul(ratio:Div(a, Exp(Mul(a, a))), factor))"
_FORM = parse_form(f"Mul(gradient, {_SLOPE})")
_DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)  # what Sum and HardSigmoid have kernels for on CUDA
_LARGEST_RATIO = math.sqrt(0.5) * math.exp(-0.5)  # of a / exp(a * a)
_OPSET = 17  # any from which the operators have these attributes


class SumSlopes(Pass[PassResult]):
    """Writes twice the slope of a GELU as a sum of three numbers, times half the gradient; counts the slopes.

    With `a` the input over `sqrt(2)` and `r = a / exp(a * a)`, the slope is `(1 + erf(a)) / 2 + c r`: a kernel for the
    half of one plus, one for the factor and one for the sum. Twice that is `erf(a) + h + h` with `h = c r + 1/2`, which
    stays between 0 and 1, so that one HardSigmoid computes it: two kernels.

    1. The gradient is halved where that takes no kernel over it, which is exact: in the matrix product that makes it,
       or in the smaller of two factors.
    2. Nothing else reads what is computed on the way, and the price list says that it takes less time.

    Shapes must be inferred. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in list(model.graph):
            sloped = _sloped(node)
            if sloped is not None:
                _rewrite(GraphBuilder(model, before=node, names=names, metadata=node.metadata_props), sloped)
                count += 1
        return PassResult(model, modified=bool(count), count=count)


def _sloped(node: ir.Node) -> Binding | None:
    """Return the gradient times a slope that a node computes, if the slope is better summed; None for others."""
    for sloped in bindings(_FORM, node):
        gradient, slope = sloped["gradient"], sloped["slope"]
        if slope.dtype not in _DTYPES or not is_static(slope) or not is_static(gradient):
            continue
        if shape_of(gradient) != shape_of(slope) or not _is_half_of_one_plus(sloped.node("part")):
            continue
        factor = single_number(sloped["factor"])
        fits = factor is not None and abs(factor) * _LARGEST_RATIO < 0.5
        behind = {node, *(sloped.node(name) for name in ("slope", "part", "part_of_density"))}
        if (
            fits
            and only_read_within(behind, node)
            and _halved_at(gradient) is not None
            and _pays(slope.dtype, shape_of(slope))
        ):
            return sloped
    return None


def _is_half_of_one_plus(node: ir.Node) -> bool:
    return node.attributes.get_float("alpha", 0.2) == node.attributes.get_float("beta", 0.5) == 0.5


def _halved_at(gradient: ir.Value) -> int | None:
    """Return which input of the node that makes a gradient can be halved in its place, -1 for its result.

    None if halving it would take a kernel over all of it, or if something else reads it.
    """
    node = gradient.producer()
    if node is None or not is_standard(node) or gradient.is_graph_output() or len(gradient.uses()) != 1:
        return None
    if node.op_type == "MatMul":
        return -1  # FuseProducts makes the factor an attribute
    if node.op_type != "Mul":
        return None
    sizes = [math.prod(shape_of(value)) if value is not None and is_static(value) else 0 for value in node.inputs]
    least = min(range(2), key=sizes.__getitem__)
    return least if 0 < sizes[least] < max(sizes) else None


@functools.lru_cache(maxsize=1024)
def _pays(dtype: ir.DataType, sizes: tuple[int, ...]) -> bool:
    """Return whether the sum of three takes less time by the price list."""
    inputs = [(dtype, sizes)] * 2

    def apart(builder: GraphBuilder, values: Sequence[ir.Value]) -> None:
        tail, ratio = values
        builder.add(_affine(builder, tail, 0.5), builder.mul(ratio, 0.5))

    def together(builder: GraphBuilder, values: Sequence[ir.Value]) -> None:
        tail, ratio = values
        _twice(builder, tail, ratio, 0.5)

    return seconds_of_form(together, inputs, _OPSET) < seconds_of_form(apart, inputs, _OPSET)


def _affine(builder: GraphBuilder, value: ir.Value, factor: float) -> ir.Value:
    """Return `factor * value + 1/2` of numbers for which that is between 0 and 1."""
    return builder.op("HardSigmoid", [value], {"alpha": factor, "beta": 0.5})


def _twice(builder: GraphBuilder, tail: ir.Value, ratio: ir.Value, factor: float) -> ir.Value:
    """Return `tail + 2 factor ratio + 1`. What is doubled comes first: so 16 bits round once."""
    half = _affine(builder, ratio, factor)
    return builder.op("Sum", [half, half, tail])


def _rewrite(builder: GraphBuilder, sloped: Binding) -> None:
    node, gradient = sloped.last, sloped["gradient"]
    factor = single_number(sloped["factor"])
    assert factor is not None
    twice = _twice(builder, sloped["tail"], sloped["ratio"], factor)
    half = _halved(builder, gradient)
    for index, value in enumerate(node.inputs):
        node.replace_input_with(index, half if value is gradient else twice)
    remove_unread(sloped.node("slope"))


def _halved(builder: GraphBuilder, gradient: ir.Value) -> ir.Value:
    """Return half the gradient, by its product or one of its factors."""
    maker, index = gradient.producer(), _halved_at(gradient)
    assert maker is not None
    if index == -1:
        return builder.mul(gradient, 0.5)
    assert index is not None
    small = maker.inputs[index]
    assert small is not None
    before = builder.before
    builder.before = maker
    maker.replace_input_with(index, builder.mul(small, 0.5))
    builder.before = before
    return gradient
