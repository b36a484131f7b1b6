"""Makes transposes and factors of matrix products attributes of ONNX Runtime's FusedMatMul."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.graph.builder import is_static, rank_of, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.removal import Removal

__all__ = ["FuseProducts"]

_DOMAIN = "com.microsoft"
_MOST_SOURCES = 4  # Transposes and Muls in front of an operand: of a gradient two of each
_DTYPES = LOW_DTYPES | {ir.DataType.FLOAT}


class FuseProducts(Pass[PassResult]):
    """Writes MatMuls of transposed or scaled matrices as FusedMatMul, without the Transpose and Mul; counts them.

    The gradient of a product is two such products. ONNX Runtime fuses them too, but not where it has joined the
    Transpose with another one first: then both the matrix and its transpose are computed.

    1. Transposes before the product that exchange the last two axes, or put the first axis behind those of the stack,
       become flags.
    2. A Mul by one constant number before the product or after it becomes the factor, which is applied in float32.
    3. A product with a bias stays as it is if nothing is transposed on its left: ONNX Runtime makes one Gemm of both.

    The values of the model must be typed, with known ranks. Only the main graph is edited.
    """

    def call(self, model: ir.Model) -> PassResult:
        names, count = NameAllocator(model), 0
        with Removal() as removal:
            for node in list(model.graph):
                if node.op_type == "MatMul" and is_standard(node) and node not in removal:
                    count += _Product.fuse(model, node, names, removal)
        return PassResult(model, modified=bool(count), count=count)


@dataclasses.dataclass
class _Factor:
    """One side of a product.

    Attributes:
        value: what is multiplied.
        order: for each axis of the operand, which one of the value it is.
        scale: the number that it is multiplied with first.
        sources: the nodes between the value and the operand, the last one first.
    """

    value: ir.Value
    order: tuple[int, ...]
    scale: float = 1.0
    sources: tuple[ir.Node, ...] = ()

    @classmethod
    def of(cls, operand: ir.Value, *, in_stacks: bool) -> _Factor:
        """Look through Muls by a number and Transposes, as far as flags can stand for them.

        Rows before a stack are only read beside an equal stack: `in_stacks`.
        """
        factor = furthest = cls(operand, tuple(range(rank_of(operand))))
        while len(factor.sources) < _MOST_SOURCES:
            node = factor.value.producer()
            before = None if node is None or not is_standard(node) else factor._before(node)
            if before is None:
                break
            factor = before
            if factor.flags is not None and (in_stacks or not factor.stacked):
                furthest = factor
        return furthest

    def _before(self, node: ir.Node) -> _Factor | None:
        """Return the factor in front of a node that makes its value; None if the node is no part of a factor."""
        sources = (*self.sources, node)
        if node.op_type == "Transpose":
            source, rank = node.inputs[0], len(self.order)
            assert source is not None
            moved = node.attributes.get_ints("perm", range(rank - 1, -1, -1))
            return _Factor(source, tuple(moved[axis] for axis in self.order), self.scale, sources)
        if node.op_type == "Mul" and self.scale == 1.0 and (scaled := _scaled(node)) is not None:
            return _Factor(scaled[0], self.order, scaled[1], sources)
        return None

    @property
    def flags(self) -> tuple[bool, bool] | None:
        """Whether the last two axes are exchanged, and whether the rows come before the stack; None if neither does."""
        axes = list(range(len(self.order)))
        rows_first = [*axes[1:-1], 0, axes[-1]] if len(axes) > 2 else axes
        for is_stacked, order in ((False, axes), (True, rows_first)):
            for is_turned, last in ((False, order[-2:]), (True, order[:-3:-1])):
                if list(self.order) == [*order[:-2], *last]:
                    return is_turned, is_stacked
        return None

    @property
    def turned(self) -> bool:
        """Whether the last two axes are exchanged first."""
        return bool(self.flags and self.flags[0])

    @property
    def stacked(self) -> bool:
        """Whether the value has the rows of the matrices first, and the axes of the stack behind them."""
        return bool(self.flags and self.flags[1])


def _scaled(node: ir.Node) -> tuple[ir.Value, float] | None:
    """Return what a Mul multiplies with one constant number, and the number; None if it does not."""
    for value, other in (node.inputs, tuple(reversed(node.inputs))):
        tensor = None if other is None else constant_of(other)
        if tensor is None or tensor.size != 1 or value is None or value.shape is None:
            continue
        if len(tensor.shape) <= len(value.shape):
            return value, float(tensor.numpy().reshape(()))
    return None


class _Product:
    @staticmethod
    def fuse(model: ir.Model, node: ir.Node, names: NameAllocator, removal: Removal) -> bool:
        """Replace a MatMul, if there is something to fuse; return whether there was."""
        left, right = node.inputs
        if left is None or right is None or left.dtype not in _DTYPES or not (_is_matrix(left) and _is_matrix(right)):
            return False
        in_stacks = is_static(left) and is_static(right) and shape_of(left)[:-2] == shape_of(right)[:-2]
        a, b = (_Factor.of(operand, in_stacks=in_stacks) for operand in (left, right))
        result, alpha = node.outputs[0], a.scale * b.scale
        after = _scale_after(result)
        if after is not None:
            alpha *= after[1]
            result = after[0].outputs[0]
        is_plain = not (a.turned or b.turned or a.stacked or b.stacked) and alpha == 1.0
        if is_plain or result.is_graph_output() or (not a.turned and _gets_a_bias(result)):
            return False
        last = node if after is None else after[0]
        attributes = {"transA": int(a.turned), "transB": int(b.turned), "alpha": alpha}
        attributes |= {name: 1 for name, factor in (("transBatchA", a), ("transBatchB", b)) if factor.stacked}
        fused = ir.Value(name=names.fresh(f"{result.name}__fused"), type=result.type, shape=result.shape)
        last.prepend(_fused_node([a.value, b.value], attributes, fused, names.fresh(f"{node.name}__fused"), last))
        model.graph.opset_imports.setdefault(_DOMAIN, 1)
        result.replace_all_uses_with(fused)
        for unused in (last, node, *a.sources, *b.sources):
            removal.add_unused(unused)
        return True


def _fused_node(
    inputs: list[ir.Value], attributes: dict[str, float], output: ir.Value, name: str, like: ir.Node
) -> ir.Node:
    return ir.Node(
        _DOMAIN,
        "FusedMatMul",
        inputs,
        list(ir.convenience.convert_attributes(attributes)),
        outputs=[output],
        name=name,
        metadata_props=dict(like.metadata_props),
    )


def _is_matrix(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) > 1


def _scale_after(result: ir.Value) -> tuple[ir.Node, float] | None:
    """Return the Mul by one number if only it reads a product, and the number."""
    uses = list(result.uses())
    if len(uses) != 1 or result.is_graph_output():
        return None
    node = uses[0].node
    if node.op_type != "Mul" or not is_standard(node) or node.outputs[0].is_graph_output():
        return None
    scaled = _scaled(node)
    return None if scaled is None or scaled[0] is not result else (node, scaled[1])


def _gets_a_bias(result: ir.Value) -> bool:
    """Whether a vector is added to a product, and nothing else reads it."""
    uses = list(result.uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add":
        return False
    other = uses[0].node.inputs[1 - uses[0].idx]
    return other is not None and other.shape is not None and len(other.shape) == 1
