"""The verdict on a training step that was run for several steps."""

from __future__ import annotations

import math

from amp_transpiler.phrases import first_few
from amp_transpiler.report import Report, StateWay, StepsComparison, Verdict
from amp_transpiler.report.verdict import Judgement, judgement_of
from amp_transpiler.report.wording import human_number, percent

__all__ = ["judge_steps"]

_MOST_NAMED = 3
_WORDS = dict.fromkeys(
    (Verdict.VERIFIED, Verdict.ESTIMATED), Verdict.PLAUSIBLE
)  # of a verdict -> what remains of it where steps could not be judged


def judge_steps(report: Report, steps: StepsComparison, *, fails: bool) -> str:
    """Write into `report`, whose outputs are in order, how its training step fares over several steps.

    Args:
        report: gets the verdict, warnings and notes.
        steps: the comparison.
        fails: a state that is too far off is an error; else a warning, as on made-up data.

    Returns:
        Why the result is not good enough; empty if it is.
    """
    judged = judgement_of(report.verdict)
    if not steps.states:
        weaker = judged.with_word(_WORDS.get(judged.word, judged.word))
        report.verdict = weaker.with_part("training", f"training not judged: {steps.reason}").as_text()
        return ""
    if steps.reason:
        report.notes = (*report.notes, f"the training step was run for {steps.reason}")
    failing = steps.failing
    if not failing:
        measured = f"{steps.steps} training steps {_measured(steps)}"
        report.verdict = judged.with_part("training", measured).as_text()
        report.notes = (*report.notes, *_excused(steps))
        return ""
    fault = _fault(failing[0], steps.steps)
    more = f" (and {len(failing) - 1} more states)" if len(failing) > 1 else ""
    if fails:
        report.verdict = Judgement(Verdict.FAILED, {"why": f"{fault}{more}"}).as_text()
        return f"{report.source}: {fault}{more}; nothing was written. {_remedy(report)}"
    measured = f"over {steps.steps} training steps {_short(failing[0])}"
    report.verdict = judged.with_part("training", measured).as_text()
    report.warnings = (*report.warnings, f"{fault}{more}: judge it on real data (--inputs), or {_remedy(report)}")
    return ""


def _measured(steps: StepsComparison) -> str:
    worst = steps.worst
    if worst is None or not steps.judged:
        return "are decided by rounding in fp32, too"
    return f"end within {percent(worst.relative)} of fp32's"


def _fault(way: StateWay, steps: int) -> str:
    name = f"{way.role} '{way.name}'"
    if not math.isfinite(way.low_way):
        return f"{name} is not finite after {steps} steps, in fp32 it is"
    moved = f"in {steps} steps it moves by {human_number(way.way)} in fp32, and by {human_number(way.low_way)} here"
    if way.stops:
        return f"{name} stops learning: {moved}"
    off = f"the difference is {percent(way.relative)} of fp32's way, allowed are {percent(way.allowed)}"
    return f"{name} goes another way: {moved}; {off}"


def _short(way: StateWay) -> str:
    return f"{way.role} '{way.name}' {'stops learning' if way.stops else 'goes another way'}"


def _remedy(report: Report) -> str:
    scaled = "--loss-scaling or --dtype bfloat16, if gradients are too small for float16; "
    scaled = scaled if report.dtype == "float16" else ""
    return f"try {scaled}--master-weights, if parameters become low; or --level O1"


def _excused(steps: StepsComparison) -> list[str]:
    rounding = [way for way in steps.states.values() if math.isinf(way.allowed)]
    further = [way for way in steps.states.values() if not math.isinf(way.allowed) and way.relative > 0.05]
    sentences = []
    if rounding:
        sentences.append(f"only rounding decides in fp32 where these states go: {_names(rounding)}")
    if further:
        sentences.append(
            f"the rounding of only the forward and backward pass, with an update in float32, takes these states "
            f"more than 5% off fp32's way: {_names(further)}"
        )
    return sentences


def _names(ways: list[StateWay]) -> str:
    return first_few([f"'{way.name}' ({percent(way.relative)})" for way in ways], _MOST_NAMED)
