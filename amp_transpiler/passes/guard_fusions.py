"""Protection from a fusion of ONNX Runtime that has no kernel."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.match import Binding
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.rewrite import Rewrite, rewrite

__all__ = ["GuardFusions"]

logger = logging.getLogger(__name__)

_MIXED = {ir.DataType.BFLOAT16, ir.DataType.FLOAT}


def _is_mixed(square: Binding) -> bool:
    value = square["value"]
    cast = value.producer()
    origin = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else value
    return any(origin is not None and {origin.dtype, scale} == _MIXED for scale in _scales(value))


def _scales(value: ir.Value) -> Iterator[ir.DataType]:
    """Yield the types of the constants that the normalised `value` is multiplied by in the end."""
    for use in value.uses():
        if use.node.op_type not in ("Mul", "Div"):
            continue
        for reader in _past_casts(use.node.outputs[0]):
            if reader.op_type == "Mul":
                constants = (constant_of(operand) for operand in reader.inputs)
                yield from (tensor.dtype for tensor in constants if tensor is not None)


def _past_casts(value: ir.Value) -> Iterator[ir.Node]:
    for use in value.uses():
        if use.node.op_type == "Cast":
            yield from _past_casts(use.node.outputs[0])
        else:
            yield use.node


_EVERY = Rewrite("Pow(value, 2)", "Mul(value, value)")
_MIXED_ONES = dataclasses.replace(_EVERY, applies=_is_mixed)


class GuardFusions(Pass[PassResult]):
    """Writes `x ** 2` as `x * x` in a normalisation of mixed types; counts the squares.

    ONNX Runtime 1.31 turns Pow, ReduceMean, Add, Sqrt, Div, Mul and Mul into one SimplifiedLayerNormalization and
    absorbs casts in front of it and before the last Mul. With bfloat16 on one side and float32 on the other, input
    against scale, CUDA has no such kernel and the session is refused. A square written as a product is not recognised,
    so nothing is fused and everything runs.

    Args:
        every: write every square as a product. ONNX Runtime up to 1.23 makes a LayerNormalization of a written-out one
            whose ends are bfloat16, and of that and the Add before it a SkipLayerNormalization, which it does not have
            in bfloat16: the session is refused. For WebGPU, ONNX Runtime 1.30 absorbs casts on both sides, too, and
            refuses the LayerNormalization of two types that it has made.
        kind: of the kernel that is missing, for the log.
    """

    def __init__(self, *, every: bool = False, kind: str = "bfloat16") -> None:
        self._row, self._kind = _EVERY if every else _MIXED_ONES, kind

    def call(self, model: ir.Model) -> PassResult:
        if squares := rewrite(model, (self._row,)):
            logger.info("%d squares written as products, since their fusion has no %s kernel", squares, self._kind)
        return PassResult(model, modified=bool(squares), count=squares)
