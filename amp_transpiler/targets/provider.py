"""Execution providers of ONNX Runtime, known by the table of the kernels that they register."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from amp_transpiler.targets.kernel_table import KernelTable, load_table
from amp_transpiler.targets.target import Target

if TYPE_CHECKING:
    from amp_transpiler.targets.operator import Operator

__all__ = ["Provider"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Provider(Target):
    """An execution provider. Its kernels are in `data/NAME.json`, and rows of `refusals.py` have its name."""

    name: str
    description: str
    provider: str
    runtime_version: str
    fallback: Target | None = None
    inserts_casts: bool = False

    @property
    def table(self) -> KernelTable:
        """The registered kernels."""
        return load_table(self.name)

    def has_kernel(self, operator: Operator) -> bool:
        """Whether a kernel is registered for the operator and the provider does not refuse it."""
        registered = self.table.has_kernel(
            operator.domain, operator.op_type, operator.schema_version, operator.bound_types
        )
        return registered and self.refusal(operator) is None

    def refusal(self, operator: Operator) -> str | None:
        """Return why the provider refuses a registered kernel for this operator; None if it does not."""
        from amp_transpiler.targets.refusals import REFUSALS

        rows = REFUSALS.get((self.name, operator.op_type), ()) if not operator.domain else ()
        return next((row.reason for row in rows if row.applies(operator)), None)
