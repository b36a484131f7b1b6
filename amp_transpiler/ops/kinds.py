"""Kinds of operators, as sets of names. `operators.txt` says what each kind means."""

from __future__ import annotations

from amp_transpiler.ops.table import of_kind

__all__ = [
    "BOUNDED",
    "CAPPED",
    "COMPUTE",
    "EXACT",
    "FUSED",
    "LOSS",
    "MOVEMENT",
    "RANDOM",
    "ROOT",
    "SCATTER",
    "SQUARES",
    "SUM",
]

BOUNDED = of_kind("bounded")
CAPPED = of_kind("capped")
COMPUTE = of_kind("compute")
FUSED = of_kind("fused")
LOSS = of_kind("loss")
MOVEMENT = of_kind("movement")
EXACT = of_kind("exact") | MOVEMENT
RANDOM = of_kind("random")
ROOT = of_kind("root")
SCATTER = of_kind("scatter")
SQUARES = of_kind("squares")
SUM = of_kind("sum")
