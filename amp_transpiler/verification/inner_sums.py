"""Finds the nodes whose sums leave the low format inside, on a device whose kernels add up in it.

The errors that a sweep finds are those of results rounded once: they know nothing of sums that overflow on their way.
So each node with such a kernel runs once more, as the device computes it, on float32 inputs that are rounded.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.names import operator_name
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.passes.emulate import emulate_in_place
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.targets.arithmetic import DeviceArithmetic
from amp_transpiler.verification.low_twins import replicate

__all__ = ["adds_in_low", "overflowing_inside", "with_overflows_inside"]

logger = logging.getLogger(__name__)

_SAMPLES = 3  # that run

_NOT_RUN: tuple[type[Exception], ...] = (*RUN_ERRORS, ModelError)


def adds_in_low(arithmetic: DeviceArithmetic | None, node: ir.Node, low: LowFormat) -> bool:
    """Whether a device's kernel of a node, in the low format, adds up in that format."""
    if arithmetic is None:
        return False
    return any(row.sums_in == "low" for row in arithmetic.rows.get((operator_name(node), low.name), ()))


def with_overflows_inside(
    evidence: Evidence,
    prepared: Program,
    low: LowFormat,
    forms: Mapping[str, LowForm],
    samples: Sequence[Mapping[str, Any]],
    arithmetic: DeviceArithmetic | None,
) -> Evidence:
    """Return evidence in which the error of a node whose sum overflows inside is infinite.

    Args:
        evidence: that of a sweep.
        prepared: the program; not changed.
        low: the low format.
        forms: node -> its low form.
        samples: the inputs; the first few run.
        arithmetic: the device's; None where it is not known.
    """
    try:
        beyond = overflowing_inside(prepared, low, forms, samples, arithmetic)
    except _NOT_RUN as error:
        logger.info("which sums overflow inside is not known: %s", error_text(error))
        return evidence
    if not beyond:
        return evidence

    def spoiled(known: Mapping[str, float]) -> dict[str, float]:
        return {name: math.inf if square and name in beyond else square for name, square in known.items()}

    return dataclasses.replace(
        evidence,
        node_errors=spoiled(evidence.node_errors),
        node_errors_by_output={name: spoiled(known) for name, known in evidence.node_errors_by_output.items()},
        alone_errors=spoiled(evidence.alone_errors),
    )


def overflowing_inside(
    prepared: Program,
    low: LowFormat,
    forms: Mapping[str, LowForm],
    samples: Sequence[Mapping[str, Any]],
    arithmetic: DeviceArithmetic | None,
) -> frozenset[str]:
    """Return the nodes of the main graph whose results are not finite, since the device adds up in the low format.

    Args:
        prepared: the program; not changed.
        low: the low format.
        forms: node -> its low form.
        samples: the inputs; the first few run.
        arithmetic: the device's; None where it is not known.

    Raises:
        RUN_ERRORS: the program does not run with the nodes doubled.
        ModelError: likewise.
    """
    twins = prepared.clone()
    names = _add_twins(twins, low, forms, arithmetic)
    if not names or arithmetic is None:
        return frozenset()
    few, beyond = samples[:_SAMPLES], set()
    shapes = {name: np.shape(value) for name, value in few[0].items() if isinstance(value, np.ndarray)}
    program = emulate_in_place(simulated(twins, arithmetic, shapes).program)
    with open_program(program, emulate=False, fuse=False) as session:
        wanted = {info.name for info in session.inputs}
        for sample in few:
            sizes = session.run({name: value for name, value in sample.items() if name in wanted})
            beyond |= {name for name, size in zip(names, sizes, strict=True) if not math.isfinite(float(size))}
    return frozenset(beyond)


def _add_twins(
    program: Program, low: LowFormat, forms: Mapping[str, LowForm], arithmetic: DeviceArithmetic | None
) -> list[str]:
    """Give a program a low twin of every node that adds up in the low format, and only their errors as outputs.

    Returns:
        The names of the nodes. Each has one output: by how much its results differ from those in float32, in all.
    """
    graph = program.model.graph
    builder = GraphBuilder(program.model)
    lowered: dict[ir.Value, ir.Value] = {}
    names, outputs = [], []
    for node in list(graph):
        form = forms.get(str(node.name))
        if form is None or has_bodies(node) or 0 not in form.outputs or not adds_in_low(arithmetic, node, low):
            continue
        if all(value is None or constant_of(value) is not None for value in node.inputs):
            continue  # folded
        result = _low_twin(builder, node, form, low, lowered)
        difference = builder.sub(builder.cast(result, ir.DataType.FLOAT), node.outputs[0])
        outputs.append(builder.op("ReduceL1", [difference], {"keepdims": 0}))
        names.append(str(node.name))
    graph.outputs[:] = outputs
    program.source = None
    program.touch()
    return names


def _low_twin(
    builder: GraphBuilder, node: ir.Node, form: LowForm, low: LowFormat, lowered: dict[ir.Value, ir.Value]
) -> ir.Value:
    """Append a copy of a node in the low format; return its first result."""
    inputs = {}
    for index in sorted(form.inputs):
        value = node.inputs[index]
        if is_float32(value):
            if value not in lowered:
                lowered[value] = builder.cast(value, low.dtype)
            inputs[value] = lowered[value]
    results = replicate(builder, node, inputs)
    for index in form.outputs:
        results[index].type = ir.TensorType(low.dtype)
    return results[0]
