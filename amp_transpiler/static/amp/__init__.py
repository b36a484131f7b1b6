"""Mixed precision for programs under construction, in Paddle's words."""

from amp_transpiler import debugging
from amp_transpiler.casting import cast_model_to_fp16, cast_parameters_to_fp16
from amp_transpiler.graph.regions import fp16_guard
from amp_transpiler.precision.lists import AutoMixedPrecisionLists
from amp_transpiler.static.amp.decorator import decorate
from amp_transpiler.static.amp.optimizer import OptimizerWithMixedPrecision

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
