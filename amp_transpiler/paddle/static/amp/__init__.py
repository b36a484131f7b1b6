"""Mixed precision for programs under construction, in Paddle's words."""

from amp_transpiler import debugging
from amp_transpiler.graph.regions import fp16_guard
from amp_transpiler.paddle.static.amp.decorator import decorate
from amp_transpiler.paddle.static.amp.optimizer import OptimizerWithMixedPrecision
from amp_transpiler.systems.paddle.casting import cast_model_to_fp16, cast_parameters_to_fp16
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

CustomOpLists = AutoMixedPrecisionLists

__all__ = [
    "AutoMixedPrecisionLists",
    "CustomOpLists",
    "OptimizerWithMixedPrecision",
    "cast_model_to_fp16",
    "cast_parameters_to_fp16",
    "debugging",
    "decorate",
    "fp16_guard",
]
