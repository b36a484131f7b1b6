"""Finds which node is to blame where a low model is wrong: `amp_transpiler.debug`, and `amp-transpile debug`."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.differences import Measured
from amp_transpiler.diagnosis.blame import suspects_of
from amp_transpiler.diagnosis.cures import Cures
from amp_transpiler.diagnosis.departures import Compared, compared_results
from amp_transpiler.diagnosis.fault_path import fault_path, where_absorbed
from amp_transpiler.diagnosis.joined import Joined, join
from amp_transpiler.diagnosis.on_device import run_on_device
from amp_transpiler.diagnosis.other_format import conversions_of
from amp_transpiler.diagnosis.pairs import Pairs, Shapes, pair
from amp_transpiler.diagnosis.side_by_side import compare_side_by_side
from amp_transpiler.diagnosis.subject import LEVEL_AUTO_LIMITS, Subject, chosen_dtype, subject_of
from amp_transpiler.diagnosis.suspects import Findings, rows_of
from amp_transpiler.diagnosis.wrong_kernels import by_effect, measured_kernels, simulated_departures, wrong_kernels
from amp_transpiler.errors import CheckFailed, InputError, ModelError
from amp_transpiler.files.loading import Source, load
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.pipeline import transpile
from amp_transpiler.precision.limits import Tolerance
from amp_transpiler.program.program import Program
from amp_transpiler.report.diagnosis import Cure, Diagnosis, NodeDiagnosis, RunsOnDevice, Suspect
from amp_transpiler.report.recipe import recipe_beside
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.systems.option_names import DtypeName, LevelName, TargetName
from amp_transpiler.targets.arithmetic import DeviceArithmetic
from amp_transpiler.verification.accuracy import CannotCompare, Reference, make_reference
from amp_transpiler.verification.conversions import Conversions
from amp_transpiler.verification.default_device import DeviceCheck, checked_wish, device_to_check
from amp_transpiler.verification.device_draws import error_of
from amp_transpiler.verification.fixed_sample import Surveys, survey
from amp_transpiler.verification.inputs import Inputs
from amp_transpiler.verification.judge import Judged
from amp_transpiler.verification.sensitivity import low_forms, measure_sensitivity
from amp_transpiler.verification.verify import samples_beside_first

__all__ = ["debug"]

logger = logging.getLogger(__name__)

_NO_DERIVATIVES: tuple[type[Exception], ...] = (*RUN_ERRORS, ModelError)
_SAMPLES = 3  # that are differentiated


def debug(  # noqa: PLR0913  options of a public function, all but two by keyword
    model: Source,
    low: Source | None = None,
    *,
    inputs: Inputs | None = None,
    dtype: DtypeName | None = None,
    level: LevelName = "O2",
    target: TargetName = "cuda",
    ort: str | None = None,
    device: str = "H100",
    tolerance: Tolerance | None = None,
    cure: bool = True,
    fix: str | os.PathLike[str] | None = None,
    device_check: DeviceCheck = "no",
) -> Diagnosis:
    """Find which node is to blame where a low model is wrong.

    Both models run side by side on the same data, the low one emulated. Each low node runs a second time on what the
    float32 node reads, so that its own error is known; derivatives say what that adds to the outputs.

    Args:
        model: The float32 model: a path, `onnx.ModelProto`, `onnx_ir.Model` or a `Program`. It is never changed.
        low: A low model of any tool, made from it. None: the float32 model is converted as `level` says, without any
            repair.
        inputs: Samples, as `transpile` takes them. None: inputs made up from the model's shapes.
        dtype: The low format. Default: that of `low`, or float16.
        level: What a conversion makes low, where `low` is None, and for the cure.
        target: Whose kernels count.
        ort: The ONNX Runtime that is to run the low model. Default: the installed one.
        device: The device whose arithmetic and faults count.
        tolerance: The largest error of an output that is no fault, as `transpile` takes it. Default: that of level
            auto, 0.02 in float16 and 0.05 in bfloat16.
        cure: Find the fewest nodes that mend the model if they stay float32; each set is proven by a run.
        fix: Write the mended model here, and the recipe of its conversion beside it (`.recipe.toml`). The cure then
            holds by all that `transpile` checks (samples at other levels, the noise of the device), for which it may
            take more nodes. A note says so if `transpile` refuses it all the same.
        device_check: Whether the low model also runs on this host's device, node by node and as ONNX Runtime fuses it,
            beside its emulation: "auto", where a device answers; "yes", an error where none does; "no".

    Returns:
        The diagnosis.

    Raises:
        InputError: a model, an option or an input is wrong, or the models cannot be run.
        EnvironmentProblem: `device_check` is "yes", and no device answers.

    Example::

        import amp_transpiler as amp

        diagnosis = amp.debug("model.onnx", inputs="samples.npz")
        if diagnosis.guilty is not None:
            print(diagnosis.guilty.node, diagnosis.guilty.why)
    """
    loaded = None if low is None else load(low)
    options = _options(loaded, level, dtype, target, ort, device, tolerance)
    wish = checked_wish(device_check, verify=True)
    subject = subject_of(model, loaded, options)
    try:
        return _diagnosed(
            subject, options, inputs, device_check=wish, cure=cure or fix is not None, fix=fix, model=model
        )
    except CannotCompare as reason:
        raise InputError(f"{subject.source.source or 'the model'} cannot be diagnosed: {reason}") from reason
    except RUN_ERRORS as error:
        raise InputError(
            f"{subject.source.source or 'the model'} cannot be diagnosed, as the two models do not run side by side: "
            f"{error_text(error)}"
        ) from error


def _options(
    low: Program | None,
    level: LevelName,
    dtype: DtypeName | None,
    target: TargetName,
    ort: str | None,
    device: str,
    tolerance: Tolerance | None,
) -> ConversionOptions:
    dtype = chosen_dtype(dtype, low)
    if tolerance is None:
        tolerance = LEVEL_AUTO_LIMITS.get(str(dtype), 0.02)
    return ConversionOptions(
        level=level, dtype=dtype, target=target, ort=ort, device=device, tolerance=tolerance, fuse="none"
    )


def _diagnosed(
    subject: Subject,
    options: ConversionOptions,
    inputs: Inputs | None,
    *,
    device_check: DeviceCheck,
    cure: bool,
    fix: str | os.PathLike[str] | None,
    model: Source,
) -> Diagnosis:
    further = samples_beside_first(subject.prepared) if inputs is None else 0
    reference = make_reference(subject.source, subject.prepared, inputs, further=further)
    conversions = conversions_of(subject, reference)
    judged, is_of_device = _judged(conversions, subject)
    is_wrong = judged.excess > 1.0
    runs = _run_side_by_side(subject, reference)
    findings, branchless = runs.findings, runs.subject
    rows = rows_of(findings)
    limits = subject.policy.limits
    allowed = min((limits.for_output(name) for name in judged.outputs), default=limits.tolerance)
    error = max((error_of(row) for row in judged.outputs.values()), default=0.0)
    on_device, notes = _on_device(runs, device_check)
    kernels = _kernels(runs, on_device, conversions.arithmetic if is_of_device else None, error, allowed)
    by_rounding = suspects_of(findings, rows, allowed)
    suspects = _ranked(kernels, by_rounding, is_shown_by_rounding=is_wrong and not is_of_device)
    guilty = suspects[0] if suspects and (is_wrong or kernels) else None
    mended = None
    if is_wrong and cure:
        cures = Cures(model, options, conversions, findings, suspects, confirm=fix is not None)
        mended, said = cures.best()
        notes += said
    if mended is not None and fix is not None:
        mended = dataclasses.replace(mended, written=_fixed(model, options, inputs, mended, fix, notes))
    by_node = _worst_rows(rows)
    path = () if guilty is None else _path(subject, branchless, by_node, guilty, allowed)
    return Diagnosis(
        source=str(subject.source.source or "the model"),
        low=subject.low_name,
        dtype=subject.format.name,
        given=reference.given,
        samples=len(reference.samples),
        passes=2 + (findings.felt is not None),  # what is right; side by side; and derivatives, on a few samples
        error=error,
        excess=judged.excess,
        outputs=judged.outputs,
        guilty=guilty,
        suspects=suspects,
        path=path,
        absorbed=where_absorbed(by_node, path),
        nodes=rows,
        unmatched=tuple(str(node.name) for node in findings.pairs.unmatched),
        cure=mended,
        on_device=on_device,
        notes=tuple(notes),
    )


def _on_device(runs: _SideBySide, wish: DeviceCheck) -> tuple[RunsOnDevice | None, list[str]]:
    """Run the low program on a device where the user wishes that; return also a note for each run that failed."""
    device = device_to_check(wish)
    if device is None:
        return None, []
    on_device, notes = run_on_device(runs.subject.low, runs.results(), runs.samples, device)
    return on_device, list(notes)


def _kernels(
    runs: _SideBySide,
    on_device: RunsOnDevice | None,
    arithmetic: DeviceArithmetic | None,
    error: float,
    allowed: float,
) -> tuple[Suspect, ...]:
    """Return the wrong kernels, the worst first.

    Args:
        runs: what both programs did.
        on_device: what a device did; None if the low program did not run on any.
        arithmetic: that of a device, if only that shows that the low program is wrong.
        error: the largest error of an output.
        allowed: the one that is allowed.
    """
    subject, findings = runs.subject, runs.findings
    by_table = wrong_kernels(subject, findings, 0.0 if arithmetic is None else error)
    measured: tuple[Suspect, ...] = ()
    if on_device is not None and on_device.forms:
        by_table = tuple(each for each in by_effect(by_table, findings, on_device.departures) if each.contribution)
        measured = measured_kernels(on_device, findings, allowed)
    elif arithmetic is not None and len(by_table) > 1:
        departed = simulated_departures(subject, arithmetic, runs.results(), runs.samples)
        by_table = by_effect(by_table, findings, departed)
    named = {kernel.node for kernel in measured}
    return (*measured, *(kernel for kernel in by_table if kernel.node not in named))


def _ranked(
    kernels: Sequence[Suspect], by_rounding: Sequence[Suspect], *, is_shown_by_rounding: bool
) -> tuple[Suspect, ...]:
    """Return all suspects: wrong kernels come first, unless rounding alone shows that the low model is wrong."""
    if is_shown_by_rounding:
        return (*by_rounding, *kernels)
    named = {kernel.node for kernel in kernels}
    return (*kernels, *(each for each in by_rounding if each.node not in named))


def _path(
    subject: Subject, branchless: Subject, rows: Mapping[str, NodeDiagnosis], guilty: Suspect, allowed: float
) -> tuple[str, ...]:
    """Return the way of the fault, without what stands in place of an If."""
    written = {str(node.name) for node in all_nodes(subject.reference.model)}
    return tuple(name for name in fault_path(branchless.reference, rows, guilty.node, allowed) if name in written)


def _judged(conversions: Conversions, subject: Subject) -> tuple[Judged, bool]:
    """Judge the low program; return also whether only the device's arithmetic shows that it is wrong."""
    limits = subject.policy.limits
    plain = dataclasses.replace(conversions, arithmetic=None).judge(limits, is_float32=False).judged(subject.low)
    if plain.excess > 1.0 or conversions.arithmetic is None:
        return plain, False
    on_device = conversions.judge(limits, is_float32=False).judged(subject.low)
    return (on_device, True) if on_device.excess > 1.0 else (plain, False)


@dataclasses.dataclass(frozen=True, slots=True)
class _SideBySide:
    """Both programs, and what their runs beside each other showed.

    Attributes:
        findings: what was measured.
        subject: the programs, without branches.
        shapes: result of the float32 program -> its shape on the first sample.
        samples: the inputs.
    """

    findings: Findings
    subject: Subject
    shapes: Shapes
    samples: Sequence[Mapping[str, Any]]

    def results(self) -> dict[str, Compared]:
        """Return the results of the low program that another run of it can be compared in."""
        findings = self.findings
        return compared_results(findings.pairs, findings.measured, self.shapes, findings.low)


def _run_side_by_side(subject: Subject, reference: Reference) -> _SideBySide:
    """Run both programs side by side and differentiate the float32 one."""
    names = [str(value.name) for value in subject.reference.model.graph.inputs]
    samples = reference.feeds(names)
    subject = subject.without_branches(samples[0])
    pairs = pair(subject.reference, subject.low)
    surveys = Surveys(subject.reference)
    shapes, _ = surveys.of(samples[0])
    try:
        joined, measured = _side_by_side(subject, pairs, shapes, samples)
        is_paired = _has_equal_shapes(subject, measured)
    except RUN_ERRORS as error:
        logger.info("paired once more, by the shapes of a run: %s", error_text(error))
        is_paired = False
    if not is_paired:  # a node that has moved may have another one's name, and a result of another shape
        pairs = pairs.of_shapes(shapes, _shapes_of_low(subject, samples[0]))
        joined, measured = _side_by_side(subject, pairs, shapes, samples)
    felt = _felt(subject, samples, measured, surveys)
    values = {str(value.name): value for node in subject.reference.model.graph for value in node.outputs}
    findings = Findings(values, pairs, joined.triples, measured, felt, subject.format)
    return _SideBySide(findings, subject, shapes, samples)


def _side_by_side(
    subject: Subject, pairs: Pairs, shapes: Shapes, samples: Sequence[Mapping[str, Any]]
) -> tuple[Joined, dict[str, Measured]]:
    joined = join(subject.reference, subject.low, pairs)
    return joined, compare_side_by_side(joined, shapes, subject.format, samples)


def _has_equal_shapes(subject: Subject, measured: Mapping[str, Measured]) -> bool:
    """Whether paired results have one shape, or not even outputs do: then the low program itself is off."""
    outputs = {str(value.name) for value in subject.reference.model.graph.outputs}
    others = [name for name, facts in measured.items() if not facts.low.has_shape]
    return not others or not outputs.isdisjoint(others)


def _shapes_of_low(subject: Subject, sample: Mapping[str, Any]) -> Shapes:
    """Return the shapes that the results of the low program have on a sample."""
    inputs = subject.low.model.graph.inputs
    feeds = {str(value.name): sample[str(value.name)] for value in inputs if value.name in sample}
    for value in inputs:
        if value.name in feeds and value.dtype in LOW_DTYPES:
            feeds[value.name] = np.asarray(feeds[value.name]).astype(value.dtype.numpy())
    shapes, _ = survey(emulate(subject.low), feeds)
    return shapes


def _felt(
    subject: Subject, samples: Sequence[Mapping[str, Any]], measured: Mapping[str, Measured], surveys: Surveys
) -> dict[str, float] | None:
    """Return what the rounding of each result adds to the worst output; None where derivatives cannot be had."""
    low = subject.format
    forms = low_forms(subject.reference.model, subject.policy.target, low)
    beyond = frozenset(name for name, facts in measured.items() if math.isinf(facts.rounding))
    chosen = samples[:: math.ceil(len(samples) / _SAMPLES)]
    try:
        sensitivity = measure_sensitivity(subject.reference, low, forms, chosen, beyond=beyond, surveys=surveys)
    except _NO_DERIVATIVES as error:
        logger.info("no derivatives: %s", error)
        return None
    felt: dict[str, float] = {}
    for contributions in sensitivity.by_output.values():
        for name, square in contributions.casts.items():
            felt[name] = max(square, felt.get(name, 0.0))
    return felt


def _worst_rows(rows: Sequence[NodeDiagnosis]) -> dict[str, NodeDiagnosis]:
    """Return node -> the row of its worst result."""
    worst: dict[str, NodeDiagnosis] = {}
    for row in rows:
        before = worst.get(row.node)
        if before is None or (row.infinite, row.error) > (before.infinite, before.error):
            worst[row.node] = row
    return worst


def _fixed(
    model: Source,
    options: ConversionOptions,
    inputs: Inputs | None,
    cure: Cure,
    path: str | os.PathLike[str],
    notes: list[str],
) -> str | None:
    """Write the model converted as the cure says, and the recipe of that.

    Returns:
        The path; None, with a note, if the conversion is refused: the diagnosis is worth having all the same.
    """
    patterns = [f"^{re.escape(name)}$" for name in cure.nodes]
    changed = {**options.changed(), "disable_amp": patterns, "inputs": inputs}
    if cure.dtype is not None:
        changed["dtype"] = cure.dtype
    if cure.rescaled:
        changed["rescale"] = cure.rescaled
    try:
        report = transpile(model, path, **changed)
    except CheckFailed as refusal:
        notes.append(f"the mended model was not written: {refusal}")
        return None
    report.save_recipe(recipe_beside(path))
    return os.fspath(path)
