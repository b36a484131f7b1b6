"""Products written as several, over parts of what they sum, whose results are added up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder, rank_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.take_over import take_over
from amp_transpiler.graph.walk import is_used
from amp_transpiler.passes.manager import Pass, PassResult, run_pass
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.split_sums import PART_KEY

__all__ = ["PartsWritten", "SplitSums", "with_parts_written"]

_DATA, _WEIGHT, _BIAS = 0, 1, 2  # operands
_BEHIND = np.iinfo(np.int64).max  # the end of any axis


def with_parts_written(model: ir.Model, assignment: Assignment) -> Assignment:
    """Write the products of an assignment that are computed in parts so, in float32; return that of what is there now.

    Args:
        model: the program, edited in place.
        assignment: the decision about it.

    Raises:
        VerificationError: the result is not well typed.
    """
    written = run_pass(SplitSums(assignment.parts), model)
    return assignment.with_parts(written.operands, written.sums)


@dataclasses.dataclass
class PartsWritten(PassResult):
    """Products written in parts.

    Attributes:
        operands: the new nodes that rearrange operands, and the parts themselves: what is to be low.
        sums: the new nodes that add up: what stays float32.
    """

    operands: tuple[ir.Node, ...] = ()
    sums: tuple[ir.Node, ...] = ()


class SplitSums(Pass[PartsWritten]):
    """Writes products in parts, each over some of their terms; counts them. What is computed stays, but for rounding.

    MatMul and Gemm become one MatMul with one more axis, in front, for the parts, and a ReduceSum over that. A Conv
    becomes as many as there are parts, each of every so many channels, and their sum. The product, or its first part,
    has the node's name. The bias is added at the end.

    Args:
        parts: product -> how many parts; see `precision/split_sums.py` for what can be parted.
    """

    def __init__(self, parts: Mapping[ir.Node, int]) -> None:
        self._parts = parts

    def call(self, model: ir.Model) -> PartsWritten:
        names = NameAllocator(model)
        operands: list[ir.Node] = []
        sums: list[ir.Node] = []
        for node, count in self._parts.items():
            write = _convolutions if node.op_type == "Conv" else _products
            before, after = write(model, node, count, names)
            operands += before
            sums += after
        count = len(self._parts)
        return PartsWritten(model, modified=bool(count), count=count, operands=tuple(operands), sums=tuple(sums))


class _Recorder(GraphBuilder):
    """Inserts nodes before one, and remembers them."""

    def __init__(self, model: ir.Model, node: ir.Node, names: NameAllocator) -> None:
        graph = node.graph
        assert isinstance(graph, ir.Graph), "a product is part of a graph"
        super().__init__(
            model, graph=graph, before=node, names=names, prefix=f"{node.name}/", metadata=node.metadata_props
        )
        self.added: list[ir.Node] = []

    def on_node(self, node: ir.Node) -> None:
        self.added.append(node)


def _products(model: ir.Model, node: ir.Node, parts: int, names: NameAllocator) -> tuple[list[ir.Node], list[ir.Node]]:
    """Write MatMul or Gemm in parts; return the nodes before the sum, and those from there on."""
    data, weight, bias = _operands(node)
    operands = _Recorder(model, node, names)
    rank = rank_of(data)
    apart = operands.reshape(data, [*(0,) * (rank - 1), -1, parts])
    turned = operands.transpose(apart, [rank, *range(rank)])
    matrix = _array(weight)
    matrix = matrix.T if node.attributes.get_int("transB", 0) else matrix
    stacked = np.moveaxis(matrix.reshape(-1, parts, matrix.shape[1]), 1, 0)
    columns = _constant(operands, weight, stacked.reshape(parts, *(1,) * (rank - 2), *stacked.shape[1:]))
    product = operands.op("MatMul", [turned, columns])
    _mark(operands.added[-1], node, parts)
    sums = _Recorder(model, node, names)
    total = sums.sum(product, [0], keepdims=False)
    _finish(node, total if bias is None else sums.add(total, bias), weight, names)
    return operands.added, sums.added


def _convolutions(
    model: ir.Model, node: ir.Node, parts: int, names: NameAllocator
) -> tuple[list[ir.Node], list[ir.Node]]:
    """Write Conv in parts; return the nodes before the sum, and those from there on."""
    data, weight, bias = _operands(node)
    operands, sums = _Recorder(model, node, names), _Recorder(model, node, names)
    attributes = {attribute.name: attribute.value for attribute in node.attributes.values()}
    kernels = _array(weight)
    results = []
    for part in range(parts):
        channels = operands.slice(data, [part], [_BEHIND], [1], [parts])
        kernel = _constant(operands, weight, kernels[:, part::parts])
        results.append(operands.op("Conv", [channels, kernel], attributes))
        _mark(operands.added[-1], node if not part else operands.added[-1], parts)
    total = results[0]
    for result in results[1:]:
        total = sums.add(total, result)
    if bias is not None:
        shape = [1, -1, *(1,) * (kernels.ndim - 2)]
        total = sums.add(total, sums.reshape(bias, shape))
    _finish(node, total, weight, names)
    return operands.added, sums.added


def _mark(part: ir.Node, named_by: ir.Node, parts: int) -> None:
    """Mark a product as part of another one, or as all parts of it, and give it a name."""
    part.name = named_by.name
    part.metadata_props[PART_KEY] = str(parts)


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    data, weight = node.inputs[_DATA], node.inputs[_WEIGHT]
    assert data is not None, "a product has operands"
    assert weight is not None, "a product has operands"
    return data, weight, node.inputs[_BIAS] if len(node.inputs) > _BIAS else None


def _array(weight: ir.Value) -> np.ndarray:
    tensor = constant_of(weight)
    assert tensor is not None, "it is a constant"
    return tensor.numpy()


def _constant(builder: GraphBuilder, weight: ir.Value, array: np.ndarray) -> ir.Value:
    """Return an initializer with the numbers of a weight in another order, named after it."""
    name = builder.names.fresh(f"{weight.name}_in_parts")
    value = ir.Value(name=name, type=weight.type, shape=ir.Shape(array.shape))
    value.const_value = ir.Tensor(np.ascontiguousarray(array), dtype=weight.dtype, name=name)
    builder.model.graph.register_initializer(value)
    return value


def _finish(node: ir.Node, total: ir.Value, weight: ir.Value, names: NameAllocator) -> None:
    """Let the sum take the place of a product's result, with its name, and drop what nobody reads any more."""
    assert node.graph is not None
    take_over(node.outputs[0], total, names)
    node.graph.remove(node, safe=True)
    maker = weight.producer()
    if maker is not None:
        remove_unread(maker)
    elif not is_used(weight) and weight.graph is not None and not weight.is_graph_input():
        weight.graph.initializers.pop(str(weight.name), None)
