"""Float16 with the blocked nodes in bfloat16: float32's range where float16 lacks it, at half of its bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import onnx_ir as ir

from amp_transpiler.conversion import fitted, prepare_and_convert
from amp_transpiler.errors import OptionError
from amp_transpiler.graph.regions import DISABLE_AMP, FP16_GUARD, REGION_KEY, drop_region, enter, is_guarded
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.precision.policy import Policy
from amp_transpiler.program.program import Program
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.systems.program_names import IoTypes, low_inputs_and_outputs

__all__ = ["convert_with_bfloat16"]

_OPTIONS = ("target", "ort")


def convert_with_bfloat16(
    program: Program, blocked: Collection[ir.Node], io_types: IoTypes, options: Mapping[str, Any]
) -> Program:
    """Make blocked nodes bfloat16, where they can be, and others float16, in place; return the program.

    Args:
        program: a program that nobody else uses.
        blocked: its blocked nodes, in a `disable_amp` region.
        io_types: the inputs and outputs that keep their types.
        options: the user's options of `transpile`.

    Raises:
        OptionError: an option needs a comparison, which knows one low format only.
    """
    if other := sorted(options.keys() - set(_OPTIONS)):
        raise OptionError(
            f"use_bfloat16_as_blocked_nodes_dtype goes only with {' and '.join(_OPTIONS)}, got {other[0]}: leave one "
            "of them out; without it, blocked nodes are float32"
        )
    drop_region(program.model, DISABLE_AMP)
    for node in blocked:
        enter(node, FP16_GUARD)
    if blocked:
        prepare_and_convert(program, _policy("bfloat16", options))
    for node in all_nodes(program.model):
        if is_guarded(node):
            node.metadata_props[REGION_KEY] = DISABLE_AMP
    policy = _policy("float16", options)
    low_io = low_inputs_and_outputs(program, io_types, "float16")
    prepare_and_convert(program, dataclasses.replace(fitted(policy, program), low_io=low_io))
    return program


def _policy(dtype: str, options: Mapping[str, Any]) -> Policy:
    """Return the policy of one of the two conversions, which does not touch the other's format."""
    return dataclasses.replace(choose_policy(Request(level="O2", dtype=dtype, **options)), widens=frozenset())
