"""Execution providers of ONNX Runtime, known by the table of the kernels that they register."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from amp_transpiler.targets.kernel_table import KernelTable
from amp_transpiler.targets.target import Target

if TYPE_CHECKING:
    from amp_transpiler.targets.operator import Operator

__all__ = ["Provider"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Provider(Target):
    """An execution provider. Its kernels are in the releases' tables, and rows of `refusals.py`, under its name."""

    name: str
    description: str
    provider: str
    fallback: Target | None = None
    inserts_casts: bool = False
    lacks: frozenset[str] = frozenset()
    asked: str | None = None

    def of_release(self, asked: str) -> Provider:
        """Return the same provider as the release `asked` has it."""
        fallback = None if self.fallback is None else self.fallback.of_release(asked)
        return dataclasses.replace(self, fallback=fallback, asked=asked)

    @property
    def table(self) -> KernelTable:
        """The registered kernels."""
        return self.release.kernels(self.name)

    def has_kernel(self, operator: Operator) -> bool:
        """Whether a kernel is registered for the operator and the provider does not refuse it."""
        version = self.release.schema_version(operator.domain, operator.op_type, operator.opset)
        registered = self.table.has_kernel(operator.domain, operator.op_type, version, operator.bound_types)
        return registered and self.refusal(operator) is None

    def takes(self, operator: Operator) -> bool:
        """Whether it has a kernel, or inserts casts; where a registered kernel is refused, it inserts none."""
        return super().takes(operator) and self.refusal(operator) is None

    def runs(self, operator: Operator) -> bool:
        """Whether it takes the operator, or writes it out; where a registered kernel is refused, it does neither."""
        return super().runs(operator) and self.refusal(operator) is None

    def refusal(self, operator: Operator) -> str | None:
        """Return why the provider refuses a registered kernel for this operator; None if it does not."""
        from amp_transpiler.targets.refusals import REFUSALS

        rows = REFUSALS.get((self.name, operator.op_type), ()) if not operator.domain else ()
        return next((row.reason for row in rows if row.holds(operator, self.ort)), None)
