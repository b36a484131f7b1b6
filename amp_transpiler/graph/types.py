"""Types of all values of a model, from the operators' signatures."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.node_kind import UNTYPED, Kind, kind_of
from amp_transpiler.graph.proto import holds_map, to_proto_without_weights
from amp_transpiler.graph.walk import ControlPort, all_nodes, bodies, control_ports, has_bodies
from amp_transpiler.ops.dtype_attributes import DTYPE_ATTRIBUTES, DtypeAttribute
from amp_transpiler.ops.schema import Signature, Slot, opset_of, signature, type_string

__all__ = ["binding", "node_signature", "output_types", "parse_type", "propagate_types", "set_dtype"]

logger = logging.getLogger(__name__)

_DTYPES = {type_string(ir.TensorType(dtype)): dtype for dtype in ir.DataType if dtype}

_CONTAINER = re.compile(r"(seq|optional)\((.+)\)")

_CONSTANT_FORMS = {
    "value_float": "tensor(float)",
    "value_floats": "tensor(float)",
    "value_int": "tensor(int64)",
    "value_ints": "tensor(int64)",
    "value_string": "tensor(string)",
    "value_strings": "tensor(string)",
}

# Parameters that a schema leaves unbound because one type contains the other: output parameter -> how to get it.
_CONTAINERS: dict[tuple[str, int], tuple[int, str]] = {
    ("SequenceAt", 0): (0, "element"),
    ("ConcatFromSequence", 0): (0, "element"),
    ("OptionalGetElement", 0): (0, "element"),
    ("SequenceConstruct", 0): (0, "seq"),
    ("SplitToSequence", 0): (0, "seq"),
    ("Optional", 0): (0, "optional"),
}


def parse_type(text: str) -> ir.TypeProtocol | None:
    """Read a type as ONNX's schemas write it; None for types that hold no tensors this package works on (maps)."""
    if (dtype := _DTYPES.get(text)) is not None:
        return ir.TensorType(dtype)
    match = _CONTAINER.fullmatch(text)
    inner = parse_type(match[2]) if match else None
    if match is None or inner is None:
        return None
    return ir.SequenceType(inner) if match[1] == "seq" else ir.OptionalType(inner)


def set_dtype(value: ir.Value, dtype: ir.DataType) -> None:
    """Make `value` a tensor of `dtype`, its shape unchanged."""
    value.type = ir.TensorType(dtype)


def node_signature(model: ir.Model, node: ir.Node) -> Signature | None:
    """Return the signature of `node` at the model's opset, or None for an unknown operator."""
    return signature(node.domain, node.op_type, opset_of(model, node.domain))


def binding(node: ir.Node, sig: Signature, *, outputs: bool = True) -> dict[str, str]:
    """Return the types that the inputs (and outputs) of `node` bind the type parameters of `sig` to."""
    bound: dict[str, str] = {}
    for slot, value in _actual(node, sig, outputs=outputs):
        text = type_string(value.type)
        if text is not None and slot.homogeneous:
            bound.setdefault(slot.type, text)
    return bound


def _actual(node: ir.Node, sig: Signature, *, outputs: bool) -> Iterator[tuple[Slot, ir.Value]]:
    for index, value in enumerate(node.inputs):
        if value is not None and (slot := sig.input(index)) is not None:
            yield slot, value
    if outputs:
        for index, value in enumerate(node.outputs):
            if (slot := sig.output(index)) is not None:
                yield slot, value


def propagate_types(model: ir.Model) -> list[ir.Node] | None:
    """Set the type of every value that the signatures determine, declared types of intermediates notwithstanding.

    Shapes stay as declared. Values that only an operator of an unknown domain produces keep their declared type or,
    where the types of their readers determine it, get that.

    Returns:
        Nodes of which `verifier.verify` can tell whether all of the model are well typed: one of each kind, and each
        whose outputs its kind does not determine. None if a type was another one before: a node that had been walked
        over may read it.

    Raises:
        ModelError: ONNX has to be asked for a type, and refuses a node.
    """
    typing = _Typing(model)
    typing.run(model.graph)
    if typing.is_open and any(value.type is None and value.name for node in all_nodes(model) for value in node.outputs):
        _infer_missing(model)
        typing.run(model.graph)
        # What got a type may give one to the node that makes it, and to other readers.
        while _infer_from_readers(model):
            typing.run(model.graph)
        return None
    return None if typing.changed else typing.examples


class _Typing:
    """Types the outputs of nodes in the order of execution. What a kind of node gives is worked out once.

    Attributes:
        changed: whether a value was of another type, or of none.
        is_open: whether an output got no type.
        examples: what `propagate_types` returns.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._known: dict[tuple[Kind, int], tuple[str | None, ...]] = {}
        self.changed = self.is_open = False
        self.examples: list[ir.Node] = []

    def run(self, graph: ir.Graph) -> None:
        """Type the values of `graph` and of the bodies in it."""
        for value in graph.initializers.values():
            if value.const_value is not None and value.dtype != value.const_value.dtype:
                set_dtype(value, value.const_value.dtype)
                self.changed = True
        for node in graph:
            if not has_bodies(node):
                self._outputs(node)
                continue
            self.examples.append(node)
            ports = control_ports(node)
            for port in ports:
                self._pass_on(port, [v for v in port.definitions if v.producer() is None], ir.Node)
            for _, body in bodies(node):
                self.run(body)
            for port in ports:
                if port.kind != "opaque":
                    self._pass_on(port, [v for v in port.definitions if v.producer() is node], ir.Graph)
            if node.op_type not in ("If", "Loop", "Scan"):
                self._outputs(node)
            self.is_open |= any(value.type is None for value in node.outputs)

    def _outputs(self, node: ir.Node) -> None:
        outputs = node.outputs
        kind = kind_of(node, opset_of(self._model, node.domain), outputs=False)
        key = kind, len(outputs)
        type_texts = self._known.get(key)
        if type_texts is None:
            type_texts = self._known[key] = output_types(kind, len(outputs))
            self.examples.append(node)
        elif None in type_texts and kind.version is not None:
            self.examples.append(node)
        for value, text in zip(outputs, type_texts, strict=True):
            if text is None:
                self.is_open |= value.type is None
            elif type_string(value.type) != text:
                self._set_type(value, text)

    def _pass_on(self, port: ControlPort, values: list[ir.Value], user: type[ir.Node | ir.Graph]) -> None:
        """Give `values` the type of the value that the port's first use by a node, or by a graph, reads."""
        types = [use.value.type for use in port.uses if use.value is not None and isinstance(use.user, user)]
        text = type_string(types[0]) if types else None
        if text is not None:
            for value in values:
                if type_string(value.type) != text:
                    self._set_type(value, text)

    def _set_type(self, value: ir.Value, text: str) -> None:
        """Give `value` another type unless it is one that cannot be expressed (a map)."""
        self.changed = True
        if (type_ := parse_type(text)) is not None:
            value.type = type_
        self.is_open |= value.type is None


def output_types(kind: Kind, count: int) -> tuple[str | None, ...]:
    """Return the types of the first `count` outputs of a node as far as its schema says; None where it does not.

    Args:
        kind: the node's kind, without outputs.
        count: how many outputs it has.
    """
    sig = signature(kind.domain, kind.op_type, kind.version) if kind.version is not None else None
    if sig is None:
        return (None,) * count
    bound = _bound_inputs(kind, sig)
    return tuple(_output_type(kind, index, sig, bound) for index in range(count))


def _bound_inputs(kind: Kind, sig: Signature) -> dict[str, str]:
    bound: dict[str, str] = {}
    for index, text in enumerate(kind.inputs):
        slot = sig.input(index)
        if text is not None and text != UNTYPED and slot is not None and slot.homogeneous:
            bound.setdefault(slot.type, text)
    return bound


def _output_type(kind: Kind, index: int, sig: Signature, bound: dict[str, str]) -> str | None:
    slot = sig.output(index)
    if slot is None:
        return None
    rule = DTYPE_ATTRIBUTES.get(kind.op_type) if not kind.domain else None
    if rule is not None and index in rule.outputs:
        return _attribute_type(kind, rule)
    if kind.op_type == "Constant" and (constant_type := _constant_type(kind)) is not None:
        return constant_type
    if (container := _CONTAINERS.get((kind.op_type, index))) is not None and not kind.domain:
        source = kind.inputs[container[0]] if kind.inputs else None
        return None if source is None or source == UNTYPED else _contain(source, container[1])
    if not slot.homogeneous:
        return None
    if slot.type in bound:
        return bound[slot.type]
    if slot.type not in sig.allowed:
        return slot.type
    only = sig.allowed[slot.type]
    return next(iter(only)) if len(only) == 1 else None


def _attribute_type(kind: Kind, rule: DtypeAttribute) -> str | None:
    """Return the type that an attribute gives outputs; None if it is that of an untyped input."""
    dtype = dict(kind.attributes).get(rule.attribute)
    if isinstance(dtype, int) and dtype:  # DequantizeLinear's 0 means: as the scale
        return type_string(ir.TensorType(ir.DataType(dtype)))
    if isinstance(rule.default, ir.DataType):
        return type_string(ir.TensorType(rule.default))
    source = kind.inputs[rule.default] if rule.default < len(kind.inputs) else None
    return None if source == UNTYPED else source


def _constant_type(kind: Kind) -> str | None:
    """Return the type of a Constant by its attribute; ONNX's inference need not be asked about those of numbers."""
    name, content = next(iter(kind.attributes), ("", None))
    if isinstance(content, ir.DataType):
        return type_string(ir.TensorType(content))
    return _CONSTANT_FORMS.get(name)


def _contain(text: str, how: str) -> str:
    if how != "element":
        return f"{how}({text})"
    match = _CONTAINER.fullmatch(text)
    return match[2] if match else text


def _infer_missing(model: ir.Model) -> None:
    """Ask ONNX's own inference for types that the signatures leave open (sequences, optionals, maps).

    Raises:
        ModelError: a node is one that ONNX has no such use of.
    """
    proto = to_proto_without_weights(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False)
    except (onnx.shape_inference.InferenceError, ValueError) as error:  # its text names the operator and the node
        reason = " ".join(str(error).split())[:400]
        raise ModelError(
            f"the model is invalid as it is, before any conversion: ONNX cannot infer its types: {reason}"
        ) from error
    infos = (*inferred.graph.value_info, *inferred.graph.output)
    inferred_types = {info.name: info.type for info in infos if not holds_map(info.type)}
    for node in model.graph:
        for value in node.outputs:
            if value.type is None and value.name in inferred_types and inferred_types[value.name].WhichOneof("value"):
                described = ir.serde.deserialize_type_proto_for_type(inferred_types[value.name])
                if type_string(described) is not None:
                    value.type = described


def _infer_from_readers(model: ir.Model) -> bool:
    """Give the result of an unknown operator the type that its readers' other inputs and outputs call for.

    Returns:
        Whether any value got a type.
    """
    changed = False
    for node in reversed(list(all_nodes(model))):  # readers first: a chain of them gets its types in one walk
        sig = node_signature(model, node)
        if sig is None or not any(value is not None and value.type is None for value in node.inputs):
            continue
        bound = binding(node, sig)
        for index, value in enumerate(node.inputs):
            slot = sig.input(index)
            if value is not None and value.type is None and slot is not None and slot.type in bound:
                value.type = parse_type(bound[slot.type])
                changed |= value.type is not None
                logger.info("typed %s as %s from its reader %s", value.name, bound[slot.type], node.name)
    return changed
