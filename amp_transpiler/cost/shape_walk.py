"""Infers shapes in numbers, node by node, where ONNX's inference of the whole model gives up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.evaluate import MOST_ELEMENTS, Array, evaluate
from amp_transpiler.graph.product_operands import stacked_shape
from amp_transpiler.graph.walk import bodies, has_bodies
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of

__all__ = ["Shape", "ShapeWalk", "Tensor"]

Shape: TypeAlias = tuple[int, ...]


class Tensor(NamedTuple):
    """The type and the sizes of a value."""

    dtype: ir.DataType
    shape: Shape


# ---- operators that ONNX does not know: the shapes of their outputs ----
Shapes: TypeAlias = "list[Shape | None]"
Rule: TypeAlias = Callable[[ir.Node, Shapes], Shapes]


def _product(node: ir.Node, shapes: Shapes, second: int = 1) -> Shapes:
    a, b = shapes[0], shapes[second]
    if not a or not b:
        return [None]
    a, b = stacked_shape(node, 0, a), stacked_shape(node, 1, b)
    rows = 1
    if len(a) > 1:
        rows = a[-1] if node.attributes.get_int("transA", 0) else a[-2]
    columns = b[-2] if node.attributes.get_int("transB", 0) and len(b) > 1 else b[-1]
    return [(*np.broadcast_shapes(a[:-2], b[:-2]), rows, columns)]


def _packed_attention(_: ir.Node, shapes: Shapes) -> Shapes:
    tokens, weight = shapes[0], shapes[1]
    return [None if not tokens or not weight else (*tokens[:-1], weight[-1] // 3)]


def _cross_attention(_: ir.Node, shapes: Shapes) -> Shapes:
    query, value = shapes[0], shapes[2] if len(shapes) > 2 else None
    if query is None or value is None or len(query) != 3:
        return [query]
    width = value[-1] if len(value) == 3 else value[1] * value[-1]
    return [(*query[:2], width)]


def _embedding(_: ir.Node, shapes: Shapes) -> Shapes:
    ids, table = shapes[0], shapes[2]
    return [None if ids is None or not table else (*ids, table[-1])]


def _recurrent(node: ir.Node, shapes: Shapes) -> Shapes:
    """Take data [steps, batch, inputs] and recurrent weights [directions, hidden, gates]."""
    data, weights = shapes[0], shapes[2]
    if not data or not weights:
        return [None]
    directions, hidden = weights[0], node.attributes.get_int("hidden_size", weights[1])
    return [(data[0], directions, data[1], hidden), *[(directions, data[1], hidden)] * 2]


def _few_bits(node: ir.Node, shapes: Shapes) -> Shapes:
    return [None if not shapes[0] else (*shapes[0][:-1], node.attributes.get_int("N", 1))]


def _grouped_attention(node: ir.Node, shapes: Shapes) -> Shapes:
    """Return the query's own part, if key and value are behind it, and the past with the new tokens."""
    query, past = shapes[0], shapes[3] if len(shapes) > 3 else None
    if not query or len(query) != 3:
        return [None] * len(node.outputs)
    heads, shared = node.attributes.get_int("num_heads", 1), node.attributes.get_int("kv_num_heads", 1)
    is_packed = len(node.inputs) < 2 or node.inputs[1] is None
    width = query[2] * heads // (heads + 2 * shared) if is_packed else query[2]
    caches = None if past is None or len(past) != 4 else (*past[:2], past[2] + query[1], past[3])
    results: Shapes = [(*query[:2], width), caches, caches]
    return results[: len(node.outputs)]


def _like_the_first(node: ir.Node, shapes: Shapes) -> Shapes:
    """Return the first shape: of operators of one input, of several spread over each other, and of unknown ones."""
    return [shapes[0] if shapes else None] * len(node.outputs)


def _joined(node: ir.Node, shapes: Shapes) -> Shapes:
    """Join parts of QLinearConcat: inputs are scale and zero point of the result, then data and both of each part."""
    parts = [shape for shape in shapes[2::3] if shape]
    if not parts:
        return [None]
    axis = node.attributes.get_int("axis", 0) % len(parts[0])
    total = sum(part[axis] for part in parts)
    return [tuple(total if index == axis else size for index, size in enumerate(parts[0]))]


def _spread(_: ir.Node, shapes: Shapes) -> Shapes:
    """Spread operands of QLinearAdd and QLinearMul, each of which has data, scale and zero point."""
    return [np.broadcast_shapes(*(shape for shape in shapes[:6:3] if shape is not None))]


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(("FusedMatMul", "TransposeMatMul", "FusedGemm", "GemmFastGelu"), _product),
        **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulInteger16"), _product),
        "Attention": _packed_attention,
        **dict.fromkeys(("MultiHeadAttention", "DecoderMaskedMultiHeadAttention"), _cross_attention),
        "EmbedLayerNormalization": _embedding,
        "DynamicQuantizeLSTM": _recurrent,
        **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _few_bits),
        "GroupQueryAttention": _grouped_attention,
        "QLinearConcat": _joined,
        **dict.fromkeys(("QLinearAdd", "QLinearMul"), _spread),
    }
)
# They compute shapes as ONNX's operator of this name does.
_SAME_AS: Mapping[str, str] = MappingProxyType(
    {"FusedConv": "Conv", "QLinearAveragePool": "AveragePool", "QLinearGlobalAveragePool": "GlobalAveragePool"}
)


class ShapeWalk:
    """Fills in the shapes of what is computed from values whose shapes are known, in the order of execution.

    Args:
        model: the model.
        found: name -> what is known; filled in.
        symbols: sizes of names in the shapes that the model declares.

    Attributes:
        added: names of the values whose shapes were found here.
        runs: body -> how often it runs, where that is known.
        rare: the smaller branch of an `If` whose condition is not known.
    """

    def __init__(self, model: ir.Model, tensors: dict[str, Tensor], symbols: Mapping[str, int]) -> None:
        self._model, self._tensors, self._symbols = model, tensors, symbols
        self._contents: dict[ir.Value, Array | None] = {}
        self._schemas: dict[tuple[str, str], onnx.defs.OpSchema | None] = {}
        self._imports = [onnx.helper.make_opsetid(*item) for item in model.graph.opset_imports.items()]
        self.runs: dict[ir.Graph, int] = {}
        self.rare: set[ir.Graph] = set()
        self.added: set[str] = set()

    def walk(self) -> None:
        """Walk the main graph and, where they run, the bodies in it."""
        self._walk(self._model.graph, 1)

    def _walk(self, graph: ir.Graph, runs: int) -> None:
        self.runs[graph] = runs
        for node in graph:
            if has_bodies(node):
                self._bodies(node, runs)
            else:
                self._node(node)

    # ---- values ----
    def _shape(self, value: ir.Value | None) -> Shape | None:
        if value is None:
            return None
        if value.const_value is not None:
            return tuple(int(size) for size in value.const_value.shape.numpy())
        if (tensor := self._tensors.get(str(value.name))) is not None:
            return tensor.shape
        if value.shape is None:
            return None
        sizes = [dim if isinstance(dim, int) else self._symbols.get(dim.value or "", -1) for dim in value.shape]
        return None if any(size < 0 for size in sizes) else tuple(sizes)

    def _dtype(self, value: ir.Value) -> ir.DataType | None:
        tensor = self._tensors.get(str(value.name))
        return value.dtype if tensor is None or value.dtype is not None else tensor.dtype

    def _content(self, value: ir.Value | None) -> Array | None:
        if value is None:
            return None
        if value not in self._contents:
            is_small = value.const_value is None or value.const_value.size <= MOST_ELEMENTS
            array = constant_array(value) if is_small else None
            self._contents[value] = array if array is not None and array.size <= MOST_ELEMENTS else None
        return self._contents[value]

    def _set(self, value: ir.Value, shape: Shape | None, dtype: ir.DataType | None = None) -> None:
        dtype = value.dtype or dtype
        if value.name and shape is not None and dtype is not None and self._shape(value) is None:
            self._tensors[value.name] = Tensor(dtype, shape)
            self.added.add(value.name)

    # ---- nodes ----
    def _node(self, node: ir.Node) -> None:
        self._know_content(node)
        if all(not value.name or self._shape(value) is not None for value in node.outputs):
            return
        if not is_standard(node) and node.op_type not in _SAME_AS:
            shapes = [self._shape(value) for value in node.inputs]
            first = next((dtype for value in node.inputs if value and (dtype := self._dtype(value))), None)
            try:
                results = _RULES.get(node.op_type, _like_the_first)(node, shapes)
            except (LookupError, ArithmeticError, ValueError):
                results = []  # the shapes contradict each other, as in `_infer`
            for value, shape in zip(node.outputs, results, strict=False):
                self._set(value, shape, first)
        else:
            self._infer(node)

    def _know_content(self, node: ir.Node) -> None:
        if node.op_type in ("Shape", "Size") and is_standard(node):
            shape = self._shape(node.inputs[0])
            if shape is None:
                return
            part = shape[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(shape))]
            content = np.asarray(part if node.op_type == "Shape" else math.prod(shape), np.int64)
        else:
            inputs = [self._content(value) for value in node.inputs]
            unknown = any(array is None and value is not None for array, value in zip(inputs, node.inputs, strict=True))
            evaluated = None if unknown or not inputs else evaluate(node, inputs)
            if evaluated is None:
                return
            content = evaluated
        self._contents[node.outputs[0]] = content
        self._set(node.outputs[0], content.shape, ir.DataType.from_numpy(content.dtype))

    def _infer(self, node: ir.Node) -> None:
        """Ask ONNX about only this node, with the numbers of its small inputs."""
        op_type = _SAME_AS.get(node.op_type, node.op_type)
        schema = self._schema("" if op_type != node.op_type else node.domain, op_type)
        if schema is None:
            self._guess(node)
            return
        types, data = {}, {}
        for value in node.inputs:
            if value is None:
                continue
            if (dtype := self._dtype(value)) is None:  # a sequence, a map: ONNX infers from types that are all there
                self._guess(node)
                return
            types[str(value.name)] = onnx.helper.make_tensor_type_proto(int(dtype), self._shape(value))
            if (content := self._content(value)) is not None and content.dtype.kind in "iufb":
                data[str(value.name)] = onnx.numpy_helper.from_array(np.array(content, order="C"), value.name)
        proto = ir.serde.serialize_node(node)
        proto.op_type, proto.domain = op_type, schema.domain
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, proto, types, data, opset_imports=self._imports, ir_version=10
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError):
            inferred = {}  # the guessed sizes do not fit here
        for value in node.outputs:
            self._take(node, value, inferred.get(str(value.name)))
        self._guess(node)

    def _take(self, node: ir.Node, value: ir.Value, proto: onnx.TypeProto | None) -> None:
        if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
            return
        most = max(self._shape(node.inputs[0]) or (1,), default=1) if node.inputs else 1
        # What depends on the numbers themselves, as in NonZero, is as large as the largest dimension that they have.
        sizes = [dim.dim_value if dim.HasField("dim_value") else most for dim in proto.tensor_type.shape.dim]
        self._set(value, tuple(sizes), ir.DataType(proto.tensor_type.elem_type))

    def _guess(self, node: ir.Node) -> None:
        """Take what nothing is known of for as large as the first input."""
        shape = self._shape(node.inputs[0]) if node.inputs else None
        for value in node.outputs:
            self._set(value, shape, None if not node.inputs or node.inputs[0] is None else self._dtype(node.inputs[0]))

    def _schema(self, domain: str, op_type: str) -> onnx.defs.OpSchema | None:
        key = ("" if domain == "ai.onnx" else domain, op_type)
        if key not in self._schemas:
            try:
                self._schemas[key] = onnx.defs.get_schema(op_type, opset_of(self._model, key[0]), key[0])
            except onnx.defs.SchemaError:  # an operator that only the runtime knows
                self._schemas[key] = None
        return self._schemas[key]

    # ---- bodies ----
    def _bodies(self, node: ir.Node, runs: int) -> None:
        graphs = [graph for _, graph in bodies(node)]
        if is_standard(node) and node.op_type == "Loop":
            self._loop(node, graphs[0], runs)
        elif is_standard(node) and node.op_type == "Scan":
            self._scan(node, graphs[0], runs)
        else:
            self._branches(node, graphs, runs)

    def _branches(self, node: ir.Node, graphs: list[ir.Graph], runs: int) -> None:
        """Give outputs the shapes of the branch that runs; of the one with more nodes where that is not known.

        That one counts as run, and the other is `rare`.
        """
        condition = self._content(node.inputs[0]) if is_standard(node) and node.op_type == "If" else None
        taken = None
        if condition is not None:
            taken = "then_branch" if condition.any() else "else_branch"
        for name, graph in bodies(node):
            self._walk(graph, runs if taken in (None, name) else 0)
        if taken is None and node.op_type == "If":
            smaller = min(graphs, key=lambda graph: sum(1 for _ in graph.all_nodes()))
            self.rare.update((smaller, *(body for inner in smaller.all_nodes() for _, body in bodies(inner))))
        for index, value in enumerate(node.outputs):
            for graph in sorted(graphs, key=lambda graph: (-self.runs[graph], graph in self.rare)):
                if index < len(graph.outputs) and graph.outputs[index] is not None:
                    self._set(value, self._shape(graph.outputs[index]), self._dtype(graph.outputs[index]))

    def _loop(self, node: ir.Node, body: ir.Graph, runs: int) -> None:
        count = self._content(node.inputs[0])
        trips = 1 if count is None or int(count.reshape(-1)[0]) > MOST_ELEMENTS else max(0, int(count.reshape(-1)[0]))
        for inner, outer in zip(body.inputs[2:], node.inputs[2:], strict=False):
            if outer is not None:
                self._set(inner, self._shape(outer), self._dtype(outer))
        self._walk(body, runs * trips)
        states = len(body.inputs) - 2
        for index, value in enumerate(node.outputs):
            result = body.outputs[1 + index]
            shape = self._shape(result)
            if shape is not None:
                self._set(value, shape if index < states else (trips, *shape), self._dtype(result))

    def _scan(self, node: ir.Node, body: ir.Graph, runs: int) -> None:
        """Walk a Scan along the first dimension; `sequence_lens`, at opset 8, is in front of the inputs."""
        first, scanned = len(node.inputs) - len(body.inputs), node.attributes.get_int("num_scan_inputs", 0)
        states, trips = len(body.inputs) - scanned, 1
        axes = node.attributes.get_ints("scan_input_axes", ()) or (0,) * scanned
        for index, inner in enumerate(body.inputs):
            outer = node.inputs[first + index]
            shape = self._shape(outer)
            if outer is None or shape is None:
                continue
            if index >= states and shape:
                axis = axes[index - states] % len(shape)
                trips, shape = shape[axis], (*shape[:axis], *shape[axis + 1 :])
            self._set(inner, shape, self._dtype(outer))
        self._walk(body, runs * trips)
        along = node.attributes.get_ints("scan_output_axes", ()) or (0,) * (len(node.outputs) - states)
        for index, value in enumerate(node.outputs):
            shape = self._shape(body.outputs[index])
            if shape is not None and index >= states:
                axis = along[index - states] % (len(shape) + 1)
                shape = (*shape[:axis], trips, *shape[axis:])
            self._set(value, shape, self._dtype(body.outputs[index]))
