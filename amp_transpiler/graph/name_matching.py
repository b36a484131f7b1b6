"""Names that a user writes, exact or as a pattern, looked up among those of a model."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from amp_transpiler.graph.user_patterns import compile_pattern

__all__ = ["did_you_mean", "is_pattern", "matching_names"]

_SPECIAL = frozenset("*+?|()[]{}^$\\")  # a dot makes no pattern by itself: names are full of them


def matching_names(text: str, names: Iterable[str], option: str) -> list[str]:
    """Return the names that a user means: the one that is `text`, else those that all of `text` matches as a pattern.

    Args:
        text: a name or a regular expression.
        names: the names there are.
        option: the option or parameter that it was given to, for messages.

    Raises:
        OptionError: no name is `text`, and it is no regular expression.
    """
    known = list(dict.fromkeys(names))
    if text in known:
        return [text]
    pattern = compile_pattern(text, option)
    return [name for name in known if pattern.fullmatch(name)]


def is_pattern(text: str) -> bool:
    """Whether a text that is no name was meant as a pattern."""
    return not _SPECIAL.isdisjoint(text)


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return a question with up to three similar names, in brackets; empty if there are none."""
    similar = difflib.get_close_matches(text, sorted(set(names)), n=3)
    return f" (did you mean {' or '.join(map(repr, similar))}?)" if similar else ""
