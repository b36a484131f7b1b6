"""The verdict on a converted program: its outputs against their limits, warnings and notes for the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from amp_transpiler.phrases import counted, first_few, quoted
from amp_transpiler.precision.limits import Limits
from amp_transpiler.report import DeviceDraws, DeviceMeasurement, OutputComparison, Verdict
from amp_transpiler.report.facts import Comparison, Facts, Findings, Task
from amp_transpiler.report.verdict import Judgement, Part
from amp_transpiler.report.wording import percent
from amp_transpiler.targets import Target
from amp_transpiler.targets.measured import unmeasured
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.remedies import advice
from amp_transpiler.verification.signal_levels import AS_GIVEN
from amp_transpiler.verification.unseen_behaviour import shows_nothing

__all__ = ["failing_outputs", "fault_of", "judge", "judge_measured", "never_measured", "outputs_left_out", "worst"]

# Low format -> the relative error from which on an output without a limit is worth a warning.
_MUCH = {"float16": 0.02, "bfloat16": 0.05}
_LIKE = 0.99  # likewise, a cosine below this
_MOST_NAMED = 5
_LOST = 0.1  # an error of this share of an output's spread hides all but its mean
_FAR_FROM_ZERO = 10.0  # times the error of the whole: the mean hides it


def failing_outputs(rows: Iterable[OutputComparison], reference: Reference, limits: Limits) -> list[OutputComparison]:
    """Return the outputs that are beyond a limit, that became non-finite, or that have another shape or structure.

    Args:
        rows: the comparisons.
        reference: what they are compared with.
        limits: what is allowed.
    """
    unjudged = reference.unjudged()
    return [row for row in rows if _fails(row, reference, unjudged, limits)]


def _fails(row: OutputComparison, reference: Reference, unjudged: Mapping[str, str], limits: Limits) -> bool:
    if row.name in reference.unsteady:  # whose shape may be random as well; but what is always finite must stay so
        return row.nonfinite > 0 and not row.nonfinite_reference
    return row.nonfinite > 0 or row.structure_differs or (row.name not in unjudged and _is_beyond(row, limits))


def _is_beyond(row: OutputComparison, limits: Limits) -> bool:
    most = limits.mismatch_for(row.name)
    # `not <=` catches NaN too.
    return not row.relative <= limits.for_output(row.name) or (most is not None and not row.mismatch <= most)


def worst(failing: Iterable[OutputComparison]) -> OutputComparison:
    """Return the output to name first."""
    return max(failing, key=lambda row: (row.structure_differs, row.nonfinite, row.relative, row.mismatch))


def fault_of(row: OutputComparison, limits: Limits) -> str:
    """Say what is wrong with a failing output."""
    name = f"output '{row.name}'"
    if row.structure_differs:
        return f"{name} has another shape or structure than in float32"
    if row.nonfinite:
        return f"{name} has {row.nonfinite} non-finite values where float32 is finite"
    allowed = limits.for_output(row.name)
    if not row.relative <= allowed:
        return f"{name} differs by {_relative(row)}, allowed are {percent(allowed)}"
    differing, most = row.mismatched - row.excused, limits.mismatch_for(row.name)
    allowed_share = f"allowed are {percent(most)}" if most else "none may"
    return f"{name}: {differing} of {row.elements} {_kind([row])} differ, {allowed_share}"


def _relative(row: OutputComparison) -> str:
    """Say how far an output is off, and which part of it where the whole is nearer."""
    where = f" ({row.part}; the whole by {percent(row.of_all)})" if row.part else ""
    return f"{percent(row.relative)} in relative norm{where}"


def judge(
    task: Task,
    compared: Comparison,
    reference: Reference,
    failing: list[OutputComparison],
    limits: Limits,
    never: str = "",
    unseen: Sequence[str] = (),
    *,
    rounded: bool = True,
) -> Findings:
    """Judge a result by the comparison of its outputs.

    Args:
        task: what was asked for.
        compared: the comparison of every output.
        reference: what they were compared with.
        failing: the outputs that are not as they should be.
        limits: of the outputs.
        never: whose arithmetic was emulated and never measured on a device; empty if all of it was.
        unseen: what of the conversion no sample shows, in words.
        rounded: whether the result has a value in lower precision, so that something was emulated.
    """
    samples = f"{_samples(reference)}{'' if limits.are_none else _worst_level(compared.gains)}"
    outputs, repaired, metric = compared.outputs, len(compared.repaired), compared.metric
    if failing:
        row = worst(failing)
        after = f" after making {counted(repaired, 'node')} float32" if repaired else ""
        remedies = advice(task, row, limits, is_only=len(outputs) == 1)
        return _failed(task, fault_of(row, limits), samples, f"{after}; nothing was written. {remedies}")
    if metric is not None and not metric.holds:
        fault = f"{metric.name} is {metric.value:.4g}, allowed are {metric.bound:.4g}"
        least = f" in the best conversion that was found, with {counted(repaired, 'node')} made float32"
        return _failed(task, fault, samples, f"{least if repaired else ''}; nothing was written")
    left_out = outputs_left_out(outputs.values(), reference)
    judged = [row for row in outputs.values() if row.name not in left_out]
    notes = tuple(_remarks(compared, reference, left_out, limits))
    if not judged:
        why = "no output can be judged" if outputs else "the model has no outputs"
        basis: dict[Part, str] = {"why": why, "unjudged": _named(left_out)}
        return Findings(_judgement(Verdict.STRUCTURE_ONLY, basis), notes)
    unlimited = [row for row in judged if not _has_limit(row, limits)]
    if metric is not None:  # it is the limit
        unlimited = []
    warnings = (*_warnings(unlimited, task.dtype), *_lost_spread(judged), *_overflown(compared.gains))
    wholly = reference.given and not left_out and not unseen
    word = _word(unlimited=bool(unlimited), wholly=wholly, unmeasured=never if rounded else "")
    basis = {
        "metric": f"{metric.name} is {metric.value:.4g}, at most {metric.bound:.4g} allowed" if metric else "",
        "errors": _emulated(judged, reference, compared, limits, rounded=rounded),
        "unmeasured": f"never measured on a device: {never}" if word is Verdict.ESTIMATED else "",
        "unlimited": _without_limit(unlimited, judged),
        "unjudged": _named(left_out),
        "unseen": _named_unseen(unseen),
    }
    if compared.draws is not None:
        notes = (*notes, *_both_roundings(judged, compared.draws, reference.name))
        warnings = (*warnings, *_ill_conditioned(judged, compared.draws))
    return Findings(_judgement(word, basis), notes, warnings)


def _failed(task: Task, fault: str, samples: str, more: str) -> Findings:
    """Refuse a result for a fault on the samples; the message goes on with `more`."""
    verdict = Judgement(Verdict.FAILED, {"why": f"{fault}, on {samples}"})
    return Findings(verdict, failure=f"{task.source}: {fault}{more}")


def never_measured(target: Target, device: str, draws: DeviceDraws | None) -> str:
    """Return whose arithmetic a verdict rests on that nobody has measured, in words; empty if all was.

    Args:
        target: whose kernels count.
        device: the GPU that the result is for.
        draws: the record of its arithmetic; None where none was emulated.
    """
    of_target = unmeasured(target, device)
    if of_target or draws is None or not draws.unmeasured:
        return of_target
    return f"the kernels of {first_few(list(draws.unmeasured), _MOST_NAMED)}"


def _word(*, unlimited: bool, wholly: bool, unmeasured: str) -> Verdict:
    if unlimited:
        return Verdict.COMPARED
    if not wholly:
        return Verdict.PLAUSIBLE
    return Verdict.ESTIMATED if unmeasured else Verdict.VERIFIED


def _judgement(word: Verdict, basis: Mapping[Part, str]) -> Judgement:
    """Return a judgement with the clauses that say something."""
    return Judgement(word, {part: clause for part, clause in basis.items() if clause})


def judge_measured(
    measured: DeviceMeasurement, facts: Facts, reference: Reference, limits: Limits, *, rounded: bool = True
) -> Findings:
    """Judge by what a device measured, in the place of what was emulated, and warn of contradictions.

    Args:
        measured: what the device computed.
        facts: what is known of the result, with the verdict of `judge`.
        reference: what the outputs were compared with.
        limits: of the outputs.
        rounded: as it was given to `judge`.
    """
    outputs, task = facts.comparison.outputs, facts.task
    left_out = outputs_left_out(outputs.values(), reference)
    judged = [row for row in outputs.values() if row.name not in left_out]
    rows = [measured.outputs[row.name] for row in judged if row.name in measured.outputs]
    verdict: Judgement | None = None
    warnings: tuple[str, ...] = ()
    if judged and len(rows) == len(judged):
        words = f"{_held(rows, reference.name, limits)} on {_samples(reference)}, measured on {measured}"
        words += f" ({'emulated' if rounded else 'on the CPU'}: {_measured(judged, reference.name)})"
        verdict = facts.verdict.with_part("errors", words)
        # What ran now is measured, if it is the release that the result is for.
        if verdict.word is Verdict.ESTIMATED and measured.runtime.startswith(f"{task.ort}."):
            verdict = verdict.with_word(Verdict.VERIFIED).without("unmeasured")
        unlimited = [row for row in rows if not _has_limit(row, limits)]
        known = set(facts.warnings)
        warnings = tuple(text for text in _warnings(unlimited, task.dtype) if text not in known)
    contradictions = (f"{measured.device} contradicts the emulation: {text}" for text in measured.contradictions)
    return Findings(verdict, warnings=(*warnings, *contradictions))


def _emulated(
    judged: list[OutputComparison], reference: Reference, compared: Comparison, limits: Limits, *, rounded: bool
) -> str:
    draws = compared.draws
    on_samples = f"{_held(judged, reference.name, limits)} on {_samples(reference)}{_levels(compared.gains)}"
    by_default = _by_default(judged, compared.by_default)
    if draws is None:
        rounding = "rounding emulated" if rounded else "nothing rounded"
        return f"{on_samples}, {rounding}{by_default and f' ({by_default})'}"
    arithmetic = f"arithmetic of {draws.device}, ONNX Runtime {draws.runtime}"
    runs = "; ".join(filter(None, (f"{_spread(judged, draws)}{_in_tf32(draws)}", by_default)))
    return f"{on_samples} ({runs}; {arithmetic}; not run on a GPU)"


def _held(rows: list[OutputComparison], reference: str, limits: Limits) -> str:
    """Say how far the outputs are from the reference, and how far they may be."""
    floats, others = [row for row in rows if _has_floats(row)], [row for row in rows if not _has_floats(row)]
    limits_of = [limits.for_output(row.name) for row in floats]
    limited = [allowed for allowed in limits_of if math.isfinite(allowed)]
    if not limited:
        return _measured(rows, reference)
    least, most = percent(min(limited)), percent(max(limited))
    stated = f"allowed {least}" if least == most else f"allowed {least} to {most} by output"
    return f"{_measured(floats, reference)}, {stated}, {_measured_others(others, '') if others else ''}".rstrip(" ")


def _by_default(judged: list[OutputComparison], errors: Mapping[str, float]) -> str:
    """Say that ONNX Runtime's default session is further off than all that is emulated, where it is."""
    floats = [row for row in judged if _has_floats(row) and row.relative > 0.0]
    worst_row = max(floats, key=lambda row: row.relative, default=None)
    if worst_row is None or errors.get(worst_row.name) != worst_row.relative:
        return ""
    return f"{percent(worst_row.relative)} in ONNX Runtime's default session"


def _worst_level(gains: Mapping[str, float]) -> str:
    worst = max(gains, key=lambda words: gains[words], default="")
    return f" {worst}" if worst and worst != AS_GIVEN else ""


def _levels(gains: Mapping[str, float]) -> str:
    """Say at which levels of the samples the result was compared, the worst one first."""
    ranked = sorted(gains, key=lambda words: -gains[words])
    errors = {words: percent(error) if math.isfinite(error) else "not finite" for words, error in gains.items()}
    return "".join(f", {words}: {errors[words]}" for words in ranked)


def _overflown(gains: Mapping[str, float]) -> Iterator[str]:
    """Yield a warning for each level of the samples at which the result has values that are not finite."""
    for words, error in gains.items():
        if words != AS_GIVEN and not math.isfinite(error):
            yield f"{words} of the samples' level the result has infinite values or NaN where float32 has none"


def _in_tf32(draws: DeviceDraws) -> str:
    """Say what TF32 adds, where the source itself is about as far off in it."""
    if not draws.tf32:
        return ""
    name = max(draws.tf32, key=lambda output: draws.tf32[output])
    source = percent(draws.source_tf32.get(name, 0.0))
    return f"; {percent(draws.tf32[name])} with float32 products in TF32, the source itself {source}"


def _spread(judged: list[OutputComparison], draws: DeviceDraws) -> str:
    """Say how far the draws are apart, of the output with the largest error."""
    floats = [row for row in judged if _has_floats(row) and row.name in draws.errors]
    if not floats:
        return f"{draws.draws} draws"
    least, _, largest = draws.spread(max(floats, key=lambda row: row.relative).name)
    if percent(least) == percent(largest):
        return f"the same in {draws.draws} draws"
    return f"{percent(least)} to {percent(largest)} in {draws.draws} draws"


def _both_roundings(judged: list[OutputComparison], draws: DeviceDraws, reference: str) -> Iterator[str]:
    """Yield what the emulation says without a device's arithmetic, where that is something else."""
    rows = [row for row in judged if _has_floats(row) and row.name in draws.plain]
    plain = max((draws.plain[row.name] for row in rows), default=0.0)
    of_device = max((draws.spread(row.name)[2] for row in rows), default=0.0)
    if rows and not draws.tf32 and percent(plain) != percent(of_device):
        how = "round, and add up in 16 bits" if draws.adds_in_low else "round, float32 products in TF32"
        yield (
            f"rounded once a node, float32 exact: within {percent(plain)} of {reference}; as the kernels of "
            f"{draws.measured_on} {how}: within {percent(of_device)}"
        )


def _ill_conditioned(judged: list[OutputComparison], draws: DeviceDraws) -> Iterator[str]:
    """Yield a warning for each output whose error depends on the draw."""
    for row in judged:
        if row.name in draws.errors and draws.is_ill_conditioned(row.name):
            least, middle, largest = map(percent, draws.spread(row.name))
            behind = f"; it grows at {draws.amplifier_op} '{draws.amplifier}'" if draws.amplifier else ""
            yield (
                f"ill-conditioned: the error of output '{row.name}' is {least} to {largest} from draw to draw, "
                f"{middle} in the middle{behind}"
            )


def _samples(reference: Reference) -> str:
    count = len(reference.samples)
    kind = "given" if reference.given else "made-up"
    scales = " of differing scale" if count > 1 and not reference.given else ""
    return f"{counted(count, f'{kind} sample')}{scales}"


def _has_limit(row: OutputComparison, limits: Limits) -> bool:
    if math.isfinite(limits.for_output(row.name)):
        return True
    return not _has_floats(row) and limits.mismatch_for(row.name) is not None


def _has_floats(row: OutputComparison) -> bool:
    """Whether an output is, or may hold (the mapping of a ZipMap), floating-point numbers or is compared as such."""
    return row.as_numbers or any(sign in row.dtype for sign in ("float", "complex", "map"))


def outputs_left_out(rows: Iterable[OutputComparison], reference: Reference) -> dict[str, str]:
    """Return the names of the outputs that are not judged -> why."""
    rows = list(rows)
    empty = {row.name: "empty, NaN or infinite in float32" for row in rows if not row.elements}
    graph_outputs = {str(value.name): value for value in reference.program.model.graph.outputs}
    nothing = {
        row.name: why
        for row in rows
        if reference.given and (why := shows_nothing(row, graph_outputs.get(row.name), reference.outputs))
    }
    return {**nothing, **empty, **reference.unjudged()}


def _named(left_out: Mapping[str, str]) -> str:
    if not left_out:
        return ""
    shown = [f"'{name}' ({why})" for name, why in left_out.items()]
    return f"not judged: {first_few(shown, _MOST_NAMED)}"


def _named_unseen(unseen: Sequence[str]) -> str:
    return f"never ran, so not verified: {first_few(unseen, _MOST_NAMED)}" if unseen else ""


def _lost_spread(judged: Iterable[OutputComparison]) -> Iterator[str]:
    """Yield a warning for each output that is near as a whole, but whose values differ by less than the error."""
    for row in judged:
        if row.of_spread is not None and row.of_spread > _LOST and row.of_spread > _FAR_FROM_ZERO * row.relative:
            yield (
                f"output '{row.name}' differs by {percent(row.relative)} of its size, but by {percent(row.of_spread)} "
                "of its spread: its values lie far from zero and close together; compute what is added last in float32"
            )


def _without_limit(unlimited: list[OutputComparison], judged: list[OutputComparison]) -> str:
    if not unlimited:
        return ""
    if len(unlimited) == len(judged):
        return "no limit was set"
    return f"no limit for {first_few(quoted(row.name for row in unlimited), _MOST_NAMED)}"


def _measured(judged: list[OutputComparison], reference: str) -> str:
    """Say how far the outputs are from the reference: the worst of the floats, and all others together."""
    floats, others = [r for r in judged if _has_floats(r)], [r for r in judged if not _has_floats(r)]
    parts = [f"within {percent(max(row.relative for row in floats))} of {reference}"] if floats else []
    if others:
        parts.append(_measured_others(others, "" if floats else f" {reference}"))
    return ", ".join(parts)


def _measured_others(rows: list[OutputComparison], reference: str) -> str:
    every, excused = sum(row.elements for row in rows), sum(row.excused for row in rows)
    differing = sum(row.mismatched for row in rows) - excused
    are = "is" if excused == 1 else "are"
    if differing:
        spared = f", {excused} more {are} excused" if excused else ""
        return f"{differing} of {every} {_kind(rows)} differ{reference and ' from'}{reference}{spared}"
    spared = f", but for {excused} that {are} excused," if excused else ""
    whole = f"all {every} {_kind(rows)} agree" if every > 1 else f"the only {_kind(rows)[:-1]} agrees"
    return f"{whole}{reference and ' with'}{reference}{spared}"


def _kind(rows: Iterable[OutputComparison]) -> str:
    return "integers" if all("int" in row.dtype for row in rows) else "values"


def _warnings(unlimited: list[OutputComparison], dtype: str) -> Iterator[str]:
    """Yield a warning for each output without a limit that differs much."""
    much = _MUCH.get(dtype, min(_MUCH.values()))
    remarkable = [row for row in unlimited if row.relative > much or row.cosine < _LIKE or row.mismatch]
    remarkable.sort(key=lambda row: (-row.relative, -row.mismatch))
    for row in remarkable[:_MOST_NAMED]:
        if row.mismatch:
            differs = f"differs in {row.mismatched - row.excused} of {row.elements} {_kind([row])}"
        else:
            differs = f"differs by {_relative(row)}, its cosine is {row.cosine:.3f}"
        yield f"output '{row.name}' {differs}; no limit was set that forbids it"
    if len(remarkable) > _MOST_NAMED:
        yield f"{len(remarkable) - _MOST_NAMED} more outputs without a limit differ much"


def _remarks(compared: Comparison, reference: Reference, left_out: Mapping[str, str], limits: Limits) -> Iterator[str]:
    """Yield what the verdict leaves out: repairs, the data, and how to have all outputs judged."""
    outputs, repaired = compared.outputs, compared.repaired
    if repaired:
        verb = "was" if len(repaired) == 1 else "were"
        yield f"{counted(len(repaired), 'node')} {verb} made float32 to be accurate enough"
    for row in outputs.values():
        if row.excused:
            yield (
                f"{row.excused} of {row.elements} labels of '{row.name}' differ where float32 itself decided between "
                f"two scores that are closer than {percent(limits.for_output(row.name))} of the spread of all: excused"
            )
    if left_out and len(left_out) == len(outputs):
        if not reference.unsteady:  # other inputs would be no remedy
            yield "not compared with the float32 model: no output shows an error; supply other inputs with --inputs"
    elif not reference.given and outputs:
        yield "compared on made-up inputs; judge on real ones with --inputs"
