"""Warns once of the weights of an imported model that are not trained, and says why."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.autodiff.rules import refusal
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import has_bodies, scopes
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.paddle.static.trainable_slots import float_constants, is_of_a_node
from amp_transpiler.paddle.static.weight_flow import WeightFlow
from amp_transpiler.phrases import first_few

__all__ = ["listed", "warn_of_untrained"]

logger = logging.getLogger(__name__)

_SHOWN = 6
_INTEGERS = frozenset({ir.DataType.INT4, ir.DataType.INT8, ir.DataType.UINT4, ir.DataType.UINT8})


def warn_of_untrained(model: ir.Model, what: str, of_nodes: Mapping[str, str]) -> None:
    """Warn of weights that no parameter holds.

    Args:
        model: the model, after its parameters were taken out.
        what: the model, as messages name it.
        of_nodes: names of constants that Constant nodes make -> where they are read as weights.
    """
    if of_nodes:
        logger.warning(
            "%s: Constant nodes make %s, so that they are not trained though layers read them as weights; "
            "constant_nodes=True makes parameters of them, and trainable= of some",
            what,
            listed(f"{name} ({slot})" for name, slot in of_nodes.items()),
        )
    by_operator: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for node, name, reason in _reads_without_gradient(model):
        names, nodes = by_operator.setdefault((operator_name(node), reason), ([], []))
        names.append(name)
        nodes.append(f"'{node.name}'")
    for (operator, reason), (names, nodes) in by_operator.items():
        logger.warning(
            "%s: these weights of %s %s are not trained: %s; and nothing before it can be. %s",
            what,
            operator,
            listed(nodes),
            listed(names),
            f"{reason[0].upper()}{reason[1:]}",
        )
    if integers := list(_integer_weights(model)):
        logger.warning(
            "%s: the model is quantised, and its integer weights are not trained: %s; train the float model, and "
            "quantise the result",
            what,
            listed(integers),
        )


def listed(names: Iterable[str]) -> str:
    """Return a few names, each once, and the number of the others."""
    return first_few(dict.fromkeys(names), _SHOWN)


def _reads_without_gradient(model: ir.Model) -> Iterator[tuple[ir.Node, str, str]]:
    """Yield nodes that have no gradient and read float weights, the weights' names, and the reason."""
    flow = WeightFlow(model)
    for value, tensor in float_constants(model):
        if tensor.size < 2 or is_of_a_node(value):
            continue
        for slot in flow.reads(value, tensor):
            node = slot.node
            reason = "" if has_bodies(node) else refusal("" if is_standard(node) else node.domain, node.op_type)
            if reason and not _reads_integers(node):
                yield node, str(value.name), reason


def _reads_integers(node: ir.Node) -> bool:
    return any(value is not None and value.dtype in _INTEGERS for value in (*node.inputs, *node.outputs))


def _integer_weights(model: ir.Model) -> Iterator[str]:
    """Yield the names of matrices of 8 or 4 bits."""
    for scope in scopes(model):
        for value in scope.graph.initializers.values():
            tensor = constant_of(value)
            if tensor is not None and tensor.dtype in _INTEGERS and len(tensor.shape) > 1 and tensor.size > 1:
                yield str(value.name)
