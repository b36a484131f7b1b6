"""Folding an inference BatchNormalization into the Conv, ConvTranspose or Gemm before it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import computed_tensor
from amp_transpiler.graph.constness import constant_array, constant_tensor
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.walk import all_nodes, bodies, is_used
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import set_input

__all__ = ["FoldBatchNorm"]

logger = logging.getLogger(__name__)

_FIRST_OPSET = 7  # before, the node says by is_test whether it trains


class FoldBatchNorm(Pass[PassResult]):
    """Folds BatchNormalizations into the Conv, ConvTranspose or Gemm before them; counts them.

    1. With f = scale / sqrt(variance + epsilon) the producer's weights become W * f, one factor for each output
       channel, and its bias becomes (b - mean) * f + B. Both are computed in float64 and rounded once.
    2. A node is folded if it is in inference mode, its parameters and the producer's weights are constant, and only it
       reads the producer, which is in the same graph.
    3. The producer keeps its name; its output gets the name of the BatchNormalization's. Weights with other readers
       stay as they are. New weights are computed when they are read.

    Args:
        wanted: which BatchNormalization nodes to fold, of those that can be.
    """

    def __init__(self, wanted: Callable[[ir.Node], bool] = lambda _: True) -> None:
        self._wanted = wanted

    def call(self, model: ir.Model) -> PassResult:
        norms = [node for node in all_nodes(model) if node.op_type == "BatchNormalization" and is_standard(node)]
        if not norms or opset_of(model, "") < _FIRST_OPSET:
            return PassResult(model, modified=False)
        names, folded = NameAllocator(model), 0
        for node in norms:
            producer = _producer(node)
            fold = None if producer is None else _plan(node, producer)
            if producer is None or fold is None or not self._wanted(node):
                continue
            _fold(model, node, producer, fold, names)
            folded += 1
        logger.debug("%d BatchNormalization nodes folded", folded)
        what = "1 BatchNormalization node" if folded == 1 else f"{folded} BatchNormalization nodes"
        notes = (f"{what} folded into their producers",) if folded else ()
        return PassResult(model, modified=bool(folded), count=folded, notes=notes)


# ---- planning ----


@dataclasses.dataclass(frozen=True, slots=True)
class _Fold:
    """The producer's new parameters, as a function of its old ones.

    Attributes:
        weight: the old weights.
        factor: the factor of the weights, in float64, in a shape that broadcasts to theirs.
        bias: the new bias, of the weights' element type.
    """

    weight: ir.TensorProtocol
    factor: np.ndarray
    bias: np.ndarray


def _producer(node: ir.Node) -> ir.Node | None:
    """Return the node before `node`, if it is in the same graph and only `node` reads it."""
    value = node.inputs[0]
    producer = None if value is None else value.producer()
    if value is None or producer is None or producer.graph is not node.graph or not is_standard(producer):
        return None
    is_only_reader = len(value.uses()) == 1 and not value.is_graph_output()
    return producer if is_only_reader and producer.op_type in _CHANNELS else None


def _plan(node: ir.Node, producer: ir.Node) -> _Fold | None:
    """Return the new parameters, or None where something is not constant or has another form."""
    if not _infers(node) or len(producer.inputs) < 2:
        return None
    parameters = [constant_array(value) for value in node.inputs[1:5]]
    weight, old_bias = constant_tensor(producer.inputs[1]), _bias(producer)
    if weight is None or old_bias is None or not weight.dtype.is_floating_point():
        return None
    channels = parameters[0].size if parameters[0] is not None else 0
    if any(array is None or array.shape != (channels,) for array in parameters):
        return None
    scale, shift, mean, variance = (np.asarray(array, np.float64) for array in parameters)
    epsilon = node.attributes.get("epsilon")
    with np.errstate(all="ignore"):  # an infinite or undefined result is not folded
        factor = scale / np.sqrt(variance + (1e-5 if epsilon is None else epsilon.as_float()))
        if old_bias.size not in (1, channels):
            return None
        bias = ((old_bias - mean) * factor + shift).astype(weight.dtype.numpy())
    shaped = _CHANNELS[producer.op_type](producer, factor, tuple(weight.shape.numpy()))
    finite = np.isfinite(factor).all() and np.isfinite(bias.astype(np.float64)).all()
    if shaped is None or not finite or not _stays_finite(weight, shaped):
        return None
    return _Fold(weight, shaped, bias)


def _stays_finite(weight: ir.TensorProtocol, factor: np.ndarray) -> bool:
    """Whether 16-bit weights stay finite. float32 weights are not read before they are written, so they pass."""
    if weight.dtype.itemsize >= ir.DataType.FLOAT.itemsize:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        folded = (weight.numpy().astype(np.float64) * factor).astype(weight.dtype.numpy())
    return bool(np.isfinite(folded.astype(np.float32)).all())


def _infers(node: ir.Node) -> bool:
    """Whether the node is in inference mode, with one statistic for each channel and one output."""
    training, spatial = node.attributes.get("training_mode"), node.attributes.get("spatial")
    return (
        (training is None or not training.as_int())
        and (spatial is None or bool(spatial.as_int()))
        and not any(value.name for value in node.outputs[1:])
        and len(node.inputs) == 5
    )


def _bias(producer: ir.Node) -> np.ndarray | None:
    """Return the old bias as one axis of float64, zero where it is missing; None where it is not one for a channel."""
    value = producer.inputs[2] if len(producer.inputs) > 2 else None
    if value is None:
        return np.zeros(1)
    array = _constant_or_uniform(value)
    # Gemm's may also be a row; a column or a matrix differs from row to row.
    is_row = array is not None and array.size == (array.shape[-1] if array.ndim else 1)
    return array.reshape(-1).astype(np.float64) if array is not None and is_row else None


def _constant_or_uniform(value: ir.Value) -> np.ndarray | None:
    """Return a constant, or the one number that an Expand repeats, as torch writes the missing bias of a Conv."""
    array = constant_array(value)
    while array is None and (node := value.producer()) is not None and node.op_type in ("Expand", "CastLike"):
        if not is_standard(node) or node.inputs[0] is None:
            return None
        value = node.inputs[0]
        array = constant_array(value)
        if array is not None and array.size != 1:
            return None
    return array


_Shape = tuple[int, ...]


def _conv_factor(_: ir.Node, factor: np.ndarray, shape: _Shape) -> np.ndarray | None:
    """Weights are [output channels, input channels of a group, ...]."""
    return factor.reshape((-1,) + (1,) * (len(shape) - 1)) if shape[:1] == (factor.size,) else None


def _conv_transpose_factor(node: ir.Node, factor: np.ndarray, shape: _Shape) -> np.ndarray | None:
    """Weights are [input channels, output channels of a group, ...], the input channels group after group."""
    attribute = node.attributes.get("group")
    groups = 1 if attribute is None else attribute.as_int()
    if len(shape) < 2 or shape[1] * groups != factor.size or shape[0] % groups:
        return None
    by_input = np.repeat(factor.reshape(groups, shape[1]), shape[0] // groups, axis=0)
    return by_input.reshape(shape[:2] + (1,) * (len(shape) - 2))


def _gemm_factor(node: ir.Node, factor: np.ndarray, shape: _Shape) -> np.ndarray | None:
    """Weights are [in, out], or [out, in] with transB; alpha and beta must not scale."""
    if any(name in node.attributes and node.attributes[name].as_float() != 1.0 for name in ("alpha", "beta")):
        return None
    transposed = "transB" in node.attributes and bool(node.attributes["transB"].as_int())
    if len(shape) != 2 or shape[0 if transposed else 1] != factor.size:
        return None
    return factor[:, np.newaxis] if transposed else factor[np.newaxis, :]


_CHANNELS: Mapping[str, Callable[[ir.Node, np.ndarray, _Shape], np.ndarray | None]] = {
    "Conv": _conv_factor,
    "ConvTranspose": _conv_transpose_factor,
    "Gemm": _gemm_factor,
}

# ---- folding ----


def _fold(model: ir.Model, node: ir.Node, producer: ir.Node, fold: _Fold, names: NameAllocator) -> None:
    replaced = [*node.inputs[1:], *producer.inputs[1:]]
    weight = _new_weight(fold, names.fresh(f"{_label(producer)}/weight_folded"))
    bias_name = names.fresh(f"{_label(producer)}/bias_folded")
    bias = ir.Tensor(fold.bias, dtype=fold.weight.dtype, name=bias_name)
    set_input(producer, 1, _initializer(model, weight))
    set_input(producer, 2, _initializer(model, bias))

    assert node.graph is not None
    take_over(node.outputs[0], producer.outputs[0], names)
    node.graph.remove(node, safe=True)
    _remove_unused(replaced)


def _label(node: ir.Node) -> str:
    return node.name or f"{node.op_type}_{node.outputs[0].name}"


def _new_weight(fold: _Fold, name: str) -> ir.TensorProtocol:
    """Return the folded weights, computed when they are read; small ones at once."""

    def fold_in(array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.asarray((array.astype(np.float64) * fold.factor).astype(array.dtype))

    return computed_tensor(fold.weight, fold_in, fold.weight.dtype, name)


def _initializer(model: ir.Model, tensor: ir.TensorProtocol) -> ir.Value:
    """Return a new initializer of the main graph, which every scope can read."""
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    model.graph.register_initializer(value)
    return value


def _remove_unused(values: Sequence[ir.Value | None]) -> None:
    """Remove the initializers, and the nodes that computed parameters from constants, that nothing reads any more."""
    for value in values:
        if value is None or is_used(value) or value.is_graph_input():
            continue
        node = value.producer()
        if node is None and value.is_initializer() and isinstance(value.graph, ir.Graph):
            value.graph.initializers.pop(str(value.name), None)
        if node is None or node.graph is None or any(bodies(node)) or any(map(is_used, node.outputs)):
            continue
        inputs = list(node.inputs)
        node.graph.remove(node, safe=True)
        _remove_unused(inputs)
