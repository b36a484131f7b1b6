"""Keeps variables in arrays: `create_array`, `array_write`, `array_read` and `array_length`.

An array is known while a program is built: a list of variables. So gradients pass through what is written and read,
`concat` and `stack` take it, and nothing of it is left in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.ops.names import is_standard
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, program_of, wrap
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.program.program import Variable

__all__ = ["array_length", "array_read", "array_write", "create_array"]

_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Cast": np.asarray,
    "Identity": np.asarray,
    "Reshape": lambda number, _: number,
    "Squeeze": lambda number, *_: number,
    "Unsqueeze": lambda number, _: number,
}
"""Operators that indices are computed by, on numbers."""


class TensorArray(list[Variable]):
    """A list of variables of one element type.

    Attributes:
        dtype: their element type.
        graph: the graph that it belongs to: the main graph, or a body of control flow; None before it is known.
    """

    def __init__(self, dtype: ir.DataType, values: Iterable[Variable] = ()) -> None:
        super().__init__(values)
        self.dtype = dtype
        self.graph: ir.Graph | None = None


def create_array(dtype: Any, initialized_list: Iterable[Variable] | None = None) -> TensorArray:
    """Return an array, empty unless `initialized_list` is given.

    Args:
        dtype: the element type of its variables.
        initialized_list: its first variables.

    Raises:
        InputError: one of them is no variable, or of another element type.
    """
    array = TensorArray(parse_dtype(dtype))
    for value in initialized_list or ():
        _check(array, value)
        array.append(value)
    return array


def array_write(x: Variable, i: Variable | int, array: TensorArray | None = None) -> TensorArray:
    """Write a variable to a place of an array: over what is there, or behind the last.

    Args:
        x: the variable.
        i: the place: an integer variable of one element that the program states, perhaps by sums (`i + 1`); or a
            number. One that only a run knows, such as the counter of a `while_loop`, is refused.
        array: the array; a new one unless given.

    Returns:
        The array.

    Raises:
        InputError: the place is only known in a run, or lies behind the end; `x` is of another element type than the
            array, or inside of a branch or loop and the array outside.
    """
    if array is None:
        array = TensorArray(_dtype(x))
    _check(array, x)
    place = known_number(i) if isinstance(i, Variable) else int(i)
    if place is None:
        raise InputError(
            f"array_write: the place {_named(i)} is only known in a run: write to places that the program states. In a "
            "while_loop carry a tensor of [steps, ...] and write a row with paddle.scatter, or stack after the loop"
        )
    if not 0 <= place <= len(array):
        raise InputError(
            f"array_write: place {place} of an array of {len(array)}: write to 0 to {len(array)}, one after another"
        )
    if place == len(array):
        array.append(x)
    else:
        array[place] = x
    return array


def array_read(array: TensorArray, i: Variable | int) -> Variable:
    """Return the variable at a place of an array.

    Args:
        array: the array.
        i: the place: an integer variable of one element, or a number. Where only a run knows it, all variables must
            have the same sizes.

    Raises:
        InputError: there is nothing, or the sizes differ where only a run knows the place.
    """
    place = known_number(i) if isinstance(i, Variable) else int(i)
    if not len(array) or (place is not None and not 0 <= place < len(array)):
        raise InputError(f"array_read: there is nothing at place {_named(i)} of an array of {len(array)}")
    if place is not None:
        return array[place]
    assert isinstance(i, Variable)
    shapes = {tuple(value.shape) for value in array}
    if len(shapes) > 1:
        sizes = ", ".join(str(list(shape)) for shape in sorted(shapes))
        raise InputError(f"array_read: only a run knows the place {_named(i)}, and the sizes differ: {sizes}")
    b = builder_of(array[0], i)
    axis = b.constant(np.array([0]))
    rows = b.op("Concat", [b.op("Unsqueeze", [value.value, axis]) for value in array], {"axis": 0})
    return wrap(array[0], b.op("Gather", [rows, b.reshape(i.value, [])], {"axis": 0}))


def array_length(array: TensorArray) -> Variable:
    """Return how many variables are in an array: an int64 variable without axes."""
    program = program_of(*array) if array else default_main_program()
    builder = program.builder()
    length = builder.op("Identity", [builder.constant(np.array(len(array), np.int64))])
    return Variable(program, str(length.name))


def known_number(variable: Variable) -> int | None:
    """Return the integer that a variable of one element always is, or None."""
    array = _evaluated(variable.value)
    return None if array is None or array.size != 1 or array.dtype.kind not in "iu" else int(array.reshape(()))


def _evaluated(value: ir.Value | None) -> np.ndarray | None:
    array = constant_array(value)
    if array is not None or value is None:
        return array
    node = value.producer()
    if node is None or not is_standard(node) or node.op_type not in _NUMBERS:
        return None
    operands = [_evaluated(operand) for operand in node.inputs]
    if any(operand is None for operand in operands):
        return None
    result = np.asarray(_NUMBERS[node.op_type](*operands))
    return result if value.dtype is None else result.astype(value.dtype.numpy())


def _check(array: TensorArray, x: Variable) -> None:
    """Raise InputError if a variable cannot be in an array."""
    if _dtype(x) != array.dtype:
        raise InputError(f"an array of {array.dtype} takes no '{x.name}' of {x.value.dtype}: cast it")
    graph = builder_of(x).graph
    array.graph = array.graph or graph
    if graph is not array.graph:
        raise InputError(
            f"array_write: '{x.name}' is inside of a branch or loop, and the array outside, where nobody would know "
            "it: return it from the branch or loop, and write it there"
        )


def _dtype(x: Variable) -> ir.DataType:
    if not isinstance(x, Variable):
        raise InputError(f"an array takes variables, got {x!r:.80}")
    return x.value.dtype or ir.DataType.UNDEFINED


def _named(i: Variable | int) -> str:
    return f"'{i.name}'" if isinstance(i, Variable) else str(i)


check_arguments(globals(), __all__)
