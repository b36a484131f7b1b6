"""The classes of outcomes, and what one attempt came to."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

LONGEST_MESSAGE = 300


@dataclasses.dataclass(frozen=True, slots=True)
class OutcomeClass:
    """One row of the table of outcomes; a fault must not happen."""

    name: str
    words: str
    fault: bool = False


CLASSES = (
    OutcomeClass("verified", "converted, and compared with fp32"),
    OutcomeClass("structural", "converted, checked in structure only"),
    OutcomeClass("unverified", "converted, verification off"),
    OutcomeClass("nothing", "nothing to do, or copied as asked"),
    OutcomeClass("refused", "refused in one clear line"),
    OutcomeClass("check failed", "the result failed its check; nothing written"),
    OutcomeClass("vague", "refused, but the message names nothing, is long, or has control characters"),
    OutcomeClass("foreign", "an exception that is not ours", fault=True),
    OutcomeClass("crash", "the converting process died", fault=True),
    OutcomeClass("timeout", "took too long, twice", fault=True),
    OutcomeClass("memory", "took too much memory", fault=True),
    OutcomeClass("source changed", "a file of the source changed", fault=True),
    OutcomeClass("leftovers", "a file left that is neither source nor result", fault=True),
    OutcomeClass("wrong", "verified, but an independent judge disagrees", fault=True),
)
FAULTS = frozenset(row.name for row in CLASSES if row.fault)


@dataclasses.dataclass(slots=True)
class Outcome:
    """The outcome of one mutant.

    Attributes:
        index: the number of the mutant.
        kind: the name of its class.
        seed: the model it was made from.
        level: class of its first mutation.
        steps: names of its mutations.
        options: what it was converted with.
        detail: the message or verdict, one line.
        where: innermost file and line of an exception, ours first.
        seconds: how long the conversion took.
        megabytes: peak memory of the process; 0 if unknown.
        judged: what the judge said: of results `agrees`, `wrong` or `not judged: REASON`; of refused models whether
            ONNX Runtime loads them. Empty if it was not asked.
    """

    index: int
    kind: str
    seed: str = ""
    level: str = ""
    steps: list[str] = dataclasses.field(default_factory=list)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    detail: str = ""
    where: str = ""
    seconds: float = 0.0
    megabytes: int = 0
    judged: str = ""

    @property
    def signature(self) -> str:
        """The part that two outcomes of one cause have in common."""
        if self.kind in {"vague", "wrong", "leftovers"}:
            return f"{self.kind} {_without_names(self.detail)[:60]}"
        return f"{self.kind} {self.detail.split(':')[0]} {self.where}"


def _without_names(text: str) -> str:
    return re.sub(r"'[^']*'|\S*/\S*|\d+", "#", text)


_UNCLEAR = ("Error calling", "_deserialize", "Traceback", "object at 0x", "internal error", "bad_alloc")
_WHOLE_FILE = (
    "not an ONNX model",
    "the file is empty",
    "no graph",
    "imports no operator set",
    "truncated",
    "IR version",
)


def fault_of_message(message: str, path: str, names: set[str]) -> str:
    """Return what is wrong with an error message; empty if it is one clear line that names something.

    Args:
        message: the text of the exception.
        path: the model's file, which every message may name.
        names: what it could name: nodes, operators, values, domains, dimensions, options.
    """
    if len(message) > LONGEST_MESSAGE:
        return f"{len(message)} characters"
    if any(not character.isprintable() for character in message):
        return "line breaks or control characters"
    rest = message.replace(path, "")
    if unclear := next((sign for sign in _UNCLEAR if sign in rest), None):
        return f"'{unclear}'"
    if "'" in rest or any(sign in rest for sign in _WHOLE_FILE):
        return ""
    words = {word.strip("().,;:") for word in re.split(r"[\s()=,]+", rest)}
    # A name of one letter may be an article.
    return "" if any(len(word) > 1 for word in words & names) else "it names nothing"
