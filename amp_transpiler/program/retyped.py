"""A program for inputs of other types and ranks than it was built for."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.program.program import Program

__all__ = ["holds_labels", "is_unchecked", "mark_labels", "retyped", "set_unchecked"]

_UNCHECKED_KEY = "amp_transpiler.unchecked"  # in `meta` of an input: what is fed decides its type and rank
_LABELS_KEY = "amp_transpiler.labels"  # in `meta` of an input of floats: it is fed with whole numbers


def mark_labels(value: ir.Value) -> None:
    """Note that an input of floats is read as whole numbers."""
    value.meta[_LABELS_KEY] = True


def holds_labels(value: ir.Value) -> bool:
    """Whether an input of floats is read as whole numbers."""
    return bool(value.meta.get(_LABELS_KEY))


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
