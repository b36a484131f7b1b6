"""Differentiates a piece of a program, and weighs by the derivatives what the rounding of its nodes and values adds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.bodies import captured
from amp_transpiler.autodiff.driver import Driver
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.walk import has_bodies
from amp_transpiler.ops.kinds import EXACT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.precision.constraints import LowForm, is_float32
from amp_transpiler.precision.evidence import read_key
from amp_transpiler.program.program import Program
from amp_transpiler.training_passes import FuseProducts, WeightGradients
from amp_transpiler.verification.fixed_sample import drop_unread, is_quantized
from amp_transpiler.verification.low_twins import Twins, replicate

__all__ = ["Backward", "Weigher"]

_COARSE = 2.0**-8  # that before a quantization: a step of it, to which rounding errors grow behind a few of them
_TINY = 1e-37
_FROZEN = {"BatchNormalization": frozenset({3, 4})}  # inputs that no rule differentiates by: one number a channel each


@dataclasses.dataclass(frozen=True, slots=True)
class Backward:
    """The differentiated program of a piece.

    Attributes:
        program: its outputs are sums over elements, those of squares and the plain ones, then adjoints.
        seeds: value made in the piece -> the input that takes its adjoint.
        terms: both outputs of a term, and the fields of `Contributions` that it adds to, with the name there.
        adjoints: value read from before -> the output that is its adjoint.
        measured: node without a rule -> why.
    """

    program: Program
    seeds: Mapping[str, str]
    terms: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]
    adjoints: Mapping[str, str]
    measured: Mapping[str, str]


class Weigher(Driver):
    """Appends the backward pass of a piece, and the rounding errors weighed by its adjoints.

    Args:
        program: the piece; gets it.
        low: the low format.
        forms: node name -> its low form.
        guarded: whether nothing that is infinite counts where the adjoint is zero. Otherwise it makes sums NaN.
        read_once: names of the results that only one node reads, low: their casts are weighed there.
    """

    def __init__(
        self,
        program: Program,
        low: LowFormat,
        forms: Mapping[str, LowForm],
        *,
        guarded: bool,
        read_once: Collection[str] = (),
    ) -> None:
        self._program = program
        self._read_once = read_once
        self._guarded = guarded
        self._forms = forms
        self._step = 2.0 ** -(low.digits + 1)  # the relative change where a gain is measured: that of rounding
        graph = program.model.graph
        builder = GraphBuilder(program.model)
        self._twins = Twins(builder, low, forms)
        self._visited: set[ir.Node] = set()
        self._apart = {value for node in graph for value in node.outputs if not self._is_read_low_alone(value)}
        self._felt_low: dict[ir.Value, ir.Value] = {}  # of those, the adjoint through readers that may be low
        self._entries = [value for value in graph.inputs if is_float32(value)]
        self._inner = [value for node in graph for value in node.outputs if is_float32(value)]
        weights = [value for node in graph for value in self._own_constants(node, builder)]
        super().__init__(builder, {*self._entries, *self._inner, *weights}, set(), otherwise=self._measure)
        self._measured: dict[str, str] = {}
        self._bridges: dict[ir.Node, tuple[list[ir.Value], list[ir.Node]]] = {}
        self._draws = 0
        self._terms: list[tuple[ir.Value, ir.Value, Sequence[tuple[str, str]]]] = []
        self._errors: dict[ir.Value, ir.Value] = {}

    def _own_constants(self, node: ir.Node, builder: GraphBuilder) -> Iterator[ir.Value]:
        """Give a node constants that nobody else reads, so that their gradients are its own; yield them."""
        form = self._forms.get(str(node.name))
        if form is None or _only_moves(node):
            return
        for index in sorted(form.inputs.difference(_frozen(node))):
            value = node.inputs[index]
            tensor = constant_of(value)
            if value is None or tensor is None or not is_float32(value) or self._twins.is_exact(value):
                continue
            if len(value.uses()) > 1:
                name = builder.names.fresh(f"{value.name}_own")
                copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=_named(tensor, name))
                self._program.model.graph.register_initializer(copy)
                node.replace_input_with(index, copy)
                value = copy
            yield value

    def _is_read_low_alone(self, value: ir.Value) -> bool:
        """Whether every reader may read a value low, so that a cast of it is felt through all of them."""
        return all(self._may_read_low(use.node, value) for use in value.uses())

    def _may_read_low(self, node: ir.Node, value: ir.Value) -> bool:
        places = [index for index, read in enumerate(node.inputs) if read is value]
        form = self._forms.get(str(node.name))
        if has_bodies(node) or not places:  # captured, or behind integers
            return True
        return form is not None and not form.inputs.isdisjoint(places)

    def backward(self, targets: Sequence[str], outputs: Collection[str] = (), known: Collection[str] = ()) -> Backward:
        """Append everything.

        Args:
            targets: names of the values whose adjoints are fed.
            outputs: those that only leave the program. As they do so in float32, no cast is felt there.
            known: names of results that are fed, too, as the forward pass has left them.
        """
        graph = self._program.model.graph
        nodes, by_name = list(graph), values_by_name(graph)
        seeds = {by_name[name]: self._seed(by_name[name]) for name in targets}
        for value, seed in seeds.items():
            if value.name in outputs:
                self._apart.add(value)
            else:
                self._felt_low[value] = seed
        adjoints = self.run(graph, seeds)
        for node in nodes:
            if node not in self._visited:  # computed only from integers or constants
                self._weigh_node(node, [adjoints.get(value) for value in node.outputs], {})
        graph.outputs[:] = [value for square, total, _ in self._terms for value in (square, total)]
        back = {str(value.name): self._output(adjoints[value]) for value in self._entries if value in adjoints}
        names = {str(value.name): str(seed.name) for value, seed in seeds.items()}
        for name in known:
            self._feed(by_name[name])
        drop_unread(graph)
        PassManager([WeightGradients("auto"), FuseProducts()], typed=False)(self._program.model)
        self._program.touch()
        terms = [(str(square.name), str(total.name), owners) for square, total, owners in self._terms]
        return Backward(self._program, names, terms, back, self._measured)

    def _seed(self, value: ir.Value) -> ir.Value:
        name = self.builder.names.fresh(f"{value.name}_adjoint")
        seed = ir.Value(name=name, type=value.type, shape=value.shape)
        self._program.model.graph.inputs.append(seed)
        return seed

    def _feed(self, value: ir.Value) -> None:
        """Let all that reads a result read an input of its name."""
        if value.uses():
            fed = ir.Value(name=value.name, type=value.type, shape=value.shape)
            value.name = self.builder.names.fresh(f"{value.name}_again")
            value.replace_all_uses_with(fed)
            self._program.model.graph.inputs.append(fed)

    # ---- contributions ----

    def gradients_of(
        self, node: ir.Node, grads: Sequence[ir.Value | None], active: set[ir.Value]
    ) -> list[tuple[ir.Value, ir.Value]]:
        """Differentiate a node, and weigh it while its adjoints are in memory."""
        parts = super().gradients_of(node, grads, active)
        parts += self._through_integers(node, grads, active)
        by_value: dict[ir.Value, ir.Value] = {}
        for value, grad in parts:  # a node may read a value twice
            by_value[value] = self._joined(by_value.get(value), grad)
        for value, grad in by_value.items():
            if value in self._apart and self._may_read_low(node, value):
                self._felt_low[value] = self._joined(self._felt_low.get(value), grad)
        self._weigh_node(node, grads, by_value)
        return parts

    def _weigh_node(self, node: ir.Node, grads: Sequence[ir.Value | None], parts: Mapping[ir.Value, ir.Value]) -> None:
        self._visited.add(node)
        name = str(node.name)
        felt = [(index, grad) for index, grad in enumerate(grads) if grad is not None]
        for index, grad in felt:
            value = node.outputs[index]
            if value.name in self._read_once:
                continue
            adjoint = self._felt_low.get(value) if value in self._apart else grad
            if adjoint is not None and is_float32(value) and constant_of(value) is None:
                self._add(self._rounding(adjoint, value), ("casts", str(value.name)))
        if has_bodies(node) and felt:
            for product in self._differences(felt, node.outputs, self._twins.of_bodies(node)):
                self._add(product, ("nodes", name), ("alone", name))
        elif name in self._forms and felt:
            self._weigh(node, felt, parts)

    def _weigh(self, node: ir.Node, felt: Sequence[tuple[int, ir.Value]], parts: Mapping[ir.Value, ir.Value]) -> None:
        """Append the contributions of a node: of its results, its constants, and its other inputs.

        The rounding of a constant is the same wherever the constant is read, so it is weighed by the constant's own
        adjoint, in which these places are summed.
        """
        read, constants = self._twins.inputs(node)
        products: list[ir.Value] = []
        if not _only_moves(node):
            products += self._differences(felt, *self._twins.of(node))
        products += [self._rounding(parts[value], value) for value in constants if value in parts]
        others = [value for value in constants if value not in parts]
        if others:
            differences = self._differences(felt, node.outputs, self._twins.with_low(node, others))
            products += (
                [self._by_channel(product, node.outputs[0]) for product in differences]
                if _frozen(node)
                else differences
            )
        for product in products:
            self._add(product, ("nodes", str(node.name)), ("alone", str(node.name)))
        for value in read:
            if value in parts:
                place = read_key(str(value.name), str(node.name))
                owners = [("alone", str(node.name)), ("reads", place)]
                if value.name in self._read_once:
                    owners.append(("casts", str(value.name)))
                self._add(self._rounding(parts[value], value), *owners)

    def _by_channel(self, product: ir.Value, result: ir.Value) -> ir.Value:
        """Return the sums of a product over all axes but that of the channels, along which errors are the same."""
        axes = [axis for axis in range(len(shape_of(result))) if axis != 1]
        return self._op("ReduceSum", product, self.builder.constant(np.array(axes, np.int64)), keepdims=0)

    def _joined(self, first: ir.Value | None, other: ir.Value) -> ir.Value:
        return other if first is None else self.builder.add(first, other)

    def _differences(
        self,
        felt: Sequence[tuple[int, ir.Value]],
        before: Sequence[ir.Value],
        after: Sequence[ir.Value],
        *,
        guarded: bool = False,
    ) -> list[ir.Value]:
        changed = [(index, grad) for index, grad in felt if after[index] is not before[index]]
        product = self._guarded_product if guarded else self._product
        return [product(grad, self._op("Sub", after[index], before[index])) for index, grad in changed]

    def _rounding(self, adjoint: ir.Value, value: ir.Value) -> ir.Value:
        if value not in self._errors:
            self._errors[value] = self._op("Sub", self._twins.rounded(value), value)
        return self._product(adjoint, self._errors[value])

    def _product(self, adjoint: ir.Value, error: ir.Value) -> ir.Value:
        """Return the product, element by element."""
        return self._guarded_product(adjoint, error) if self._guarded else self._op("Mul", adjoint, error)

    def _guarded_product(self, adjoint: ir.Value, error: ir.Value) -> ir.Value:
        """Return the product; nothing that is infinite counts where the adjoint is zero."""
        none = self.builder.constant(np.float32(0.0))
        is_zero = self._op("Equal", adjoint, none, dtype=ir.DataType.BOOL)
        return self._op("Where", is_zero, none, self._op("Mul", adjoint, error))

    def _op(
        self, op_type: str, *inputs: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT, **attributes: int
    ) -> ir.Value:
        """Append an operator whose type is known. Inference takes most of the time that building a node takes."""
        result = ir.Value(name=self.builder.names.fresh("weighed"), type=ir.TensorType(dtype))
        attributes_of_node = [ir.AttrInt64(name, number) for name, number in attributes.items()]
        name = self.builder.names.fresh("weighing")
        self.builder.graph.append(ir.Node("", op_type, inputs, attributes_of_node, outputs=[result], name=name))
        return result

    def _add(self, product: ir.Value, *owners: tuple[str, str]) -> None:
        square, total = (self._op(name, product, keepdims=0) for name in ("ReduceSumSquare", "ReduceSum"))
        self._terms.append((square, total, owners))

    def _output(self, value: ir.Value) -> str:
        outputs = self._program.model.graph.outputs
        if value.producer() is None or value in outputs:  # an input, or asked for twice
            value = self.builder.op("Identity", [value])
        outputs.append(value)
        return str(value.name)

    # ---- nodes without a rule ----

    def _measure(
        self,
        node: ir.Node,
        grads: Sequence[ir.Value | None],
        counts: Callable[[ir.Value], bool],
        reason: ModelError,
    ) -> Sequence[tuple[ir.Value, ir.Value]]:
        """Return adjoints of the node's inputs of one magnitude each, that by which a random change is felt."""
        self._measured[str(node.name)] = str(reason)
        if any(map(is_quantized, node.outputs)):
            return []  # a scale that only extremes decide; the numbers are felt through the integers
        reads = dict.fromkeys(value for value in (*node.inputs, *captured(node)) if is_float32(value))
        return [(value, self._gain(node, value, grads)) for value in reads if counts(value)]

    def reads(self, node: ir.Node) -> Sequence[ir.Value | None]:
        """Return the values that a node's results depend on, through quantized values, too."""
        return (*super().reads(node), *self._bridge(node)[0])

    def _bridge(self, node: ir.Node) -> tuple[list[ir.Value], list[ir.Node]]:
        """Return the float32 values behind the quantized inputs of a node, and the nodes between, in order."""
        if node not in self._bridges:
            sources: dict[ir.Value, None] = {}
            between: dict[ir.Node, None] = {}
            if any(map(is_float32, node.outputs)) and not has_bodies(node):
                for value in node.inputs:
                    self._go_back(value, sources, between)
            self._bridges[node] = list(sources), list(between)
        return self._bridges[node]

    def _go_back(self, value: ir.Value | None, sources: dict[ir.Value, None], between: dict[ir.Node, None]) -> None:
        maker = None if value is None or not is_quantized(value) else value.producer()
        if maker is None or maker in between:
            return
        data = maker.inputs[0]
        if is_float32(data) and constant_of(data) is None:
            sources[data] = None
        for read in maker.inputs:
            self._go_back(read, sources, between)
        between[maker] = None

    def _through_integers(
        self, node: ir.Node, grads: Sequence[ir.Value | None], active: set[ir.Value]
    ) -> list[tuple[ir.Value, ir.Value]]:
        """Return adjoints of the float32 values behind quantized inputs: no gradient passes through integers."""
        sources, between = self._bridge(node)
        reason = "it reads quantized values, which have no gradient"
        if sources and any(grad is not None for grad in grads):
            self._measured.setdefault(str(node.name), reason)
        return [(value, self._gain(node, value, grads, between)) for value in sources if value in active]

    def _gain(
        self, node: ir.Node, value: ir.Value, grads: Sequence[ir.Value | None], between: Sequence[ir.Node] = ()
    ) -> ir.Value:
        builder = self.builder
        change = builder.mul(builder.mul(value, self._signs(value)), _COARSE if between else self._step)
        if between:  # the extremes stay, and with them a dynamic quantization's scale
            below = self.builder.compare("Less", value, self._extreme("ReduceMax", value))
            above = self.builder.compare("Greater", value, self._extreme("ReduceMin", value))
            change = builder.where(builder.op("And", [below, above]), change, 0.0)
        read = {value: builder.add(value, change)}
        for maker in between:  # what has no integer behind it is computed from the value as it was
            read.update(zip(maker.outputs, replicate(builder, maker, dict(read)), strict=True))
        inside = {result for maker in between for result in maker.outputs if is_quantized(result)}
        moved = replicate(builder, node, {v: new for v, new in read.items() if not between or v in inside})
        adjoints = [(index, grad) for index, grad in enumerate(grads) if grad is not None]
        felt = self._differences(adjoints, node.outputs, moved, guarded=True)
        size = self._op("ReduceSumSquare", change, keepdims=0)
        squares = [self._op("ReduceSumSquare", product, keepdims=0) for product in felt]
        gain = builder.op("Sqrt", [builder.div(builder.op("Sum", squares), builder.maximum(size, _TINY))])
        gained = builder.mul(self._signs(value), gain)
        gained.shape = value.shape
        return gained

    def _extreme(self, op_type: str, value: ir.Value) -> ir.Value:
        return self.builder.mul(self._op(op_type, value, keepdims=0), 1.0 - 2.0 * _COARSE)

    def _signs(self, value: ir.Value) -> ir.Value:
        """Return random signs in the shape of a value."""
        self._draws += 1
        drawn = self.builder.op("RandomNormalLike", [value], {"seed": float(self._draws)})
        return self.builder.op("Sign", [drawn])


def _only_moves(node: ir.Node) -> bool:
    return is_standard(node) and node.op_type in EXACT


def _frozen(node: ir.Node) -> frozenset[int]:
    return _FROZEN.get(node.op_type, frozenset()) if is_standard(node) else frozenset()


def _named(tensor: ir.TensorProtocol, name: str) -> ir.LazyTensor:
    """Return a tensor under another name: the tensor itself may be the source's, which is not changed."""
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)
