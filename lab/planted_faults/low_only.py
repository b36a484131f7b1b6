"""Faults that only the 16-bit model has: what another tool did wrong, and what a device's kernel does wrong."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from planted_faults.editing import Editor, Place
from planted_faults.plot import NoPlace, Plant, Plot, power_of_two

__all__ = ["cast_ids", "change_value", "device_fault", "lookup", "nothing", "parameter"]

_LOW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_EXACT_TO = {"float16": 2048, "bfloat16": 256}  # integers up to here are exact
_ROWS = 6000


def lookup(plot: Plot) -> Plant:
    """A look-up by integers that are not exact in the low format: one of the model's, or a new one."""
    gathers = _lookups(plot)
    if gathers:
        node = plot.one_of(gathers)
        return Plant((node,), (node,), "of the model", low_only=True)
    place = plot.place()
    length, largest = place.array.shape[-1], _ROWS if plot.dtype == "float16" else 600
    ids = np.bitwise_or(plot.draw.integers(_EXACT_TO[plot.dtype], largest, length), 1)  # odd ones are rounded
    table = plot.draw.normal(0, 0.5 * power_of_two(place.peak), largest + 1)
    edit = plot.editor(place)
    picked = edit.node("Gather", edit.constant(table), edit.constant(ids, np.int64), axis=0)
    guilty = edit.last
    edit.replace(edit.node("Add", place.value, picked))
    return Plant((guilty,), tuple(edit.added), "new", low_only=True)


def _lookups(plot: Plot) -> list[str]:
    """Return the Gather nodes that are fed large integers by an input of the model."""
    fed = {name: array for name, array in plot.sample.items() if array.dtype.kind == "i"}
    return [
        node.name
        for node in plot.model.graph.node
        if node.op_type == "Gather" and _inexact(fed.get(node.input[1]), plot.dtype)
    ]


def _inexact(ids: np.ndarray | None, dtype: str) -> bool:
    if ids is None:
        return False
    low = ids.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16).astype(np.int64)
    return bool((low != ids).any())


def cast_ids(low: onnx.ModelProto, plant: Plant, plot: Plot) -> tuple[str, ...]:
    """Let the integers of the look-up pass through the low format."""
    gather = next((node for node in low.graph.node if node.name == plant.guilty[0]), None)
    if gather is None:
        raise NoPlace  # the tool has folded it
    edit = Editor(low, gather.input[1])
    edit.insert_before(gather.name)
    there = edit.node("Cast", gather.input[1], to=_LOW[plot.dtype])
    gather.input[1] = edit.node("Cast", there, to=TensorProto.INT64)
    return (*edit.added, gather.name)


_WEIGHTED = ("Conv", "MatMul", "Gemm", "Mul", "Add", "LayerNormalization")


def parameter(plot: Plot) -> Plant:
    """A node whose weight the low model will have wrong."""
    weights = {tensor.name for tensor in plot.model.graph.initializer if np.prod(tensor.dims) >= 8}
    reads = [name for node in plot.model.graph.node for name in node.input]
    nodes = [
        node
        for node in plot.model.graph.node
        if node.op_type in _WEIGHTED and len(node.input) > 1 and node.input[1] in weights
    ]
    node = plot.one_of([node for node in nodes if reads.count(node.input[1]) == 1])
    return Plant((node.name,), (), node.op_type, low_only=True)


def change_value(low: onnx.ModelProto, plant: Plant, plot: Plot) -> tuple[str, ...]:
    """Change a weight in the low model: one slice is zero, the sign of one is lost, or all are a tenth too large."""
    node = next((node for node in low.graph.node if node.name == plant.guilty[0]), None)
    tensors = {tensor.name: tensor for tensor in low.graph.initializer}
    if node is None or node.input[1] not in tensors:
        raise NoPlace  # the tool has fused it, or put a cast before it
    array = numpy_helper.to_array(tensors[node.input[1]])
    wide = array.astype(np.float32)
    variant, place = plot.one_of(["zero", "sign", "scale"]), int(plot.draw.integers(array.shape[-1]))
    if variant == "zero":
        wide[..., place] = 0.0
    elif variant == "sign":
        wide[..., place] = np.abs(wide[..., place])
    else:
        wide *= 1.125
    tensors[node.input[1]].CopyFrom(numpy_helper.from_array(wide.astype(array.dtype), node.input[1]))
    return (node.name,)


def nothing(low: onnx.ModelProto, plant: Plant, plot: Plot) -> tuple[str, ...]:
    """Leave the low model as it is: its node of the same name is guilty."""
    del plot
    names = {node.name for node in low.graph.node}
    return tuple(name for name in plant.guilty if name in names)


# ---- kernels that compute something wrong: rows of targets/data/arithmetic.txt that have a fault ----
def _log_of(op_type: str, lowest: float) -> Callable[[Plot, Editor, Place], str]:
    """A result that the kernel makes zero, and its logarithm."""

    def build(plot: Plot, edit: Editor, place: Place) -> str:
        del plot
        result = edit.node(op_type, edit.node("Mul", place.value, float(np.float16(lowest / place.peak))))
        guilty = edit.last
        log = edit.node("Log", edit.node("Add", result, 2.0**-14))
        edit.node("Mul", log, power_of_two(place.peak) / 8)
        return guilty

    return build


def _small(op_type: str) -> Callable[[Plot, Editor, Place], str]:
    """Small inputs, whose results are scaled up."""

    def build(plot: Plot, edit: Editor, place: Place) -> str:
        del plot
        scale = power_of_two(2.0**-9 / place.peak)
        result = edit.node(op_type, edit.node("Mul", place.value, scale))
        guilty = edit.last
        edit.node("Mul", result, 0.5 / scale)
        return guilty

    return build


def _counted(plot: Plot, edit: Editor, place: Place) -> str:
    """A running sum of ones, one for each of more than 2048 elements."""
    if not 2100 <= place.array.size <= 40_000:
        raise NoPlace
    del plot
    flat = edit.node("Reshape", place.value, edit.constant(np.array([-1]), np.int64))
    ones = edit.node("Add", edit.node("Mul", flat, 0.0), 1.0)
    counts = edit.node("CumSum", ones, edit.constant(np.array(0), np.int64))
    guilty = edit.last
    share = edit.node("Mul", counts, power_of_two(place.peak) / power_of_two(place.array.size))
    edit.node("Reshape", share, edit.node("Shape", place.value))
    return guilty


# Operator -> the formats in which its kernel has a fault, and what shows it.
_KERNELS: dict[str, tuple[tuple[str, ...], Callable[[Plot, Editor, Place], str]]] = {
    "Sigmoid": (("bfloat16",), _log_of("Sigmoid", 8.0)),
    "Softplus": (("float16", "bfloat16"), _log_of("Softplus", 9.0)),
    "Elu": (("float16", "bfloat16"), _small("Elu")),
    "Selu": (("float16",), _small("Selu")),
    "CumSum": (("float16",), _counted),
}


def device_fault(plot: Plot) -> Plant:
    """An operator whose low kernel is wrong on the device."""
    op_type = plot.one_of([name for name, (formats, _) in _KERNELS.items() if plot.dtype in formats])
    place = plot.place(lambda place: 2.0**-5 < place.peak < 64)
    edit = plot.editor(place)
    guilty = _KERNELS[op_type][1](plot, edit, place)
    result = next(node.output[0] for node in plot.model.graph.node if node.name == edit.last)
    edit.replace(edit.node("Add", place.value, result))
    return Plant((guilty,), tuple(edit.added), op_type, low_only=True)
