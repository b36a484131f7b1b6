"""Finds the products that a device adds up wrongly in the low format, and in how many parts each is right."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.alternatives.fused_or_not import cost, has_low_nodes, rank
from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.conversion import Conversion, candidate_of, convert
from amp_transpiler.cost.split_sums import ProductSizes, is_cheaper_in_parts
from amp_transpiler.errors import AmpError
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.phrases import first_few
from amp_transpiler.precision.limits import Limits
from amp_transpiler.precision.policy import InParts, Policy, Settled
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.split_sums import PARTS, may_split, summed_terms
from amp_transpiler.program.program import Program
from amp_transpiler.report.facts import Parting
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.targets.arithmetic import DeviceArithmetic
from amp_transpiler.targets.schemas_only import SCHEMAS_ONLY
from amp_transpiler.verification.accuracy import intermediate_values
from amp_transpiler.verification.conversions import judging_arithmetic
from amp_transpiler.verification.inner_sums import adds_in_low
from amp_transpiler.verification.verify import Compared

__all__ = ["is_better_in_parts", "may_have_parts", "parting", "parts_for", "used_parts"]

logger = logging.getLogger(__name__)

_NOT_RUN: tuple[type[Exception], ...] = (*RUN_ERRORS, AmpError)

_HELD_BY_VALUES = frozenset({"range", "tolerance"})
"""Subjects of the reasons of float32 products that parts may lift."""
_SAMPLES = 3
_SHARE = 0.5  # of the limit that the error of one product in parts may take, or of the error of the whole product
_TOLERANCE = 0.02  # where no output has a limit
_OUTPUT = "amp_transpiler_result"


def may_have_parts(program: Program, policy: Policy) -> bool:
    """Whether products of a prepared program may be computed in parts.

    Not for a target whose arithmetic nobody knows: if it adds up in float32, parts only cost.
    """
    decides = policy.objective != "rules" and policy.low is FLOAT16 and not policy.settled and not policy.parts
    is_known = policy.target.name not in SCHEMAS_ONLY
    return decides and is_known and program.step is None and not program.has_variables and program.merged is None


def parts_for(
    prepared: Program,
    compared: Compared,
    policy: Policy,
    ranges: RangeFaults,
    feeds: Callable[[], Sequence[Mapping[str, Any]]],
) -> dict[str, InParts]:
    """Return the products that are float32 for what their sums do inside, and in how many parts they are to be low.

    Args:
        prepared: the program; not changed.
        compared: its conversion without parts.
        policy: how that was decided.
        ranges: a look-up of constants.
        feeds: returns the samples; a few run.

    Raises:
        CannotCompare: there are none.
        InputError: the user's do not fit the model.
    """
    arithmetic = judging_arithmetic(prepared, policy)
    if arithmetic is None:
        return {}
    held, chosen = list(_held(prepared.model, compared, policy, arithmetic)), {}
    if not held:
        return {}
    trial = _Trial(prepared, policy, ranges, arithmetic, feeds()[:_SAMPLES])
    for node in held:
        try:
            way = trial.way_of(node)
        except _NOT_RUN as error:
            logger.info("%s stays whole, since it could not be run alone: %s", node.name, error_text(error))
            continue
        if way is not None:
            chosen[str(node.name)] = way
    return chosen


def _held(model: ir.Model, compared: Compared, policy: Policy, arithmetic: DeviceArithmetic) -> Iterator[ir.Node]:
    """Yield the products that could be parted, and that only values or their errors keep in float32."""
    decisions = compared.conversion.assignment.decisions
    held = {
        str(node.name)
        for node, decision in decisions.items()
        if decision.precision == "high" and decision.reason.subject in _HELD_BY_VALUES
    }
    opset = opset_of(model, "")
    for node in model.graph:
        is_held = str(node.name) in held and adds_in_low(arithmetic, node, policy.low)
        if is_held and any(may_split(node, parts, opset) for parts in PARTS):
            yield node


@dataclasses.dataclass(frozen=True, slots=True)
class _Trial:
    """Runs products alone, as the device computes them.

    Attributes:
        prepared: the program that they are part of.
        policy: how it was decided.
        ranges: a look-up of constants.
        arithmetic: the device's.
        samples: the inputs of the program.
    """

    prepared: Program
    policy: Policy
    ranges: RangeFaults
    arithmetic: DeviceArithmetic
    samples: Sequence[Mapping[str, Any]]

    def way_of(self, node: ir.Node) -> InParts | None:
        """Return in how many parts a product is to be computed; None where it stays whole.

        Raises:
            RUN_ERRORS: it does not run alone.
            AmpError: likewise.
        """
        data = [np.asarray(value) for value in self._data(node)]
        piece = _alone(self.prepared.model, node)
        exact = self._results(piece, data, emulate_low=False)
        sizes = _sizes(node, data[0], exact[0])
        opset = opset_of(self.prepared.model, "")
        counts = [count for count in PARTS if may_split(node, count, opset) and is_cheaper_in_parts(sizes, count)]
        if not counts:
            return None
        whole = self._error(piece, node, data, exact, None)
        most = _SHARE * _limit(self.policy.limits, self.prepared)
        if whole <= _SHARE * most:
            return None  # it is not to blame
        low = self.policy.low.name
        fault = f"whole, its sum leaves {low} inside" if math.isinf(whole) else f"whole, it loses {whole:.2%} inside"
        with_room = [value * np.float32(self.policy.headroom) for value in data]
        for count in counts:
            way = InParts(count, fault)
            if self._error(piece, node, data, exact, way) > min(most, _SHARE * whole):
                continue
            if math.isfinite(self._error(piece, node, with_room, None, way)):
                return way
        return None

    def _data(self, node: ir.Node) -> Iterator[Any]:
        """Yield the operand that is computed, sample by sample."""
        value = node.inputs[0]
        assert value is not None, "a product has operands"
        name = str(value.name)
        if value.producer() is None:
            return (sample[name] for sample in self.samples)
        return (values[name] for values in intermediate_values(self.prepared, [name], self.samples))

    def _error(
        self,
        piece: Program,
        node: ir.Node,
        data: Sequence[np.ndarray],
        exact: Sequence[np.ndarray] | None,
        way: InParts | None,
    ) -> float:
        """Return the largest relative error of a low product; infinite where a result is not finite.

        Args:
            piece: the product alone.
            node: the product.
            data: its operand, sample by sample.
            exact: its results in float32; None where it counts only whether results are finite.
            way: how it is parted; None for the whole product.
        """
        name, low = str(node.name), piece.clone()
        settled = {name: Settled("low", Reason("part-of-sum"))}
        alone = dataclasses.replace(
            self.policy,
            objective="rules",
            evidence=None,
            settled=settled,
            low_io=frozenset(),
            parts={} if way is None else {name: way},
        )
        convert(low, alone, self.ranges)
        results = self._results(low, data, emulate_low=True)
        if not all(np.isfinite(result).all() for result in results):
            return math.inf
        if exact is None:
            return 0.0
        pairs = zip(results, exact, strict=True)
        return max(_relative(result, wanted) for result, wanted in pairs)

    def _results(self, program: Program, data: Sequence[np.ndarray], *, emulate_low: bool) -> list[np.ndarray]:
        """Run a product alone, in float32 or as the device does it in the low format."""
        name = str(program.model.graph.inputs[0].name)
        if emulate_low:
            program = emulate(simulated(program, self.arithmetic, {name: data[0].shape}).program)
        with open_program(program, emulate=False, fuse=False) as session:
            return [np.asarray(session.run({name: value})[0]) for value in data]


def _relative(result: np.ndarray, wanted: np.ndarray) -> float:
    norm = float(np.linalg.norm(wanted.astype(np.float64)))
    difference = float(np.linalg.norm(result.astype(np.float64) - wanted))
    return difference / norm if norm > 0.0 else 0.0


def _limit(limits: Limits, prepared: Program) -> float:
    """Return the least tolerance of an output; the default where none has any."""
    tolerances = [limits.for_output(str(value.name)) for value in prepared.model.graph.outputs]
    return min((limit for limit in tolerances if math.isfinite(limit) and limit > 0.0), default=_TOLERANCE)


def _sizes(node: ir.Node, data: np.ndarray, result: np.ndarray) -> ProductSizes:
    tensor, terms = constant_of(node.inputs[1]), summed_terms(node)
    assert tensor is not None, "the second operand is a constant"
    assert terms is not None, "it can be parted"
    is_convolution = node.op_type == "Conv"
    kernel = math.prod(int(size) for size in tensor.shape.numpy()[2:]) if is_convolution else 1
    return ProductSizes(data.size, tensor.size, result.size, terms * kernel, batched=not is_convolution)


def _alone(model: ir.Model, node: ir.Node) -> Program:
    """Return a program of one product, whose first operand is its input."""
    inputs: list[ir.Value | None] = []
    constants = []
    for index, value in enumerate(node.inputs):
        if value is None:
            inputs.append(None)
            continue
        operand = ir.Value(
            name=value.name, type=value.type, shape=None if value.shape is None else ir.Shape(value.shape)
        )
        operand.const_value = constant_of(value)
        inputs.append(operand)
        if index and operand.const_value is not None:
            constants.append(operand)
    fed = [value for value in inputs if value is not None and value not in constants]
    result = ir.Value(name=_OUTPUT, type=node.outputs[0].type)
    product = ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=[result], name=node.name)
    opsets = dict(model.graph.opset_imports)
    graph = ir.Graph(fed, [result], nodes=[product], initializers=constants, opset_imports=opsets, name="one")
    return Program(ir.Model(graph, ir_version=model.ir_version))


def is_better_in_parts(before: Compared, after: Compared, policy: Policy) -> bool:
    """Whether a conversion with products in parts is better than that without: as good by its verdict, and smaller.

    Args:
        before: the conversion without parts.
        after: that with them.
        policy: how both were decided.
    """
    if not after.conversion.assignment.parts or after.findings.failure or rank(after) > rank(before):
        return False
    low = [has_low_nodes(compared.conversion) for compared in (before, after)]
    costs = [
        cost(candidate_of(compared.program, policy, written=written), policy)
        for compared, written in zip((before, after), low, strict=True)
    ]
    return costs[1] < costs[0]


def used_parts(conversion: Conversion, parts: Mapping[str, InParts]) -> dict[str, InParts]:
    """Return those of the ways that a conversion made use of."""
    used = {str(node.name) for node in conversion.assignment.parts}
    return {name: way for name, way in parts.items() if name in used}


def parting(parts: Mapping[str, InParts]) -> Parting:
    """Return what the report says of products in parts."""
    if not parts:
        return Parting()
    names = first_few([f"'{name}' in {way.count}" for name, way in parts.items()])
    note = f"computed in parts that are added up in float32, which --split-sums no leaves out: {names}"
    return Parting({name: way.count for name, way in parts.items()}, (note,))
