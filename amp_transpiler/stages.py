"""Runs the stages of a conversion, in their order; `pipeline.py` lists them. A stage reads a job and adds to it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator

from amp_transpiler.assess.describe import describe_copy, describe_needless, describe_result, describe_source
from amp_transpiler.assess.predictions import add_errors, as_its_source, predict_times
from amp_transpiler.child_process.child import start_early
from amp_transpiler.conversion import adds_nothing, convert, fitted, is_the_source, plain_copy, prepare
from amp_transpiler.errors import CheckFailed, OptionError
from amp_transpiler.files.copy_files import copy_model
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import DefaultPlace, Staged, check_destination, stage
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.graph.regions import DISABLE_AMP, FP16_GUARD, INCLUDE, mark_region
from amp_transpiler.job import Job
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.plan import policy_for
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.training import NO_STATE, UNSCALED, holds_gradients
from amp_transpiler.program.assemble import written_model
from amp_transpiler.program.program import Program
from amp_transpiler.program.training_info import merge, split
from amp_transpiler.report.recipe import Recipe, digest
from amp_transpiler.report.verdict import Judgement, Verdict
from amp_transpiler.systems.choice import Request
from amp_transpiler.systems.program_names import limits_by_output, low_inputs_and_outputs, resolved_lists
from amp_transpiler.targets import Target
from amp_transpiler.targets.releases import choose_release, installed_version
from amp_transpiler.training_passes.aids import add_training_aids
from amp_transpiler.verification.check_file import check_result
from amp_transpiler.verification.transformers import NotOptimized, attentions_to_fuse, check_optimized, optimized
from amp_transpiler.verification.verify import Basis, check_source, convert_and_compare

__all__ = [
    "copy_unchanged",
    "decide_and_compare",
    "describe",
    "leave_needless",
    "load_source",
    "optimize_source",
    "predict",
    "prepare_program",
    "refuse_failure",
    "write_result",
]


# ---- load ----


def load_source(job: Job) -> None:
    """Load the model, and mark the regions in it that the user names.

    Raises:
        InputError: the model, a name in an option, or the output place is wrong.
    """
    with job.clock.phase("load"), collection_paused():
        _load(job)


def _load(job: Job) -> None:
    options, request, policy = job.plan.options, job.plan.request, job.plan.policy
    job.destination = None if job.dst is None else pathlib.Path(job.dst)
    job.loaded = _with_its_outputs(load(job.src))
    if job.destination is not None:
        check_destination(job.destination, job.loaded)
    if options.amp_lists is not None:
        lists = resolved_lists(options.amp_lists, job.loaded, request.low.name)
        request = dataclasses.replace(request, lists=lists)
        policy = policy_for(request, options)
    policy = dataclasses.replace(policy, limits=limits_by_output(job.loaded, policy.limits))
    job.source = _with_algorithms(job.loaded, policy)
    # Verification compares with the source, and level auto may write it: they work on a separate program.
    needs_source = options.verify or policy.objective != "rules" or not isinstance(job.src, (str, os.PathLike))
    job.program = job.source.clone() if needs_source else job.source
    job.policy = policy if options.optimize else _with_program(policy, job.program, options)
    job.report = describe_source(
        job.source, job.destination, job.policy, level=request.level_name, system=request.system, asked=request.label
    )
    job.report.notes = _first_notes(request, policy.target, verify=options.verify and not policy.copies)
    job.report.settings = job.settings


def _with_algorithms(source: Program, policy: Policy) -> Program:
    """Return a program whose graph is followed by the training algorithms that it carries; itself if there are none."""
    if not source.training_info or policy.copies:
        return source
    merged = source.clone()
    merge(merged)
    return merged


def _with_its_outputs(program: Program) -> Program:
    """Return the program with the outputs that were set by hand, as `save` writes it; a training program as it is."""
    if program.is_training or (model := written_model(program)) is program.model:
        return program
    chosen = Program(model)
    chosen.training_info = program.training_info
    return chosen


def _first_notes(request: Request, target: Target, *, verify: bool) -> tuple[str, ...]:
    """Say so if another ONNX Runtime decides than the one asked for, or checks the result than the one it is for."""
    notes = [note for note in (request.note, target.choice.note) if note]
    if verify and choose_release(None).release is not target.release:
        notes.append(f"checked with the installed ONNX Runtime {installed_version()}; {target.ort} was not run")
    return tuple(notes)


def _with_program(policy: Policy, program: Program, options: ConversionOptions) -> Policy:
    """Mark the user's regions in the program, and return the policy with the program's own facts filled in.

    Args:
        policy: how to decide.
        program: the program; edited in place.
        options: the user's words.

    Raises:
        OptionError: they have no meaning for this policy, or name nothing that is there.
    """
    marks = {"guard": options.guard, "disable_amp": options.disable_amp, "include": options.include}
    for name, patterns in marks.items():
        if patterns and (policy.low is FLOAT32 or (policy.copies and name == "include")):
            what = "everything becomes float32" if policy.low is FLOAT32 else "nothing is changed"
            raise OptionError(f"{name} has no meaning where {what}: drop it, or choose another dtype, level or preset")
    for kind, patterns in ((FP16_GUARD, options.guard), (DISABLE_AMP, options.disable_amp), (INCLUDE, options.include)):
        for pattern in (patterns,) if isinstance(patterns, str) else patterns:
            mark_region(program, kind, nodes=pattern)
    low_io = low_inputs_and_outputs(program, options.keep_io_types, policy.low.name)
    fitting = fitted(dataclasses.replace(policy, low_io=low_io), program)
    # A guard named for this conversion counts under every system's rules, not only under Paddle's.
    return dataclasses.replace(
        fitting, use_guard=policy.use_guard or bool(options.guard), included=bool(options.include)
    )


# ---- nothing to convert ----


def copy_unchanged(job: Job) -> None:
    """Copy the files, and be done, where the options ask for no change."""
    if not job.policy.copies:
        return
    if job.policy.low_io:
        raise OptionError(
            f"{job.report.asked} changes nothing, so inputs and outputs cannot become {job.policy.low.name}"
        )
    describe_copy(job.report, job.source, _copy_files(job, job.source, job.destination))
    job.is_done = True


def leave_needless(job: Job) -> None:
    """Copy the source to a destination that the user named, and be done, where a conversion would add nothing."""
    if job.needless is None:
        return
    place = job.destination
    if isinstance(job.dst, DefaultPlace) and not job.dst.is_named:  # nobody named it
        place = None
    describe_needless(job.report, *job.needless, _copy_files(job, job.loaded, place))
    job.is_done = True


def _copy_files(job: Job, source: Program, destination: pathlib.Path | None) -> int | None:
    """Copy the source's files, or write a source that came from memory; return the bytes written, None for nothing."""
    with job.clock.phase("write"):
        if destination is None:
            return None
        if source.source is not None:
            return copy_model(source.source, destination)
        with stage(source, destination) as staged:
            written = staged.file_bytes
            staged.commit()
            return written


# ---- before the decision ----


def optimize_source(job: Job) -> None:
    """Let ONNX Runtime's optimizer fuse the program, if that is asked for; if it fails, a warning says so."""
    options = job.plan.options
    if options.verify or options.optimize:
        start_early()
    if not options.optimize:
        return
    with job.clock.phase("optimize"):
        _optimize(job)
        job.policy = _with_program(job.policy, job.program, options)


def _optimize(job: Job) -> None:
    report, plain = job.report, plain_copy(job.program)
    try:
        fused = optimized(plain)
        if job.plan.options.verify:
            job.reference = check_optimized(job.source, plain, fused.program, job.plan.questions.inputs)
    except NotOptimized as reason:
        report.warnings = (*report.warnings, f"not optimized: {reason}")
        return
    report.fused = fused.operators
    report.notes = (*report.notes, fused.note)
    job.program = fused.program


def prepare_program(job: Job) -> None:
    """Prepare the program, give its training step what it needs in lower precision, and see whether any is needed."""
    job.ranges = RangeFaults(job.policy.low, strict=job.policy.strict_ranges)
    with job.clock.phase("prepare"):
        _prepare(job)
        if not (job.is_changed or job.report.fused):
            job.needless = adds_nothing(job.program, job.policy, job.ranges, job.report.opset[0])


def _prepare(job: Job) -> None:
    program, policy, report = job.program, job.policy, job.report
    prepare(program, policy, job.ranges)
    warnings = tuple(policy.wishes.warnings(program.step, policy.low.name))
    if program.step is None and not program.is_training and holds_gradients(program.model):
        warnings += (NO_STATE,)
    aided = add_training_aids(program, policy)
    report.warnings = (*report.warnings, *warnings, *aided.warnings)
    if not report.fused and not report.warnings and (count := attentions_to_fuse(program, policy)):
        report.notes = (*report.notes, _offer(count))
    policy = aided.policy
    if program.step is not None and policy.objective == "balance":  # in training memory counts as well as time
        policy = dataclasses.replace(policy, objective="low")
    job.policy, job.is_changed = policy, aided.changed


def _offer(attentions: int) -> str:
    what = "1 attention as one operator" if attentions == 1 else f"{attentions} attentions as one operator each"
    return f"--optimize would write {what}"


# ---- the conversion ----


def decide_and_compare(job: Job) -> None:
    """Decide, rewrite, and compare with fp32, again and again if need be; without verification once, unseen."""
    if job.plan.options.verify:
        job.prepared = job.program
        check_source(job.source, job.program, job.clock.phase)
        job.program, job.conversion, job.failure, job.basis = convert_and_compare(
            job.source,
            job.program,
            job.policy,
            job.ranges,
            job.plan.questions,
            job.report,
            job.clock.phase,
            job.reference,
        )
        return
    job.prepared = job.program.clone() if _is_priced(job) else job.program
    with job.clock.phase("convert"):
        job.conversion = convert(job.program, job.policy, job.ranges)
    why = "verification was switched off"
    job.report.verdict = Judgement(Verdict.NOT_CHECKED, {"why": why}).as_text()


def _is_priced(job: Job) -> bool:
    """Whether times are predicted. A conversion by rules that is not compared keeps no source for that."""
    policy = job.policy
    keeps_source = job.plan.options.verify or policy.objective != "rules" or bool(policy.dims)
    return keeps_source and policy.target.has_prices and policy.low is not FLOAT32


# ---- the report ----


def describe(job: Job) -> None:
    """Describe the result, say what a recipe no longer fits, and settle where the result is written."""
    report, recipe = job.report, job.plan.options.recipe
    describe_result(report, job.program, job.conversion, job.policy)
    if isinstance(recipe, Recipe):
        misfits = recipe.misfits(report.decisions, digest(report.source))
        report.warnings = (*report.warnings, *(f"recipe: {misfit}" for misfit in misfits))
    if not report.low_nodes:
        report.warnings = tuple(warning for warning in report.warnings if warning != UNSCALED)
    if report.kept_float32 and isinstance(job.dst, DefaultPlace) and job.dst.float32 is not None:
        # What is float32 throughout has another name, unless the user gave it one.
        check_destination(job.dst.float32, job.loaded)
        report.destination, job.destination = str(job.dst.float32), job.dst.float32


def predict(job: Job) -> None:
    """Predict times and errors."""
    if _is_priced(job):
        with job.clock.phase("predict"):
            at_once = job.plan.questions.frontier
            predict_times(job.report, job.prepared, job.policy, job.ranges, at_once=at_once)
    if job.basis is not None and job.basis.evidence is not None:
        add_errors(job.report, job.prepared, job.basis.evidence, job.policy)


def refuse_failure(job: Job) -> None:
    """Refuse a result that is invalid or not accurate enough. Nothing is written."""
    if job.failure:
        raise CheckFailed(job.failure, job.report)


# ---- the file ----


def write_result(job: Job) -> None:
    """Write the result to its destination, after checking the staged file if verification is on."""
    verbatim_source = job.loaded if _is_as_loaded(job) else None
    basis = _basis_of_file(job)
    with job.clock.phase("write"), _staged(job, verbatim_source, is_checked=basis is not None) as staged:
        if staged is not None and basis is not None:
            check_result(staged, job.program, basis, job.report, job.clock.phase)
        if staged is not None and job.destination is not None:
            job.report.file_bytes = (job.report.file_bytes[0], staged.file_bytes)
            staged.commit()
            job.program.source = job.destination


def _is_as_loaded(job: Job) -> bool:
    """Whether a model was kept in float32 and is written as it was loaded, which the report then says.

    A source that ONNX Runtime does not run is not: what was mended in it on the way makes the result run.
    """
    report, basis = job.report, job.basis
    runs = basis is None or basis.reference is not None or basis.known is not None
    if job.is_changed or not (report.kept_float32 and runs and not report.fused):
        return False
    if not is_the_source(job.loaded, job.program, job.conversion, job.policy):
        return False
    report.opset = (report.opset[0], report.opset[0])
    report.weight_bytes = (report.weight_bytes[0], report.weight_bytes[0])
    as_its_source(report)
    return True


def _basis_of_file(job: Job) -> Basis | None:
    """Take training algorithms out of the graph again; return what the file, whose graph lacks them, is checked by."""
    if job.program.merged is None:
        return job.basis
    split(job.program)
    return None if job.basis is None else job.basis.without_algorithms(job.loaded)


@contextlib.contextmanager
def _staged(job: Job, verbatim_source: Program | None, *, is_checked: bool) -> Iterator[Staged | None]:
    """Write the program next to its destination; to a temporary folder if it is only checked; else nowhere.

    Args:
        job: the program and its destination.
        verbatim_source: the source, to be written in place of the program; None for the program.
        is_checked: the file is checked.
    """
    written, verbatim = (job.program, False) if verbatim_source is None else (verbatim_source, True)
    if job.destination is not None:
        with stage(
            written,
            job.destination,
            progress=lambda done, total: job.clock.tell("write", done / max(1, total)),
            verbatim=verbatim,
        ) as staged:
            yield staged
    elif is_checked:
        with (
            temporary_folder() as folder,
            stage(written, folder / "model.onnx", durable=False, verbatim=verbatim) as staged,
        ):
            yield staged
    else:
        yield None
