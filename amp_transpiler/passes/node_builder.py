"""Making new nodes in front of an old one, and turning the old one into another operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import constant_of
from amp_transpiler.ops.names import is_standard

__all__ = ["NodeBuilder", "constant_array", "constant_tensor", "set_input"]


class NodeBuilder:
    """Puts nodes in front of one node, its anchor, named after it and carrying its metadata.

    Operators are of ONNX's own domain. `become` ends a rewriting: the anchor itself turns into the last operator, so
    that its output stays the same value, with its name, its readers in every scope, and its place among graph outputs.
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
    ) -> ir.Value:
        """Return the output of a new node; `dtype` is its element type where the caller knows it."""
        name = self._names.fresh(f"{self._prefix}/{op_type}")
        output = ir.Value(
            name=self._names.fresh(f"{name}_output"), type=None if dtype is None else ir.TensorType(dtype)
        )
        made = ir.Node(
            "",
            op_type,
            inputs,
            _attributes(attributes),
            outputs=[output],
            name=name,
            doc_string=self.anchor.doc_string,
            metadata_props=dict(self.anchor.metadata_props),
        )
        graph = self.anchor.graph
        if graph is None:
            raise ValueError(f"node '{self._prefix}' belongs to no graph, so nothing can be put in front of it")
        graph.insert_before(self.anchor, made)
        return output

    def constant(self, array: np.ndarray, dtype: ir.DataType | None = None) -> ir.Value:
        """Return the output of a new Constant node; `dtype` as told by the array unless given."""
        tensor = ir.Tensor(array, dtype=dtype) if dtype is not None else ir.tensor(array)
        value = self.node("Constant", [], {"value": tensor}, tensor.dtype)
        value.shape = ir.Shape(array.shape)
        return value

    def become(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, object] | None = None
    ) -> None:
        """Turn the anchor into another operator with one output, the anchor's first."""
        self.anchor.resize_outputs(1)
        self.anchor.domain = ""
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


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor behind a value that never changes, looking through Identity and every form of Constant."""
    while value is not None and (tensor := constant_of(value)) is None:
        node = value.producer()
        if node is None or not is_standard(node):
            return None
        if node.op_type == "Constant":
            return _number_tensor(node)
        value = node.inputs[0] if node.op_type == "Identity" else None
    return None if value is None else tensor


def _number_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for name, dtype in (("float", np.float32), ("int", np.int64)):
        for attribute in (node.attributes.get(f"value_{name}"), node.attributes.get(f"value_{name}s")):
            if attribute is not None and not attribute.is_ref():
                return ir.tensor(np.asarray(attribute.value, dtype))
    return None


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """Return the array behind a value that never changes, or None."""
    tensor = constant_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())
