"""Tells what changes for a model between two releases of ONNX Runtime: `debug --ort OLD NEW`, and in Python."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from amp_transpiler.conversion import plain_copy
from amp_transpiler.diagnosis.releases.both import Both, Samples
from amp_transpiler.diagnosis.releases.decisions import decision_changes
from amp_transpiler.diagnosis.releases.environments import interpreters_of
from amp_transpiler.diagnosis.releases.known_faults import fault_changes
from amp_transpiler.diagnosis.releases.placement import copy_count, placed, placement_changes
from amp_transpiler.diagnosis.subject import LEVEL_AUTO_LIMITS, chosen_dtype
from amp_transpiler.errors import AmpError, OptionError
from amp_transpiler.files.loading import Source, load
from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.pipeline import transpile
from amp_transpiler.program.program import Program
from amp_transpiler.report import Report
from amp_transpiler.report.release_difference import (
    CopyCount,
    FaultChange,
    PlacementChange,
    ReleaseDifference,
    RunDifference,
    Which,
)
from amp_transpiler.systems.option_names import DtypeName, LevelName, TargetName
from amp_transpiler.targets import Target, find_target
from amp_transpiler.targets.devices import find_device
from amp_transpiler.targets.kernel_table import release_number
from amp_transpiler.verification.accuracy import CannotCompare, make_reference
from amp_transpiler.verification.inputs import Inputs, given_inputs

__all__ = ["compare_releases"]

_FLOAT32_TOLERANCE = 1e-3  # far more than the order of sums makes, far less than a wrong kernel
_NOTHING_RAN = "no interpreters were named that hold the releases"


def compare_releases(  # noqa: PLR0913  options of a public function, all but two by keyword
    model: Source,
    low: Source | None = None,
    *,
    ort: tuple[str, str],
    inputs: Inputs | None = None,
    python: Sequence[str | os.PathLike[str]] = (),
    dtype: DtypeName | None = None,
    level: LevelName = "O2",
    target: TargetName = "cuda",
    device: str = "H100",
    tolerance: float | None = None,
) -> ReleaseDifference:
    """Tell what changes for a model between two releases of ONNX Runtime.

    The tables of both releases say where nodes run, which known faults they meet, and what a conversion decides. Where
    interpreters are named that hold the releases, the models run in both on the same samples.

    Args:
        model: The float32 model: a path, `onnx.ModelProto`, `onnx_ir.Model` or a `Program`. It is never changed.
        low: A low model of any tool, made from it. None: a conversion for the old release, which the tables are asked
            about and which does not run.
        ort: The old and the new release, such as `("1.24", "1.31")`.
        inputs: Samples, as `transpile` takes them. None: inputs made up from the model's shapes.
        python: Paths of Python interpreters, in any order, which hold one of the releases each; they need numpy and
            ONNX Runtime only. The installed release needs no path. Empty: nothing runs.
        dtype: The low format. Default: that of `low`, or float16.
        level: What a conversion makes low.
        target: Whose kernels count.
        device: The device whose faults count.
        tolerance: The largest difference of an output that is no change, a fraction. Default: 0.001 for the float32
            model; for the low one 0.02 in float16 and 0.05 in bfloat16.

    Returns:
        The differences.

    Raises:
        InputError: a model, an option or an input is wrong, or an interpreter does not hold one of the releases.

    Example::

        import amp_transpiler as amp

        difference = amp.compare_releases("model.onnx", ort=("1.24", "1.31"))
        for row in difference.placement:
            print(row.node, row.old, row.new)
    """
    old, new = (str(release).strip() for release in ort)
    targets, notes = _targets(target, old, new, runs=bool(python))
    source, loaded = load(model), None if low is None else load(low)
    options = ConversionOptions(
        level=level, dtype=chosen_dtype(dtype, loaded), target=target, device=device, verify=False, fuse="none"
    )
    tolerances = _tolerances(tolerance, options)
    difference = ReleaseDifference(
        source=str(source.source or "the model"),
        low=None if loaded is None else str(loaded.source or "the low model"),
        old=old,
        new=new,
        target=target,
        device=find_device(device).name,
        dtype=low_format(options.dtype).name,
        level=level,
        not_run=_NOTHING_RAN,
    )
    if python:
        with interpreters_of(old, new, [os.fspath(path) for path in python]) as interpreters:
            runs, not_run = _runs(source, loaded, interpreters, inputs, tolerances, target)
        difference = dataclasses.replace(difference, runs=runs, not_run=not_run)
    if targets is not None:
        difference = _by_tables(difference, source, loaded, targets, options, notes)
    return dataclasses.replace(difference, notes=tuple(notes))


def _tolerances(tolerance: float | None, options: ConversionOptions) -> tuple[float, float]:
    """Return the largest differences of the float32 model and of the low one that are no change.

    Raises:
        OptionError: it is no positive number.
    """
    if tolerance is None:
        return _FLOAT32_TOLERANCE, LEVEL_AUTO_LIMITS[low_format(options.dtype).name]
    if not tolerance > 0:
        raise OptionError(f"tolerance {tolerance}: expected a number above 0, such as 0.01")
    return tolerance, tolerance


def _targets(name: TargetName, old: str, new: str, *, runs: bool) -> tuple[tuple[Target, Target] | None, list[str]]:
    """Return the target as both releases have it, and notes; None where there is no table and models run instead.

    Raises:
        OptionError: it is no release, or one without a table where nothing runs.
    """
    try:
        targets = (find_target(name, old), find_target(name, new))
    except OptionError as error:
        if not runs or not (_is_release(old) and _is_release(new)):
            raise
        return None, [f"the tables say nothing: {error}"]
    if targets[0].ort == targets[1].ort and not runs:
        raise OptionError(
            f"the tables of ONNX Runtime {old} and {new} are the same: name two minor releases, or interpreters that "
            "hold these"
        )
    return targets, list(dict.fromkeys(target.choice.note for target in targets if target.choice.note))


def _is_release(text: str) -> bool:
    try:
        return len(release_number(text)) > 1
    except ValueError:
        return False


def _by_tables(
    difference: ReleaseDifference,
    source: Program,
    low: Program | None,
    targets: tuple[Target, Target],
    options: ConversionOptions,
    notes: list[str],
) -> ReleaseDifference:
    """Add what the tables say; notes tell what they cannot say."""
    reports = [_converted(source, options, release, notes) for release in (difference.old, difference.new)]
    programs: list[tuple[Which, Program]] = [("float32", _plain(source))]
    if low is not None:
        programs.append(("low", _plain(low)))
    elif (report := reports[0] or reports[1]) is not None and report.program is not None:
        programs.append(("low", _plain(report.program)))
    placement: list[PlacementChange] = []
    copies: list[CopyCount] = []
    faults: list[FaultChange] = []
    for which, program in programs:
        old, new = (placed(program.model, target) for target in targets)
        placement += placement_changes(which, old, new)
        if (count := copy_count(which, old, new)) is not None:
            copies.append(count)
        faults += fault_changes(which, program.model, targets, low_format(options.dtype), options.device)
    decisions = []
    if reports[0] is not None and reports[1] is not None:
        decisions = list(decision_changes(reports[0].decisions, reports[1].decisions))
    return dataclasses.replace(
        difference,
        placement=tuple(placement),
        copies=tuple(copies),
        faults=tuple(faults),
        decisions=tuple(decisions),
    )


def _plain(program: Program) -> Program:
    plain = plain_copy(program)
    NameNodes()(plain.model)
    return plain


def _converted(source: Program, options: ConversionOptions, release: str, notes: list[str]) -> Report | None:
    """Convert the model for a release, without checks; None, and a note, if that cannot be."""
    try:
        return transpile(source, **{**options.changed(), "ort": release})
    except OptionError:
        raise
    except AmpError as error:
        notes.append(f"decisions are not compared, as there is no conversion for ONNX Runtime {release}: {error}")
        return None


def _runs(
    source: Program,
    low: Program | None,
    interpreters: Both,
    inputs: Inputs | None,
    tolerances: tuple[float, float],
    target: TargetName,
) -> tuple[tuple[RunDifference, ...], str]:
    """Return how the models run in both releases; or why they do not run.

    Raises:
        InputError: the inputs do not fit.
    """
    try:
        samples = _samples(source, inputs)
    except CannotCompare as reason:
        return (), str(reason)
    cuda = target != "cpu"
    runs = [interpreters.compare("float32", source, samples, tolerances[0], cuda=cuda)]
    if low is not None:
        runs.append(interpreters.compare("low", low, samples, tolerances[1], cuda=cuda))
    return tuple(runs), ""


def _samples(source: Program, inputs: Inputs | None) -> Samples:
    if inputs is not None:  # the installed release need not run the model
        return Samples(given_inputs(inputs, source.model), given=True)
    return Samples(make_reference(source, plain_copy(source), None).samples, given=False)
