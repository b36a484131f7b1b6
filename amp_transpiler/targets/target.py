"""The interface of a target."""

from __future__ import annotations

import abc
import copy
from typing import TYPE_CHECKING

from amp_transpiler.targets.releases import Choice, Release, choose_release

if TYPE_CHECKING:  # the commands list the targets without importing onnx
    from typing import Self

    from amp_transpiler.targets.operator import Operator

__all__ = ["Target"]


_PRICED = "CUDAExecutionProvider"


class Target(abc.ABC):
    """A backend that programs are converted for.

    Attributes:
        name: as users write it, such as `cuda`.
        description: a few words for the table of options.
        provider: ONNX Runtime's name for the execution provider; None if the target is not exactly one provider.
        fallback: the target that runs the operators which this one does not; None if there is none.
        inserts_casts: where it has no float16 kernel it computes in float32, between casts that it inserts itself.
        builds_engines: it makes an engine of a file before it runs anything, by a builder that may refuse the file. It
            lacks ONNX Runtime's own operators.
        lacks: the 16-bit formats that it has no arithmetic in.
        asked: the release of ONNX Runtime that the user asks for; None for the installed one.
    """

    name: str
    description: str
    provider: str | None = None
    fallback: Target | None = None
    inserts_casts: bool = False
    builds_engines: bool = False
    lacks: frozenset[str] = frozenset()
    asked: str | None = None

    @property
    def choice(self) -> Choice:
        """The release of ONNX Runtime that decides, with a note if it is another than the one asked for."""
        return choose_release(self.asked)

    @property
    def release(self) -> Release:
        """The release of ONNX Runtime that decides."""
        return self.choice.release

    @property
    def ort(self) -> str:
        """The version of ONNX Runtime that decides, such as `1.31`."""
        return self.release.version

    @property
    def newest_opset(self) -> int:
        """The highest version of ONNX's own domain that the release reads."""
        return self.release.newest_opset

    @property
    def newest_ir(self) -> int:
        """The highest IR version that the release reads."""
        return self.release.newest_ir

    @property
    def runs_on_gpu(self) -> bool:
        """Whether a GPU runs the programs, so that a device may be named."""
        return self.name != "cpu"

    def of_release(self, asked: str) -> Self:
        """Return the same target as the release `asked` of ONNX Runtime has it."""
        target = copy.copy(self)
        target.asked = asked
        return target

    @abc.abstractmethod
    def has_kernel(self, operator: Operator) -> bool:
        """Whether the target has a kernel of its own for the operator with these types and accepts its attributes."""

    def takes(self, operator: Operator) -> bool:
        """Whether the target has a kernel of its own, or computes the operator in float32 between casts of its own."""
        return self.has_kernel(operator) or (self.inserts_casts and self.has_kernel(operator.in_float32()))

    def runs(self, operator: Operator) -> bool:
        """Whether the target runs the operator: by a kernel, by a function body, or between casts of its own.

        ONNX Runtime writes an operator that is defined as a function out where no provider has a kernel for it. Each
        float operator of the body must then run on the target.
        """
        from amp_transpiler.targets.function_bodies import body_of, is_ill_typed

        if self.takes(operator):
            # ONNX's checker refuses a body that is ill-typed in these types, whoever has a kernel for the whole.
            return not is_ill_typed(operator)
        if self.fallback is not None and self.fallback.has_kernel(operator):
            return False  # the fallback takes the operator whole, before it would be written out
        body = body_of(operator, self.release)
        return body is not None and all(map(self.runs, body))

    @property
    def has_prices(self) -> bool:
        """Whether the time of a run can be predicted: prices are those of CUDA's kernels."""
        return any(target.provider == _PRICED for target in self.providers)

    @property
    def providers(self) -> tuple[Target, ...]:
        """The targets that may run a node of a program, the preferred one first."""
        return (self,) if self.fallback is None else (self, *self.fallback.providers)
