"""What makes one system's mixed precision differ from another's: the rules by which a node that may be low is decided.

Everything else is common to all systems: what a node may be (schema, kernels, ranges), regions, black variables, the
rewriting. The systems are `paddle_rules.py`, `torch_rules.py`, `raf_rules.py`, `mxnet_rules.py`, `sambanova_rules.py`.
"""

from __future__ import annotations

import abc
import types
from collections.abc import Mapping
from typing import Literal, Protocol

import onnx_ir as ir

from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.ops.names import is_standard
from amp_transpiler.precision.assignment import Decision
from amp_transpiler.precision.constraints import LowForm
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["Leaning", "Rules", "State", "completes_linear", "listed"]

Leaning = Literal["low", "high"]


class State(Protocol):
    """What was decided before the node at hand."""

    def leaning(self, value: ir.Value) -> Leaning | None:
        """How the producer of a float32 value makes it; None for inputs, constants and what looks through."""

    def is_low(self, value: ir.Value) -> bool:
        """Whether the value is low where it is born: by the decision about its producer, or as the user wrote it."""

    def has_low(self, value: ir.Value) -> bool:
        """Whether the value is low, or some node reads it through a cast to low (for rules that look ahead)."""

    def is_parameter(self, value: ir.Value) -> bool:
        """Whether the value is a constant, or a parameter of a training program."""

    def form_with(self, node: ir.Node, inputs: frozenset[int]) -> LowForm | None:
        """The low form of `node` in which exactly these float32 inputs are low, if the target runs one."""


class Rules(abc.ABC):
    """How one system decides.

    Attributes:
        looks_ahead: decisions depend on later readers of a value too: they are made again until nothing changes any
            more. Such rules must be monotone: what is low stays low when more around it becomes low.
        low_inputs_of_norms: the only inputs of BatchNormalization that may be low, where the system keeps its
            parameters in float32 whatever the target; None: as the target has kernels.
        folds: a normalisation that could not be low itself may be folded into the convolution before it.
        lists: what the user listed beside the system's own tables.
        source_opsets: versions of the domains as the program came, before any was raised or lowered.
    """

    looks_ahead: bool = False
    low_inputs_of_norms: frozenset[int] | None = None
    folds: bool = True
    lists: AutoMixedPrecisionLists
    source_opsets: Mapping[str, int] = types.MappingProxyType({})

    def check(self, model: ir.Model) -> None:  # noqa: B027 - most systems accept every program
        """Look at the program as a whole before anything is decided; refuse one that the system has no answer for.

        Args:
            model: the typed program.

        Raises:
            OptionError: (a ValueError) what is wrong, and what to do.
        """

    def may_fold(self, norm: ir.Node, producer: ir.Node) -> bool:
        """Whether a normalisation may become part of its producer: not where the user speaks of either."""
        names = {str(value.name) for node in (norm, producer) for value in (*node.inputs, *node.outputs) if value}
        wanted = self.can_lower(norm) and self.can_lower(producer)
        return self.folds and wanted and not names & self.lists.black_varnames

    def can_lower(self, node: ir.Node) -> bool:
        """Whether these rules make such a node low in some program; False if they never do, whatever is around it."""
        return operator_class(node) not in self.lists.custom_black_list

    def form_without_schema(self, node: ir.Node) -> LowForm | None:  # noqa: ARG002 - for those that have one
        """Return the low form of an operator that no schema is known for, if the rules know one."""
        return None

    def decide_without_form(self, node: ir.Node) -> Decision | None:  # noqa: ARG002 - for those that decide
        """Decide about a node that has no low form, if there is more to say than that it stays high."""
        return None

    @abc.abstractmethod
    def decide(self, node: ir.Node, form: LowForm, state: State) -> Decision:
        """Decide about a node that may be low.

        Args:
            node: a node with a float32 tensor, no body, in topological order.
            form: its low form with most low slots.
            state: what was decided so far.
        """


def completes_linear(node: ir.Node, state: State) -> bool:
    """Whether an Add is the second half of a linear layer, which exporters write as MatMul and Add.

    That is: it adds a vector of parameters to a low product. ONNX cannot tell it from a vector that the user's own code
    adds; systems that have a linear operator see the bias as part of it.
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


def listed(node: ir.Node, form: LowForm, lists: AutoMixedPrecisionLists) -> Decision | None:
    """Return what the user's own lists say of `node`, whatever the system's tables say; None if it is on neither."""
    key = operator_class(node)
    if key in lists.custom_black_list:
        return Decision("high", f"{key} is on the custom black list")
    if key in lists.custom_white_list:
        return Decision("low", f"{key} is on the custom white list", form)
    return None
