"""The interface that each system's rules implement: whether a node that can run in lower precision does.

The rest of the engine is the same for all systems: what a node can be (schema, kernels, ranges), regions, black
variables, the passes. The rules themselves are in `systems/<name>/rules.py`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

import onnx_ir as ir

from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.user_lists import UserLists

__all__ = ["Leaning", "Rules", "State", "completes_linear", "listed"]

Leaning = Literal["low", "high"]


class State(Protocol):
    """The decisions made before the current node, as rules may query them."""

    def leaning(self, value: ir.Value) -> Leaning | None:
        """Return the precision in which the producer of a float32 value computes it.

        None for graph inputs, constants, and nodes without a precision of their own.
        """

    def is_low(self, value: ir.Value) -> bool:
        """Whether the value is in lower precision where it is computed, by a decision or in the source program."""

    def has_low(self, value: ir.Value) -> bool:
        """Whether the value is in lower precision, or some node reads a cast of it (for rules that look ahead)."""

    def is_parameter(self, value: ir.Value) -> bool:
        """Whether the value is a constant, or a parameter of a training program."""

    def form_with(self, node: ir.Node, inputs: frozenset[int]) -> LowForm | None:
        """Return the form of `node` in which exactly these float32 inputs are low, or None if no kernel has it."""


class Rules(abc.ABC):
    """How one system decides. Rules are never changed: what they learn of a program is in the object `begin` returns.

    Attributes:
        looks_ahead: decisions depend on later readers of a value too, so they are repeated until nothing changes. Such
            rules must be monotone: a low node stays low when more of its neighbours become low.
        low_inputs_of_norms: the only inputs of BatchNormalization that may be low, for a system that keeps its
            parameters in float32 on every target; None: as the target's kernels allow.
        lists: the user's own lists, which win over the system's tables.
    """

    looks_ahead: ClassVar[bool] = False
    low_inputs_of_norms: ClassVar[frozenset[int] | None] = None
    lists: UserLists

    @property
    def folds(self) -> bool:
        """Whether a normalisation that must stay float32 may be folded into the convolution before it."""
        return True

    def with_source_opsets(self, opsets: Mapping[str, int]) -> Rules:  # noqa: ARG002 - most systems ignore versions
        """Return the rules for a program written for these versions of the domains, before any was changed.

        Args:
            opsets: domain -> version.
        """
        return self

    def begin(self, model: ir.Model, *, guarded: bool = False) -> Rules:  # noqa: ARG002 - most accept every program
        """Return the rules for one program; refuse a program that the system cannot decide about.

        Args:
            model: the typed program.
            guarded: only nodes inside an `fp16_guard` region are theirs to decide about.

        Raises:
            OptionError: (a ValueError) what is wrong, and what to do.
        """
        return self

    def raises(self, node: ir.Node) -> bool:  # noqa: ARG002 - most systems do not touch what the user wrote
        """Whether a node that computes in 16 bits, because its data do, must compute in float32."""
        return False

    def separates_bias(self, node: ir.Node) -> bool:  # noqa: ARG002 - most systems take both for one operator
        """Whether the bias of a convolution in a program that was built is an operator of its own, decided apart."""
        return False

    def may_fold(self, norm: ir.Node, producer: ir.Node) -> bool:
        """Whether a normalisation may become part of its producer: not if the user lists either."""
        names = {str(value.name) for node in (norm, producer) for value in (*node.inputs, *node.outputs) if value}
        wanted = self.can_lower(norm) and self.can_lower(producer)
        return self.folds and wanted and not names & self.lists.black_varnames

    def can_lower(self, node: ir.Node) -> bool:
        """Whether these rules could make the node low in some program; False if they never do."""
        return operator_class(node) not in self.lists.custom_black_list

    def form_without_schema(self, node: ir.Node) -> LowForm | None:  # noqa: ARG002 - only some systems know one
        """Return the low form of an operator without a known schema, or None if the rules know none."""
        return None

    def decide_without_form(self, node: ir.Node) -> Decision | None:  # noqa: ARG002 - only some systems decide
        """Decide about a node that has no low form; None to keep it in float32 with the engine's reason."""
        return None

    @abc.abstractmethod
    def decide(self, node: ir.Node, form: LowForm, state: State) -> Decision:
        """Decide about a node that can be low.

        Args:
            node: a node with a float32 tensor and no body; nodes come in topological order.
            form: its low form with the most low inputs and outputs.
            state: the decisions so far.
        """


def completes_linear(node: ir.Node, state: State) -> bool:
    """Whether an Add is the second half of a linear layer, which exporters write as MatMul and Add.

    It adds a vector of parameters to a low product. ONNX cannot tell it from a vector that the user's own code adds;
    systems with a linear operator see the bias as part of it.
    """
    if not is_standard(node) or node.op_type != "Add":
        return False
    for product, bias in (node.inputs, tuple(reversed(node.inputs))):
        maker = None if product is None else product.producer()
        if product is None or bias is None or maker is None or maker.op_type != "MatMul" or not is_standard(maker):
            continue
        if state.is_low(product) and state.is_parameter(bias) and bias.shape is not None and len(bias.shape) == 1:
            return True
    return False


def listed(node: ir.Node, form: LowForm, lists: UserLists) -> Decision | None:
    """Return the decision by the user's own lists, or None if the operator is on neither."""
    key = operator_class(node)
    if key in lists.custom_black_list:
        return Decision("high", Reason("custom-black", {"operator": key}))
    if key in lists.custom_white_list:
        return Decision("low", Reason("custom-white", {"operator": key}), form)
    return None
