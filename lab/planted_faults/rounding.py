"""A float32 model that rounds like a mixed one, written without the package, and the smallest cure by trying all sets.

A low node reads its float inputs rounded, and its results are rounded; one that is kept reads and writes float32. That
is what a conversion with casts between the two computes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from planted_faults.editing import copy_of
from planted_faults.running import Arrays, error_between, opened, outputs_of

__all__ = ["Switched", "first_alarm", "float_nodes", "rounded", "smallest_cure"]

_LOW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_FLAGS = "rounding_flags"  # the input of a `Switched` model: which nodes are kept
_LARGEST_CURE = 4


def _float_values(model: onnx.ModelProto) -> set[str]:
    shown = onnx.shape_inference.infer_shapes(model)
    values = (*shown.graph.value_info, *shown.graph.input, *shown.graph.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    return floats | {tensor.name for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT}


def float_nodes(model: onnx.ModelProto) -> list[str]:
    """Return the names of the nodes of the main graph that compute with floats."""
    floats = _float_values(model)
    return [
        node.name
        for node in model.graph.node
        if node.op_type != "Constant" and floats.intersection((*node.input, *node.output))
    ]


class _Rounder:
    """Writes the model that rounds.

    Args:
        model: the float32 model; it is changed.
        dtype: the low format.
        switches: node -> the value that says whether it is kept; without, those in `keeps` are.
        keeps: names of nodes that are kept.
    """

    def __init__(
        self, model: onnx.ModelProto, dtype: str, keeps: Collection[str] = (), switches: Mapping[str, str] | None = None
    ) -> None:
        self._model, self._dtype, self._keeps, self._switches = model, dtype, keeps, switches
        self._floats = _float_values(model)
        self._constants = {
            tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT
        }
        self._nodes: list[onnx.NodeProto] = []
        self._known: dict[str, str] = {}  # a value -> the same, rounded
        self._count = 0

    def write(self) -> None:
        for node in list(self._model.graph.node):
            if node.op_type == "Constant" or node.name in self._keeps:
                self._nodes.append(node)
                continue
            flag = self._switches.get(node.name) if self._switches else None
            for index, name in enumerate(node.input):
                if name in self._floats:
                    node.input[index] = self._rounded(name, flag)
            raw = {name: self._new() for name in node.output if name in self._floats}
            for index, name in enumerate(node.output):
                node.output[index] = raw.get(name, name)
            self._nodes.append(node)
            for name, unrounded in raw.items():
                self._round(unrounded, flag, name)
        del self._model.graph.node[:]
        self._model.graph.node.extend(self._nodes)

    def _rounded(self, name: str, flag: str | None) -> str:
        if flag is not None:
            return self._round(name, flag, self._new())
        if name not in self._known:
            self._known[name] = self._new()
            if name in self._constants:
                self._add_rounded_constant(name)
            else:
                self._round(name, None, self._known[name])
        return self._known[name]

    def _add_rounded_constant(self, name: str) -> None:
        with np.errstate(over="ignore"):
            low = numpy_helper.to_array(self._constants[name]).astype(_NUMPY[self._dtype]).astype(np.float32)
        self._model.graph.initializer.append(numpy_helper.from_array(low, self._known[name]))

    def _round(self, name: str, flag: str | None, result: str) -> str:
        low, back = self._new(), result if flag is None else self._new()
        self._nodes.append(helper.make_node("Cast", [name], [low], to=_LOW[self._dtype]))
        self._nodes.append(helper.make_node("Cast", [low], [back], to=TensorProto.FLOAT))
        if flag is not None:
            self._nodes.append(helper.make_node("Where", [flag, name, back], [result]))
        return result

    def _new(self) -> str:
        self._count += 1
        return f"rounding_{self._count}"


def rounded(model: onnx.ModelProto, dtype: str, keeps: Collection[str] = ()) -> onnx.ModelProto:
    """Return the float32 model that rounds as one with all nodes low but those named in `keeps`."""
    copy = copy_of(model)
    del copy.graph.value_info[:]
    _Rounder(copy, dtype, keeps).write()
    return copy


def first_alarm(model: onnx.ModelProto, low: onnx.ModelProto, sample: Arrays, among: Collection[str]) -> str | None:
    """Return the first of some nodes whose result is no number any more, or a row of zeros; None if there is none.

    Args:
        model: the float32 model.
        low: the same, rounded.
        sample: what is fed.
        among: names of the nodes.
    """
    nodes = [node for node in model.graph.node if node.name in among]
    floats = _float_values(model)
    names = [name for node in nodes for name in node.output if name in floats]
    wide, narrow = (_shown(each, names, sample) for each in (model, low))
    for node in nodes:
        if any(_alarms(wide[name], narrow[name]) for name in node.output if name in floats):
            return str(node.name)
    return None


def _shown(model: onnx.ModelProto, names: Collection[str], sample: Arrays) -> Arrays:
    copy = copy_of(model)
    known = {value.name for value in copy.graph.output}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in known]
    copy.graph.output.extend(values)
    return outputs_of(copy, sample)


def _alarms(wide: np.ndarray, narrow: np.ndarray) -> bool:
    if not np.isfinite(narrow[np.isfinite(wide)]).all():
        return True
    rows = np.atleast_2d(wide).any(axis=-1) & ~np.atleast_2d(narrow).any(axis=-1)
    return bool(rows.any())


class Switched:
    """A model in which each float node can be kept or low from run to run.

    Args:
        model: the float32 model.
        dtype: the low format.
        sample: what is fed.
        reference: the outputs in float32.
    """

    def __init__(self, model: onnx.ModelProto, dtype: str, sample: Arrays, reference: Arrays) -> None:
        copy = copy_of(model)
        del copy.graph.value_info[:]
        self.nodes = float_nodes(model)
        switches = {name: f"{_FLAGS}_{index}" for index, name in enumerate(self.nodes)}
        _Rounder(copy, dtype, switches=switches).write()
        for index, flag in enumerate(switches.values()):
            copy.graph.initializer.append(numpy_helper.from_array(np.array(index), f"{flag}_index"))
            copy.graph.node.insert(0, helper.make_node("Gather", [_FLAGS, f"{flag}_index"], [flag]))
        copy.graph.input.append(helper.make_tensor_value_info(_FLAGS, TensorProto.BOOL, [len(self.nodes)]))
        self._session, self._names = opened(copy), list(reference)
        self._sample, self._reference = sample, reference

    def error(self, keeps: Collection[str]) -> float:
        """Return the error with some nodes kept in float32."""
        flags = np.array([name in keeps for name in self.nodes])
        arrays = self._session.run(self._names, {**self._sample, _FLAGS: flags})
        return error_between(self._reference, dict(zip(self._names, arrays, strict=True)))


def smallest_cure(switched: Switched, limit: float, preferred: Collection[str]) -> tuple[list[str], float] | None:
    """Return the smallest set of nodes whose float32 brings the error within a limit, and that error; None if none is.

    All sets of one and of two are tried. Larger ones only if they hold every node without which all others do not do.

    Args:
        switched: the model.
        limit: the error allowed.
        preferred: of several smallest sets, one with most of these is taken.
    """
    cures: list[tuple[list[str], float]] = []
    for candidates in _candidates(switched, limit):
        for keeps in candidates:
            error = switched.error(keeps)
            if error <= limit:
                cures.append((sorted(keeps, key=switched.nodes.index), error))
        if cures:
            return max(cures, key=lambda cure: (len(set(cure[0]) & set(preferred)), -cure[1]))
    return None


def _candidates(switched: Switched, limit: float) -> Iterator[list[set[str]]]:
    nodes = switched.nodes
    for size in (0, 1, 2):
        yield [set(keeps) for keeps in itertools.combinations(nodes, size)]
    needed = {name for name in nodes if switched.error(set(nodes) - {name}) > limit}
    others = [name for name in nodes if name not in needed]
    for size in range(3, _LARGEST_CURE + 1):
        if 0 <= size - len(needed) <= 2:
            yield [needed.union(rest) for rest in itertools.combinations(others, size - len(needed))]
