"""Prices a form of a computation by itself: what its kernels take, with the gaps between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.cost import DEVICES, predicted, traffic
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.targets.price_list import price_list

__all__ = ["Tensor", "seconds_of_form"]

Tensor: TypeAlias = tuple[ir.DataType, tuple[int, ...]]  # its type and sizes


def seconds_of_form(
    write: Callable[[GraphBuilder, Sequence[ir.Value]], object], inputs: Sequence[Tensor], opset: int
) -> float:
    """Return the seconds of the operators that `write` writes, on the device of the price list.

    Args:
        write: given a builder and the inputs, writes the form.
        inputs: types and sizes.
        opset: of ONNX's own domain.
    """
    values = [
        ir.Value(name=f"input_{index}", type=ir.TensorType(dtype), shape=ir.Shape(sizes))
        for index, (dtype, sizes) in enumerate(inputs)
    ]
    model = ir.Model(ir.Graph(values, [], nodes=[], opset_imports={"": opset}, name="form"), ir_version=10)
    write(GraphBuilder(model), values)
    listed = price_list()
    prediction = predicted(traffic(model), DEVICES[listed.device])
    return 1e-3 * prediction.busy_milliseconds + listed.gap * prediction.launches
