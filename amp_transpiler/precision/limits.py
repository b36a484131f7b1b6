"""How far a result may be from fp32."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

__all__ = ["Limits"]


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The limits of outputs.

    Attributes:
        tolerance: the largest relative norm error of an output, as a fraction; infinite for no limit.
        mismatch: the largest share of integers, truth values or texts of an output that may differ; None for none
            wherever a tolerance applies, and for no limit elsewhere.
        outputs: the name of an output -> a tolerance of its own.
    """

    tolerance: float = math.inf
    mismatch: float | None = None
    outputs: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def for_output(self, name: str) -> float:
        """Return the tolerance of an output; infinite for no limit."""
        return self.outputs.get(name, self.tolerance)

    def mismatch_for(self, name: str) -> float | None:
        """Return the largest share of differing integers, truth values or texts of an output; None for no limit."""
        if self.mismatch is not None:
            return self.mismatch
        return 0.0 if math.isfinite(self.for_output(name)) else None
