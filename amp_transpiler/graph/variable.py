"""`Variable`: a value of a program, by name, with arithmetic."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.builder import Operand
from amp_transpiler.graph.program import Persistable, Program

__all__ = ["Variable"]


class Variable:
    """A handle on a value of a program. It goes by name, so it outlives a rewriting of the graph.

    Arithmetic (`+ - * / ** @`, unary minus) with other variables and numbers appends operators to the program.
    """

    __array_priority__ = 100  # numpy leaves arithmetic to this class

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.name = name

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.dtype}, {list(self.shape)})"

    @property
    def value(self) -> ir.Value:
        """The value in the program's graph as it is now."""
        return self.program.value(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; -1 for a dimension that is free or unknown."""
        shape = self.value.shape
        return () if shape is None else tuple(size if isinstance(size, int) else -1 for size in shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The element type as numpy names it: `float32`, `float16`, `bfloat16`, `int64`, ..."""
        dtype = self.value.dtype
        return "unknown" if dtype is None else str(dtype.numpy().name)

    @property
    def persistable(self) -> bool:
        """Whether it lives in the scope from run to run."""
        return self.name in self.program.persistables

    @property
    def about(self) -> Persistable | None:
        """What is known of it as a persistable value."""
        return self.program.persistables.get(self.name)

    @property
    def trainable(self) -> bool:
        """Whether optimizers update it."""
        about = self.about
        return about is not None and about.kind == "parameter" and about.trainable

    @property
    def stop_gradient(self) -> bool:
        """Whether no gradient passes through it; may be set."""
        return self.name in self.program.no_gradient

    @stop_gradient.setter
    def stop_gradient(self, stop: bool) -> None:
        (self.program.no_gradient.add if stop else self.program.no_gradient.discard)(self.name)

    def astype(self, dtype: str) -> Variable:
        """Return it cast to another element type."""
        from amp_transpiler.graph.dtypes import parse_dtype

        return self._wrap(self.program.builder().cast(self.value, parse_dtype(dtype)))

    def _wrap(self, value: ir.Value) -> Variable:
        return Variable(self.program, str(value.name))

    def _with(self, method: str, other: Any, *, swapped: bool = False) -> Variable:
        if isinstance(other, Variable):
            operand: Operand = other.value
        elif isinstance(other, (int, float)):
            operand = other
        else:
            return NotImplemented  # type: ignore[no-any-return]  # Python's protocol: it then asks the other operand
        a, b = (operand, self.value) if swapped else (self.value, operand)
        made: ir.Value = getattr(self.program.builder(), method)(a, b)
        return self._wrap(made)

    def __add__(self, other: Any) -> Variable:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Variable:
        return self._with("add", other, swapped=True)

    def __sub__(self, other: Any) -> Variable:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Variable:
        return self._with("sub", other, swapped=True)

    def __mul__(self, other: Any) -> Variable:
        return self._with("mul", other)

    def __rmul__(self, other: Any) -> Variable:
        return self._with("mul", other, swapped=True)

    def __truediv__(self, other: Any) -> Variable:
        return self._with("div", other)

    def __rtruediv__(self, other: Any) -> Variable:
        return self._with("div", other, swapped=True)

    def __pow__(self, other: Any) -> Variable:
        return self._with("pow", other)

    def __matmul__(self, other: Any) -> Variable:
        return self._with("matmul", other)

    def __neg__(self) -> Variable:
        return self._wrap(self.program.builder().neg(self.value))
