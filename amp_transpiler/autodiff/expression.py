"""Expressions: Python operators that append ONNX operators, so that a gradient rule reads as mathematics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy.typing as npt
import onnx_ir as ir

from amp_transpiler.autodiff.refusals import SizesUnknown
from amp_transpiler.graph.builder import GraphBuilder, is_static, rank_of, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES

__all__ = ["Expr", "Number", "concat"]

Number: TypeAlias = "Expr | float"


def _unary(op_type: str) -> Callable[[Expr], Expr]:
    def method(self: Expr) -> Expr:
        return self.op(op_type)

    method.__doc__ = f"Append `{op_type}`."
    return method


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """A value of a graph and the builder that appends the operators applied to it.

    A number beside an expression becomes a scalar constant of the expression's element type. In sums and products it is
    the second operand, whichever side it is written on.

    Attributes:
        value: the value.
        builder: appends operators.
    """

    value: ir.Value
    builder: GraphBuilder

    # Any operator.

    def op(self, op_type: str, *others: Number | None, **attributes: Any) -> Expr:
        """Append an operator with one output. This expression is its first input, `others` are the rest."""
        return self.outputs(op_type, *others, count=1, **attributes)[0]

    def outputs(self, op_type: str, *others: Number | None, count: int, **attributes: Any) -> tuple[Expr, ...]:
        """Append an operator with `count` outputs and return them."""
        rest = [None if other is None else self._raw(other) for other in others]
        results = self.builder.nodes(op_type, [self.value, *rest], attributes, outputs=count)
        return tuple(self._expr(value) for value in results)

    def constant(self, value: Any, dtype: ir.DataType | None = None) -> Expr:
        """Return a constant, of numpy's element type for `value` unless `dtype` is given (float32 for floats)."""
        return self._expr(self.builder.constant(value, dtype))

    def _expr(self, value: ir.Value) -> Expr:
        return Expr(value, self.builder)

    def _raw(self, other: Number) -> ir.Value:
        return other.value if isinstance(other, Expr) else self.builder.operand(other, self.value)

    # Arithmetic.

    def __add__(self, other: Number) -> Expr:
        return self._expr(self.builder.add(self.value, self._raw(other)))

    __radd__ = __add__

    def __sub__(self, other: Number) -> Expr:
        return self._expr(self.builder.sub(self.value, self._raw(other)))

    def __rsub__(self, other: float) -> Expr:
        return self._expr(self.builder.sub(other, self.value))

    def __mul__(self, other: Number) -> Expr:
        return self._expr(self.builder.mul(self.value, self._raw(other)))

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Expr:
        return self._expr(self.builder.div(self.value, self._raw(other)))

    def __rtruediv__(self, other: float) -> Expr:
        return self._expr(self.builder.div(other, self.value))

    def __pow__(self, other: Number) -> Expr:
        return self._expr(self.builder.pow(self.value, self._raw(other)))

    def __neg__(self) -> Expr:
        return self._expr(self.builder.neg(self.value))

    def __matmul__(self, other: Expr) -> Expr:
        return self._expr(self.builder.matmul(self.value, other.value))

    abs = _unary("Abs")
    cos = _unary("Cos")
    cosh = _unary("Cosh")
    erf = _unary("Erf")
    exp = _unary("Exp")
    log = _unary("Log")
    round = _unary("Round")
    sigmoid = _unary("Sigmoid")
    sign = _unary("Sign")
    sin = _unary("Sin")
    sinh = _unary("Sinh")
    softplus = _unary("Softplus")
    sqrt = _unary("Sqrt")
    tanh = _unary("Tanh")

    def maximum(self, other: Number) -> Expr:
        """Return the larger of the two, element by element."""
        return self._expr(self.builder.maximum(self.value, self._raw(other)))

    def minimum(self, other: Number) -> Expr:
        """Return the smaller of the two, element by element."""
        return self._expr(self.builder.minimum(self.value, self._raw(other)))

    # Comparisons and logic. CUDA compares no bfloat16, so bfloat16 operands are compared in float32.

    def _compare(self, op_type: str, other: Number) -> Expr:
        left = self.without_bfloat16()
        return left.op(op_type, other.without_bfloat16() if isinstance(other, Expr) else other)

    def __gt__(self, other: Number) -> Expr:
        return self._compare("Greater", other)

    def __ge__(self, other: Number) -> Expr:
        return self._compare("GreaterOrEqual", other)

    def __lt__(self, other: Number) -> Expr:
        return self._compare("Less", other)

    def __le__(self, other: Number) -> Expr:
        return self._compare("LessOrEqual", other)

    def equals(self, other: Number) -> Expr:
        """Return where the two are equal; `==` stays Python's comparison of objects."""
        return self._compare("Equal", other)

    def __and__(self, other: Expr) -> Expr:
        return self.op("And", other)

    def __invert__(self) -> Expr:
        return self.op("Not")

    def where(self, chosen: Number, otherwise: Number) -> Expr:
        """Return `chosen` where this bool expression holds, `otherwise` elsewhere; one of them may be a number."""
        picks = (pick.value if isinstance(pick, Expr) else pick for pick in (chosen, otherwise))
        return self._expr(self.builder.where(self.value, *picks))

    # Element types.

    @property
    def dtype(self) -> ir.DataType | None:
        """The element type."""
        return self.value.dtype

    def cast(self, dtype: ir.DataType | None) -> Expr:
        """Return this expression in an element type; itself if it has that already."""
        return self._expr(self.builder.cast(self.value, dtype))

    def wide(self) -> Expr:
        """Return this expression in float32 if it is float16 or bfloat16, else as it is."""
        return self._expr(self.builder.high(self.value))

    def without_bfloat16(self) -> Expr:
        """Return this expression in float32 if it is bfloat16: several CUDA kernels lack that type."""
        return self.wide() if self.dtype == ir.DataType.BFLOAT16 else self

    # Known facts.

    @property
    def name(self) -> str | None:
        """The name of the value."""
        return self.value.name

    @property
    def shape(self) -> ir.Shape | None:
        """The shape, None if not even the rank is known."""
        return self.value.shape

    @property
    def rank(self) -> int:
        """The number of dimensions.

        Raises:
            SizesUnknown: it is not known.
        """
        if self.shape is None:
            raise SizesUnknown(f"the rank of '{self.name}' must be known here: run shape inference")
        return rank_of(self.value)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known number."""
        return is_static(self.value)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The dimensions.

        Raises:
            SizesUnknown: one of them is not known.
        """
        if not self.is_static:
            raise SizesUnknown(f"the shape of '{self.name}' must be known here, got {self.shape}")
        return shape_of(self.value)

    def size(self, axis: int) -> int | None:
        """Return one dimension, None if it is not known."""
        dim = self.shape[axis] if self.shape is not None else None
        return dim if isinstance(dim, int) else None

    @property
    def known(self) -> npt.NDArray[Any] | None:
        """The numbers of a constant, None for other values."""
        tensor = constant_of(self.value)
        return None if tensor is None else tensor.numpy()

    def with_shape_of(self, other: Expr, *, only_if_unknown: bool = False) -> Expr:
        """Declare that this expression has the shape of `other`, where inference does not know it or not in full."""
        if other.shape is not None and not (only_if_unknown and self.shape is not None):
            self.value.shape = ir.Shape(other.shape)
        return self

    # Shapes.

    def shape_tensor(self) -> Expr:
        """Return the shape as int64 numbers: a constant where it is known."""
        return self._expr(self.builder.shape(self.value))

    def reshape(self, shape: Expr | Sequence[int]) -> Expr:
        """Return this expression in another shape; one number may be -1, and 0 keeps a dimension."""
        return self._expr(self.builder.reshape(self.value, shape.value if isinstance(shape, Expr) else shape))

    def reshape_like(self, other: Expr) -> Expr:
        """Return this expression in the shape of `other`."""
        return self._expr(self.builder.reshape_like(self.value, other.value))

    def expand_like(self, other: Expr) -> Expr:
        """Return this expression broadcast to the shape of `other`."""
        return self._expr(self.builder.expand_like(self.value, other.value))

    def transpose(self, perm: Sequence[int]) -> Expr:
        """Return this expression with its axes in the order of `perm`."""
        return self._expr(self.builder.transpose(self.value, perm))

    @property
    def T(self) -> Expr:  # noqa: N802  # the name that numpy and mathematics use
        """The matrix, or stack of matrices, transposed: its last two axes are exchanged."""
        rank = self.rank
        return self.transpose([*range(rank - 2), rank - 1, rank - 2])

    def unsqueeze(self, *axes: int) -> Expr:
        """Return this expression with new axes of size 1."""
        return self._expr(self.builder.unsqueeze(self.value, axes))

    def squeeze(self, *axes: int) -> Expr:
        """Return this expression without these axes of size 1."""
        return self._expr(self.builder.squeeze(self.value, axes))

    def slice(self, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int] = ()) -> Expr:
        """Return numpy's `x[start:end:step]` along `axes`."""
        return self._expr(self.builder.slice(self.value, starts, ends, axes, steps))

    def zeros_like(self, dtype: ir.DataType | None = None) -> Expr:
        """Return zeros in the shape of this expression, of its element type unless another is given."""
        return self._expr(self.builder.zeros_like(self.value, dtype))

    # Reductions. Those of float16 and bfloat16 are computed and returned in float32: sums overflow or lose digits.

    def reduce(self, op_type: str, axes: Sequence[int] | None = None, *, keepdims: bool = True) -> Expr:
        """Append a reduction over `axes`, None for all."""
        return self._expr(self.builder.reduce(op_type, self.value, axes, keepdims=keepdims))

    def sum(self, axes: Sequence[int] | None = None, *, keepdims: bool = True) -> Expr:
        """Return the sum over `axes`, None for all."""
        return self.reduce("ReduceSum", axes, keepdims=keepdims)

    def mean(self, axes: Sequence[int] | None = None, *, keepdims: bool = True) -> Expr:
        """Return the mean over `axes`, None for all."""
        return self.reduce("ReduceMean", axes, keepdims=keepdims)

    def dot(self, other: Expr) -> Expr:
        """Return the sum of the products along the last axis, with size 1 there, in this element type.

        Of float16 and bfloat16 it is a matrix product of rows with columns, which sums in float32 and needs no casts.
        In float32 it is none: to policies that make all matrix products low, a sum should stay a sum.
        """
        if self.dtype not in LOW_DTYPES:
            return (self * other).sum([-1])
        return (self.unsqueeze(-2) @ other.unsqueeze(-1)).squeeze(-1)

    def sum_to(self, like: Expr, *, low: bool = False) -> Expr:
        """Undo a broadcast of `like`: sum over the axes that were repeated; `low` keeps this element type."""
        return self._expr(self.builder.sum_to(self.value, like.value, low=low))


def concat(parts: Sequence[Expr], axis: int) -> Expr:
    """Return the parts joined along `axis`."""
    builder = parts[0].builder
    return Expr(builder.concat([part.value for part in parts], axis), builder)
