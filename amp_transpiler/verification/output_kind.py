"""Finds out what an output's numbers mean: scores of classes, a mask, a map of labels, or just numbers.

Where an output comes from decides: `_RULES`, a row a group of operators, found by walking up from the graph output
through operators that only move, recast, shift or scale (`_PASSED`). Where an operator does not decide it (a product
makes logits and features, a convolution maps of classes and pictures, a Sigmoid masks, gates and depths), the row asks
for a word: the output's name says so, or the graph ranks its numbers by Softmax or ArgMax. Nothing is guessed by shape;
but the shape has a say in any case: a single class is none, one pixel no map.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_tensor
from amp_transpiler.ops import operator_name, opset_of

__all__ = ["NUMBERS", "OutputKind", "output_kinds", "settled"]

Reading = Literal["numbers", "scores", "class map", "mask", "label map", "boxes", "embeddings"]

_SOFTMAX_OF_ONE_AXIS = 13  # the opset from which Softmax normalizes along one axis, not along all that follow it, too
_FEWEST_SCORES = 5  # fewer columns of a product may be coordinates, such as those of a box
_IMAGE = 4  # axes at least: batch, height, width, and channels before or after those; volumes have more
_COARSEST = 4  # a map of classes has at least this part of its image's height and width; features are coarser


@dataclasses.dataclass(frozen=True, slots=True)
class OutputKind:
    """How the numbers of an output are to be read.

    Attributes:
        reading: `numbers`: no class and no mask is known; `scores`: each row along `axis` has a score for every
            class; `class map`: the same for every pixel; `mask`: truth values, or shares that are true from 0.5 on;
            `label map`: a label for every pixel; `boxes`: the first four places along `axis` are a box; `embeddings`:
            each row is a vector (`placed_kinds.py` for both).
        axis: that of the classes, for scores and class maps.
        joined: the axes after `axis` belong to the classes, too, as for Softmax before opset 13.
        classes: how many classes there are, as far as it is known.
        fewest: how many there must be.
        images: for convolutions: the shapes of the graph's inputs that may be images.
        centred: for boxes: they may be given by centre and size, if not by corners.
    """

    reading: Reading
    axis: int = -1
    joined: bool = False
    classes: int | None = None
    fewest: int = 2
    images: tuple[tuple[int, ...], ...] | None = None
    centred: bool = False


NUMBERS = OutputKind("numbers")


# What the words of an output's name say. A word of `_NO_SCORES` outweighs the others: `class_embedding`.
_CLASSES = frozenset("logit logits score scores prob probs probability probabilities class classes".split())
_MASKS = frozenset("mask masks seg segmentation matte silhouette saliency".split())
_NO_SCORES = frozenset(
    "embed embedding embeddings feat feats feature features hidden state states token tokens "
    "box boxes bbox bboxes offset offsets delta deltas".split()
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    """How results of some operators are read.

    Attributes:
        operators: their names.
        reading: how they are read.
        reason: why.
        axis: that of the classes.
        fewest: how many classes there must be.
        asks: the operators do not decide: one of these words must be in the output's name, or, for scores and maps
            of them, the graph must rank them.
    """

    operators: str
    reading: Reading
    reason: str
    axis: int = -1
    fewest: int = 2
    asks: frozenset[str] = frozenset()


_RULES = (
    _Rule("Softmax LogSoftmax", "scores", "probabilities along their attribute `axis`; a map if they are of pixels"),
    _Rule("Gemm MatMul", "scores", "logits, if its weight is a constant", fewest=_FEWEST_SCORES, asks=_CLASSES),
    _Rule(
        "Conv ConvTranspose",
        "class map",
        "scores of pixels, if as fine as an image that is an input",
        axis=1,
        asks=_CLASSES | _MASKS,
    ),
    _Rule("Sigmoid HardSigmoid", "mask", "probabilities, each of its own, of the pixels of an image", asks=_MASKS),
    _Rule("ArgMax ArgMin", "label map", "the best class; its output is a map if two axes are left beside the batch"),
    _Rule("Tanh Relu LeakyRelu PRelu Elu Selu Gelu Softplus HardSwish Swish Mish", "numbers", "features"),
    _Rule("BatchNormalization LayerNormalization InstanceNormalization GroupNormalization", "numbers", "features"),
    _Rule("RMSNormalization LpNormalization Sqrt Exp Sin Cos", "numbers", "features, made of one length or size"),
    _Rule("LSTM GRU RNN", "numbers", "states"),
    _Rule("Gather GatherElements GatherND ScatterND TopK NonMaxSuppression Concat", "numbers", "a selection"),
    _Rule("Shape Size NonZero QuantizeLinear DynamicQuantizeLinear", "numbers", "sizes, places and quantities"),
)
_RULE_OF = {operator: rule for rule in _RULES for operator in rule.operators.split()}
_RANKS = ("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "TopK")


_ARITHMETIC = ("Add", "Sub", "Mul", "Div")

# Operators that are looked through, and what the output's axis of classes is, given that of their first input.
_Follow = Callable[[ir.Node, int], "int | None"]
_PASSED: dict[str, _Follow] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    images: tuple[tuple[int, ...], ...]
    opset: int


def output_kinds(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, OutputKind]:
    """Return how to read each output of a graph, as far as the graph says it.

    Args:
        model: a model with types and shapes.
        feeds: the inputs of one sample, for their shapes.
    """
    arrays = [value for value in feeds.values() if isinstance(value, np.ndarray)]
    images = tuple(tuple(array.shape) for array in arrays if array.ndim >= _IMAGE)
    known = _Known(images, opset_of(model, ""))
    kinds = {value: _from_graph(value, known) for value in model.graph.outputs}
    return {
        str(value.name): kind if _is_said(value, kind, known) else NUMBERS
        for value, kind in kinds.items()
        if kind is not None
    }


def _is_said(output: ir.Value, kind: OutputKind, known: _Known) -> bool:
    """Whether more than an operator that makes numbers of any meaning says how an output is read."""
    origin = output
    while (node := origin.producer()) is not None and operator_name(node) in _PASSED:
        above = _followed(node)
        if above is None or origin.dtype == ir.DataType.BOOL:
            return True
        origin = above
    rule = None if node is None else _RULE_OF.get(operator_name(node))
    if rule is None or not rule.asks or origin.dtype == ir.DataType.BOOL:
        return True
    words = {word.lower() for word in _WORD.findall(str(output.name))}
    named = bool(words & rule.asks) and not words & _NO_SCORES
    if kind.reading == "mask":  # that of a sound's spectrum is a factor, true at no threshold
        return named and bool(known.images)
    return named or _is_ranked(output, kind.axis) or _is_ranked(origin, rule.axis)


def _is_ranked(value: ir.Value, axis: int) -> bool:
    """Whether an operator ranks the numbers of a value along an axis, other than as the weights of an attention."""
    rank = _rank(value)
    return any(
        node.op_type in _RANKS
        and (not rank or node.attributes.get_int("axis", 0 if node.op_type == "ArgMax" else -1) % rank == axis % rank)
        and not _weighs(node.outputs[0])
        for node, index in value.uses()
        if index == 0
    )


def _weighs(value: ir.Value) -> bool:
    """Whether a product reads a value, recast perhaps, as its first factor: the weights of an attention."""
    return any(
        (node.op_type == "MatMul" and index == 0)
        or (node.op_type in ("Cast", "Dropout", "Identity") and _weighs(node.outputs[0]))
        for node, index in value.uses()
    )


def _from_graph(value: ir.Value | None, known: _Known) -> OutputKind | None:
    """Return what the operators above a value say of it; None if they say nothing."""
    path: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        if value.dtype == ir.DataType.BOOL:
            return OutputKind("mask")
        operator = operator_name(node)
        if operator in _RULE_OF:
            return _carried(_sized(_by_rule(node, _RULE_OF[operator], known), value), path)
        if operator not in _PASSED:
            return None
        path.append(node)
        value = _followed(node)
        if value is None:
            return _carried(_of_two_values(node), path)
    return None


def _of_two_values(node: ir.Node) -> OutputKind:
    """Return the kind of a Softmax written out; else of a residual, a gate, or a vector made of length one: numbers."""
    exponentials = node.inputs[0].producer() if node.op_type == "Div" and node.inputs[0] is not None else None
    return OutputKind("scores") if exponentials is not None and exponentials.op_type == "Exp" else NUMBERS


def _sized(kind: OutputKind | None, value: ir.Value) -> OutputKind | None:
    """Return the kind with the number of its classes, if the value's shape tells it."""
    if kind is None or kind.joined or not -_rank(value) <= kind.axis < _rank(value) or value.shape is None:
        return kind
    size = value.shape[kind.axis]
    return dataclasses.replace(kind, classes=size) if isinstance(size, int) else kind


def _by_rule(node: ir.Node, rule: _Rule, known: _Known) -> OutputKind | None:
    kind = OutputKind(rule.reading, rule.axis, fewest=rule.fewest)
    if node.op_type in ("Gemm", "MatMul"):
        return kind if _is_weight(node.inputs[1]) else None
    if node.op_type in ("Conv", "ConvTranspose"):
        return dataclasses.replace(kind, images=known.images)
    if node.op_type in ("Softmax", "LogSoftmax"):
        return NUMBERS if _weighs(node.outputs[0]) else _of_softmax(node, kind, known)
    if rule.reading == "label map":
        return kind if _leaves_pixels(node) else NUMBERS
    return kind


def _leaves_pixels(node: ir.Node) -> bool:
    """Whether an ArgMax of classes leaves height and width, and not a label for each word of a batch of texts."""
    rank = _rank(node.inputs[0])
    return rank >= _IMAGE or (rank == _IMAGE - 1 and node.attributes.get_int("axis", 0) % rank == 0)


def _of_softmax(node: ir.Node, kind: OutputKind, known: _Known) -> OutputKind:
    one_axis = (node.version or known.opset) >= _SOFTMAX_OF_ONE_AXIS
    axis = node.attributes.get_int("axis", -1 if one_axis else 1)
    rank = _rank(node.inputs[0])
    if one_axis and rank >= _IMAGE:
        above = _from_graph(node.inputs[0], known)
        of_pixels = above is not None and above.reading == "class map" and above.axis % rank == axis % rank
        kind = dataclasses.replace(kind, reading="class map" if of_pixels or axis % rank == 1 else "scores")
    return dataclasses.replace(kind, axis=axis, joined=not one_axis)


def _rank(value: ir.Value | None) -> int:
    """Return the number of axes, 0 if it is unknown."""
    return 0 if value is None or value.shape is None else len(value.shape)


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a constant or an initializer, recast or rearranged perhaps."""
    while value is not None and (node := value.producer()) is not None:
        if operator_name(node) not in ("Cast", "Transpose", "Reshape", "Identity", "DequantizeLinear"):
            break
        value = node.inputs[0]
    return value is not None and (value.is_initializer() or constant_tensor(value) is not None)


def _followed(node: ir.Node) -> ir.Value | None:
    """Return the input that an operator passes on; None if it does more than to add a constant or a positive scale."""
    if node.op_type not in _ARITHMETIC:
        return node.inputs[0]
    first, second = node.inputs
    if node.op_type in ("Add", "Mul") and _is_weight(first):
        first, second = second, first
    if node.op_type in ("Add", "Sub"):
        return first if _is_weight(second) else None
    factor = constant_tensor(second)
    return first if factor is not None and factor.size == 1 and factor.numpy().item() > 0 else None


def _carried(kind: OutputKind | None, path: list[ir.Node]) -> OutputKind | None:
    """Return the kind of an output, given that of the value from which the operators of `path` lead to it."""
    if kind is None or kind.reading not in ("scores", "class map"):
        return kind
    axis: int | None = kind.axis
    for node in reversed(path):
        axis = _PASSED[operator_name(node)](node, axis) if axis is not None else None
    return NUMBERS if axis is None else dataclasses.replace(kind, axis=axis)


def _same_axis(node: ir.Node, axis: int) -> int:
    del node
    return axis


def _transposed(node: ir.Node, axis: int) -> int | None:
    order = node.attributes.get_ints("perm", None) or range(_rank(node.inputs[0]))[::-1]
    return order.index(axis % len(order)) if order else None


def _reshaped(node: ir.Node, axis: int) -> int | None:
    """Return where the axis of classes is afterwards, if only axes of size 1 come after it, and its size is kept.

    A size that is not known here is compared later, with that of the array (`_with_classes`).
    """
    before, after = node.inputs[0], node.outputs[0]
    if before is None or not before.shape:
        return None
    old = _trimmed(before.shape)
    if axis % len(before.shape) != len(old) - 1:
        return None
    if after.shape is None:
        return -1
    new = _trimmed(after.shape)
    is_kept = new and (new[-1] == old[-1] or not isinstance(new[-1], int))
    return len(new) - 1 if is_kept else None


_PASSED |= dict.fromkeys(_ARITHMETIC, _same_axis)
_PASSED |= dict.fromkeys("Identity Cast CastLike Dropout Resize Upsample Slice Pad".split(), _same_axis)
_PASSED |= dict.fromkeys("Reshape Flatten Squeeze Unsqueeze".split(), _reshaped)
_PASSED["Transpose"] = _transposed


def _trimmed(shape: Iterable[Any]) -> tuple[Any, ...]:
    """Return a shape without the axes of size 1 at its end."""
    sizes = list(shape)
    while sizes and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes)


def settled(kind: OutputKind | None, array: np.ndarray) -> OutputKind:
    """Return how to read `array`: as the graph says if its shape permits that; truth values are a mask in any case.

    Args:
        kind: what the graph says, None if nothing.
        array: the output of the float32 program in one sample.
    """
    letter = "f" if "float" in array.dtype.name else array.dtype.kind
    if letter == "b":
        return OutputKind("mask")
    if kind is None:
        return NUMBERS
    if kind.reading in ("scores", "class map"):
        return _with_classes(kind, array.shape) if letter == "f" else NUMBERS
    if kind.reading == "label map":
        return kind if letter in "iu" and sum(size > 1 for size in array.shape) > 1 else NUMBERS
    return kind if letter in "fiu" else NUMBERS


def _with_classes(kind: OutputKind, shape: tuple[int, ...]) -> OutputKind:
    """Return scores or a class map whose axis is there and long enough, else numbers."""
    if not -len(shape) <= kind.axis < len(shape):
        return NUMBERS
    axis = kind.axis % len(shape)
    classes = math.prod(shape[axis:]) if kind.joined else shape[axis]
    pixels = tuple(size for index, size in enumerate(shape) if index not in (0, axis))
    kind = dataclasses.replace(kind, axis=axis)
    if kind.reading == "class map" and math.prod(pixels) == 1:
        kind = dataclasses.replace(kind, reading="scores", fewest=_FEWEST_SCORES)
    elif kind.images is not None and not any(_is_map_of(image, classes, pixels) for image in kind.images):
        return NUMBERS
    return kind if classes >= kind.fewest and kind.classes in (None, classes) else NUMBERS


def _is_map_of(image: tuple[int, ...], classes: int, pixels: tuple[int, ...]) -> bool:
    """Whether an output may be a map of the classes of an image, and not another image or a map of features."""
    layouts = ((image[1], image[2:]), (image[-1], image[1:-1]))  # channels first, channels last
    return len(pixels) == len(image) - 2 and any(
        all(_COARSEST * ours >= theirs >= ours for ours, theirs in zip(pixels, size, strict=True))
        and classes != channels
        and (classes >= _FEWEST_SCORES or pixels == size)
        for channels, size in layouts
    )
