"""Finds products whose weights should be wider: a slow kernel multiplies rows that do not begin at aligned addresses.

A weight of 50,257 columns is multiplied in half the time if it has 50,264, with a Slice behind the product: by the
price list, which tells aligned products from others. The columns more are zeros, so no number of the result changes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.cost.forms import model_of_form
from amp_transpiler.cost.prediction import predict
from amp_transpiler.cost.products import ALIGNED
from amp_transpiler.cost.shapes import Sizes, sizes_of
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.ops.names import is_standard
from amp_transpiler.targets.devices import Device

__all__ = ["Padding", "padded_width", "paddings"]

_TILE = 64  # columns that a kernel for tensor cores computes together
_OPSET = 17  # of the products that are priced


@dataclasses.dataclass(frozen=True, slots=True)
class Padding:
    """A product with a weight that should have more columns.

    Attributes:
        node: the product: MatMul or Gemm.
        columns: that its weight has.
        width: that it should have.
        saved: the predicted seconds of a run that this saves.
    """

    node: ir.Node
    columns: int
    width: int
    saved: float

    @property
    def name(self) -> str:
        """The name of the product."""
        return str(self.node.name)


def paddings(
    model: ir.Model, low: LowFormat, device: Device, dims: Mapping[str, int] | None = None
) -> tuple[Padding, ...]:
    """Return the products of the main graph that a wider weight makes faster, by the price list.

    Args:
        model: a typed program in float32.
        low: the format in which the products are to run.
        device: where.
        dims: name of an open dimension of the inputs -> its size; see `open_dims` for the others.

    Raises:
        OptionError: no input has an open dimension of that name.
    """
    candidates = [(node, weight) for node in model.graph if (weight := _weight(node)) is not None]
    unaligned = [(node, weight) for node, weight in candidates if _sides(node, weight)[1] % ALIGNED[low.name]]
    if not unaligned:
        return ()
    sizes = sizes_of(model, dims)
    return tuple(_worth(unaligned, sizes, low, device))


def _weight(node: ir.Node) -> ir.Value | None:
    """Return the weight of a product that only this product reads; None for any other node."""
    if not is_standard(node) or node.op_type not in ("MatMul", "Gemm") or len(node.inputs) < 2:
        return None
    weight = node.inputs[1]
    if weight is None or not _is_own_constant(weight, 2):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return weight if bias is None or _is_own_constant(bias, 1) else None


def _is_own_constant(value: ir.Value, rank: int) -> bool:
    """Whether a value is a float32 constant with one reader."""
    tensor = value.const_value if value.is_initializer() else None
    is_free = len(value.uses()) == 1 and not value.is_graph_output() and not value.is_graph_input()
    return tensor is not None and is_free and tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) == rank


def _sides(node: ir.Node, weight: ir.Value) -> tuple[int, int]:
    """Return the rows and columns of a weight as the product reads it."""
    assert weight.const_value is not None
    first, second = weight.const_value.shape.numpy()
    return (second, first) if node.attributes.get_int("transB", 0) else (first, second)


def _worth(products: list[tuple[ir.Node, ir.Value]], sizes: Sizes, low: LowFormat, device: Device) -> Iterator[Padding]:
    for node, weight in products:
        inner, columns = _sides(node, weight)
        rows = math.prod((sizes.shape(node.outputs[0]) or ())[:-1])
        width = padded_width(columns, ALIGNED[low.name])
        before = _seconds((rows, inner, columns), columns, low, device)
        saved = before - _seconds((rows, inner, columns), width, low, device)
        if saved > 0.0:
            yield Padding(node, columns, width, saved)


def padded_width(columns: int, aligned: int) -> int:
    """Return how many columns a weight should have: whole tiles where those are hardly more."""
    tiles = math.ceil(columns / _TILE) * _TILE
    return tiles if tiles <= columns * 1.01 else math.ceil(columns / aligned) * aligned


def _seconds(product: tuple[int, int, int], width: int, low: LowFormat, device: Device) -> float:
    """Return the predicted time of a product by itself, with the Slice behind it where its weight is wider."""
    rows, inner, columns = product

    def write(builder: GraphBuilder, operands: Sequence[ir.Value]) -> None:
        result = builder.op("MatMul", operands)
        if width > columns:
            start, end, axis = (builder.constant([number]) for number in (0, columns, 1))
            result = builder.op("Slice", [result, start, end, axis])
        builder.graph.outputs.append(result)

    model = model_of_form(write, [(low.dtype, (rows, inner)), (low.dtype, (inner, width))], _OPSET)
    return 1e-3 * predict(model, device, cuda_graph=True).milliseconds
