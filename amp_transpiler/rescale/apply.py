"""Carries scalings out on a copy of a program."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.passes.insert_products import AddedProduct, InsertProducts
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.scale_constants import ScaleConstants, ScaledAttribute, ScaledConstant
from amp_transpiler.program.program import Program
from amp_transpiler.rescale.places import Place, epsilon_of, key_of_product, places_of
from amp_transpiler.rescale.system import cuts_of, is_border_slot, is_made_at_border

__all__ = ["scaled_copy"]


def scaled_copy(program: Program, exponents: Mapping[str, int]) -> Program | None:
    """Return a copy of a program with constants multiplied by powers of two; None if it has not all of them.

    Args:
        program: a prepared program; not changed.
        exponents: key of a place, or of a product that is to be added -> the exponent of its power.
    """
    copy = program.clone()
    places = {place.key: place for place in places_of(copy.model)}
    cuts = {key_of_product(value): value for value in cuts_of(copy.model)} if exponents.keys() - places.keys() else {}
    if not exponents.keys() <= places.keys() | cuts.keys():
        return None
    scaled = [_scaled(places[key], exponent) for key, exponent in exponents.items() if key in places]
    added = [_product(cuts[key], exponent) for key, exponent in exponents.items() if key not in places]
    run_pass(ScaleConstants(scaled), copy.model)
    run_pass(InsertProducts(added), copy.model)
    copy.source = None  # the file holds other constants
    return copy


def _scaled(place: Place, exponent: int) -> ScaledConstant | ScaledAttribute:
    if place.value is not None:
        return ScaledConstant(place.value, exponent, place.node)
    assert place.node is not None, "an attribute has a node"
    return ScaledAttribute(place.node, place.attribute, epsilon_of(place), exponent)


def _product(value: ir.Value, exponent: int) -> AddedProduct:
    """Return the product that takes a scale on behind a border, or off in front of one."""
    at_border = is_made_at_border(value)
    uses = tuple((user, index) for user, index in value.uses() if is_border_slot(user, ("x", index)) is not at_border)
    if at_border:
        return AddedProduct(value, exponent, uses)
    return AddedProduct(value, -exponent, uses, is_output=value.is_graph_output())
