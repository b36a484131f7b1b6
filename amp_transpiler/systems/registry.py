"""The systems by name, and where the rules of each are. Importing this costs nothing, so that `--help` may read it."""

from __future__ import annotations

import importlib
import types
from collections.abc import Mapping
from typing import Any

__all__ = ["SYSTEMS", "rules_class"]

SYSTEMS: Mapping[str, str] = types.MappingProxyType(
    {
        "paddle": "amp_transpiler.systems.paddle.rules.PaddleRules",
        "torch": "amp_transpiler.systems.torch.rules.TorchRules",
        "raf": "amp_transpiler.systems.raf.rules.RafRules",
        "mxnet": "amp_transpiler.systems.mxnet.rules.MxnetRules",
    }
)
"""What `policy=` and `--policy` take -> the class of its rules. SambaNova's rules are chosen by preset instead."""


def rules_class(system: str) -> Any:
    """Return the class of a system's rules, a subclass of `precision.rules.Rules`."""
    module, _, name = SYSTEMS[system].rpartition(".")
    return getattr(importlib.import_module(module), name)
