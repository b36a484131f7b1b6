"""Orders nodes that read state before those that overwrite it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, elements_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.precedence import Precedence
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult

__all__ = ["ReadBeforeUpdate"]

_FEW = 1 << 12  # numbers
_BY_NUMBER = frozenset({"Add", "Div", "Max", "Min", "Mul", "Sub"})
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.INT64})


class ReadBeforeUpdate(Pass[PassResult]):
    """Makes new state depend on all that reads the old, where it does not yet; counts the nodes that are waited for.

    An update without loss scaling or clipping waits only for gradients of its own group: the gradient of a layer's data
    may read the weights later. And the power of Adam's rate is replaced by a product that the step's rate need not wait
    for. A factor that the new value is computed from, such as the learning rate, then takes one of two equal values, by
    a number of the late node's result:

        rate' = Where(Cast<bool>(Gather(Reshape(late, [-1]), 0)), rate, rate)

    An update without such a factor is left as it is. Shapes must be inferred. The graph is sorted.

    Args:
        updates: persistable name -> output that replaces it.
    """

    def __init__(self, updates: Mapping[str, str]) -> None:
        self._updates = updates

    def call(self, model: ir.Model) -> PassResult:
        inputs = {value.name: value for value in model.graph.inputs}
        outputs = {value.name: value for value in model.graph.outputs}
        model.graph.sort()
        names, precedence, count = NameAllocator(model), Precedence(model.graph), 0
        for name, output in self._updates.items():
            writer = outputs[output].producer()
            if name not in inputs or writer is None:
                continue
            late = [node for node in precedence.late_readers(inputs[name], writer) if node is not writer]
            factor = _factor(precedence, writer, late) if late else None
            if factor is not None:
                _wait(model, names, factor, late)
                model.graph.sort()
                precedence, count = Precedence(model.graph), count + len(late)
        return PassResult(model, modified=bool(count), count=count)


def _factor(precedence: Precedence, writer: ir.Node, late: Sequence[ir.Node]) -> tuple[ir.Node, int] | None:
    """Return the use of a few numbers, close to the writer, that no late reader is computed from; None without one."""
    for node in _backwards(writer):
        if not is_standard(node) or node.op_type not in _BY_NUMBER:
            continue
        if any(node is reader or precedence.precedes(node, reader) for reader in late):
            continue
        for index, value in enumerate(node.inputs):
            numbers = None if value is None or value.dtype not in _TYPES else elements_of(value)
            if numbers is not None and numbers <= _FEW:
                return node, index
    return None


def _backwards(node: ir.Node) -> Iterator[ir.Node]:
    """Yield a node and all that it is computed from, the nearest first."""
    waiting, seen = [node], {node}
    for current in waiting:
        yield current
        for value in current.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in seen:
                seen.add(producer)
                waiting.append(producer)


def _wait(model: ir.Model, names: NameAllocator, factor: tuple[ir.Node, int], late: Sequence[ir.Node]) -> None:
    node, index = factor
    build = GraphBuilder(model, names=names, before=node)
    value = node.inputs[index]
    assert value is not None  # or `_factor` would not have chosen it
    for reader in dict.fromkeys(late):
        number = build.op("Gather", [build.reshape(reader.outputs[0], [-1]), build.constant(0, ir.DataType.INT64)])
        value = build.where(build.explicit_cast(number, ir.DataType.BOOL), value, value)
    node.replace_input_with(index, value)
