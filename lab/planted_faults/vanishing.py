"""Faults of small numbers and lost digits: what becomes zero, and rounding that something amplifies."""

from __future__ import annotations

import numpy as np

from planted_faults.editing import Editor, Place
from planted_faults.plot import NoPlace, Plant, Plot, power_of_two

__all__ = ["amplification", "epsilon_lost", "quiet_input", "variance_underflow"]


def variance_underflow(plot: Plot) -> Plant:
    """A normalisation that is written out, over small values: their squares are zero in float16."""
    place = plot.place(lambda place: place.peak < 64)
    scale = power_of_two(7e-5 / place.peak)
    if scale < 2.0**-24:
        raise NoPlace
    edit = plot.editor(place)
    last = [place.array.ndim - 1]
    small = edit.node("Mul", place.value, scale)
    deviation = edit.node("Sub", small, edit.reduce("ReduceMean", small, last))
    square = edit.node("Mul", deviation, deviation)
    guilty = edit.last
    root = edit.node("Sqrt", edit.reduce("ReduceMean", square, last))
    normal = edit.node("Div", deviation, edit.node("Add", root, 2.0**-17))
    edit.replace(edit.node("Add", place.value, edit.node("Mul", normal, power_of_two(place.peak) / 4)))
    return Plant((guilty,), tuple(edit.added), "written out")


def epsilon_lost(plot: Plot) -> Plant:
    """An epsilon that is zero in float16, and a quiet row that is divided by it."""
    variant = plot.one_of(["variance", "l2", "mean"])
    place = plot.place(lambda place: 0.1 < place.peak < 64 and place.array.shape[-2] >= 2)
    edit = plot.editor(place)
    quiet = _with_a_quiet_row(plot, edit, place)
    last = [place.array.ndim - 1]
    if variant == "mean":
        sized = edit.reduce("ReduceMean", edit.node("Abs", quiet), last)
        divisor = edit.node("Add", sized, 1e-9)
        guilty = edit.last
    else:
        if variant == "variance":
            quiet = edit.node("Sub", quiet, edit.reduce("ReduceMean", quiet, last))
        squares = edit.reduce("ReduceMean", edit.node("Mul", quiet, quiet), last)
        total = edit.node("Add", squares, 1e-12)
        guilty = edit.last
        divisor = edit.node("Sqrt", total)
    normal = edit.node("Div", quiet, divisor)
    edit.replace(edit.node("Add", place.value, edit.node("Mul", normal, power_of_two(place.peak) / 8)))
    return Plant((guilty,), tuple(edit.added), variant)


def _with_a_quiet_row(plot: Plot, edit: Editor, place: Place) -> str:
    rows = np.ones((place.array.shape[-2], 1), np.float32)
    rows[int(plot.draw.integers(len(rows)))] = 0.0
    return edit.node("Mul", place.value, edit.constant(rows))


def quiet_input(plot: Plot) -> Plant:
    """A ten thousandth of a loud signal: its power is zero in float16, and so is what keeps its logarithm finite."""
    variant = plot.one_of(["log", "power", "ratio"])
    at_input = bool(plot.source.inputs) and plot.draw.random() < 0.5
    place = plot.one_of(plot.source.inputs) if at_input else plot.place(lambda place: 0.1 < place.peak < 64)
    edit = plot.editor(place)
    loud = power_of_two(place.peak)
    if at_input:
        quiet, plot.sample[place.value] = place.value, plot.sample[place.value] * np.float32(1e-4)
        signal = edit.node("Mul", place.value, 1e4)
    else:
        quiet, signal = edit.node("Mul", place.value, 1e-4), place.value
    size = edit.node("Mul", quiet, 2.0**-10 if variant == "log" else quiet)
    suspects = [edit.last]
    if variant == "log":
        size = edit.node("Abs", size)
    if variant == "ratio":
        largest = edit.reduce("ReduceMax", size, [place.array.ndim - 1])
        total = edit.node("Add", largest, 1e-12)
        suspects.append(edit.last)  # of a row whose squares are all zero
        feature = edit.node("Div", size, total)
    else:
        total = edit.node("Add", size, 1e-8)
        suspects.append(edit.last)
        feature = edit.node("Mul", edit.node("Log", total), 2.0**-5)
    edit.replace(edit.node("Add", signal, edit.node("Mul", feature, loud)))
    return Plant(tuple(suspects), tuple(edit.added), variant + (" at an input" if at_input else ""))


def amplification(plot: Plot) -> Plant:
    """Two large numbers that are nearly equal are subtracted: what is left is their rounding."""
    place = plot.place(lambda place: place.peak < 64)
    times = plot.one_of([128, 256, 512] if plot.dtype == "float16" else [16, 32, 64])
    offset = times * power_of_two(place.peak)
    edit = plot.editor(place)
    large = edit.node("Add", place.value, offset)
    suspects = [edit.last]
    edit.replace(edit.node("Sub", large, offset))
    suspects.append(edit.last)
    return Plant(tuple(suspects), tuple(edit.added), "offset")
