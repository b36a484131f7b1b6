"""The systems by name: a few words about each, and where its rules are.

`--help` reads this table, so it must be cheap to import; the rules are imported when a system is chosen.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

from amp_transpiler.lazy import import_late

__all__ = ["SYSTEMS", "System", "rules_class"]


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """One system.

    Attributes:
        description: its rules in a few words, for the table of options.
        rules: full name of the class of its rules, a subclass of `precision.rules.Rules`.
    """

    description: str
    rules: str


SYSTEMS: Mapping[str, System] = types.MappingProxyType(
    {
        "paddle": System("Paddle's lists and levels", "amp_transpiler.systems.paddle.rules.PaddleRules"),
        "torch": System("PyTorch's autocast classes", "amp_transpiler.systems.torch.rules.TorchRules"),
        "raf": System("RAF's casting rules", "amp_transpiler.systems.raf.rules.RafRules"),
        "mxnet": System("MXNet's conversion lists", "amp_transpiler.systems.mxnet.rules.MxnetRules"),
    }
)
"""The values of `policy=` and `--policy`. SambaNova's rules are chosen by a preset instead."""


def rules_class(system: str) -> Any:
    """Return the class of a system's rules."""
    module, _, name = SYSTEMS[system].rules.rpartition(".")
    return import_late(module, name)
