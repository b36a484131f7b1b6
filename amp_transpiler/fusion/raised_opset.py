"""Brings a program to the opset that has Attention as an operator, where that makes it faster."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.fusion.standard_attention import FIRST_OPSET, count_for_operator
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.passes.raise_opset import RaiseOpset
from amp_transpiler.passes.set_ir_version import SetIrVersion
from amp_transpiler.precision.constraints import Constraints
from amp_transpiler.precision.opset_choice import OpsetChoice, opset_without_loss
from amp_transpiler.precision.policy import Policy
from amp_transpiler.program.program import Program

__all__ = ["raise_opset_for_attention"]


def raise_opset_for_attention(program: Program, policy: Policy, restrictions: Restrictions) -> None:
    """Raise the opset of a prepared program in place if it has attentions that are faster as ONNX's operator.

    It stays where the user named an opset, where the release does not read the newer one, and where a node would lose
    its kernel.

    Args:
        program: a typed program in plain form.
        policy: names target and opset, and has the sizes of open dimensions.
        restrictions: which nodes may become one.
    """
    model, target = program.model, policy.target
    if policy.opset is not None or not opset_of(model, "") < FIRST_OPSET <= target.newest_opset:
        return
    count = 0 if policy.low is FLOAT32 else count_for_operator(model.graph, restrictions, policy.dims)
    if not count:
        return
    reason = "1 attention is one operator there" if count == 1 else f"{count} attentions are one operator each there"

    def choose(model: ir.Model) -> OpsetChoice:
        constraints = Constraints(
            model, target, policy.low, training=policy.training, float32_inputs=policy.float32_inputs
        )
        return opset_without_loss(model, constraints, FIRST_OPSET, reason)

    raised = PassManager([RaiseOpset(choose), SetIrVersion(newest=target.newest_ir)])(model)
    if raised.modified:
        program.notes += raised.notes
        program.touch()
