"""Whether a program holds float16 or bfloat16 values."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.tensors import initializer_tensors
from amp_transpiler.graph.walk import all_nodes, scopes
from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.program.program import Program

__all__ = ["has_low_values", "has_values_of"]

_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")  # integers that name an element type


def has_values_of(model: ir.Model, dtypes: Collection[ir.DataType]) -> bool:
    """Whether any value of a model without functions, typed by `propagate_types`, has one of `dtypes`."""
    return any(
        value.dtype in dtypes
        for scope in scopes(model)
        for value in itertools.chain(
            scope.graph.inputs, scope.graph.initializers.values(), *(node.outputs for node in scope.graph)
        )
    )


def has_low_values(program: Program, *, dtypes: Collection[ir.DataType] = LOW_DTYPES) -> bool:
    """Whether any value of the program, in any scope or function, is float16 or bfloat16, or one of `dtypes`.

    Types need not be declared: attributes that make them count too.
    """
    tensors = [tensor.dtype for tensor in initializer_tensors(program.model)]
    inputs = [value.dtype for scope in scopes(program.model) for value in scope.graph.inputs]
    if any(dtype in dtypes for dtype in (*tensors, *inputs)):
        return True
    functions = program.model.functions.values()
    inner = (node for function in functions for node in ir.traversal.RecursiveGraphIterator(function))
    return any(_makes_low(node, dtypes) for node in itertools.chain(all_nodes(program.model), inner))


def _makes_low(node: ir.Node, dtypes: Collection[ir.DataType]) -> bool:
    """Whether an output is declared to be low, or an attribute makes it so: outputs of a function have no types."""
    if any(value.dtype in dtypes for value in node.outputs):
        return True
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and tensor_of(attribute).dtype in dtypes:
            return True
        names_type = attribute.type == ir.AttributeType.INT and attribute.name in _TYPE_ATTRIBUTES
        if names_type and attribute.as_int() in [dtype.value for dtype in dtypes]:
            return True
    return False
