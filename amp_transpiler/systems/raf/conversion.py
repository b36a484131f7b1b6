"""`autocast`: RAF's AutoCast pass over a whole program: forward pass, backward pass and optimizer."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from amp_transpiler.conversion import prepare_and_convert
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.dtypes import LowFormat, low_format, parse_dtype
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.passes.inserted_casts import add_cast, rename_output
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.feeds import check_feeds, model_inputs
from amp_transpiler.systems.choice import Request, choose_policy

__all__ = ["autocast"]


def autocast(
    program: Program | ir.Model | onnx.ModelProto | str | os.PathLike[str],
    args: Mapping[str, Any] | Sequence[Any] | None = None,
    dtype: str = "float16",
    out_dtype: str | None = None,
) -> Program:
    """Return a mixed-precision copy of a program, by RAF's casting rules.

    Compute-intensive operators are always low, sensitive ones never; the others follow the majority of their inputs.
    `casting_rule` and `CustomTypeHint` change the rule of an operator. The parameters of a training program stay
    float32 in the scope: they are cast where they are read, and updates are float32. The constants of a loaded model
    are converted in the file.

    Args:
        program: a model, or a complete training step. It is not changed.
        args: example inputs, by name or in order. They are only checked: the program states all types itself.
        dtype: `float16` or `bfloat16`.
        out_dtype: the type of outputs that are computed low, `dtype` by default. Other outputs keep their type.

    Returns:
        A new program.

    Raises:
        OptionError: (a ValueError) an operator has no rule, a rule gives wrong hints, or a type is unknown.
        InputError: `args` do not fit the program's inputs, or the program is not valid.
    """
    low = low_format(dtype)
    outputs_low = _stays_low(out_dtype, low)
    source = load(program)
    if args is not None:
        _check_args(source, args)
    work = source.clone()
    policy = choose_policy(Request(policy="raf", dtype=low.name))
    prepare_and_convert(work, dataclasses.replace(policy, outputs_as_computed=outputs_low))
    if not outputs_low:
        _widen_outputs(work, low)
    return work


def _stays_low(out_dtype: str | None, low: LowFormat) -> bool:
    """Whether outputs that are computed low stay low.

    Raises:
        OptionError: `out_dtype` is neither float32 nor the low format.
    """
    wanted = low.dtype if out_dtype is None else parse_dtype(out_dtype)
    if wanted not in (low.dtype, ir.DataType.FLOAT):
        raise OptionError(f"out_dtype is {out_dtype!r}: expected 'float32' or the low format, '{low.name}'")
    return wanted == low.dtype


def _check_args(program: Program, args: Mapping[str, Any] | Sequence[Any]) -> None:
    infos = [info for info in model_inputs(program.model) if info.name not in program.persistables]
    if isinstance(args, str) or not isinstance(args, (Mapping, Sequence)):
        raise InputError(
            f"args: got {type(args).__name__}, expected a dict of arrays by input name, or a list in order"
        )
    if not isinstance(args, Mapping):
        if len(args) > len(infos):
            names = ", ".join(info.name for info in infos)
            raise InputError(f"args: got {len(args)} arrays, the program has {len(infos)} inputs: {names}")
        args = {info.name: array for info, array in zip(infos, args, strict=False)}
    check_feeds(args, infos, lenient=True, where="args")


def _widen_outputs(program: Program, low: LowFormat) -> None:
    """Cast low outputs to float32, those that the source program had low among them."""
    graph, names = program.model.graph, NameAllocator(program.model)
    for index, value in enumerate(list(graph.outputs)):
        if value.dtype == low.dtype:
            wide = add_cast(value, ir.DataType.FLOAT, "fp32", names)
            graph.outputs[index] = wide
            rename_output(value, wide, names, "fp32")
