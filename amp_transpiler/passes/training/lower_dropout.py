"""Dropout in training mode, as a mask hashed from seed, step, node and element.

ONNX Runtime's own Dropout draws from a hidden state and has no CUDA kernel at opset 22. The mask here is a function of
what goes in: a step can be run again, and a recomputed forward pass drops the same elements.

The hash is of uint32, whose products and sums wrap around on every provider. CUDA has no kernel for shifts or
exclusive-or of integers, so the non-linear step is RC6's quadratic, x * (2x + 1) mod 2^32, a permutation whose high
bits depend on all bits of x; division by 2^16 brings these down again. An element's counter is never made: each axis
adds the hash of its index to the hash so far, which broadcasts, so only the last axis costs work on whole tensors.
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder, rank_of
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.walk import all_nodes, is_used, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.passes.training.take_over import take_over

__all__ = ["LowerDropout"]

logger = logging.getLogger(__name__)

_WORD = 1 << 32
_HALF = 1 << 16
_WEYL = 0x9E3779B1  # odd, so that multiplying by it permutes: 2^32 over the golden ratio, as is usual
_OFFSET = 0x7F4A7C15  # any odd number: the quadratic alone maps 0 to 0
_AXIS = 0x85EBCA6B  # tells the axes apart
_LAST = 0x2C1B3C6D  # keeps the last factor from being 0


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
       is true where X is kept. The mask depends on `seed`, `step`, the node's name and the place of the element, and on
       nothing else.
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
        found = [node for node in all_nodes(model) if node.op_type == "Dropout" and is_standard(node)]
        named = NameNodes()(model).modified if found else False  # the name goes into the mask
        builder = GraphBuilder(model, names=NameAllocator(model))
        still, draws = [], []
        for node in found:
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
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return 0.5  # the schema's default
    array = constant_array(given)
    if array is None:
        raise ModelError(f"node '{node.name}' (Dropout): its ratio '{given.name}' must be a constant")
    ratio = float(array.reshape(-1)[0])
    if not 0.0 <= ratio <= 1.0:
        raise ModelError(f"node '{node.name}' (Dropout): its ratio must lie between 0 and 1, got {ratio:g}")
    return ratio


def _graph(node: ir.Node) -> ir.Graph:
    if not isinstance(node.graph, ir.Graph):
        raise ModelError(f"node '{node.name}' ({node.op_type}) is in no graph of the program: inline functions first")
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
    keys = _keys(builder, draws, seed, step)
    for index, draw in enumerate(draws):
        _stand_in(builder, draw.node)
        _drop(builder, draw, builder.slice(keys, [index], [index + 1], [0]))


def _first_in_main(model: ir.Model, draws: Sequence[_Draw]) -> ir.Node:
    """The first node of the main graph that is one of `draws` or has one in its bodies."""
    holders = {draw.node for draw in draws}
    for scope in reversed(list(scopes(model))):  # inner scopes first
        if scope.owner is not None and any(node in holders for node in scope.graph):
            holders.add(scope.owner)
    return next(node for node in model.graph if node in holders)


def _drop(builder: GraphBuilder, draw: _Draw, key: ir.Value) -> None:
    node, x = draw.node, _data(draw.node)
    keep = 1.0 - draw.ratio
    threshold = _word(builder, min(round(keep * _WORD), _WORD - 1))
    mask = builder.compare("Less", _element_hash(builder, x, key), threshold)
    if rank_of(x) == 0:
        mask = builder.reshape(mask, [])
    mask.shape = None if x.shape is None else ir.Shape(x.shape)
    scaled = builder.cast(builder.div(builder.high(x), keep), x.dtype) if keep else x
    take_over(node.outputs[0], builder.where(mask, scaled, 0.0), builder.names)
    if len(node.outputs) > 1 and is_used(node.outputs[1]):
        take_over(node.outputs[1], mask, builder.names)


# ---- hashing ----


def _keys(builder: GraphBuilder, draws: Sequence[_Draw], seed: ir.Value, step: ir.Value) -> ir.Value:
    """One word a node, all at once: the hash of seed, step and the node's name."""
    state = _word(builder, _OFFSET)
    for value in (seed, step):
        for word in _words(builder, value):
            state = _mix(builder, builder.add(state, word))
    marks = np.array([zlib.crc32(str(draw.node.name).encode()) for draw in draws], np.uint32)
    return _mix(builder, builder.add(state, builder.constant(marks)))


def _words(builder: GraphBuilder, value: ir.Value) -> list[ir.Value]:
    """Low and high half of an int64 scalar as uint32 vectors of one element."""
    vector = builder.reshape(value, [1])  # of rank 1, since numpy warns when scalars wrap around
    low = builder.op("Mod", [vector, builder.constant([_WORD])])
    high = builder.op("Mod", [builder.div(vector, builder.constant([_WORD])), builder.constant([_WORD])])
    return [builder.cast(half, ir.DataType.UINT32) for half in (low, high)]


def _element_hash(builder: GraphBuilder, x: ir.Value, key: ir.Value) -> ir.Value:
    """A word for every element of `x`, from `key` (uint32, one element); of rank 1 for a scalar `x`."""
    sizes = [] if x.shape is None else list(x.shape)
    axes = [axis for axis in range(rank_of(x)) if sizes[axis] != 1]
    state = builder.reshape(key, [1] * max(rank_of(x), 1))
    for axis in axes[:-1]:
        state = _permute(builder, builder.add(state, _index_hash(builder, x, axis)))
    if axes:
        state = builder.add(state, _index_hash(builder, x, axes[-1]))
    return _finish(builder, state)


def _index_hash(builder: GraphBuilder, x: ir.Value, axis: int) -> ir.Value:
    """A word for every index along an axis, laid along that axis; ONNX Runtime folds it where the size is known."""
    indices = builder.op("Range", [builder.constant(0), _size(builder, x, axis), builder.constant(1)])
    words = builder.cast(indices, ir.DataType.UINT32)
    scattered = builder.add(builder.mul(words, _word(builder, _WEYL)), _word(builder, _AXIS * (axis + 1)))
    rank = rank_of(x)
    return builder.reshape(_permute(builder, scattered), [-1 if i == axis else 1 for i in range(rank)])


def _size(builder: GraphBuilder, x: ir.Value, axis: int) -> ir.Value:
    """The size of one axis, an int64 scalar: a constant where it is known, though others may not be."""
    size = None if x.shape is None else x.shape[axis]
    if isinstance(size, int):
        return builder.constant(size)
    return builder.squeeze(builder.slice(builder.shape(x), [axis], [axis + 1], [0]), [0])


def _word(builder: GraphBuilder, number: int) -> ir.Value:
    return builder.constant(np.array([number % _WORD], np.uint32))


def _quadratic(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    return builder.mul(x, builder.add(builder.add(x, x), _word(builder, 1)))


def _permute(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """Quadratic, halves exchanged, quadratic."""
    x = _quadratic(builder, x)
    half = _word(builder, _HALF)
    return _quadratic(builder, builder.add(builder.div(x, half), builder.mul(x, half)))


def _mix(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    return _permute(builder, builder.add(builder.mul(x, _word(builder, _WEYL)), _word(builder, _OFFSET)))


def _finish(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """The last, cheaper step, on whole tensors: only the high bits of its result are good, and those decide."""
    x = _quadratic(builder, x)
    return builder.mul(x, builder.add(builder.div(x, _word(builder, _HALF)), _word(builder, _LAST)))
