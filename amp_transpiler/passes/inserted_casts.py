"""Inserting a Cast behind a value and letting readers take its result."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import INSERTED, Use

__all__ = ["INSERTED", "add_cast", "redirect", "rename_output"]


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
    if value.is_graph_output():  # what is declared of an output may be wrong, see `rename_output`
        return _confirmed(value)
    return None if value.shape is None else ir.Shape(value.shape)


def _confirmed(value: ir.Value) -> ir.Shape | None:
    """Return what is known of the shape of an output beside its declaration: all of it, or only the rank.

    ONNX Runtime only warns where an output has another shape than declared. Of a value inside the graph it believes
    the declaration, and gives it the memory of another one of the same shape. Shapes of known inputs are known to
    inference, which contradicts wrong ones.
    """
    producer = value.producer()
    if value.shape is None or producer is None:
        return value.shape
    inferred = all(is_static(v) for v in (value, *producer.inputs) if v is not None)
    return ir.Shape(value.shape if inferred else [None] * len(value.shape))


def redirect(uses: list[Use], value: ir.Value) -> None:
    """Make every place in `uses` read `value` instead."""
    for use in uses:
        if isinstance(use.user, ir.Node):
            use.user.replace_input_with(use.index, value)
        else:
            use.user.outputs[use.index] = value


def rename_output(old: ir.Value, new: ir.Value, names: NameAllocator, suffix: str) -> None:
    """Hand the name of graph output `old` over to `new`, which has taken its place, and what is declared of it."""
    name = old.name
    if old.shape is not None:
        new.shape, old.shape = ir.Shape(old.shape), _confirmed(old)
    old.name = names.fresh(f"{name}__amp_before_{suffix}")
    new.name = name
    new.doc_string = old.doc_string
    if old.metadata_props:
        new.metadata_props.update(old.metadata_props)
