"""16-bit floats of the source made float32, exactly: the start of a conversion to another format."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES, dtype_name, low_format
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import node_signature, set_dtype
from amp_transpiler.graph.walk import WIDENED, Use, has_bodies, scopes
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import Signature, type_string
from amp_transpiler.passes.clean_casts import CleanCasts
from amp_transpiler.passes.inserted_casts import add_cast, redirect, rename_output
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.widening import wide_tensor, widen_attribute
from amp_transpiler.phrases import counted
from amp_transpiler.program.low_values import has_values_of

__all__ = ["WidenLowFloats", "Widened"]
_WITH_KNOWN_BODIES = {"If", "Loop", "Scan", "SequenceMap"}

# Attributes that name the type an operator computes in, not that of an output.
_COMPUTES_IN = {
    "Attention": "softmax_precision",
    "GroupNormalization": "stash_type",
    "LayerNormalization": "stash_type",
    "RMSNormalization": "stash_type",
    "QuantizeLinear": "precision",
}


@dataclasses.dataclass
class Widened(PassResult):
    """16-bit floats widened.

    Attributes:
        formats: names of the formats that some value had.
        constants: those of the values that were constants, by name, with the 16-bit tensor.
        casts_dropped: casts of the source that changed nothing any more.
    """

    formats: frozenset[str] = frozenset()
    constants: tuple[tuple[str, ir.TensorProtocol], ...] = ()
    casts_dropped: int = 0


class WidenLowFloats(Pass[Widened]):
    """Makes values of 16-bit formats float32; counts the values.

    1. Constants are widened in the file, exactly; attributes that set an element type say float32.
    2. What was rounded to 16 bits is not rounded any more, so that the program is at least as accurate as it was.
    3. Casts between the formats that are left without a purpose are dropped.
    4. Inputs and outputs of the program keep their types, behind casts, unless they are in `new_io`.
    5. A node that cannot be float32 (unknown, of a fixed 16-bit type, or reinterpreting bits) stays, between casts.

    Args:
        formats: the element types to widen.
        new_io: names of inputs and outputs that become float32 themselves.

    Raises:
        OptionError: an input or output that must keep its type is a sequence, which cannot be cast, or a 16-bit value
            is in reach of an operator with bodies of unknown meaning.
    """

    def __init__(self, formats: Collection[ir.DataType], new_io: Collection[str] = ()) -> None:
        self._formats = frozenset(formats)
        self._new_io = frozenset(new_io)

    def call(self, model: ir.Model) -> Widened:
        if not has_values_of(model, self._formats):
            return Widened(model, modified=False)
        edit = _Edit(model, self._formats, self._new_io)
        edit.run()
        if not edit.values:
            return Widened(model, modified=False)
        dropped = CleanCasts()(model).removed
        formats = frozenset(dtype_name(dtype) for dtype in edit.found)
        told = f"{counted(len(edit.values), 'value')}, of which {counted(len(edit.constants), 'constant')}"
        casts = f"; {counted(dropped, 'cast')} of the source needed no more" if dropped else ""
        note = f"the source's {' and '.join(sorted(formats))} was made float32 first, exactly: {told}{casts}"
        return Widened(
            model,
            modified=True,
            count=len(edit.values),
            notes=(note,),
            formats=formats,
            constants=tuple(edit.constants),
            casts_dropped=dropped,
        )


class _Edit:
    """One run of the pass over a typed model."""

    def __init__(self, model: ir.Model, formats: frozenset[ir.DataType], new_io: frozenset[str]) -> None:
        self._model = model
        self._formats = formats
        self._new_io = new_io
        self._names = NameAllocator(model)
        self._uses: dict[ir.Value, list[Use]] = {}
        self._kept_nodes: dict[ir.Node, None] = {}
        self._old: dict[ir.Value, ir.DataType] = {}
        self.values: list[ir.Value] = []
        self.found: set[ir.DataType] = set()
        self.constants: list[tuple[str, ir.TensorProtocol]] = []

    def run(self) -> None:
        self._look()
        stays = self._staying()
        needs = [
            (node, index, self._old[value]) for node in self._kept_nodes for index, value in self._low_inputs(node)
        ]
        leaving = self._outputs_that_keep()
        for scope in scopes(self._model):
            for node in scope.graph:
                if node not in self._kept_nodes:
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
        return value is not None and value.dtype in self._formats

    def _look(self) -> None:
        """List the 16-bit values, the places that read them, and the nodes that cannot do without them."""
        for scope in scopes(self._model):
            graph, owner = scope.graph, scope.owner
            if owner is not None and any(map(self._is_low, (*graph.inputs, *graph.outputs))):
                _check_meaning(owner)
            for value in (*graph.inputs, *graph.initializers.values()):
                self._note(value)
            for node in graph:
                for value in node.outputs:
                    self._note(value)
                low = [value for value in (*node.inputs, *node.outputs) if self._is_low(value)]
                if low and self._must_keep(node):
                    self._kept_nodes[node] = None
            for user in (*graph, graph):
                for index, read in enumerate(user.inputs if isinstance(user, ir.Node) else user.outputs):
                    if read is not None and self._is_low(read):
                        self._uses.setdefault(read, []).append(Use(user, index))

    def _note(self, value: ir.Value) -> None:
        if value.dtype is not None and self._is_low(value):
            self._old[value] = value.dtype
            self.found.add(value.dtype)

    def _must_keep(self, node: ir.Node) -> bool:
        if has_bodies(node):
            _check_meaning(node)
            return False
        sig = node_signature(self._model, node)
        return sig is None or node.op_type == "BitCast" or not all(self._may_widen(node, sig))

    def _may_widen(self, node: ir.Node, sig: Signature) -> Iterator[bool]:
        for values, formal in ((node.inputs, sig.input), (node.outputs, sig.output)):
            for index, value in enumerate(values):
                slot = formal(index)
                if value is None or not self._is_low(value):
                    continue
                wide = type_string(_widened(value.type, self._formats))
                yield slot is not None and wide in sig.allowed.get(slot.type, (slot.type,))

    def _staying(self) -> set[ir.Value]:
        """The values that keep their 16-bit type: inputs and outputs of the program that must, and of kept nodes."""
        graph = self._model.graph
        stays = {value for node in self._kept_nodes for value in node.outputs if self._is_low(value)}
        touched = (value for node in self._kept_nodes for value in node.inputs if value is not None)
        for value in (*stays, *filter(self._is_low, touched)):
            if not isinstance(value.type, ir.TensorType):
                raise _cannot_cast("value", value)
        for value in self._old:
            outside = value.is_graph_input() and value.graph is graph
            constant = value.is_initializer() and value in graph.outputs
            if (outside or constant) and value.name not in self._new_io:
                if not isinstance(value.type, ir.TensorType):
                    raise _cannot_cast("input", value)
                stays.add(value)
        return stays

    def _low_inputs(self, node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
        return ((index, value) for index, value in enumerate(node.inputs) if value is not None and self._is_low(value))

    def _outputs_that_keep(self) -> list[tuple[int, ir.Value, ir.DataType]]:
        outputs = []
        for index, value in enumerate(self._model.graph.outputs):
            if value in self._old and value.name not in self._new_io:
                if not isinstance(value.type, ir.TensorType):
                    raise _cannot_cast("output", value)
                outputs.append((index, value, self._old[value]))
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
        elif rule is not None and attribute_dtype(node, rule) in self._formats:
            widen_attribute(node)
        name = _COMPUTES_IN.get(node.op_type)
        if name is not None and name in node.attributes and node.attributes[name].as_int() in self._formats:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))

    def _widen(self, value: ir.Value) -> None:
        """Make a value float32, with its constant if it has one."""
        self.values.append(value)
        tensor, producer = constant_of(value), value.producer()
        if tensor is None and value.is_initializer():
            tensor = value.const_value  # an input's default
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
            value.type = _widened(value.type, self._formats)

    def _widen_readers(self, value: ir.Value) -> None:
        """Keep a value as it is; all that read it, but the outputs that must keep its type, get it in float32."""
        graph = self._model.graph
        uses = [use for use in self._uses.get(value, []) if use.user is not graph or value.name in self._new_io]
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
                casts[value, dtype] = add_cast(value, dtype, low_format(dtype).short, self._names)
            node.replace_input_with(index, casts[value, dtype])

    def _narrow_output(self, index: int, value: ir.Value, dtype: ir.DataType) -> None:
        """Cast an output of the program back; the cast's result takes its name over."""
        result = add_cast(value, dtype, low_format(dtype).short, self._names)
        self._model.graph.outputs[index] = result
        rename_output(value, result, self._names, "fp32")


def _check_meaning(node: ir.Node) -> None:
    if not is_standard(node) or node.op_type not in _WITH_KNOWN_BODIES:
        raise OptionError(
            f"node '{node.name}' ({operator_name(node)}) has bodies of a meaning unknown here, so 16-bit floats that "
            "it works on cannot change; keep their format"
        )


def _cannot_cast(what: str, value: ir.Value) -> OptionError:
    return OptionError(
        f"{what} '{value.name}' is a {type_string(value.type)}, which cannot be cast: let it change its type with "
        f"--io-types {value.name}=low"
    )


def _widened(type_: ir.TypeProtocol | None, formats: Collection[ir.DataType] = LOW_DTYPES) -> ir.TypeProtocol | None:
    if isinstance(type_, ir.TensorType):
        return ir.TensorType(ir.DataType.FLOAT) if type_.dtype in formats else type_
    inner = _widened(type_.elem_type, formats) if isinstance(type_, (ir.SequenceType, ir.OptionalType)) else None
    if inner is None:
        return type_
    return ir.SequenceType(inner) if isinstance(type_, ir.SequenceType) else ir.OptionalType(inner)
