"""A program for inputs of other types and ranks than it was built for."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.walk import has_bodies

__all__ = ["is_unchecked", "retyped", "set_unchecked"]

_UNCHECKED_KEY = "amp_transpiler.unchecked"  # in `meta` of an input: what is fed decides its type and rank


def set_unchecked(value: ir.Value, unchecked: bool) -> None:
    """Note whether an input may be fed with arrays of another type or rank than it was declared with."""
    value.meta[_UNCHECKED_KEY] = unchecked


def is_unchecked(value: ir.Value) -> bool:
    """Whether an input may be fed with arrays of another type or rank than it was declared with."""
    return bool(value.meta.get(_UNCHECKED_KEY))


def retyped(program: Program, inputs: Mapping[str, tuple[ir.DataType, tuple[int, ...]]]) -> Program:
    """Return a copy of a program without a backward pass in which these inputs have other types and shapes.

    Raises:
        MisfitError: an operator does not take what its inputs are then.
    """
    copy = program.clone()
    for name, (dtype, shape) in inputs.items():
        value = copy.value(name)
        value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
    for node in copy.model.graph:
        for output in node.outputs if not has_bodies(node) else ():
            output.type = output.shape = None
        infer_outputs(copy.model, node)
    return copy
