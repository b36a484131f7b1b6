"""The guarantee: what is checked of a source and of a result, and the repair of one that is not accurate enough."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from amp_transpiler.conversion import Conversion, convert
from amp_transpiler.errors import CheckFailed, InputError, ModelError
from amp_transpiler.graph.checker import checker_fault, mend_declared_shapes
from amp_transpiler.graph.io import Staged
from amp_transpiler.graph.program import Program
from amp_transpiler.precision.constraints import RangeFaults
from amp_transpiler.precision.policy import Policy
from amp_transpiler.report import OutputComparison, Report
from amp_transpiler.runtime.ort import ORT_ERRORS
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.session import Session
from amp_transpiler.verification.accuracy import CannotCompare, Reference, make_reference
from amp_transpiler.verification.inputs import Inputs
from amp_transpiler.verification.repair import worst_nodes
from amp_transpiler.verification.structure import check_load

__all__ = ["accurate", "check_result", "check_source"]

logger = logging.getLogger(__name__)

_LOAD_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, InputError)

Phase = Callable[[str], contextlib.AbstractContextManager[None]]


def check_source(program: Program, phase: Phase) -> None:
    """See that a prepared program is valid ONNX, and leave out declared shapes that are wrong.

    Raises:
        ModelError: it is not: the fault is the source's.
    """
    with phase("check source"):
        if fault := checker_fault(program.model, full=False):
            raise ModelError(f"{program.source or 'the model'}: invalid before any conversion: {fault}")
        if mended := mend_declared_shapes(program.model):
            program.notes.append(f"fault of the source: {mended}")


def accurate(
    source: Program,
    prepared: Program,
    policy: Policy,
    ranges: RangeFaults,
    inputs: Inputs | None,
    report: Report,
    phase: Phase,
) -> tuple[Program, Conversion, str]:
    """Convert `prepared`, compare the result with `source`, and repair it as often as the policy allows.

    Args:
        source: the program as it came.
        prepared: the program to convert; kept as it is.
        policy: what to decide by.
        ranges: a look-up of constants.
        inputs: data to compare on, or None to make some up.
        report: gets outputs, verdict and notes.
        phase: times what is done.

    Returns:
        The converted program, what was done to it, and why it is not good enough: empty if it is.
    """
    program = prepared.clone()
    with phase("convert"):
        conversion = convert(program, policy, ranges)
    try:
        with phase("run fp32"):
            reference = make_reference(source, prepared, inputs)
        limit = policy.tolerance
        forced: dict[str, str] = {}
        for attempt in range(policy.repair_limit + 1):
            with phase("compare"):
                report.outputs = reference.compare(program)
            failing = _failing(report.outputs, limit, reference.unjudged())
            if not failing or attempt == policy.repair_limit:
                break
            with phase("repair"):
                found = _to_repair(prepared, program, conversion, reference, policy, report)
                if not set(found) - set(forced):
                    break
                forced |= found
                program = prepared.clone()
                conversion = convert(program, dataclasses.replace(policy, forced_high=forced), ranges)
    except CannotCompare as reason:
        report.verdict = f"structurally checked only: {reason}"
        report.notes = (*report.notes, f"not compared with the fp32 model: {reason}")
        return program, conversion, ""
    report.repaired = tuple(forced)
    return program, conversion, _judge(report, reference, failing, limit)


def _to_repair(
    prepared: Program, program: Program, conversion: Conversion, reference: Reference, policy: Policy, report: Report
) -> dict[str, str]:
    """Return the nodes to make float32; none, and a note, where the programs do not run with their intermediates."""
    try:
        return worst_nodes(prepared, program, conversion.assignment, reference, policy.low)
    except CannotCompare as reason:
        report.notes = (*report.notes, f"not repaired: {reason}")
        return {}


def _failing(outputs: dict[str, OutputComparison], limit: float, unjudged: list[str]) -> list[OutputComparison]:
    return [
        row for row in outputs.values() if row.nonfinite or (not row.relative <= limit and row.name not in unjudged)
    ]


def _judge(report: Report, reference: Reference, failing: list[OutputComparison], limit: float) -> str:
    """Write verdict and notes into `report`; return why the result is not good enough, empty if it is."""
    data = f"{len(reference.samples)} given" if reference.given else "1 made-up"
    plural = "s" if len(reference.samples) > 1 else ""
    unjudged = reference.unjudged()
    worst = max((row.relative for row in report.outputs.values() if row.name not in unjudged), default=0.0)
    if failing:
        report.verdict = f"failed on {data} sample{plural}"
        return _failure(report, failing, limit)
    silent = _without_comparable(reference)
    report.notes = (*report.notes, *_remarks(report, unjudged, silent))
    if set(report.outputs) <= {*unjudged, *silent}:
        report.verdict = "structurally checked only: no finite output to compare"
        why = "no output says how exact it is; supply other inputs with --inputs" if report.outputs else "no outputs"
        report.notes = (*report.notes, f"not compared with the fp32 model: {why}")
        return ""
    report.verdict = f"verified: within {worst:.2%} of fp32 on {data} sample{plural}, rounding emulated"
    if not reference.given:
        report.notes = (*report.notes, "compared on made-up inputs; judge on real ones with --inputs")
    return ""


def _remarks(report: Report, unjudged: list[str], silent: list[str]) -> Iterator[str]:
    """Yield what the verdict leaves out: repairs, and outputs that it does not speak of."""
    if report.repaired:
        yield f"{len(report.repaired)} nodes were made float32 to be accurate enough"
    if unjudged:
        yield f"the made-up inputs leave {', '.join(unjudged)} practically zero, so its error is not judged"
    if silent:
        yield f"empty, NaN or infinite in fp32, so that nothing is compared: {', '.join(silent)}"
    changed = [row.name for row in report.outputs.values() if row.mismatched]
    if changed:
        yield f"integer or text outputs that changed: {', '.join(changed)}"


def _without_comparable(reference: Reference) -> list[str]:
    """Return the names of outputs that have no element, in no sample, with a finite value in fp32."""
    names = dict.fromkeys(name for sample in reference.outputs for name in sample)
    return [
        name
        for name in names
        if not any(_comparable(array) for sample in reference.outputs for array in _arrays(sample[name]))
    ]


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of an output, which may be a sequence, the mapping of a ZipMap, or None."""
    if isinstance(value, Mapping):
        yield from (np.asarray(list(value)), np.asarray(list(value.values())))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
    elif value is not None:
        yield np.asarray(value)


def _comparable(array: np.ndarray) -> int:
    """Count the elements that are compared: integers, truth values and text all, floats where they are finite."""
    return array.size if array.dtype.kind in "biuOUS" else int(np.count_nonzero(np.isfinite(array)))


def _failure(report: Report, failing: list[OutputComparison], limit: float) -> str:
    row = max(failing, key=lambda row: (row.nonfinite, row.relative))
    if row.nonfinite:
        what = f"has {row.nonfinite} non-finite values where fp32 is finite"
    else:
        what = f"differs by {row.relative:.2%} in relative norm, allowed are {limit:.2%}"
    repaired = f" after making {len(report.repaired)} nodes float32" if report.repaired else ""
    return (
        f"{report.source}: output '{row.name}' {what}{repaired}; nothing was written. Try level auto or O1, bfloat16, "
        "a black list, or a larger --tolerance"
    )


def check_result(staged: Staged, program: Program, source: Program, report: Report, phase: Phase) -> None:
    """Check the written model with ONNX's checker and ONNX Runtime.

    Raises:
        CheckFailed: it is invalid, while the source was not.
    """
    checks = ["types of every node"]
    with phase("check result"):
        fault = checker_fault(program.model)
        if fault and not checker_fault(source.model):
            raise CheckFailed(f"{report.source}: the result fails onnx.checker: {fault}", report)
        if fault:
            report.notes = (*report.notes, f"fault of the source: onnx.checker says {fault}")
        else:
            checks.append("onnx.checker, full")
        loaded = check_load(staged.path, program)
        if loaded.outcome == "refused":
            if _loads(source):
                raise CheckFailed(f"{report.source}: ONNX Runtime refuses the result: {loaded.detail}", report)
            report.notes = (*report.notes, f"fault of the source: ONNX Runtime refuses it, too: {loaded.detail}")
        elif loaded.outcome == "structural":
            report.verdict = f"structurally checked only: {loaded.detail}"
        else:
            where = loaded.detail if loaded.outcome == "loaded" else "CPU, emulated"
            checks.append(f"ONNX Runtime ({where})")
    report.checks = tuple(checks)


def _loads(source: Program) -> bool:
    try:
        Session(source.source or source, CPUPlace(), emulate=False)
    except _LOAD_ERRORS as error:
        logger.info("the source does not load either: %s", error)
        return False
    return True
