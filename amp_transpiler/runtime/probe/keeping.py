"""The answers of a user's device, kept in the cache folder under what they depend on, and what they come to."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Sequence

from amp_transpiler.files.user_cache import Records
from amp_transpiler.runtime.probe.answers import Row
from amp_transpiler.runtime.probe.question import SINGLE

__all__ = ["Summary", "keep", "summarize"]

_RECORDS = Records("truths")
_BEYOND = 1.0  # units in the last place: what a function's own error may cost


def keep(rows: Sequence[Row]) -> pathlib.Path | None:
    """Keep the rows of a device in place of older ones of the same device, driver, libraries and options.

    Returns:
        The file, with a row a line; None if the cache is switched off or cannot be written to.
    """
    name = _name({key: rows[0][key] for key in _device_keys(rows[0])})
    _RECORDS.put(name, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    folder = _RECORDS.folder
    path = None if folder is None else folder / f"{name}.{_RECORDS.kind}"
    return path if path is not None and path.is_file() else None


def _device_keys(row: Row) -> list[str]:
    keys = list(row)
    return keys[: keys.index("probe")]


def _name(device: Row) -> str:
    readable = re.sub(r"\W+", "_", f"{device['device']}_ort{device['onnxruntime']}").strip("_")
    return f"{readable}_{hashlib.sha256(json.dumps(device).encode()).hexdigest()[:12]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What the rows of a device come to. Kernels are named as `OPERATORS FORMAT`, with their questions and all of them.

    Attributes:
        rows: how many there are.
        refused: how many the device has no kernel for.
        on_cpu: how many ran on the CPU, at least in part.
        restless: kernels whose results differ from run to run.
        rounding: kernels whose result is further than a unit in the last place from that of one rounding, or infinite
            or NaN where that is not; only in 16 bits, as float32 has no rounding to be told apart from its sums.
    """

    rows: int
    refused: int
    on_cpu: int
    restless: tuple[str, ...]
    rounding: tuple[str, ...]


def summarize(rows: Sequence[Row]) -> Summary:
    """Return what rows come to."""
    answered = [row for row in rows if "refused" not in row]
    return Summary(
        rows=len(rows),
        refused=len(rows) - len(answered),
        on_cpu=sum("on_cpu" in row for row in answered),
        restless=_named(answered, (row for row in answered if row["deterministic"] is False)),
        rounding=_named(answered, (row for row in answered if _differs(row))),
    )


def _differs(row: Row) -> bool:
    single = row["candidates"][SINGLE]
    if row["format"] == "float32" or row["is"] == SINGLE:
        return False
    return "max_ulp" not in single or single["max_ulp"] > _BEYOND or single["nonfinite"] > 0


def _named(every: Iterable[Row], rows: Iterable[Row]) -> tuple[str, ...]:
    counts, of = (collections.Counter(f"{row['op']} {row['format']}" for row in group) for group in (rows, every))
    return tuple(f"{name} ({count} of {of[name]})" for name, count in counts.items())
