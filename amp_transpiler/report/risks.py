"""Notes on what other data may do to a result: values near the end of the low format's range, or near its zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.phrases import counted, first_few
from amp_transpiler.precision.evidence import Evidence, TensorRange, near_overflow
from amp_transpiler.precision.poles import input_at_pole
from amp_transpiler.precision.policy import Policy
from amp_transpiler.report.report import Report
from amp_transpiler.report.wording import percent

__all__ = ["risks"]

_MOST_NAMED = 5


def risks(report: Report, nodes: Mapping[str, ir.Node], evidence: Evidence, policy: Policy) -> Iterator[str]:
    """Yield what the user's data show to be near the limits of the low format, a sentence for each kind.

    Args:
        report: has the decisions.
        nodes: name -> node of the prepared program.
        evidence: the ranges that were seen.
        policy: has the low format and the headroom.
    """
    if not evidence.given:
        return
    decided = {row.name: row.precision for row in report.decisions}
    high = [node for name, node in nodes.items() if decided.get(name) == "high"]
    read = {str(value.name) for node in high for value in (*node.inputs, *node.outputs) if value is not None}
    ranges = {name: seen for name, seen in evidence.ranges.items() if name in read}  # masks are limited, and stay low
    if near := near_overflow(ranges, policy.low, policy.headroom):
        yield _overflow(near, policy)
    low = [node for name, node in nodes.items() if decided.get(name) == "low"]
    if at_poles := list(_at_poles(low, evidence.ranges, policy)):
        yield _zero(at_poles, policy)


def _overflow(near: Sequence[tuple[str, TensorRange]], policy: Policy) -> str:
    count = f"{counted(len(near), 'value')} {'goes' if len(near) == 1 else 'go'}"
    beyond = f"beyond {policy.low.name}'s {policy.low.max:.4g} with a headroom of {policy.headroom:g}"
    named = first_few([f"'{name}' {seen.largest:.4g} in {seen.sample}" for name, seen in near], _MOST_NAMED)
    return f"{count} {beyond}, so that its nodes stay float32: {named}"


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
