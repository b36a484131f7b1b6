"""Programs that must run on a GPU and on a CPU alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_transpiler.targets.cpu import CPU
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.target import Target

if TYPE_CHECKING:
    from amp_transpiler.targets.operator import Operator

__all__ = ["ANY", "EachOf"]


class EachOf(Target):
    """Several targets, each of which must run the program.

    Args:
        name: the name of the combination.
        description: a few words for the table of options.
        targets: its members, the preferred one first.
    """

    def __init__(self, name: str, description: str, *targets: Target) -> None:
        self.name = name
        self.description = description
        self._targets = targets

    def of_release(self, asked: str) -> EachOf:
        """Return the combination of the members as the release `asked` has them."""
        combined = EachOf(self.name, self.description, *(target.of_release(asked) for target in self._targets))
        combined.asked = asked
        return combined

    def has_kernel(self, operator: Operator) -> bool:
        """Whether each member has a kernel, or computes the operator between casts of its own."""
        return all(target.takes(operator) for target in self._targets)

    @property
    def providers(self) -> tuple[Target, ...]:
        """The members."""
        return self._targets


ANY = EachOf("any", "both providers", CUDA, CPU)
