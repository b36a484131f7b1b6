"""Whether a training step and its emulation agree: the rule, its numbers, and their reasons.

A state is judged by its way, new - old: a wrong update is small beside the state. A fetched value's way begins at zero.
Three numbers say how far a way is off that of the emulation:

- `size`: the median of the elements' ratios, less 1. A kernel that is off by 5 % shows here. Noise of single elements
  does not, nor do the full steps up or down that optimizers such as Adam make where rounding decides a sign.
- `distance`: the norm of the difference over that of the way, without the greatest twentieth of the differences, which
  those signs are. Noise that replaces a gradient shows here.
- `farthest`: the greatest difference over the greatest step. A sign is two steps; a few wild elements are more.

What is allowed is the larger of two things. One is what the format costs anyway: another order of sums, a rounding that
goes the other way, TF32 in float32 products. The other is what such noise does to this value in this step: where the
first is not enough, the emulation runs again, with all products off by the last places of TF32 and float16
(`runtime.shaken`). A maximum that moves to another element, a gradient that is zero but for rounding, and the
normalisation of a small batch magnify noise a hundredfold, so that no fixed number would do. A value that only this
noise replaces is not judged, and nor is a parameter one of whose moments is such a value.

Other rules:

- What is not finite in one and finite in the other is a contradiction, in both directions: so both leave out the same
  steps, and an overflow is the same overflow. Where both are not finite, elements that are finite in both are judged.
- Integers and booleans of the state, such as counters of loss scaling, are equal.
- What lies within two last places of the stored number is no difference.
- What the forward pass gets out of comparisons (an accuracy, labels, counts) is judged if it is the loss, and else not:
  a tie may go either way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.graph.roles import role_of
from amp_transpiler.program.low_values import has_low_values
from amp_transpiler.program.program import Program

__all__ = ["EVERYTHING", "Gap", "Limits", "Value", "decided_by_comparison", "gap", "limits_of"]

_TIMES = 4.0  # what noise does to a value, over what it did in the runs with noise
_REPLACED = 0.25  # of a way: noise that moves it this far decides it
_SIGNS = 0.05  # of the elements: those whose sign rounding may decide
_LEAST = 2  # of them, in small values
_FEW = 4  # elements, of which none is left out
_STEPS = 2.5  # greatest steps that an element may be off: a sign is two
_BEARING = 0.1  # of the greatest step: smaller ones say little about the size
_PLACES = 2.0  # last places of a stored number


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a value may be off in any step.

    Attributes:
        size: see the module.
        distance: see the module.
        farthest: see the module.
    """

    size: float
    distance: float
    farthest: float = _STEPS


EVERYTHING = Limits(math.inf, math.inf, math.inf)
"""What a value may be off that noise decides: all numbers, and infinity where the emulation has none."""

# TF32 and float16 have 11 significant bits, bfloat16 has 8; a gradient is made of several rounded values, and a second
# moment of their squares: in TF32 its size was measured to be 0.13 % off, with nothing that magnifies noise.
_FLOAT32, _FLOAT16, _BFLOAT16 = Limits(5e-3, 1e-2), Limits(1e-2, 2e-2), Limits(2e-2, 5e-2)


def limits_of(program: Program) -> Limits:
    """Return what the values of a program may be off, by the lowest format that it computes in."""
    if has_low_values(program, dtypes=(ir.DataType.BFLOAT16,)):
        return _BFLOAT16
    return _FLOAT16 if has_low_values(program) else _FLOAT32


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value of a step, in the step itself or in its emulation.

    Attributes:
        new: what the step makes.
        old: the state before it; None for a fetched value.
    """

    new: np.ndarray
    old: np.ndarray | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """How far a value is off what is expected.

    Attributes:
        size: see the module; negative if the value does not go far enough.
        distance: see the module.
        farthest: see the module.
        got: the norm of the way.
        wanted: the norm of the way of the emulation.
        fault: what no number describes: another shape, an infinity in one of them.
    """

    size: float = 0.0
    distance: float = 0.0
    farthest: float = 0.0
    got: float = 0.0
    wanted: float = 0.0
    fault: str = ""

    def within(self, limits: Limits) -> bool:
        """Whether it is no contradiction."""
        if self.fault or limits is EVERYTHING:
            return limits is EVERYTHING
        return abs(self.size) <= limits.size and self.distance <= limits.distance and self.farthest <= limits.farthest

    def allowed_beside(self, limits: Limits) -> Limits:
        """Return limits that allow a few times this gap, too, which is noise; all, where noise replaces the value."""
        if self.fault or self.distance > _REPLACED:
            return EVERYTHING
        return Limits(
            max(limits.size, _TIMES * abs(self.size), self.distance),  # the median of few elements may be untouched
            max(limits.distance, _TIMES * self.distance),
            max(limits.farthest, _TIMES * self.farthest),
        )


def gap(got: Value, wanted: Value) -> Gap:
    """Return how far a value is off the emulation's."""
    if got.new.shape != wanted.new.shape:
        return Gap(fault=f"has the shape {list(got.new.shape)}, expected {list(wanted.new.shape)}")
    is_number = wanted.new.dtype.kind in "fV"
    if not is_number:
        differ = int((got.new != wanted.new).sum())
        return Gap(fault=f"has {differ} of {got.new.size} integers or booleans that differ") if differ else Gap()
    actual, expected = _wide(got.new), _wide(wanted.new)
    finite = np.isfinite(actual) & np.isfinite(expected)
    if bool(np.isfinite(actual).all()) != bool(np.isfinite(expected).all()):
        bad, where = (
            (actual, "is not finite where it should be") if np.isfinite(expected).all() else (expected, "is finite")
        )
        return Gap(fault=f"{where}: {int((~np.isfinite(bad)).sum())} of {actual.size} numbers")
    old = _wide(wanted.old)[finite] if wanted.old is not None else np.zeros(int(finite.sum()))
    return _between(
        actual[finite], expected[finite], old, _last_place(wanted.new.dtype), trimmed=wanted.old is not None
    )


def _between(got: np.ndarray, wanted: np.ndarray, old: np.ndarray, place: float, *, trimmed: bool) -> Gap:
    off = np.abs(got - wanted)
    same = off <= _PLACES * place * np.abs(wanted)
    off, got = np.where(same, 0.0, off), np.where(same, wanted, got)
    way, step = wanted - old, got - old
    norm, low = float(np.linalg.norm(way)), float(np.linalg.norm(step))
    if not off.any():
        return Gap(got=low, wanted=norm)
    if not norm:
        return Gap(math.inf, math.inf, math.inf, low, norm)
    greatest = np.abs(way).max()
    bearing = np.abs(way) >= _BEARING * greatest
    few = max(_LEAST, math.ceil(_SIGNS * off.size)) if trimmed and off.size > _FEW else 0
    rest = np.partition(off, off.size - few)[: off.size - few] if few else off
    return Gap(
        size=float(np.median(step[bearing] / way[bearing])) - 1.0,
        distance=float(np.linalg.norm(rest)) / norm,
        farthest=float(off.max() / greatest) if trimmed else 0.0,
        got=low,
        wanted=norm,
    )


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64).reshape(-1)


def _last_place(dtype: np.dtype) -> float:
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def decided_by_comparison(program: Program, names: Mapping[str, str]) -> frozenset[str]:
    """Return the names whose values the forward pass gets out of comparisons.

    Args:
        program: the program.
        names: name -> the value of the main graph that it stands for.
    """
    decided: set[ir.Value] = set()
    for node in program.model.graph:
        read = [value for value in node.inputs if value is not None]
        if any(value in decided for value in read):
            decided.update(node.outputs)
        elif any(is_float_tensor(value) for value in read) and node.op_type not in ("Shape", "Size"):
            decided.update(_whole_numbers(node))
    return frozenset(name for name, value in names.items() if _is_decided(program.value(value), decided))


def _whole_numbers(node: ir.Node) -> Iterator[ir.Value]:
    return (value for value in node.outputs if value.dtype is not None and not value.dtype.is_floating_point())


def _is_decided(value: ir.Value, decided: set[ir.Value]) -> bool:
    node = value.producer()
    return node is not None and role_of(node) == "forward" and value in decided
