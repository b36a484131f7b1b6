"""The interface of a target."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from amp_transpiler.ops.limits import NEWEST_IR, NEWEST_OPSET

if TYPE_CHECKING:  # the commands list the targets without importing onnx
    from amp_transpiler.targets.operator import Operator

__all__ = ["Target"]


class Target(abc.ABC):
    """A backend that programs are converted for.

    Attributes:
        name: as users write it, such as `cuda`.
        description: a few words for the table of options.
        provider: ONNX Runtime's name for the execution provider; None if the target is not exactly one provider.
        runtime_version: the version of ONNX Runtime that the target's kernels are known for; None if it has no table.
        fallback: the target that runs the operators which this one does not; None if there is none.
        inserts_casts: where it has no float16 kernel it computes in float32, between casts that it inserts itself.
        newest_opset: the highest version of ONNX's own domain that it reads.
        newest_ir: the highest IR version that it reads.
    """

    name: str
    description: str
    provider: str | None = None
    runtime_version: str | None = None
    fallback: Target | None = None
    inserts_casts: bool = False
    newest_opset: int = NEWEST_OPSET
    newest_ir: int = NEWEST_IR

    @abc.abstractmethod
    def has_kernel(self, operator: Operator) -> bool:
        """Whether the target has a kernel of its own for the operator with these types and accepts its attributes."""

    def runs(self, operator: Operator) -> bool:
        """Whether the target runs the operator: by a kernel, by a function body, or between casts of its own.

        ONNX Runtime writes an operator that is defined as a function out where no provider has a kernel for it. Each
        float operator of the body must then run on the target.
        """
        from amp_transpiler.targets.function_bodies import body_of, is_ill_typed

        if self.has_kernel(operator) or (self.inserts_casts and self.has_kernel(operator.in_float32())):
            # ONNX's checker refuses a body that is ill-typed in these types, whoever has a kernel for the whole.
            return not is_ill_typed(operator)
        if self.fallback is not None and self.fallback.has_kernel(operator):
            return False  # the fallback takes the operator whole, before it would be written out
        body = body_of(operator)
        return body is not None and all(map(self.runs, body))

    @property
    def providers(self) -> tuple[Target, ...]:
        """The targets that may run a node of a program, the preferred one first."""
        return (self,) if self.fallback is None else (self, *self.fallback.providers)
