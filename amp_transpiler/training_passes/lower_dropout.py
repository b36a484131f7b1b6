"""Writes Dropout in training mode as a mask hashed from seed, step, node and element (`graph.random_words`).

ONNX Runtime's own Dropout draws from a hidden state and has no CUDA kernel at opset 22. The mask here is a function of
what goes in: a step can be run again, and a recomputed forward pass drops the same elements.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder, rank_of
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.random_copies import draws_as, turn_number
from amp_transpiler.graph.random_words import WORD, element_words, in_turns, keys, word
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.walk import all_nodes, is_used, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.name_nodes import NameNodes

__all__ = ["LowerDropout"]

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Draw:
    """A Dropout that drops.

    Attributes:
        ratio: the probability of an element to be dropped, in (0, 1].
    """

    node: ir.Node
    ratio: float


class LowerDropout(Pass[PassResult]):
    """Writes every Dropout whose `training_mode` is constant as plain operators, in any scope; counts them.

    1. In training mode Y is `Where(mask, X / (1 - ratio), 0)`, divided in float32 for a 16-bit X, and the mask output
       is true where X is kept. The mask depends on `seed`, `step`, the node's name, the place of the element and, in
       loops, the numbers of the turns, and on nothing else. What runs again for a gradient drops the same.
    2. With `training_mode` absent or false, or a ratio of 0, Y is X and the mask all true.
    3. A Dropout whose mode is known at run time only stays as it is, with a warning in the log.

    The values of the model must be typed, its opset 13 or above, and the rank of each X known.

    Args:
        seed: an int64 scalar of the main graph.
        step: an int64 scalar of the main graph: the number of the training step.

    Raises:
        ModelError: a ratio is no constant or outside [0, 1], a rank is not known, or the seed is not int64.
    """

    def __init__(self, seed: ir.Value, step: ir.Value) -> None:
        self._seed = seed
        self._step = step

    def requires(self, model: ir.Model) -> None:
        del model
        for value in (self._seed, self._step):
            if value.dtype != ir.DataType.INT64:
                raise ModelError(f"seed and step of dropout must be int64 scalars, got '{value.name}' of {value.dtype}")

    def call(self, model: ir.Model) -> PassResult:
        dropouts = [node for node in all_nodes(model) if node.op_type == "Dropout" and is_standard(node)]
        named = NameNodes()(model).modified if dropouts else False  # the name goes into the mask
        builder = GraphBuilder(model, names=NameAllocator(model))
        still, draws = [], []
        for node in dropouts:
            mode = _training_mode(node)
            if mode is None:
                logger.warning("Dropout '%s' is left alone: its training_mode is no constant", node.name)
            elif mode and (ratio := _ratio(node)) > 0.0:
                draws.append(_Draw(node, ratio))
            else:
                still.append(node)
        for node in still:
            _stand_in(builder, node)
            _pass_through(builder, node)
        if draws:
            _draw_all(builder, draws, self._seed, self._step)
        for node in (*still, *(draw.node for draw in draws)):
            _graph(node).remove(node, safe=True)
        count = len(still) + len(draws)
        return PassResult(model, modified=named or bool(count), count=count)


def _training_mode(node: ir.Node) -> bool | None:
    """Whether the node drops; None if that is decided at run time."""
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    if mode is None:
        return False
    array = constant_array(mode)
    return None if array is None else bool(array.any())


def _ratio(node: ir.Node) -> float:
    ratio_value = node.inputs[1] if len(node.inputs) > 1 else None
    if ratio_value is None:
        return 0.5  # the schema's default
    array = constant_array(ratio_value)
    if array is None:
        raise ModelError(f"node '{node.name}' (Dropout): its ratio '{ratio_value.name}' must be a constant")
    ratio = float(array.reshape(-1)[0])
    if not 0.0 <= ratio <= 1.0:
        raise ModelError(f"node '{node.name}' (Dropout): its ratio must lie between 0 and 1, got {ratio:g}")
    return ratio


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)  # `all_nodes` leaves functions out
    return node.graph


def _stand_in(builder: GraphBuilder, node: ir.Node) -> None:
    """Let the builder write in front of `node`, in its name."""
    builder.graph, builder.before = _graph(node), node
    builder.metadata, builder.prefix = dict(node.metadata_props), f"{node.name}/"


def _data(node: ir.Node) -> ir.Value:
    if not node.inputs or (data := node.inputs[0]) is None:
        raise ModelError(f"node '{node.name}' (Dropout) has no input")
    return data


def _pass_through(builder: GraphBuilder, node: ir.Node) -> None:
    x = _data(node)
    take_over(node.outputs[0], builder.op("Identity", [x]), builder.names)
    if len(node.outputs) > 1 and is_used(node.outputs[1]):
        true = builder.constant(np.ones([1] * rank_of(x), np.bool_))
        take_over(node.outputs[1], builder.expand_like(true, x), builder.names)


def _draw_all(builder: GraphBuilder, draws: Sequence[_Draw], seed: ir.Value, step: ir.Value) -> None:
    builder.graph, builder.before = builder.model.graph, _first_in_main(builder.model, draws)
    builder.metadata, builder.prefix = {}, "dropout_key/"
    drawn = keys(builder, [draws_as(draw.node) for draw in draws], seed, step)
    turns = _turns(builder.model)
    for index, draw in enumerate(draws):
        _stand_in(builder, draw.node)
        key = builder.slice(drawn, [index], [index + 1], [0])
        _drop(builder, draw, in_turns(builder, key, turns[_graph(draw.node)]))


def _turns(model: ir.Model) -> dict[ir.Graph, list[ir.Value]]:
    """Return the numbers of the turns that each scope is in, those of outer loops first."""
    turns: dict[ir.Graph, list[ir.Value]] = {}
    for scope in scopes(model):  # outer scopes first
        outer = [] if scope.owner is None else turns[_graph(scope.owner)]
        number = None if scope.owner is None else turn_number(scope.owner, scope.graph)
        turns[scope.graph] = outer if number is None else [*outer, number]
    return turns


def _first_in_main(model: ir.Model, draws: Sequence[_Draw]) -> ir.Node:
    """Return the first node of the main graph that is one of `draws` or has one in its bodies."""
    holders = {draw.node for draw in draws}
    for scope in reversed(list(scopes(model))):  # inner scopes first
        if scope.owner is not None and any(node in holders for node in scope.graph):
            holders.add(scope.owner)
    return next(node for node in model.graph if node in holders)


def _drop(builder: GraphBuilder, draw: _Draw, key: ir.Value) -> None:
    node, x = draw.node, _data(draw.node)
    keep = 1.0 - draw.ratio
    threshold = word(builder, min(round(keep * WORD), WORD - 1))
    mask = builder.compare("Less", element_words(builder, x, key), threshold)
    if rank_of(x) == 0:
        mask = builder.reshape(mask, [])
    mask.shape = None if x.shape is None else ir.Shape(x.shape)
    scaled = builder.cast(builder.div(builder.high(x), keep), x.dtype) if keep else x
    take_over(node.outputs[0], builder.where(mask, scaled, 0.0), builder.names)
    if len(node.outputs) > 1 and is_used(node.outputs[1]):
        take_over(node.outputs[1], mask, builder.names)
