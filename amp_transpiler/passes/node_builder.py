"""Making new nodes in front of an old one, and turning the old one into another operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator

__all__ = ["NodeBuilder", "set_input"]


class NodeBuilder:
    """Puts nodes in front of one node, its anchor, named after it and carrying its metadata.

    Operators are of ONNX's own domain unless another is named. `become` ends a rewriting: the anchor itself turns into
    the last operator, so that its output stays the same value, with its name, its readers in every scope, and its place
    among graph outputs.
    """

    def __init__(self, anchor: ir.Node, names: NameAllocator) -> None:
        self.anchor = anchor
        self._names = names
        self._prefix = anchor.name or anchor.op_type

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, object] | None = None,
        dtype: ir.DataType | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Return the output of a new node; `dtype` is its element type where the caller knows it."""
        (output,) = self.nodes(op_type, inputs, 1, attributes, dtype, domain)
        return output

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: int,
        attributes: Mapping[str, object] | None = None,
        dtype: ir.DataType | None = None,
        domain: str = "",
    ) -> list[ir.Value]:
        """Return the outputs of a new node; `dtype` is their element type where the caller knows it."""
        name = self._names.fresh(f"{self._prefix}/{op_type}")
        type_ = None if dtype is None else ir.TensorType(dtype)
        results = [ir.Value(name=self._names.fresh(f"{name}_output"), type=type_) for _ in range(outputs)]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            _attributes(attributes),
            outputs=results,
            name=name,
            doc_string=self.anchor.doc_string,
            metadata_props=dict(self.anchor.metadata_props),
        )
        graph = self.anchor.graph
        if graph is None:
            raise ValueError(f"node '{self._prefix}' belongs to no graph, so nothing can be put in front of it")
        graph.insert_before(self.anchor, node)
        return results

    def constant(self, array: np.ndarray, dtype: ir.DataType | None = None) -> ir.Value:
        """Return the output of a new Constant node; `dtype` is the array's unless given."""
        tensor = ir.Tensor(array, dtype=dtype) if dtype is not None else ir.tensor(array)
        value = self.node("Constant", [], {"value": tensor}, tensor.dtype)
        value.shape = ir.Shape(array.shape)
        return value

    def weight(self, name: str, array: np.ndarray) -> ir.Value:
        """Return a new initializer of the anchor's graph: a constant that is stored apart from its nodes."""
        graph = self.anchor.graph
        assert isinstance(graph, ir.Graph), "functions have no initializers"
        value = ir.Value(name=self._names.fresh(name))
        value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)
        value.dtype, value.shape = value.const_value.dtype, ir.Shape(array.shape)
        graph.register_initializer(value)
        return value

    def become(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, object] | None = None,
        domain: str = "",
    ) -> None:
        """Turn the anchor into another operator with one output, the anchor's first."""
        self.anchor.resize_outputs(1)
        self.anchor.domain = domain
        self.anchor.op_type = op_type
        self.anchor.attributes.clear()
        for attribute in _attributes(attributes):
            self.anchor.attributes.add(attribute)
        self.anchor.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            self.anchor.replace_input_with(index, value)


def _attributes(attributes: Mapping[str, object] | None) -> list[ir.Attr]:
    return list(ir.convenience.convert_attributes(attributes)) if attributes else []  # type: ignore[arg-type]


def set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    """Make `value` the input `index` of `node`, lengthening the inputs by missing ones where need be."""
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
