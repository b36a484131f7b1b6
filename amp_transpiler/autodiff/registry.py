"""The table of gradient rules: operator -> how the gradients of its outputs become gradients of its inputs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from amp_transpiler.autodiff.context import NodeGradient
from amp_transpiler.autodiff.expression import Expr

__all__ = ["RULES", "Gradient", "Gradients", "Rule", "gradient", "no_gradient"]

Gradient: TypeAlias = "Expr | Callable[[], Expr] | None"
Gradients: TypeAlias = "Gradient | Sequence[Gradient]"
Function: TypeAlias = Callable[..., Gradients]

RULES: dict[tuple[str, str], Rule] = {}  # (domain, operator) -> its rule, filled by the files in rules/
_RESERVED = ("y", "node")  # keyword-only parameters of a rule that are no attributes


def gradient(*op_types: str, domain: str = "") -> Callable[[Function], Function]:
    """Register the decorated function as the rule of these operators.

    The function's signature says what it gets:

    - `g` first: the gradient of the first output; or `gs`: those of all outputs, None for an output without one.
    - then the inputs in order. One that may be missing has the default None; `*inputs` takes all that are left.
    - keyword-only `y`: the first output; `node`: the `NodeGradient` with everything else; any other name: the attribute
      of that name, with the default that the operator gives it.

    It returns the gradients of the inputs in order; trailing ones may be left out. A gradient is an expression, None
    for zero, or a function without arguments, which is called only if the gradient is wanted. The rule need not undo
    broadcasting nor return the element type of the input: the driver does both.
    """

    def register(function: Function) -> Function:
        for op_type in op_types:
            if (domain, op_type) in RULES:
                raise ValueError(f"there are two gradient rules for {domain or 'ai.onnx'}::{op_type}")
            RULES[domain, op_type] = Rule.of(function)
        return function

    return register


def no_gradient(op_types: Iterable[str], domain: str = "") -> None:
    """Register operators whose outputs are constant, or piecewise constant, in their inputs: the gradient is zero."""
    gradient(*op_types, domain=domain)(lambda: None)


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A gradient rule and what its signature asks for.

    Attributes:
        function: the rule.
        of_outputs: "g" for the gradient of the first output, "gs" for those of all, "" for none.
        required: for each input that the rule names, whether it must be there.
        variadic: whether the rule takes all further inputs too.
        keywords: `y`, `node` and attributes, with their defaults.
    """

    function: Function
    of_outputs: str
    required: tuple[bool, ...]
    variadic: bool
    keywords: Mapping[str, Any]

    @staticmethod
    def of(function: Function) -> Rule:
        """Read the signature of a rule.

        Raises:
            TypeError: its first parameter is neither `g` nor `gs`.
        """
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if named and named[0].name not in ("g", "gs"):
            raise TypeError(f"the first parameter of gradient rule {function!r} must be g or gs, got {named[0].name}")
        return Rule(
            function,
            of_outputs=named[0].name if named else "",
            required=tuple(p.default is p.empty for p in named[1:]),
            variadic=any(p.kind is p.VAR_POSITIONAL for p in parameters),
            keywords={p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY},
        )

    @property
    def asks_nothing(self) -> bool:
        """Whether the rule looks neither at gradients nor at the node: it is zero, or always refuses."""
        return not (self.of_outputs or self.required or self.variadic or self.keywords)

    def __call__(self, node: NodeGradient) -> list[Gradient]:
        """Return the gradients of the node's inputs, in order.

        Raises:
            ModelError: an input or attribute that the rule needs is missing, or the node has no gradient as it is used.
            TypeError: the rule returns more gradients than the operator has inputs.
        """
        arguments: list[Any] = []
        if self.of_outputs:
            arguments.append(node.g if self.of_outputs == "g" else node.grads)
        for index, required in enumerate(self.required):
            arguments.append(node.input(index) if required else node.optional(index))
        if self.variadic:
            arguments.extend(node.inputs[len(self.required) :])
        keywords = {name: self._keyword(node, name, default) for name, default in self.keywords.items()}
        returned = self.function(*arguments, **keywords)
        gradients = list(returned) if isinstance(returned, Sequence) else [returned]
        if len(gradients) > len(self.required) and len(gradients) > node.reads:
            raise TypeError(
                f"gradient rule {self.function!r} returned {len(gradients)} gradients for {node.reads} inputs"
            )
        return gradients

    @staticmethod
    def _keyword(node: NodeGradient, name: str, default: object) -> Any:
        if name in _RESERVED:
            return node if name == "node" else node.y
        if default is inspect.Parameter.empty and node.attribute(name) is None:
            raise node.error(f"its attribute '{name}' is missing")
        return node.attribute(name, default)
