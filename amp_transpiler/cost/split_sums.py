"""Says whether a product in parts is cheaper in the low format than whole in float32, for GPUs without a price list.

Which GPU it is nobody knows: a browser runs on any. So the rule counts what every GPU has to do: bytes that are moved,
multiplications, and kernels that are started, each as so many bytes. A multiplication in the low format counts half of
one in float32. A product in parts reads half the bytes of operands; in return it casts, rearranges, writes a result a
part, and adds these up.
"""

from __future__ import annotations

import dataclasses

__all__ = ["ProductSizes", "cost_in_parts", "cost_whole", "is_cheaper_in_parts"]

_HIGH, _LOW = 4, 2  # bytes
_BYTES_OF_PRODUCT = 1 / 8  # that take as long as a float32 multiplication and addition
_BYTES_OF_KERNEL = 1 << 16  # that take as long as starting a kernel


@dataclasses.dataclass(frozen=True, slots=True)
class ProductSizes:
    """The sizes of a product, in elements.

    Attributes:
        data: of the operand that is computed.
        weight: of the constant one.
        result: of the result.
        terms: that are added up for an element of the result.
        batched: whether its parts are one product with one more axis; else each is a node of its own.
    """

    data: int
    weight: int
    result: int
    terms: int
    batched: bool


def cost_whole(sizes: ProductSizes) -> float:
    """Return what a product costs in float32, in bytes."""
    moved = _HIGH * (sizes.data + sizes.weight + sizes.result)
    return moved + _BYTES_OF_PRODUCT * sizes.result * sizes.terms + _BYTES_OF_KERNEL


def cost_in_parts(sizes: ProductSizes, parts: int) -> float:
    """Return what a product costs in parts, in bytes: from a float32 operand to a float32 result.

    Args:
        sizes: those of the product.
        parts: how many there are.
    """
    results = parts * sizes.result
    cast_in = (_HIGH + _LOW) * sizes.data
    rearranged = 2 * _LOW * sizes.data
    products = _LOW * (sizes.data + sizes.weight + results)
    cast_out = (_LOW + _HIGH) * results
    if sizes.batched:
        added, kernels = _HIGH * (results + sizes.result), 5  # two casts, a transposition, the product, the sum
    else:
        added, kernels = 3 * _HIGH * (results - sizes.result), 4 * parts  # slices, products, casts and sums
    arithmetic = _BYTES_OF_PRODUCT / 2 * sizes.result * sizes.terms
    return cast_in + rearranged + products + cast_out + added + arithmetic + _BYTES_OF_KERNEL * kernels


def is_cheaper_in_parts(sizes: ProductSizes, parts: int) -> bool:
    """Whether a product costs less in parts."""
    return cost_in_parts(sizes, parts) < cost_whole(sizes)
