"""Verifies a conversion: the source is valid, the result is accurate (searched for, if need be), and the file loads."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.conversion import Conversion, convert
from amp_transpiler.cost.shapes import sizes_of
from amp_transpiler.errors import InputError, ModelError
from amp_transpiler.graph.checker import checker_fault, fault_in_words, mend_declared_shapes, runtime_operators
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.program import Program
from amp_transpiler.report import MetricValue, StepsComparison, Verdict
from amp_transpiler.report.facts import Comparison, Findings, Task
from amp_transpiler.report.verdict import Judgement
from amp_transpiler.report.wording import percent
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.accuracy import CannotCompare, Reference, make_reference
from amp_transpiler.verification.balance import balanced_conversion
from amp_transpiler.verification.calibrate import PIECE
from amp_transpiler.verification.close_roundings import close_roundings
from amp_transpiler.verification.conversions import Conversions, Found, Measured, judging_arithmetic
from amp_transpiler.verification.declared_shapes import open_contradicted_sizes
from amp_transpiler.verification.default_device import CheckedDevice, DeviceCheck, device_to_check
from amp_transpiler.verification.default_session import DefaultSession
from amp_transpiler.verification.inputs import Inputs
from amp_transpiler.verification.randomness import random_upstream
from amp_transpiler.verification.signal_levels import Gains
from amp_transpiler.verification.synthesis import MOST_FURTHER
from amp_transpiler.verification.unseen_behaviour import never_ran
from amp_transpiler.verification.user_metric import Metric
from amp_transpiler.verification.verdict import failing_outputs, judge, never_measured, outputs_left_out

if TYPE_CHECKING:
    from amp_transpiler.verification.conversion_cache import Answer, Question

__all__ = [
    "Basis",
    "Compared",
    "Programs",
    "Questions",
    "check_source",
    "convert_and_compare",
    "loads",
    "reference_for",
    "samples_beside_first",
    "signal_gains",
]

logger = logging.getLogger(__name__)

_LOAD_ERRORS: tuple[type[Exception], ...] = (*RUN_ERRORS, InputError)

Phase = Callable[[str], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Basis:
    """The facts that a written file is checked against.

    Attributes:
        source: the program as the user gave it.
        policy: whose target and limits count.
        reference: samples and float32 outputs; None if there are none.
        evidence: what runs on the samples said about the prepared program; None if nothing was asked of them.
        known: the answer to an equal question, which was checked; None if there is none.
        question: what is answered, to be remembered with `answer` once the file is checked.
        answer: what is known of the answer before.
        device: the device that the file is run on; None for none.
        ran_by_default: the result ran in ONNX Runtime's default session, as a part of the comparison.
    """

    source: Program
    policy: Policy
    reference: Reference | None
    evidence: Evidence | None = None
    known: Answer | None = None
    question: Question | None = None
    answer: Answer | None = None
    device: CheckedDevice | None = None
    ran_by_default: bool = False

    def without_algorithms(self, source: Program) -> Basis:
        """Return the same for a file, whose graph does not hold the training algorithms that were compared with it.

        Args:
            source: the program as the user gave it.
        """
        reference = None if self.reference is None else self.reference.of_graph(source)
        return dataclasses.replace(self, source=source, reference=reference)


def check_source(source: Program, program: Program, phase: Phase) -> None:
    """Check that a prepared program is valid ONNX, or that ONNX Runtime loads it; drop declared shapes that are wrong.

    Args:
        source: the program as the user gave it.
        program: the same, prepared; gets the notes.
        phase: times a block.

    Raises:
        ModelError: it is invalid, and ONNX Runtime refuses it. Nothing is decided yet, so the fault is the source's.
    """
    with phase("check source"):
        if operators := runtime_operators(program.model):
            program.notes.append(f"operators of ONNX Runtime in ONNX's domain, not portable: {', '.join(operators)}")
        if fault := checker_fault(program.model, full=False):
            if not loads(source):
                raise ModelError(
                    f"{program.source or 'the model'}: invalid before any conversion: {fault_in_words(fault)}"
                )
            program.notes.append(f"fault of the source: onnx.checker refuses it, ONNX Runtime loads it: {fault}")
        elif mended := mend_declared_shapes(program.model):
            program.notes.append(f"fault of the source: {mended}")


@dataclasses.dataclass(frozen=True, slots=True)
class Questions:
    """The user's questions about accuracy, apart from the limits.

    Attributes:
        inputs: data to compare on; None for made-up inputs.
        metric: a measure of the user's own, or None.
        frontier: whether the curve between error and cost is wanted, even if the first conversion keeps the limits.
        cache: whether what runs have shown may be kept, and found again.
        limited: there are limits.
        required: a limit was asked for, so that a result without a comparison is a failure.
        device_check: whether the written file is run on a device.
    """

    inputs: Inputs | None = None
    metric: Metric | None = None
    frontier: bool = False
    cache: bool = True
    limited: bool = False
    required: bool = False
    device_check: DeviceCheck = "auto"


@dataclasses.dataclass(frozen=True, slots=True)
class Programs:
    """A program to convert, and what it came from.

    Attributes:
        source: the program as the user gave it.
        prepared: the program to convert.
        unfused: what is written where all stays float32; None for `prepared`.
    """

    source: Program
    prepared: Program
    unfused: Program | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """A conversion that was compared with float32.

    Attributes:
        program: the converted program.
        conversion: the record of its conversion.
        basis: what its file is to be checked against.
        comparison: what runs of both showed.
        findings: what that tells the user.
        searched: the first conversion did not keep the limits, so that it was searched for, now or before.
    """

    program: Program
    conversion: Conversion
    basis: Basis
    comparison: Comparison
    findings: Findings
    searched: bool = False


def convert_and_compare(
    programs: Programs,
    policy: Policy,
    ranges: RangeFaults,
    asked: Questions,
    task: Task,
    phase: Phase,
    reference: Reference | None = None,
) -> Compared:
    """Convert a program, compare the result with its source, and search for another one if it is not good enough.

    Args:
        programs: the program to convert, which is not changed, and its source.
        policy: how the conversion decides, how many others may be run, and the limits.
        ranges: a look-up of constants.
        asked: the data to compare on, and the user's questions.
        task: what was asked for, for messages.
        phase: times a block.
        reference: what the source computes, if it is known already.
    """
    source, prepared, unfused = programs.source, programs.prepared, programs.unfused
    notes: list[str] = []
    device = device_to_check(asked.device_check)
    question = _question(source, prepared, policy, asked, reference, device, unfused)
    known = None if question is None else question.find()
    if known is not None and (repeated := _as_before(known, prepared, policy, ranges, phase)) is not None:
        basis = Basis(source, policy, None, known.evidence, known, device=device)
        return Compared(*repeated, basis, known.comparison, known.findings, searched=True)
    try:
        with phase("run float32"):
            reference = _reference(source, prepared, policy, asked, reference)
            notes += _reference_notes(reference, source, prepared, policy)
        conversions = Conversions(
            prepared,
            policy,
            ranges,
            reference,
            asked.metric,
            phase,
            judging_arithmetic(prepared, policy),
            None if asked.metric is not None else signal_gains(prepared, policy, reference),
            DefaultSession(source) if policy.search_runs and policy.low is not FLOAT32 else None,
            unfused=unfused,
        )
        searched = _search(conversions, notes, asked)
    except CannotCompare as reason:
        required = asked.required and (device is None or reference is None)
        findings = Findings(notes=tuple(notes)).then(_not_compared(task, str(reason), required=required))
        program = prepared.clone()
        with phase("convert"):
            conversion = convert(program, policy, ranges)
        # Users' sessions may run what emulation cannot, so the samples are kept for them.
        basis = Basis(source, policy, reference, device=device)
        return Compared(program, conversion, basis, Comparison(), findings)
    best = searched.best
    policy = dataclasses.replace(policy, limits=best.limits, objective=best.objective)
    comparison, findings = _judged(task, searched, conversions, policy, asked, device, notes)
    basis = Basis(source, policy, reference, searched.evidence, device=device, ran_by_default=bool(best.by_default))
    if question is not None and searched.searched and searched.evidence is not None and not findings.failure:
        answer = _answer(searched, comparison, findings)
        basis = dataclasses.replace(basis, question=question, answer=answer)
    return Compared(best.program, best.conversion, basis, comparison, findings, searched.searched)


def _judged(
    task: Task,
    searched: Found,
    conversions: Conversions,
    policy: Policy,
    asked: Questions,
    device: CheckedDevice | None,
    notes: list[str],
) -> tuple[Comparison, Findings]:
    """Return what runs of the best conversion showed, and what that tells the user.

    Args:
        task: what was asked for.
        searched: the conversion.
        conversions: the program, and what to compare with.
        policy: how the conversion was decided, and its limits.
        asked: the user's questions.
        device: the device that the file is to be run on.
        notes: what the user should know of the search; gets more.
    """
    best, prepared, reference = searched.best, conversions.prepared, conversions.reference
    comparison = _comparison(searched, policy, asked.metric)
    failing = failing_outputs(best.outputs.values(), reference, policy.limits)
    never = never_measured(policy.target, policy.device, best.draws)
    unseen = _unseen(best, conversions, notes)
    rounded = has_low_values(best.program)
    judged = judge(task, comparison, reference, failing, policy.limits, never, unseen, rounded=rounded)
    if not judged.failure:
        judged = judged.then(_unjudged(task, judged, comparison, reference, asked, device))
    findings = Findings(notes=tuple(notes)).then(judged)
    if findings.failure:
        return comparison, findings
    remarks = tuple(_float32_throughout(best, conversions))
    warnings = tuple(close_roundings(prepared, best.program, reference))
    findings = findings.then(Findings(notes=remarks, warnings=warnings))
    steps = _compared_steps(prepared, policy, conversions.ranges, best, reference, conversions.phase)
    if steps is None:
        return comparison, findings
    return dataclasses.replace(comparison, steps=steps), findings.then(
        _judged_steps(task, findings, steps, policy, reference)
    )


def _comparison(searched: Found, policy: Policy, metric: Metric | None) -> Comparison:
    """Return what runs of the best conversion showed."""
    best, value = searched.best, None
    if metric is not None and best.metric is not None:
        value = MetricValue(metric.name, best.metric, metric.bound)
    return Comparison(
        best.outputs,
        searched.repaired,
        searched.curve,
        None if searched.evidence is None else policy.headroom,
        best.draws,
        best.gains,
        best.by_default,
        value,
    )


def _search(conversions: Conversions, notes: list[str], asked: Questions) -> Found:
    """Return the conversion that the policy aims at."""
    if conversions.policy.objective == "balance":
        find = balanced_conversion
    else:
        from amp_transpiler.verification.search import best_conversion as find
    return find(conversions, notes, frontier=asked.frontier, cache=asked.cache, limited=asked.limited)


def _float32_throughout(best: Measured, conversions: Conversions) -> Iterator[str]:
    """Yield a note on a result that is the source: "within 0 %" says nothing of TF32, which takes both off float32."""
    if not best.is_float32 or conversions.arithmetic is None:
        return
    with conversions.phase("compare"):
        error = conversions.error_of_source_in_tf32()
    if error > 0.0:
        yield (
            "the result is float32 throughout, so it computes what the source does; products in TF32, the default on "
            f"{conversions.arithmetic.wanted_device}, take both up to {percent(error)} off float32"
        )


def _compared_steps(
    prepared: Program, policy: Policy, ranges: RangeFaults, best: Measured, reference: Reference, phase: Phase
) -> StepsComparison | None:
    """Run a converted training step and the float32 one, step by step; None where there is nothing to run."""
    step = best.program.step
    if step is None or not step.parameters or policy.low is FLOAT32:
        return None
    from amp_transpiler.verification.exact_update import exact_update
    from amp_transpiler.verification.steps import compare_steps

    with phase("run steps"):
        final = dataclasses.replace(policy, settled=best.settled)
        exact = functools.partial(exact_update, prepared, step, final, ranges, best.conversion)
        return compare_steps(best.program, step, reference, exact)


def _judged_steps(
    task: Task, findings: Findings, steps: StepsComparison, policy: Policy, reference: Reference
) -> Findings:
    from amp_transpiler.verification.steps_verdict import judge_steps

    assert findings.verdict is not None, "the outputs are judged first"
    wanted = policy.wishes.master_weights is False  # small updates vanish, as was asked for
    return judge_steps(task, findings.verdict, steps, fails=reference.given and not wanted)


def _reference(
    source: Program, prepared: Program, policy: Policy, asked: Questions, reference: Reference | None
) -> Reference:
    """Return what to compare with: what is known already, or the outputs of a run."""
    if reference is None:
        stand_in = _stand_in(source, prepared, policy)
        further = samples_beside_first(prepared) if asked.limited and asked.inputs is None else 0
        reference = make_reference(source, stand_in, asked.inputs, prepared.step, further=further)
    return dataclasses.replace(reference, name="the source") if prepared.widened else reference


def reference_for(source: Program, prepared: Program, policy: Policy, asked: Questions) -> Reference:
    """Return what a conversion is compared with: the outputs of the source on the samples.

    Raises:
        CannotCompare: the source does not run here, or refuses all made-up inputs.
        InputError: the user's inputs do not fit the model.
    """
    return _reference(source, prepared, policy, asked, None)


def _unseen(best: Measured, conversions: Conversions, notes: list[str]) -> tuple[str, ...]:
    """Return what of the conversion no sample shows; a note where that is not known."""
    decisions = best.conversion.assignment.decisions
    low = {str(node.name) for node, decision in decisions.items() if decision.precision == "low"}
    try:
        return never_ran(conversions.prepared, low, conversions.feeds(), conversions.policy.low.name)
    except RUN_ERRORS as error:
        notes.append(f"which branches ran is not known: {error_text(error)}")
        return ()


def signal_gains(prepared: Program, policy: Policy, reference: Reference) -> Gains | None:
    """Return the user's samples at other levels; None where a result is not to be held against them.

    Random operators draw other numbers in each run. A metric is the user's word on the samples as they are, so nobody
    asks where there is one.
    """
    special = prepared.step is not None or policy.low is FLOAT32
    return None if special or not reference.given or random_upstream(prepared.model) else Gains(reference)


def samples_beside_first(prepared: Program) -> int:
    """Return how many samples are made up after the first one to hold the user's limits on.

    Where the results of a run take long to compute and compare, an error is an average over so many elements that one
    sample more is enough.
    """
    sizes = sizes_of(prepared.model)
    taken = sum(sizes.bytes(value) for node in prepared.model.graph for value in node.outputs)
    return 1 if taken > PIECE else MOST_FURTHER


def _question(
    source: Program,
    prepared: Program,
    policy: Policy,
    asked: Questions,
    reference: Reference | None,
    device: CheckedDevice | None,
    unfused: Program | None,
) -> Question | None:
    """Return the question that is asked, if its answer may be remembered."""
    special = asked.frontier or asked.metric is not None or prepared.step is not None or reference is not None
    if special or not asked.cache or not policy.search_runs or policy.objective == "rules":
        return None
    from amp_transpiler.verification.conversion_cache import Question

    words = () if unfused is None else ("float32 is the source",)
    return Question(source, prepared, asked.inputs, policy, (str(asked.limited), str(device), *words))


def _as_before(
    known: Answer, prepared: Program, policy: Policy, ranges: RangeFaults, phase: Phase
) -> tuple[Program, Conversion] | None:
    """Carry out what was found before; None if the result is another one."""
    policy = dataclasses.replace(policy, evidence=known.evidence if known.evidence.ranges else None)
    if known.shown:
        policy = dataclasses.replace(policy, numerics="shown")
    from amp_transpiler.verification.conversion_cache import digest_of

    program = prepared.clone()
    with phase("convert"):
        policy = dataclasses.replace(policy, settled=known.settled, objective=known.objective)
        conversion = convert(program, policy, ranges)
        return (program, conversion) if digest_of(program) == known.result else None


def _answer(searched: Found, comparison: Comparison, findings: Findings) -> Answer:
    """Return what is to be remembered of a conversion before its file is checked.

    Args:
        searched: the conversion.
        comparison: what runs of it showed.
        findings: what that tells the user.
    """
    assert searched.evidence is not None
    assert findings.verdict is not None
    nothing: dict[str, dict[str, float]] = {}
    shown = dataclasses.replace(
        searched.evidence,
        node_errors_by_output=nothing,
        cast_errors_by_output=nothing,
        read_errors_by_output=nothing,
        alone_errors={},
    )
    from amp_transpiler.verification.conversion_cache import Answer, digest_of

    return Answer(
        settled=searched.best.settled,
        objective=searched.best.objective,
        repaired=searched.repaired,
        shown=searched.shown,
        result=digest_of(searched.best.program),
        outputs=comparison.outputs,
        draws=comparison.draws,
        gains=comparison.gains,
        by_default=comparison.by_default,
        evidence=shown,
        headroom=comparison.headroom,
        verdict=findings.verdict,
        notes=findings.notes,
        warnings=findings.warnings,
    )


def _stand_in(source: Program, prepared: Program, policy: Policy) -> Program:
    """Return the program to compare with if ONNX Runtime does not load the source: one that computes the same.

    The prepared program does, made float32 where it was of another 16-bit format; that would be the result itself if
    float32 is what is wanted, so there the source is emulated, which rounds as it does.
    """
    return emulate(source) if policy.low is FLOAT32 and prepared.widened else prepared


def _not_compared(task: Task, reason: str, *, required: bool) -> Findings:
    """Say that nothing was compared, which is a failure where a limit was asked for."""
    notes = (f"not compared with the float32 model: {reason}",)
    if not required:
        return Findings(Judgement(Verdict.STRUCTURE_ONLY, {"why": reason}), notes)
    fault = f"the limit that was asked for could not be checked: {reason}"
    failure = (
        f"{task.source}: {fault}; nothing was written. Leave --tolerance, --mismatch and --metric out to have it "
        "converted without a comparison"
    )
    return Findings(Judgement(Verdict.FAILED, {"why": fault}), notes, failure=failure)


def _unjudged(
    task: Task,
    judged: Findings,
    comparison: Comparison,
    reference: Reference,
    asked: Questions,
    device: CheckedDevice | None,
) -> Findings:
    """Refuse a result if a limit that was asked for was not checked although the programs ran."""
    is_judged = judged.verdict is not None and judged.verdict.word is not Verdict.STRUCTURE_ONLY
    if not asked.required or device is not None or is_judged:
        return Findings()
    left_out = outputs_left_out(comparison.outputs.values(), reference)
    whys = ", ".join(dict.fromkeys(left_out.values())) or "the model has none"
    remedy = "" if reference.unsteady else "; supply other inputs with --inputs"  # no remedy for random ones
    return _not_compared(task, f"no output can be judged ({whys}){remedy}", required=True)


def _reference_notes(reference: Reference, source: Program, prepared: Program, policy: Policy) -> tuple[str, ...]:
    """Leave declared sizes open that the run contradicts, and say that and what the result is compared with."""
    wrong = open_contradicted_sizes(prepared.model, reference)
    return (*wrong, *_reference_note(reference, source, prepared, policy))


def _reference_note(reference: Reference, source: Program, prepared: Program, policy: Policy) -> tuple[str, ...]:
    """Say what the result was compared with, where that is neither a float32 model nor the source itself."""
    if reference.program is source or not prepared.widened:
        return ()
    formats = " and ".join(sorted(prepared.widened))
    if policy.low is FLOAT32:
        return (f"compared with the source emulated, since the CPU does not run its {formats}",)
    return (f"compared with the source in float32, since the CPU does not run its {formats}",)


def loads(source: Program) -> bool:
    """Whether ONNX Runtime loads a program as the user gave it."""
    try:
        with open_program(source.origin, emulate=False):
            pass
    except _LOAD_ERRORS as error:
        logger.info("the source does not load either: %s", error)
        return False
    return True
