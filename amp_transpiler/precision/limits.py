"""How far a result may be from float32, and how users write that."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from amp_transpiler.errors import OptionError

__all__ = [
    "HEADROOM",
    "Limits",
    "Mismatch",
    "Tolerance",
    "checked_headroom",
    "parse_mismatch",
    "parse_tolerance",
    "with_limits",
]

HEADROOM = 4.0
"""How many times a range that was seen must fit into the low format."""

Tolerance: TypeAlias = float | str | Mapping[str, float | str]
"""A fraction (0: float32), `1%`, `logits=1%,boxes=0.5`, `2%,logits=1%`; or output (a pattern) -> any of them."""

Mismatch: TypeAlias = float | str
"""A share from 0 to 1, or `0.1%`."""


_FLOAT32 = 2.0**-18  # what float32 itself differs by when operators are written in another way


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The limits of outputs.

    Attributes:
        tolerance: the largest relative norm error of an output, as a fraction; infinite for no limit.
        mismatch: the largest share of integers, truth values or texts of an output that may differ; None for none
            wherever a tolerance applies, and for no limit elsewhere.
        outputs: the name of an output -> a tolerance of its own. Until a program is at hand, patterns count as names.
    """

    tolerance: float = math.inf
    mismatch: float | None = None
    outputs: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def for_output(self, name: str) -> float:
        """Return the tolerance of an output; infinite for no limit."""
        return self.outputs.get(name, self.tolerance)

    @property
    def are_none(self) -> bool:
        """Whether any error would do: no output has a limit."""
        return not any(map(math.isfinite, (self.tolerance, *self.outputs.values())))

    def of_float32(self) -> Limits:
        """Return the limits of a program that is float32 throughout: its own rounding is none of a conversion's."""
        outputs = {name: max(tolerance, _FLOAT32) for name, tolerance in self.outputs.items()}
        return dataclasses.replace(self, tolerance=max(self.tolerance, _FLOAT32), outputs=outputs)

    def mismatch_for(self, name: str) -> float | None:
        """Return the largest share of differing integers, truth values or texts of an output; None for no limit."""
        if self.mismatch is not None:
            return self.mismatch
        return 0.0 if math.isfinite(self.for_output(name)) else None


def with_limits(limits: Limits, tolerance: Tolerance | None, mismatch: Mismatch | None) -> Limits:
    """Return the limits with the user's own ones in place of the defaults.

    Args:
        limits: the defaults.
        tolerance: as `transpile` takes it; None for the defaults.
        mismatch: likewise.

    Raises:
        OptionError: one of them cannot be read.
    """
    if tolerance is not None:
        overall, outputs = parse_tolerance(tolerance)
        limits = dataclasses.replace(
            limits, tolerance=limits.tolerance if overall is None else overall, outputs=outputs
        )
    if mismatch is not None:
        limits = dataclasses.replace(limits, mismatch=parse_mismatch(mismatch))
    return limits


def parse_tolerance(given: Tolerance) -> tuple[float | None, dict[str, float]]:
    """Return the tolerance of all outputs, None if none is given, and those of single outputs.

    Raises:
        OptionError: it is no tolerance; or it is `1`, say, which is 100 % and was meant as 1 %.
    """
    if isinstance(given, Mapping):
        return None, {str(name): _tolerance(value, given) for name, value in given.items()}
    if not isinstance(given, str):
        return _tolerance(given, given), {}
    overall: float | None = None
    outputs: dict[str, float] = {}
    for item in given.split(","):
        name, equals, text = item.rpartition("=")
        name, value = name.strip(), _tolerance(text, given)
        if (equals and not name) or name in outputs or (not equals and overall is not None):
            if name:
                twice = f"{name!r} twice"
            elif equals:
                twice = "no name before '='"
            else:
                twice = "two tolerances for all outputs"
            raise OptionError(f"tolerance is {given!r}, which has {twice}: expected one for each, as 2%,logits=1%")
        if equals:
            outputs[name] = value
        else:
            overall = value
    return overall, outputs


def parse_mismatch(given: Mismatch) -> float:
    """Return the share.

    Raises:
        OptionError: it is no share.
    """
    return _fraction(given, given, lambda share: 0.0 <= share <= 1.0, "mismatch is {}: expected a share from 0 to 1")


def checked_headroom(given: float) -> float:
    """Return the headroom.

    Raises:
        OptionError: it is no number of at least 1.
    """
    if isinstance(given, bool) or not 1.0 <= given < math.inf:
        raise OptionError(f"headroom is {given!r}: expected a number of at least 1, such as 4")
    return float(given)


_EXPECTED = "tolerance is {}: expected a fraction of at least 0 such as 0.01, '1%', or 'logits=1%,boxes=0.5'"


def _tolerance(value: float | str, option: Tolerance) -> float:
    fraction = _fraction(value, option, lambda number: number >= 0.0, _EXPECTED)
    # A float is the fraction that it is documented to be: 1.0 is all that a difference can be. A whole number is not.
    is_clear = value.strip().endswith("%") if isinstance(value, str) else not isinstance(value, numbers.Integral)
    if fraction >= 1.0 and not is_clear:
        written: Callable[[str], str] = str if isinstance(option, str) else repr  # Python has percentages as text only
        meant, percentage = str(value).strip(), f"{100 * fraction:g}%"
        raise OptionError(
            f"tolerance is {option!r}, where {meant} without a percent sign is {percentage}: write "
            f"{written(f'{meant}%')} for {meant} percent, or {written(percentage)} if you mean that"
        )
    return fraction


def _fraction(value: Any, option: Any, fits: Callable[[float], bool], expected: str) -> float:
    """Return a number, or the number that a text is, which may be a percentage."""
    try:
        if isinstance(value, str):
            text = value.strip()
            number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
            number = number if math.isfinite(number) else math.nan
        else:
            number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not fits(number):
        raise OptionError(expected.format(repr(option)))
    return number
