"""Chooses the options of a result's sessions: those that its price is lower with."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.policy import Policy
from amp_transpiler.runtime.recommended_options import NO_OPTIONS, RecommendedOptions
from amp_transpiler.targets.cuda import CUDA

__all__ = ["recommended_options"]

LEAST_GAIN = 0.01  # of the time that the device computes
_READERS = frozenset({"Add", "Div", "Erf", "FastGelu", "Gelu", "LayerNormalization", "Mul", "Pow"})


def recommended_options(model: ir.Model, policy: Policy) -> RecommendedOptions:
    """Return the options that sessions of a result should have, on the target's provider and the policy's device.

    Args:
        model: the result, typed.
        policy: has the target, the device and the sizes of open dimensions.
    """
    if policy.target.name != CUDA.name or not _may_lose_biases(model):
        return NO_OPTIONS
    from amp_transpiler.cost import find_device, predicted, traffic  # of models with such biases only

    device = find_device(policy.device)
    with_it, without = (
        predicted(traffic(model, policy.dims, fuse=True, written=True, spreads_biases=spreads), device)
        for spreads in (True, False)
    )
    pays = without.busy_milliseconds < (1 - LEAST_GAIN) * with_it.busy_milliseconds
    return RecommendedOptions(("MatMulAddFusion",) if pays else ())


def _may_lose_biases(model: ir.Model) -> bool:
    """Whether a bias of a product is read by what may be part of a GELU or a normalisation."""
    return any(_reads_biased_product(node) for node in model.graph if node.op_type == "Add" and is_standard(node))


def _reads_biased_product(bias: ir.Node) -> bool:
    makers = [value.producer() for value in bias.inputs if value is not None]
    is_biased = any(maker is not None and maker.op_type == "MatMul" for maker in makers)
    if not is_biased or not any(value is not None and constant_of(value) is not None for value in bias.inputs):
        return False
    return any(use.node.op_type in _READERS for use in bias.outputs[0].uses())
