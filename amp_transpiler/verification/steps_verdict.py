"""The verdict on a training step that was run for several steps."""

from __future__ import annotations

import math

from amp_transpiler.phrases import first_few
from amp_transpiler.report import StateWay, StepsComparison, Verdict
from amp_transpiler.report.facts import Findings, Task
from amp_transpiler.report.verdict import Judgement
from amp_transpiler.report.wording import human_number, percent

__all__ = ["judge_steps"]

_MOST_NAMED = 3
_WORDS = dict.fromkeys(
    (Verdict.VERIFIED, Verdict.ESTIMATED), Verdict.PLAUSIBLE
)  # of a verdict -> what remains of it where steps could not be judged


def judge_steps(task: Task, judged: Judgement, steps: StepsComparison, *, fails: bool) -> Findings:
    """Judge how the training step of a result, whose outputs are in order, fares over several steps.

    Args:
        task: what was asked for.
        judged: the verdict on the outputs.
        steps: the comparison.
        fails: a state that is too far off is an error; else a warning, as on made-up data.
    """
    if not steps.states:
        weaker = judged.with_word(_WORDS.get(judged.word, judged.word))
        return Findings(weaker.with_part("training", f"training not judged: {steps.reason}"))
    notes = (f"the training step was run for {steps.reason}",) if steps.reason else ()
    failing = steps.failing
    if not failing:
        measured = f"{steps.steps} training steps {_measured(steps)}"
        return Findings(judged.with_part("training", measured), (*notes, *_excused(steps)))
    fault = _fault(failing[0], steps.steps)
    more = f" (and {len(failing) - 1} more states)" if len(failing) > 1 else ""
    if fails:
        verdict = Judgement(Verdict.FAILED, {"why": f"{fault}{more}"})
        failure = f"{task.source}: {fault}{more}; nothing was written. {_remedy(task)}"
        return Findings(verdict, notes, failure=failure)
    measured = f"over {steps.steps} training steps {_short(failing[0])}"
    warning = f"{fault}{more}: judge it on real data (--inputs), or {_remedy(task)}"
    return Findings(judged.with_part("training", measured), notes, (warning,))


def _measured(steps: StepsComparison) -> str:
    worst = steps.worst
    if worst is None or not steps.judged:
        return "are decided by rounding in float32, too"
    return f"end within {percent(worst.relative)} of float32's"


def _fault(way: StateWay, steps: int) -> str:
    name = f"{way.role} '{way.name}'"
    if not math.isfinite(way.low_way):
        return f"{name} is not finite after {steps} steps, in float32 it is"
    moved = f"in {steps} steps it moves by {human_number(way.way)} in float32, and by {human_number(way.low_way)} here"
    if way.stops:
        return f"{name} stops learning: {moved}"
    off = f"the difference is {percent(way.relative)} of float32's way, allowed are {percent(way.allowed)}"
    return f"{name} goes another way: {moved}; {off}"


def _short(way: StateWay) -> str:
    return f"{way.role} '{way.name}' {'stops learning' if way.stops else 'goes another way'}"


def _remedy(task: Task) -> str:
    scaled = "--loss-scaling or --dtype bfloat16, if gradients are too small for float16; "
    scaled = scaled if task.dtype == "float16" else ""
    return f"try {scaled}--master-weights, if parameters become low; or --level O1"


def _excused(steps: StepsComparison) -> list[str]:
    rounding = [way for way in steps.states.values() if math.isinf(way.allowed)]
    further = [way for way in steps.states.values() if not math.isinf(way.allowed) and way.relative > 0.05]
    sentences = []
    if rounding:
        sentences.append(f"only rounding decides in float32 where these states go: {_names(rounding)}")
    if further:
        sentences.append(
            f"the rounding of only the forward and backward pass, with an update in float32, takes these states "
            f"more than 5% off float32's way: {_names(further)}"
        )
    return sentences


def _names(ways: list[StateWay]) -> str:
    return first_few([f"'{way.name}' ({percent(way.relative)})" for way in ways], _MOST_NAMED)
