"""Measures what kernels that add up in the low format lose inside, node by node, on samples.

The errors that a sweep finds are those of results rounded once: they know nothing of a sum that overflows on its way,
or loses digits term by term. So each node with such a kernel runs once more, on float32 inputs that are rounded, as the
device computes it and as rounded once. The ratio of both errors says by how much the sweep's is too small.
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
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.targets.arithmetic import DeviceArithmetic
from amp_transpiler.verification.low_twins import replicate

__all__ = ["InnerError", "adds_in_low", "inner_errors", "with_inner_errors"]

logger = logging.getLogger(__name__)

_SAMPLES = 3  # that run
_ROUNDING = 2.0**-24  # the square of an error that is as good as none, in a ratio: a few results round by less

_NOT_RUN: tuple[type[Exception], ...] = (*RUN_ERRORS, ModelError)


@dataclasses.dataclass(frozen=True, slots=True)
class InnerError:
    """The relative errors of a node's first result, of the worst sample.

    Attributes:
        device: as the device computes it; infinite where it is not finite.
        once: rounded once.
    """

    device: float
    once: float

    @property
    def ratio(self) -> float:
        """By what the square of the error is larger on the device; at least 1."""
        if math.isinf(self.device):
            return math.inf
        return max(1.0, self.device**2 / max(self.once**2, _ROUNDING))


def adds_in_low(arithmetic: DeviceArithmetic | None, node: ir.Node, low: LowFormat) -> bool:
    """Whether a device's kernel of a node, in the low format, adds up in that format."""
    if arithmetic is None:
        return False
    return any(row.sums_in == "low" for row in arithmetic.rows.get((operator_name(node), low.name), ()))


def with_inner_errors(
    evidence: Evidence,
    prepared: Program,
    low: LowFormat,
    forms: Mapping[str, LowForm],
    samples: Sequence[Mapping[str, Any]],
    arithmetic: DeviceArithmetic | None,
) -> Evidence:
    """Return evidence in which the errors of nodes that add up in the low format are those of the device.

    Args:
        evidence: that of a sweep.
        prepared: the program; not changed.
        low: the low format.
        forms: node -> its low form.
        samples: the inputs.
        arithmetic: the device's; None where it is not known.
    """
    try:
        errors = inner_errors(prepared, low, forms, samples, arithmetic)
    except _NOT_RUN as error:
        logger.info("what sums lose inside is not known: %s", error_text(error))
        return evidence
    ratios = {name: error.ratio for name, error in errors.items() if error.ratio > 1.0}
    if not ratios:
        return evidence

    def scaled(known: Mapping[str, float]) -> dict[str, float]:
        return {name: square * ratios.get(name, 1.0) if square else square for name, square in known.items()}

    return dataclasses.replace(
        evidence,
        node_errors=scaled(evidence.node_errors),
        node_errors_by_output={name: scaled(known) for name, known in evidence.node_errors_by_output.items()},
        alone_errors=scaled(evidence.alone_errors),
    )


def inner_errors(
    prepared: Program,
    low: LowFormat,
    forms: Mapping[str, LowForm],
    samples: Sequence[Mapping[str, Any]],
    arithmetic: DeviceArithmetic | None,
) -> dict[str, InnerError]:
    """Return the errors of the nodes of the main graph whose kernels add up in the low format.

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
        return {}
    few = samples[:_SAMPLES]
    shapes = {name: np.shape(value) for name, value in few[0].items() if isinstance(value, np.ndarray)}
    device = _errors_of(emulate(simulated(twins, arithmetic, shapes).program), names, few)
    once = _errors_of(emulate(twins), names, few)
    return {name: InnerError(device[name], once[name]) for name in names}


def _errors_of(program: Program, names: Sequence[str], samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Run a program of twins; return the largest relative error of each over the samples."""
    worst = dict.fromkeys(names, 0.0)
    with open_program(program, emulate=False, fuse=False) as session:
        wanted = {info.name for info in session.inputs}
        for sample in samples:
            squares = session.run({name: value for name, value in sample.items() if name in wanted})
            pairs = zip(squares[::2], squares[1::2], strict=True)
            for name, (difference, norm) in zip(names, pairs, strict=True):
                worst[name] = max(worst[name], _relative(float(difference), float(norm)))
    return worst


def _relative(difference: float, norm: float) -> float:
    if not math.isfinite(difference):
        return math.inf
    return math.sqrt(difference / norm) if norm > 0.0 and math.isfinite(norm) else 0.0


def _add_twins(
    program: Program, low: LowFormat, forms: Mapping[str, LowForm], arithmetic: DeviceArithmetic | None
) -> list[str]:
    """Give a program a low twin of every node that adds up in the low format, and only their errors as outputs.

    Returns:
        The names of the nodes. Each has two outputs: the squares of its error and of its result, summed.
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
        outputs += [builder.op("ReduceSumSquare", [value], {"keepdims": 0}) for value in (difference, node.outputs[0])]
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
