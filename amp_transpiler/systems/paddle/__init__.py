"""Paddle's static AMP: levels, operator lists, rules, and `cast_model_to_fp16`."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.systems.paddle.casting import (
        cast_model_to_fp16 as cast_model_to_fp16,
        cast_parameters_to_fp16 as cast_parameters_to_fp16,
    )
    from amp_transpiler.systems.paddle.levels import LEVELS as LEVELS, Level as Level, find_level as find_level
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
    from amp_transpiler.systems.paddle.rules import PaddleRules as PaddleRules
else:
    __getattr__, __dir__ = lazy_names(__name__)
