"""Estimates how many inputs like those given would change whole numbers that floats are rounded to, such as durations.

All of them may agree on the data, and another input of the same kind ends on the other side of a step. A float that is
off by e, rounded to whole numbers, becomes another one with the probability e, since where it lies between two steps is
of no meaning. So the errors on the data say how many like inputs differ, without any that do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.ops.names import is_standard
from amp_transpiler.phrases import first_few, quoted
from amp_transpiler.program.program import Program
from amp_transpiler.report.wording import percent
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.verification.accuracy import CannotCompare, Reference, intermediate_values
from amp_transpiler.verification.rounded import rounded_outputs

__all__ = ["close_roundings", "roundings_of", "share_that_differs"]

logger = logging.getLogger(__name__)

_ROUNDS = frozenset({"Ceil", "Floor", "Round"})
# What may stand between such an operator and the cast to integers.
_PASSED = frozenset("Identity Cast Clip Max Min Reshape Flatten Squeeze Unsqueeze Transpose Slice".split())
_ERRORS: tuple[type[Exception], ...] = (CannotCompare, *RUN_ERRORS)
_REPORTED = 1e-3  # the least share of like inputs that is reported


def close_roundings(prepared: Program, low: Program, reference: Reference) -> Iterator[str]:
    """Yield a sentence for each output of whole numbers that like inputs would change.

    Args:
        prepared: the float32 program, whose nodes have the names of the converted one's; not changed.
        low: the converted program; not changed.
        reference: the samples.
    """
    left_out = {*rounded_outputs(prepared.model), *reference.unjudged()}  # pictures are compared as numbers
    roundings = {name: nodes for name, nodes in roundings_of(prepared.model).items() if name not in left_out}
    read = {str(node.name): node.inputs[0] for node in low.model.graph if node.inputs and node.inputs[0] is not None}
    low_reads = {str(node.name): read.get(str(node.name)) for nodes in roundings.values() for node in nodes}
    if not any(value is not None and value.producer() is not None for value in low_reads.values()):
        return
    reads = {
        str(node.name): str(node.inputs[0].name) for nodes in roundings.values() for node in nodes if node.inputs[0]
    }
    try:
        wanted = intermediate_values(prepared, reads.values(), reference.samples)
        got = _emulated(low, [value for value in low_reads.values() if value is not None], reference)
    except _ERRORS as error:
        logger.info("how near to a step rounded numbers lie is not known: %s", error)
        return
    outputs_of: dict[str, list[str]] = {}
    for output, nodes in roundings.items():
        places = [(reads[str(n.name)], v) for n in nodes if (v := low_reads[str(n.name)]) is not None]
        pairs = [
            [
                (wanted_values[name], other[str(v.name)])
                for name, v in places
                if name in wanted_values and str(v.name) in other
            ]
            for wanted_values, other in zip(wanted, got, strict=True)
        ]
        share = share_that_differs(pairs)
        if share >= _REPORTED:
            words = f"{nodes[0].op_type} '{nodes[0].name}' makes of floats: about {percent(share)} of like inputs"
            outputs_of.setdefault(words, []).append(output)
    for words, outputs in outputs_of.items():
        many = len(outputs) > 1
        named = f"{'outputs' if many else 'output'} {first_few(quoted(outputs))} {'are' if many else 'is'}"
        yield f"{named} whole numbers that {words} would give others than in float32"


def share_that_differs(samples: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]]) -> float:
    """Return the share of like inputs whose rounded numbers differ somewhere.

    Args:
        samples: of each, the pairs of what is rounded, in float32 and in the result.
    """
    shares = []
    for pairs in samples:
        same = 0.0  # the logarithm of the probability that nothing differs
        for wanted_part, other in pairs:
            wanted, result = wanted_part.astype(np.float64), other.astype(np.float64)
            if wanted.shape == result.shape:
                error = np.abs(result - wanted)
                with np.errstate(divide="ignore"):
                    same += float(np.log1p(-np.minimum(error[np.isfinite(error)], 1.0)).sum())
        shares.append(-float(np.expm1(same)))
    return sum(shares) / len(shares) if shares else 0.0


def roundings_of(model: ir.Model) -> dict[str, list[ir.Node]]:
    """Return outputs of integers or truth values -> the nodes of the main graph that round floats for them."""
    typed = model.clone()  # a program as it was given may not say of which type its values are
    propagate_types(typed)
    producers = {str(value.name): node for node in model.graph for value in node.outputs}
    roundings: dict[str, list[ir.Node]] = {}
    for output in typed.graph.outputs:
        if output.dtype is not None and not output.dtype.is_floating_point():
            above = [str(node.outputs[0].name) for node in _roundings_above(output)]
            nodes = [producers[name] for name in above if name in producers]
            if nodes:
                roundings[str(output.name)] = nodes
    return roundings


def _roundings_above(output: ir.Value) -> list[ir.Node]:
    stack, seen, roundings = [output], set[ir.Value](), list[ir.Node]()
    while stack:
        value = stack.pop()
        node = value.producer()
        if node is None or value in seen or not is_standard(node):
            continue
        seen.add(value)
        reads = [read for read in node.inputs if read is not None]
        if node.op_type == "Cast" and reads and _is_float(reads[0]):
            if value.dtype != ir.DataType.BOOL:
                rounding = _rounding_before(node)
                roundings += [rounding] if rounding not in roundings else []
        else:
            stack += [read for read in reads if not _is_float(read)]
    return roundings


def _rounding_before(cast: ir.Node) -> ir.Node:
    """Return the operator that rounds what a cast to integers reads; without one, the cast, which cuts off."""
    value = cast.inputs[0]
    while value is not None and (node := value.producer()) is not None and is_standard(node):
        if node.op_type in _ROUNDS:
            return node
        if node.op_type not in _PASSED:
            break
        value = node.inputs[0]
    return cast


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _emulated(low: Program, values: Sequence[ir.Value], reference: Reference) -> list[Mapping[str, Any]]:
    """Run a converted program, emulated, and return values of its main graph by name, one mapping a sample.

    Raises:
        RUN_ERRORS: it does not run with them as outputs.
    """
    names = list(dict.fromkeys(str(value.name) for value in values if value.producer() is not None))
    exposed = low.clone()
    exposed.source = None  # a session must open the edited model, not its file
    graph = exposed.model.graph
    present = {str(value.name) for value in graph.outputs}
    by_name = {str(value.name): value for node in graph for value in node.outputs}
    graph.outputs.extend(by_name[name] for name in names if name not in present)
    with open_program(exposed) as session:
        feeds = reference.feeds(info.name for info in session.inputs)
        runs = [session.run(check_feeds(sample, session.inputs, lenient=True), names) for sample in feeds]
    return [dict(zip(names, arrays, strict=True)) for arrays in runs]
