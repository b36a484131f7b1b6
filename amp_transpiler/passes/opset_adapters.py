"""Adapters of nodes whose operator changes with the opset: one row an operator and version.

An adapter edits the node in place and may put nodes in front of it, but only such as mean the same at every opset from
its version on (Constant, Reshape, Flatten, Shape, Expand, Concat, Div). The node's outputs stay the values they were.
An adapter raises `Unadaptable` for a node that it cannot carry over. ONNX's own C++ converter is not used: it drops
model-local functions and metadata, and gets Resize 10 -> 11, PRelu 6 -> 7, Hardmax 12 -> 13 and the `axis` of
broadcasts 6 -> 7 wrong (onnx 1.23).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.passes.node_builder import NodeBuilder, set_input

__all__ = ["ADAPTERS", "Adapter", "Facts", "Site", "Unadaptable"]


class Unadaptable(Exception):
    """The node cannot be carried to the next version of its operator; the message says why."""


class Facts(Protocol):
    """Facts about values that adapters may ask for."""

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type, or None if unknown."""

    def rank(self, value: ir.Value | None) -> int | None:
        """The number of axes, or None if unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """A node to adapt, with a builder of nodes in front of it and facts about values."""

    node: ir.Node
    build: NodeBuilder
    facts: Facts


Adapter = Callable[[Site], None]


def _unchanged(_: Site) -> None:
    """The signature changes in a way that no valid node can notice."""


def _ints_to_input(name: str, slot: int) -> Adapter:
    """An integer attribute becomes an int64 input."""

    def adapt(at: Site) -> None:
        attribute = at.node.attributes.pop(name, None)
        if attribute is not None:
            set_input(at.node, slot, at.build.constant(np.asarray(attribute.value, np.int64).reshape(-1)))

    return adapt


def _float_to_input(name: str, slot: int) -> Adapter:
    """A float attribute becomes an input of the first input's type."""

    def adapt(at: Site) -> None:
        attribute = at.node.attributes.pop(name, None)
        if attribute is None:
            return
        dtype = at.facts.dtype(at.node.inputs[0])
        if dtype is None:
            raise Unadaptable(f"the element type of input {_name(at.node.inputs[0])} is unknown")
        set_input(at.node, slot, at.build.constant(np.asarray(attribute.as_float(), dtype.numpy())))

    return adapt


def _drop(name: str, only: object = None, default: object = None) -> Adapter:
    """An attribute goes; refused where its value, or its default if absent, is not `only`."""

    def adapt(at: Site) -> None:
        attribute = at.node.attributes.pop(name, None)
        value = default if attribute is None else attribute.value
        if only is not None and value != only:
            raise Unadaptable(f"{name}={value} has no counterpart in the newer version")

    return adapt


def _set(name: str, value: str) -> Adapter:
    """Write out the behaviour of the old version, since the default of the new attribute differs."""

    def adapt(at: Site) -> None:
        at.node.attributes.add(ir.AttrString(name, value))

    return adapt


def _each(*adapters: Adapter) -> Adapter:
    def adapt(at: Site) -> None:
        for adapter in adapters:
            adapter(at)

    return adapt


def _name(value: ir.Value | None) -> str:
    return "(missing)" if value is None else f"'{value.name}'"


def _used(outputs: Sequence[ir.Value]) -> list[str]:
    return [str(v.name) for v in outputs if v.uses() or v.is_graph_output()]


# ---- 6 -> 7 ----


def _broadcast(at: Site) -> None:
    """B stood at `axis` of A; numpy's rule aligns last axes, so axes of size 1 are put behind B's."""
    broadcast, axis = at.node.attributes.pop("broadcast", None), at.node.attributes.pop("axis", None)
    if broadcast is None or not broadcast.as_int() or axis is None or axis.as_int() == -1:
        return
    rank_a, rank_b = at.facts.rank(at.node.inputs[0]), at.facts.rank(at.node.inputs[1])
    if rank_a is None or rank_b is None:
        raise Unadaptable(f"axis={axis.as_int()}, and the number of axes of an input is unknown")
    trailing = rank_a - axis.as_int() - rank_b
    if trailing > 0:
        set_input(at.node, 1, _with_trailing_axes(at.build, at.node.inputs[1], rank_b, trailing, at.facts))


def _with_trailing_axes(build: NodeBuilder, value: ir.Value | None, rank: int, count: int, facts: Facts) -> ir.Value:
    shape = build.constant(np.array([0] * rank + [1] * count, np.int64))  # 0 keeps the size of the axis
    return build.node("Reshape", [value, shape], dtype=facts.dtype(value))


def _prelu(at: Site) -> None:
    """A slope of one axis is one number a channel, of axis 1."""
    slope = at.node.inputs[1]
    known = constant_array(slope)
    if known is not None and known.size == 1:
        return
    rank, slope_rank = at.facts.rank(at.node.inputs[0]), at.facts.rank(slope)
    if rank is None or slope_rank is None:
        raise Unadaptable("the number of axes of an input is unknown")
    if slope_rank == 1 and rank > 2:
        set_input(at.node, 1, _with_trailing_axes(at.build, slope, 1, rank - 2, at.facts))


def _upsample_factors(at: Site) -> None:
    height, width = at.node.attributes.pop("height_scale", None), at.node.attributes.pop("width_scale", None)
    if height is not None and width is not None:
        at.node.attributes.add(ir.AttrFloat32s("scales", (1.0, 1.0, height.as_float(), width.as_float())))


# ---- 8 -> 9, 9 -> 10, 10 -> 11 ----


def _upsample_scales(at: Site) -> None:
    scales = at.node.attributes.pop("scales")
    set_input(at.node, 1, at.build.constant(np.asarray(scales.as_floats(), np.float32)))


_ENLARGES = "enlarges"  # left on a node that was an Upsample, whose scales, even if computed, are at least 1


def _upsample_resize(at: Site) -> None:
    at.node.op_type = "Resize"
    at.node.meta[_ENLARGES] = True


def _dropout_mask(at: Site) -> None:
    if used := _used(at.node.outputs[1:]):
        raise Unadaptable(f"mask '{used[0]}' is used, and becomes boolean")


def _scatter(at: Site) -> None:
    at.node.op_type = "ScatterElements"


def _slice(at: Site) -> None:
    if "axes" not in at.node.attributes:  # from now on the default is all axes, not the first ones
        at.node.attributes.add(ir.AttrInt64s("axes", range(len(at.node.attributes["starts"].as_ints()))))
    for slot, name in enumerate(("starts", "ends", "axes"), 1):
        _ints_to_input(name, slot)(at)


def _pad(at: Site) -> None:
    value = at.node.attributes.get("value")
    if value is not None and value.as_float() == 0.0:
        at.node.attributes.pop("value")  # still the default
    _ints_to_input("pads", 1)(at)
    _float_to_input("value", 2)(at)


def _resize_coordinates(at: Site) -> None:
    """Opset 10 leaves the sampling open; ONNX's tests and runtimes take floor (enlarging) or ceil (shrinking)."""
    scales = at.node.inputs[1]
    at.node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    mode, enlarges = at.node.attributes.get("mode"), at.node.meta.pop(_ENLARGES, False)
    if mode is None or mode.as_string() == "nearest":
        at.node.attributes.add(ir.AttrString("nearest_mode", _nearest_mode(constant_array(scales), enlarges=enlarges)))
    set_input(at.node, 1, at.build.constant(np.zeros(0, np.float32)))
    set_input(at.node, 2, scales)


def _nearest_mode(scales: np.ndarray | None, *, enlarges: bool) -> str:
    if enlarges:
        return "floor"
    if scales is None:
        raise Unadaptable("whether it enlarges or shrinks is not known before it runs")
    if (scales >= 1).all():
        return "floor"
    if (scales <= 1).all():
        return "ceil"
    raise Unadaptable("it enlarges one axis and shrinks another, which one nearest_mode cannot say")


# ---- 11 -> 12, 12 -> 13, 13 -> 14 ----


def _dropout_ratio(at: Site) -> None:
    ratio = at.node.attributes.pop("ratio", None)
    if ratio is not None:
        set_input(at.node, 1, at.build.constant(np.asarray(ratio.as_float(), np.float32)))


def _softmax(at: Site) -> None:
    """It worked on the input flattened to a matrix at `axis`, from now on along that one axis."""
    attribute = at.node.attributes.pop("axis", None)
    axis = 1 if attribute is None else attribute.as_int()
    rank = at.facts.rank(at.node.inputs[0])
    if axis == -1 or (rank is not None and axis == rank - 1):
        at.node.attributes.add(ir.AttrInt64("axis", -1))
        return
    data, dtype = at.node.inputs[0], at.facts.dtype(at.node.inputs[0])
    shape = at.build.node("Shape", [data], dtype=ir.DataType.INT64)
    rows = at.build.node("Flatten", [data], {"axis": axis}, dtype)
    result = at.build.node(at.node.op_type, [rows], {"axis": -1}, dtype)
    operator, name = result.producer(), at.node.name
    at.build.become("Reshape", [result, shape])
    if operator is not None and name:  # the name stays with the operator
        at.node.name, operator.name = operator.name, name


def _resize_empty(at: Site) -> None:
    for slot in (1, 2):
        known = constant_array(at.node.inputs[slot])
        if known is not None and known.size == 0:
            at.node.replace_input_with(slot, None)
    sizes = at.node.inputs[3] if len(at.node.inputs) > 3 else None
    if sizes is not None and at.node.inputs[2] is not None:
        raise Unadaptable(f"both scales {_name(at.node.inputs[2])} and sizes {_name(sizes)} are given")


def _one_output(at: Site) -> None:
    extra = [value for value in at.node.outputs[1:] if value.name]
    if extra:
        raise Unadaptable(f"it trains: it has the output {_name(extra[0])}, whose meaning changes")
    at.node.resize_outputs(1)


# ---- 17 -> 18, 19 -> 20, 20 -> 21 ----


def _split_count(at: Site) -> None:
    if len(at.node.inputs) < 2 or at.node.inputs[1] is None:
        at.node.resize_inputs(1)  # ONNX Runtime counts an empty input, too
        at.node.attributes.add(ir.AttrInt64("num_outputs", len(at.node.outputs)))


_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _grid_mode(at: Site) -> None:
    mode = at.node.attributes.get("mode")
    if mode is not None and mode.as_string() in _GRID_MODES:
        at.node.attributes.add(ir.AttrString("mode", _GRID_MODES[mode.as_string()]))


def _dft_axis(at: Site) -> None:
    attribute = at.node.attributes.pop("axis", None)
    axis = 1 if attribute is None else attribute.as_int()
    set_input(at.node, 2, at.build.constant(np.asarray(axis, np.int64)))


def _group_norm(at: Site) -> None:
    """Repeat scale and bias, one number a group, for each channel of the group."""
    data, groups = at.node.inputs[0], at.node.attributes["num_groups"].as_int()
    channels = data.shape[1] if data is not None and data.shape is not None and len(data.shape) > 1 else None
    if isinstance(channels, int):
        repeats = at.build.constant(np.array([1, channels // groups], np.int64))
    else:
        size = at.build.node("Shape", [data], {"start": 1, "end": 2}, ir.DataType.INT64)
        count = at.build.node("Div", [size, at.build.constant(np.array([groups], np.int64))], dtype=ir.DataType.INT64)
        single = at.build.constant(np.ones(1, np.int64))
        repeats = at.build.node("Concat", [single, count], {"axis": 0}, ir.DataType.INT64)
    column, flat = at.build.constant(np.array([-1, 1], np.int64)), at.build.constant(np.array([-1], np.int64))
    for slot in (1, 2):
        dtype = at.facts.dtype(at.node.inputs[slot])
        rows = at.build.node("Reshape", [at.node.inputs[slot], column], dtype=dtype)
        wide = at.build.node("Expand", [rows, repeats], dtype=dtype)
        set_input(at.node, slot, at.build.node("Reshape", [wide, flat], dtype=dtype))
    if at.facts.dtype(data) == ir.DataType.DOUBLE:  # the default from now on is to compute in float
        at.node.attributes.add(ir.AttrInt64("stash_type", int(ir.DataType.DOUBLE)))


def _layer_norm(at: Site) -> None:
    """ONNX Runtime's own LayerNormalization may have data and scale of two types, ONNX's has one for both."""
    dtypes = {at.facts.dtype(value) for value in at.node.inputs if value is not None}
    stash = at.node.attributes.get("stash_type")
    if len(dtypes) != 1 or None in dtypes or (stash is not None and stash.as_int() != ir.DataType.FLOAT):
        raise Unadaptable("data, scale and statistics differ in type")


_REDUCTIONS_18 = "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare".split()

ADAPTERS: Mapping[tuple[str, int], Adapter] = {
    **{(op, 7): _broadcast for op in "Add Sub Mul Div Pow And Or Xor Equal Greater Less".split()},
    ("PRelu", 7): _prelu,
    ("Gemm", 7): _drop("broadcast"),
    ("BatchNormalization", 7): _drop("is_test", only=1, default=0),
    ("Dropout", 7): _drop("is_test", only=1, default=0),
    ("GRU", 7): _drop("output_sequence"),
    ("LSTM", 7): _drop("output_sequence"),
    ("RNN", 7): _drop("output_sequence"),
    ("Upsample", 7): _upsample_factors,
    ("BatchNormalization", 9): _drop("spatial", only=1, default=1),
    ("Upsample", 9): _upsample_scales,
    ("Dropout", 10): _dropout_mask,
    ("Slice", 10): _slice,
    ("ThresholdedRelu", 10): _unchanged,  # before, it was one of ONNX Runtime's own
    ("TopK", 10): _ints_to_input("k", 1),
    ("Upsample", 10): _upsample_resize,
    ("Clip", 11): _each(_float_to_input("min", 1), _float_to_input("max", 2)),
    ("Pad", 11): _pad,
    ("Resize", 11): _resize_coordinates,
    ("Scatter", 11): _scatter,
    ("Dropout", 12): _dropout_ratio,
    ("Erf", 13): _unchanged,  # integers are no longer admitted; no runtime took them
    ("Softmax", 13): _softmax,
    ("LogSoftmax", 13): _softmax,
    ("Hardmax", 13): _softmax,
    ("Split", 13): _ints_to_input("split", 1),
    ("Squeeze", 13): _ints_to_input("axes", 1),
    ("Unsqueeze", 13): _ints_to_input("axes", 1),
    ("ReduceSum", 13): _ints_to_input("axes", 1),
    ("Resize", 13): _resize_empty,
    ("BatchNormalization", 14): _one_output,
    ("RoiAlign", 16): _set("coordinate_transformation_mode", "output_half_pixel"),
    ("LayerNormalization", 17): _layer_norm,
    **{(f"Reduce{kind}", 18): _ints_to_input("axes", 1) for kind in _REDUCTIONS_18},
    ("Split", 18): _split_count,
    ("GridSample", 20): _grid_mode,
    ("DFT", 20): _dft_axis,
    ("GroupNormalization", 21): _group_norm,
}
