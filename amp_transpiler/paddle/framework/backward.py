"""`append_backward` and `gradients`: the backward pass of the program being built."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff import differentiate
from amp_transpiler.errors import InputError
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.program import Program, Variable
from amp_transpiler.graph.regions import inside_region_of
from amp_transpiler.paddle.framework.rollback import all_or_nothing
from amp_transpiler.paddle.framework.scalar_loss import as_one_number, check_loss
from amp_transpiler.paddle.framework.without_gradient import warn_without_gradient

__all__ = ["append_backward", "gradients"]


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
) -> list[tuple[Variable, Variable]]:
    """Append the backward pass of `loss` to its program.

    Args:
        loss: a float variable with one element.
        parameter_list: parameters to differentiate with respect to; all trainable ones unless given.
        no_grad_set: variables that no gradient passes through.

    Returns:
        (parameter, gradient) for every parameter that the loss depends on; the gradient is named `PARAMETER@GRAD`.

    Raises:
        InputError: the loss is no float of one element, or has an open dimension, or depends on no parameter.
        ModelError: an operator in between cannot be differentiated.
    """
    check_loss(loss)
    with all_or_nothing(loss.program):
        return _append_backward(loss, parameter_list, no_grad_set or ())


def _append_backward(
    loss: Variable, parameter_list: Sequence[Variable | str] | None, no_grad_set: Collection[Variable | str]
) -> list[tuple[Variable, Variable]]:
    program = loss.program
    wanted = [_variable(program, p) for p in parameter_list] if parameter_list is not None else program.all_parameters()
    wanted = [parameter for parameter in wanted if parameter.trainable]
    if not wanted:
        raise InputError(f"there is no trainable parameter to differentiate '{loss.name}' by")
    if loss.name not in program.outputs:
        program.outputs.append(loss.name)
    target = as_one_number(loss).name
    found = _differentiate(program, {target: None}, [p.name for p in wanted], no_grad_set)
    pairs = [(parameter, found[parameter.name]) for parameter in wanted if parameter.name in found]
    if not pairs:
        raise InputError(f"the loss '{loss.name}' depends on none of {', '.join(p.name for p in wanted)}")
    missing = [parameter for parameter in wanted if parameter.name not in found]
    warn_without_gradient(program, target, missing, no_grad_set or ())
    return pairs


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
) -> list[Variable | None]:
    """Append the computation of the gradients of `targets` with respect to `inputs`.

    Args:
        targets: variables of one program; the gradients of several are summed.
        inputs: variables of the same program, whether or not gradients stop at them.
        target_gradients: the gradients to start from, one for each target; ones unless given.
        no_grad_set: variables that no gradient passes through.

    Returns:
        A gradient for each input, None where the targets do not depend on it.
    """
    targets = [targets] if isinstance(targets, Variable) else list(targets)
    inputs = [inputs] if isinstance(inputs, Variable) else list(inputs)
    given = [target_gradients] if isinstance(target_gradients, Variable) else target_gradients
    starts = list(given) if given is not None else [None] * len(targets)
    if len(starts) != len(targets):
        raise InputError(f"gradients: {len(targets)} targets, but {len(starts)} target_gradients: give one each")
    program = targets[0].program
    seeds = {t.name: None if s is None else s.value for t, s in zip(targets, starts, strict=True)}
    with all_or_nothing(program):
        found = _differentiate(program, seeds, [i.name for i in inputs], no_grad_set or ())
    return [found.get(i.name) for i in inputs]


def _differentiate(
    program: Program,
    seeds: dict[str, ir.Value | None],
    wanted: Sequence[str],
    no_grad_set: Collection[Variable | str],
) -> dict[str, Variable]:
    builder = program.builder("backward")
    stop = program.no_gradient | {v if isinstance(v, str) else v.name for v in no_grad_set}
    values = {program.value(name) for name in stop - set(wanted) if program.find(name) is not None}
    started = {
        program.value(n): s if s is not None else _ones_like(builder, program.value(n)) for n, s in seeds.items()
    }
    found = differentiate(builder, started, [program.value(name) for name in wanted], values)
    named = {}
    for name in wanted:
        value = program.value(name)
        if value in found:
            label = builder.names.fresh(f"{name}@GRAD")
            maker = found[value].producer()
            with inside_region_of(*() if maker is None else (maker,)):
                gradient = builder.op("Identity", [found[value]], name=label)
            gradient.shape = value.shape
            named[name] = Variable(program, label)
    return named


def _ones_like(builder: GraphBuilder, value: ir.Value) -> ir.Value:
    if is_static(value):
        dtype = value.dtype or ir.DataType.FLOAT
        return builder.constant(np.ones(shape_of(value), dtype.numpy()), dtype)
    return builder.expand_like(builder.constant(1, value.dtype), value)


def _variable(program: Program, parameter: Variable | str) -> Variable:
    return program.var(parameter if isinstance(parameter, str) else parameter.name)
