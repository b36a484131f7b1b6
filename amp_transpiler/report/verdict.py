"""Says in a word how much is known about a result, and what that rests on.

Whoever writes a verdict makes a `Judgement`; whoever asks about one asks for its word or for a part of its basis
(`judgement_of`), never for words of the sentence that reports hold.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Mapping
from typing import Literal, TypeAlias

__all__ = ["SENTENCES", "Judgement", "Part", "Tone", "Verdict", "VerdictText", "judgement_of", "tone_of"]

Tone = Literal["good", "warn", "bad"]

Part: TypeAlias = Literal[
    "why", "needless", "metric", "errors", "unmeasured", "unlimited", "unjudged", "unseen", "training"
]
"""What a clause of a verdict says: see `Judgement`."""


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
        Verdict.VERIFIED: "Every output was compared with float32 on data that you gave, and is within its limit.",
        Verdict.ESTIMATED: "As verified, but emulated, and part of the arithmetic that was emulated was never measured "
        "on a device: the verdict names whose.",
        Verdict.PLAUSIBLE: "The outputs are within their limits, but the data was made up, or some outputs, which are "
        "named, could not be judged.",
        Verdict.COMPARED: "The outputs were compared with float32, but at least one has no limit: a warning tells what "
        "differs much.",
        Verdict.STRUCTURE_ONLY: "The file is sound, but no output could be run or judged; the reason follows.",
        Verdict.NOT_CHECKED: "Nothing was checked: it was switched off, or the result is a copy of the source.",
        Verdict.FAILED: "The result is invalid, does not run, has values that became non-finite or outputs of another "
        "shape, is beyond a limit, or goes another way than float32 in training; nothing is written.",
    }
)
"""The meaning of each word, for the documentation (`docs/verdicts.md`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """States a verdict; as text it is one sentence.

    Attributes:
        word: how much is known.
        basis: what that rests on, in clauses, in the order of the sentence. `why`: the fault, or what was in the way of
            a comparison; `needless`: why there was nothing to do; `metric`: the user's own measure; `errors`: how far
            the outputs are off, how far they may be, on what samples and in whose arithmetic; `unmeasured`: whose
            arithmetic no device was ever asked for; `unlimited`: outputs without a limit; `unjudged`: outputs that show
            nothing, and why; `unseen`: what no sample ran; `training`: how a training step fared.
    """

    word: Verdict
    basis: Mapping[Part, str] = dataclasses.field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return ": ".join(filter(None, (str(self.word), "; ".join(self.basis.values()))))

    def as_text(self) -> VerdictText:
        """Return the sentence, for a report."""
        text = VerdictText(self)
        text.judgement = self
        return text

    def with_word(self, word: Verdict) -> Judgement:
        """Return the same basis under another word."""
        return dataclasses.replace(self, word=word)

    def with_part(self, part: Part, clause: str) -> Judgement:
        """Return the judgement with another clause for a part of the basis, or with this one at its end."""
        return dataclasses.replace(self, basis={**self.basis, part: clause})

    def without(self, part: Part) -> Judgement:
        """Return the judgement without a part of the basis."""
        return dataclasses.replace(self, basis={name: text for name, text in self.basis.items() if name != part})

    def renamed(self, old: str, new: str) -> Judgement:
        """Return the judgement with another name for a file that its clauses speak of."""
        return dataclasses.replace(self, basis={name: text.replace(old, new) for name, text in self.basis.items()})


class VerdictText(str):
    """The sentence of a judgement, for reports: a plain text, which still knows the judgement."""

    __slots__ = ("judgement",)
    judgement: Judgement


def judgement_of(text: str) -> Judgement:
    """Return the judgement that a verdict was made of; of a text from a file, or a user's, its word and all the rest.

    Raises:
        ValueError: it begins with no word of `Verdict`.
    """
    if isinstance(text, VerdictText) and hasattr(text, "judgement"):
        return text.judgement
    word, _, rest = text.partition(":")
    return Judgement(Verdict(word), {"why": rest.strip()} if rest else {})


_TONES: Mapping[Verdict, Tone] = types.MappingProxyType(
    {Verdict.VERIFIED: "good", Verdict.ESTIMATED: "good", Verdict.PLAUSIBLE: "good", Verdict.FAILED: "bad"}
)


def tone_of(word: Verdict) -> Tone:
    """Return how a report colours a verdict."""
    return _TONES.get(word, "warn")
