"""Looks up the shape and type of every value by name, with sizes for what a model leaves open."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping

import onnx
import onnx_ir as ir

from amp_transpiler.cost.shape_walk import Shape, ShapeWalk, Tensor
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.input_roles import ModelInput
from amp_transpiler.graph.input_sizes import guesses, shapes
from amp_transpiler.graph.proto import proto_graphs, to_proto_without_weights
from amp_transpiler.graph.walk import all_nodes, has_bodies

__all__ = ["Sizes", "open_dims", "sizes_of"]

logger = logging.getLogger(__name__)
UNNAMED = 1  # the size of a dimension that has neither a size nor a name with one


class Sizes:
    """Says how many elements and bytes each value of a model has.

    Attributes:
        is_open: whether inputs of the model may have other sizes in another run.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        dims: Mapping[str, int],
        runs: Mapping[ir.Graph, int] | None = None,
        rare: Collection[ir.Graph] = (),
        added: Collection[str] = (),
        low: ir.DataType | None = None,
        *,
        is_open: bool = True,
    ) -> None:
        self.is_open = is_open
        self._tensors, self._dims, self._low = tensors, dims, low
        self._runs, self._rare, self._added = runs or {}, rare, added
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._bytes: dict[ir.Value, int] = {}

    def lowered(self, low: ir.DataType) -> Sizes:
        """Return the sizes with every float32 value in a low format."""
        lowered = Sizes(self._tensors, self._dims, self._runs, self._rare, self._added, low, is_open=self.is_open)
        lowered._shapes = self._shapes
        return lowered

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the type of a value's elements, or None where it is not known."""
        if value is None:
            return None
        inferred = self._tensors.get(str(value.name))
        dtype = value.dtype if inferred is None or value.dtype is not None else inferred.dtype
        return self._low if self._low is not None and dtype == ir.DataType.FLOAT else dtype

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the sizes of a value, or None where its rank is not known."""
        if value is None:
            return None
        if value not in self._shapes:
            self._shapes[value] = self._shape(value)
        return self._shapes[value]

    def _shape(self, value: ir.Value) -> Shape | None:
        if value.const_value is not None:
            return tuple(int(size) for size in value.const_value.shape.numpy())
        if str(value.name) in self._tensors:
            return self._tensors[str(value.name)].shape
        if value.shape is None:
            return None
        return tuple(
            size if isinstance(size, int) else self._dims.get(size.value or "", UNNAMED) for size in value.shape
        )

    def is_inferred(self, value: ir.Value | None) -> bool:
        """Whether the model declares the shape of a value, or ONNX infers it, so that ONNX Runtime knows it."""
        return value is not None and (value.shape is not None or str(value.name) not in self._added)

    def elements(self, value: ir.Value | None) -> int:
        """Return how many elements a value has; 0 where that is not known."""
        shape = self.shape(value)
        return 0 if shape is None else math.prod(shape)

    def bytes(self, value: ir.Value | None) -> int:
        """Return the bytes of a value; 0 where they are not known."""
        if value is None:
            return 0
        if value not in self._bytes:
            self._bytes[value] = self._count_bytes(value)
        return self._bytes[value]

    def _count_bytes(self, value: ir.Value) -> int:
        dtype = self.dtype(value)
        if dtype is None or dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
            return 0
        return -(-self.elements(value) * dtype.bitwidth // 8)

    def runs(self, graph: ir.Graph | None) -> int:
        """Return how often a run of the model runs a body, as far as that follows from sizes; else 1."""
        return 1 if graph is None else self._runs.get(graph, 1)

    def is_rare(self, graph: ir.Graph | None) -> bool:
        """Whether a graph is, or is in, the smaller branch of an `If` of which it is not known which branch runs."""
        return graph in self._rare


def open_dims(model: ir.Model) -> dict[str, int]:
    """Return the names of the open dimensions of a model's inputs, with the sizes that count unless others are given.

    A first dimension without a name is 1, as is one that is named after a batch; others have the size that made-up
    inputs have first: see `graph.input_sizes`.
    """
    return _symbols(model, {})[0]


def sizes_of(model: ir.Model, dims: Mapping[str, int] | None = None) -> Sizes:
    """Return the sizes of all values of a model.

    Shapes that the model's values have are taken. What is missing is inferred by ONNX, and where ONNX gives up, in
    shapes that are computed or operators that it does not know, node by node with numbers.

    Args:
        model: a model.
        dims: name of an open dimension of the inputs -> its size; see `open_dims` for the others.

    Raises:
        OptionError: an open dimension has another name.
    """
    symbols, inputs = _symbols(model, dims or {})
    nodes = list(all_nodes(model))
    if all(_is_known(value, symbols) for node in nodes for value in node.outputs) and not any(map(has_bodies, nodes)):
        return Sizes(inputs, symbols, is_open=bool(inputs))
    tensors = {**_inferred(model, symbols, inputs), **inputs}
    walk = ShapeWalk(model, tensors, symbols)
    walk.walk()
    return Sizes(tensors, symbols, walk.runs, walk.rare, walk.added, is_open=bool(inputs))


def _symbols(model: ir.Model, dims: Mapping[str, int]) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Return the size of every name among the dimensions of the inputs, and the inputs that have an open dimension."""
    opened = [value for value in model.graph.inputs if _is_open(value)]
    inputs = [ModelInput.of(value) for value in opened]
    symbols = dict(dims)
    sizes = shapes(inputs, next(guesses(inputs)), symbols) if inputs else {}
    names = {name for info in inputs for dim in info.dims or () if isinstance(dim, str) for name in _parts(dim)}
    if unknown := sorted(set(dims) - names):
        available = ", ".join(sorted(names)) or "none"
        raise OptionError(f"no input has an open dimension '{unknown[0]}'; open dimensions with a name: {available}")
    open_inputs = {str(value.name): Tensor(value.dtype, sizes[str(value.name)]) for value in opened if value.dtype}
    return symbols, open_inputs


def _parts(dim: str) -> Iterable[str]:
    return (dim, *(part.strip() for part in dim.split("+")))


def _is_open(value: ir.Value) -> bool:
    if value.is_initializer() or not isinstance(value.type, ir.TensorType):
        return False
    return value.shape is None or not all(isinstance(size, int) and size >= 0 for size in value.shape)


def _inferred(model: ir.Model, symbols: Mapping[str, int], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what ONNX infers."""
    proto = _concrete(to_proto_without_weights(model), symbols, inputs)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.info("shapes could not be inferred: %s", " ".join(str(error).split())[:300])
        return {}
    tensors = {}
    for graph in proto_graphs(inferred.graph):
        for info in (*graph.input, *graph.value_info, *graph.output):
            shape = _sizes(info)
            if shape is not None:
                tensors[info.name] = Tensor(ir.DataType(info.type.tensor_type.elem_type), shape)
    return tensors


def _concrete(proto: onnx.ModelProto, symbols: Mapping[str, int], inputs: Mapping[str, Tensor]) -> onnx.ModelProto:
    """Put sizes in the place of names, and drop the shapes that stay open, in a message; return it."""
    for info in proto.graph.input:
        if info.name in inputs:
            info.CopyFrom(_info(info.name, inputs[info.name]))
    for graph in proto_graphs(proto.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            _fix(info, symbols)
        for node in graph.node:
            if node.op_type == "STFT" and all(attribute.name != "onesided" for attribute in node.attribute):
                node.attribute.append(onnx.helper.make_attribute("onesided", 1))  # ONNX infers as if it were 0
    typed = [info for info in proto.graph.value_info if _sizes(info) is not None]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(typed)  # operators that ONNX does not know may be between
    for info in proto.graph.output:
        if _sizes(info) is None:
            info.type.tensor_type.ClearField("shape")
    return proto


def _info(name: str, tensor: Tensor) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, int(tensor.dtype), tensor.shape)


def _sizes(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)


def _is_known(value: ir.Value, symbols: Mapping[str, int]) -> bool:
    if not value.name or value.const_value is not None:
        return True
    return (
        value.dtype is not None
        and value.shape is not None
        and all(size >= 0 if isinstance(size, int) else size.value in symbols for size in value.shape)
    )


def _fix(info: onnx.ValueInfoProto, symbols: Mapping[str, int]) -> None:
    """Give the open dimensions of a tensor their sizes."""
    for dim in info.type.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value < 0:
            dim.Clear()
        elif not dim.HasField("dim_value") and dim.dim_param in symbols:
            dim.dim_value = symbols[dim.dim_param]
