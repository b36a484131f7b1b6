"""Runs the stages of a conversion, in their order; `pipeline.py` lists them. A stage reads a job and adds to it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping

from amp_transpiler.alternatives.best_conversion import best_conversion, source_beside_fused
from amp_transpiler.assess.describe import describe_copy, describe_needless, describe_result, describe_source
from amp_transpiler.assess.predictions import add_errors, predict_times
from amp_transpiler.assess.session_options import recommended_options
from amp_transpiler.child_process.child import start_early
from amp_transpiler.conversion import Conversion, convert, fitted, plain_copy, prepare
from amp_transpiler.errors import CheckFailed, OptionError
from amp_transpiler.files.copy_files import copy_model
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import DefaultPlace, check_destination, stage
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.graph.regions import DISABLE_AMP, FP16_GUARD, INCLUDE, mark_region
from amp_transpiler.job import Job
from amp_transpiler.needless import adds_nothing
from amp_transpiler.ops.fusions import may_fuse
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.phrases import first_few
from amp_transpiler.plan import policy_for
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.training import NO_STATE, holds_gradients
from amp_transpiler.program.assemble import written_model
from amp_transpiler.program.program import Program
from amp_transpiler.program.training_info import merge
from amp_transpiler.report.assembly import assemble
from amp_transpiler.report.facts import Facts, Findings, Optimization, Parting
from amp_transpiler.report.recipe import Recipe, digest
from amp_transpiler.report.verdict import Judgement, Verdict
from amp_transpiler.runtime.recommended_options import SESSION_KEY
from amp_transpiler.systems.choice import Request
from amp_transpiler.systems.program_names import (
    declared_ports,
    limits_by_output,
    low_inputs_and_outputs,
    resolved_lists,
)
from amp_transpiler.targets import Target
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.releases import choose_release, installed_version
from amp_transpiler.update_passes.aids import add_training_aids
from amp_transpiler.verification.transformers import NotOptimized, attentions_to_fuse, check_optimized, optimized
from amp_transpiler.writing import as_loaded

__all__ = [
    "copy_unchanged",
    "decide_and_compare",
    "describe",
    "leave_needless",
    "load_source",
    "optimize_source",
    "predict",
    "prepare_program",
    "recommend",
    "refuse_failure",
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
    # Verification compares with the source, and callers keep theirs. A file can be read again, see `as_loaded`.
    needs_source = options.verify or not isinstance(job.src, (str, os.PathLike))
    job.program = job.source.clone() if needs_source else job.source
    job.policy = policy if options.optimize else _with_program(policy, job.program, options)
    task = describe_source(
        job.source,
        job.policy,
        level=request.level_name,
        system=request.system,
        asked=request.label,
        settings=job.settings,
        notes=_first_notes(request, policy.target, verify=options.verify and not policy.copies),
    )
    job.facts = Facts(task)


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
    declared = declared_ports(program, policy, options.custom_op_types, options.float32_inputs)
    is_low = any(types.used & {"fp16", "bf16"} for types in declared["custom_types"].values())
    if is_low and policy.objective == "balance":
        policy = dataclasses.replace(policy, objective="low")  # all in float32 is no choice
    with_float64 = policy.float64 != "keep"
    low_io = low_inputs_and_outputs(program, options.keep_io_types, policy.low.name, with_float64=with_float64)
    fitting = fitted(dataclasses.replace(policy, low_io=low_io), program)
    # A guard named for this conversion counts under every system's rules, not only under Paddle's.
    return dataclasses.replace(
        fitting, use_guard=policy.use_guard or bool(options.guard), included=bool(options.include), **declared
    )


# ---- nothing to convert ----


def copy_unchanged(job: Job) -> None:
    """Copy the files, and be done, where the options ask for no change."""
    if not job.policy.copies:
        return
    if job.policy.low_io:
        raise OptionError(
            f"{job.facts.task.asked} changes nothing, so inputs and outputs cannot become {job.policy.low.name}"
        )
    job.facts.written_bytes = _copy_files(job, job.source, job.destination)
    job.facts.description = describe_copy(job.source, job.facts.task)
    job.is_done = True


def leave_needless(job: Job) -> None:
    """Copy the source to a destination that the user named, and be done, where a conversion would add nothing."""
    if job.needless is None:
        return
    if isinstance(job.dst, DefaultPlace) and not job.dst.is_named:  # nobody named it
        job.destination = None
    written = _copy_files(job, job.loaded, job.destination)
    job.facts.written_bytes = written
    job.facts.description = describe_needless(*job.needless, job.facts.task.dtype, is_written=written is not None)
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
        job.facts.optimization = _optimize(job)
        job.policy = _with_program(job.policy, job.program, options)


def _optimize(job: Job) -> Optimization:
    plain = plain_copy(job.program)
    try:
        fused = optimized(plain)
        if job.plan.options.verify:
            job.reference = check_optimized(job.source, plain, fused.program, job.plan.questions.inputs)
    except NotOptimized as reason:
        return Optimization(findings=Findings(warnings=(f"not optimized: {reason}",)))
    job.program = fused.program
    return Optimization(fused.operators, Findings(notes=(fused.note,)))


def prepare_program(job: Job) -> None:
    """Prepare the program, give its training step what it needs in lower precision, and see whether any is needed."""
    job.ranges = RangeFaults(job.policy.low, strict=job.policy.strict_ranges)
    with job.clock.phase("prepare"):
        prepare(job.program, job.policy, job.ranges)
        padded = _pad_weights(job) if job.plan.options.pad_weights else Findings()
        with collection_paused():
            job.facts.optimization, job.unfused = _fused(job)
        job.facts.preparation = padded.then(_prepare(job))
        by_default = job.plan.fuses_by_default
        if not job.is_changed and (by_default or not job.facts.optimization.fused):
            as_it_is = job.program if job.unfused is None else job.unfused
            job.needless = adds_nothing(as_it_is, job.policy, job.ranges, job.facts.task.opset)
            if job.needless is not None:
                job.facts.optimization = Optimization()


def _prepare(job: Job) -> Findings:
    program, policy, optimization = job.program, job.policy, job.facts.optimization
    warnings = tuple(policy.wishes.warnings(program.step, policy.low.name))
    if program.step is None and not program.is_training and holds_gradients(program.model):
        warnings += (NO_STATE,)
    aided = add_training_aids(program, policy)
    warnings += aided.warnings
    notes: tuple[str, ...] = ()
    is_sound = not warnings and not optimization.findings.warnings
    has_said_nothing = job.plan.options.fuse is None and job.plan.options.recipe is None
    may_offer = has_said_nothing and not job.plan.options.optimize and policy.target.name == CUDA.name
    unfused = program if job.unfused is None else job.unfused
    if is_sound and may_offer:
        count = attentions_to_fuse(unfused, policy) - optimization.fused.get("Attention", 0)
        notes = (_offer(count, unfused, policy),) if count > 0 else ()
    policy = aided.policy
    if program.step is not None and policy.objective == "balance":  # in training memory counts as well as time
        policy = dataclasses.replace(policy, objective="low")
    job.policy, job.is_changed = policy, aided.changed
    return Findings(notes=notes, warnings=warnings)


def _pad_weights(job: Job) -> Findings:
    """Widen the weights of products that are faster for it, by the price list; return what was done in words."""
    from amp_transpiler.fusion.fuse import reason_against_fusions
    from amp_transpiler.passes.pad_weights import pad_weights

    if reason := reason_against_fusions(job.program):
        return Findings(warnings=(f"no weight padded: {reason}",))
    rows = pad_weights(job.program, job.policy)
    if not rows:
        return Findings(notes=("no weight padded: no product is predicted to be faster for it",))
    names = [f"'{row.name}' from {row.sides}" for row in rows]
    saved = 1e6 * sum(row.saved for row in rows)
    return Findings(notes=(f"padded weights, predicted to save {saved:.3g} us a run: {first_few(names)}",))


def _fused(job: Job) -> tuple[Optimization, Program | None]:
    """Fuse the program, as was asked for or by default; return what was done, and what it was before if that counts."""
    choice, by_default = job.plan.fusions, job.plan.fuses_by_default
    types = {node.op_type for node in job.program.model.graph}
    if not may_fuse(choice, opset_of(job.program.model, ""), types):
        return job.facts.optimization, None
    from amp_transpiler.assess.fusions import said_of_fusing  # few models have anything to fuse
    from amp_transpiler.fusion.fuse import fuse

    unfused = job.program.clone() if by_default or _is_priced(job) else None
    if unfused is None or not _is_priced(job):
        fused = fuse(job.program, choice, job.policy)
    else:
        from amp_transpiler.alternatives.attention_in_pieces import fused_at_least_time

        job.program, fused = fused_at_least_time(job.program, unfused, choice, job.policy)
    findings = said_of_fusing(fused, job.policy, by_default=by_default)
    settings = {"fuse": choice} if by_default and fused.operators else {}
    return Optimization(fused.operators, findings, settings), unfused if fused.operators else None


def _offer(attentions: int, unfused: Program, policy: Policy) -> str:
    """Return how the attentions that stay in pieces would be one operator each."""
    from amp_transpiler.cost import open_dims
    from amp_transpiler.fusion.standard_attention import lengths_to_name

    what = "1 attention as one operator" if attentions == 1 else f"{attentions} attentions as one operator each"
    offer = f"--fuse contrib would write {what}; no device has run it in 16 bits yet, so it is no default"
    inputs = open_dims(unfused.model)
    lengths = [name for name in lengths_to_name(unfused.model.graph) if name in inputs and name not in policy.dims]
    flags = " ".join(f"--dim {name}={inputs[name]}" for name in lengths if inputs[name] % 4 == 0)
    return f"{offer}; ONNX's is one where runs have a multiple of 4 keys, as with {flags}" if flags else offer


# ---- the conversion ----


def decide_and_compare(job: Job) -> None:
    """Decide, rewrite, and compare with float32, again and again if need be; without verification once, unseen."""
    if isinstance(exponents := job.plan.options.rescale, Mapping):  # of a recipe, or the caller's own
        from amp_transpiler.alternatives.rescaled import replayed  # few models are rescaled

        job.program, job.facts.rescaling = replayed(job.program, exponents)
    if job.plan.options.verify:
        best = best_conversion(job)
        compared, job.prepared = best.compared, best.prepared
        if not best.is_fused:
            job.unfused, job.facts.optimization = None, Optimization()
        if best.rescaling is not None:
            job.facts.rescaling = best.rescaling
        job.policy = dataclasses.replace(job.policy, parts=best.parts or job.policy.parts)
        job.program, job.conversion, job.basis = compared.program, compared.conversion, compared.basis
        job.facts.comparison, job.facts.judgement = compared.comparison, compared.findings
        job.facts.parting = _parting(job)
        return
    with collection_paused(), job.clock.phase("convert"):
        job.prepared, job.conversion = _converted(job)
        if (unfused_program := source_beside_fused(job)) is not None and not _has_low_nodes(job.conversion):
            job.program, job.unfused, job.facts.optimization = unfused_program, None, Optimization()
            job.prepared, job.conversion = _converted(job)
    job.facts.parting = _parting(job)
    why = "verification was switched off"
    job.facts.judgement = Findings(Judgement(Verdict.NOT_CHECKED, {"why": why}))


def _parting(job: Job) -> Parting:
    """Return which products are computed in parts."""
    if not job.conversion.assignment.parts:
        return Parting()
    from amp_transpiler.alternatives.in_parts import parting, used_parts  # few products are

    return parting(used_parts(job.conversion, job.policy.parts))


def _has_low_nodes(conversion: Conversion) -> bool:
    from amp_transpiler.alternatives.fused_or_not import has_low_nodes  # few models are fused

    return has_low_nodes(conversion)


def _converted(job: Job) -> tuple[Program, Conversion]:
    """Convert the program in place; return it as it was, where times are predicted, and the record."""
    prepared = job.program.clone() if _is_priced(job) else job.program
    return prepared, convert(job.program, job.policy, job.ranges, source_beside_fused(job))


def _is_priced(job: Job) -> bool:
    """Whether times are predicted. A conversion by rules that is not compared keeps no source for that."""
    policy = job.policy
    keeps_source = job.plan.options.verify or policy.objective != "rules" or bool(policy.dims)
    return keeps_source and policy.target.has_prices and policy.low is not FLOAT32


# ---- the report ----


@collection_paused()
def describe(job: Job) -> None:
    """Describe the result, say what a recipe no longer fits, and settle where the result is written."""
    facts, recipe = job.facts, job.plan.options.recipe
    facts.description = describe_result(job.program, job.conversion, job.policy)
    if isinstance(recipe, Recipe):
        misfits = recipe.misfits(facts.decisions, digest(facts.task.source))
        facts.replay = Findings(warnings=tuple(f"recipe: {misfit}" for misfit in misfits))
    if facts.description.kept_float32 and isinstance(job.dst, DefaultPlace) and job.dst.float32 is not None:
        # What is float32 throughout has another name, unless the user gave it one.
        check_destination(job.dst.float32, as_loaded(job))
        job.destination = job.dst.float32


def predict(job: Job) -> None:
    """Predict times and errors."""
    if _is_priced(job):
        with job.clock.phase("predict"):
            at_once = job.plan.questions.frontier
            job.facts.prediction = predict_times(
                job.facts.description, job.prepared, job.policy, job.ranges, unfused=job.unfused, at_once=at_once
            )
    if job.basis is not None and job.basis.evidence is not None:
        job.facts.seen = add_errors(job.facts.decisions, job.prepared, job.basis.evidence, job.policy)


def recommend(job: Job) -> None:
    """Choose the options of the result's sessions; the metadata have them, except of what stays float32."""
    job.program.model.metadata_props.pop(SESSION_KEY, None)  # of an earlier conversion
    if job.program.is_training or job.program.step is not None:
        return
    with job.clock.phase("predict"):
        job.facts.session_options = recommended_options(job.program.model, job.policy)
    if job.facts.session_options and not job.facts.description.kept_float32:
        job.program.model.metadata_props[SESSION_KEY] = job.facts.session_options.as_metadata()


def refuse_failure(job: Job) -> None:
    """Refuse a result that is invalid or not accurate enough. Nothing is written."""
    if failure := job.facts.judgement.failure:
        raise CheckFailed(failure, assemble(job.facts, job.destination))
