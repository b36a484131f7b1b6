"""Carries scalings out on a copy of a program."""

from __future__ import annotations

from collections.abc import Mapping

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.scale_constants import ScaleConstants, ScaledAttribute, ScaledConstant
from amp_transpiler.program.program import Program
from amp_transpiler.rescale.places import Place, epsilon_of, places_of

__all__ = ["scaled_copy"]


def scaled_copy(program: Program, exponents: Mapping[str, int]) -> Program | None:
    """Return a copy of a program with constants multiplied by powers of two; None if it has not all of them.

    Args:
        program: a prepared program; not changed.
        exponents: key of a place -> the exponent of its power.
    """
    copy = program.clone()
    by_key = {place.key: place for place in places_of(copy.model)}
    if not exponents.keys() <= by_key.keys():
        return None
    scaled = [_scaled(by_key[key], exponent) for key, exponent in exponents.items()]
    run_pass(ScaleConstants(scaled), copy.model)
    copy.source = None  # the file holds other constants
    return copy


def _scaled(place: Place, exponent: int) -> ScaledConstant | ScaledAttribute:
    if place.value is not None:
        return ScaledConstant(place.value, exponent, place.node)
    assert place.node is not None, "an attribute has a node"
    return ScaledAttribute(place.node, place.attribute, epsilon_of(place), exponent)
