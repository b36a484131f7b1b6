"""The words of verdicts: how much is known about a result."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from typing import Literal

__all__ = ["SENTENCES", "Tone", "Verdict", "tone_of"]

Tone = Literal["good", "warn", "bad"]


class Verdict(enum.StrEnum):
    """The first word of `report.verdict`. Only `FAILED` is an error: then nothing is written."""

    VERIFIED = "verified"
    ESTIMATED = "estimated"
    PLAUSIBLE = "plausible"
    COMPARED = "compared"
    STRUCTURE_ONLY = "structure only"
    NOT_CHECKED = "not checked"
    FAILED = "failed"


SENTENCES: Mapping[Verdict, str] = types.MappingProxyType(
    {
        Verdict.VERIFIED: "Every output was compared with fp32 on data that you gave, and is within its limit.",
        Verdict.ESTIMATED: "As verified, but emulated, and part of the arithmetic that was emulated was never measured "
        "on a device: the verdict names whose.",
        Verdict.PLAUSIBLE: "The outputs are within their limits, but the data was made up, or some outputs, which are "
        "named, could not be judged.",
        Verdict.COMPARED: "The outputs were compared with fp32, but at least one has no limit: a warning tells what "
        "differs much.",
        Verdict.STRUCTURE_ONLY: "The file is sound, but no output could be run or judged; the reason follows.",
        Verdict.NOT_CHECKED: "Nothing was checked: it was switched off, or the result is a copy of the source.",
        Verdict.FAILED: "The result is invalid, does not run, has values that became non-finite or outputs of another "
        "shape, is beyond a limit, or goes another way than fp32 in training; nothing is written.",
    }
)
"""The meaning of each word, for the documentation (`docs/verdicts.md`)."""

_TONES: Mapping[Verdict, Tone] = types.MappingProxyType(
    {Verdict.VERIFIED: "good", Verdict.ESTIMATED: "good", Verdict.PLAUSIBLE: "good", Verdict.FAILED: "bad"}
)


def tone_of(word: Verdict) -> Tone:
    """Return how a report colours a verdict."""
    return _TONES.get(word, "warn")
