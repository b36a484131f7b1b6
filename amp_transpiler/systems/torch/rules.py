"""PyTorch's autocast on CUDA: four classes of operators, and torch's own type promotion for the rest."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.constness import constant_tensor
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.regions import FUNCTION_KEY, is_kept
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.rules import Rules, State, completes_linear, listed
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.systems.torch.classes import TORCH_CLASSES, TorchClass

__all__ = ["BANNED", "TorchRules"]

BANNED = frozenset({"binary_cross_entropy"})
"""Functions of torch.nn.functional that torch refuses to run under autocast."""

# The inputs that set the type of the result, where not all do. Parameters of a normalisation may be wider than data.
# A quantization scale takes no part. `arange` returns float32 for bounds of any type.
_DECIDING_INPUTS: dict[str, frozenset[int]] = {
    "BatchNormalization": frozenset({0}),
    "InstanceNormalization": frozenset({0}),
    "QuantizeLinear": frozenset({0}),
    "Range": frozenset(),
    "com.microsoft::Range": frozenset(),
}


_CODES = {
    TorchClass.LOWER_PRECISION_FP: "torch-low",
    TorchClass.FP32: "torch-float32",
    TorchClass.PROMOTE: "torch-widest",
    TorchClass.FALL_THROUGH: "torch-falls-through",
}


@dataclasses.dataclass(frozen=True, eq=False)
class TorchRules(Rules):
    """The rules of `torch.autocast("cuda")`.

    Args:
        low: the low format. The classes are the same for both.
        lists: the user's own lists, which win over torch's classes.
    """

    low: LowFormat
    lists: UserLists

    def begin(self, model: ir.Model, *, guarded: bool = False) -> TorchRules:
        """Refuse, as torch does, a binary cross entropy of probabilities that autocast would decide about.

        Raises:
            OptionError: the program has one.
        """
        for node in all_nodes(model):
            function = node.metadata_props.get(FUNCTION_KEY)
            if function in BANNED and not is_kept(node, guarded=guarded):
                raise OptionError(
                    f"node '{node.name}' ({operator_name(node)}): nn.functional.{function} is unsafe to autocast; use "
                    f"{function}_with_logits on the scores before the sigmoid, or build it inside disable_amp() on "
                    "inputs cast to float32"
                )
        return self

    def can_lower(self, node: ir.Node) -> bool:
        """Whether the operator is off torch's float32 list."""
        kind, _ = TORCH_CLASSES.get(operator_name(node), (TorchClass.FALL_THROUGH, ""))
        return super().can_lower(node) and kind is not TorchClass.FP32

    def decide(self, node: ir.Node, form: LowForm, state: State) -> Decision:
        """Decide by the user's lists, then by torch's class."""
        if (by_list := listed(node, form, self.lists)) is not None:
            return by_list
        key = operator_name(node)
        if completes_linear(node, state):
            return Decision("low", Reason("torch-bias"), form)
        known = TORCH_CLASSES.get(key)
        if known is None:
            return _fall_through(node, form, state, Reason("torch-unknown", {"operator": key}))
        kind, name = known
        why = Reason(_CODES[kind], {"function": name})
        if kind is TorchClass.LOWER_PRECISION_FP:
            return Decision("low", why, form)
        if kind is TorchClass.FP32:
            return Decision("high", why)
        if kind is TorchClass.PROMOTE:
            return _promoted(node, form, form.inputs, state, why)
        return _fall_through(node, form, state, why)


def _fall_through(node: ir.Node, form: LowForm, state: State, why: Reason) -> Decision:
    """Decide by torch's own promotion: tensors with dimensions count before 0-dim tensors, those before numbers."""
    deciding = form.inputs & _DECIDING_INPUTS.get(operator_name(node), form.inputs)
    if not deciding:
        return Decision("high", Reason("torch-no-input", {"kind": why}))
    ranks: dict[int, set[int]] = {}
    for index in deciding:
        ranks.setdefault(_rank(node.inputs[index]), set()).add(index)
    foremost = min(ranks)
    if foremost == _NUMBER:
        return Decision("high", Reason("torch-numbers", {"kind": why}))
    return _promoted(node, form, frozenset(ranks[foremost]), state, why)


_TENSOR, _ZERO_DIM, _NUMBER = range(3)


def _rank(value: ir.Value | None) -> int:
    """Return the rank of an input in torch's promotion. A Python number is a constant of one element in ONNX."""
    constant = constant_tensor(value)
    if constant is not None and constant.size == 1:
        return _NUMBER
    shape = None if value is None else value.shape
    return _ZERO_DIM if shape is not None and len(shape) == 0 else _TENSOR


def _promoted(node: ir.Node, form: LowForm, inputs: frozenset[int], state: State, why: Reason) -> Decision:
    """Decide for lower precision if all of `inputs` are, else for float32."""
    for index in sorted(inputs):
        value = node.inputs[index]
        if value is not None and not state.is_low(value):
            return Decision("high", Reason("torch-promoted", {"kind": why, "input": str(value.name)}))
    if not inputs:
        return Decision("high", Reason("torch-none-low", {"kind": why}))
    return Decision("low", Reason("torch-all-low", {"kind": why}), form)
