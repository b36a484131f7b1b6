"""Judges fine-tuned models: whether they pass, how far they are from PyTorch; and writes the page of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["LEVELS", "SAME", "TWIN", "WHITE_LIST", "Record", "fails", "page", "summary", "twin_difference"]

LEVELS = ("float32", "O2")
WHITE_LIST = "O1"  # run where O2 fails: sums, powers and the like stay float32 there
SMALL, SMALL_SECONDS = 25.0, 60.0  # MB; what three steps of a case of such a model may take
TWIN = "torch"  # stands for a level: float32, nothing frozen, beside PyTorch
SAME = 1e-3  # difference from PyTorch
Record = dict[str, Any]
# Why models fail at O2, where that was looked at: of the arithmetic, so PyTorch's autocast and `half()` fail alike.
REASONS = {
    "magika/model": (
        "its variances are means of squares less squares of means, for which float16 has too few digits; O1 keeps "
        "means in float32"
    ),
    "speechmos/speechmos__dnsmos_models__sig_bak_ovr": (
        "it takes the root of a sum of two squares, which float16 rounds to nothing where it is quiet: the gradient is "
        "infinite there, at O1 too. It trains at O1 with `sqrt`, `elementwise_mul` and `elementwise_add` on the custom "
        "black list"
    ),
}
HEAD = """# Fine-tuning

`python lab/bench_finetune.py CORPUS --results finetune.jsonl --torch PYTHON`, then `--write`; its docstring tells
what is done. Ten steps of Adam in float32 and at O2 (float16, emulated), every third parameter frozen; where the batch
is free, every second step has twice the data. The target is what the model computes with its trained weights changed by
a tenth, and the loss is one at the weights of the file: what is left of it is what was not learned. The rate is what a
line search on the first data finds in float32, or the next smaller one if the ten losses come back to the first.
Seconds are processor time of one core for three steps, with importing and building; in float32 the search has compiled
the step before, which does not count. At O2 {skipped_steps} steps of
{scaled} models were skipped until the loss scale fit, and do not count. {run} models of up to {largest:g} MB were run.

{good} of {tried} models pass at both levels: losses are finite, the last is below the first and below one, and what
is frozen keeps every bit.{white_list}

In float32 {halves[0]} of {tried} models learn at least half of it in the ten steps, and {most[0]} at least nine tenths;
at O2 {halves[1]} and {most[1]}. The median of what is left is {left[0]:.2f} in float32 and {left[1]:.2f} at O2.

{within} of {small} cases (a model at a level) of up to {most_small:g} MB take at most {seconds:g} s; the longest is
{slowest} with {longest:.0f} s.

{same} of {twins} models that PyTorch exported follow PyTorch within {limit} (`torch`: float32, nothing frozen, the
largest relative difference of a loss over ten steps).{magnified}

| model | MB | parameters | sizes | rate | float32: first, last loss | s | O2: first, last loss | s | torch |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def passes(record: Record) -> bool:
    """Whether ten steps went as they should."""
    losses = record.get("losses", ())
    if not losses or not np.isfinite(losses).all() or losses[-1] >= min(losses[0], 1.0):
        return False
    return record["changed"] > 0 and not record["frozen_changed"]


def fails(record: Record) -> bool:
    """Whether ten steps were made and did not go as they should."""
    return "losses" in record and not passes(record)


def twin_difference(record: Record) -> float | None:
    """Return the largest difference of our losses from PyTorch's, of theirs."""
    return difference(record, record.get("twin", {}))


def difference(record: Record, other: Record) -> float | None:
    """Return the largest difference of losses from others, of those."""
    if "losses" not in record or "losses" not in other:
        return None
    return float(max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(record["losses"], other["losses"], strict=True)))


def magnified_by(tried: Mapping[str, Mapping[str, Record]]) -> str:
    """Return sentences about the models whose steps magnify rounding: what it makes of PyTorch's own losses."""
    said = ""
    for name, levels in sorted(tried.items()):
        record = levels.get(TWIN, {})
        forms = record.get("referees")
        if forms is None:
            continue
        nudged, last = difference(forms["nudged"], forms["float64"]), difference(forms["channels last"], record["twin"])
        said += (
            f"\nThe steps of {name} magnify rounding: PyTorch's own losses in float64 differ by\n"
            f"{nudged:.4f} after its weights were changed by less than float32 tells, and those in float32 by "
            f"{last:.4f} with\nthe channels last."
        )
    return said


def summary(record: Record) -> str:
    """Return a result in a few words."""
    if "losses" not in record:
        return str(record.get("skipped") or record.get("error") or record.get("twin"))[:200]
    state = "passes" if passes(record) else "fails"
    return f"{state}: {record['losses'][0]:.3g} to {record['losses'][-1]:.3g}, {record['seconds']} s"


def page(records: Sequence[Record], names: Sequence[str] = ()) -> str:
    """Return the document; it lists those of `names` that have no results yet."""
    by_model: dict[str, dict[str, Record]] = {}
    for record in records:
        by_model.setdefault(record["model"], {})[record["level"]] = record
    by_model = {name: levels for name, levels in by_model.items() if all(level in levels for level in LEVELS)}
    tried = {
        name: levels for name, levels in by_model.items() if not any("skipped" in levels[level] for level in LEVELS)
    }
    good = [name for name, levels in tried.items() if all(passes(levels[level]) for level in LEVELS)]
    twins = [apart for levels in tried.values() if (apart := twin_difference(levels.get(TWIN, {}))) is not None]
    left_out = {name: levels[LEVELS[0]]["skipped"] for name, levels in by_model.items() if name not in tried}
    largest = max((levels[LEVELS[0]]["mb"] for levels in by_model.values()), default=0)
    same = sum(apart < SAME for apart in twins)
    rows = [row(name, levels) for name, levels in sorted(tried.items())]
    skipped = [f"- {reason}: {', '.join(names)}" for reason, names in grouped(left_out).items()]
    head = HEAD.format(
        run=len(by_model), largest=largest, good=len(good), tried=len(tried), same=same, twins=len(twins), limit=SAME,
        white_list=white_list_of(tried), magnified=magnified_by(tried),
        **learned_by(tried), **skipped_in(tried), **times_of(tried),
    )  # fmt: skip
    waiting = sorted(set(names) - set(by_model))
    more = ["", f"Not run yet: {', '.join(waiting)}"] if waiting else []
    reasons = [f"- {name}: {REASONS[name]}." for name in sorted(tried) if name not in good and name in REASONS]
    why = ["Why models fail at O2:", "", *reasons, ""] if reasons else []
    return "\n".join([head, *rows, "", *why, "Left out:", "", *skipped, *more, ""])


def white_list_of(tried: Mapping[str, Mapping[str, Record]]) -> str:
    """Return a sentence about the models that pass at O1 and not at O2."""
    names = [name for name, levels in sorted(tried.items()) if passes(levels.get(WHITE_LIST, {}))]
    return f" What fails at O2 passes at O1: {', '.join(names)}." if names else ""


def learned_by(tried: Mapping[str, Mapping[str, Record]]) -> dict[str, list[float]]:
    """Return at each level how many models learn a half and nine tenths, and the median of what is left."""
    errors: dict[str, list[float]] = {"halves": [], "most": [], "left": []}
    for level in LEVELS:
        last = [record["losses"][-1] for levels in tried.values() if "losses" in (record := levels[level])]
        errors["halves"].append(sum(loss <= 0.5 for loss in last))
        errors["most"].append(sum(loss <= 0.1 for loss in last))
        errors["left"].append(float(np.median(last)) if last else np.nan)
    return errors


def skipped_in(tried: Mapping[str, Mapping[str, Record]]) -> dict[str, int]:
    """Return how many steps were skipped, and in how many models."""
    counts = [levels["O2"].get("skipped_steps", 0) for levels in tried.values()]
    return {"skipped_steps": sum(counts), "scaled": sum(map(bool, counts))}


def times_of(tried: Mapping[str, Mapping[str, Record]]) -> dict[str, Any]:
    """Return how long the cases of small models take."""
    cases = [
        (record["seconds"], f"{name} at {level}")
        for name, levels in tried.items()
        for level, record in levels.items()
        if level in LEVELS and record["mb"] <= SMALL and "seconds" in record
    ]
    longest, slowest = max(cases, default=(0.0, ""))
    within = sum(seconds <= SMALL_SECONDS for seconds, _ in cases)
    return {
        "within": within, "small": len(cases), "most_small": SMALL, "seconds": SMALL_SECONDS, "longest": longest,
        "slowest": slowest,
    }  # fmt: skip


def grouped(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the models of each reason."""
    groups: dict[str, list[str]] = {}
    for name, reason in sorted(left_out.items()):
        groups.setdefault(reason, []).append(name)
    return groups


def row(name: str, levels: Mapping[str, Record]) -> str:
    """Return a model's row."""
    cells = []
    for level in LEVELS:
        record = levels[level]
        if "losses" in record:
            mark = "" if passes(record) else " (fails)"
            cells += [f"{record['losses'][0]:.4g}, {record['losses'][-1]:.4g}{mark}", f"{record['seconds']:.0f}"]
        else:
            cells += [str(record["error"]).replace("|", "/")[:160], ""]
    any_of = next((record for record in levels.values() if "losses" in record), {})
    facts = [name, levels[LEVELS[0]]["mb"], *(any_of.get(key, "") for key in ("parameters", "sizes", "rate"))]
    return f"| {' | '.join(map(str, [*facts, *cells, twin_cell(levels.get(TWIN, {}))]))} |"


def twin_cell(record: Record) -> str:
    """Return how far a model is from PyTorch."""
    difference = twin_difference(record)
    if difference is not None:
        return f"{difference:.0e}"
    return "folded" if "skipped" in record.get("twin", {}) else str(record.get("twin", {}).get("error", ""))[:80]
