"""Gradients of Einsum: an Einsum with the operand and the result exchanged."""

from __future__ import annotations

import string
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.registry import gradient
from amp_transpiler.graph.builder import rank_of


@gradient("Einsum")
def einsum(n: NodeGradient) -> list[ir.Value | None]:
    """For each operand, the product of `g` and the other operands, in the axes of that operand."""
    terms, result = _parse(n)
    return [_operand(n, index, terms, result) if n.wants(index) else None for index in range(len(terms))]


def _parse(n: NodeGradient) -> tuple[list[str], str]:
    """The equation as one string of letters an operand and one for the result; the ellipsis becomes letters too."""
    equation = str(n.attribute("equation")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    letters = [letter for letter in left if letter.isalpha()]
    if not arrow:
        right = "..." * ("..." in left) + "".join(sorted({c for c in letters if letters.count(c) == 1}))
    free = [c for c in string.ascii_letters if c not in letters and c not in right]
    hidden = [rank_of(n.input(i)) - len(term.replace("...", "")) for i, term in enumerate(terms)]
    widest = max([count for term, count in zip(terms, hidden, strict=True) if "..." in term], default=0)
    if widest > len(free):
        raise n.error(f"the equation '{equation}' leaves no letters for its ellipsis of {widest} axes")
    dots = "".join(free[:widest])
    written = [
        term.replace("...", dots[widest - count :]) for term, count in zip(terms, hidden, strict=True)
    ]  # the ellipses are aligned at their last axes, as in broadcasting
    return written, right.replace("...", dots)


def _operand(n: NodeGradient, index: int, terms: list[str], result: str) -> ir.Value:
    operand, own = n.input(index), terms[index]
    factors = [(term, n.input(i)) for i, term in enumerate(terms) if i != index]
    letters = _diagonals(n, operand, own, factors)
    reached = {*result, *(letter for term, _ in factors for letter in term)}
    target = "".join(letter for letter in letters if letter in reached)
    found = _product(n, [(result, n.g), *factors], target)
    found = n.b.unsqueeze(found, [axis for axis, letter in enumerate(letters) if letter not in reached])
    if _narrower(found, operand):
        # Axes that were summed with nothing to multiply: every element has the same gradient.
        found = n.b.op("Expand", [found, n.b.shape(operand)])
    return found


def _diagonals(n: NodeGradient, operand: ir.Value, own: str, factors: list[tuple[str, ir.Value]]) -> str:
    """Make the letters of an operand distinct: one that repeats becomes another, tied to it by an identity matrix."""
    used = {*own, *(letter for term, _ in factors for letter in term), *str(n.attribute("equation"))}
    free = iter([letter for letter in string.ascii_letters if letter not in used])
    letters = ""
    for axis, letter in enumerate(own):
        if letter in letters:
            size = operand.shape[axis] if operand.shape is not None else None
            fresh = next(free, None)
            if not isinstance(size, int) or fresh is None:
                raise n.error(f"the axis '{letter}' repeats in '{own}' ('{operand.name}'): its size must be known")
            factors.append((letter + fresh, n.b.constant(np.eye(size), operand.dtype)))
            letters += fresh
        else:
            letters += letter
    return letters


def _product(n: NodeGradient, factors: list[tuple[str, ir.Value]], target: str) -> ir.Value:
    """The Einsum of the factors to `target`; scalars are multiplied in, since Einsum may not take them."""
    scalars = [value for term, value in factors if not term]
    others = [(term, value) for term, value in factors if term]
    if not others:
        found, *scalars = scalars
    elif len(others) == 1 and others[0][0] == target:
        found = others[0][1]
    else:
        found = n.b.op("Einsum", _values(others), {"equation": f"{','.join(term for term, _ in others)}->{target}"})
    for scalar in scalars:
        found = n.b.mul(found, scalar)
    return found


def _values(factors: Iterable[tuple[str, ir.Value]]) -> list[ir.Value]:
    return [value for _, value in factors]


def _narrower(found: ir.Value, operand: ir.Value) -> bool:
    """Whether some axis of `found` has size 1 where that of the operand may not have."""
    if found.shape is None or operand.shape is None:
        return True
    return any(have == 1 and want != 1 for have, want in zip(found.shape, operand.shape, strict=True))
