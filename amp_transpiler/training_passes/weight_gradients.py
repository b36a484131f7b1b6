"""Chooses the formulation of a convolution's weight gradient by the provider that computes it and by its sizes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.marked_gradients import GRADIENT_KEY, MarkedGradient, marked_gradients
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.take_over import take_over

__all__ = ["Formulation", "WeightGradients"]

Formulation: TypeAlias = Literal["auto", "convolution", "taps", "columns"]
_WEIGHT = 1  # the input of Conv that is the weight
_MOST_TAPS = 128  # each takes five nodes: thousands, as spectra written as convolutions have, open for minutes
_FEW_COLUMNS = 160  # elements of a window, channels times taps, up to which one product of all taps beats one a tap


class WeightGradients(Pass[PassResult]):
    """Rewrites the weight gradients of convolutions where another formulation is faster; counts them.

    The rule of Conv writes a convolution whose kernel is the gradient of the result: on a GPU that asks for the fewest
    launches and bytes. The CPU provider is slow at such large kernels. For float32 there:

    1. `taps`: one matrix product for each tap of the kernel, of the result's gradient with the input as that tap sees
       it. Measured on one thread 0.4 to 0.8 of the convolution's time from 32 channels on.
    2. `columns`: one product with the inputs of all taps, which are laid out next to each other. It is faster where
       windows have few elements, as in a first layer.

    Grouped convolutions stay, and so do products of 1x1 kernels. "auto" leaves 16-bit convolutions, which a CPU only
    emulates, as a GPU computes them, and kernels of very many taps.

    Args:
        formulation: one of them for all convolutions, or "auto", which chooses by the elements of a window.
    """

    def __init__(self, formulation: Formulation = "auto") -> None:
        self._formulation = formulation

    def call(self, model: ir.Model) -> PassResult:
        if self._formulation == "convolution":
            return PassResult(model, modified=False)
        names, count = NameAllocator(model), 0
        for marked in marked_gradients(model.graph):
            layer = _layer(marked)
            if layer is None or (self._formulation == "auto" and not layer.is_worth_it):
                continue
            choice = layer.best if self._formulation == "auto" else self._formulation
            _write(model, names, marked, layer, _FORMS[choice])
            count += 1
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution whose weight gradient is wanted.

    Attributes:
        x: [N, C, ...].
        g: the gradient of its result, [N, M, ...].
        kernel, strides, dilations: as of the convolution.
        pads: at the begin of each spatial axis, then at the ends.
        gradient: what is rewritten, [M, C, ...].
    """

    x: ir.Value
    g: ir.Value
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    gradient: ir.Value

    @property
    def is_worth_it(self) -> bool:
        """Whether another formulation is faster on a CPU, and its nodes are not too many to open."""
        return self.x.dtype == ir.DataType.FLOAT and math.prod(self.kernel) <= _MOST_TAPS

    @property
    def best(self) -> str:
        """The formulation that takes the least time on a CPU."""
        return "columns" if math.prod(shape_of(self.gradient)[1:]) <= _FEW_COLUMNS else "taps"


def _layer(marked: MarkedGradient) -> _Layer | None:
    """Read the convolution that the rule wrote; None for another gradient, or one that stays."""
    convolutions = [node for node in marked.nodes if node.op_type == "Conv" and is_standard(node)]
    gradient = marked.results.get(_WEIGHT)
    if len(convolutions) != 1 or gradient is None or len(marked.results) != 1:
        return None
    conv = convolutions[0]
    x, g = (_transposed(value) for value in conv.inputs[:2])
    if x is None or g is None or conv.attributes["group"].as_int() != 1:
        return None
    if not all(map(_has_sizes, (x, g))) or not is_static(gradient):
        return None
    numbers = {name: tuple(conv.attributes[name].as_ints()) for name in ("strides", "dilations", "pads")}
    # The convolution of the rule exchanges strides and dilations.
    return _Layer(x, g, shape_of(gradient)[2:], numbers["dilations"], numbers["strides"], numbers["pads"], gradient)


def _has_sizes(value: ir.Value) -> bool:
    """Whether all sizes but the batch's are known."""
    return value.shape is not None and all(isinstance(size, int) for size in list(value.shape)[1:])


def _transposed(value: ir.Value | None) -> ir.Value | None:
    """Return what a Transpose reads."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and node.op_type == "Transpose" and is_standard(node) else None


def _write(
    model: ir.Model,
    names: NameAllocator,
    marked: MarkedGradient,
    layer: _Layer,
    form: Callable[[GraphBuilder, _Layer], ir.Value],
) -> None:
    first = marked.nodes[0]
    metadata = {key: text for key, text in first.metadata_props.items() if key != GRADIENT_KEY}
    prefix = f"{first.name or 'weight_gradient'}/"
    builder = GraphBuilder(model, before=first, names=names, metadata=metadata, prefix=prefix)
    take_over(layer.gradient, form(builder, layer), names)
    for node in reversed(marked.nodes):
        model.graph.remove(node, safe=True)


def _by_taps(builder: GraphBuilder, layer: _Layer) -> ir.Value:
    m, c = _channels(layer)
    rows = _rows(builder, _swapped(builder, layer.g))
    source = _swapped(builder, _padded(builder, layer))
    products = [
        builder.reshape(builder.matmul(rows, builder.swap_last(_rows(builder, seen))), [m, c, 1])
        for seen in _seen(builder, layer, source)
    ]
    return builder.reshape(builder.concat(products, 2), [m, c, *layer.kernel])


def _by_columns(builder: GraphBuilder, layer: _Layer) -> ir.Value:
    m, c = _channels(layer)
    rows = _rows(builder, _swapped(builder, layer.g))
    source = _swapped(builder, _padded(builder, layer))
    columns = builder.concat([_rows(builder, seen) for seen in _seen(builder, layer, source)], 0)
    product = builder.matmul(rows, builder.swap_last(columns))
    axes = range(1, 1 + len(layer.kernel))
    return builder.transpose(builder.reshape(product, [m, *layer.kernel, c]), [0, 1 + len(layer.kernel), *axes])


_FORMS: Mapping[str, Callable[[GraphBuilder, _Layer], ir.Value]] = {"taps": _by_taps, "columns": _by_columns}


def _channels(layer: _Layer) -> tuple[int, int]:
    m, c = shape_of(layer.gradient)[:2]
    return m, c


def _swapped(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return [N, C, ...] as [C, N, ...]."""
    assert x.shape is not None
    return builder.transpose(x, [1, 0, *range(2, len(x.shape))])


def _rows(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return [C, N, ...] as [C, N*L]."""
    assert x.shape is not None
    return builder.reshape(x, [int(x.shape[0]), -1])  # type: ignore[arg-type]  # channels are known


def _padded(builder: GraphBuilder, layer: _Layer) -> ir.Value:
    if not any(layer.pads):
        return layer.x
    rank = len(layer.kernel)
    pads = [0, 0, *layer.pads[:rank], 0, 0, *layer.pads[rank:]]
    return builder.op("Pad", [layer.x, builder.constant(pads)])


def _seen(builder: GraphBuilder, layer: _Layer, source: ir.Value) -> list[ir.Value]:
    """Return the padded input, channels first, as each tap of the kernel sees it."""
    assert layer.g.shape is not None
    outputs = [int(size) for size in list(layer.g.shape)[2:]]  # type: ignore[arg-type]  # known, as checked
    axes = list(range(2, 2 + len(outputs)))
    views = []
    for tap in itertools.product(*map(range, layer.kernel)):
        starts = [place * dilation for place, dilation in zip(tap, layer.dilations, strict=True)]
        spans = zip(starts, outputs, layer.strides, strict=True)
        ends = [start + (size - 1) * stride + 1 for start, size, stride in spans]
        views.append(builder.slice(source, starts, ends, axes, layer.strides))
    return views
