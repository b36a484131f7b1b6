"""SambaNova's GraphAMP: presets, operators in mixed precision, and rules."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.systems.sambanova.rules import (
        MIXED_OPS as MIXED_OPS,
        PRESETS as PRESETS,
        Preset as Preset,
        SambanovaRules as SambanovaRules,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
