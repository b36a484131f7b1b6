"""Faults of range: results beyond float16's largest number, and what becomes of the infinity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planted_faults.editing import Editor, Place
from planted_faults.foreign import CLIPPING
from planted_faults.plot import LARGEST, NoPlace, Plant, Plot, power_of_two

__all__ = ["absorbed_infinity", "constant_beyond_range", "low_sum", "masked_row", "residual_overflow"]

_SMALLEST = 2.0**-10  # a magnitude that can be scaled up to the range by a constant within it


def residual_overflow(plot: Plot) -> Plant:
    """A stream is scaled up before a sum and down after it: the addends fit, their sum does not."""
    adds = [place for place in plot.source.places if _addends(plot, place) is not None]
    if plot.draw.random() < 0.5:
        return _scaled_add(plot, plot.one_of(adds))
    variant = plot.one_of(["doubled", "rectified"])
    place = plot.place(lambda place: place.peak > 4 * _SMALLEST)
    scale = power_of_two(64000 / place.peak)
    if scale * float(place.array.max()) < 33500:
        raise NoPlace
    edit = plot.editor(place)
    up = edit.node("Mul", place.value, scale)
    total = edit.node("Add", up, up if variant == "doubled" else edit.node("Relu", up))
    guilty = edit.last
    edit.replace(edit.node("Mul", total, 0.5 / scale))
    return Plant((guilty,), tuple(edit.added), variant)


def _addends(plot: Plot, place: Place) -> tuple[Place, Place] | None:
    """Return the addends of a sum whose scale can be such that they fit and the sum does not."""
    maker = next((node for node in plot.model.graph.node if place.value in node.output), None)
    if maker is None or maker.op_type != "Add":
        return None
    known = {other.value: other for other in plot.source.places}
    pair = tuple(known[name] for name in maker.input if name in known)
    if len(pair) != 2:
        return None
    scale = _scale_of(pair)
    return (pair[0], pair[1]) if place.peak * scale > 1.05 * LARGEST and scale < LARGEST else None


def _scale_of(pair: Sequence[Place]) -> float:
    """Return a number of a few bits that brings the larger addend close to the end of the range."""
    largest = 64000 / max(place.peak for place in pair)
    unit = power_of_two(largest) / 16
    return unit * (largest // unit)


def _scaled_add(plot: Plot, place: Place) -> Plant:
    pair = _addends(plot, place)
    assert pair is not None
    scale = _scale_of(pair)
    add = next(node for node in plot.model.graph.node if place.value in node.output)
    before = Editor(plot.model, place.value)
    before.insert_before(add.name)
    add.input[:] = [before.node("Mul", name, scale) for name in list(add.input)]
    after = Editor(plot.model, place.value)
    add.output[0] = after.fresh(f"{add.name}_scaled")
    after.node("Mul", add.output[0], 1 / scale, output=place.value)
    return Plant((add.name,), (*before.added, add.name, *after.added), "residual")


def absorbed_infinity(plot: Plot) -> Plant:
    """A square or an exponential overflows, and what reads it makes a finite number of the infinity."""
    variant = plot.one_of(["tanh", "sigmoid", "min", "reciprocal", "exp"])
    place = plot.place(lambda place: place.peak > 16 * _SMALLEST)
    edit = plot.editor(place)
    if variant == "exp":
        large = edit.node("Exp", edit.node("Mul", place.value, float(np.float16(13.0 / place.peak))))
    else:
        scaled = edit.node("Mul", place.value, float(np.float16(800.0 / place.peak)))
        large = edit.node("Mul", scaled, scaled)
    guilty = edit.last
    small = edit.node("Mul", large, 2.0**-18)  # 2.4 at most
    if variant == "reciprocal":
        gate = edit.node("Reciprocal", edit.node("Add", small, 1.0))
    elif variant == "min":
        gate = edit.node("Min", small, 8.0)
    else:
        gate = edit.node("Sigmoid" if variant == "sigmoid" else "Tanh", small)
    edit.replace(edit.node("Mul", place.value, gate))
    return Plant((guilty,), tuple(edit.added), variant)


def low_sum(plot: Plot) -> Plant:
    """Many terms whose sum is beyond the range, divided by their count only afterwards."""
    variant = plot.one_of(["ReduceSum", "ReduceL1", "CumSum", "all"])
    place = plot.place(lambda place: place.peak > 16 * _SMALLEST)
    axes = range(place.array.ndim) if variant == "all" else (place.array.ndim - 1,)
    terms = int(np.prod([place.array.shape[axis] for axis in axes]))
    largest_sum = float(np.abs(place.array).sum(axis=tuple(axes)).max())
    scale = power_of_two(3e4 / place.peak)
    if largest_sum * scale < 1.5 * LARGEST:
        raise NoPlace
    edit = plot.editor(place)
    scaled = edit.node("Mul", place.value, scale)
    if variant == "ReduceL1":
        total = edit.reduce("ReduceL1", scaled, axes)
    elif variant == "CumSum":
        total = edit.node("CumSum", edit.node("Abs", scaled), edit.constant(np.array(place.array.ndim - 1), np.int64))
    else:
        total = edit.reduce("ReduceSum", edit.node("Abs", scaled), axes)
    guilty = edit.last
    mean = edit.node("Mul", total, 1 / (scale * terms))
    edit.replace(edit.node("Add", place.value, mean))
    return Plant((guilty,), tuple(edit.added), variant)


def constant_beyond_range(plot: Plot) -> Plant:
    """A factor or a threshold that float16 does not hold: it becomes infinite, or what a tool clips it to."""
    clips = plot.converter in CLIPPING
    variant = plot.one_of(["Min", "Greater", "product"] if clips else ["product"])
    place = plot.place(lambda place: place.peak > 16 * _SMALLEST)
    edit = plot.editor(place)
    if variant == "product":
        large = edit.node("Mul", place.value, 1e6)
        guilty = [edit.last]
        edit.replace(edit.node("Mul", large, 1e-6))
        if not clips:
            guilty.append(edit.last)  # the first may stay float32, and the second reads its result as an infinity
        return Plant(tuple(guilty), tuple(edit.added), variant)
    scale = power_of_two(6e4 / place.peak)
    scaled = edit.node("Mul", place.value, scale)
    if variant == "Min":
        result = edit.node("Min", scaled, 1e5)
        guilty = [edit.last]
    else:
        beyond = edit.node("Greater", scaled, 1e5)
        guilty = [edit.last]
        result = edit.node("Where", beyond, 0.0, scaled)
    edit.replace(edit.node("Mul", result, 1 / scale))
    return Plant(tuple(guilty), tuple(edit.added), variant, low_only=True)


def masked_row(plot: Plot) -> Plant:
    """The minus infinity of a mask is one in 16 bits, and a row that is masked as a whole becomes NaN."""
    smallest = float(np.finfo(np.float32).min)
    if plot.dtype == "bfloat16":
        variant, masked = plot.one_of(["where", "product"]), smallest
    else:
        variant, masked = plot.one_of(["where", "product", "two steps"]), plot.one_of([-1e9, smallest])
    place = plot.place(lambda place: place.array.shape[-2] >= 2)
    shape = place.array.shape[-2:]
    attended = plot.draw.random(shape) < 0.7
    attended[int(plot.draw.integers(shape[0]))] = False
    edit = plot.editor(place)
    scores = edit.node("Mul", place.value, float(np.float16(4 / place.peak)))
    if variant == "where":
        scores = edit.node("Where", edit.constant(attended, np.bool_), scores, masked)
        guilty = edit.last
    else:
        bias = edit.node("Sub", 1.0, edit.constant(attended))
        if variant == "two steps":
            bias, masked = edit.node("Mul", bias, -30000.0), 30000.0
        bias = edit.node("Mul", bias, masked)
        guilty = edit.last
        scores = edit.node("Add", scores, bias)
    weights = edit.node("Softmax", scores, axis=-1)
    softmax = edit.last
    edit.replace(edit.node("Add", place.value, edit.node("Mul", weights, power_of_two(place.peak))))
    return Plant((guilty, softmax), tuple(edit.added), variant)
