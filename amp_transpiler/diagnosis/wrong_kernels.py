"""Names the low nodes whose kernel on a device computes something else, which rounding does not show.

The table of device faults knows some of them; a device on which the low program ran shows others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from amp_transpiler.child_process.remote import open_program
from amp_transpiler.diagnosis.departures import Compared, Form, departures
from amp_transpiler.diagnosis.subject import Subject
from amp_transpiler.diagnosis.suspects import Findings
from amp_transpiler.ops.names import operator_name
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.precision.device_faults import DeviceFaults
from amp_transpiler.report.diagnosis import Departure, RunsOnDevice, Suspect
from amp_transpiler.report.wording import percent
from amp_transpiler.targets.arithmetic import DeviceArithmetic

__all__ = ["by_effect", "measured_kernels", "simulated_departures", "wrong_kernels"]


def wrong_kernels(subject: Subject, findings: Findings, error: float) -> tuple[Suspect, ...]:
    """Return the nodes whose kernel has a fault by the table, each under the name of its float32 node.

    Args:
        subject: both programs.
        findings: what was measured.
        error: what such kernels add to the outputs, all together.
    """
    faults = DeviceFaults(subject.low.model, subject.policy.target, subject.format, subject.policy.device)
    of_low = {mine: its for its, mine in findings.pairs.low.items()}
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


def by_effect(kernels: Sequence[Suspect], findings: Findings, departed: Sequence[Departure]) -> tuple[Suspect, ...]:
    """Return kernels with what each adds to the outputs by itself, the worst first.

    Args:
        kernels: the kernels.
        findings: what was measured.
        departed: where a run with these kernels leaves the emulation; a kernel that does not adds nothing.
    """
    added = {row.value: _added(findings, row) for row in departed}
    rows = [dataclasses.replace(kernel, contribution=added.get(kernel.value, 0.0)) for kernel in kernels]
    return tuple(sorted(rows, key=lambda row: -row.contribution))


def _added(findings: Findings, row: Departure) -> float:
    if row.infinite or row.finite:
        return math.inf
    square = row.error**2 * findings.measured[row.value].own.norm
    return findings.added_by(row.value, square) or 0.0


def simulated_departures(
    subject: Subject,
    arithmetic: DeviceArithmetic,
    results: Mapping[str, Compared],
    samples: Sequence[Mapping[str, Any]],
) -> tuple[Departure, ...]:
    """Return where a device's arithmetic leaves the plain rounding of the low program, by its emulation.

    Args:
        subject: both programs.
        arithmetic: the device's.
        results: what to compare.
        samples: the inputs.

    Raises:
        RUN_ERRORS: it does not run.
    """
    program = simulated(subject.low, arithmetic).program
    _, departed = departures(subject.low, Form("as written", program, open_program), results, samples)
    return departed


def measured_kernels(runs: RunsOnDevice, findings: Findings, allowed: float) -> tuple[Suspect, ...]:
    """Return the nodes whose kernel on a device spoils an output, the worst first.

    Args:
        runs: what the device did.
        findings: what was measured.
        allowed: the largest error of an output that is allowed, as a fraction.
    """
    suspects = [
        Suspect(
            node=row.node,
            op=row.op,
            value=row.value,
            fault="kernel",
            contribution=_added(findings, row),
            why=_why(row, runs.device),
        )
        for row in runs.departures
    ]
    return tuple(
        sorted((each for each in suspects if each.contribution > allowed), key=lambda each: -each.contribution)
    )


def _why(row: Departure, device: str) -> str:
    where = f"on {device}{', fused,' if row.form == 'fused' else ''}"
    if row.infinite:
        return f"{where} {percent(row.infinite)} of its numbers are infinite or NaN, which the emulation has finite"
    if row.finite:
        return f"{where} {percent(row.finite)} of its numbers are finite, which the emulation has infinite or NaN"
    allowed = percent(row.allowed)
    return f"{where} its result is {percent(row.error)} off the emulation; rounding explains up to {allowed}"
