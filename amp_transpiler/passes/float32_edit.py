"""Floats of other types made float32: the edit that passes for 16-bit floats and for float64 share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import dtype_name, low_format
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import node_signature, set_dtype
from amp_transpiler.graph.walk import WIDENED, Use, has_bodies, scopes
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute, tensor_of
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import Signature, type_string
from amp_transpiler.passes.inserted_casts import add_cast, redirect, rename_output
from amp_transpiler.passes.widening import wide_tensor, widen_attribute
from amp_transpiler.phrases import counted

__all__ = ["Float32Edit", "FloatKind"]

_WITH_KNOWN_BODIES = {"If", "Loop", "Scan", "SequenceMap"}

# Attributes that name the type an operator computes in, not that of an output.
_COMPUTES_IN = {
    "Attention": "softmax_precision",
    "GroupNormalization": "stash_type",
    "LayerNormalization": "stash_type",
    "RMSNormalization": "stash_type",
    "QuantizeLinear": "precision",
}


@dataclasses.dataclass(frozen=True, slots=True)
class FloatKind:
    """The floats that become float32.

    Attributes:
        formats: their element types.
        words: what messages call them.
        to_keep: how a user keeps them.
        to_change: how a user lets an input or output, `{}`, change its type.
    """

    formats: frozenset[ir.DataType]
    words: str
    to_keep: str
    to_change: str


class Float32Edit:
    """One edit of a typed model.

    Args:
        model: the model.
        kind: the floats that become float32.
        new_io: names of inputs and outputs that become float32 themselves.
        keeps: whether a node stays as it is, between casts; beside those that have to.

    Attributes:
        values: the values that became float32.
        formats: the element types that some value had.
        constants: those of the values that were constants, by name, with the tensor before.
        kept_nodes: the nodes that stayed as they were.
        kept_io: names of inputs and outputs of the program that kept their types.
    """

    def __init__(
        self,
        model: ir.Model,
        kind: FloatKind,
        new_io: Collection[str],
        keeps: Callable[[ir.Node], bool] | None = None,
    ) -> None:
        self._model = model
        self._kind = kind
        self._new_io = frozenset(new_io)
        self._keeps = keeps
        self._names = NameAllocator(model)
        self._uses: dict[ir.Value, list[Use]] = {}
        self._old: dict[ir.Value, ir.DataType] = {}
        self.values: list[ir.Value] = []
        self.formats: set[ir.DataType] = set()
        self.constants: list[tuple[str, ir.TensorProtocol]] = []
        self.kept_nodes: dict[ir.Node, None] = {}
        self.kept_io: list[str] = []

    def summary(self, dropped: int) -> str:
        """Return how many values and constants became float32, and how many casts of the source went with that."""
        changed = f"{counted(len(self.values), 'value')}, of which {counted(len(self.constants), 'constant')}"
        casts = f"; {counted(dropped, 'cast')} of the source needed no more" if dropped else ""
        return changed + casts

    def look(self) -> None:
        """List the values, the places that read them, and the nodes that cannot do without them; nothing changes.

        Raises:
            OptionError: such a value is in reach of an operator with bodies of unknown meaning.
        """
        for scope in scopes(self._model):
            graph, owner = scope.graph, scope.owner
            if owner is not None and any(map(self._is_low, (*graph.inputs, *graph.outputs))):
                self._check_meaning(owner)
            for value in (*graph.inputs, *graph.initializers.values()):
                self._note(value)
            for node in graph:
                for value in node.outputs:
                    self._note(value)
                low = [value for value in (*node.inputs, *node.outputs) if self._is_low(value)]
                if low and self._must_keep(node):
                    self.kept_nodes[node] = None
            for user in (*graph, graph):
                for index, read in enumerate(user.inputs if isinstance(user, ir.Node) else user.outputs):
                    if read is not None and self._is_low(read):
                        self._uses.setdefault(read, []).append(Use(user, index))

    def tensors(self) -> Iterator[tuple[str, ir.TensorProtocol]]:
        """Yield the numbers that become float32, each with the name of its value."""
        for value in self._old:
            tensor = _numbers(value)
            readers = self._uses.get(value, ())
            if tensor is not None and not (readers and all(use.user in self.kept_nodes for use in readers)):
                yield str(value.name), tensor
        for scope in scopes(self._model):
            for node in scope.graph:
                rule = dtype_attribute(node)
                if rule is None or not rule.holds_tensor or node in self.kept_nodes:
                    continue
                if attribute_dtype(node, rule) in self._kind.formats and rule.attribute in node.attributes:
                    yield str(node.outputs[0].name), tensor_of(node.attributes[rule.attribute])

    def run(self) -> None:
        """Carry it out.

        Raises:
            OptionError: an input or output that must keep its type is a sequence, which cannot be cast.
        """
        stays = self._staying()
        needs = [(node, index, self._old[value]) for node in self.kept_nodes for index, value in self._low_inputs(node)]
        leaving = self._outputs_that_keep()
        for scope in scopes(self._model):
            for node in scope.graph:
                if node not in self.kept_nodes:
                    self._node(node)
        for value in self._old:
            if value in stays:
                self._widen_readers(value)
            else:
                self._widen(value)
        self._narrow_inputs(needs)
        for index, value, dtype in leaving:
            if value.dtype == ir.DataType.FLOAT:
                self._narrow_output(index, value, dtype)

    def _is_low(self, value: ir.Value | None) -> bool:
        return value is not None and value.dtype in self._kind.formats

    def _note(self, value: ir.Value) -> None:
        if value.dtype is not None and self._is_low(value):
            self._old[value] = value.dtype
            self.formats.add(value.dtype)

    def _must_keep(self, node: ir.Node) -> bool:
        if has_bodies(node):
            self._check_meaning(node)
            return False
        if self._keeps is not None and self._keeps(node):
            return True
        sig = node_signature(self._model, node)
        if sig is None or node.op_type == "BitCast" or any(self._other_tensors(node)):
            return True
        return not all(self._may_widen(node, sig))

    def _other_tensors(self, node: ir.Node) -> Iterator[str]:
        """Yield the attributes that hold such numbers for a purpose that is not known here, as those of trees do."""
        rule = dtype_attribute(node)
        known = {rule.attribute} if rule is not None else set()
        known |= {"value"} if node.op_type == "Constant" and is_standard(node) else set()
        for attribute in node.attributes.values():
            if attribute.type is not ir.AttributeType.TENSOR or attribute.name in known or attribute.is_ref():
                continue
            if tensor_of(attribute).dtype in self._kind.formats:
                yield attribute.name

    def _may_widen(self, node: ir.Node, sig: Signature) -> Iterator[bool]:
        for values, formal in ((node.inputs, sig.input), (node.outputs, sig.output)):
            for index, value in enumerate(values):
                slot = formal(index)
                if value is None or not self._is_low(value):
                    continue
                wide = type_string(_widened(value.type, self._kind.formats))
                yield slot is not None and wide in sig.allowed.get(slot.type, (slot.type,))

    def _staying(self) -> set[ir.Value]:
        """The values that keep their type: inputs and outputs of the program that must, and those of kept nodes."""
        graph = self._model.graph
        stays = {value for node in self.kept_nodes for value in node.outputs if self._is_low(value)}
        touched = (value for node in self.kept_nodes for value in node.inputs if value is not None)
        for value in (*stays, *filter(self._is_low, touched)):
            if not isinstance(value.type, ir.TensorType):
                raise self._cannot_cast("value", value)
        stays |= {value for value in self._old if constant_of(value) is not None and self._is_read_as_before(value)}
        for value in self._old:
            outside = value.is_graph_input() and value.graph is graph
            constant = value.is_initializer() and value in graph.outputs
            if (outside or constant) and value.name not in self._new_io:
                if not isinstance(value.type, ir.TensorType):
                    raise self._cannot_cast("input", value)
                stays.add(value)
                self.kept_io.append(str(value.name))
        return stays

    def _is_read_as_before(self, value: ir.Value) -> bool:
        return any(use.user in self.kept_nodes for use in self._uses.get(value, ()))

    def _low_inputs(self, node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
        return ((index, value) for index, value in enumerate(node.inputs) if value is not None and self._is_low(value))

    def _outputs_that_keep(self) -> list[tuple[int, ir.Value, ir.DataType]]:
        outputs = []
        for index, value in enumerate(self._model.graph.outputs):
            if value in self._old and value.name not in self._new_io:
                if not isinstance(value.type, ir.TensorType):
                    raise self._cannot_cast("output", value)
                outputs.append((index, value, self._old[value]))
                self.kept_io.append(str(value.name))
        return outputs

    # Edits.

    def _node(self, node: ir.Node) -> None:
        """Let the attributes of a node say float32, and remember what it computed in."""
        low = [value for value in node.outputs if self._is_low(value)]
        if low:
            node.meta[WIDENED] = dtype_name(low[0].dtype)
        if not is_standard(node):
            return
        rule = dtype_attribute(node)
        if node.op_type == "SequenceEmpty" and low:
            node.attributes["dtype"] = ir.AttrInt64("dtype", int(ir.DataType.FLOAT))
        elif rule is not None and attribute_dtype(node, rule) in self._kind.formats:
            widen_attribute(node, self._kind.formats)
        name = _COMPUTES_IN.get(node.op_type)
        if name is not None and name in node.attributes and node.attributes[name].as_int() in self._kind.formats:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))

    def _widen(self, value: ir.Value) -> None:
        """Make a value float32, with its constant if it has one."""
        self.values.append(value)
        tensor, producer = _numbers(value), value.producer()
        if tensor is not None:
            self.constants.append((str(value.name), tensor))
            wide = wide_tensor(tensor, str(value.name))
            if producer is not None:
                producer.attributes["value"] = ir.AttrTensor("value", wide)
            else:
                value.const_value = wide
        if isinstance(value.type, ir.TensorType):
            set_dtype(value, ir.DataType.FLOAT)
        else:
            value.type = _widened(value.type, self._kind.formats)

    def _widen_readers(self, value: ir.Value) -> None:
        """Keep a value as it is; all that read it, but the outputs that must keep its type, get it in float32."""
        graph = self._model.graph
        uses = [
            use
            for use in self._uses.get(value, [])
            if use.user not in self.kept_nodes and (use.user is not graph or value.name in self._new_io)
        ]
        if not uses:
            return
        self.values.append(value)
        wide = add_cast(value, ir.DataType.FLOAT, "fp32", self._names)
        redirect(uses, wide)
        if any(use.user is graph for use in uses):
            rename_output(value, wide, self._names, "fp32")

    def _narrow_inputs(self, needs: list[tuple[ir.Node, int, ir.DataType]]) -> None:
        """Cast the inputs of kept nodes back, once a value and format."""
        casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        for node, index, dtype in needs:
            value = node.inputs[index]
            if value is None or value.dtype == dtype:
                continue
            if (value, dtype) not in casts:
                casts[value, dtype] = add_cast(value, dtype, _suffix(dtype), self._names)
            node.replace_input_with(index, casts[value, dtype])

    def _narrow_output(self, index: int, value: ir.Value, dtype: ir.DataType) -> None:
        """Cast an output of the program back; the cast's result takes its name over."""
        result = add_cast(value, dtype, _suffix(dtype), self._names)
        self._model.graph.outputs[index] = result
        rename_output(value, result, self._names, "fp32")

    # Refusals.

    def _check_meaning(self, node: ir.Node) -> None:
        if not is_standard(node) or node.op_type not in _WITH_KNOWN_BODIES:
            raise OptionError(
                f"node '{node.name}' ({operator_name(node)}) has bodies of a meaning unknown here, so "
                f"{self._kind.words} that it works on cannot change; {self._kind.to_keep}"
            )

    def _cannot_cast(self, what: str, value: ir.Value) -> OptionError:
        return OptionError(
            f"{what} '{value.name}' is a {type_string(value.type)}, which cannot be cast: let it change its type with "
            f"{self._kind.to_change.format(value.name)}"
        )


def _numbers(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of a constant, or the default of an input."""
    tensor = constant_of(value)
    return value.const_value if tensor is None and value.is_initializer() else tensor


def _suffix(dtype: ir.DataType) -> str:
    return "fp64" if dtype == ir.DataType.DOUBLE else low_format(dtype).short


def _widened(type_: ir.TypeProtocol | None, formats: Collection[ir.DataType]) -> ir.TypeProtocol | None:
    if isinstance(type_, ir.TensorType):
        return ir.TensorType(ir.DataType.FLOAT) if type_.dtype in formats else type_
    inner = _widened(type_.elem_type, formats) if isinstance(type_, (ir.SequenceType, ir.OptionalType)) else None
    if inner is None:
        return type_
    return ir.SequenceType(inner) if isinstance(type_, ir.SequenceType) else ir.OptionalType(inner)
