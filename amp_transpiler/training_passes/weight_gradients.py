"""Chooses the formulation of a convolution's weight gradient by the provider that computes it and by its sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.marked_gradients import MarkedGradient, marked_gradients
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.cheapest_gradient import Cheapest
from amp_transpiler.training_passes.convolution_layer import Layer, layer_of, replace
from amp_transpiler.training_passes.tap_gradients import by_columns, by_taps
from amp_transpiler.training_passes.unfolded_gradients import unfold

__all__ = ["Formulation", "WeightGradients"]

Formulation: TypeAlias = Literal["auto", "convolution", "taps", "columns", "priced"]
Write: TypeAlias = Callable[[GraphBuilder], ir.Value]
_MOST_TAPS = 128  # each takes five nodes: thousands, as spectra written as convolutions have, open for minutes
_FEW_COLUMNS = 160  # elements of a window, channels times taps, up to which one product of all taps beats one a tap


class WeightGradients(Pass[PassResult]):
    """Rewrites the weight gradients of convolutions where another formulation is faster; counts them.

    The rule of Conv writes a convolution whose kernel is the gradient of the result, and a product for a kernel of one
    tap. The CPU provider is slow at such large kernels. For float32 there:

    1. `taps`: one matrix product for each tap of the kernel, of the result's gradient with the input as that tap sees
       it. Measured on one thread 0.4 to 0.8 of the convolution's time from 32 channels on.
    2. `columns`: one product with the inputs of all taps, which are laid out next to each other. It is faster where
       windows have few elements, as in a first layer.

    Grouped convolutions stay as they are there, and so do products of 1x1 kernels, and kernels of very many taps. A GPU
    is slow at large kernels, too, where a weight is small: few blocks of threads have all the work. For it:

    3. `priced`: a product of unfolded operands (`unfolded_gradients.py`), or what stands there, whichever the price
       list predicts to be faster. Grouped convolutions stay: nobody has measured them.

    "auto" is what is fastest on a CPU. It leaves 16-bit convolutions, which a CPU only emulates, as they stand.

    Args:
        formulation: one of them for all convolutions, or "auto".
    """

    def __init__(self, formulation: Formulation = "auto") -> None:
        self._formulation = formulation

    def call(self, model: ir.Model) -> PassResult:
        if self._formulation == "convolution":
            return PassResult(model, modified=False)
        layers = {marked: layer for marked in marked_gradients(model.graph) if (layer := layer_of(marked)) is not None}
        cheapest, shared, count = Cheapest(model, layers), GraphBuilder(model), 0
        for marked, layer in layers.items():
            write = self._form(marked, layer, cheapest)
            if write is not None:
                replace(shared, marked, layer, write)
                count += 1
        return PassResult(model, modified=bool(count), count=count)

    def _form(self, marked: MarkedGradient, layer: Layer, cheapest: Cheapest) -> Write | None:
        """Return what writes the formulation of a layer; None if its gradient stays."""
        if layer.groups > 1:
            return None
        if self._formulation == "priced":
            unfolding = None if layer.samples is None else cheapest.unfolding(marked, layer)
            return None if unfolding is None else lambda builder: unfold(builder, layer, unfolding)
        if layer.is_product:
            return None
        if self._formulation != "auto":
            form = _FORMS[self._formulation]
        elif layer.x.dtype == ir.DataType.FLOAT and layer.taps <= _MOST_TAPS:
            form = by_columns if math.prod(shape_of(layer.gradient)[1:]) <= _FEW_COLUMNS else by_taps
        else:
            return None
        return lambda builder: form(builder, layer)


_FORMS: Mapping[str, Callable[[GraphBuilder, Layer], ir.Value]] = MappingProxyType(
    {"taps": by_taps, "columns": by_columns}
)
