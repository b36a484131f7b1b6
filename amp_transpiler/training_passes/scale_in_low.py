"""Multiplies 16-bit values by constants in 16 bits, where a policy does so in float32 between two casts."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.remove_unread import remove_unread
from amp_transpiler.graph.roles import role_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.place_casts import VIEWS

__all__ = ["ScaleInLow"]

_MOVES = VIEWS | {"Transpose"}


class ScaleInLow(Pass[PassResult]):
    """Turns cast, product with a constant and cast back into a product in 16 bits; counts them.

    The scores of an attention are such a product under a policy that multiplies in float32, and the gradient is another
    one. What is left can become the factor of a matrix product.

    1. The constant is one number that the 16-bit type has, so the float32 product is exact. It is rounded once either
       way: the results are the same, to the bit.
    2. Whatever reads the float32 product casts it back, perhaps behind a view or a Transpose. Where the constant is a
       power of two, a sum may read it, too, as the gradient of a bias does: that reads the 16-bit product now, which
       is as exact but for numbers below the smallest normal one.

    Updates of an optimizer stay as they are. The values of the model must be typed. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        for node in [each for each in model.graph if each.op_type == "Mul" and is_standard(each)]:
            scaled = _scaled(node)
            if scaled is None or role_of(node) == "optimize":
                continue
            value, factor = scaled
            if not _is_cast_back(node.outputs[0], value.dtype, sums=math.frexp(factor)[0] in (0.5, -0.5)):
                continue
            build = GraphBuilder(model, before=node, names=names, metadata=node.metadata_props, prefix="low/")
            _read_low(build, node.outputs[0], build.mul(value, build.constant(factor, value.dtype)))
            remove_unread(node)
            count += 1
        return PassResult(model, modified=bool(count), count=count)


def _scaled(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return the 16-bit value whose cast a node multiplies with a number that its type has, and the number."""
    for wide, other in (node.inputs, node.inputs[::-1]):
        constant = None if other is None else constant_of(other)
        cast = None if wide is None else wide.producer()
        if constant is None or constant.size != 1 or cast is None or cast.op_type != "Cast" or not is_standard(cast):
            continue
        value, number = cast.inputs[0], float(constant.numpy().reshape(()))
        if value is None or value.dtype not in LOW_DTYPES or node.outputs[0].dtype != ir.DataType.FLOAT:
            continue
        if len(constant.shape) > len(value.shape or ()) or not math.isfinite(number):
            continue
        with np.errstate(over="ignore"):
            is_there = float(np.asarray(number, np.float32).astype(value.dtype.numpy())) == number
        if is_there:
            return value, number
    return None


def _is_cast_back(product: ir.Value, dtype: ir.DataType | None, *, sums: bool) -> bool:
    """Return whether a cast reads a float32 value, and nothing else does but other casts, and sums if these may."""
    return _is_read_low(product, dtype, sums=sums) and _reaches_cast(product)


def _is_read_low(value: ir.Value, dtype: ir.DataType | None, *, sums: bool) -> bool:
    if value.is_graph_output():
        return False
    for node in (use.node for use in value.uses()):
        if not is_standard(node) or role_of(node) == "optimize":
            return False
        is_cast = node.op_type == "Cast" and node.outputs[0].dtype == dtype and not node.outputs[0].is_graph_output()
        if is_cast or (node.op_type == "ReduceSum" and sums):
            continue
        if node.op_type not in _MOVES or not _is_read_low(node.outputs[0], dtype, sums=sums):
            return False
    return True


def _reaches_cast(value: ir.Value) -> bool:
    nodes = [use.node for use in value.uses()]
    return any(each.op_type == "Cast" or (each.op_type in _MOVES and _reaches_cast(each.outputs[0])) for each in nodes)


def _read_low(build: GraphBuilder, wide: ir.Value, low: ir.Value) -> None:
    """Let what reads a float32 value read the 16-bit one."""
    for use in list(wide.uses()):
        node = use.node
        build.before, build.metadata = node, dict(node.metadata_props)
        if node.op_type == "Cast":
            node.outputs[0].replace_all_uses_with(low)
        elif node.op_type in _MOVES:
            attributes = {attribute.name: attribute.value for attribute in node.attributes.values()}
            _read_low(build, node.outputs[0], build.op(node.op_type, [low, *node.inputs[1:]], attributes))
        else:
            node.replace_input_with(use.idx, build.high(low))
        remove_unread(node)
