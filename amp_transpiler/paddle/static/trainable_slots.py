"""Tells which constants of an inference model are weights: they reach a slot where operators take parameters.

A table of operators lists these slots. A weight may reach its slot through operators that move or retype it, and
through arithmetic with other weights, as weight normalisation does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import read
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import FLOAT_DTYPES
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.paddle.static.signal_filters import is_window
from amp_transpiler.paddle.static.weight_flow import THROUGH, Read, WeightFlow

__all__ = ["STATISTIC_SLOTS", "TRAINABLE_SLOTS", "float_constants", "is_of_a_node", "slots_of", "weight_slot"]

# Whether a node takes a constant at this input as a weight.
Test = Callable[[Read], bool]

_MASKED = 1e4  # learnt biases are smaller; attention masks are larger
# What PyTorch's exporters call constants of their own, also where a tool has made initializers of them.
_MADE_UP = re.compile(r"val_\d+|(?:.*/)?Constant(?:_\d+)?_output_\d+")
_UNIT_AXIS = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1}  # of its weights: where its units are counted
_NORMS = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization"})


# ---- the numbers ----


def _is_unmasked(array: np.ndarray) -> bool:
    magnitude = float(np.abs(array.astype(np.float64)).max())
    return bool(np.isfinite(magnitude)) and magnitude < _MASKED


def _has_fractions(array: np.ndarray) -> bool:
    """Whether not all numbers are multiples of one half, as those of masks and of the centres of grid cells are."""
    doubled = array.astype(np.float64) * 2.0
    return bool(np.isfinite(doubled).all()) and bool((doubled != np.round(doubled)).any())


def _is_uniform(array: np.ndarray) -> bool:
    return bool((array == array.reshape(-1)[0]).all())


def _is_zero(array: np.ndarray) -> bool:
    return not array.any()


def _is_wave(array: np.ndarray) -> bool:
    """Whether a table holds sines and cosines of positions: all rows have one norm, or the first is all 0 or all 1."""
    rows = array.astype(np.float64).reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    if rows.shape[0] < 2 or np.abs(rows).max() > 1.0 + 1e-3:
        return False
    half = rows.shape[1] / 2
    first = np.abs(rows[0])
    return bool((np.abs((rows**2).sum(1) - half) < 1e-3 * half).all() or (first == 1).all() or (first == 0).all())


def _is_made_up(slot: Read) -> bool:
    """Whether an exporter put the numbers there itself: they are all the same, and their name is generated."""
    made_up = _MADE_UP.fullmatch(str(slot.tensor.name or slot.value.name)) is not None
    return made_up and read(slot.tensor, _is_uniform)


def _vector_or_table(slot: Read) -> int:
    """Return the number of axes longer than 1; 0 for what is too small or too large to be learnt, or unknown."""
    if slot.tensor.size < 2 or slot.value.shape is None or not read(slot.tensor, _is_unmasked):
        return 0
    return sum(size != 1 for size in slot.value.shape)


# ---- the slots ----


def _tensor(slot: Read) -> bool:
    """Whether it is anything but a scalar. A vector of one element counts: it is the bias of one channel."""
    return len(slot.tensor.shape) > 0


def _several(slot: Read) -> bool:
    return slot.tensor.size > 1


def _kernel(slot: Read) -> bool:
    """Whether it holds the weights of a layer that filters or mixes, and no formula made them."""
    return _tensor(slot) and not slot.flow.is_signal_filter(slot.value, slot.tensor)


def _matrix(slot: Read) -> bool:
    return _several(slot) and not slot.flow.is_signal_filter(slot.value, slot.tensor)


def _channel_bias(slot: Read) -> bool:
    """Whether it is a convolution's bias, and not zeros beside a filter that is no weight or a bias added behind."""
    if not _tensor(slot):
        return False
    filters, result = slot.node.inputs[1], slot.node.outputs[0]
    uses = list(result.uses())
    is_added_behind = (
        len(uses) == 1 and uses[0].node.op_type == "Add" and any(map(slot.flow.is_fixed, uses[0].node.inputs))
    )
    filled = is_added_behind or (filters is not None and slot.flow.is_signal_filter(filters))
    return not (filled and read(slot.tensor, _is_zero))


def _norm(slot: Read) -> bool:
    """Whether it is a scale or bias of a normalisation, and the exporter did not only fill the slot."""
    return _tensor(slot) and not _is_made_up(slot) and not _is_of_groups(slot)


def _is_of_groups(slot: Read) -> bool:
    """Whether an InstanceNormalization stands for a normalisation by groups: ones and zeros, and the scale follows."""
    return slot.node.op_type == "InstanceNormalization" and read(slot.tensor, _is_uniform) and _is_scaled_after(slot)


def _is_scaled_after(slot: Read) -> bool:
    values = list(slot.node.outputs[:1])
    moved = False
    while values:
        for use in values.pop().uses():
            if is_standard(use.node) and use.node.op_type in THROUGH and use.idx == 0:
                moved = True
                values.append(use.node.outputs[0])
            elif moved and use.node.op_type == "Mul" and slot.flow.is_fixed(use.node.inputs[1 - use.idx]):
                return True
    return False


def _embedding(slot: Read) -> bool:
    axis = slot.node.attributes.get("axis")
    is_table = slot.tensor.size > 1 and len(slot.value.shape or ()) == 2
    return is_table and (axis is None or axis.as_int() == 0)


def _bias(slot: Read) -> bool:
    """Whether it is a vector along one axis or a table such as learnt positions, no mask or grid of coordinates."""
    if _is_of_one_unit(slot):
        return True
    axes = _vector_or_table(slot)
    if not axes or not slot.is_moved or slot.flow.is_fixed(slot.other):
        return False
    if axes > 1:
        return read(slot.tensor, _has_fractions) and not read(slot.tensor, _is_wave)
    # Channels of an input that are shifted before any layer reads them are being prepared.
    shape = list(slot.value.shape or ())
    return slot.flow.is_deep(slot.other) or len(shape) < 3 or shape[-1] != 1


def _is_of_one_unit(slot: Read) -> bool:
    """Whether one number is the bias of a layer with one unit."""
    layer = _maker(slot.other)
    if slot.tensor.size != 1 or not len(slot.tensor.shape) or layer is None or layer.op_type not in _UNIT_AXIS:
        return False
    weights = layer.inputs[1]
    if weights is None or weights.shape is None or not slot.flow.is_fixed(weights):
        return False
    return weights.shape[_UNIT_AXIS[layer.op_type]] == 1


def _factor(slot: Read) -> bool:
    """Whether it is a scale that is written out: of a normalisation, or of what another layer has computed."""
    axes = _vector_or_table(slot)
    if not axes or not slot.is_moved or (axes == 1 and read(slot.tensor, is_window)):
        return False
    if axes == 1 and _is_normalised(slot.other):
        return True
    if not slot.flow.is_deep(slot.other):
        return False
    if read(slot.tensor, _has_fractions):
        return axes == 1 or not read(slot.tensor, _is_wave)
    return axes == 1 and read(slot.tensor, _is_uniform) and not _is_made_up(slot)


def _difference(slot: Read) -> bool:
    return slot.flow.is_deep(slot.other) and _bias(slot)


def _token(slot: Read) -> bool:
    """Whether it holds learnt rows that are joined to the data."""
    joins_data = any(slot.flow.is_deep(value) for value in slot.node.inputs)
    return joins_data and slot.tensor.size > 1 and slot.is_moved and read(slot.tensor, _has_fractions)


def _is_normalised(value: ir.Value | None) -> bool:
    node = _maker(value)
    if node is None:
        return False
    if node.op_type in _NORMS:
        return True
    if node.op_type == "Div":
        return _is_root(node.inputs[1])
    return node.op_type == "Mul" and any(_is_inverse_root(factor) for factor in node.inputs)


def _is_root(value: ir.Value | None) -> bool:
    node = _maker(value)
    return node is not None and node.op_type == "Sqrt"


def _is_inverse_root(value: ir.Value | None) -> bool:
    node = _maker(value)
    if node is None or node.op_type not in ("Reciprocal", "Div"):
        return False
    return _is_root(node.inputs[-1])


def _maker(value: ir.Value | None) -> ir.Node | None:
    """Return the node of ONNX's own domain that computes a value, looking through what moves or retypes it."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in THROUGH and is_standard(node) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and is_standard(node) else None


_EVERY = -1  # stands for every input of a variadic operator
_CONTRIB = "com.microsoft"

TRAINABLE_SLOTS: Mapping[tuple[str, str], Mapping[int, Test]] = {
    ("", "Add"): {0: _bias, 1: _bias},
    ("", "BatchNormalization"): {1: _norm, 2: _norm},
    ("", "Concat"): {_EVERY: _token},
    ("", "Conv"): {1: _kernel, 2: _channel_bias},
    ("", "ConvTranspose"): {1: _kernel, 2: _channel_bias},
    ("", "Div"): {1: _factor},
    ("", "Einsum"): {_EVERY: _matrix},
    ("", "Gather"): {0: _embedding},
    ("", "Gemm"): {0: _kernel, 1: _kernel, 2: _tensor},
    ("", "GRU"): {1: _tensor, 2: _tensor, 3: _tensor},
    ("", "GroupNormalization"): {1: _norm, 2: _norm},
    ("", "InstanceNormalization"): {1: _norm, 2: _norm},
    ("", "LSTM"): {1: _tensor, 2: _tensor, 3: _tensor, 7: _tensor},
    ("", "LayerNormalization"): {1: _norm, 2: _norm},
    ("", "MatMul"): {0: _matrix, 1: _matrix},
    ("", "Mul"): {0: _factor, 1: _factor},
    ("", "PRelu"): {1: _tensor},
    ("", "RMSNormalization"): {1: _norm},
    ("", "RNN"): {1: _tensor, 2: _tensor, 3: _tensor},
    ("", "SimplifiedLayerNormalization"): {1: _norm},
    ("", "Sub"): {0: _difference, 1: _difference},
    (_CONTRIB, "Attention"): {1: _several, 2: _tensor},
    (_CONTRIB, "BiasAdd"): {1: _tensor},
    (_CONTRIB, "BiasGelu"): {1: _tensor},
    (_CONTRIB, "BiasSplitGelu"): {1: _tensor},
    (_CONTRIB, "EmbedLayerNormalization"): {2: _several, 3: _several, 4: _several, 5: _norm, 6: _norm},
    (_CONTRIB, "FastGelu"): {1: _tensor},
    (_CONTRIB, "FusedConv"): {1: _kernel, 2: _channel_bias},
    (_CONTRIB, "FusedGemm"): {0: _kernel, 1: _kernel, 2: _tensor},
    (_CONTRIB, "FusedMatMul"): {0: _matrix, 1: _matrix},
    (_CONTRIB, "GemmFastGelu"): {1: _several, 2: _tensor},
    (_CONTRIB, "GroupNorm"): {1: _norm, 2: _norm},
    (_CONTRIB, "MultiHeadAttention"): {3: _tensor},
    (_CONTRIB, "NhwcFusedConv"): {1: _kernel, 2: _channel_bias},
    (_CONTRIB, "SkipGroupNorm"): {1: _norm, 2: _norm, 4: _tensor},
    (_CONTRIB, "SkipLayerNormalization"): {2: _norm, 3: _norm, 4: _tensor},
    (_CONTRIB, "SkipSimplifiedLayerNormalization"): {2: _norm, 3: _tensor},
}
STATISTIC_SLOTS: Mapping[str, tuple[int, ...]] = {"BatchNormalization": (3, 4)}


def float_constants(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield every float constant of every scope, initializers and Constant nodes alike, with its tensor."""
    for scope in scopes(model):
        outputs = (value for node in scope.graph if node.op_type == "Constant" for value in node.outputs)
        for value in (*scope.graph.initializers.values(), *outputs):
            tensor = constant_of(value)
            leaves_a_body = scope.owner is not None and value.is_graph_output()
            if tensor is not None and tensor.dtype in FLOAT_DTYPES and not leaves_a_body:
                yield value, tensor


def is_of_a_node(value: ir.Value) -> bool:
    """Whether a Constant node makes the value: no training changed such numbers, so none does here unless asked."""
    return value.producer() is not None


def slots_of(node: ir.Node) -> Mapping[int, Test]:
    """Return the inputs of a node that may be weights, with the test of each."""
    return TRAINABLE_SLOTS.get(("" if is_standard(node) else node.domain, node.op_type), {})


def weight_slot(value: ir.Value, tensor: ir.TensorProtocol, flow: WeightFlow) -> str:
    """Return where a float constant is read as a weight, such as `Conv 'stem' input 1`; empty if it is not."""
    for slot in flow.reads(value, tensor):
        slots = slots_of(slot.node)
        test = slots.get(slot.index, slots.get(_EVERY))
        if test is not None and test(slot) and (slot.is_moved or not _is_made_up(slot)):
            return f"{slot.node.op_type} '{slot.node.name}' input {slot.index}"
    return ""
