"""What a gradient rule sees: one node, the gradients of its outputs, and a builder to write with."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.walk import constant_of

__all__ = ["NodeGradient", "low_weight_sums", "low_weight_sums_wanted"]

_low_weight_sums: contextvars.ContextVar[bool] = contextvars.ContextVar("amp_transpiler.low_weight_sums", default=False)


@contextlib.contextmanager
def low_weight_sums(low: bool = True) -> Iterator[None]:
    """Make backward passes appended inside sum the gradients of linear weights and biases in the gradient's own format.

    It is what `decorate(weight_grad_reduce="low")` does around the wrapped optimizer's `backward`, whose signature is
    Paddle's and has no place for it.

    Args:
        low: False for float32, as outside.
    """
    token = _low_weight_sums.set(low)
    try:
        yield
    finally:
        _low_weight_sums.reset(token)


def low_weight_sums_wanted() -> bool:
    """Return whether the code is inside `low_weight_sums`."""
    return _low_weight_sums.get()


class NodeGradient:
    """A node being differentiated.

    Attributes:
        node: the node.
        b: writes the operators of the backward pass.
        grads: gradient of each output, None where the targets do not depend on it.
        driver: for control flow: differentiates a body (see `autodiff.driver.Driver.branch`).
    """

    def __init__(
        self,
        node: ir.Node,
        builder: GraphBuilder,
        grads: Sequence[ir.Value | None],
        wanted: Callable[[ir.Value], bool],
        driver: Any = None,
    ) -> None:
        self.node = node
        self.b = builder
        self.grads = grads
        self._wanted = wanted
        self.driver = driver

    @property
    def g(self) -> ir.Value:
        """The gradient of the first output."""
        found = self.grads[0]
        if found is None:
            raise self.error("its first output has no gradient, only another one has: this use is not differentiable")
        return found

    @property
    def x(self) -> ir.Value:
        """The first input."""
        return self.input(0)

    @property
    def y(self) -> ir.Value:
        """The first output."""
        return self.node.outputs[0]

    def input(self, index: int) -> ir.Value:
        """Input `index`, which must be there."""
        found = self.optional(index)
        if found is None:
            raise self.error(f"input {index} is missing")
        return found

    def optional(self, index: int) -> ir.Value | None:
        """Input `index`, or None if it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def output(self, index: int) -> ir.Value:
        """Output `index` of the node, added to it if the forward pass did not ask for it."""
        if index >= len(self.node.outputs):
            self.node.resize_outputs(index + 1)
        value = self.node.outputs[index]
        if not value.name:
            value.name = self.b.names.fresh(f"{self.node.name}_out{index}")
        if value.type is None:
            from amp_transpiler.graph.builder import infer_outputs

            infer_outputs(self.b.model, self.node)
        return value

    def wants(self, index: int) -> bool:
        """Whether the gradient of input `index` is wanted by anybody."""
        value = self.optional(index)
        return value is not None and self._wanted(value)

    def wants_value(self, value: ir.Value) -> bool:
        """Whether the gradient of a value, such as one that a body captures, is wanted by anybody."""
        return self._wanted(value)

    def sums_low(self, index: int) -> bool:
        """Whether the gradient of input `index` is summed in its own format: for `sum_to` in rules of products."""
        return self.driver is not None and self.driver.sums_low(self.node, index)

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute: a number, string, list, or `ir.TensorProtocol`."""
        found = self.node.attributes.get(name)
        if found is None:
            return default
        return found.as_string() if found.type == ir.AttributeType.STRING else found.value

    def constant(self, index: int) -> Any:
        """The array of input `index`, which must be a constant; None if it is left out.

        Raises:
            ModelError: it is not constant.
        """
        value = self.optional(index)
        if value is None:
            return None
        tensor = constant_of(value)
        if tensor is None:
            raise self.error(f"input {index} ('{value.name}') must be a constant to be differentiated through")
        return tensor.numpy()

    def error(self, problem: str) -> ModelError:
        """Return an error about this node that says what the matter is."""
        kind = f"{self.node.domain}::{self.node.op_type}" if self.node.domain else self.node.op_type
        return ModelError(f"cannot differentiate node '{self.node.name}' ({kind}, opset {self.b.opset}): {problem}")
