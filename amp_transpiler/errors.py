"""Defines the exceptions that this package raises on purpose.

::

    AmpError
    ├── InputError (ValueError)      the input, the options or the output place are wrong: exit status 2
    │   ├── ModelError               the model is unreadable, or was invalid before anything was changed
    │   │   └── MisfitError          an operator does not fit its inputs
    │   ├── OptionError              an unknown level, dtype, operator, pattern that matches nothing, ...
    │   │   └── WrongTypeError       an argument is of a type that its parameter does not take; a TypeError, too
    │   └── OutputError              the output cannot be written where it was asked for
    ├── EnvironmentProblem           the installation is broken (no ONNX Runtime, CUDA libraries missing)
    ├── DistributedError             another process of a distributed run is lost, or runs something else
    ├── NotFiniteError (FloatingPointError)  a run made infinity or NaN, and was told to stop there
    ├── StepCheckFailed              a training step computes something else than its emulation
    ├── VerificationError            a rewritten program is not well typed: a bug here; nothing is written
    └── CheckFailed                  the result failed its check or its tolerance: exit status 1; carries the report
"""

from __future__ import annotations

import functools
import pathlib
import sys
from typing import Any

__all__ = [
    "PAGE",
    "AmpError",
    "CheckFailed",
    "DistributedError",
    "EnvironmentProblem",
    "InputError",
    "MisfitError",
    "ModelError",
    "NotFiniteError",
    "OptionError",
    "OutputError",
    "StepCheckFailed",
    "VerificationError",
    "WrongTypeError",
    "help_link",
    "innermost_text",
    "topic_of",
    "topics",
    "visible",
]

PAGE = pathlib.Path(__file__).resolve().with_name("errors.html").as_uri()
"""The page about errors, in the package itself, so that whoever has the command can open the link that errors end with.

`scripts/error_docs.py` writes it. `docs/errors.md` lists every message besides.
"""

_BUG = "a-bug-in-this-package"


def visible(text: str | bytes, limit: int | None = 300) -> str:
    """Return `text` as one line for a terminal: control, bidirectional and other hidden characters as escapes.

    Args:
        text: anything, a name from a file (bytes if it is not UTF-8) or the message of another library.
        limit: characters to keep; a longer text is cut in its middle. None keeps all.
    """
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    if limit is not None and len(text) > limit:
        head = limit * 3 // 5
        text = f"{text[:head]}...{text[head + 3 - limit :]}"
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if limit is None or len(shown) <= limit else visible(shown, limit)


def innermost_text(error: BaseException, limit: int = 160) -> str:
    """Return the message of the first cause of an exception of another library, as one line."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return visible(" ".join(str(error).split()) or type(error).__name__, limit)


@functools.cache
def topics() -> tuple[dict[str, Any], ...]:
    """Return the topics of the page: `title`, `anchor`, `modules`, `cause` and `remedy` of each."""
    text = pathlib.Path(__file__).with_name("error_topics.toml").read_text(encoding="utf-8")
    import tomllib  # takes some ms, and is seldom needed

    topic_tables = tomllib.loads(text)["topic"]
    return tuple(
        {**topic, "anchor": topic["title"].lower().replace(",", "").replace(" ", "-")} for topic in topic_tables
    )


@functools.cache
def topic_of(module: str, kind: str) -> str:
    """Return the anchor of the topic of errors that a module raises; empty if it belongs to none.

    Args:
        module: its name, without the package's.
        kind: the name of the exception's class.
    """
    anchors = {name: str(topic["anchor"]) for topic in topics() for name in topic["modules"]}
    parts = module.split(".")
    prefixes = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    names = [*(f"{prefix}#{kind}" for prefix in prefixes), f"#{kind}", *prefixes]
    return next((anchors[name] for name in names if name in anchors), "")


def help_link(error: BaseException) -> str:
    """Return the place on the page of errors that is about an error; that about bugs for one that is not ours."""
    anchor = error.topic if isinstance(error, AmpError) else _BUG
    return f"{PAGE}#{anchor}" if anchor else PAGE


def _raising_module() -> str:
    """Return the module that is making an exception of this one, without the package's name."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to the caller
    while frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).removeprefix(f"{__package__}.")


class AmpError(Exception):
    """Base of every exception raised on purpose by this package. Hidden characters in its message are escaped.

    Attributes:
        topic: the anchor of the page of errors that is about it; empty if none is. A traceback ends with the link.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__("\n".join(visible(line, None) for line in message.split("\n")))
        self.topic = topic_of(_raising_module(), type(self).__name__)
        self.add_note(f"See {help_link(self)}")


class InputError(AmpError, ValueError):
    """The model, an option or the output place is wrong; one line says which, and the remedy."""

    _limit: int | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(visible(message, self._limit))


class ModelError(InputError):
    """The model is not readable as ONNX, or was invalid before this package touched it; at most 300 characters."""

    _limit: int | None = 300


class MisfitError(ModelError):
    """An operator does not fit its inputs; the message names them and the lines that made them."""

    _limit = None


class OptionError(InputError):
    """An option or argument has an unknown value: a level, dtype, operator, pattern, ..."""


class WrongTypeError(OptionError, TypeError):
    """An argument is of a type that its parameter does not take; as in Paddle, a TypeError."""


class OutputError(InputError):
    """The result cannot be written where it was asked for; nothing was written."""


class EnvironmentProblem(AmpError):
    """The installation is broken; the message names the package to install or remove."""


class DistributedError(AmpError):
    """Another process of a distributed run died, hangs, failed or runs something else; the message names it."""


class NotFiniteError(AmpError, FloatingPointError):
    """A run made infinity or NaN and was told to stop there; the message names the node. No value was replaced."""


class StepCheckFailed(AmpError):
    """A training step computes something else than its emulation. Nothing was changed in the scope."""


class VerificationError(AmpError):
    """A program is not well typed after a rewriting pass. Nothing was written."""


class CheckFailed(AmpError):
    """The converted program failed a check or the tolerance. Nothing was written.

    Attributes:
        report: the `amp_transpiler.Report` of the conversion, with `outputs`, the error of each output. Its class lies
            in a higher layer than the exceptions, so it cannot be named here.
    """

    def __init__(self, message: str, report: Any) -> None:
        super().__init__(message)
        self.report = report
