"""Checks the written file: it is valid, ONNX Runtime opens it, and it runs as users run it, on a device if there is."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amp_transpiler.errors import CheckFailed
from amp_transpiler.files.saving import Staged
from amp_transpiler.graph.checker import checker_fault
from amp_transpiler.ops.limits import OLDEST_OPSET
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.program import Program
from amp_transpiler.report import DeviceMeasurement, Report, Verdict
from amp_transpiler.report.verdict import Judgement, judgement_of
from amp_transpiler.runtime.ort import CUDA_PROVIDER
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.targets import Target
from amp_transpiler.targets.releases import installed_version
from amp_transpiler.verification.default_device import CheckedDevice
from amp_transpiler.verification.default_session import SESSION, must_run, open_as_users_do
from amp_transpiler.verification.run_samples import RUNS
from amp_transpiler.verification.structure import check_load
from amp_transpiler.verification.verdict import tell_measured
from amp_transpiler.verification.verify import Basis, Phase, loads

if TYPE_CHECKING:
    from amp_transpiler.verification.device_check import DeviceOutcome

__all__ = ["check_result"]

logger = logging.getLogger(__name__)

_NOT_ON_DEVICE = "A smaller --tolerance leaves more nodes in float32; --device-check no writes it without this check"


def check_result(staged: Staged, program: Program, basis: Basis, report: Report, phase: Phase) -> None:
    """Check the written model with ONNX's checker and ONNX Runtime, in the sessions that users open.

    Raises:
        CheckFailed: the result is invalid and the source was not; or a session that its target is about (the CPU's
            default one, those of a device) crashes, refuses it or computes something else.
    """
    source, noted, warned = basis.source, len(report.notes), len(report.warnings)
    place = str(CPUPlace()) if basis.device is None else basis.device.place
    if basis.known is not None:
        with phase("check result"):
            loaded = check_load(staged.path, program, place)
        if loaded.outcome == "refused":
            raise _failed(report, f"ONNX Runtime refuses the result: {loaded.detail}")
        basis.known.tell_checks(report)
        return
    checks = ["types of every node"]
    with phase("check result"):
        fault = checker_fault(program.model)
        if fault and not checker_fault(source.model):
            raise _failed(report, f"the result fails onnx.checker: {fault}")
        if fault:
            if not any(note.endswith(fault) for note in report.notes):  # said before, about the source
                report.notes = (*report.notes, f"fault of the source: onnx.checker says {fault}")
        else:
            checks.append("onnx.checker, full")
        loaded = check_load(staged.path, program, place)
        if loaded.outcome == "refused":
            if loads(source):
                raise _failed(report, f"ONNX Runtime refuses the result: {loaded.detail}")
            why = "ONNX Runtime refuses the result, as it does the source"
            report.verdict = Judgement(Verdict.STRUCTURE_ONLY, {"why": why}).as_text()
            report.notes = (*report.notes, f"fault of the source: ONNX Runtime refuses it, too: {loaded.detail}")
        elif loaded.outcome == "structural":
            why = _why_not_run(program, loaded.detail)
            report.verdict = Judgement(Verdict.STRUCTURE_ONLY, {"why": why}).as_text()
        else:
            where = loaded.detail if loaded.outcome == "loaded" else "CPU, emulated"
            checks.append(f"ONNX Runtime ({where})")
            checks += _check_as_users_open(staged, program, basis, report)
            if basis.device is not None:
                checks += _check_on_device(staged, program, basis, basis.device, report)
    report.checks = tuple(checks)
    if basis.question is not None and basis.answer is not None:
        answer = dataclasses.replace(
            basis.answer,
            checks=report.checks,
            final_verdict=judgement_of(report.verdict),
            final_notes=report.notes[noted:],
            final_warnings=report.warnings[warned:],
            measured=report.measured,
        )
        basis.question.keep(answer)


def _check_as_users_open(staged: Staged, program: Program, basis: Basis, report: Report) -> Iterator[str]:
    """Yield the default session on the CPU if it opened and ran the file well; else note what it did."""
    policy = basis.policy
    reference = None if basis.ran_by_default else basis.reference  # else its numbers are judged by now
    opened = open_as_users_do(staged.path, program, basis.source, reference, policy.limits)
    if opened.outcome == "fault" and must_run(policy.target):
        raise _failed(report, opened.detail)
    if opened.outcome == "good":
        yield SESSION
    elif opened.outcome == "unknown":
        logger.info("nothing is known of %s: %s", SESSION, opened.detail)
    else:
        start = "fault of the source: " if opened.outcome == "source" else ""
        report.notes = (*report.notes, start + opened.detail)


def _check_on_device(
    staged: Staged, program: Program, basis: Basis, device: CheckedDevice, report: Report
) -> Iterator[str]:
    """Yield the sessions that ran the file well on a device; the verdict is then the device's."""
    from amp_transpiler.verification.device_check import check_on_device

    policy, reference = basis.policy, basis.reference
    outcome = check_on_device(staged.path, program, basis.source, reference, policy.limits, report.dtype, device.place)
    is_for_device = _is_for_cuda(policy.target)
    for fault in outcome.faults:
        text = f"{fault.form} on {device.name}: {fault.detail}"
        if is_for_device and not fault.of_source:
            raise _failed(report, f"{text}. {_NOT_ON_DEVICE}")
        report.notes = (*report.notes, f"fault of the source: {text}" if fault.of_source else text)
    for form, reason in outcome.skipped.items():
        report.notes = (*report.notes, f"not run on {device.name} in {form}: {reason}")
    if outcome.sessions and reference is not None and is_for_device:
        report.measured = _measurement(outcome, device)
        tell_measured(report, reference, policy.limits, rounded=has_low_values(program))
    runs = "" if reference is None else f", {RUNS} runs"
    yield from (f"{form} ({device.name}{runs})" for form in outcome.sessions)


def _measurement(outcome: DeviceOutcome, device: CheckedDevice) -> DeviceMeasurement:
    return DeviceMeasurement(
        device.name,
        device.place,
        installed_version() or "unknown",
        RUNS,
        outcome.sessions,
        outcome.outputs,
        outcome.emulated,
        outcome.contradictions,
    )


def _is_for_cuda(target: Target) -> bool:
    return any(table.provider == CUDA_PROVIDER for table in target.providers)


def _why_not_run(program: Program, detail: str) -> str:
    """Say why ONNX Runtime does not run a sound file, and what helps."""
    opset = opset_of(program.model, "")
    if opset < OLDEST_OPSET:
        return f"the model is of opset {opset}, ONNX Runtime runs {OLDEST_OPSET} and later; export it anew ({detail})"
    return detail


def _failed(report: Report, fault: str) -> CheckFailed:
    """Write the verdict, and return the error to raise."""
    report.verdict = Judgement(Verdict.FAILED, {"why": fault}).as_text()
    return CheckFailed(f"{report.source}: {fault}; nothing was written", report)
