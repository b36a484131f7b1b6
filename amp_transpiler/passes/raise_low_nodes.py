"""Nodes that compute in 16 bits because their data have 16 bits, but must compute in float32."""

from __future__ import annotations

from collections.abc import Callable, Container

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LOW_DTYPES, low_format
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.origins import ROUNDS_KEY
from amp_transpiler.graph.types import node_signature, set_dtype
from amp_transpiler.graph.walk import Use, has_bodies
from amp_transpiler.ops.schema import type_string
from amp_transpiler.passes.inserted_casts import add_cast, redirect
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["RaiseLowNodes"]

_FLOAT = ir.TensorType(ir.DataType.FLOAT)


class RaiseLowNodes(Pass[PassResult]):
    """Lets chosen nodes of the main graph compute in float32; counts the nodes.

    Their inputs of 16 bits are cast up, and their results are float32 under the names they have. Other nodes get the
    results in 16 bits as before, except casts and further chosen nodes, which read them unrounded.

    Args:
        chosen: whether a node must compute in float32.
        keep: names of values that keep their types, such as what replaces a persistable value.
    """

    def __init__(self, chosen: Callable[[ir.Node], bool], keep: Container[str] = ()) -> None:
        self._chosen = chosen
        self._keep = keep

    def call(self, model: ir.Model) -> PassResult:
        nodes = [node for node in model.graph if self._is_raised(model, node)]
        raised = set(nodes)
        names = NameAllocator(model)
        for node in nodes:
            if node.op_type == "Cast":
                node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
            for value in dict.fromkeys(value for value in node.inputs if _is_low(value)):
                wide = add_cast(value, ir.DataType.FLOAT, "fp32", names)  # type: ignore[arg-type]  # a low one is a value
                for index, read in enumerate(node.inputs):
                    if read is value:
                        node.replace_input_with(index, wide)
            for value in filter(_is_low, node.outputs):
                _raise_result(value, raised, names)
        return PassResult(model, modified=bool(nodes), count=len(nodes))

    def _is_raised(self, model: ir.Model, node: ir.Node) -> bool:
        if ROUNDS_KEY in node.meta:  # what it rounds is the operator
            reduction = node.inputs[0].producer() if node.inputs[0] is not None else None
            return reduction is not None and self._chosen(reduction) and not self._is_kept(node)
        return self._can_rise(model, node) and self._chosen(node)

    def _is_kept(self, node: ir.Node) -> bool:
        return any(value.name in self._keep or value.is_graph_output() for value in node.outputs)

    def _can_rise(self, model: ir.Model, node: ir.Node) -> bool:
        low_inputs = [index for index, value in enumerate(node.inputs) if _is_low(value)]
        signature = node_signature(model, node) if low_inputs and not has_bodies(node) else None
        if signature is None or node.op_type == "Cast" or self._is_kept(node):
            return False
        slots = [signature.input(index) for index in low_inputs]
        slots += [signature.output(index) for index, value in enumerate(node.outputs) if _is_low(value)]
        return all(slot is not None and type_string(_FLOAT) in signature.allowed.get(slot.type, ()) for slot in slots)


def _is_low(value: ir.Value | None) -> bool:
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype in LOW_DTYPES


def _raise_result(value: ir.Value, raised: set[ir.Node], names: NameAllocator) -> None:
    """Make a result float32; give it back in its 16 bits to those that count on them."""
    before = value.dtype
    assert before is not None
    set_dtype(value, ir.DataType.FLOAT)
    uses = [Use(user, index) for user, index in value.uses() if user not in raised and user.op_type != "Cast"]
    if uses:
        redirect(uses, add_cast(value, before, low_format(before).short, names))
