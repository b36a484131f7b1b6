"""Gives variables their methods: the functions on tensors, and what only exists as a method. `Variable` looks here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.paddle import element_types
from amp_transpiler.paddle.building import axis_of, builder_of, emit, wrap
from amp_transpiler.paddle.framework.missing_names import why_not
from amp_transpiler.paddle.tensor import (
    creation,
    decompositions,
    distributions,
    elementwise,
    in_place,
    indexing,
    linalg,
    logic,
    packed,
    reduction,
    search,
    shaping,
    special,
    spectra,
    statistics,
)
from amp_transpiler.paddle.tensor.random import bernoulli, multinomial
from amp_transpiler.paddle.tensor.subscripts import getitem
from amp_transpiler.program.program import Variable
from amp_transpiler.program.retyped import set_unchecked

__all__ = ["METHODS", "PROPERTIES", "why_not"]

_NO_METHODS = {
    "as_tensor",
    "asarray",
    "cartesian_prod",
    "from_numpy",
    "arange",
    "assign",
    "empty",
    "eye",
    "fill_constant",
    "full",
    "linspace",
    "logspace",
    "meshgrid",
}
_NO_METHODS |= {
    "det",
    "eigh",
    "inv",
    "matrix_exp",
    "matrix_norm",
    "matrix_rank",
    "ones",
    "shape",
    "to_tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
    "einsum",
}


def detach(x: Variable) -> Variable:
    """Return a copy that no gradient passes through."""
    copy = emit("Identity", [x])
    copy.stop_gradient = True
    return copy


def softmax(x: Variable, axis: int = -1) -> Variable:
    """Return `exp(x)` over its sum along `axis`."""
    return emit("Softmax", [x], {"axis": axis_of(x, axis)})


def _itself(x: Variable, *_: Any, **__: Any) -> Variable:
    return x


def to(x: Variable, *args: Any, dtype: Any = None, **_: Any) -> Variable:
    """Return `x` in an element type, if one is among the arguments; a program runs where its executor says."""
    for argument in (*args, dtype):
        try:
            return x if argument is None else x.astype(parse_dtype(argument))
        except ValueError:  # a place or a flag
            continue
    return x


def element_size(x: Variable) -> int:
    """Return how many bytes an element has."""
    return int((x.value.dtype or ir.DataType.FLOAT).numpy().itemsize)


def _from_right(function: Callable[..., Variable]) -> Callable[..., Variable]:
    return lambda x, other: function(other, x)


def _needs_a_value(label: str) -> Callable[..., Any]:
    def refuse(x: Variable, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"variable '{x.name}' has no {label}(): in static mode it has a value only while a program runs. "
            "Executor.run(program, feed, fetch_list=[variable]) returns it; minimize and append_backward differentiate"
        )

    return refuse


# Their public functions are methods.
_MODULES = (
    creation,
    decompositions,
    distributions,
    elementwise,
    in_place,
    indexing,
    linalg,
    logic,
    packed,
    reduction,
    search,
    shaping,
    special,
    spectra,
    statistics,
)

METHODS: Mapping[str, Callable[..., Any]] = {
    **{name: vars(module)[name] for module in _MODULES for name in module.__all__ if name not in _NO_METHODS},
    "bernoulli": bernoulli,
    "multinomial": multinomial,
    "split_with_sizes": shaping.split,
    "repeat": shaping.tile,
    **{f"is_{kind}": vars(element_types)[f"is_{kind}"] for kind in ("complex", "floating_point", "integer", "tensor")},
    "detach": detach,
    "softmax": softmax,
    "to": to,
    "element_size": element_size,
    "cpu": _itself,
    "cuda": _itself,
    "contiguous": _itself,
    "pin_memory": _itself,
    "dim": lambda x: x.ndim,
    "ndimension": lambda x: x.ndim,
    "getitem": getitem,
    "rmod": _from_right(elementwise.mod),
    "rfloordiv": _from_right(elementwise.floor_divide),
    **{
        label: _needs_a_value(label)
        for label in ("numpy", "item", "tolist", "backward", "clear_grad", "clear_gradient")
    },
}
"""Name -> function of the variable and the other arguments."""


def _transposed(x: Variable) -> Variable:
    return wrap(x, builder_of(x).transpose(x.value, list(reversed(range(x.ndim)))))


def _size(x: Variable) -> int | Variable:
    count = 1
    for size in x.shape:
        if size < 0:
            return shaping.numel(x)
        count *= size
    return count


class Description:
    """Tells what Paddle's `variable.desc` says of a variable.

    Args:
        variable: the variable.
    """

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def name(self) -> str:
        """Return its name."""
        return self._variable.name

    def shape(self) -> list[int]:
        """Return its sizes, -1 for one that is free."""
        return list(self._variable.shape)

    def dtype(self) -> Any:
        """Return its element type."""
        return self._variable.value.dtype

    def set_need_check_feed(self, check: bool) -> None:
        """Set whether feeds are checked; if not, a feed decides type and rank, after `minimize` only the type."""
        set_unchecked(self._variable.value, not check)


PROPERTIES: Mapping[str, Callable[[Variable], Any]] = {
    "T": _transposed,
    "mT": shaping.matrix_transpose,
    "size": _size,
    "is_leaf": lambda x: x.value.producer() is None,
    "place": lambda _: None,
    "desc": Description,
    "grad": lambda _: None,
}
"""Name -> what the attribute is."""
