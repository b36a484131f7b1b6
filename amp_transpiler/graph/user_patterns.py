"""Regular expressions from users: the syntax of `re`, bounded in length, expansion and time."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amp_transpiler.errors import OptionError, visible

if TYPE_CHECKING:
    import regex

__all__ = ["Pattern", "compile_pattern"]

_LONGEST = 10_000  # characters; several hundred node names joined by `|`
_EXPANSION = 200_000  # characters; `regex` writes a fixed repeat out, at 300 bytes a character
_SECONDS = 2.0  # of searching with one pattern, over all names

_REPEAT = re.compile(r"\{(\d+)(?:,\d*)?\}")
_LITERAL_BRACE = re.compile(r"(?<!\\)(?<!\\N)\{(?!\d*(?:,\d*)?\})")  # `regex` reads `a{e<2}` as "about an a"


class Pattern:
    """A compiled pattern. All its searches together end within two seconds, or in an OptionError."""

    def __init__(self, text: str, option: str, compiled: regex.Pattern[str]) -> None:
        self.pattern = text
        self._option = option
        self._compiled = compiled
        self._left = _SECONDS

    def search(self, name: str) -> bool:
        """Whether the pattern matches anywhere in `name`."""
        return self._match(self._compiled.search, name)

    def match(self, name: str) -> bool:
        """Whether the pattern matches the beginning of `name`."""
        return self._match(self._compiled.match, name)

    def fullmatch(self, name: str) -> bool:
        """Whether the pattern matches all of `name`."""
        return self._match(self._compiled.fullmatch, name)

    def _match(self, match: Callable[..., Any], name: str) -> bool:
        start = time.perf_counter()
        try:
            return match(name, timeout=max(self._left, 0.001)) is not None
        except TimeoutError as error:
            remedy = "write it without a repeat inside of a repeat"
            raise _refusal(self._option, self.pattern, f"takes too long on '{visible(name, 60)}': {remedy}") from error
        finally:
            self._left -= time.perf_counter() - start


def compile_pattern(text: str, option: str) -> Pattern:
    """Compile a regular expression in the syntax of `re`.

    Args:
        text: the expression.
        option: the option or parameter that it was given to, for messages.

    Raises:
        OptionError: it is no regular expression, or too long, or nested or repeated too much.
    """
    if not isinstance(text, str):
        raise OptionError(f"{option}: got {type(text).__name__}, expected a regular expression as text")
    if len(text) > _LONGEST:
        fault = f"has {len(text)} characters, at most {_LONGEST} are read: give several shorter ones"
        raise _refusal(option, text, fault)
    import regex  # here, because few calls have a pattern and the import takes 30 ms

    try:
        with warnings.catch_warnings(action="ignore"):  # about syntax that may change its meaning one day
            re.compile(text)
            _check_expansion(text, option)
            return Pattern(text, option, regex.compile(_LITERAL_BRACE.sub(r"\\{", text)))
    except (re.error, regex.error, OverflowError) as error:
        raise _refusal(option, text, f"is not a regular expression: {visible(str(error), 100)}") from error
    except RecursionError as error:
        raise _refusal(option, text, "nests groups too deeply") from error


def _check_expansion(text: str, option: str) -> None:
    counts = [max(1, int(count)) for count in _REPEAT.findall(text)]
    if counts and len(text) * math.prod(counts) > _EXPANSION:
        raise _refusal(option, text, "repeats too often: use smaller counts in braces, or + and *")


def _refusal(option: str, text: str, fault: str) -> OptionError:
    return OptionError(f"{option} pattern '{visible(text, 60)}' {fault}")
