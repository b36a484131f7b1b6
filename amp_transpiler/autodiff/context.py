"""The node that a gradient rule differentiates, with the gradients of its outputs."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy.typing as npt
import onnx_ir as ir

from amp_transpiler.autodiff.bodies import captured
from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.autodiff.refusals import NotDifferentiable, SizesUnknown
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.origins import scope_of

__all__ = ["Backward", "NodeGradient", "NotDifferentiable", "SizesUnknown", "low_weight_sums", "low_weight_sums_wanted"]

_low_weight_sums: contextvars.ContextVar[bool] = contextvars.ContextVar("amp_transpiler.low_weight_sums", default=False)


@contextlib.contextmanager
def low_weight_sums(low: bool = True) -> Iterator[None]:
    """Make backward passes appended inside sum the gradients of linear weights and biases in the gradient's own type.

    `decorate(weight_grad_reduce="low")` enters it around the wrapped optimizer's `backward`, whose signature is
    Paddle's and has no argument for it.

    Args:
        low: False for sums in float32, as outside.
    """
    token = _low_weight_sums.set(low)
    try:
        yield
    finally:
        _low_weight_sums.reset(token)


def low_weight_sums_wanted() -> bool:
    """Return whether the code is inside `low_weight_sums`."""
    return _low_weight_sums.get()


class Backward(Protocol):
    """The backward pass in progress, as far as rules need it (see `autodiff.driver.Driver`)."""

    def sums_low(self, node: ir.Node, index: int) -> bool:
        """Whether the gradient of input `index` is summed in its own element type."""

    def branch(self, body: ir.Graph, grads: Sequence[ir.Value | None], wanted: Sequence[ir.Value]) -> ir.Graph:
        """Return a body that runs `body` forward, then backward."""

    def turn(
        self, body: ir.Graph, grads: Sequence[ir.Value | None], wanted: Sequence[ir.Value]
    ) -> tuple[ir.Graph, list[ir.Value]]:
        """Return a copy of a loop's body that goes on with its backward pass, and the gradients of wanted values."""

    def through(
        self,
        define: Callable[[], Sequence[ir.Value | None]],
        grads: Sequence[ir.Value | None],
        wanted: Sequence[ir.Value],
    ) -> dict[ir.Value, ir.Value]:
        """Return the gradients of wanted values through what `define` appends."""


class NodeGradient:
    """A node being differentiated.

    Attributes:
        source: the node of the forward pass.
        builder: appends the operators of the backward pass.
        grads: gradient of each output, None where the targets do not depend on it.
        inputs: the inputs, None where one is left out.
        backward: the backward pass in progress.
    """

    def __init__(
        self,
        source: ir.Node,
        builder: GraphBuilder,
        grads: Sequence[ir.Value | None],
        wanted: Callable[[ir.Value], bool],
        backward: Backward,
    ) -> None:
        self.source = source
        self.builder = builder
        self.grads = [self._expr(grad) for grad in grads]
        self.inputs = [self._expr(value) for value in source.inputs]
        self._wanted = wanted
        self.backward = backward

    def _expr(self, value: ir.Value | None) -> Expr | None:
        return None if value is None else Expr(value, self.builder)

    @property
    def opset(self) -> int:
        """The version of ONNX's own domain."""
        return self.builder.opset

    @property
    def op_type(self) -> str:
        """The operator."""
        return self.source.op_type

    @property
    def reads(self) -> int:
        """The number of values that the node reads: its inputs and those that its bodies capture."""
        return len(self.inputs) + len(captured(self.source))

    @property
    def g(self) -> Expr:
        """The gradient of the first output."""
        grad = self.grads[0]
        if grad is None:
            raise self.error("its first output has no gradient, only another one has: this use is not differentiable")
        return grad

    @property
    def y(self) -> Expr:
        """The first output."""
        return Expr(self.source.outputs[0], self.builder)

    def input(self, index: int) -> Expr:
        """Return input `index`, which must be there."""
        expr = self.optional(index)
        if expr is None:
            raise self.error(f"input {index} is missing")
        return expr

    def optional(self, index: int) -> Expr | None:
        """Return input `index`, or None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int) -> Expr:
        """Return output `index` of the node, added to it if the forward pass did not ask for it."""
        if index >= len(self.source.outputs):
            self.source.resize_outputs(index + 1)
        value = self.source.outputs[index]
        if not value.name:
            value.name = self.builder.names.fresh(f"{self.source.name}_out{index}")
        if value.type is None or value.shape is None:
            infer_outputs(self.builder.model, self.source)
        return Expr(value, self.builder)

    def wants(self, index: int) -> bool:
        """Return whether the gradient of input `index` is wanted."""
        expr = self.optional(index)
        return expr is not None and self._wanted(expr.value)

    def wants_value(self, value: ir.Value) -> bool:
        """Return whether the gradient of a value, such as one that a body captures, is wanted."""
        return self._wanted(value)

    def sums_low(self, index: int) -> bool:
        """Return whether the gradient of input `index` is summed in its own element type."""
        return self.backward.sums_low(self.source, index)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, string, list, or `ir.TensorProtocol`."""
        attribute = self.source.attributes.get(name)
        if attribute is None:
            return default
        return attribute.as_string() if attribute.type == ir.AttributeType.STRING else attribute.value

    def constant(self, index: int) -> npt.NDArray[Any]:
        """Return the numbers of input `index`, which must be a constant.

        Raises:
            ModelError: it is missing.
            NotDifferentiable: it is not constant.
        """
        expr = self.input(index)
        if expr.known is None:
            of_sizes = _is_of_sizes(expr.value)
            refusal = SizesUnknown if of_sizes else NotDifferentiable
            raise refusal(f"input {index} ('{expr.name}') must be a constant to be differentiated through")
        return expr.known

    def error(self, problem: str) -> ModelError:
        """Return an error that names this node and says what the problem is."""
        kind = f"{self.source.domain}::{self.op_type}" if self.source.domain else self.op_type
        origin = scope_of(self.source)
        where = f"'{self.source.name}' ({kind}, opset {self.opset}){f' {origin}' if origin else ''}"
        return ModelError(f"cannot differentiate node {where}: {problem}")


def _is_of_sizes(value: ir.Value) -> bool:
    """Whether a value is computed only from sizes and constants."""
    stack, seen = [value], {value}
    while stack:
        here = stack.pop()
        node = here.producer()
        if constant_of(here) is not None or (node is not None and node.op_type in ("Shape", "Size")):
            continue
        if node is None:
            return False
        new = [source for source in node.inputs if source is not None and source not in seen]
        seen.update(new)
        stack.extend(new)
    return True
