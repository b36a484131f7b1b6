"""All questions, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Callable

from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16, FLOAT32, LowFormat
from amp_transpiler.runtime.probe.attention import attention
from amp_transpiler.runtime.probe.elementwise import binary, casts, tails, unary
from amp_transpiler.runtime.probe.norms import norms, softmaxes, written_out
from amp_transpiler.runtime.probe.products import convolutions, products
from amp_transpiler.runtime.probe.question import Questions
from amp_transpiler.runtime.probe.recurrent import recurrent
from amp_transpiler.runtime.probe.reductions import reductions

__all__ = ["FORMATS", "GROUPS", "questions"]

FORMATS = (FLOAT16, BFLOAT16, FLOAT32)

GROUPS: tuple[Callable[[LowFormat], Questions], ...] = (
    unary,
    tails,
    binary,
    casts,
    reductions,
    products,
    convolutions,
    norms,
    softmaxes,
    written_out,
    recurrent,
    attention,
)
"""Attention comes last: should a kernel of it fail for a wrong address, nothing runs in that process any more."""


def questions(formats: tuple[LowFormat, ...] = FORMATS) -> Questions:
    """Yield every question in every format."""
    for group in GROUPS:
        for low in formats:
            yield from group(low)
