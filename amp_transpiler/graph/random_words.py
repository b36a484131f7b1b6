"""Random words: a function of seed, step, a mark and the place of an element, and of nothing else.

So a step can be run again, a recomputed forward pass draws the same, and every machine draws the same numbers.

The hash is of uint32, whose products and sums wrap around on every provider. CUDA has no kernel for shifts or
exclusive-or of integers, so the non-linear step is RC6's quadratic, x * (2x + 1) mod 2^32, a permutation whose high
bits depend on all bits of x; division by 2^16 brings these down again. An element's counter is never made: each axis
adds the hash of its index to the hash so far, which broadcasts, so only the last axis costs work on whole tensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, rank_of

__all__ = ["WORD", "element_words", "fractions", "in_turns", "keys", "word"]

WORD = 1 << 32
_HALF = 1 << 16
_WEYL = 0x9E3779B1  # odd, so that multiplying by it permutes: 2^32 over the golden ratio, as is usual
_OFFSET = 0x7F4A7C15  # any odd number: the quadratic by itself maps 0 to 0
_AXIS = 0x85EBCA6B  # tells the axes apart
_LAST = 0x2C1B3C6D  # keeps the last factor from being 0
_BITS = 24  # of a fraction: as many as float32 holds


def keys(builder: GraphBuilder, marks: Sequence[str], seed: ir.Value, step: ir.Value) -> ir.Value:
    """Return one word a mark, all at once: the hash of seed, step (int64 scalars) and the mark."""
    state = word(builder, _OFFSET)
    for value in (seed, step):
        for part in _words(builder, value):
            state = _mix(builder, builder.add(state, part))
    hashes = np.array([zlib.crc32(mark.encode()) for mark in marks], np.uint32)
    return _mix(builder, builder.add(state, builder.constant(hashes)))


def in_turns(builder: GraphBuilder, key: ir.Value, turns: Sequence[ir.Value]) -> ir.Value:
    """Return the key (uint32, one element) of a turn, from that of all turns and the turn's numbers, int64 scalars."""
    for number in turns:
        for part in _words(builder, number):
            key = _mix(builder, builder.add(key, part))
    return key


def element_words(builder: GraphBuilder, x: ir.Value, key: ir.Value) -> ir.Value:
    """Return a word for every element of `x`, from `key` (uint32, one element); of rank 1 for a scalar `x`.

    Only the high bits are good.
    """
    return _finish(builder, _state(builder, x, key))


def fractions(builder: GraphBuilder, x: ir.Value, key: ir.Value) -> ir.Value:
    """Return float32 numbers in [0, 1), multiples of 2^-24, for every element of `x`; of rank 1 for a scalar `x`."""
    words = _finish(builder, _permute(builder, _state(builder, x, key)))
    high = builder.cast(builder.div(words, word(builder, WORD >> _BITS)), ir.DataType.FLOAT)
    return builder.mul(high, 2.0**-_BITS)


def word(builder: GraphBuilder, number: int) -> ir.Value:
    """Return a constant word."""
    return builder.constant(np.array([number % WORD], np.uint32))


def _words(builder: GraphBuilder, value: ir.Value) -> list[ir.Value]:
    """Low and high half of an int64 scalar as uint32 vectors of one element."""
    vector = builder.reshape(value, [1])  # of rank 1, since numpy warns when scalars wrap around
    low = builder.op("Mod", [vector, builder.constant([WORD])])
    high = builder.op("Mod", [builder.div(vector, builder.constant([WORD])), builder.constant([WORD])])
    return [builder.cast(half, ir.DataType.UINT32) for half in (low, high)]


def _state(builder: GraphBuilder, x: ir.Value, key: ir.Value) -> ir.Value:
    sizes = [] if x.shape is None else list(x.shape)
    axes = [axis for axis in range(rank_of(x)) if sizes[axis] != 1]
    state = builder.reshape(key, [1] * max(rank_of(x), 1))
    for axis in axes[:-1]:
        state = _permute(builder, builder.add(state, _index_hash(builder, x, axis)))
    if axes:
        state = builder.add(state, _index_hash(builder, x, axes[-1]))
    return state


def _index_hash(builder: GraphBuilder, x: ir.Value, axis: int) -> ir.Value:
    """A word for every index along an axis, laid along that axis; ONNX Runtime folds it where the size is known."""
    indices = builder.op("Range", [builder.constant(0), _size(builder, x, axis), builder.constant(1)])
    words = builder.cast(indices, ir.DataType.UINT32)
    scattered = builder.add(builder.mul(words, word(builder, _WEYL)), word(builder, _AXIS * (axis + 1)))
    rank = rank_of(x)
    return builder.reshape(_permute(builder, scattered), [-1 if i == axis else 1 for i in range(rank)])


def _size(builder: GraphBuilder, x: ir.Value, axis: int) -> ir.Value:
    """The size of one axis, an int64 scalar: a constant where it is known, though others may not be."""
    size = None if x.shape is None else x.shape[axis]
    if isinstance(size, int):
        return builder.constant(size)
    return builder.squeeze(builder.slice(builder.shape(x), [axis], [axis + 1], [0]), [0])


def _quadratic(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    return builder.mul(x, builder.add(builder.add(x, x), word(builder, 1)))


def _permute(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """Quadratic, halves exchanged, quadratic."""
    x = _quadratic(builder, x)
    half = word(builder, _HALF)
    return _quadratic(builder, builder.add(builder.div(x, half), builder.mul(x, half)))


def _mix(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    return _permute(builder, builder.add(builder.mul(x, word(builder, _WEYL)), word(builder, _OFFSET)))


def _finish(builder: GraphBuilder, x: ir.Value) -> ir.Value:
    """The last, cheaper step, on whole tensors: only the high bits of its result are good, and those decide."""
    x = _quadratic(builder, x)
    return builder.mul(x, builder.add(builder.div(x, word(builder, _HALF)), word(builder, _LAST)))
