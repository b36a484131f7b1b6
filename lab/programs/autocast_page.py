"""The page of conversions for TensorRT beside AutoCast's."""

from __future__ import annotations

import collections
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["is_behind", "is_worse", "page"]

Record = Mapping[str, Any]
OURS = ("auto", "O2")
WAYS = ("AutoCast", *OURS)
SAME_SHARE, SAME_ERROR, NO_ERROR = 0.005, 1.02, 1e-6  # a rounding of the table; orders of sums
LIMITS = {"float16": (0.02, 0.005), "bfloat16": (0.05, 0.02)}  # that of level auto first
OTHER_LEVELS = {"levels": "error at a tenth or three times", "quiet": "error at a hundredth"}  # as in rows, in words
TENTH = 0.1  # of AutoCast's seconds
MOST_REASONS = 4
_VALUE = re.compile(r"'[^']*'")
_NUMBER = re.compile(r"(?<!\w)\d+(\.\d+)?(e[+-]?\d+)?%?")

HEAD = """# Beside AutoCast

Written by `lab/bench_autocast.py --write` from its rows in `docs/benchmarks/autocast/`. Each model is converted for
TensorRT by NVIDIA's AutoCast (nvidia-modelopt 0.47.0, in an environment of its own) and by levels auto and O2, on one
and the same sample of its inputs: in float16, and further down in bfloat16. Inputs and outputs keep their types. All
files are measured alike:

- **share**: of the results of layers that are floats, those in 16 bits, in the network that TensorRT-RTX's parser
  makes of the file. Constants and casts are layers, too.
- **error**: the worst output, in relative norm, of the float32 program that rounds where the file rounds, on that
  sample; where an input is a signal or a picture on the worse one of a tenth and of three times of it, as level auto
  compares; and on a hundredth of its floats, as a quiet recording or a dark picture is.
- **seconds**: of the CPU, after imports. AutoCast's include one run of the model, to see its values; ours the
  comparison of all outputs, and at level auto the search. Without verification (`--no-verify`) nothing is run, as
  AutoCast compares nothing: that is held against a tenth of its time. AutoCast's own seconds, of the same version and
  file, may be of an earlier run.
- **built**: whether TensorRT-RTX's builder makes an engine of the file.
"""
BEHIND = """## Where the share is smaller at no smaller error

Here AutoCast has more in 16 bits and no larger error on the sample, and at other levels of it keeps level auto's
limit, or has no larger error than ours. The last column has what most of the nodes that stayed float32 say of
themselves.
"""
SMALLER = """## Where the share is smaller at a smaller error

On the sample, or at another level of it at which AutoCast is beyond the limit of level auto. For TensorRT level auto
first tries to make more low than its rules would, what is near zero and what grows with an open size, and compares at
four levels of the sample (`verification/fullest.py`); what is left here failed there.
"""
ALL = """## All models

Share, error (of the sample, in brackets that of a tenth and of three times of it, where these are run, and that of a
hundredth) and seconds; `x`: the builder refuses the file.
"""


def page(every: Sequence[Record]) -> str:
    """Return the page of rows, one a model and format."""
    rows = [row for row in every if _format(row) == "float16"]
    tried = [row for row in rows if row["ways"]]
    in_bfloat16 = [row for row in every if _format(row) == "bfloat16" and row["ways"]]
    commits = ", ".join(sorted({row["commit"] for row in every}))
    smaller = [(row, way) for row in tried for way in OURS if _has_less(row, way)]
    parts = (
        *(HEAD, f"All rows are of commit {commits}.", "", *_sums(tried), ""),
        *_of_bfloat16(in_bfloat16),
        *(BEHIND, *_reasons([pair for pair in smaller if is_behind(*pair)]), ""),
        *(SMALLER, *_reasons([pair for pair in smaller if not is_behind(*pair)]), ""),
        *(ALL, *_all(tried), "", *_untried(rows)),
    )
    return "\n".join(parts).rstrip() + "\n"


def _format(row: Record) -> str:
    return str(row.get("format", "float16"))


def _of_bfloat16(rows: Sequence[Record]) -> Iterator[str]:
    """Yield the part about bfloat16."""
    if not rows:
        return
    yield "## In bfloat16"
    yield ""
    yield from _sums(rows)
    yield ""
    behind = [(row, way) for row in rows for way in OURS if is_behind(row, way)]
    if behind:
        yield from _reasons(behind)
        yield ""


def is_behind(row: Record, way: str) -> bool:
    """Whether a conversion of ours has a smaller share in 16 bits than AutoCast's, and no smaller error.

    Errors are those on the sample, and at other levels where AutoCast's is beyond level auto's limit.
    """
    ours, theirs = _of_way(row, way), _of_way(row, "AutoCast")
    if not _has_less(row, way) or _is_smaller(ours, theirs, "error", NO_ERROR):
        return False
    limit = LIMITS[_format(row)][0]
    return not any(
        theirs.get(sample) is not None and _error(theirs, sample) > limit and _is_smaller(ours, theirs, sample)
        for sample in OTHER_LEVELS
    )


def is_worse(row: Record, way: str) -> bool:
    """Whether a conversion of ours has an error beyond level auto's limit, and above AutoCast's if it has a file."""
    ours, theirs = _of_way(row, way), _of_way(row, "AutoCast")
    if ours.get("error") is None or _error(ours) <= LIMITS[_format(row)][0]:
        return False
    return theirs.get("error") is None or _error(ours) > _error(theirs) * SAME_ERROR


def _is_smaller(ours: Record, theirs: Record, sample: str, margin: float = 0.0) -> bool:
    return _error(ours, sample) * SAME_ERROR + margin < _error(theirs, sample)


def _has_less(row: Record, way: str) -> bool:
    ours, theirs = (_of_way(row, by).get("share") for by in (way, "AutoCast"))
    built = _builds(_of_way(row, "AutoCast"))  # the share of a file that is refused says nothing
    return built and ours is not None and theirs is not None and ours < theirs - SAME_SHARE


def _of_way(row: Record, way: str) -> Record:
    record_of_way: Record = row["ways"].get(way, {})
    return record_of_way


def _error(converted: Record, sample: str = "error") -> float:
    error = converted.get(sample)
    return math.inf if error in (None, "infinite") else float(error)


def _builds(converted: Record) -> bool:
    return converted.get("fault") == ""


def _sums(rows: Sequence[Record]) -> Iterator[str]:
    """Yield the table of sums; shares, errors and times are over models of which AutoCast's file is built, too."""
    taken = [row for row in rows if not row["source"]]
    common = [row for row in taken if all(_builds(_of_way(row, way)) for way in WAYS)]
    by_way = {way: [_of_way(row, way) for row in common] for way in WAYS}
    shares = {way: [record["share"] for record in by_way[way]] for way in WAYS}
    seconds = {way: [record["seconds"] for record in by_way[way]] for way in WAYS}
    unverified = {way: [record.get("unverified", math.nan) for record in by_way[way]] for way in OURS}
    converted = sum("seconds" in _of_way(row, "AutoCast") for row in taken)
    yield (
        f"Of {len(rows)} models the builder takes {len(taken)} in float32. AutoCast converts {converted} of these. All "
        f"but the first and the last line of the table is about the {len(common)} of which every file is built."
    )
    yield ""
    yield _line("", WAYS)
    yield _line("---", ["---" for _ in WAYS])
    yield _line(f"built, of {len(taken)}", [sum(_builds(_of_way(row, way)) for row in taken) for way in WAYS])
    yield _line("share, mean", [f"{statistics.mean(shares[way]):.2f}" for way in WAYS])
    yield _line("share, median", [f"{statistics.median(shares[way]):.2f}" for way in WAYS])
    for sample, words in {"error": "error", **OTHER_LEVELS}.items():
        for limit in LIMITS[_format(rows[0])]:
            known = {way: [record for record in by_way[way] if record.get(sample) is not None] for way in WAYS}
            beyond = [sum(_error(record, sample) > limit for record in known[way]) for way in WAYS]
            yield _line(f"{words} beyond {limit:.1%}", beyond)
    yield _line("seconds, sum", [f"{sum(seconds[way]):.0f}" for way in WAYS])
    yield _line("seconds, median", [f"{statistics.median(seconds[way]):.2f}" for way in WAYS])
    cells = [f"{sum(unverified[way]):.0f}, {statistics.median(unverified[way]):.2f}" for way in OURS]
    yield _line("the same without verification: sum, median", ["", *cells])
    yield from _beside_tenth(unverified, seconds["AutoCast"])
    behind = [sum(is_behind(row, way) for row in common) for way in OURS]
    yield _line("smaller share than AutoCast's at no smaller error", ["", *behind])
    worse = [sum(is_worse(row, way) for row in taken) for way in OURS]
    wrong = f"error beyond {LIMITS[_format(rows[0])][0]:.1%} and above AutoCast's, or where that has no file"
    yield _line(f"{wrong}, of {len(taken)}", ["", *worse])


def _beside_tenth(unverified: Mapping[str, Sequence[float]], theirs: Sequence[float]) -> Iterator[str]:
    """Yield how long conversions without verification take of AutoCast's seconds, and of how many models too long."""
    shares = {way: [ours / each for ours, each in zip(unverified[way], theirs, strict=True)] for way in OURS}
    cells = [f"{sum(unverified[way]) / sum(theirs):.3f}, {statistics.median(shares[way]):.3f}" for way in OURS]
    yield _line("that over AutoCast's: of the sums, median of the models", ["", *cells])
    longest = [f"{sum(share > TENTH for share in shares[way])}, {max(shares[way]):.3f}" for way in OURS]
    yield _line("models above a tenth of AutoCast's; the largest share", ["", *longest])


def _line(name: str, cells: Sequence[object]) -> str:
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"


def _reasons(pairs: Sequence[tuple[Record, str]]) -> Iterator[str]:
    cells = [f"{words}, AutoCast's" for words in ("share", "error", *OTHER_LEVELS.values())]
    cells = ["level", *cells, "float32 because"]
    yield _line("model", cells)
    yield _line("---", ["---" for _ in cells])
    for row, way in pairs:
        ours, theirs = _of_way(row, way), _of_way(row, "AutoCast")
        both = [f"{_number(ours, sample)}, {_number(theirs, sample)}" for sample in ("error", *OTHER_LEVELS)]
        shares = f"{ours['share']:.2f}, {theirs['share']:.2f}"
        yield _line(row["model"], [way, shares, *both, _why(ours)])


def _why(converted: Record) -> str:
    """Return the reasons of nodes in float32, without names and numbers, the most frequent ones first."""
    counts: collections.Counter[str] = collections.Counter()
    for reason, count in converted.get("float32", ()):
        counts[_general(reason)] += count
    return "; ".join(f"{count}: {reason}" for reason, count in counts.most_common(MOST_REASONS))


def _general(text: str) -> str:
    """Return a text without the names and numbers of one node, for a cell of a table."""
    return _NUMBER.sub("…", _VALUE.sub("…", text)).replace("|", "/")


def _all(rows: Sequence[Record]) -> Iterator[str]:
    yield _line("model", ["MB", *WAYS])
    yield _line("---", ["---" for _ in ("MB", *WAYS)])
    for row in rows:
        refused = f", whose source the builder refuses: {row['source'][:60]}" if row["source"] else ""
        cells = [_cell(_of_way(row, way)) for way in WAYS]
        yield _line(f"{row['model']}{refused.replace('|', '/')}", [f"{row['bytes'] / 1e6:.1f}", *cells])


def _cell(converted: Record) -> str:
    if "seconds" not in converted:
        return "no file"
    share = "-" if converted.get("share") is None else f"{converted['share']:.2f}"
    others = [_number(converted, sample) for sample in OTHER_LEVELS]
    errors = f"{_number(converted, 'error')} ({'; '.join(others)})"
    return f"{share}, {errors}, {converted['seconds']:.1f} s{'' if _builds(converted) else ' x'}"


def _number(converted: Record, sample: str) -> str:
    if converted.get(sample) is None:
        return "-"
    error = _error(converted, sample)
    return "infinite" if math.isinf(error) else f"{error:.2g}"


def _untried(rows: Sequence[Record]) -> Iterator[str]:
    untried = [str(row["model"]) for row in rows if not row["ways"]]
    if untried:
        yield f"Not compared, since float32 does not run here: {', '.join(untried)}."
