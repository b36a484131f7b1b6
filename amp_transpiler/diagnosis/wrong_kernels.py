"""Names the low nodes whose kernel on a device is known to compute something else, which rounding does not show."""

from __future__ import annotations

from amp_transpiler.diagnosis.pairs import Pairs
from amp_transpiler.diagnosis.subject import Subject
from amp_transpiler.ops.names import operator_name
from amp_transpiler.precision.device_faults import DeviceFaults
from amp_transpiler.report.diagnosis import Suspect

__all__ = ["wrong_kernels"]


def wrong_kernels(subject: Subject, pairs: Pairs, error: float) -> tuple[Suspect, ...]:
    """Return those nodes, each under the name of the float32 node that it stands for.

    Args:
        subject: both programs.
        pairs: their results.
        error: what such kernels add to the outputs, all together.
    """
    faults = DeviceFaults(subject.low.model, subject.policy.target, subject.format, subject.policy.device)
    of_low = {mine: its for its, mine in pairs.low.items()}
    suspects = []
    for node in subject.low.model.graph:
        types = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
        if subject.format.dtype not in types or (fault := faults.of(node)) is None:
            continue
        paired = next((of_low[value] for value in node.outputs if value in of_low), None)
        value = node.outputs[0] if paired is None else paired
        named = node if paired is None else paired.producer()
        suspects.append(
            Suspect(
                node=str(named.name if named is not None else ""),
                op=operator_name(node),
                value=str(value.name),
                fault="kernel",
                contribution=error,
                why=str(fault),
            )
        )
    return tuple(suspects)
