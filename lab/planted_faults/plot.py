"""What a builder of a fault gets and returns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import onnx

from planted_faults.editing import Editor, Place, copy_of
from planted_faults.sources import Source

__all__ = ["LARGEST", "Builder", "Damage", "NoPlace", "Plant", "Plot", "power_of_two"]

LARGEST = 65504.0  # float16's largest number
T = TypeVar("T")


class NoPlace(Exception):
    """The model has no value of the kind that a fault needs, or not one of the right size."""


@dataclasses.dataclass(frozen=True)
class Plant:
    """A fault that was built into a float32 model.

    Attributes:
        guilty: names of the nodes any of which is the right answer.
        nodes: names of all nodes that are new or changed: with these in float32, all is well.
        variant: which form of its kind it has.
        low_only: only the low model of the tool has the fault.
    """

    guilty: tuple[str, ...]
    nodes: tuple[str, ...]
    variant: str
    low_only: bool = False


class Plot:
    """A model to plant into, with the draws of one case.

    Args:
        source: the model.
        draw: the random numbers.
        dtype: the low format.
        converter: the tool that makes the low model; empty if the debugger does.
    """

    def __init__(self, source: Source, draw: np.random.Generator, dtype: str, converter: str) -> None:
        self.source, self.draw, self.dtype, self.converter = source, draw, dtype, converter
        self.model: onnx.ModelProto = copy_of(source.model)
        self.sample = dict(source.sample)

    def one_of(self, choices: Sequence[T]) -> T:
        """Draw one of several.

        Raises:
            NoPlace: there is none.
        """
        if not choices:
            raise NoPlace
        return choices[int(self.draw.integers(len(choices)))]

    def place(self, fits: Callable[[Place], bool] = lambda _: True) -> Place:
        """Draw a value inside the model that fits."""
        return self.one_of([place for place in self.source.places if fits(place)])

    def editor(self, place: Place) -> Editor:
        """Return an editor that puts nodes behind a value."""
        return Editor(self.model, place.value)


Builder = Callable[[Plot], Plant]
"""Plants a fault into the model of a plot."""

Damage = Callable[[onnx.ModelProto, Plant, Plot], tuple[str, ...]]
"""Does the damage that only the low model has, in place, and returns the names of its guilty nodes."""


def power_of_two(value: float) -> float:
    """Return the largest power of two that is at most a value, and that float16 holds."""
    return 2.0 ** min(math.floor(math.log2(value)), 15)
