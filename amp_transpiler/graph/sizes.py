"""Sizes of tensors as numbers and symbols, by dataflow: which dimensions of two values are surely the same.

ONNX's shape inference gives up where a size is computed by more than a few operators, as exporters write them. Here
every dimension has a value: a number, a name that the model gives, or a symbol of its own. Two dimensions with the same
value are the same in every run. An open size that meets a named one in an element-wise operator is taken for it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array, constant_of
from amp_transpiler.graph.evaluate import MOVES, evaluate
from amp_transpiler.graph.product_operands import stacked_shape
from amp_transpiler.ops.names import is_standard

__all__ = ["Dim", "Sizes"]

_log = logging.getLogger(__name__)

Dim = int | str
Dims = tuple[Dim, ...]
Shapes = Sequence[Dims | None]

_CONTRIB = "com.microsoft"
_SMALL = 64  # elements of a constant that takes part in a computation of sizes
_MOST = 1 << 62  # ends of slices at or above stand for "to the end"
# What a rule raises where the shapes of a node contradict each other, as a transposition of three axes that names four.
# Nothing is refused here: such sizes count as unknown, and whoever runs or infers the model names the node.
_CONTRADICTIONS = (LookupError, ArithmeticError, ValueError, RuntimeError)


class Sizes:
    """The sizes of the values of a graph, worked out when it is made.

    Args:
        graph: the graph; its bodies are not looked into.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._shapes: dict[ir.Value, Dims | None] = {}
        self._contents: dict[ir.Value, Dims] = {}
        self._fresh = itertools.count()
        self._sums: dict[tuple[str, ...], str] = {}
        for value in (*graph.inputs, *graph.initializers.values()):
            self._shapes[value] = self._declared(value)
        for node in graph:
            self._work_out(node)

    def shape(self, value: ir.Value | None) -> Dims | None:
        """Return the dimensions of a value; None if not even their number is known."""
        if value is None:
            return None
        if value not in self._shapes:  # a value of an enclosing graph
            self._shapes[value] = self._declared(value)
        return self._shapes[value]

    def copy(self, new: ir.Value, old: ir.Value) -> None:
        """Let a value that a pass has made have the sizes of another."""
        self._shapes[new] = self.shape(old)

    def content(self, value: ir.Value | None) -> Dims | None:
        """Return the elements of a value that holds sizes; None if it does not, or they are not known."""
        if value is None:
            return None
        if value not in self._contents:
            tensor = constant_of(value)
            if tensor is not None and tensor.size > _SMALL:
                return None  # weights are not read
            array = constant_array(value)
            if array is None or array.dtype.kind not in "iu" or array.size > _SMALL or array.ndim > 1:
                return None
            self._contents[value] = tuple(int(size) for size in array.reshape(-1))
        return self._contents[value]

    def _symbol(self) -> str:
        return f"?{next(self._fresh)}"

    def _declared(self, value: ir.Value) -> Dims | None:
        if value.shape is None:
            return None
        return tuple(
            dim if isinstance(dim, int) and dim >= 0 else str(getattr(dim, "value", None) or self._symbol())
            for dim in value.shape
        )

    def _work_out(self, node: ir.Node) -> None:
        shapes: Shapes = []
        rules = None
        if is_standard(node):
            rules = _SHAPES
        elif node.domain == _CONTRIB:
            rules = _SHAPES_OF_CONTRIB
        if rules is not None:
            try:
                content = _content(self, node) if rules is _SHAPES else None
                if content is not None:
                    self._contents[node.outputs[0]] = content
                if (rule := rules.get(node.op_type)) is not None:
                    shapes = rule(self, node)
            except _CONTRADICTIONS as contradiction:
                _log.debug("sizes of %s '%s' are unknown: %s", node.op_type, node.name, contradiction)
        for index, value in enumerate(node.outputs):
            computed = shapes[index] if index < len(shapes) else None
            self._shapes[value] = self._merged(computed, self._declared(value))

    def _merged(self, computed: Dims | None, declared: Dims | None) -> Dims | None:
        """Prefer numbers, then names, then what was worked out."""
        if computed is None or declared is None or len(computed) != len(declared):
            return computed if declared is None else declared
        return tuple(_stronger(a, b) for a, b in zip(computed, declared, strict=True))

    def broadcast(self, shapes: Sequence[Dims | None]) -> Dims | None:
        """Return the shape of an element-wise operator's result."""
        if any(shape is None for shape in shapes):
            return None
        known = [shape for shape in shapes if shape is not None]
        rank = max(len(shape) for shape in known)
        columns = zip(*((1,) * (rank - len(shape)) + shape for shape in known), strict=True)
        return tuple(self.joined(column) for column in columns)

    def joined(self, column: Sequence[Dim]) -> Dim:
        """Return the size of an axis in which some sizes meet."""
        others = [dim for dim in column if dim != 1]
        if not others:
            return 1
        best = others[0]
        for dim in others[1:]:
            best = _stronger(best, dim)
        return best

    def sum_of(self, dims: Sequence[Dim]) -> Dim:
        """Return the symbol of a sum, the same wherever the same sizes are added."""
        return self._sums.setdefault(tuple(sorted(map(str, dims))), self._symbol())

    def fresh(self, count: int) -> Dims:
        """Return symbols of their own."""
        return tuple(self._symbol() for _ in range(count))


def _stronger(a: Dim, b: Dim) -> Dim:
    """Choose between two statements about the same dimension."""
    return b if _rank_of(b) < _rank_of(a) else a


def _rank_of(dim: Dim) -> int:
    if isinstance(dim, int):
        return 0
    return 2 if dim.startswith("?") else 1


# ---- contents: vectors and scalars of sizes ----


def _content(sizes: Sizes, node: ir.Node) -> Dims | None:
    rule = _CONTENTS.get(node.op_type)
    return None if rule is None else rule(sizes, node)


def _shape_content(sizes: Sizes, node: ir.Node) -> Dims | None:
    shape = sizes.shape(node.inputs[0])
    if shape is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", len(shape))
    return shape[start:end]


def _same_content(sizes: Sizes, node: ir.Node) -> Dims | None:
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) not in (ir.DataType.INT64, ir.DataType.INT32):
        return None
    return sizes.content(node.inputs[0])


def _aligned(parts: Sequence[Dims | None]) -> list[tuple[Dim, ...]] | None:
    """Return what meets in an element-wise operator on vectors, of which some may have one element."""
    known = [part for part in parts if part is not None]
    length = max((len(part) for part in known), default=0)
    if len(known) < len(parts) or any(len(part) not in (1, length) for part in known):
        return None
    return list(zip(*(part * length if len(part) == 1 else part for part in known), strict=True))


def _computed_content(sizes: Sizes, node: ir.Node) -> Dims | None:
    """Of numbers whatever numpy computes; symbols may only be moved, or multiplied to symbols of their own."""
    contents = [sizes.content(value) for value in node.inputs]
    if any(content is None and value is not None for content, value in zip(contents, node.inputs, strict=True)):
        return None
    arrays = [None if content is None else _array_of(content) for content in contents]
    has_symbols = any(array is not None and array.dtype == object for array in arrays)
    if has_symbols and node.op_type not in MOVES:
        pairs = _aligned(contents) if node.op_type == "Mul" else None
        is_size = pairs is not None and all(isinstance(dim, str) or dim >= 0 for pair in pairs for dim in pair)
        return sizes.fresh(len(pairs)) if is_size and pairs is not None else None
    result = evaluate(node, arrays, most=_SMALL)
    return None if result is None or result.ndim > 1 else tuple(result.reshape(-1).tolist())


def _array_of(content: Dims) -> np.ndarray:
    return np.array(content, np.int64 if all(isinstance(dim, int) for dim in content) else object)


def _equal_content(sizes: Sizes, node: ir.Node) -> Dims | None:
    """Return 1 for equal sizes; the size of a tensor is never one of the negative numbers that mark it."""
    pairs = _aligned([sizes.content(value) for value in node.inputs])
    if pairs is None or not all(a == b or _differ(a, b) for a, b in pairs):
        return None
    return tuple(int(a == b) for a, b in pairs)


def _differ(a: Dim, b: Dim) -> bool:
    numbers = [dim for dim in (a, b) if isinstance(dim, int)]
    return len(numbers) == 2 or (len(numbers) == 1 and numbers[0] < 0)


def _chosen_content(sizes: Sizes, node: ir.Node) -> Dims | None:
    rows = _aligned([sizes.content(value) for value in node.inputs])
    if rows is None or not all(row[0] in (0, 1) for row in rows):
        return None
    return tuple(yes if condition else no for condition, yes, no in rows)


def _filled_content(sizes: Sizes, node: ir.Node) -> Dims | None:
    shape, attribute = sizes.content(node.inputs[0]), node.attributes.get("value")
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > _SMALL or attribute is None:
        return None
    array = attribute.as_tensor().numpy()
    return (int(array.reshape(())),) * shape[0] if array.dtype.kind in "iu" and array.size == 1 else None


_CONTENTS: Mapping[str, Callable[[Sizes, ir.Node], Dims | None]] = {
    "Shape": _shape_content,
    **dict.fromkeys(("Gather", "Slice", "Concat", "Add", "Sub", "Mul", "Div", "Mod"), _computed_content),
    "Cast": _same_content,
    "Identity": _same_content,
    "Reshape": _same_content,
    "Squeeze": _same_content,
    "Unsqueeze": _same_content,
    "Equal": _equal_content,
    "Where": _chosen_content,
    "ConstantOfShape": _filled_content,
}

# ---- shapes ----


def _elementwise(sizes: Sizes, node: ir.Node) -> Shapes:
    return [sizes.broadcast([sizes.shape(value) for value in node.inputs if value is not None])]


def _same(sizes: Sizes, node: ir.Node) -> Shapes:
    return [sizes.shape(node.inputs[0])]


def _matmul(sizes: Sizes, node: ir.Node) -> Shapes:
    a, b = sizes.shape(node.inputs[0]), sizes.shape(node.inputs[1])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return [None]
    a, b = stacked_shape(node, 0, a), stacked_shape(node, 1, b)
    batch = sizes.broadcast([a[:-2], b[:-2]])
    rows = a[-1] if node.attributes.get_int("transA", 0) else a[-2]
    columns = b[-2] if node.attributes.get_int("transB", 0) else b[-1]
    return [None if batch is None else (*batch, rows, columns)]


def _gemm(sizes: Sizes, node: ir.Node) -> Shapes:
    a, b = sizes.shape(node.inputs[0]), sizes.shape(node.inputs[1])
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return [None]
    turned_a, turned_b = node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0)
    return [(a[1] if turned_a else a[0], b[0] if turned_b else b[1])]


def _attention(sizes: Sizes, node: ir.Node) -> Shapes:
    query, value = sizes.shape(node.inputs[0]), sizes.shape(node.inputs[2])
    if query is None or value is None:
        return [None]
    if len(query) == 4:
        return [(*query[:3], value[-1])]
    heads, shared = (node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
    width = value[-1] * heads // shared if isinstance(value[-1], int) and heads and shared else None
    return [None if width is None or len(query) != 3 else (*query[:2], width)]


def _packed_attention(sizes: Sizes, node: ir.Node) -> Shapes:
    source, bias = sizes.shape(node.inputs[0]), sizes.shape(node.inputs[2])
    width: Dim | None = next(reversed(node.attributes.get_ints("qkv_hidden_sizes", ())), None)
    if width is None and bias is not None and isinstance(bias[0], int):
        width = bias[0] // 3
    return [None if source is None or width is None or len(source) != 3 else (*source[:2], width)]


def _cross_attention(sizes: Sizes, node: ir.Node) -> Shapes:
    query, value = sizes.shape(node.inputs[0]), sizes.shape(node.inputs[2] if len(node.inputs) > 2 else None)
    if query is None or value is None or len(query) != 3:
        return [None]
    if len(value) == 3:
        return [(*query[:2], value[-1])]
    heads, size = value[1], value[-1]
    return [(*query[:2], heads * size if isinstance(heads, int) and isinstance(size, int) else sizes.fresh(1)[0])]


def _norm_of_sum(sizes: Sizes, node: ir.Node) -> Shapes:
    return [sizes.shape(node.inputs[0]), None, None, sizes.shape(node.inputs[0])]


def _conv(sizes: Sizes, node: ir.Node) -> Shapes:
    data, kernel = sizes.shape(node.inputs[0]), sizes.shape(node.inputs[1])
    if data is None or kernel is None:
        return [None]
    return [(data[0], kernel[0], *sizes.fresh(len(data) - 2))]


def _transpose(sizes: Sizes, node: ir.Node) -> Shapes:
    shape = sizes.shape(node.inputs[0])
    if shape is None:
        return [None]
    order = node.attributes.get_ints("perm", tuple(reversed(range(len(shape)))))
    return [tuple(shape[axis] for axis in order)]


def _reshape(sizes: Sizes, node: ir.Node) -> Shapes:
    old, wanted = sizes.shape(node.inputs[0]), sizes.content(node.inputs[1])
    if wanted is None:
        count = sizes.shape(node.inputs[1])
        known = count is not None and len(count) == 1 and isinstance(count[0], int)
        return [sizes.fresh(int(count[0])) if known and count is not None else None]
    copies = not node.attributes.get_int("allowzero", 0)
    new: list[Dim] = []
    for index, dim in enumerate(wanted):
        is_copy = dim == 0 and copies and old is not None and index < len(old)
        new.append(old[index] if is_copy and old is not None else dim)
    if -1 in new:
        new[new.index(-1)] = _the_rest(old, [dim for dim in new if dim != -1]) or sizes.fresh(1)[0]
    return [tuple(new)]


def _the_rest(old: Dims | None, others: list[Dim]) -> Dim | None:
    """Return the dimension that is left of `old` without `others`; None if that is not one number or name."""
    if old is None:
        return None
    left = list(old)
    for dim in [dim for dim in others if isinstance(dim, str)]:
        if dim not in left:
            return None
        left.remove(dim)
    names = [dim for dim in left if isinstance(dim, str)]
    have = int(np.prod([dim for dim in left if isinstance(dim, int)], dtype=np.int64))
    taken = int(np.prod([dim for dim in others if isinstance(dim, int)], dtype=np.int64))
    if taken == 0 or have % taken:
        return None
    if not names:
        return have // taken
    return names[0] if len(names) == 1 and have == taken else None


def _expand(sizes: Sizes, node: ir.Node) -> Shapes:
    old, wanted = sizes.shape(node.inputs[0]), sizes.content(node.inputs[1])
    if old is None and wanted is not None:
        return [tuple(sizes.fresh(1)[0] if dim == 1 else dim for dim in wanted)]
    return [sizes.broadcast([old, wanted])]


def _range(sizes: Sizes, node: ir.Node) -> Shapes:
    start, limit, delta = (sizes.content(value) for value in node.inputs)
    return [limit if start == (0,) and delta == (1,) and limit is not None else sizes.fresh(1)]


def _flatten(sizes: Sizes, node: ir.Node) -> Shapes:
    shape = sizes.shape(node.inputs[0])
    axis = node.attributes.get_int("axis", 1)
    if shape is None:
        return [sizes.fresh(2)]
    axis = axis % len(shape) if axis < 0 else axis
    return [(_count(sizes, shape[:axis]), _count(sizes, shape[axis:]))]


def _count(sizes: Sizes, dims: Dims) -> Dim:
    others = [dim for dim in dims if dim != 1]
    if all(isinstance(dim, int) for dim in others):
        return int(np.prod([int(dim) for dim in others], dtype=np.int64))
    return others[0] if len(others) == 1 else sizes.fresh(1)[0]


def _axes(sizes: Sizes, node: ir.Node, rank: int) -> list[int] | None:
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1:
        content = sizes.content(node.inputs[1])
        axes = None if content is None else [int(axis) for axis in content if isinstance(axis, int)]
    return None if axes is None else [int(axis) % rank for axis in axes]


def _unsqueeze(sizes: Sizes, node: ir.Node) -> Shapes:
    shape = sizes.shape(node.inputs[0])
    count = node.attributes.get_ints("axes", None) or sizes.content(node.inputs[1] if len(node.inputs) > 1 else None)
    if shape is None or count is None:
        return [None]
    rank = len(shape) + len(count)
    axes = _axes(sizes, node, rank) or []
    rest = iter(shape)
    return [tuple(1 if axis in axes else next(rest) for axis in range(rank))]


def _squeeze(sizes: Sizes, node: ir.Node) -> Shapes:
    shape = sizes.shape(node.inputs[0])
    axes = None if shape is None else _axes(sizes, node, max(1, len(shape)))
    if shape is None or axes is None:
        return [None]
    return [tuple(dim for axis, dim in enumerate(shape) if axis not in axes)]


def _gather(sizes: Sizes, node: ir.Node) -> Shapes:
    data, indices = sizes.shape(node.inputs[0]), sizes.shape(node.inputs[1])
    if data is None or indices is None or not data:
        return [None]
    axis = node.attributes.get_int("axis", 0) % len(data)
    return [(*data[:axis], *indices, *data[axis + 1 :])]


def _concat(sizes: Sizes, node: ir.Node) -> Shapes:
    shapes = [sizes.shape(value) for value in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known[0]:
        return [None]
    axis = node.attributes.get_int("axis", 0) % len(known[0])
    joined = [shape[axis] for shape in known]
    numbers = [dim for dim in joined if isinstance(dim, int)]
    total = sum(numbers) if len(numbers) == len(joined) else sizes.sum_of(joined)
    return [tuple(total if index == axis else dim for index, dim in enumerate(known[0]))]


def _split(sizes: Sizes, node: ir.Node) -> Shapes:
    shape = sizes.shape(node.inputs[0])
    if not shape:
        return [None] * len(node.outputs)
    axis, count = node.attributes.get_int("axis", 0) % len(shape), len(node.outputs)
    parts = sizes.content(node.inputs[1] if len(node.inputs) > 1 else None)
    whole = shape[axis]
    if parts is None and isinstance(whole, int) and whole % count == 0:
        parts = (whole // count,) * count
    parts = parts if parts is not None and len(parts) == count else sizes.fresh(count)
    return [tuple(part if index == axis else dim for index, dim in enumerate(shape)) for part in parts]


def _slice(sizes: Sizes, node: ir.Node) -> Shapes:
    shape = sizes.shape(node.inputs[0])
    bounds = [sizes.content(value) for value in node.inputs[1:5]]
    if shape is None:
        return [None]
    if len(bounds) < 3 or bounds[2] is None or not all(isinstance(axis, int) for axis in bounds[2]):
        return [sizes.fresh(len(shape))]
    new = list(shape)
    for index, axis in enumerate(int(axis) % len(shape) for axis in bounds[2]):
        start, end = (None if part is None else part[index] for part in bounds[:2])
        step: Dim | None = 1
        if len(bounds) > 3:
            step = None if bounds[3] is None else bounds[3][index]
        new[axis] = _length(shape[axis], start, end, step) or sizes.fresh(1)[0]
    return [tuple(new)]


def _length(whole: Dim, start: Dim | None, end: Dim | None, step: Dim | None) -> Dim | None:
    if step != 1 or not isinstance(start, int):
        return None
    if start == 0 and (end == whole or (isinstance(end, int) and end >= _MOST)):
        return whole
    if isinstance(whole, int) and isinstance(end, int):
        return len(range(whole)[start : min(end, whole)])
    return end if start == 0 and isinstance(end, str) and isinstance(whole, int) else None


def _reduce(sizes: Sizes, node: ir.Node) -> Shapes:
    shape = sizes.shape(node.inputs[0])
    axes = None if shape is None else _axes(sizes, node, max(1, len(shape)))
    if shape is None or axes is None:
        return [None]
    keeps = node.attributes.get_int("keepdims", 1)
    return [tuple(1 if axis in axes else dim for axis, dim in enumerate(shape) if keeps or axis not in axes)]


def _einsum(sizes: Sizes, node: ir.Node) -> Shapes:
    """Follow the letters of an equation that names its result; terms with dots are not read."""
    terms, arrow, result = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
    shapes = [sizes.shape(value) for value in node.inputs]
    if not arrow or "." in terms + result or None in shapes:
        return [None]
    dims: dict[str, Dim] = {}
    for term, shape in zip(terms.split(","), shapes, strict=True):
        for letter, dim in zip(term, shape or (), strict=True):
            dims[letter] = sizes.joined((dims.get(letter, 1), dim))
    return [tuple(dims[letter] for letter in result)]


def _recurrent(sizes: Sizes, node: ir.Node) -> Shapes:
    """Return [rows, directions, batch, size], and [directions, batch, size] of each state; batch may come first."""
    data, weights = sizes.shape(node.inputs[0]), sizes.shape(node.inputs[2])
    if data is None or weights is None or len(data) != 3 or len(weights) != 3:
        return []
    directions, size = weights[0], weights[2]
    if node.attributes.get_int("layout", 0):
        states = (data[0], directions, size)
        return [(data[0], data[1], directions, size), states, states]
    states = (directions, data[1], size)
    return [(data[0], directions, data[1], size), states, states]


def _top(sizes: Sizes, node: ir.Node) -> Shapes:
    shape, counts = sizes.shape(node.inputs[0]), sizes.content(node.inputs[1])
    if not shape:
        return []
    axis = node.attributes.get_int("axis", -1) % len(shape)
    count = sizes.fresh(1)[0] if counts is None else counts[0]
    taken = tuple(count if index == axis else dim for index, dim in enumerate(shape))
    return [taken, taken]


def _shape_of_shape(sizes: Sizes, node: ir.Node) -> Shapes:
    content = sizes.content(node.outputs[0])
    return [None if content is None else (len(content),)]


def _filled(sizes: Sizes, node: ir.Node) -> Shapes:
    return [sizes.content(node.inputs[0])]


def _constant(_: Sizes, node: ir.Node) -> Shapes:
    array = constant_array(node.outputs[0])
    return [None if array is None else tuple(array.shape)]


_SHAPES: Mapping[str, Callable[[Sizes, ir.Node], Shapes]] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "Where", "And", "Or", "Equal", "Less", "Greater"), _elementwise
    ),
    **dict.fromkeys(("LessOrEqual", "GreaterOrEqual", "Min", "Max"), _elementwise),
    **dict.fromkeys(
        ("Cast", "Identity", "Softmax", "LayerNormalization", "Erf", "Tanh", "Gelu", "Relu", "Sqrt"), _same
    ),
    **dict.fromkeys(("Sigmoid", "Neg", "Not", "IsNaN", "Dropout", "Clip", "Exp", "Sin", "Cos", "Reciprocal"), _same),
    **dict.fromkeys(
        ("InstanceNormalization", "Abs", "Log", "Floor", "LeakyRelu", "HardSwish", "RMSNormalization"), _same
    ),
    **dict.fromkeys(("BatchNormalization", "ScatterElements", "ScatterND"), _same),
    "SimplifiedLayerNormalization": _same,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Attention": _attention,
    "Conv": _conv,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Expand": _expand,
    "Range": _range,
    "Flatten": _flatten,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "ReduceMax": _reduce,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "Einsum": _einsum,
    "TopK": _top,
    "Shape": _shape_of_shape,
    "ConstantOfShape": _filled,
    "Constant": _constant,
}

_SHAPES_OF_CONTRIB: Mapping[str, Callable[[Sizes, ir.Node], Shapes]] = {
    "Attention": _packed_attention,
    "MultiHeadAttention": _cross_attention,
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), _same),
    "FusedMatMul": _matmul,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _norm_of_sum),
}
"""Operators of ONNX Runtime that fusions write (`fusion`)."""
