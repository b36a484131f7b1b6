"""A look at a model's message where it is read, before anything is built from it.

Each fault that ONNX Runtime refuses ends in one line that names the node or tensor. What ONNX Runtime overlooks (a
broken tensor or function that nothing uses, a name that is not UTF-8, an old IR version) is mended.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, MutableSequence

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir
from google.protobuf.message import Message

from amp_transpiler.errors import ModelError, visible
from amp_transpiler.graph.proto import has_opaque_type, proto_bodies, proto_graphs
from amp_transpiler.graph.walk import scopes

__all__ = ["checked_proto", "mend_text", "settle_declared_types", "tensor_fault", "type_inputs", "value_fault"]

_DEEPEST = 32  # bodies inside of bodies; protobuf reads no file with more
_LARGEST = 2**62  # elements of a tensor
_LARGEST_SIZE = 2**27  # of a declared dimension; onnx's inference walks over each element of one that it reads as data
_LARGEST_DENSE = 2**31  # bytes of a sparse initializer written out
_HIGHEST_VERSION = 2**31 - 1  # of an operator set; onnx keeps it in 32 bits
_OLDEST_IR = 3
_TEXT = (str, type(None))
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")

_A = onnx.AttributeProto
# Type of an attribute -> the field that holds its value.
_FIELDS = {
    _A.FLOAT: "f",
    _A.INT: "i",
    _A.STRING: "s",
    _A.TENSOR: "t",
    _A.GRAPH: "g",
    _A.SPARSE_TENSOR: "sparse_tensor",
    _A.TYPE_PROTO: "tp",
    _A.FLOATS: "floats",
    _A.INTS: "ints",
    _A.STRINGS: "strings",
    _A.TENSORS: "tensors",
    _A.GRAPHS: "graphs",
    _A.SPARSE_TENSORS: "sparse_tensors",
    _A.TYPE_PROTOS: "type_protos",
}
_VALUES = frozenset(_FIELDS.values())
_GRAPHS = (_A.GRAPH, _A.GRAPHS)
_TENSORS = (_A.TENSOR, _A.TENSORS)
_SPARSE = (_A.SPARSE_TENSOR, _A.SPARSE_TENSORS)

_T = onnx.TensorProto
_BITS = {int(dtype): 0 if dtype == ir.DataType.STRING else dtype.bitwidth for dtype in ir.DataType if dtype}
# Element type -> the field of values that are not raw, and how many elements one entry holds. The others are in
# `int32_data`, one an entry or as many as fill a byte.
_ENTRIES: dict[int, tuple[str, float]] = {
    _T.FLOAT: ("float_data", 1),
    _T.COMPLEX64: ("float_data", 0.5),
    _T.DOUBLE: ("double_data", 1),
    _T.COMPLEX128: ("double_data", 0.5),
    _T.INT64: ("int64_data", 1),
    _T.UINT32: ("uint64_data", 1),
    _T.UINT64: ("uint64_data", 1),
    _T.STRING: ("string_data", 1),
}

_OTHERS = ("int32_data", 1)
_LISTS = tuple(dict.fromkeys([_OTHERS[0], *(field for field, _ in _ENTRIES.values())]))

_NO_TYPE = "which holds no data"


def checked_proto(proto: onnx.ModelProto, name: str, *, owned: bool) -> tuple[onnx.ModelProto, bool]:
    """Refuse a model that nothing can be built from, in words; mend what ONNX Runtime overlooks.

    Args:
        proto: the model.
        name: its path, for messages.
        owned: whether it may be mended in place. Otherwise a mended model is a copy.

    Returns:
        The model, and whether the nodes of every graph are in order.

    Raises:
        ModelError: ONNX Runtime would refuse it, too.
    """
    look = _Look(proto, name)
    look.model()
    if look.mends and not owned:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        return checked_proto(copy, name, owned=True)
    for mend in look.mends:
        mend()
    return proto, look.in_order


class _Look:
    """One walk over everything that a message holds."""

    def __init__(self, proto: onnx.ModelProto, name: str) -> None:
        self._proto = proto
        self._name = name
        self._known = {""}  # values of the graph at hand and of those around it; an omitted input has no name
        self._borrowed: set[str] = set()  # values of graphs around that the graph at hand reads
        self._broken: list[tuple[onnx.GraphProto, str, str]] = []  # graph, initializer, fault
        self._odd_text = False
        self._in_function = False
        self.mends: list[Callable[[], object]] = []
        self.in_order = True

    def model(self) -> None:
        """Look at the whole model, and collect what to mend."""
        proto = self._proto
        if not proto.HasField("graph") or not proto.opset_import:
            raise self._refusal("not an ONNX model: it has no graph or imports no operator set")
        if not proto.HasField("ir_version"):
            raise self._refusal("not an ONNX model: it has no IR version")
        if proto.ir_version < _OLDEST_IR:
            self.mends.append(lambda: setattr(proto, "ir_version", _OLDEST_IR))
        self._text(proto.producer_name, proto.producer_version, proto.domain, proto.doc_string)
        self._metadata(proto.metadata_props)
        self._versions(proto.opset_import, "the model")
        for value, where in self._graph(proto.graph, 1).items():
            raise self._undefined(where, value)
        self._functions()
        self._initializers()
        if self._odd_text:
            self.mends.append(lambda: mend_text(proto))

    def _refusal(self, fault: str) -> ModelError:
        return ModelError(f"{visible(self._name, 120)}: {fault}")

    def _undefined(self, where: str, value: str) -> ModelError:
        return self._refusal(f"the model is invalid: {where} reads '{visible(value, 60)}', which nothing computes")

    def _versions(self, imports: Iterable[onnx.OperatorSetIdProto], owner: str) -> None:
        for entry in imports:
            self._text(entry.domain)
            if -_HIGHEST_VERSION <= entry.version <= _HIGHEST_VERSION:
                continue
            if entry.domain in _STANDARD:
                raise self._refusal(f"{owner} imports opset {entry.version} of ai.onnx, which does not exist")
            # ONNX Runtime drops the upper bits, which makes this 0 or so; other domains have one version.
            self.mends.append(functools.partial(setattr, entry, "version", 1))

    # Graphs and nodes.

    def _graph(self, graph: onnx.GraphProto, depth: int) -> dict[str, str]:
        """Look at a graph; return the names that it reads and nothing defined before, each with its reader."""
        if depth > _DEEPEST:
            raise self._refusal(f"graph '{visible(graph.name, 60)}' lies in more than {_DEEPEST} others")
        self._text(graph.name, graph.doc_string)
        self._metadata(graph.metadata_props)
        defined = self._inputs_and_initializers(graph, depth)
        new = defined - self._known
        self._known |= new
        outside, self._borrowed = self._borrowed, set()
        late = self._nodes(graph.node, defined, new, depth)
        self._borrowed = outside | (self._borrowed - defined)
        for info in graph.output:
            if info.name not in defined:
                raise self._undefined(f"an output of graph '{visible(graph.name, 60)}'", info.name)
        for value in late.keys() & defined:
            if self._in_function:  # onnx.checker wants its nodes in order, and nothing sorts them
                raise self._undefined(late[value], value)
            del late[value]
            self.in_order = False
        self._text(*defined)
        self._known -= new
        return late

    def _inputs_and_initializers(self, graph: onnx.GraphProto, depth: int) -> set[str]:
        defined = {info.name for info in graph.input}
        if len(defined) < len(graph.input):
            raise self._refusal(f"two inputs of graph '{visible(graph.name, 60)}' have the same name")
        initializers = set()
        for tensor in graph.initializer:
            name = tensor.name
            initializers.add(name)
            if type(name) is bytes or type(tensor.doc_string) is bytes:
                self._odd_text = True
            self._superfluous(tensor)
            if fault := tensor_fault(tensor):
                self._broken.append((graph, name, fault))
        if len(initializers) < len(graph.initializer):
            self._same_names(graph, depth)
        if graph.sparse_initializer:
            initializers.update(sparse.values.name for sparse in graph.sparse_initializer)
            self.mends.append(functools.partial(self._make_dense, graph))
        return defined | initializers

    def _nodes(
        self, nodes: MutableSequence[onnx.NodeProto], defined: set[str], new: set[str], depth: int
    ) -> dict[str, str]:
        """Look at nodes, and return the names that they read before these were known, each with its reader.

        What they compute is added to `defined`, and to `new` if no graph around has a value of the same name.
        """
        known, late = self._known, dict[str, str]()
        for node in nodes:
            if not node.output and _is_idle(node):
                self.mends.append(functools.partial(_remove_node, nodes, node))
            for value in node.input[:]:  # a slice is a list, whose walk takes a fifth of the time
                if value not in known:
                    late.setdefault(value, _words(node))
                elif value not in defined:
                    self._borrowed.add(value)
            if node.attribute:
                late |= self._attributes(node, depth)
            self._outputs(node, defined, new)
            if bytes in (type(node.name), type(node.op_type), type(node.domain), type(node.doc_string)):  # type: ignore[comparison-overlap]  # protobuf hands out bytes where text is not UTF-8
                self._odd_text = True
            if node.metadata_props:
                self._metadata(node.metadata_props)
        return late

    def _outputs(self, node: onnx.NodeProto, defined: set[str], new: set[str]) -> None:
        for value in filter(None, node.output):
            if value in defined:
                raise self._refusal(f"the model is invalid: {_words(node)} computes '{value}', defined before")
            if value in self._borrowed:  # ONNX Runtime refuses it, too: which of both is meant?
                fault = f"computes '{visible(value, 60)}', of which nodes before it read the enclosing graph's"
                raise self._refusal(f"the model is invalid: {_words(node)} {fault}")
            defined.add(value)
            if value not in self._known:
                self._known.add(value)
                new.add(value)

    def _attributes(self, node: onnx.NodeProto, depth: int) -> dict[str, str]:
        """Look at the attributes of a node, and return the names that its bodies read and nothing defined before."""
        late: dict[str, str] = {}
        seen: set[str] = set()
        for attribute in node.attribute:
            self._text(attribute.name, attribute.doc_string, attribute.ref_attr_name)
            if attribute.ref_attr_name and not self._in_function:  # ONNX Runtime takes the value that is there
                self.mends.append(functools.partial(attribute.ClearField, "ref_attr_name"))
            fault = _attribute_fault(attribute, seen)
            if not fault and attribute.ref_attr_name and self._in_function and attribute.type in _GRAPHS:
                fault = "refers to a graph that the function is given, which ONNX Runtime cannot write out"
            if not fault and attribute.type in _SPARSE:
                if (node.op_type, attribute.name) != ("Constant", "sparse_value") or node.domain not in _STANDARD:
                    fault = "is a sparse tensor, which only a Constant may hold: write it out as a dense tensor"
                self.mends.append(functools.partial(self._write_out, node, attribute))
            if fault:
                raise self._refusal(f"{_words(node)}: attribute '{visible(attribute.name, 60)}' {fault}")
            if attribute.type in _GRAPHS:
                for body in (attribute.g,) if attribute.type == _A.GRAPH else attribute.graphs:
                    late |= self._graph(body, depth + 1)
            elif attribute.type in _TENSORS and not (attribute.ref_attr_name and self._in_function):
                for tensor in (attribute.t,) if attribute.type == _A.TENSOR else attribute.tensors:
                    self._superfluous(tensor)
                    if fault := tensor_fault(tensor):
                        raise self._refusal(f"{_words(node)}: tensor of attribute '{attribute.name}' {fault}")
        return late

    def _superfluous(self, tensor: onnx.TensorProto) -> None:
        """Take note of data in fields that ONNX Runtime does not look at."""
        used = "" if tensor.HasField("raw_data") else _ENTRIES.get(tensor.data_type, _OTHERS)[0]
        for field in _LISTS:
            if field != used and getattr(tensor, field):
                self.mends.append(functools.partial(tensor.ClearField, field))

    def _text(self, *texts: object) -> None:
        """Take note of strings that are not UTF-8: protobuf hands those out as bytes."""
        if bytes in map(type, texts):
            self._odd_text = True

    def _metadata(self, entries: Iterable[onnx.StringStringEntryProto]) -> None:
        for entry in entries:
            self._text(entry.key, entry.value)

    # Initializers.

    def _same_names(self, graph: onnx.GraphProto, depth: int) -> None:
        """Refuse initializers with one name; of those with one form too, ONNX Runtime and `onnx_ir` take the last."""
        last: dict[str, onnx.TensorProto] = {}
        for tensor in reversed(graph.initializer):
            last_tensor = last.setdefault(tensor.name, tensor)
            if last_tensor is tensor:
                continue
            if depth > 1 or tensor.data_type != last_tensor.data_type or list(tensor.dims) != list(last_tensor.dims):
                raise self._refusal(f"two initializers of graph '{visible(graph.name, 60)}' are named '{tensor.name}'")

    def _initializers(self) -> None:
        """Refuse broken initializers that something reads; drop the others."""
        read = _read_names(self._proto.graph) if self._broken else set()
        for graph, name, fault in self._broken:
            if name in read or fault.endswith(_NO_TYPE):
                raise self._refusal(f"initializer '{visible(name, 60)}' {fault}")
            self.mends.append(functools.partial(_drop, graph, name))

    def _make_dense(self, graph: onnx.GraphProto) -> None:
        for sparse in graph.sparse_initializer:
            name = visible(sparse.values.name, 60)
            if fault := _write_dense(sparse, graph.initializer.add()):
                raise self._refusal(f"sparse initializer '{name}' {fault}")
        graph.ClearField("sparse_initializer")

    def _write_out(self, node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
        """Make a constant that is written as a sparse tensor a dense one: `onnx_ir` reads no other."""
        dense = onnx.TensorProto()
        if fault := _write_dense(attribute.sparse_tensor, dense):
            raise self._refusal(f"{_words(node)}: the sparse tensor of attribute '{attribute.name}' {fault}")
        attribute.CopyFrom(onnx.helper.make_attribute("value", dense))

    # Functions.

    def _functions(self) -> None:
        """Refuse broken functions that are called; drop the others."""
        functions = {(f.domain, f.name, f.overload): f for f in self._proto.functions}
        if len(functions) < len(self._proto.functions):
            twice = next(f for f in self._proto.functions if functions[f.domain, f.name, f.overload] is not f)
            name = visible(f"{twice.domain}::{twice.name}", 80)
            raise self._refusal(f"two model-local functions have the same name, '{name}'")
        called: set[tuple[str, str, str]] | None = None
        self._in_function = True
        for key, function in functions.items():
            try:
                self._function(function)
            except ModelError:
                called = called or _called(self._proto.graph.node, functions)
                if key in called:
                    raise
                self.mends.append(functools.partial(self._proto.functions.remove, function))

    def _function(self, function: onnx.FunctionProto) -> None:
        where = f"function '{visible(f'{function.domain}::{function.name}', 80)}'"
        self._text(function.name, function.domain, function.overload, function.doc_string)
        self._metadata(function.metadata_props)
        self._versions(function.opset_import, where)
        self._known = {"", *function.input}
        defined = set(function.input)
        for value, reader in self._nodes(function.node, defined, set(), 1).items():
            raise self._undefined(f"{where}: {reader}", value)
        self._text(*defined)
        for value in function.output:
            if value not in defined:
                raise self._undefined(f"an output of {where}", value)
        for attribute in function.attribute_proto:
            if fault := _attribute_fault(attribute, set()):
                raise self._refusal(f"{where}: default of attribute '{visible(attribute.name, 60)}' {fault}")


def _is_idle(node: onnx.NodeProto) -> bool:
    """Whether a node without outputs does nothing: no body, and no operator of others, which may print or store."""
    return node.domain in _STANDARD and not any(attribute.type in _GRAPHS for attribute in node.attribute)


def _words(node: onnx.NodeProto) -> str:
    return f"{visible(str(node.op_type), 60)} '{visible(str(node.name or next(iter(node.output), '')), 60)}'"


def _read_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that nodes and outputs read, in a graph and all of its bodies."""
    names: set[str] = set()
    for scope in proto_graphs(graph):
        names.update(info.name for info in scope.output)
        for node in scope.node:
            names.update(node.input)
    return names


def _called(
    nodes: Iterable[onnx.NodeProto], functions: Mapping[tuple[str, str, str], onnx.FunctionProto]
) -> set[tuple[str, str, str]]:
    """Return the functions that nodes call, themselves or through other functions."""
    called: set[tuple[str, str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        key = (node.domain, node.op_type, node.overload)
        if key in functions and key not in called:
            called.add(key)
            pending.extend(functions[key].node)
        for body in proto_bodies(node):
            pending.extend(body.node)
    return called


def _attribute_fault(attribute: onnx.AttributeProto, seen: set[str]) -> str:
    """Return the fault of an attribute, given the names of its node's attributes before it; empty if there is none."""
    name, kind = attribute.name, attribute.type
    if not name:
        return "has no name"
    if name in seen:
        return "is there twice"
    seen.add(name)
    wanted = _FIELDS.get(kind)
    if wanted is None:
        return "has no type" if kind == _A.UNDEFINED else f"has the unknown type {kind}"
    for field, _ in attribute.ListFields():
        if field.name in _VALUES and field.name != wanted:
            return f"has type {_A.AttributeType.Name(kind)}, but its value is in field '{field.name}'"
    if kind == _A.GRAPH and not attribute.HasField("g") and not attribute.ref_attr_name:
        return "has no graph"
    return ""


def value_fault(proto: onnx.ModelProto) -> str:
    """Return the fault of the first declared type that cannot be read, with its value; empty if there is none."""
    for graph in proto_graphs(proto.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            if fault := _type_fault(info.type):
                return f"the type of '{visible(str(info.name), 60)}' {fault}"
    return ""


def _type_fault(declared: onnx.TypeProto) -> str:
    kind = declared.WhichOneof("value")
    if kind in {"tensor_type", "sparse_tensor_type"}:
        element = getattr(declared, kind).elem_type
        return "" if element in _BITS or not element else f"has the unknown element type {element}"
    if kind in {"sequence_type", "optional_type"}:
        inner = getattr(declared, kind).elem_type
        return _type_fault(inner) if inner.WhichOneof("value") else f"is a {kind[:-5]} of nothing"
    return ""


def tensor_fault(tensor: onnx.TensorProto) -> str:
    """Return what is wrong with a tensor: its element type, dimensions, or amount of data; empty if nothing is."""
    kind = tensor.data_type
    bits = _BITS.get(kind)
    if bits is None:
        return f"has the element type {'UNDEFINED' if kind == _T.UNDEFINED else kind}, {_NO_TYPE}"
    dims = tensor.dims[:]
    count = math.prod(dims)
    if count > _LARGEST or (dims and min(dims) < 0):
        return f"has dimensions {visible(str(dims), 80)}: expected numbers from 0, {_LARGEST} elements at most"
    if tensor.data_location == _T.EXTERNAL:
        return "holds strings in external data" if kind == _T.STRING else _place_fault(tensor)
    if kind != _T.STRING and tensor.HasField("raw_data"):
        actual, wanted, what = len(tensor.raw_data), (count * bits + 7) // 8, "bytes of data"
    else:
        field, share = _ENTRIES.get(kind, ("int32_data", max(1, 8 // bits if bits else 1)))
        actual, wanted, what = len(getattr(tensor, field)), math.ceil(count / share), f"entries of {field}"
        if not count:  # ONNX Runtime does not look at them either
            return ""
    if actual == wanted:
        return ""
    return f"has {actual} {what}, {ir.DataType(kind).name} of shape {visible(str(dims), 60)} needs {wanted}"


def _place_fault(tensor: onnx.TensorProto) -> str:
    for entry in tensor.external_data:
        if entry.key in {"offset", "length"} and not entry.value.strip().isdecimal():
            return f"has external data with {entry.key} '{visible(entry.value, 60)}', which is no size"
    return ""


# ---- mending ----


def _drop(graph: onnx.GraphProto, name: str) -> None:
    for index in range(len(graph.initializer) - 1, -1, -1):
        if graph.initializer[index].name == name:
            del graph.initializer[index]


def _remove_node(nodes: MutableSequence[onnx.NodeProto], node: onnx.NodeProto) -> None:
    del nodes[next(index for index, other in enumerate(nodes) if other is node)]


def _write_dense(sparse: onnx.SparseTensorProto, dense_tensor: onnx.TensorProto) -> str:
    """Write a sparse tensor out as a dense one; return its fault instead if it has one."""
    if fault := tensor_fault(sparse.values) or tensor_fault(sparse.indices):
        return fault
    if sparse.values.data_type == _T.STRING:
        return "holds texts, which ONNX Runtime reads only from dense tensors"
    dims = list(sparse.dims)
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    if not dims or min(dims) < 0 or math.prod(dims) * values.dtype.itemsize > _LARGEST_DENSE:
        return f"has dimensions {visible(str(dims), 80)}: at most {_LARGEST_DENSE} bytes are written out"
    if values.ndim != 1 or indices.shape not in ((len(values),), (len(values), len(dims))):
        return f"has {list(values.shape)} values, but {list(indices.shape)} indices"
    sizes = [math.prod(dims)] if indices.ndim == 1 else dims
    if indices.size and (indices.min() < 0 or (indices.reshape(len(values), -1) >= sizes).any()):
        return f"has an index outside of its shape {dims}"
    dense = np.zeros(dims, values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    dense_tensor.name, dense_tensor.data_type = sparse.values.name, sparse.values.data_type
    dense_tensor.dims.extend(dims)
    dense_tensor.raw_data = ir.Tensor(
        dense, dtype=ir.DataType(sparse.values.data_type)
    ).tobytes()  # packs 4-bit numbers
    return ""


def mend_text(message: Message) -> bool:
    """Replace bytes that are not UTF-8 by escapes, in every string of a message; return whether there were any."""
    mended = False
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in (value,) if not field.is_repeated else value:
                mended |= mend_text(inner)
        elif field.type == field.TYPE_STRING and not field.is_repeated:
            if isinstance(value, bytes):
                setattr(message, field.name, value.decode(errors="backslashreplace"))
                mended = True
        elif field.type == field.TYPE_STRING and any(isinstance(text, bytes) for text in value):
            texts = [text.decode(errors="backslashreplace") if isinstance(text, bytes) else text for text in value]
            del value[:]
            value.extend(texts)
            mended = True
    return mended


def settle_declared_types(model: ir.Model) -> None:
    """Make negative and absurd dimensions of declared shapes unknown, and drop declared types that say nothing."""
    for graph in (
        *(scope.graph for scope in scopes(model)),
        *(function.graph for function in model.functions.values()),
    ):
        for value in (*graph.inputs, *graph.outputs):
            _settle(value)
        for node in graph:
            for value in node.outputs:
                if value.type is not None or value.shape is not None:
                    _settle(value)


def type_inputs(model: ir.Model, name: str, input_types: Mapping[str, ir.DataType]) -> None:
    """Give inputs of a model that declare no type the given one, or that of their default.

    Raises:
        ModelError: an input has no type.
    """
    for value in model.graph.inputs:
        if value.type is None and (dtype := input_types.get(str(value.name))) is not None:
            value.type = ir.TensorType(dtype)
        if value.type is None and value.const_value is not None:  # the default of an input says it all
            value.type = ir.TensorType(value.const_value.dtype)
        if value.type is None and not has_opaque_type(value):
            shown = visible(str(value.name), 60)
            raise ModelError(
                f"{visible(name, 120)}: input '{shown}' has no type: give it one, as in "
                f"amp.load(model, input_types={{'{shown}': 'float32'}}) or convert_model's input_dtypes"
            )


def _settle(value: ir.Value) -> None:
    if type(value.doc_string) not in _TEXT:  # bytes: not UTF-8
        value.doc_string = None
    shape = value.shape
    if shape is not None and any(type(size) is int and not 0 <= size < _LARGEST_SIZE for size in shape.dims):
        known = range(_LARGEST_SIZE)
        value.shape = ir.Shape([None if isinstance(size, int) and size not in known else size for size in shape.dims])
    if value.type is not None and value.dtype == ir.DataType.UNDEFINED:
        value.type = None
