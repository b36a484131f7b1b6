"""Multiplying constants and epsilons by powers of two."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import computed_tensor
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import set_input

__all__ = ["ScaleConstants", "ScaledAttribute", "ScaledConstant"]


@dataclasses.dataclass(frozen=True, slots=True)
class ScaledConstant:
    """A float32 constant to multiply by `2 ** exponent`.

    Attributes:
        value: the constant.
        exponent: of the power.
        reader: the node that reads the product, of a copy of its own; None: all readers do.
    """

    value: ir.Value
    exponent: int
    reader: ir.Node | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ScaledAttribute:
    """A number that is an attribute, to be multiplied by `2 ** exponent`.

    Attributes:
        node: the node.
        name: the attribute.
        number: what it is now, by its default where it is absent.
        exponent: of the power.
    """

    node: ir.Node
    name: str
    number: float
    exponent: int


class ScaleConstants(Pass[PassResult]):
    """Multiplies constants and attributes by powers of two; counts them.

    A float32 that stays a normal number keeps all of its bits; whoever asks for the products makes sure of that.

    Args:
        scaled: what to multiply.
    """

    def __init__(self, scaled: Sequence[ScaledConstant | ScaledAttribute]) -> None:
        self._scaled = scaled

    def call(self, model: ir.Model) -> PassResult:
        names = NameAllocator(model)
        copies: dict[tuple[ir.Value, int], ir.Value] = {}
        for item in self._scaled:
            if isinstance(item, ScaledAttribute):
                number = float(np.ldexp(np.float32(item.number), item.exponent))
                item.node.attributes[item.name] = ir.AttrFloat32(item.name, number)
            elif item.reader is None:
                _replace(item.value, _product(item.value, item.exponent, str(item.value.name)))
            else:
                key = (item.value, item.exponent)
                if key not in copies:
                    copies[key] = _copy(model, item, names)
                for index, value in enumerate(item.reader.inputs):
                    if value is item.value:
                        set_input(item.reader, index, copies[key])
        _drop_unread(model.graph, {value for value, _ in copies})
        return PassResult(model, modified=bool(self._scaled), count=len(self._scaled))


def _drop_unread(graph: ir.Graph, values: Iterable[ir.Value]) -> None:
    """Drop the initializers of which all readers have copies."""
    for value in values:
        if value.is_initializer() and not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del graph.initializers[str(value.name)]


def _product(value: ir.Value, exponent: int, name: str) -> ir.TensorProtocol:
    tensor = constant_of(value)
    assert tensor is not None, "only constants are multiplied"
    return computed_tensor(tensor, lambda array: np.ldexp(array, exponent), ir.DataType.FLOAT, name)


def _replace(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    node = value.producer()
    if node is None:
        value.const_value = tensor
    else:  # a Constant
        node.attributes["value"] = ir.AttrTensor("value", tensor)


def _copy(model: ir.Model, item: ScaledConstant, names: NameAllocator) -> ir.Value:
    name = names.fresh(f"{item.value.name}_scaled")
    tensor = _product(item.value, item.exponent, name)
    copy = ir.Value(name=name, type=item.value.type, shape=item.value.shape, const_value=tensor)
    model.graph.register_initializer(copy)
    return copy
