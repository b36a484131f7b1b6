"""Root mean square normalisation, spelled as ONNX Runtime recognises it."""

from __future__ import annotations

import logging

import onnx_ir as ir

from amp_transpiler.graph.match import Binding
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.rewrite import Rewrite, rewrite

__all__ = ["SpellNorms"]

logger = logging.getLogger(__name__)


def _normalises(norm: Binding) -> bool:
    """Whether what is squared is multiplied by the reciprocal, perhaps cast."""
    origin = _past_cast(norm["squared"])
    return any(
        use.node.op_type == "Mul" and any(_past_cast(value) is origin for value in use.node.inputs)
        for use in norm.last.outputs[0].uses()
    )


def _past_cast(value: ir.Value | None) -> ir.Value | None:
    maker = None if value is None else value.producer()
    return maker.inputs[0] if maker is not None and maker.op_type == "Cast" and is_standard(maker) else value


_ROWS = (
    Rewrite("Reciprocal(root:Sqrt(Add(ReduceMean(Pow(squared, 2)), epsilon)))", "Div(1, root)", applies=_normalises),
)


class SpellNorms(Pass[PassResult]):
    """Writes the reciprocal in a root mean square normalisation as a division of one; counts them.

    `x * Reciprocal(Sqrt(ReduceMean(x ** 2) + epsilon))` is what torch's exporter writes. ONNX Runtime makes one
    operator of it, and of the casts around it, only if it reads `x * (1 / Sqrt(...))`, which gives the same numbers.
    """

    def call(self, model: ir.Model) -> PassResult:
        if norms := rewrite(model, _ROWS):
            logger.info("%d reciprocals of normalisations written as divisions, so that they are fused", norms)
        return PassResult(model, modified=bool(norms), count=norms)
