"""Notes what other data may do to a result: values near the end of the low format's range, or near its zero."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.phrases import counted, first_few
from amp_transpiler.precision.evidence import Evidence, TensorRange, near_overflow
from amp_transpiler.precision.pole_operators import input_at_pole
from amp_transpiler.precision.policy import Policy
from amp_transpiler.report.precision import kind_of
from amp_transpiler.report.record import DecisionRow
from amp_transpiler.report.wording import percent

__all__ = ["risks"]

_MOST_NAMED = 5


def risks(
    rows: Iterable[DecisionRow], nodes: Mapping[str, ir.Node], evidence: Evidence, policy: Policy
) -> Iterator[str]:
    """Yield what the user's data show to be near the limits of the low format, a sentence for each kind.

    Args:
        rows: what was decided about each node.
        nodes: name -> node of the prepared program.
        evidence: the ranges that were seen.
        policy: has the low format and the headroom.
    """
    if not evidence.given:
        return
    decided = {row.name: kind_of(row.precision) for row in rows}
    if near := near_overflow(evidence.ranges, policy.low, policy.headroom):
        yield from _overflow(near, _precisions_at(nodes, decided), policy)
    low = [node for name, node in nodes.items() if decided.get(name) == "low"]
    if at_poles := list(_at_poles(low, evidence.ranges, policy)):
        yield _zero(at_poles, policy)


def _precisions_at(nodes: Mapping[str, ir.Node], decided: Mapping[str, str]) -> dict[str, collections.Counter[str]]:
    """Return value -> how many of the nodes that make or read it have each precision."""
    counts: dict[str, collections.Counter[str]] = {}
    for name, node in nodes.items():
        for value in {str(value.name) for value in (*node.inputs, *node.outputs) if value is not None}:
            counts.setdefault(value, collections.Counter())[decided.get(name, "")] += 1
    return counts


def _overflow(
    near: Sequence[tuple[str, TensorRange]], precisions: Mapping[str, collections.Counter[str]], policy: Policy
) -> Iterator[str]:
    """Yield which values do not fit, those apart that low nodes make or read all the same. Why, each node says."""
    # What no float32 node reads is a mask, which is limited and stays low.
    near = [item for item in near if item[0] in precisions and precisions[item[0]]["high"]]
    for values, where in (
        ([item for item in near if not precisions[item[0]]["low"]], "no node that makes or reads them is"),
        ([item for item in near if precisions[item[0]]["low"]], "some nodes that make or read them are"),
    ):
        if values:
            count = f"{counted(len(values), 'value')} {'goes' if len(values) == 1 else 'go'}"
            beyond = f"beyond {policy.low.name}'s {policy.low.max:.4g} with a headroom of {policy.headroom:g}"
            named = first_few([f"'{name}' {seen.largest:.4g} in {seen.sample}" for name, seen in values], _MOST_NAMED)
            yield f"{count} {beyond}; {where} {policy.low.name}: {named}"


def _at_poles(low: Sequence[ir.Node], ranges: Mapping[str, TensorRange], policy: Policy) -> Iterator[str]:
    """Yield the low logarithms, quotients and their like of numbers that the low format hardly holds."""
    for node in low:
        value = input_at_pole(node)
        seen = None if value is None else ranges.get(str(value.name))
        if value is None or seen is None or seen.smallest >= policy.headroom * policy.low.smallest:
            continue
        share = f"{percent(seen.flushed)} of them too small" if seen.flushed else f"down to {seen.smallest:.4g}"
        yield f"{node.op_type} '{node.name}' of '{value.name}', {share}"


def _zero(at_poles: Sequence[str], policy: Policy) -> str:
    count = f"{counted(len(at_poles), 'operator')} {'reads' if len(at_poles) == 1 else 'read'}"
    least = f"{policy.low.name}'s least, {policy.low.smallest:.4g}"
    advice = "smaller numbers may cost more accuracy: give samples with the smallest that you expect"
    named = first_few(at_poles, _MOST_NAMED)
    return f"{count} numbers near or below {least}, where results change most: {named}; {advice}"
