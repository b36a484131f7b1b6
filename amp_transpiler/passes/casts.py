"""Carrying out an assignment: types changed, constants converted, and one cast per value and direction."""

from __future__ import annotations

import logging

import onnx_ir as ir

from amp_transpiler.graph.constants import low_tensor
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import set_dtype
from amp_transpiler.graph.walk import Use, constant_of, scopes
from amp_transpiler.passes.attributes import retype_attributes
from amp_transpiler.passes.parameters import convert_constant, copy_constant
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.constraints import is_float32

__all__ = ["INSERTED", "add_cast", "apply_assignment", "redirect", "rename_output"]

logger = logging.getLogger(__name__)

INSERTED = "amp_transpiler.inserted"  # key in `Node.meta` of casts put in here; not written to files


def apply_assignment(model: ir.Model, assignment: Assignment, names: NameAllocator) -> set[str]:
    """Change types as `assignment` says and insert the casts that this needs.

    Every value keeps its name except where a graph output stays float32 while its producer becomes low: there the
    cast's result takes the name over. A cast stands right behind the value it converts, in the scope of that value.

    Args:
        model: the typed program that `assignment` was made for.
        assignment: the decision.
        names: the model's allocator.

    Returns:
        Names of the constants that are low now.
    """
    converted: set[str] = set()
    uses = _float_uses(model)
    for value in [*uses, *(value for value in assignment.low_values if value not in uses)]:
        readers = uses.get(value, [])
        wants = [(use, assignment.wanted(use.user, use.index)) for use in readers]
        low_uses = [use for use, want in wants if want == "low"]
        high_uses = [use for use, want in wants if want == "high"]
        if constant_of(value) is not None:
            exact = [
                use for use, want in wants if want == "high" or (want == "any" and _sees_rounding(use, assignment))
            ]
            converted |= _settle_constant(value, low_uses, exact, assignment, names)
        elif value in assignment.rounded_values:
            _store_low(value, [use for use, want in wants if want != "high"], high_uses, assignment.low, names)
        elif value in assignment.low_values:
            set_dtype(value, assignment.low.dtype)
            if value.const_value is not None:  # an input's default
                value.const_value = low_tensor(value.const_value, assignment.low, str(value.name))
            if high_uses:
                _cast_for(value, high_uses, ir.DataType.FLOAT, "fp32", names)
        elif low_uses:
            _cast_for(value, low_uses, assignment.low.dtype, assignment.low.short, names)
    for node, decision in assignment.decisions.items():
        if decision.form is not None:
            retype_attributes(node, decision.form.outputs, assignment.low)
    return converted


def _float_uses(model: ir.Model) -> dict[ir.Value, list[Use]]:
    """List, for every float32 value that is read, the places that read it."""
    uses: dict[ir.Value, list[Use]] = {}
    for scope in scopes(model):
        for user in (*scope.graph, scope.graph):
            values = user.inputs if isinstance(user, ir.Node) else user.outputs
            for index, value in enumerate(values):
                if value is not None and is_float32(value):
                    uses.setdefault(value, []).append(Use(user, index))
    return uses


def _sees_rounding(use: Use, assignment: Assignment) -> bool:
    """Whether a reader that takes any precision would tell a rounded constant from the exact one.

    Shape and Size would not, nor a cast of the user's to the very format.
    """
    if isinstance(use.user, ir.Graph) or use.user.op_type != "Cast":
        return isinstance(use.user, ir.Graph)
    return use.user.outputs[0].dtype != assignment.low.dtype


def _settle_constant(
    value: ir.Value, low_uses: list[Use], high_uses: list[Use], assignment: Assignment, names: NameAllocator
) -> set[str]:
    """Convert a constant where all its readers want it low; give the low ones a copy, or a cast, where only some do.

    A single element is no parameter but what other systems have as an attribute: it is never cast at run time.
    """
    low, tensor = assignment.low, constant_of(value)
    if not low_uses:
        return set()
    storage = "offline" if tensor is not None and tensor.size == 1 else assignment.constants
    if storage == "runtime" or (storage == "whole" and high_uses):
        _cast_for(value, low_uses, low.dtype, low.short, names)
        return set()
    if not high_uses:
        convert_constant(value, low)
        return {str(value.name)}
    copy = copy_constant(value, low, names)
    redirect(low_uses, copy)
    return {str(copy.name)}


def _store_low(
    value: ir.Value, low_uses: list[Use], high_uses: list[Use], low: LowFormat, names: NameAllocator
) -> None:
    """Round what a high node makes: low readers take it as it is stored, high ones cast it back."""
    stored = add_cast(value, low.dtype, low.short, names)
    redirect(low_uses, stored)
    if high_uses:
        _cast_for(stored, high_uses, ir.DataType.FLOAT, "fp32", names, named_by=value)


def _cast_for(
    value: ir.Value,
    uses: list[Use],
    dtype: ir.DataType,
    suffix: str,
    names: NameAllocator,
    named_by: ir.Value | None = None,
) -> None:
    """Let `uses` read a cast of `value`; an output of the program keeps its name (that of `named_by`, if given)."""
    main_output = next((use for use in uses if isinstance(use.user, ir.Graph) and _is_main(use.user)), None)
    result = add_cast(value, dtype, suffix, names)
    redirect(uses, result)
    if main_output is not None:
        rename_output(named_by or value, result, names, suffix)


def _is_main(graph: ir.Graph) -> bool:
    return bool(graph.opset_imports)


def add_cast(value: ir.Value, dtype: ir.DataType, suffix: str, names: NameAllocator) -> ir.Value:
    """Return the result of a new Cast of `value` to `dtype`, put right behind its definition."""
    result = ir.Value(
        name=names.fresh(f"{value.name}__amp_{suffix}"), type=ir.TensorType(dtype), shape=_copy_shape(value)
    )
    cast = ir.Node(
        "",
        "Cast",
        [value],
        [ir.AttrInt64("to", int(dtype))],
        outputs=[result],
        name=names.fresh(f"{value.name}__amp_cast_{suffix}"),
    )
    cast.meta[INSERTED] = True
    insert_after_definition(value, cast)
    return result


def insert_after_definition(value: ir.Value, node: ir.Node) -> None:
    """Put `node` right behind the node that produces `value`, or first in the graph that `value` is an input of."""
    producer = value.producer()
    if producer is not None:
        producer.append(node)
        return
    graph = value.graph
    if graph is None:
        raise ValueError(f"value '{value.name}' belongs to no graph")
    first = next(iter(graph), None)
    if first is None:
        graph.append(node)
    else:
        first.prepend(node)


def _copy_shape(value: ir.Value) -> ir.Shape | None:
    return None if value.shape is None else ir.Shape(value.shape)


def redirect(uses: list[Use], value: ir.Value) -> None:
    """Make every place in `uses` read `value` instead."""
    for use in uses:
        if isinstance(use.user, ir.Node):
            use.user.replace_input_with(use.index, value)
        else:
            use.user.outputs[use.index] = value


def rename_output(old: ir.Value, new: ir.Value, names: NameAllocator, suffix: str) -> None:
    """Hand the name of graph output `old` over to `new`, which has taken its place."""
    name = old.name
    old.name = names.fresh(f"{name}__amp_before_{suffix}")
    new.name = name
    new.doc_string = old.doc_string
    if old.metadata_props:
        new.metadata_props.update(old.metadata_props)
