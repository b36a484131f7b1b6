"""Writes a form of a computation as a model of its own, so that its kernels can be priced by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder

__all__ = ["Form", "Tensor", "model_of_form"]

Tensor: TypeAlias = tuple[ir.DataType, tuple[int, ...]]  # its type and sizes
Form: TypeAlias = Callable[[GraphBuilder, Sequence[ir.Value]], object]  # of a builder and the inputs, writes it


def model_of_form(write: Form, inputs: Sequence[Tensor], opset: int) -> ir.Model:
    """Return a model of the operators that `write` writes.

    Args:
        write: the form.
        inputs: types and sizes.
        opset: of ONNX's own domain.
    """
    values = [
        ir.Value(name=f"input_{index}", type=ir.TensorType(dtype), shape=ir.Shape(sizes))
        for index, (dtype, sizes) in enumerate(inputs)
    ]
    model = ir.Model(ir.Graph(values, [], nodes=[], opset_imports={"": opset}, name="form"), ir_version=10)
    write(GraphBuilder(model), values)
    return model
