"""`paddle.amp.debugging`: finds infinity and NaN in static programs, and counts operators by precision.

`diagnose_training` is no function of Paddle's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.paddle.amp.diagnosis_rows import TrainingDiagnosis
from amp_transpiler.paddle.amp.training_diagnosis import diagnose_training
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, wrap
from amp_transpiler.paddle.static.accuracy_comparison import compare_accuracy
from amp_transpiler.paddle.static.amp import debugging as static_debugging
from amp_transpiler.paddle.static.operator_stats import (
    OperatorStats,
    collecting_operator_stats,
    disable_operator_stats_collection,
    enable_operator_stats_collection,
)
from amp_transpiler.paddle.static.tensor_checker import (
    DebugMode,
    TensorCheckerConfig,
    Watched,
    disable_tensor_checker,
    enable_tensor_checker,
    watch,
)
from amp_transpiler.program.program import Program, Variable

__all__ = [
    "DebugMode",
    "OperatorStats",
    "TensorCheckerConfig",
    "TrainingDiagnosis",
    "check_layer_numerics",
    "check_numerics",
    "collect_operator_stats",
    "compare_accuracy",
    "diagnose_training",
    "disable_operator_stats_collection",
    "disable_tensor_checker",
    "enable_operator_stats_collection",
    "enable_tensor_checker",
]


def collect_operator_stats(
    program: Program | None = None, print_subblocks: bool = False
) -> contextlib.AbstractContextManager[None] | dict[str, OperatorStats]:
    """Count the operators of every program that runs in a `with` statement, and print the table at its end.

        with paddle.amp.debugging.collect_operator_stats():
            exe.run(main, feed, [loss])

    Args:
        program: with one, the operators of that program are counted at once, as by
            `static.amp.debugging.collect_operator_stats`.
        print_subblocks: see there.

    Returns:
        A context manager; for a program, operator -> counts.
    """
    if program is None:
        return collecting_operator_stats()
    return static_debugging.collect_operator_stats(program, print_subblocks)


def check_numerics(
    tensor: Variable,
    op_type: str,
    var_name: str,
    debug_mode: DebugMode = DebugMode.CHECK_NAN_INF_AND_ABORT,
) -> tuple[Variable, Variable]:
    """Check a tensor in each run of its program, and let the program compute statistics of it.

    Args:
        tensor: a float variable.
        op_type: the operator that messages name.
        var_name: the name of the tensor in messages.
        debug_mode: whether a run stops at infinity and NaN, before it changes anything, or what is printed of it.

    Returns:
        How many elements are NaN, infinite and zero (int64, shape [3]), and the largest, smallest and mean one
        (float32, shape [3]).

    Raises:
        InputError: it is no float variable.
    """
    if not is_float_tensor(tensor.value):
        raise InputError(f"check_numerics looks at float variables, and '{tensor.name}' is {tensor.dtype}")
    watch(tensor.program, [Watched(tensor.name, op_type, var_name, debug_mode)])
    b = builder_of(tensor)
    x = b.cast(tensor.value, ir.DataType.FLOAT)
    zero = b.constant(np.zeros((), np.float32))
    facts = (b.op("IsNaN", [x]), b.op("IsInf", [x]), b.op("Equal", [x, zero]))
    vector_shape = [1]
    counts = [
        b.reshape(b.op("ReduceSum", [b.cast(fact, ir.DataType.INT64)], {"keepdims": 0}), vector_shape) for fact in facts
    ]
    reduced = [
        b.reshape(b.op(kind, [x], {"keepdims": 0}), vector_shape) for kind in ("ReduceMax", "ReduceMin", "ReduceMean")
    ]
    return wrap(tensor, b.concat(counts, 0)), wrap(tensor, b.concat(reduced, 0))


def check_layer_numerics(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a layer's `forward`: a run stops, before it changes anything, if what it reads or makes is not finite.

    All variables among its arguments are looked at, also in lists, tuples and dictionaries; so are the output of every
    operator that it appends, and what it returns. The first argument must be a variable, as in Paddle. (Paddle looks at
    the gradients of these operators, too; here `enable_tensor_checker` does.)

    Raises:
        InputError: (when it is called) the first argument is no variable of a program.
    """

    @functools.wraps(func)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Variable):
            argument = repr(args[0])[:80] if args else "nothing"
            raise InputError(f"check_layer_numerics: the first argument of forward must be a variable, got {argument}")
        program, layer = args[0].program, type(self).__name__
        before = {str(value.name) for node in program.model.graph for value in node.outputs}
        result = func(self, *args, **kwargs)
        tensors = {variable.name: f"{layer} (its input)" for variable in _variables((args, kwargs))}
        for op in program.blocks[0].ops:
            tensors |= dict.fromkeys([name for name in op.output_arg_names if name not in before], op.type)
        for variable in _variables(result):
            tensors.setdefault(variable.name, f"{layer} (its output)")
        abort = DebugMode.CHECK_NAN_INF_AND_ABORT
        values = ((name, op, program.find(name)) for name, op in tensors.items())
        watch(program, [Watched(name, op, name, abort) for name, op, value in values if is_float_tensor(value)])
        return result

    return forward


def _variables(arguments: Any) -> Iterator[Variable]:
    """Yield the variables of what a layer takes or returns."""
    if isinstance(arguments, Variable):
        yield arguments
    elif isinstance(arguments, (list, tuple, dict)):
        for item in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from _variables(item)


check_arguments(globals(), ["check_numerics"])
