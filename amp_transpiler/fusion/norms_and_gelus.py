"""Normalisations and GELU that are written as several nodes, written as one: rows of `passes/rewrite.py`.

The forms are those by which the cost model knows what ONNX Runtime fuses (`cost/fused_patterns.py`). Here their numbers
count, too: a fused operator has them built in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from amp_transpiler.cost.fused_patterns import (
    LAYER_NORM,
    PATTERNS,
    PLAIN_LAYER_NORM,
    PLAIN_RMS_NORM,
    RMS_NORM,
    RMS_NORM_BY_RECIPROCAL,
)
from amp_transpiler.fusion.restrictions import Restrictions
from amp_transpiler.graph.constness import constant_array, constant_of, single_number
from amp_transpiler.graph.match import Binding
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.rewrite import Rewrite, rewrite

__all__ = ["FuseWrittenOut"]

logger = logging.getLogger(__name__)

_CONTRIB = "com.microsoft"
_NUMBERS: Mapping[str, float] = MappingProxyType(
    {
        "one": 1.0,
        "unit": 1.0,
        "half": 0.5,
        "two": 2.0,
        "three": 3.0,
        "root": math.sqrt(2.0),
        "inverse": math.sqrt(0.5),
        "linear": math.sqrt(2.0 / math.pi),
        "cubic": 0.044715,
    }
)
"""Name of a constant in a form -> its number."""
_CLOSE = 1e-6  # relative: constants of exporters are rounded to float32, some to seven digits
_BY_ERF, _BY_TANH = ("a GELU", "a tanh GELU")
_MOST_ONES = 1 << 14  # of a scale of ones, which the file gains; one kernel reads such a row at once
_SCALED = tuple(f"Mul({form}, scale:w)" for form in PLAIN_LAYER_NORM)
_SHIFTED = tuple(f"Add({form}, shift:w)" for form in _SCALED)


class FuseWrittenOut(Pass[PassResult]):
    """Writes LayerNormalization, root mean square normalisation and GELU as one node each; counts them.

    1. A normalisation is over the last axis, in float32. Vectors of its size that it is multiplied with and that are
       added become its scale and shift; without them its scale is ones, and what else is done to it stays.
    2. The constants of GELU are those of its definition.
    3. Nodes that others read, too, stay for them.

    It looks at the main graph, whose constants are in one form.

    Args:
        names: the fusions that are done, as in `ops/fusions.py`.
        restrictions: which nodes may become one.
        sizes_of: returns the sizes of a graph; they stay up to date.
    """

    def __init__(
        self, names: Collection[str], restrictions: Restrictions, sizes_of: Callable[[ir.Graph], Sizes]
    ) -> None:
        self._names = names
        self._restrictions = restrictions
        self._sizes_of = sizes_of

    def call(self, model: ir.Model) -> PassResult:
        kinds = {node.op_type for node in model.graph}
        count = 0
        for rows in self._rounds(kinds, model.graph):
            replaced = rewrite(model, rows, list(model.graph))
            if replaced and rows[0].domain:
                model.graph.opset_imports.setdefault(_CONTRIB, 1)
            count += replaced
        if count:
            logger.info("%d normalisations and GELUs written as one operator", count)
        return PassResult(model, modified=bool(count), count=count)

    def _rounds(self, kinds: Collection[str], graph: ir.Graph) -> Iterator[Sequence[Rewrite]]:
        """Yield the rows of one operator after the other.

        Args:
            kinds: the operators in the model.
            graph: its main graph.
        """
        names = self._names
        if {"ReduceMean", "Sqrt"} <= set(kinds):
            yield from self._norms(graph)
        if "Erf" in kinds and (name := _first(names, "Gelu", "com.microsoft::Gelu")):
            yield self._gelus(name, _BY_ERF, graph)
        if "Tanh" in kinds and (name := _first(names, "Gelu", "FastGelu")):
            yield self._gelus(name, _BY_TANH, graph)

    def _norms(self, graph: ir.Graph) -> Iterator[Sequence[Rewrite]]:
        """Yield the rows of normalisations, those with most nodes first: others end in the middle of theirs.

        LayerNormalization comes before root mean square normalisation, of which it is one: of what is centred.
        """

        def is_norm(norm: Binding) -> bool:
            sizes = self._sizes_of(graph)  # worked out for the first match: many graphs have none
            return _has_its_numbers(norm, lambda: sizes) and _is_over_last_axis(norm, sizes)

        def is_short(norm: Binding) -> bool:
            return is_norm(norm) and _width(norm, self._sizes_of(graph)) <= _MOST_ONES

        def ones(norm: Binding) -> dict[str, np.ndarray]:
            return {"ones": np.ones(_width(norm, self._sizes_of(graph)), np.float32)}

        if (name := "LayerNormalization") in self._names:
            yield self._rows(name, (*LAYER_NORM, *_SHIFTED), f"{name}(x, scale, shift)", is_norm, _layer_norm)
            yield self._rows(name, _SCALED, f"{name}(x, scale)", is_norm, _layer_norm)
            yield self._rows(name, PLAIN_LAYER_NORM, f"{name}(x, ones)", is_short, _layer_norm, constants=ones)
        if name := _first(self._names, "RMSNormalization", "SimplifiedLayerNormalization"):
            yield self._rows(name, (*RMS_NORM, *RMS_NORM_BY_RECIPROCAL), f"{name}(x, scale)", is_norm, _layer_norm)
            yield self._rows(name, PLAIN_RMS_NORM, f"{name}(x, ones)", is_short, _layer_norm, constants=ones)

    def _gelus(self, name: str, pattern: str, graph: ir.Graph) -> Sequence[Rewrite]:
        """Return the rows of GELU as one of its operators, by the name of the fusion."""

        def is_gelu(gelu: Binding) -> bool:
            return _has_its_numbers(gelu, lambda: self._sizes_of(graph))

        (forms,) = (row.forms + row.unfused for row in PATTERNS if row.name == pattern)
        domain = "" if name == "Gelu" else _CONTRIB
        attributes = _by_tanh if pattern == _BY_TANH and not domain else None
        operator = name.rpartition("::")[2]
        return self._rows(name, forms, f"{operator}(x)", is_gelu, attributes, domain)

    def _rows(
        self,
        fusion: str,
        forms: Sequence[str],
        replacement: str,
        is_one: Callable[[Binding], bool],
        attributes: Callable[[Binding], Mapping[str, object]] | None,
        domain: str = "",
        constants: Callable[[Binding], Mapping[str, np.ndarray]] | None = None,
    ) -> Sequence[Rewrite]:
        def applies(match: Binding) -> bool:
            return is_one(match) and self._restrictions.allow(fusion, match.last, match.nodes)

        return [Rewrite(form, replacement, applies, attributes, domain, constants) for form in forms]


def _first(names: Collection[str], *wanted: str) -> str:
    return next((name for name in wanted if name in names), "")


def _layer_norm(norm: Binding) -> dict[str, object]:
    return {"axis": -1, "epsilon": single_number(norm["epsilon"]), "stash_type": 1}


def _by_tanh(_: Binding) -> dict[str, object]:
    return {"approximate": "tanh"}


def _has_its_numbers(match: Binding, sizes_of: Callable[[], Sizes]) -> bool:
    """Whether all is float32, and constants are the numbers that their names in the form stand for.

    Args:
        match: of a form.
        sizes_of: returns the sizes of the graph, which are asked for only if a number has more than one axis.
    """
    if match["x"].dtype != ir.DataType.FLOAT or match.last.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    for name, value in match.values.items():
        number = single_number(value) if name in _NUMBERS else None
        if name in _NUMBERS and (number is None or not math.isclose(number, _NUMBERS[name], rel_tol=_CLOSE)):
            return False
        if name in _NUMBERS and (rank := _rank(value)) > 1:
            shape = sizes_of().shape(match["x"])
            if shape is None or rank > len(shape):
                return False  # it adds a dimension to what it meets
    return True


def _rank(constant: ir.Value) -> int:
    tensor = constant_of(constant)
    return 0 if tensor is None else len(tensor.shape)


def _width(norm: Binding, sizes: Sizes) -> int:
    """Return the size of the axis over which is normalised."""
    shape = sizes.shape(norm["x"])
    width = shape[-1] if shape else None
    assert isinstance(width, int), "_is_over_last_axis has asked for it"
    return width


def _is_over_last_axis(norm: Binding, sizes: Sizes) -> bool:
    shape = sizes.shape(norm["x"])
    if not shape or not isinstance(shape[-1], int):
        return False
    if any(sizes.shape(norm.values[name]) != shape[-1:] for name in ("scale", "shift") if name in norm.values):
        return False
    if _rank(norm["epsilon"]) > 1 or any(node.op_type == "Cast" for node in norm.nodes):
        return False
    means = [node for node in norm.nodes if node.op_type == "ReduceMean"]
    return all(_axes(node) in ([-1], [len(shape) - 1]) and node.attributes.get_int("keepdims", 1) for node in means)


def _axes(mean: ir.Node) -> list[int]:
    axes = constant_array(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return [int(axis) for axis in (mean.attributes.get_ints("axes", ()) if axes is None else axes.reshape(-1))]
