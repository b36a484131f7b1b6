"""Writing operators into a graph. The types and shapes of their results are inferred at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.attributes import attribute_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.ops.schema import opset_of

__all__ = ["GraphBuilder", "Operand", "elements_of", "is_float_tensor", "is_static", "rank_of", "shape_of"]

Operand: TypeAlias = "ir.Value | float | int"


class GraphBuilder:
    """Appends operators to a graph of a model, or inserts them before one of its nodes.

    Args:
        model: the model; it gives the opsets, and its main graph gets the constants as initializers.
        graph: the graph to write to; the main graph unless given.
        before: insert nodes before this node instead of appending them.
        names: the model's names, if the caller has collected them already.
        metadata: `metadata_props` of every new node, such as its role or region.
        prefix: the start of the names of new nodes and values.
        shares: another builder of the model, to share constants with.

    Attributes:
        constants: (element type, shape, bytes) -> constant.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        graph: ir.Graph | None = None,
        before: ir.Node | None = None,
        names: NameAllocator | None = None,
        metadata: Mapping[str, str] | None = None,
        prefix: str = "",
        shares: GraphBuilder | None = None,
    ) -> None:
        self.model = model
        self.graph: ir.Graph = graph if graph is not None else model.graph
        self.before = before
        self.names: NameAllocator = names if names is not None else NameAllocator(model)
        self.metadata: dict[str, str] = dict(metadata or {})
        self.prefix = prefix
        self.constants: dict[tuple[Any, ...], ir.Value] = {} if shares is None else shares.constants

    @property
    def opset(self) -> int:
        """The version of ONNX's own domain."""
        return opset_of(self.model, "")

    @contextmanager
    def inside(self, graph: ir.Graph) -> Iterator[None]:
        """Append to `graph`, a body, in this context."""
        saved, self.graph, self.before = (self.graph, self.before), graph, None
        try:
            yield
        finally:
            self.graph, self.before = saved

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        domain: str = "",
        names: Sequence[str] | None = None,
    ) -> tuple[ir.Value, ...]:
        """Append one operator and return its outputs, typed.

        Raises:
            ModelError: ONNX refuses the operator on these inputs.
        """
        label = f"{self.prefix}{op_type}"
        results = [ir.Value(name=names[i] if names else self.names.fresh(f"{label}_out{i}")) for i in range(outputs)]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            [attribute_of(name, content) for name, content in attributes.items()] if attributes else [],
            outputs=results,
            name=self.names.fresh(label),
            metadata_props=self.node_metadata(),
        )
        if domain:
            self.model.graph.opset_imports.setdefault(domain, 1)
        self.on_node(node)
        infer_outputs(self.model, node)
        self.check(node)
        if self.before is not None:
            self.graph.insert_before(self.before, node)
        else:
            self.graph.append(node)
        self.on_created(node.outputs)
        return tuple(node.outputs)

    def node_metadata(self) -> dict[str, str]:
        """Return the `metadata_props` of the next node."""
        return dict(self.metadata)

    def on_node(self, node: ir.Node) -> None:
        """Hook for subclasses, called with a new node before its outputs are typed."""

    def check(self, node: ir.Node) -> None:
        """Hook for subclasses, called with a new node whose outputs are typed, before it is added."""

    def on_created(self, values: Sequence[ir.Value]) -> None:
        """Hook for subclasses, called with newly created values."""

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        name: str | None = None,
    ) -> ir.Value:
        """Append an operator with one output, and return the output."""
        return self.nodes(op_type, inputs, attributes, domain=domain, names=[name] if name else None)[0]

    def constant(self, content: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """Return a constant, an initializer of the main graph. Equal constants are shared.

        Args:
            content: an array, a number or a list.
            dtype: its element type; None for float32 for floats, and numpy's own (int64 for integers) for others.
        """
        array = np.asarray(content)
        if dtype is None:
            dtype = ir.DataType.FLOAT if array.dtype == np.float64 else ir.DataType.from_numpy(array.dtype)
        array = array.astype(dtype.numpy())
        key = (dtype, array.shape, array.tobytes())
        if (known := self.constants.get(key)) is not None:
            return known
        name = self.names.fresh(f"{self.prefix}const")
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape))
        value.const_value = ir.Tensor(array, dtype=dtype, name=name)
        self.model.graph.register_initializer(value)
        self.constants[key] = value
        self.on_created([value])
        return value

    def operand(self, value: Operand, like: ir.Value) -> ir.Value:
        """Return `value` itself, or a number as a scalar constant of the element type of `like`."""
        return value if isinstance(value, ir.Value) else self.constant(value, like.dtype)

    # Arithmetic. One operand may be a number; it takes the element type of the other.

    def binary(self, op_type: str, a: Operand, b: Operand) -> ir.Value:
        """The operator of this name on two operands."""
        if op_type == "Div":
            return self.div(a, b)
        return self._binary(op_type, a, b)

    def _binary(self, op_type: str, a: Operand, b: Operand) -> ir.Value:
        like = a if isinstance(a, ir.Value) else b
        if not isinstance(like, ir.Value):
            raise TypeError(f"{op_type}: one of the operands must be a value, got {a!r} and {b!r}")
        return self.op(op_type, [self.operand(a, like), self.operand(b, like)])

    def add(self, a: Operand, b: Operand) -> ir.Value:
        """`a + b`."""
        return self._binary("Add", a, b)

    def sub(self, a: Operand, b: Operand) -> ir.Value:
        """`a - b`."""
        return self._binary("Sub", a, b)

    def mul(self, a: Operand, b: Operand) -> ir.Value:
        """`a * b`."""
        return self._binary("Mul", a, b)

    def div(self, a: Operand, b: Operand) -> ir.Value:
        """`a / b`."""
        if not isinstance(a, ir.Value) and a == 1 and isinstance(b, ir.Value) and b.dtype == ir.DataType.FLOAT:
            # ONNX Runtime 1.31 fuses `Mul(g, Div(1, b))` wrongly if g comes from an Identity or a removable Cast.
            return self.op("Reciprocal", [b])
        return self._binary("Div", a, b)

    def pow(self, a: ir.Value, b: Operand) -> ir.Value:
        """`a ** b`."""
        return self._binary("Pow", a, b)

    def maximum(self, a: Operand, b: Operand) -> ir.Value:
        """The larger of the two, element by element."""
        return self._binary("Max", a, b)

    def minimum(self, a: Operand, b: Operand) -> ir.Value:
        """The smaller of the two, element by element."""
        return self._binary("Min", a, b)

    def compare(self, op_type: str, a: Operand, b: Operand) -> ir.Value:
        """`Greater`, `Less`, `Equal`, `GreaterOrEqual` or `LessOrEqual` of the two: a bool tensor."""
        return self._binary(op_type, a, b)

    def neg(self, x: ir.Value) -> ir.Value:
        """`-x`."""
        return self.op("Neg", [x])

    def where(self, condition: ir.Value, a: Operand, b: Operand) -> ir.Value:
        """`a` where the bool tensor `condition` holds, else `b`; one of them may be a number."""
        like = a if isinstance(a, ir.Value) else b
        if not isinstance(like, ir.Value):
            raise TypeError("where: one of the choices must be a value")
        return self.op("Where", [condition, self.operand(a, like), self.operand(b, like)])

    def cast(self, x: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """`x` as `dtype`; `x` itself if it has that type."""
        return x if dtype is None or x.dtype == dtype else self.explicit_cast(x, dtype)

    def explicit_cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`x` as `dtype`, by a node even if it has that type: it may become low, and this may not."""
        return self.op("Cast", [x], {"to": int(dtype)})

    def high(self, x: ir.Value) -> ir.Value:
        """`x` in float32 if it is float16 or bfloat16, else `x`."""
        return self.cast(x, ir.DataType.FLOAT) if x.dtype in LOW_DTYPES else x

    # Shapes.

    def shape(self, x: ir.Value) -> ir.Value:
        """The shape of `x`, int64; a constant if it is known."""
        if is_static(x):
            return self.constant(np.array(shape_of(x), np.int64))
        return self.op("Shape", [x])

    def reshape(self, x: ir.Value, shape: ir.Value | Sequence[int]) -> ir.Value:
        """`x` in another shape: a value, or numbers. One may be -1, to be inferred; 0 keeps a dimension."""
        target = shape if isinstance(shape, ir.Value) else self.constant(np.array(shape, np.int64))
        return self.op("Reshape", [x, target])

    def reshape_like(self, x: ir.Value, other: ir.Value) -> ir.Value:
        """`x` in the shape of `other`."""
        if x.shape is not None and is_static(other) and is_static(x) and shape_of(x) == shape_of(other):
            return x
        result = self.reshape(x, self.shape(other))
        if other.shape is not None:
            result.shape = ir.Shape(other.shape)
        return result

    def expand_like(self, x: ir.Value, other: ir.Value) -> ir.Value:
        """`x` broadcast to the shape of `other`."""
        result = self.op("Expand", [x, self.shape(other)])
        if other.shape is not None:
            result.shape = ir.Shape(other.shape)
        return result

    def transpose(self, x: ir.Value, perm: Sequence[int]) -> ir.Value:
        """`x` with its axes in the order of `perm`."""
        return x if list(perm) == list(range(len(perm))) else self.op("Transpose", [x], {"perm": list(perm)})

    def swap_last(self, x: ir.Value) -> ir.Value:
        """`x` with its last two axes exchanged; its rank must be known."""
        rank = rank_of(x)
        return self.transpose(x, [*range(rank - 2), rank - 1, rank - 2])

    def unsqueeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """`x` with new axes of size 1."""
        return self.op("Unsqueeze", [x, self.constant(np.array(axes, np.int64))]) if axes else x

    def squeeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """`x` without these axes, which have size 1."""
        return self.op("Squeeze", [x, self.constant(np.array(axes, np.int64))]) if axes else x

    def concat(self, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        """The parts concatenated along `axis`."""
        return parts[0] if len(parts) == 1 else self.op("Concat", list(parts), {"axis": axis})

    def slice(
        self, x: ir.Value, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int] = ()
    ) -> ir.Value:
        """Numpy's `x[start:end:step]` along `axes`."""
        parts = [starts, ends, axes] + ([steps] if steps else [])
        return self.op("Slice", [x, *(self.constant(np.array(part, np.int64)) for part in parts)])

    def zeros_like(self, x: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
        """Zeros in the shape of `x`, of its element type unless another is given."""
        element = dtype or x.dtype or ir.DataType.FLOAT
        result = self.op("ConstantOfShape", [self.shape(x)], {"value": ir.tensor(np.zeros(1, element.numpy()))})
        if x.shape is not None:
            result.shape = ir.Shape(x.shape)
        return result

    # Reductions, in float32 for float16 and bfloat16: low sums overflow, or lose small terms.

    def reduce(
        self,
        op_type: str,
        x: ir.Value,
        axes: Sequence[int] | ir.Value | None,
        *,
        keepdims: bool = True,
        low: bool = False,
    ) -> ir.Value:
        """`ReduceSum`, `ReduceMean`, ... over `axes` (None: all).

        A low `x` is reduced in float32, and the result is float32; with `low`, in its own element type.
        """
        attributes: dict[str, Any] = {"keepdims": int(keepdims)}
        x = x if low else self.high(x)
        if axes is None:
            return self.op(op_type, [x], attributes)
        if isinstance(axes, ir.Value):
            return self.op(op_type, [x, axes], {**attributes, "noop_with_empty_axes": 1})
        if not axes:
            return x
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, [x, self.constant(np.array(list(axes), np.int64))], attributes)
        return self.op(op_type, [x], {**attributes, "axes": list(axes)})

    def sum(self, x: ir.Value, axes: Sequence[int] | None = None, *, keepdims: bool = True) -> ir.Value:
        """The sum over `axes`, float32 for a low `x`."""
        return self.reduce("ReduceSum", x, axes, keepdims=keepdims)

    def mean(self, x: ir.Value, axes: Sequence[int] | None = None, *, keepdims: bool = True) -> ir.Value:
        """The mean over `axes`, float32 for a low `x`."""
        return self.reduce("ReduceMean", x, axes, keepdims=keepdims)

    def sum_to(self, x: ir.Value, like: ir.Value, *, low: bool = False) -> ir.Value:
        """Undo a broadcast: sum `x` over the axes along which `like` was repeated, to the shape of `like`.

        A low `x` is summed in float32; with `low`, in its own element type.
        """
        if x.shape is None or like.shape is None:
            return self._sum_to_at_run_time(x, like, low)
        have, want = list(x.shape), list(like.shape)
        lead = len(have) - len(want)
        axes = list(range(lead))
        for axis, size in enumerate(want):
            if size == 1:
                if have[lead + axis] != 1:
                    axes.append(lead + axis)
            elif not _surely_equal(have[lead + axis], size):
                return self._sum_to_at_run_time(x, like, low)
        if not axes:
            return x
        result = self.reduce("ReduceSum", x, axes, low=low)
        return self.squeeze(result, list(range(lead)))

    def _sum_to_at_run_time(self, x: ir.Value, like: ir.Value, low: bool) -> ir.Value:
        """`sum_to` for unknown shapes: sum over the axes where `like` is 1 and `x` is not, found at run time."""
        have, want = self.shape(x), self.shape(like)
        padded = self._padded(
            have, want, None if x.shape is None or like.shape is None else len(x.shape) - len(like.shape)
        )
        repeated = self.op("Not", [self.op("Equal", [padded, have])])
        axes = self.reshape(self.op("NonZero", [repeated]), [-1])
        return self.reshape_like(self.reduce("ReduceSum", x, axes, low=low), like)

    def _padded(self, have: ir.Value, want: ir.Value, missing: int | None) -> ir.Value:
        """Return the shape `want` with as many ones before it as it lacks dimensions of `have`, None for unknown."""
        if missing is not None:  # written so that inference sees one length: ONNX Runtime is wrong about the other form
            return self.concat([self.constant(np.ones(missing, np.int64)), want], 0) if missing else want
        count = self.sub(self.op("Size", [have]), self.op("Size", [want]))
        ones = {"value": ir.tensor(np.ones(1, np.int64))}
        return self.concat([self.op("ConstantOfShape", [self.unsqueeze(count, [0])], ones), want], 0)

    # Matrices.

    def matmul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The matrix product, batched as in numpy."""
        return self.op("MatMul", [a, b])


def _surely_equal(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    """Whether two dimensions are the same in every run: the same number, or the same name."""
    return a == b and (isinstance(a, int) or a.value is not None)


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """Return the shape of a value whose dimensions are all known.

    Raises:
        ModelError: they are not.
    """
    if not is_static(value):
        raise ModelError(f"the shape of '{value.name}' must be known here, got {value.shape}")
    assert value.shape is not None
    return tuple(int(size) for size in value.shape)  # type: ignore[arg-type]  # all are ints, by is_static


def is_static(value: ir.Value) -> bool:
    """Whether every dimension of the value is a known number."""
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def elements_of(value: ir.Value) -> int | None:
    """Return how many elements a value has; None if a dimension is not known."""
    return math.prod(shape_of(value)) if is_static(value) else None


def rank_of(value: ir.Value) -> int:
    """Return how many dimensions a value has.

    Raises:
        ModelError: it is not known.
    """
    if value.shape is None:
        raise ModelError(
            f"the rank of '{value.name}' must be known here: give the program's inputs shapes, and run shape inference"
        )
    return len(value.shape)


def is_float_tensor(value: ir.Value | None) -> bool:
    """Whether a value is a tensor of floating-point numbers."""
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()
