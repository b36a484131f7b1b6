"""`cast_model_to_fp16` and `cast_parameters_to_fp16`: Paddle's two functions below `decorate`, on ONNX programs."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Container, Mapping, MutableMapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.conversion import prepare_and_convert
from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import LowFormat, low_format
from amp_transpiler.graph.name_matching import is_pattern
from amp_transpiler.graph.regions import has_guard
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.vocabulary import known_operator
from amp_transpiler.precision.policy import Policy
from amp_transpiler.program.program import Program, install
from amp_transpiler.systems.paddle.levels import find_level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.systems.paddle.policy import paddle_policy
from amp_transpiler.targets import CUDA

__all__ = ["cast_model_to_fp16", "cast_parameters_to_fp16", "cast_program"]

logger = logging.getLogger(__name__)


def cast_model_to_fp16(
    program: Program | ir.Model | onnx.ModelProto,
    amp_lists: AutoMixedPrecisionLists | None = None,
    use_fp16_guard: bool = True,
    dest_type: str = "float16",
    level: str = "O2",
    use_promote: bool = False,
) -> set[str]:
    """Convert a program to lower precision, in place.

    On an error the program is unchanged. Graph inputs and outputs keep their types; weights are converted too. A
    loaded model without any `fp16_guard` region counts as guarded everywhere. A program that was built without one
    stays as it is while the guard is on, as in Paddle, with a warning.

    Args:
        program: the program. This object itself is edited.
        amp_lists: white, black and gray operators; None for the defaults.
        use_fp16_guard: only nodes inside an `fp16_guard` region become low.
        dest_type: `float16` or `bfloat16`.
        level: `O2` (pure), `O1` (lists), `OD` (white operators only), `O0` (nothing), or `auto`.
        use_promote: Paddle's promotion: an operator that the lists leave open stays float32 if one of its inputs is
            float32, and runs in lower precision otherwise. Constants do not count at levels auto and O2.

    Returns:
        The names of the weights and constants that are low now.

    Raises:
        TypeError: `program` is a path; `transpile` converts files.
        InputError: the program is not valid, or an option has no such value.
    """
    if isinstance(program, (str, os.PathLike)):
        raise TypeError(
            f"cast_model_to_fp16 edits a program in memory, got the path {os.fspath(program)!r}: convert files with "
            "amp_transpiler.transpile(src, dst), or amp_transpiler.load(path) first"
        )
    policy = paddle_policy(find_level(level), low_format(dest_type), CUDA, amp_lists, use_promote=use_promote)
    return cast_program(program, policy, use_guard=use_fp16_guard)


def cast_program(program: Program | ir.Model | onnx.ModelProto, policy: Policy, *, use_guard: bool | None) -> set[str]:
    """Convert a program in place by the rules of any system; see `cast_model_to_fp16`.

    Args:
        program: the program. On an error it is unchanged.
        policy: how to decide.
        use_guard: only nodes inside an `fp16_guard` region become low; None: only if the program has such a region.

    Returns:
        The names of the weights and constants that are low now.
    """
    source = load(program)
    policy = dataclasses.replace(policy, use_guard=use_guard is not False, outputs_as_computed=source.has_variables)
    if policy.copies or (use_guard and _is_unguarded(source, policy)):
        return set()
    lists = policy.rules.lists
    for name in sorted({*lists.custom_white_list, *lists.custom_black_list}):
        if is_pattern(name) and not known_operator(name):
            logger.warning("%s: only transpile looks up patterns of operators; it has no effect here", name)
    work = source.clone()
    converted = set(prepare_and_convert(work, policy).converted)
    if isinstance(program, onnx.ModelProto):
        program.CopyFrom(work.to_onnx())
    else:
        if source.is_training:
            converted |= _low_parameters(source, work, policy.low.dtype)
        install(source.model, work.model)
        source.touch()
        source.notes = work.notes
        source.before = work.before
        source.source = None
    return converted


def _is_unguarded(program: Program, policy: Policy) -> bool:
    """Whether a guard that is on leaves nothing to convert: the program was built, and nothing inside a region."""
    if has_guard(program.model):
        return False
    if not program.is_built:
        logger.info("the program has no fp16_guard region: it counts as guarded everywhere")
        return False
    logger.warning(
        "%r stays float32: the guard is on, and nothing was built inside fp16_guard. Build what may be %s inside "
        "`with fp16_guard():`, or switch the guard off (use_fp16_guard=False, in decorate's second form "
        "use_amp_guard=False)",
        program,
        policy.low.name,
    )
    return True


def _low_parameters(before: Program, after: Program, low: ir.DataType) -> set[str]:
    """Return the names of a training program's parameters that the conversion made low."""
    names = (p.name for p in before.persistables.values() if p.kind == "parameter")
    return {name for name in names if after.value(name).dtype == low and before.value(name).dtype != low}


def cast_parameters_to_fp16(
    place: Any,
    program: Program | ir.Model | onnx.ModelProto,
    scope: MutableMapping[str, np.ndarray] | None = None,
    to_fp16_var_names: Collection[str] | None = None,
    dest_type: str = "float16",
    rewrite_master_weight: bool = False,
    master_weights: Mapping[str, str] | None = None,
) -> None:
    """Round the values of parameters that `cast_model_to_fp16` made low, where they live in a scope.

    A loaded ONNX program carries its weights, and `cast_model_to_fp16` has converted them, so nothing is left to do.
    A parameter that was set since its master weight was made (pretrained weights) gives the master its unrounded value.
    A name that the program does not have, or that is still float32, is warned of.

    Args:
        place: Paddle's argument; ignored, since the values are in `scope` or in the program.
        program: the program that was cast.
        scope: parameter name -> array, for a program that does not carry its values. Float32 arrays are rounded in it.
        to_fp16_var_names: the names that `cast_model_to_fp16` returned; nothing is done for None or an empty set.
        dest_type: `float16` or `bfloat16`, for the arrays in `scope`.
        rewrite_master_weight: also give the master weights in `scope` the rounded values.
        master_weights: parameter name -> name of its float32 master weight.
    """
    if not to_fp16_var_names:
        return
    low, masters = low_format(dest_type), master_weights or {}
    if scope is not None:
        for name in sorted(set(to_fp16_var_names) & scope.keys()):
            _round_in_scope(scope, name, low, masters.get(name), rewrite=rewrite_master_weight)
    loaded = load(program)
    if loaded.is_training:
        _warn_of_missing(loaded, scope or {}, to_fp16_var_names)
        return
    model = loaded.model
    held = {str(name): value.dtype for s in scopes(model) for name, value in s.graph.initializers.items()}
    held |= {str(v.name): v.dtype for s in scopes(model) for n in s.graph if n.op_type == "Constant" for v in n.outputs}
    for name in sorted(to_fp16_var_names):
        if scope is not None and name in scope:
            continue
        if name not in held:
            logger.warning("parameter '%s' is not in the program: not converted", name)
        elif held[name] == ir.DataType.FLOAT:
            logger.warning("parameter '%s' is float32 in the program: run cast_model_to_fp16 first", name)


def _round_in_scope(
    scope: MutableMapping[str, np.ndarray], name: str, low: LowFormat, master: str | None, *, rewrite: bool
) -> None:
    """Round a parameter, and give its master weight the rounded value, or the unrounded one if that was set later."""
    from amp_transpiler.systems.paddle.master_weights import newer_value

    value = scope[name]
    if value.dtype == np.float32:
        scope[name] = value.astype(low.numpy)
    if master is None or master not in scope:
        return
    if rewrite and value.dtype == np.float32:
        scope[master] = scope[name].astype(np.float32)
    elif (newer := newer_value(value, scope[master], low.numpy)) is not None:
        logger.info("'%s' was set since its master weight '%s' was made, which takes over its values", name, master)
        scope[master] = newer


def _warn_of_missing(program: Program, scope: Container[str], names: Collection[str]) -> None:
    for name in sorted(names):
        if name in program.persistables and name not in scope:
            logger.warning("parameter '%s' is not in the scope: run the startup program first", name)
