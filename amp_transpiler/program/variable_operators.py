"""Operators of Python on variables: they append nodes; what needs a value is refused in words.

The functions on tensors are methods of variables, too. A layer above provides them, see `hooks`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.program.hooks import variable_methods
from amp_transpiler.program.variable_properties import VariableProperties

__all__ = ["VariableOperators"]


class VariableOperators(VariableProperties):
    """The operators of `Variable`."""

    __array_ufunc__ = None  # makes numpy leave operators between arrays and variables to this class

    def astype(self, dtype: Any) -> Self:
        """Return it cast to an element type, which mixed precision respects, even if it has that type now."""
        return self._wrap(self.program.builder().explicit_cast(self.value, parse_dtype(dtype)))

    def _wrap(self, value: ir.Value) -> Self:
        return type(self)(self.program, str(value.name))

    def _with(self, op_type: str, other: Any, *, swapped: bool = False) -> Self:
        from amp_transpiler.program.operands import is_operand, operate  # here: only who builds a program needs it

        if not isinstance(other, VariableOperators) and not is_operand(other):
            return NotImplemented  # type: ignore[no-any-return]  # Python's protocol: the other operand is tried next
        if isinstance(other, VariableOperators) and other.program is not self.program:
            raise InputError(f"'{self.name}' and '{other.name}' are of two programs: build in one program_guard")
        operand = other.value if isinstance(other, VariableOperators) else other
        return self._wrap(operate(self.program.builder(), op_type, self.value, operand, swapped=swapped))

    def _alone(self, op_type: str) -> Self:
        return self._wrap(self.program.builder().op(op_type, [self.value]))

    def __add__(self, other: Any) -> Self:
        return self._with("Add", other)

    def __radd__(self, other: Any) -> Self:
        return self._with("Add", other, swapped=True)

    def __sub__(self, other: Any) -> Self:
        return self._with("Sub", other)

    def __rsub__(self, other: Any) -> Self:
        return self._with("Sub", other, swapped=True)

    def __mul__(self, other: Any) -> Self:
        return self._with("Mul", other)

    def __rmul__(self, other: Any) -> Self:
        return self._with("Mul", other, swapped=True)

    def __truediv__(self, other: Any) -> Self:
        return self._with("Div", other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._with("Div", other, swapped=True)

    def __pow__(self, other: Any) -> Self:
        return self._with("Pow", other)

    def __rpow__(self, other: Any) -> Self:
        return self._with("Pow", other, swapped=True)

    def __matmul__(self, other: Any) -> Self:
        return self._with("MatMul", other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._with("MatMul", other, swapped=True)

    def __neg__(self) -> Self:
        return self._alone("Neg")

    def __mod__(self, other: Any) -> Any:
        return self._method("mod", other)

    def __rmod__(self, other: Any) -> Any:
        return self._method("rmod", other)

    def __floordiv__(self, other: Any) -> Any:
        return self._method("floor_divide", other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._method("rfloordiv", other)

    def __abs__(self) -> Any:
        return self._method("abs")

    def __invert__(self) -> Any:
        return self._method("bitwise_not")

    def __and__(self, other: Any) -> Any:
        return self._method("bitwise_and", other)

    def __or__(self, other: Any) -> Any:
        return self._method("bitwise_or", other)

    def __xor__(self, other: Any) -> Any:
        return self._method("bitwise_xor", other)

    def __getitem__(self, key: Any) -> Any:
        return self._method("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise self._unknown("cannot be changed in place: use the result of paddle.static.setitem(x, index, value)")

    # Functions on tensors as methods.

    def _method(self, name: str, *args: Any) -> Any:
        return variable_methods().METHODS[name](self, *args)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            provided = variable_methods()
            if name in provided.METHODS:
                return functools.partial(provided.METHODS[name], self)
            if name in provided.PROPERTIES:
                return provided.PROPERTIES[name](self)
            if reason := provided.why_not(name):
                raise AttributeError(f"variables have no attribute {name!r}: {reason}")
        raise AttributeError(f"variables have no attribute {name!r}")

    def __dir__(self) -> list[str]:
        provided = variable_methods()
        return sorted({*super().__dir__(), *provided.METHODS, *provided.PROPERTIES})

    # Comparisons, element by element.

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]  # as in Paddle, a tensor of truth values
        return self._compared("Equal", other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]  # see above
        return self._compared("Equal", other, negated=True)

    def __lt__(self, other: Any) -> Self:
        return self._compared("Less", other)

    def __le__(self, other: Any) -> Self:
        return self._compared("LessOrEqual", other)

    def __gt__(self, other: Any) -> Self:
        return self._compared("Greater", other)

    def __ge__(self, other: Any) -> Self:
        return self._compared("GreaterOrEqual", other)

    def _compared(self, op_type: str, other: object, *, negated: bool = False) -> Self:
        if isinstance(other, str):
            raise TypeError(f"'{self.name}' is compared with the name {other!r}: compare its `.name`")
        result = self._with(op_type, other)
        if not negated or result is NotImplemented:
            return result
        return result._alone("Not")  # noqa: SLF001  # of its own class

    # Python asks for these where a program is written as if its values were known.

    def __bool__(self) -> bool:
        raise self._unknown(
            "has no truth value, which `if`, `while`, `and`, `or`, `not`, `assert` and `in` ask for. To choose between "
            "two results, compute both and use tensor.where(condition, a, b); to tell variables apart, compare "
            "with `is` or by `.name`"
        )

    def __len__(self) -> int:
        raise self._unknown("has no len(): use `.shape[0]`, which is -1 for a free dimension")

    def __iter__(self) -> Iterator[Self]:
        raise self._unknown("cannot be iterated over or unpacked: use tensor.split or tensor.slice")

    def __float__(self) -> float:
        raise self._unknown("cannot become a Python float: fetch it")

    def __int__(self) -> int:
        raise self._unknown("cannot become a Python int: fetch it, or use `.shape` for sizes and tensor.cast for types")

    def __index__(self) -> int:
        raise self._unknown("cannot be an index, a size or a count: use a Python int")

    def __complex__(self) -> complex:
        raise self._unknown("cannot become a Python number: fetch it")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise self._unknown("cannot become a numpy array: fetch it")

    def _unknown(self, problem: str) -> TypeError:
        return TypeError(
            f"variable '{self.name}' {problem}. In static mode it has a value only while a program runs: "
            "Executor.run(program, feed, fetch_list=[variable]) returns it"
        )
