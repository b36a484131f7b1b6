"""Checks the written file: it is valid, ONNX Runtime opens it, and it runs as users run it, on a device if there is."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from amp_transpiler.files.saving import Staged
from amp_transpiler.graph.checker import checker_fault
from amp_transpiler.ops.limits import OLDEST_OPSET
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.program import Program
from amp_transpiler.report import DeviceMeasurement, Verdict
from amp_transpiler.report.facts import Facts, FileCheck, Findings
from amp_transpiler.report.verdict import Judgement
from amp_transpiler.runtime.ort import CUDA_PROVIDER
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.targets import Target
from amp_transpiler.targets.releases import installed_version
from amp_transpiler.verification.default_device import CheckedDevice
from amp_transpiler.verification.default_session import SESSION, must_run, open_as_users_do
from amp_transpiler.verification.run_samples import RUNS
from amp_transpiler.verification.structure import check_load
from amp_transpiler.verification.verdict import judge_measured
from amp_transpiler.verification.verify import Basis, Phase, loads

if TYPE_CHECKING:
    from amp_transpiler.verification.conversion_cache import Answer
    from amp_transpiler.verification.device_check import DeviceOutcome

__all__ = ["check_result"]

logger = logging.getLogger(__name__)

_NOT_ON_DEVICE = "A smaller --tolerance leaves more nodes in float32; --device-check no writes it without this check"


def check_result(staged: Staged, program: Program, basis: Basis, facts: Facts, phase: Phase) -> FileCheck:
    """Check the written model with ONNX's checker and ONNX Runtime, in the sessions that users open.

    Args:
        staged: the written file.
        program: what was written.
        basis: what it is checked against.
        facts: what is known of the result.
        phase: times a block.

    Returns:
        What the checks showed. They fail if the result is invalid and the source was not; or if a session that its
        target is about (the CPU's default one, those of a device) crashes, refuses it or computes something else.
    """
    with phase("check result"):
        if basis.known is None:
            checked = _checked(staged, program, basis, facts)
        else:
            checked = _opened_again(staged, program, basis, basis.known)
    if checked.findings.failure:
        return FileCheck(findings=checked.findings)
    if basis.question is not None and basis.answer is not None:
        answer = dataclasses.replace(
            basis.answer,
            checks=checked.checks,
            final_verdict=checked.findings.verdict or facts.verdict,
            final_notes=checked.findings.notes,
            final_warnings=checked.findings.warnings,
            measured=checked.measured,
        )
        basis.question.keep(answer)
    return checked


def _opened_again(staged: Staged, program: Program, basis: Basis, known: Answer) -> FileCheck:
    """Open a file of which all is known that other checks would show."""
    loaded = check_load(staged.path, program, _place(basis))
    if loaded.outcome == "refused":
        return _failed(f"ONNX Runtime refuses the result: {loaded.detail}")
    return known.file_check


def _checked(staged: Staged, program: Program, basis: Basis, facts: Facts) -> FileCheck:
    """Check the program with ONNX's checker, then the file with ONNX Runtime."""
    checked = FileCheck(checks=("types of every node",)).then(_check_by_onnx(program, basis.source, facts))
    if checked.findings.failure:
        return checked
    loaded = check_load(staged.path, program, _place(basis))
    if loaded.outcome == "refused":
        if loads(basis.source):
            return checked.then(_failed(f"ONNX Runtime refuses the result: {loaded.detail}"))
        why = "ONNX Runtime refuses the result, as it does the source"
        note = f"fault of the source: ONNX Runtime refuses it, too: {loaded.detail}"
        return checked.then(_not_run(why, note))
    if loaded.outcome == "structural":
        return checked.then(_not_run(_why_not_run(program, loaded.detail)))
    where = loaded.detail if loaded.outcome == "loaded" else "CPU, emulated"
    checked = checked.then(FileCheck(checks=(f"ONNX Runtime ({where})",)))
    checked = checked.then(_check_as_users_open(staged, program, basis))
    if basis.device is None or checked.findings.failure:
        return checked
    return checked.then(_check_on_device(staged, program, basis, basis.device, facts))


def _place(basis: Basis) -> str:
    return str(CPUPlace()) if basis.device is None else basis.device.place


def _not_run(why: str, *notes: str) -> FileCheck:
    """Judge a file that nothing runs, not the source either."""
    return FileCheck(findings=Findings(Judgement(Verdict.STRUCTURE_ONLY, {"why": why}), notes))


def _check_by_onnx(program: Program, source: Program, facts: Facts) -> FileCheck:
    fault = checker_fault(program.model)
    if not fault:
        return FileCheck(checks=("onnx.checker, full",))
    if not checker_fault(source.model):
        return _failed(f"the result fails onnx.checker: {fault}")
    if any(note.endswith(fault) for note in facts.notes):  # said before, about the source
        return FileCheck()
    return _noted(f"fault of the source: onnx.checker says {fault}")


def _noted(*notes: str) -> FileCheck:
    return FileCheck(findings=Findings(notes=notes))


def _check_as_users_open(staged: Staged, program: Program, basis: Basis) -> FileCheck:
    """Check the file in the default session on the CPU, and note what it did unless that was well."""
    policy = basis.policy
    reference = None if basis.ran_by_default else basis.reference  # else its numbers are judged by now
    opened = open_as_users_do(staged.path, program, basis.source, reference, policy.limits)
    if opened.outcome == "fault" and must_run(policy.target):
        return _failed(opened.detail)
    if opened.outcome == "good":
        return FileCheck(checks=(SESSION,))
    if opened.outcome == "unknown":
        logger.info("nothing is known of %s: %s", SESSION, opened.detail)
        return FileCheck()
    start = "fault of the source: " if opened.outcome == "source" else ""
    return _noted(start + opened.detail)


def _check_on_device(staged: Staged, program: Program, basis: Basis, device: CheckedDevice, facts: Facts) -> FileCheck:
    """Check the file in the sessions of a device; the verdict is then the device's."""
    from amp_transpiler.verification.device_check import check_on_device

    policy, reference, dtype = basis.policy, basis.reference, facts.task.dtype
    outcome = check_on_device(staged.path, program, basis.source, reference, policy.limits, dtype, device.place)
    is_for_device = _is_for_cuda(policy.target)
    checked = FileCheck()
    for fault in outcome.faults:
        text = f"{fault.form} on {device.name}: {fault.detail}"
        if is_for_device and not fault.of_source:
            return checked.then(_failed(f"{text}. {_NOT_ON_DEVICE}"))
        checked = checked.then(_noted(f"fault of the source: {text}" if fault.of_source else text))
    skipped = [f"not run on {device.name} in {form}: {reason}" for form, reason in outcome.skipped.items()]
    runs = "" if reference is None else f", {RUNS} runs"
    sessions = tuple(f"{form} ({device.name}{runs})" for form in outcome.sessions)
    checked = checked.then(_noted(*skipped)).then(FileCheck(checks=sessions))
    if not outcome.sessions or reference is None or not is_for_device:
        return checked
    measured = _measurement(outcome, device)
    findings = judge_measured(measured, facts, reference, policy.limits, rounded=has_low_values(program))
    return checked.then(FileCheck(measured=measured, findings=findings))


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


def _failed(fault: str) -> FileCheck:
    """Refuse the file."""
    return FileCheck(findings=Findings(Judgement(Verdict.FAILED, {"why": fault}), failure=fault))
