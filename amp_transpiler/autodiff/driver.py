"""Reverse-mode differentiation of a graph. The gradients of the operators are in rules/.

The gradient of a value has its shape and element type. So the backward pass of float16 nodes is float16, and the
gradient of an input that stays float32 is float32. The backward nodes of a node are in the node's regions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.autodiff.bodies import captured, copy_body, discard_after, remove_unused
from amp_transpiler.autodiff.context import NodeGradient, NotDifferentiable, SizesUnknown, low_weight_sums_wanted
from amp_transpiler.autodiff.deferred import append_deferred, expand_deferred
from amp_transpiler.autodiff.open_ranks import leave_open
from amp_transpiler.autodiff.rules import find_rule
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder, is_float_tensor
from amp_transpiler.graph.origins import built_as
from amp_transpiler.graph.regions import inside_region_of, outside_regions
from amp_transpiler.graph.walk import has_bodies, is_used

__all__ = ["Driver", "Otherwise", "differentiate", "expand_gradients"]

Otherwise: TypeAlias = Callable[
    [ir.Node, Sequence["ir.Value | None"], Callable[[ir.Value], bool], ModelError],
    Sequence[tuple[ir.Value, ir.Value]],
]
"""Stands in for a rule: node, gradients of its outputs, which values count, why it has none -> values, gradients."""

_FEW = 4  # gradients of 16 bits that are added as they are: the paths into an attention and around it
_PRODUCTS = {("", "MatMul"), ("", "Gemm"), ("com.microsoft", "FusedMatMul")}
# View operators between a weight and its MatMul, or a MatMul and its bias Add.
_VIEWS = {"Cast", "Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}


def differentiate(
    builder: GraphBuilder,
    seeds: Mapping[ir.Value, ir.Value],
    wanted: Collection[ir.Value],
    stop: Collection[ir.Value] = (),
    *,
    defers: bool = False,
) -> dict[ir.Value, ir.Value]:
    """Append the backward pass to the builder's graph.

    Args:
        builder: appends to the graph that the targets are in.
        seeds: target -> its gradient, of the target's shape and element type.
        wanted: values to differentiate by.
        stop: values that no gradient passes through.
        defers: whether gradients that need sizes which are free may wait for them; `expand_gradients` makes them.

    Returns:
        Wanted value -> gradient, for those that the targets depend on.

    Raises:
        ModelError: an operator in between has no gradient rule, or no gradient as it is used.
    """
    weights = set(wanted) if low_weight_sums_wanted() else set()
    waits = leave_open(builder.model) if defers else ()
    return Driver(builder, set(wanted), set(stop), weights, defers=defers, waits=waits).run(builder.graph, seeds)


def expand_gradients(model: ir.Model) -> None:
    """Write the gradients that wait for sizes, in place. The sizes of the model's inputs must be known.

    Raises:
        ModelError: sizes depend on more than the shapes of the inputs, or a node has no gradient as it is used.
    """

    def expansion(
        node: ir.Node, builder: GraphBuilder, grads: Sequence[ir.Value | None], wanted: Sequence[ir.Value]
    ) -> list[ir.Value]:
        driver = Driver(builder, set(wanted), set())
        with inside_region_of(node), built_as(node):
            gradients = dict(driver.gradients_of(node, grads, set(wanted)))
        return [gradients[value] if value in gradients else builder.zeros_like(value) for value in wanted]

    expand_deferred(model, expansion)


class Driver:
    """One differentiation.

    Args:
        builder: appends the backward pass.
        wanted: values to differentiate by.
        stop: values that no gradient passes through.
        low_sums: weights and biases whose gradients are summed in their own element type, not in float32.
        otherwise: gives the gradients of a node that has no rule, or none as it is used; None: that is an error.
        defers: whether gradients may wait for sizes that are free.
        waits: nodes whose gradients wait in any case.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        wanted: set[ir.Value],
        stop: set[ir.Value],
        low_sums: Collection[ir.Value] = (),
        otherwise: Otherwise | None = None,
        *,
        defers: bool = False,
        waits: Collection[ir.Node] = (),
    ) -> None:
        self.builder = builder
        self._waits = waits
        self._defers = defers
        self._otherwise = otherwise
        self._low_sums = low_sums
        self._wanted = wanted - stop
        self._stop = stop

    def run(self, graph: ir.Graph, seeds: Mapping[ir.Value, ir.Value], *, first: int = 0) -> dict[ir.Value, ir.Value]:
        """Differentiate the nodes that are in `graph` now. Return the gradients of wanted values, outer ones too.

        Args:
            graph: the graph.
            seeds: target -> its gradient.
            first: how many nodes at the beginning of the graph do not count.
        """
        nodes = list(graph)[first:]
        active = self._active(nodes)
        parts: dict[ir.Value, list[ir.Value]] = {}
        for target, seed in seeds.items():
            parts.setdefault(target, []).append(seed)
        total: dict[ir.Value, ir.Value] = {}

        def settle(value: ir.Value) -> ir.Value | None:
            if value in parts:
                total[value] = self._sum(parts.pop(value))
            return total.get(value)

        for node in reversed(nodes):
            if not any(value in active for value in self.reads(node)):
                continue
            with inside_region_of(node), built_as(node):
                grads = [settle(value) for value in node.outputs]
                if all(grad is None for grad in grads):
                    continue
                for value, grad in self.gradients_of(node, grads, active):
                    parts.setdefault(value, []).append(grad)
        for value in list(parts):
            makers = [maker for part in parts[value] if (maker := part.producer()) is not None]
            with inside_region_of(*makers):  # an input has no node of its own: its readers' regions count
                settle(value)
        return {value: grad for value, grad in total.items() if value in self._wanted}

    def reads(self, node: ir.Node) -> Sequence[ir.Value | None]:
        """Return the values that a node's results may be differentiated by."""
        return (*node.inputs, *captured(node))

    def _active(self, nodes: Sequence[ir.Node]) -> set[ir.Value]:
        """The values that depend on a wanted one and that gradients may pass through."""
        active = set(self._wanted)
        for node in nodes:
            if any(value in active for value in self.reads(node)):
                active.update(v for v in node.outputs if is_float_tensor(v) and v not in self._stop)
        return active

    def gradients_of(
        self, node: ir.Node, grads: Sequence[ir.Value | None], active: set[ir.Value]
    ) -> list[tuple[ir.Value, ir.Value]]:
        """Return pairs of a value that the node reads and its gradient, by its rule or by what stands in for it.

        Args:
            node: the node.
            grads: gradient of each output, None where it has none.
            active: the values that gradients may pass through.
        """
        if self._otherwise is None and not (self._defers and not has_bodies(node)):
            return self._by_rule(node, grads, active)
        counts = [value for value in dict.fromkeys(node.inputs) if value is not None and value in active]
        if node in self._waits:
            return append_deferred(self.builder, node, grads, counts)
        graph = self.builder.graph
        last = graph[-1] if len(graph) else None
        try:
            return self._by_rule(node, grads, active)
        except ModelError as error:
            waits = isinstance(error.__cause__, SizesUnknown)
            if self._otherwise is None and not waits:
                raise
            discard_after(graph, last)  # what the rule had appended before it gave up
            if self._otherwise is not None:
                return list(self._otherwise(node, grads, lambda value: value in active, error))
            return append_deferred(self.builder, node, grads, counts)

    def _by_rule(
        self, node: ir.Node, grads: Sequence[ir.Value | None], active: set[ir.Value]
    ) -> list[tuple[ir.Value, ir.Value]]:
        rule = find_rule(node.domain, node.op_type)
        context = NodeGradient(node, self.builder, grads, lambda value: value in active, self)
        if rule is None:
            raise context.error(
                "there is no gradient rule for this operator; add one to amp_transpiler/autodiff/rules/, or "
                "keep gradients from passing (stop_gradient, no_grad_set)"
            )
        reads = (*node.inputs, *captured(node))
        try:
            # All functions among the gradients are called before any gradient is fitted.
            wanted = [
                (index, value, grad() if callable(grad) else grad)
                for index, (value, grad) in enumerate(zip(reads, rule(context), strict=False))
                if value is not None and grad is not None and value in active
            ]
        except SizesUnknown as error:
            raise context.error(str(error)) from error
        except NotDifferentiable as error:
            raise context.error(str(error)) from None
        return [(value, self._fit(grad.value, value, self.sums_low(node, index))) for index, value, grad in wanted]

    def sums_low(self, node: ir.Node, index: int) -> bool:
        """Return whether input `index` is a linear weight or bias whose gradient is summed in its own element type."""
        if not self._low_sums or index >= len(node.inputs) or _origin(node.inputs[index]) not in self._low_sums:
            return False
        if (node.domain, node.op_type) == ("", "Add"):
            terms = [_origin(value) for value in node.inputs]
            makers = [term.producer() for term in terms if term is not None]
            return any(maker is not None and _is_product(maker) for maker in makers)
        return _is_product(node)

    def branch(self, body: ir.Graph, grads: Sequence[ir.Value | None], wanted: Sequence[ir.Value]) -> ir.Graph:
        """Return a body without inputs that runs `body` forward again, then backward.

        Args:
            body: a branch of an `If`, which captures everything that it reads.
            grads: gradient of each output of the branch, None where it has none.
            wanted: outer values. Their gradients are the outputs, zeros for those that the branch does not use.
        """
        with outside_regions():  # the copies keep the regions of the originals
            copy, copied = copy_body(body, self.builder)
        stop = self._stop | {copied[v] for v in self._stop if v in copied}
        driver = Driver(self.builder, set(wanted), stop, self._low_sums, defers=self._defers)
        with self.builder.inside(copy):
            parts: dict[ir.Value, list[ir.Value]] = {}
            for output, grad in zip(copy.outputs, grads, strict=False):
                if grad is not None:
                    parts.setdefault(output, []).append(self._in_shape_of(grad, output))
            gradients = driver.run(copy, {output: self._sum(seeds) for output, seeds in parts.items()})
            outputs: list[ir.Value] = []
            computed = {value for node in copy for value in node.outputs}
            for value in wanted:
                gradient = gradients.get(value)
                if gradient is None:
                    gradient = self.builder.zeros_like(value)
                elif (
                    gradient not in computed or gradient in outputs
                ):  # ONNX: outputs are made in the branch, each of them once
                    gradient = self.builder.op("Identity", [gradient])
                outputs.append(gradient)
        copy.outputs[:] = outputs
        remove_unused(copy)
        return copy

    def turn(
        self, body: ir.Graph, grads: Sequence[ir.Value | None], wanted: Sequence[ir.Value]
    ) -> tuple[ir.Graph, list[ir.Value]]:
        """Return a copy of a loop's body that goes on with its backward pass, and the gradients of wanted values in it.

        Args:
            body: the body; its inputs stay those of the copy.
            grads: gradient of each output, None where it has none; they are to become inputs of the copy.
            wanted: inputs of `body`, and outer values. Gradients are zeros where the outputs do not depend on them.
        """
        with outside_regions():  # the copies keep the regions of the originals
            copy, copied = copy_body(body, self.builder)
        inner = [copied.get(value, value) for value in wanted]
        stop = self._stop | {copied[v] for v in self._stop if v in copied}
        driver = Driver(self.builder, set(inner), stop, self._low_sums, defers=self._defers)
        parts: dict[ir.Value, list[ir.Value]] = {}
        for output, grad in zip(copy.outputs, grads, strict=False):
            if grad is not None:
                parts.setdefault(output, []).append(grad)
        with self.builder.inside(copy):
            gradients = driver.run(copy, {output: self._sum(seeds) for output, seeds in parts.items()})
            outputs: list[ir.Value] = []
            for value in inner:
                grad = gradients[value] if value in gradients else self.builder.zeros_like(value)
                is_own = grad.producer() is not None and grad.graph is copy
                outputs.append(grad if is_own and grad not in outputs else self.builder.op("Identity", [grad]))
        copy.outputs.clear()
        return copy, outputs

    def through(
        self,
        define: Callable[[], Sequence[ir.Value | None]],
        grads: Sequence[ir.Value | None],
        wanted: Sequence[ir.Value],
    ) -> dict[ir.Value, ir.Value]:
        """Return the gradients of wanted values through operators that are appended now.

        Args:
            define: appends the operators; returns their results, None for one that it does not compute.
            grads: gradient of each result, None where it has none.
            wanted: values that the operators read.

        Raises:
            NotDifferentiable: a result has a gradient that `define` does not compute.
        """
        before = len(self.builder.graph)
        results = define()
        seeds = {}
        for index, grad in enumerate(grads):
            if grad is None:
                continue
            result = results[index] if index < len(results) else None
            if result is None:
                raise NotDifferentiable(f"its output {index} has no gradient here, and it is used")
            if result.shape is not None:
                grad.shape = ir.Shape(result.shape)
            seeds[result] = self.builder.cast(grad, result.dtype)
        driver = Driver(self.builder, set(wanted), self._stop, self._low_sums, defers=self._defers)
        return driver.run(self.builder.graph, seeds, first=before)

    def _in_shape_of(self, grad: ir.Value, output: ir.Value) -> ir.Value:
        """The gradient of an `If`'s output in the shape of a branch's output, which may be known more exactly."""
        if grad.shape == output.shape:
            return grad
        copy = self.builder.op("Identity", [grad])
        copy.shape = None if output.shape is None else ir.Shape(output.shape)
        return copy

    def _fit(self, grad: ir.Value, value: ir.Value, low: bool = False) -> ir.Value:
        """Give a gradient the shape and element type of its value: undo broadcasting, then cast."""
        return self.builder.cast(self.builder.sum_to(grad, value, low=low), value.dtype)

    def _sum(self, parts: Sequence[ir.Value]) -> ir.Value:
        if len(parts) == 1:
            return parts[0]
        scattered = [part for part in parts if _scatter_into_zeros(part) is not None]
        dense = [part for part in parts if part not in scattered] or [scattered.pop(0)]
        # In float32: a float16 sum of many contributions loses the small ones. A sum of two is rounded once anyway.
        if len(dense) > _FEW:
            dense = [self.builder.high(part) for part in dense]
        result = self._total(dense)
        for part in scattered:
            result = self._scatter_again(part, self.builder.high(result))
        return self.builder.cast(result, parts[0].dtype)

    def _total(self, parts: Sequence[ir.Value]) -> ir.Value:
        if len(parts) < 3:
            return parts[0] if len(parts) == 1 else self.builder.add(*parts)
        return self.builder.op("Sum", parts)

    def _scatter_again(self, part: ir.Value, total: ir.Value) -> ir.Value:
        """Add what `part` scatters among zeros to `total` instead: a table's gradient is as large as the table."""
        node = _scatter_into_zeros(part)
        assert node is not None
        result = self.builder.op(node.op_type, [total, *node.inputs[1:]], _attributes(node))
        unused = part.producer()
        while unused is not None and not any(is_used(value) for value in unused.outputs):
            following = unused.inputs[0]
            assert unused.graph is not None
            unused.graph.remove(unused, safe=True)
            unused = None if following is None else following.producer()
        return result


def _scatter_into_zeros(value: ir.Value) -> ir.Node | None:
    """Return the node that makes `value`, but for casts, by adding what it scatters to zeros; None if none does."""
    node = value.producer()
    while node is not None and node.op_type == "Cast" and not node.domain and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.domain or node.op_type not in ("ScatterND", "ScatterElements") or node.inputs[0] is None:
        return None
    zeros, reduction = node.inputs[0].producer(), node.attributes.get("reduction")
    adds = reduction is not None and reduction.as_string() == "add"
    if not adds or zeros is None or zeros.op_type != "ConstantOfShape" or zeros.domain:
        return None
    fill = zeros.attributes.get("value")
    return node if fill is None or not fill.as_tensor().numpy().any() else None


def _attributes(node: ir.Node) -> dict[str, object]:
    return {
        name: attribute.as_string() if attribute.type == ir.AttributeType.STRING else attribute.value
        for name, attribute in node.attributes.items()
    }


def _is_product(node: ir.Node) -> bool:
    return (node.domain, node.op_type) in _PRODUCTS


def _origin(value: ir.Value | None) -> ir.Value | None:
    """The value that `value` is a view or cast of."""
    while value is not None and (node := value.producer()) is not None:
        if node.domain or node.op_type not in _VIEWS:
            break
        value = node.inputs[0]
    return value
