"""`paddle.static.amp`: makes programs compute in mixed precision while they are built."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.graph.regions import fp16_guard as fp16_guard
    from amp_transpiler.paddle.static.amp import (
        amp_nn as amp_nn,
        bf16 as bf16,
        debugging as debugging,
        fp16_lists as fp16_lists,
        fp16_utils as fp16_utils,
    )
    from amp_transpiler.paddle.static.amp.decorator import CustomOpLists as CustomOpLists, decorate as decorate
    from amp_transpiler.paddle.static.amp.optimizer import OptimizerWithMixedPrecision as OptimizerWithMixedPrecision
    from amp_transpiler.systems.paddle.casting import (
        cast_model_to_fp16 as cast_model_to_fp16,
        cast_parameters_to_fp16 as cast_parameters_to_fp16,
    )
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
else:
    __getattr__, __dir__ = lazy_names(__name__)
