"""Proof that a program is well typed: every slot of every node against the operator's schema.

`onnx.checker` accepts a MatMul of float32 and float16 unless asked for its full check, and ONNX's type inference skips
operators it has no inference function for. This looks at every node, contrib operators included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.errors import VerificationError
from amp_transpiler.graph.node_kind import Kind, kind_of
from amp_transpiler.graph.types import node_signature
from amp_transpiler.graph.walk import Scope, control_ports, scopes
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute
from amp_transpiler.ops.schema import Signature, Slot, opset_of, type_string
from amp_transpiler.phrases import first_few

__all__ = ["faults", "verify"]

_WINDOW = 3  # nodes shown before and after the culprit


def verify(model: ir.Model, after: str, examples: Iterable[ir.Node] | None = None) -> None:
    """Raise if the program breaks a typing rule.

    Args:
        model: the program.
        after: the pass that has just run, for the message.
        examples: the nodes that `propagate_types` has just returned, if any: they stand for all others, so that the
            model need not be walked over once more.

    Raises:
        VerificationError: naming node, slot, expected and found type, with the nodes around the culprit.
    """
    if examples is not None and not any(True for node in examples for _ in _node_faults(model, node)):
        return
    first = next(faults(model), None)
    if first is not None:
        raise VerificationError(f"after {after}: {first}")


def faults(model: ir.Model) -> Iterator[str]:
    """Yield a description of every typing fault of the model."""
    sound: set[Kind] = set()  # kinds of nodes that were found without fault
    for scope in scopes(model):
        yield from _tensor_faults(scope)
        for node in scope.graph:
            kind = kind_of(node, opset_of(model, node.domain))
            if kind in sound:
                continue
            node_faults = list(_node_faults(model, node))
            for fault in node_faults:
                where = f" in {scope.path}" if scope.path else ""
                yield f"{node.op_type} '{node.name}'{where}: {fault}\n{_window(scope.graph, node)}"
            if not node_faults and not kind.has_body:
                sound.add(kind)


def _tensor_faults(scope: Scope) -> Iterator[str]:
    for name, value in scope.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and value.dtype not in (None, tensor.dtype):
            yield f"initializer '{name}' holds {tensor.dtype.name} but is declared {value.dtype}"


def _node_faults(model: ir.Model, node: ir.Node) -> Iterator[str]:
    for port in control_ports(node):
        if port.kind == "opaque":
            continue
        texts = {text for text in _port_types(port.definitions, [use.value for use in port.uses]) if text}
        if len(texts) > 1 and all(text.startswith("tensor(") for text in texts):  # optionals may be filled in a loop
            names = ", ".join(sorted(str(value.name) for value in port.definitions))
            yield f"the {port.kind} values passed through {names} differ in type: {', '.join(sorted(texts))}"
    sig = node_signature(model, node)
    if sig is None:
        return
    yield from _slot_faults(node, sig)
    rule = dtype_attribute(node)
    if rule is not None:
        asked = attribute_dtype(node, rule)
        for index in rule.outputs:
            if index < len(node.outputs) and asked and node.outputs[index].dtype not in (None, asked):
                declared = node.outputs[index].dtype
                yield f"attribute {rule.attribute} makes output {index} {asked.name}, declared {declared}"


def _port_types(*groups: object) -> Iterator[str | None]:
    for group in groups:
        for value in group:  # type: ignore[attr-defined]  # tuples and lists of values
            if value is not None:
                yield type_string(value.type)


def _slot_faults(node: ir.Node, sig: Signature) -> Iterator[str]:
    bound: dict[str, tuple[str, str]] = {}
    for kind, values, formal in (("input", node.inputs, sig.input), ("output", node.outputs, sig.output)):
        for index, value in enumerate(values):
            if value is None:
                continue
            slot, text = formal(index), type_string(value.type)
            if slot is None:
                yield f"{kind} {index} is beyond the schema's {len(sig.inputs)} inputs and {len(sig.outputs)} outputs"
            elif text is not None:
                yield from _slot_fault(f"{kind} {index} ({slot.name}) '{value.name}'", text, slot, sig, bound)


def _slot_fault(where: str, text: str, slot: Slot, sig: Signature, bound: dict[str, tuple[str, str]]) -> Iterator[str]:
    if text not in sig.types(slot):
        yield f"{where} is {text}, the schema permits {_some(sig.types(slot))}"
    if slot.homogeneous and slot.type in sig.allowed:
        first, place = bound.setdefault(slot.type, (text, where))
        if first != text:
            yield f"{where} is {text}, but {place} of the same type {slot.type} is {first}"


def _some(types: frozenset[str]) -> str:
    return first_few(sorted(types), 6)


def _window(graph: ir.Graph, culprit: ir.Node) -> str:
    nodes = list(graph)
    at = nodes.index(culprit)
    lines = []
    for node in nodes[max(0, at - _WINDOW) : at + _WINDOW + 1]:
        mark = "  > " if node is culprit else "    "
        lines.append(mark + _line(node))
    return "\n".join(lines)


def _line(node: ir.Node) -> str:
    def show(values: object) -> str:
        return ", ".join("-" if v is None else f"{v.name}:{type_string(v.type)}" for v in values)  # type: ignore[attr-defined]  # a sequence of values

    return f"{show(node.outputs)} = {node.op_type}({show(node.inputs)})"
