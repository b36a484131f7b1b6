"""Gradients of Einsum: an Einsum with the operand and the result exchanged."""

from __future__ import annotations

import string
from functools import partial

import numpy as np

from amp_transpiler.autodiff.context import NotDifferentiable, SizesUnknown
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.registry import Gradients, gradient


@gradient("Einsum")
def einsum(g: Expr, *operands: Expr, equation: str) -> Gradients:
    """For each operand, the product of `g` and the other operands, in the axes of that operand."""
    terms, result = _parse(equation.replace(" ", ""), [operand.rank for operand in operands])

    def to_operand(index: int) -> Expr:
        factors = [(term, operand) for term, operand in zip(terms, operands, strict=True)]
        own_term, operand = factors.pop(index)
        letters = _diagonals(operand, own_term, factors, equation)
        reached = {*result, *(letter for term, _ in factors for letter in term)}
        target = "".join(letter for letter in letters if letter in reached)
        gradient = _product([(result, g), *factors], target)
        gradient = gradient.unsqueeze(*[axis for axis, letter in enumerate(letters) if letter not in reached])
        # Axes that were summed with nothing to multiply: every element has the same gradient.
        return gradient.op("Expand", operand.shape_tensor()) if _narrower(gradient, operand) else gradient

    return [partial(to_operand, index) for index in range(len(terms))]


def _parse(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return a string of letters for each operand, and one for the result; ellipses become letters too."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    letters = [letter for letter in left if letter.isalpha()]
    if not arrow:
        right = "..." * ("..." in left) + "".join(sorted({c for c in letters if letters.count(c) == 1}))
    free = [c for c in string.ascii_letters if c not in letters and c not in right]
    hidden = [rank - len(term.replace("...", "")) for rank, term in zip(ranks, terms, strict=True)]
    widest = max([count for term, count in zip(terms, hidden, strict=True) if "..." in term], default=0)
    if widest > len(free):
        raise NotDifferentiable(f"the equation '{equation}' leaves no letters for its ellipsis of {widest} axes")
    dots = "".join(free[:widest])
    # Ellipses are aligned at their last axes, as in broadcasting.
    written = [term.replace("...", dots[widest - count :]) for term, count in zip(terms, hidden, strict=True)]
    return written, right.replace("...", dots)


def _diagonals(operand: Expr, own_term: str, factors: list[tuple[str, Expr]], equation: str) -> str:
    """Make the letters of an operand distinct: one that repeats becomes another, tied to it by an identity matrix."""
    used = {*own_term, *(letter for term, _ in factors for letter in term), *equation}
    free = iter([letter for letter in string.ascii_letters if letter not in used])
    letters = ""
    for axis, letter in enumerate(own_term):
        if letter in letters:
            size, fresh = operand.size(axis), next(free, None)
            if size is None or fresh is None:
                raise SizesUnknown(
                    f"the axis '{letter}' repeats in '{own_term}' ('{operand.name}'): its size must be known"
                )
            factors.append((letter + fresh, operand.constant(np.eye(size), operand.dtype)))
            letters += fresh
        else:
            letters += letter
    return letters


def _product(factors: list[tuple[str, Expr]], target: str) -> Expr:
    """The Einsum of the factors to `target`; scalars are multiplied in, since Einsum may not take them."""
    scalars = [value for term, value in factors if not term]
    others = [(term, value) for term, value in factors if term]
    if not others:
        product, *scalars = scalars
    elif len(others) == 1 and others[0][0] == target:
        product = others[0][1]
    else:
        first, *rest = [value for _, value in others]
        product = first.op("Einsum", *rest, equation=f"{','.join(term for term, _ in others)}->{target}")
    for scalar in scalars:
        product *= scalar
    return product


def _narrower(gradient: Expr, operand: Expr) -> bool:
    """Whether some axis of a gradient has size 1 where that of the operand may be larger."""
    if gradient.shape is None or operand.shape is None:
        return True
    return any(have == 1 and want != 1 for have, want in zip(gradient.shape, operand.shape, strict=True))
