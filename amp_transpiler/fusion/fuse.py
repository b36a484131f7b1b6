"""Runs the fusions that a user wants, as far as the target has their operators."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
from collections.abc import Collection, Mapping

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from amp_transpiler.errors import OptionError
from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.ops.fusions import FUSIONS, NEEDS_KEY, Fusion, fusions_of, may_fuse, only_in_onnxruntime
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassFor, PassResult, run_pass
from amp_transpiler.precision.device_faults import faulty_operators
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.training import holds_gradients
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.program.program import Program
from amp_transpiler.targets import Target
from amp_transpiler.targets.cpu import CPU
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.kernel_table import is_within

__all__ = ["Fuse", "Fused", "check_fusions", "fuse", "reason_against_fusions"]

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Fused:
    """Says what was fused.

    Attributes:
        operators: each with how many of them there are more than before.
        missing: names of fusions that were not done, since the target lacks an operator or computes it wrongly.
        torn: name of a fusion -> how often it was not done, since a region holds only some of its nodes.
        named: name of a fusion -> how often it was not done, since the user's lists name some of its nodes.
        names: the operators and values that they name.
        slower: names of fusions that were undone, since the program is predicted to be faster without.
        reason: why nothing was done; empty where something might have been.
    """

    operators: dict[str, int] = dataclasses.field(default_factory=dict)
    missing: tuple[str, ...] = ()
    torn: dict[str, int] = dataclasses.field(default_factory=dict)
    named: dict[str, int] = dataclasses.field(default_factory=dict)
    names: tuple[str, ...] = ()
    slower: tuple[str, ...] = ()
    reason: str = ""


def check_fusions(choice: str, policy: Policy) -> None:
    """Raise OptionError if a result would not run where it is wanted, or if nothing is to be changed.

    Args:
        choice: the option, as in `ops.fusions.fusions_of`.
        policy: how to decide.
    """
    fusions = fusions_of(choice)
    if not fusions:
        return
    if policy.copies:
        raise OptionError("fuse has no meaning where nothing is changed: drop it, or choose another level or preset")
    if policy.target.provider is None and any(fusion.kind == "contrib" for fusion in fusions):
        raise OptionError(
            f"fuse: contrib operators are those of ONNX Runtime's own kernels, which target {policy.target.name} may "
            "not have: choose standard, or target cuda or cpu"
        )


def reason_against_fusions(program: Program) -> str:
    """Return why a program is left as it is; empty if nothing speaks against it."""
    if program.is_training or program.has_variables or program.merged is not None or holds_gradients(program.model):
        return "it is a training program, whose backward pass reads what would be fused"
    return ""


def fuse(program: Program, choice: str, policy: Policy) -> Fused:
    """Fuse a prepared program, in place, as an option says; its metadata name the operators that not all tools have.

    Args:
        program: a typed program in plain form; float32 where it is low later.
        choice: the option, as in `ops.fusions.fusions_of`.
        policy: names target, release, format and device, and has the user's lists.
    """
    opset = opset_of(program.model, "")
    if not may_fuse(choice, opset, _operator_types(program.model)):  # cheaper than the next question
        return Fused()
    if reason := reason_against_fusions(program):
        return Fused(reason=reason)
    faulty = faulty_operators(policy.target, policy.low, policy.device)
    if _may_raise_opset(choice, policy, faulty):
        from amp_transpiler.fusion.raised_opset import raise_opset_for_attention

        raise_opset_for_attention(program, policy, Restrictions((), policy.rules.lists))
        opset = opset_of(program.model, "")
    wanted = [fusion for fusion in fusions_of(choice) if fusion.opset <= opset and _concerns(policy.target, fusion)]
    missing = [fusion.name for fusion in wanted if not _is_sound(fusion, policy, faulty)]
    names = [fusion.name for fusion in wanted]
    restrictions = Restrictions(missing, policy.rules.lists)
    before, operators = _counted(program.model), {}
    if run_pass(Fuse(names, restrictions, policy.dims), program.model).modified:
        program.touch()
        operators = dict(sorted((_counted(program.model) - before).items()))
        if needed := only_in_onnxruntime(operators):
            program.model.metadata_props[NEEDS_KEY] = ", ".join(needed)
    logger.info("fused: %s", operators)
    refusals = restrictions.refusals
    return Fused(
        operators,
        missing=tuple(name for name in names if name in refusals.missing),
        torn={name: len(refusals.torn[name]) for name in names if name in refusals.torn},
        named={name: len(refusals.named[name]) for name in names if name in refusals.named},
        names=tuple(sorted(refusals.names)),
    )


class Fuse(Pass[PassResult]):
    """Does some fusions, one pass after the other, and removes what nobody reads any more; counts what is fused.

    It is one pass, since typing and verifying a model takes longer than fusing it.

    Args:
        names: the fusions, as in `ops/fusions.py`.
        restrictions: which nodes may become one; None for those of a program about which only regions say something.
        dims: name of an open dimension -> its size in the runs that count.
    """

    def __init__(
        self,
        names: Collection[str],
        restrictions: Restrictions | None = None,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        self._names, self._dims = frozenset(names), dims
        self._restrictions = restrictions or Restrictions((), UserLists())

    def call(self, model: ir.Model) -> PassResult:
        count, types = 0, _operator_types(model)
        for pass_ in self._passes():
            if types.isdisjoint(pass_.operators):
                continue
            result = pass_.make()(model)
            if result.modified:
                count += result.count
                RemoveUnusedNodesPass()(model)
                types = _operator_types(model)
        return PassResult(model, modified=bool(count), count=count)

    def _passes(self) -> list[PassFor]:
        """Return the passes in their order. Attention comes first: it reads products with their biases."""
        from amp_transpiler.fusion.attention_products import FuseAttentionProducts
        from amp_transpiler.fusion.bias_gelus import FuseBiasGelus
        from amp_transpiler.fusion.fuse_attention import FuseAttention
        from amp_transpiler.fusion.norms_and_gelus import FuseWrittenOut
        from amp_transpiler.fusion.skip_norms import FuseSkipNorms
        from amp_transpiler.fusion.standard_attention import FuseStandardAttention

        names, restrictions = self._names, self._restrictions
        sizes_of = functools.cache(Sizes)  # to work them out takes longer than to fuse
        attention = PassFor(_ATTENTIONS, lambda: FuseAttention(restrictions))
        standard = PassFor(_ATTENTIONS, lambda: FuseStandardAttention(restrictions, self._dims))
        products = PassFor(_SOFTMAXES, lambda: FuseAttentionProducts(restrictions))
        return [
            *([attention] if "Attention" in names else ()),
            *([standard] if "ai.onnx::Attention" in names else ()),
            *([products] if "FusedMatMul" in names else ()),
            PassFor(_WRITTEN_OUT, lambda: FuseWrittenOut(names, restrictions, sizes_of)),
            PassFor(_NORMS, lambda: FuseSkipNorms(names, sizes_of, gemms=True, restrictions=restrictions)),
            PassFor(_GELUS, lambda: FuseBiasGelus(names, restrictions, sizes_of)),
        ]


def _may_raise_opset(choice: str, policy: Policy, faulty: Collection[str]) -> bool:
    """Whether a newer opset may be wanted: of a fusion that nothing else of the choice does in its place."""
    fusions = {fusion.name: fusion for fusion in fusions_of(choice)}
    raising = [fusion for fusion in fusions.values() if fusion.raises_opset and _is_sound(fusion, policy, faulty)]
    return bool(raising) and "Attention" not in fusions and policy.target.has_prices


def _concerns(target: Target, fusion: Fusion) -> bool:
    """Whether a fusion may be done for a target: one that counts on kernels, where these are known to do it."""
    return not fusion.first_release or target.name in (CUDA.name, CPU.name)


def _is_sound(fusion: Fusion, policy: Policy, faulty: Collection[str]) -> bool:
    """Whether the target has the operators that a fusion writes, and computes them rightly."""
    if fusion.kind == "standard" and not fusion.first_release:
        return True  # an operator without a kernel is written out by its definition
    if not _concerns(policy.target, fusion) or not is_within(policy.target.ort, fusion.first_release, None):
        return False
    kernels = policy.target.release.kernels(policy.target.name)
    for operator in fusion.operators:
        domain, _, op_type = operator.rpartition("::")  # of ONNX's own it is empty
        if operator in faulty or not kernels.mentions(domain, op_type, f"tensor({policy.low.name})"):
            return False
    return True


_OPERATORS = frozenset(operator for fusion in FUSIONS for operator in fusion.operators)


_TYPES = frozenset(operator.rpartition("::")[2] for operator in _OPERATORS)

# Operators without which a pass has nothing to do.
_ATTENTIONS = frozenset({"Softmax", "Attention"})
_SOFTMAXES = frozenset({"Softmax"})
_WRITTEN_OUT = frozenset({"Sqrt", "Erf", "Tanh"})
_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_GELUS = frozenset({"Gelu", "FastGelu"})


def _operator_types(model: ir.Model) -> set[str]:
    return {node.op_type for node in model.graph}


def _counted(model: ir.Model) -> collections.Counter[str]:
    """Count the operators that fusions write; ONNX's Attention with an axis of heads is none of those."""
    nodes = [node for node in model.graph if node.op_type in _TYPES]
    written = (node for node in nodes if node.op_type != "Attention" or node.domain or "q_num_heads" in node.attributes)
    return collections.Counter(name for node in written if (name := operator_name(node)) in _OPERATORS)
