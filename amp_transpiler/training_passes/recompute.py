"""Computes cheap activations of a training step again in the backward pass, instead of keeping them for it."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.graph.builder import elements_of
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.roles import ROLE_KEY, role_of
from amp_transpiler.graph.walk import reads_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.training_passes.place_casts import VIEWS

__all__ = ["Recompute", "ask_for_recompute", "is_recompute_asked"]

_ASKED = "amp_transpiler.recompute"  # metadata of a model: whoever runs it as a step is to recompute

_UNARY = (
    "Abs Cast Ceil Celu Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Mish Neg Not Reciprocal Relu"
)
_MORE_UNARY = "Selu Sigmoid Sign Sin Softplus Softsign Sqrt Swish Tanh ThresholdedRelu"
_OTHERS = "Add And BatchNormalization Clip Div Equal Greater GreaterOrEqual LayerNormalization Less LessOrEqual Max Min"
_MORE_OTHERS = "Mul Or PRelu Pow RMSNormalization Sub Sum Where Xor"
_CHEAP = VIEWS.union(*map(str.split, (_UNARY, _MORE_UNARY, _OTHERS, _MORE_OTHERS)))
"""Operators that take little more time than reading and writing their values."""
_CHEAP_FUSED = frozenset({"BiasGelu", "FastGelu", "Gelu", "QuickGelu"})  # of com.microsoft

_DEPTH = 8  # nodes in a row: a long chain that is computed again is alive as a whole, so that nothing is won
_SHARE = 64  # of the program's largest value: what is smaller is kept


def ask_for_recompute(model: ir.Model) -> None:
    """Say that the steps of a program trade time for memory, whatever their executor's setting."""
    model.metadata_props[_ASKED] = "1"


def is_recompute_asked(model: ir.Model) -> bool:
    """Whether `ask_for_recompute` was called for a model or what it is a copy of."""
    return _ASKED in model.metadata_props


class Recompute(Pass[PassResult]):
    """Trades time for memory: counts the nodes that the backward pass computes again.

    A large value that the forward pass computes and the backward pass reads is kept in between. If its operator is
    cheap (casts, activations, masks, normalisation with statistics that are known) and what it is made from is kept
    anyway, the backward pass computes it again, from the same values by the same operators: every result stays the
    same, to the bit. Parameters, feeds and what is small count as kept.

    Only the main graph is edited. Random operators and those with bodies are never computed again. A program without a
    backward pass, or whose shapes are not known, stays as it is.

    Args:
        share: a value counts as small if it has less than this part of the elements of the largest one.
        depth: how many operators in a row are computed again at most.
    """

    def __init__(self, share: int = _SHARE, depth: int = _DEPTH) -> None:
        self._share = share
        self._most = depth

    def call(self, model: ir.Model) -> PassResult:
        nodes = list(model.graph)
        border = next((index for index, node in enumerate(nodes) if role_of(node) == "backward"), None)
        if border is None:
            return PassResult(model, modified=False)
        forward, backward = nodes[:border], nodes[border:]
        read = {value for node in backward for value in reads_of(node)}
        again = self._again(forward, read | set(model.graph.outputs))
        count = _Copying(model, again).run(backward)
        return PassResult(model, modified=bool(count), count=count)

    def _again(self, forward: list[ir.Node], stored: set[ir.Value]) -> dict[ir.Value, int]:
        """Return what can be computed again from what is kept: value -> operators in a row that this takes."""
        largest = max((elements_of(value) or 0 for node in forward for value in node.outputs), default=0)
        depths: dict[ir.Value, int] = {}
        computed = {value for node in forward for value in node.outputs}
        for node in forward:
            value = node.outputs[0]
            size = elements_of(value)
            if not _is_cheap(node) or size is None or size * self._share < largest or value.is_graph_output():
                continue
            needed = [source for source in node.inputs if source is not None and source in computed]
            if all(source in depths or source in stored or self._is_small(source, largest) for source in needed):
                depth = 1 + max((depths.get(source, 0) for source in needed), default=0)
                if depth <= self._most:
                    depths[value] = depth
        return depths

    def _is_small(self, value: ir.Value, largest: int) -> bool:
        size = elements_of(value)
        return size is not None and size * self._share < largest


class _Copying:
    """Copies nodes of the forward pass, each before the first node of the backward pass that needs it."""

    def __init__(self, model: ir.Model, again: dict[ir.Value, int]) -> None:
        self._names = NameAllocator(model)
        self._again = again
        self._copies: dict[ir.Value, ir.Value] = {}

    def run(self, backward: list[ir.Node]) -> int:
        for node in backward:
            for index, value in enumerate(node.inputs):
                if value is not None and value in self._again:
                    node.replace_input_with(index, self._copy(value, node))
        return len(self._copies)

    def _copy(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        if value in self._copies:
            return self._copies[value]
        source = value.producer()
        assert source is not None
        inputs = [
            self._copy(operand, reader) if operand in self._again else operand
            for operand in source.inputs
            if operand is not None
        ]
        copied = iter(inputs)
        result = ir.Value(name=self._names.fresh(f"{value.name}__again"), type=value.type, shape=value.shape)
        node = ir.Node(
            source.domain,
            source.op_type,
            [None if operand is None else next(copied) for operand in source.inputs],
            list(source.attributes.values()),
            outputs=[result],
            overload=source.overload,
            name=self._names.fresh(f"{source.name}__again"),
            metadata_props={**source.metadata_props, ROLE_KEY: "backward"},
        )
        reader.prepend(node)
        self._copies[value] = result
        return result


def _is_cheap(node: ir.Node) -> bool:
    if node.domain == "com.microsoft":
        return node.op_type in _CHEAP_FUSED
    return is_standard(node) and node.op_type in _CHEAP
