"""`append_backward` and `gradients` append the backward pass to the program being built."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff import differentiate
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.regions import inside_region_of
from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.paddle.framework.build_record import build_record
from amp_transpiler.paddle.framework.rollback import all_or_nothing
from amp_transpiler.paddle.framework.scalar_loss import as_one_number, check_loss
from amp_transpiler.paddle.framework.without_gradient import few, warn_without_gradient, why_without_gradient
from amp_transpiler.program.program import Program, Variable

__all__ = ["append_backward", "gradients"]

logger = logging.getLogger(__name__)


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
    callbacks: Sequence[object] | None = None,
    checkpoints: Sequence[Variable | str] | None = None,
) -> list[tuple[Variable, Variable]]:
    """Append the backward pass of `loss` to its program.

    Args:
        loss: a float variable with one element.
        parameter_list: parameters to differentiate with respect to; all trainable ones unless given. Those that
            gradients stop at are left out, as with `trainable=False`.
        no_grad_set: variables that gradients stop at, beside those with `stop_gradient`.
        callbacks: Paddle's, must be None.
        checkpoints: Paddle's, no effect: `Executor(recompute=True)` computes cheap activations again.

    Returns:
        (parameter, gradient) for every parameter that the loss depends on; the gradient is named `PARAMETER@GRAD`.

    Raises:
        InputError: the loss is no float of one element, or has an open dimension, or depends on no parameter.
        ModelError: an operator in between cannot be differentiated.
        OptionError: there are callbacks.
    """
    if callbacks:
        raise OptionError("append_backward: callbacks see Paddle's operators while they are made: there are none here")
    if checkpoints:
        logger.info("append_backward: checkpoints have no effect; Executor(recompute=True) saves memory")
    check_loss(loss)
    stopped = _names(loss.program, "no_grad_set", no_grad_set)
    listed = None if parameter_list is None else _listed("parameter_list", parameter_list)
    with all_or_nothing(loss.program):
        return _append_backward(loss, listed, stopped)


def _append_backward(
    loss: Variable, parameter_list: Collection[Variable | str] | None, no_grad_set: set[str]
) -> list[tuple[Variable, Variable]]:
    program = loss.program
    parameters = (
        [_variable(program, p) for p in parameter_list] if parameter_list is not None else program.all_parameters()
    )
    stopped = program.no_gradient | no_grad_set
    parameters = [parameter for parameter in parameters if parameter.trainable and parameter.name not in stopped]
    if not parameters:
        raise InputError(
            f"there is no trainable parameter to differentiate '{loss.name}' by: each has trainable=False or "
            "stop_gradient, or is in no_grad_set"
        )
    if loss.name not in program.outputs:
        program.outputs.append(loss.name)
    target = as_one_number(loss).name
    gradient_of = _differentiate(program, {target: None}, [p.name for p in parameters], no_grad_set)
    pairs = [(parameter, gradient_of[parameter.name]) for parameter in parameters if parameter.name in gradient_of]
    if not pairs:
        names = [parameter.name for parameter in parameters]
        why = why_without_gradient(program, target, names, no_grad_set)
        raise InputError(f"the loss '{loss.name}' has a gradient for none of {few(names)}: {why}")
    missing = [parameter for parameter in parameters if parameter.name not in gradient_of]
    warn_without_gradient(program, target, missing, no_grad_set)
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
        inputs: variables of the same program; those with `stop_gradient` too.
        target_gradients: the gradients to start from, one for each target; ones unless given.
        no_grad_set: variables that gradients stop at, beside those with `stop_gradient`.

    Returns:
        A gradient for each input, None where the targets do not depend on it, or where it is in `no_grad_set`.
    """
    targets = [targets] if isinstance(targets, Variable) else list(targets)
    inputs = [inputs] if isinstance(inputs, Variable) else list(inputs)
    initial = [target_gradients] if isinstance(target_gradients, Variable) else target_gradients
    starts = list(initial) if initial is not None else [None] * len(targets)
    if len(starts) != len(targets):
        raise InputError(f"gradients: {len(targets)} targets, but {len(starts)} target_gradients: give one each")
    program = targets[0].program
    seeds = {t.name: None if s is None else s.value for t, s in zip(targets, starts, strict=True)}
    stopped = _names(program, "no_grad_set", no_grad_set)
    with all_or_nothing(program):
        gradient_of = _differentiate(program, seeds, [i.name for i in inputs if i.name not in stopped], stopped)
    return [gradient_of.get(i.name) for i in inputs]


def _differentiate(
    program: Program,
    seeds: dict[str, ir.Value | None],
    inputs: Sequence[str],
    no_grad_set: set[str],
) -> dict[str, Variable]:
    builder = program.builder("backward")
    stop = (program.no_gradient | no_grad_set) - set(inputs)
    values = {program.value(name) for name in stop if program.find(name) is not None}
    started = {
        program.value(n): s if s is not None else _ones_like(builder, program.value(n)) for n, s in seeds.items()
    }
    _follow_custom_gradients(program, started, values)
    gradient_of = differentiate(builder, started, [program.value(name) for name in inputs], values, defers=True)
    named = {}
    for name in inputs:
        value = program.value(name)
        if value in gradient_of:
            label = builder.names.fresh(f"{name}@GRAD")
            maker = gradient_of[value].producer()
            with inside_region_of(*() if maker is None else (maker,)):
                gradient = builder.op("Identity", [gradient_of[value]], name=label)
            gradient.shape = value.shape
            named[name] = Variable(program, label)
    return named


def _follow_custom_gradients(program: Program, started: dict[ir.Value, ir.Value], stop: set[ir.Value]) -> None:
    """Add the gradients that the functions of `static_pylayer` return, the last layer first.

    What a layer returns hangs on nothing: gradients stop there, and start again at the layer's inputs.
    """
    builder = program.builder("backward")
    for inputs, outputs, function in reversed(build_record(program).custom_gradients):
        if any(program.find(name) is None for name in (*inputs, *outputs)):
            continue  # of a clone that has lost it
        ends = [program.value(name) for name in outputs]
        gradient_of = differentiate(builder, started, [end for end in ends if end not in stop], stop, defers=True)
        if not gradient_of:
            continue
        earlier = set(program.model.graph)
        output_gradients = [gradient_of[end] if end in gradient_of else builder.zeros_like(end) for end in ends]
        returned = function(*(Variable(program, str(value.name)) for value in output_gradients))
        listed = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        if len(listed) != len(inputs):
            raise InputError(
                f"static_pylayer: backward_fn returns {len(listed)} gradients for {len(inputs)} inputs: return one for "
                "each, None where there is none"
            )
        for name, gradient in zip(inputs, listed, strict=True):
            value = program.value(name)
            if gradient is None or value in stop:
                continue
            cast = builder.cast(gradient.value, value.dtype)
            started[value] = builder.add(started[value], cast) if value in started else cast
        for node in program.model.graph:
            if node not in earlier:
                node.metadata_props[ROLE_KEY] = "backward"


def _ones_like(builder: GraphBuilder, value: ir.Value) -> ir.Value:
    if is_static(value):
        dtype = value.dtype or ir.DataType.FLOAT
        return builder.constant(np.ones(shape_of(value), dtype.numpy()), dtype)
    return builder.expand_like(builder.constant(1, value.dtype), value)


def _names(program: Program, what: str, variables: Collection[Variable | str] | None) -> set[str]:
    """Return the names in a list of variables, with a warning of those that the program does not have."""
    names = {program.name_of(item) for item in _listed(what, () if variables is None else variables)}
    if unknown := sorted(name for name in names if program.find(name) is None):
        logger.warning("%s: %r has no variable %s", what, program, ", ".join(map(repr, unknown)))
    return names


def _listed(what: str, variables: Collection[Variable | str]) -> Collection[Variable | str]:
    """Return a list or set of variables and names.

    Raises:
        InputError: it is something else, such as a single name.
    """
    if isinstance(variables, (str, Variable)) or not all(isinstance(item, (str, Variable)) for item in variables):
        raise InputError(f"{what} must be a list or set of variables and names, got {variables!r}")
    return variables


def _variable(program: Program, parameter: Variable | str) -> Variable:
    return program.var(parameter if isinstance(parameter, str) else parameter.name)
