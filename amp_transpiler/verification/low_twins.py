"""Adds low twins to a program: for a float32 node, what it would compute in lower precision, emulated."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import bodies, has_bodies
from amp_transpiler.precision.constraints import LowForm, is_float32

__all__ = ["Twins", "replicate", "rounded"]

_SMALL = 4096  # elements of a constant that is looked at: "minus infinity" becomes the largest magnitude, as in a mask


def rounded(builder: GraphBuilder, value: ir.Value, low: LowFormat) -> ir.Value:
    """Append a pair of casts to the low format and back; return its result."""
    for dtype in (low.dtype, ir.DataType.FLOAT):
        result = ir.Value(name=builder.names.fresh("rounded"), type=ir.TensorType(dtype))
        _copy_shape(value, result)
        to = ir.AttrInt64("to", int(dtype))
        # As its type is known, nothing is inferred: there are thousands of these.
        builder.graph.append(ir.Node("", "Cast", [value], [to], outputs=[result], name=builder.names.fresh("rounding")))
        value = result
    return value


def replicate(builder: GraphBuilder, node: ir.Node, inputs: Mapping[ir.Value, ir.Value]) -> list[ir.Value]:
    """Append a copy of a node, its bodies included, which reads other values; return its outputs.

    Args:
        builder: appends it.
        node: the node.
        inputs: value -> what is read in its place, by the node or inside its bodies.
    """
    attributes = [_copied_body(builder, attribute, inputs) for attribute in node.attributes.values()]
    results = []
    for value in node.outputs:
        name = builder.names.fresh(f"{value.name}_twin") if value.name else ""
        result = ir.Value(name=name, type=value.type)
        _copy_shape(value, result)
        results.append(result)
    copy = ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else inputs.get(value, value) for value in node.inputs],
        attributes,
        overload=node.overload,
        outputs=results,
        name=builder.names.fresh(f"{node.name}_twin"),
    )
    builder.graph.append(copy)
    return results


def _copied_body(builder: GraphBuilder, attribute: ir.Attr, inputs: Mapping[ir.Value, ir.Value]) -> ir.Attr:
    if attribute.type is not ir.AttributeType.GRAPH or attribute.is_ref():
        return attribute
    body = attribute.as_graph().clone(allow_outer_scope_values=True)
    for inner in body.all_nodes():
        inner.name = builder.names.fresh(f"{inner.name}_twin")
        for index, value in enumerate(inner.inputs):
            if value is not None and value in inputs:
                inner.replace_input_with(index, inputs[value])
    for index, value in enumerate(body.outputs):
        if value in inputs:
            body.outputs[index] = inputs[value]
    return ir.Attr(attribute.name, ir.AttributeType.GRAPH, body)


def _copy_shape(value: ir.Value, to: ir.Value) -> None:
    if value.shape is not None:
        to.shape = ir.Shape(value.shape)


class Twins:
    """Appends low twins; each value and each constant is rounded once.

    Args:
        builder: appends to the graph that the nodes are in.
        low: the low format.
        forms: node name -> its low form, for the nodes that may be low.
    """

    def __init__(self, builder: GraphBuilder, low: LowFormat, forms: Mapping[str, LowForm]) -> None:
        self._builder = builder
        self._low = low
        self._forms = forms
        self._rounded: dict[ir.Value, ir.Value] = {}

    def rounded(self, value: ir.Value) -> ir.Value:
        """Return the value in lower precision, as float32."""
        if value not in self._rounded:
            tensor = constant_of(value)
            is_small = tensor is not None and tensor.size <= _SMALL
            low_value = self._constant(value) if is_small else rounded(self._builder, value, self._low)
            self._rounded[value] = low_value
        return self._rounded[value]

    def _constant(self, value: ir.Value) -> ir.Value:
        """Round a constant as a conversion does: what is beyond the format becomes its largest magnitude."""
        tensor = constant_of(value)
        assert tensor is not None
        array = np.clip(tensor.numpy(), -self._low.max, self._low.max)
        return self._builder.constant(array.astype(self._low.numpy).astype(np.float32))

    def inputs(self, node: ir.Node) -> tuple[list[ir.Value], list[ir.Value]]:
        """Return the activations and the constants that the low form of a node reads low, those that change by it."""
        form = self._forms[str(node.name)]
        values = [value for index in sorted(form.inputs) if is_float32(value := node.inputs[index])]
        constants = [value for value in values if constant_of(value) is not None]
        changed = [value for value in constants if not self.is_exact(value)]
        return [value for value in values if value not in constants], changed

    def is_exact(self, value: ir.Value) -> bool:
        """Return whether a value is a small constant that the low format holds."""
        tensor = constant_of(value)
        if tensor is None or tensor.size > _SMALL:
            return False
        array = tensor.numpy()
        with np.errstate(over="ignore"):
            return bool((array.astype(self._low.numpy).astype(np.float32) == array).all())

    def of(self, node: ir.Node) -> tuple[list[ir.Value], list[ir.Value]]:
        """Append the twin of a node; return its outputs before and after they are rounded."""
        form = self._forms[str(node.name)]
        read, fixed = self.inputs(node)
        outputs = replicate(self._builder, node, {value: self.rounded(value) for value in (*read, *fixed)})
        low = [
            rounded(self._builder, value, self._low) if index in form.outputs and is_float32(value) else value
            for index, value in enumerate(outputs)
        ]
        return outputs, low

    def with_low(self, node: ir.Node, values: Collection[ir.Value]) -> list[ir.Value]:
        """Append a copy of a node that reads some of its inputs rounded; return its outputs, which are not."""
        return replicate(self._builder, node, {value: self.rounded(value) for value in values})

    def of_bodies(self, node: ir.Node) -> list[ir.Value]:
        """Append the twin of a node with bodies: every node in them that may be low is; return its outputs."""
        outputs = replicate(self._builder, node, {})
        copy = outputs[0].producer()
        assert copy is not None
        for (_, body), (_, twin) in zip(bodies(node), bodies(copy), strict=True):
            self._round_body(body, twin)
        return outputs

    def _round_body(self, body: ir.Graph, twin: ir.Graph) -> None:
        for node, copy in zip(list(body), list(twin), strict=True):
            if has_bodies(node):
                for (_, inner), (_, other) in zip(bodies(node), bodies(copy), strict=True):
                    self._round_body(inner, other)
                continue
            form = self._forms.get(str(node.name))
            if form is None:
                continue
            for index in form.inputs:
                value = copy.inputs[index]
                if is_float32(value) and constant_of(value) is not None and value.graph is self._builder.model.graph:
                    copy.replace_input_with(index, self.rounded(value))
            for index in form.outputs:
                self._round_in_place(copy.outputs[index], twin)

    def _round_in_place(self, value: ir.Value, graph: ir.Graph) -> None:
        """Let all readers of a result, in a body, read it rounded."""
        if not is_float32(value):
            return
        uses = list(value.uses())
        leaves = [index for index, output in enumerate(graph.outputs) if output is value]
        producer = value.producer()
        assert producer is not None
        below = ir.Value(name=self._builder.names.fresh("low"), type=ir.TensorType(self._low.dtype))
        back = ir.Value(name=self._builder.names.fresh("rounded"), type=value.type)
        to_low = ir.AttrInt64("to", int(self._low.dtype))
        first = ir.Node("", "Cast", [value], [to_low], outputs=[below], name=self._builder.names.fresh("to_low"))
        to_high = ir.AttrInt64("to", int(ir.DataType.FLOAT))
        second = ir.Node("", "Cast", [below], [to_high], outputs=[back], name=self._builder.names.fresh("back"))
        producer.append([first, second])
        for reader, index in uses:
            reader.replace_input_with(index, back)
        for index in leaves:
            graph.outputs[index] = back
