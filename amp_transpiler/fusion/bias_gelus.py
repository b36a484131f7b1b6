"""Fuses the addition of a vector before GELU to ONNX Runtime's BiasGelu, or FastGelu with a bias."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import onnx_ir as ir

from amp_transpiler.fusion.biases import biased
from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.removal import Removal

__all__ = ["FuseBiasGelus"]

logger = logging.getLogger(__name__)

_CONTRIB = "com.microsoft"


class FuseBiasGelus(Pass[PassResult]):
    """Gives GELU the vector that was added before it, which nothing else reads with it; counts them.

    The vector may be the bias of a Gemm, whose kernel would write it over the whole result before it multiplies.
    It looks at float32 in the main graph.

    Args:
        operators: which of BiasGelu, by the error function, and FastGelu, by the hyperbolic tangent, may be written.
        restrictions: which nodes may become one.
        sizes_of: returns the sizes of a graph; they stay up to date.
    """

    def __init__(
        self, operators: Collection[str], restrictions: Restrictions, sizes_of: Callable[[ir.Graph], Sizes]
    ) -> None:
        self._operators = frozenset(operators)
        self._restrictions = restrictions
        self._sizes_of = sizes_of

    def call(self, model: ir.Model) -> PassResult:
        gelus = [node for node in model.graph if _fused(node) in self._operators]
        if not gelus:
            return PassResult(model, modified=False)
        sizes, count = self._sizes_of(model.graph), 0
        with Removal() as removal:
            for node in gelus:
                count += self._take_bias(node, sizes, removal)
        if count:
            model.graph.opset_imports.setdefault(_CONTRIB, 1)
            logger.info("%d biases fused with the GELU behind them", count)
        return PassResult(model, modified=bool(count), count=count)

    def _take_bias(self, gelu: ir.Node, sizes: Sizes, removal: Removal) -> bool:
        value, fused = gelu.inputs[0], _fused(gelu)
        bias = None if value is None else biased(value, sizes, gemms=True)
        if bias is None or not self._restrictions.allow(fused, gelu, (gelu, bias.node)):
            return False
        gelu.op_type, gelu.domain = fused, _CONTRIB
        gelu.attributes.clear()
        gelu.resize_inputs(2)
        gelu.replace_input_with(0, bias.rest)
        gelu.replace_input_with(1, bias.vector)
        bias.drop(removal)
        return True


def _fused(node: ir.Node) -> str:
    """Return the operator that a GELU without a bias becomes with one; empty for any other node."""
    if len(node.inputs) != 1 or node.inputs[0] is None or node.inputs[0].dtype != ir.DataType.FLOAT:
        return ""
    if is_standard(node) and node.op_type == "Gelu":
        return "FastGelu" if node.attributes.get_string("approximate", "none") == "tanh" else "BiasGelu"
    if node.domain == _CONTRIB:
        return {"Gelu": "BiasGelu", "FastGelu": "FastGelu"}.get(node.op_type, "")
    return ""
