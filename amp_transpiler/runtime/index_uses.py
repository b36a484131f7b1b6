"""Where a program reads labels and ids: which values they are, and what range they must be in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator
from typing import Literal

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.origins import BUILT_BY_KEY, scope_of
from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.ops.names import is_standard

__all__ = ["IndexUse", "index_uses"]

_MOVES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


@dataclasses.dataclass(frozen=True, slots=True)
class IndexUse:
    """An input of a node that holds positions along an axis. It keeps no part of the graph alive.

    Attributes:
        reader: the node, as messages name it.
        what: `label`, `id` or `index`. Labels and ids may not wrap round; an index may, by ONNX's rules.
        value: name of the positions.
        source: name of the value that they are a view or cast of.
        into: name of what they are positions in: the scores, the table or the data.
        size: the length of that axis; None if it is not known.
        ignored: a label that stands for none.
    """

    reader: str
    what: Literal["label", "id", "index"]
    value: str
    source: str
    into: str
    size: int | None
    ignored: int | None = None

    @property
    def is_strict(self) -> bool:
        """Whether ONNX Runtime would accept wrong positions in silence."""
        return self.what != "index"

    @property
    def least(self) -> int | None:
        """The smallest position allowed; None if it is not known."""
        if self.is_strict:
            return 0
        return None if self.size is None else -self.size

    def outside(self, positions: np.ndarray) -> np.ndarray | None:
        """Return where positions are outside of the range, as a bool array; None if none are."""
        if not positions.size:
            return None
        least = self.least
        low = least is not None and positions.min() < least
        high = self.size is not None and positions.max() >= self.size
        if not (low or high):
            return None
        bad = np.zeros(positions.shape, bool)
        if least is not None:
            bad |= positions < least
        if self.size is not None:
            bad |= positions >= self.size
        if self.ignored is not None:
            bad &= positions != self.ignored
        return bad if bad.any() else None


def index_uses(graph: ir.Graph, persistables: Container[str]) -> Iterator[tuple[IndexUse, ir.Value]]:
    """Yield the uses of positions by the nodes of a main graph, in their order, with the positions' value.

    Constant positions and the nodes of the backward pass are left out.

    Args:
        graph: the graph.
        persistables: names of the values that live in a scope; a table is one of them.
    """
    for node in graph:
        find = _USES.get(node.op_type) if is_standard(node) and node.metadata_props.get(ROLE_KEY) is None else None
        use = None if find is None else find(node, persistables)
        if use is None:
            continue
        value = next(read for read in node.inputs if read is not None and read.name == use.value)
        if constant_array(value) is None:
            yield use, value


def _reader(node: ir.Node) -> str:
    return f"{node.op_type} '{node.name}'{f' ({origin})' if (origin := scope_of(node)) else ''}"


def _axis_size(value: ir.Value | None, axis: int) -> int | None:
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def _integer(node: ir.Node, name: str) -> int | None:
    attribute = node.attributes.get(name)
    return None if attribute is None else attribute.as_int()


def _labels(node: ir.Node, _persistables: Container[str]) -> IndexUse | None:
    scores, labels = node.inputs[0], node.inputs[1]
    if scores is None or labels is None:
        return None
    ignored = _integer(node, "ignore_index")
    return IndexUse(_reader(node), "label", *_names(labels), str(scores.name), _axis_size(scores, 1), ignored)


def _rows(node: ir.Node, persistables: Container[str]) -> IndexUse | None:
    data, positions = node.inputs[0], node.inputs[1]
    if data is None or positions is None:
        return None
    axis = _integer(node, "axis") or 0
    table = _origin(data)
    is_table = node.op_type == "Gather" and axis == 0 and str(table.name) in persistables
    name = table.name if is_table else data.name
    what: Literal["id", "index"] = "id" if is_table else "index"
    return IndexUse(_reader(node), what, *_names(positions), str(name), _axis_size(data, axis))


def _classes(node: ir.Node, _persistables: Container[str]) -> IndexUse | None:
    """The classes of `one_hot`; a OneHot of a loaded model may have positions outside on purpose."""
    positions, depth = node.inputs[0], constant_array(node.inputs[1])
    if positions is None or node.metadata_props.get(BUILT_BY_KEY) != "one_hot":
        return None
    size = None if depth is None else int(depth.reshape(-1)[0])
    return IndexUse(_reader(node), "label", *_names(positions), str(node.outputs[0].name), size)


def _names(positions: ir.Value) -> tuple[str, str]:
    return str(positions.name), str(_origin(positions).name)


def _origin(value: ir.Value) -> ir.Value:
    """Return the value that `value` is a view or cast of."""
    while (node := value.producer()) is not None and is_standard(node) and node.op_type in _MOVES:
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


_USES: dict[str, Callable[[ir.Node, Container[str]], IndexUse | None]] = {
    "Gather": _rows,
    "GatherElements": _rows,
    "NegativeLogLikelihoodLoss": _labels,
    "OneHot": _classes,
    "SoftmaxCrossEntropyLoss": _labels,
}
