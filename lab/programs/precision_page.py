"""The tables of docs/benchmarks/precision.md, and what they are held to."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["TOLERANCE", "misses", "text", "write"]

TOLERANCE = 0.02
BATCHED = "time, batch of 32"
SAME_TIME = 1.0001  # what two equal sums of predicted times may differ by
SAME_ERROR, NO_ERROR = 1.02, 2.0**-18  # orders of summation; what float32 itself differs by
MANY_NODES, FASTER = 300, 50.0
Record = Mapping[str, Any]
Models = Mapping[str, Mapping[str, Record]]
PEERS = ("ONNX Runtime", "converter-common", "auto_mixed_precision", "AutoCast")
OTHERS = ("fp32", "auto", "O1", "O2", *PEERS)
FORMS = ("fp32", "time", BATCHED, "auto", "O1", "O2", *PEERS)


def at_batch(models: Models) -> Models:
    """Return the models whose inputs have a batch, with the times at a larger one, and what was aimed at these."""
    by_model: dict[str, dict[str, Record]] = {}
    for name, forms in models.items():
        records = {form: dict(record) for form, record in forms.items() if "ms at 32" in record}
        for record in records.values():
            record["ms"], record["launches"] = record["ms at 32"], record["launches at 32"]
        if BATCHED in records:
            by_model[name] = {**records, "time": records[BATCHED]}
    return by_model


# ---- what is to be reached ----
@dataclasses.dataclass(frozen=True)
class Goal:
    """A statement about `prefer="time"` and each correct result of another kind.

    Attributes:
        words: the statement.
        applies: whether it says anything of ours and another's record.
        holds: whether it holds for them.
    """

    words: str
    applies: Callable[[Record, Record], bool]
    holds: Callable[[Record, Record], bool]


def _as_exact(first: Record, second: Record) -> bool:
    """Whether the first is at least as exact as the second, or differs from it in the rounding of constants alone."""
    if first["form"] in second.get("same choice", ()) or second["form"] in first.get("same choice", ()):
        return True
    return bool(first["error_found"] <= SAME_ERROR * second["error_found"] + NO_ERROR)


def _as_fast(first: Record, second: Record) -> bool:
    """Whether the first is at least as fast as the second."""
    return bool(first["ms"] <= SAME_TIME * second["ms"])


GOALS = (
    Goal("none that is as accurate is faster", lambda ours, other: _as_exact(other, ours), _as_fast),
    Goal("none within the tolerance is faster", lambda ours, other: True, _as_fast),  # noqa: ARG005
    Goal("none that is as fast is more accurate", lambda ours, other: _as_fast(other, ours), _as_exact),
    Goal(
        "none that is as fast runs fewer casts",
        lambda ours, other: _as_fast(other, ours),
        lambda ours, other: _running(ours) <= _running(other),
    ),
)


def _running(record: Record) -> int:
    """Return the casts that ONNX Runtime will run; others are part of fused operators, or of constants."""
    return int(record.get("casts that run", record["casts"]))


def correct(record: Record | None) -> bool:
    """Whether a record is of a valid model within the tolerance."""
    return record is not None and bool(record.get("correct"))


def pairs(models: Models) -> Iterator[tuple[str, str, Record, Record]]:
    """Yield model, form, our record and the other's, wherever both are correct."""
    for name, forms in models.items():
        if not correct(forms.get("time")):
            continue
        for form in OTHERS:
            if correct(forms.get(form)):
                yield name, form, forms["time"], forms[form]


def misses(models: Models) -> Iterator[tuple[str, str, str]]:
    """Yield model, form and goal wherever a goal is missed."""
    for name, form, ours, other in pairs(models):
        for goal in GOALS:
            if goal.applies(ours, other) and not goal.holds(ours, other):
                yield name, form, goal.words


# ---- tables ----
def _lines(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goals_table(models: Models) -> str:
    """Return how often each goal applies, and how often it is missed, against each kind of result."""
    rows = [["prefer=time", *OTHERS]]
    for goal in GOALS:
        cells = []
        for wanted in OTHERS:
            compared = [(ours, other) for _, form, ours, other in pairs(models) if form == wanted]
            held = [goal.holds(ours, other) for ours, other in compared if goal.applies(ours, other)]
            cells.append(f"{sum(held)} of {len(held)}")
        rows.append([goal.words, *cells])
    return _lines(rows)


def forms_table(models: Models) -> str:
    """Return for each form how many models it makes, and how good they are."""
    rows = [
        ["form", "models", "correct", "invalid", "no result", "casts that run", "time / fp32", "CPU s: median", "sum"]
    ]
    for form in FORMS:
        records = [(forms["fp32"], forms[form]) for forms in models.values() if form in forms and "fp32" in forms]
        records = [(base, record) for base, record in records if correct(base)]
        records = [(base, record) for base, record in records if not record.get("error", "").startswith("no size")]
        good = [(base, record) for base, record in records if correct(record)]
        seconds = [record["seconds"] for _, record in records if "seconds" in record]
        ms = "ms at 32" if form == BATCHED else "ms"
        times = [record[ms] / base[ms] for base, record in good if base["ms"]]
        rows.append(
            [
                form,
                str(len(records)),
                str(len(good)),
                str(sum("invalid" in record for _, record in records)),
                str(sum("error" in record for _, record in records)),
                str(sum(_running(record) for _, record in good)),
                f"{statistics.geometric_mean(times):.3f}" if times else "",
                f"{statistics.median(seconds):.2f}" if seconds else "",
                f"{sum(seconds):.0f}" if seconds else "",
            ]
        )
    return _lines(rows)


def search_table(models: Models) -> str:
    """Return the search times on large models, beside those of auto_mixed_precision."""
    rows = [["model", "nodes", "prefer=time, CPU s", "auto_mixed_precision, CPU s", "attempts", "times as fast"]]
    for name, forms in models.items():
        ours, other = forms.get("time", {}), forms.get("auto_mixed_precision", {})
        if ours.get("nodes", 0) < MANY_NODES or "seconds" not in ours or not other:
            continue
        spent = other.get("seconds", other.get("stopped"))
        more = "over " if "stopped" in other else ""
        if spent is None:
            rows.append([name, str(ours["nodes"]), f"{ours['seconds']:.1f}", f"none: {_short(other)}", "", ""])
            continue
        times = f"{more}{spent / ours['seconds']:.0f}"
        attempts = str(other.get("attempts", ""))
        rows.append([name, str(ours["nodes"]), f"{ours['seconds']:.1f}", f"{more}{spent:.1f}", attempts, times])
    return _lines(rows)


def misses_table(models: Models) -> str:
    """Return a row for each goal that is missed, with the numbers."""
    rows = [["model", "against", "missed", "ms: ours / theirs", "error: ours / theirs", "casts: ours / theirs"]]
    for name, form, words in misses(models):
        ours, other = models[name]["time"], models[name][form]
        rows.append(
            [
                name,
                form,
                words,
                f"{ours['ms']:.4f} / {other['ms']:.4f}",
                f"{_percent(ours['error_found'])} / {_percent(other['error_found'])}",
                f"{_running(ours)} / {_running(other)}",
            ]
        )
    return _lines(rows if rows[1:] else [*rows, ["none", *[""] * (len(rows[0]) - 1)]])


def models_table(models: Models) -> str:
    """Return a row for each model and form."""
    rows = [["model", "form", "casts", "run", "low", "launches", "ms", "error", "CPU s", ""]]
    for name, forms in models.items():
        for index, form in enumerate(form for form in FORMS if form in forms):
            record = forms[form]
            if record.get("error", "").startswith("no size"):
                continue
            first = f"{name}, {record['nodes']} nodes" if not index and "nodes" in record else name if not index else ""
            seconds = f"{record['seconds']:.1f}" if "seconds" in record else ""
            if "ms" not in record:
                rows.append([first, form, "", "", "", "", "", "", seconds, _short(record)])
                continue
            numbers = [
                str(record["casts"]),
                str(_running(record)),
                f"{record['low']:.0%}",
                str(record["launches"]),
                f"{record['ms']:.3f}",
            ]
            note = "" if record["correct"] else "beyond the tolerance"
            rows.append([first, form, *numbers, _percent(record["error_found"]), seconds, note])
    return _lines(rows)


def _short(record: Record) -> str:
    words = str(record.get("invalid") or record.get("error") or "").replace("|", "/").replace("\n", " ")
    kind = "invalid: " if "invalid" in record else ""
    return kind + (words if len(words) <= 110 else f"{words[:107]}...")


def _percent(share: float) -> str:
    return (
        "0"
        if share == 0
        else f"{100 * share:.2g} %"
        if share < 10
        else "not finite"
        if share == float("inf")
        else "over 1000 %"
    )


def _batched(make: Callable[[Models], str]) -> Callable[[Models], str]:
    return lambda models: make(at_batch(models))


TABLES = (
    ("## What is held", goals_table),
    ("### At a batch of 32", _batched(goals_table)),
    ("## Where it is not", misses_table),
    ("### Where it is not at a batch of 32", _batched(misses_table)),
    ("## All results", forms_table),
    ("## Time of the search", search_table),
    ("## Model by model", models_table),
)


def text(models: Models) -> str:
    """Return all tables, under their headings."""
    return "\n\n".join(f"{heading}\n\n{make(models)}" for heading, make in TABLES)


def write(page: pathlib.Path, models: Models) -> None:
    """Put each table in the place of the first one under its heading on the page."""
    words = page.read_text(encoding="utf-8")
    for heading, make in TABLES:
        begin = words.index("\n|", words.index(heading)) + 1
        end = words.find("\n\n", begin)
        words = words[:begin] + make(models) + (words[end:] if end >= 0 else "\n")
    page.write_text(words, encoding="utf-8")
