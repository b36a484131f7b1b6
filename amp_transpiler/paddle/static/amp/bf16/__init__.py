"""`paddle.static.amp.bf16`, Paddle's older module: has the functions of `static.amp` for bfloat16 only."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.static.amp.bf16 import amp_lists as amp_lists, amp_utils as amp_utils
    from amp_transpiler.paddle.static.amp.bf16.amp_lists import (
        AutoMixedPrecisionListsBF16 as AutoMixedPrecisionListsBF16,
    )
    from amp_transpiler.paddle.static.amp.bf16.amp_utils import (
        bf16_guard as bf16_guard,
        cast_model_to_bf16 as cast_model_to_bf16,
        cast_parameters_to_bf16 as cast_parameters_to_bf16,
        convert_float_to_uint16 as convert_float_to_uint16,
        rewrite_program_bf16 as rewrite_program_bf16,
    )
    from amp_transpiler.paddle.static.amp.bf16.decorator import decorate_bf16 as decorate_bf16
else:
    __getattr__, __dir__ = lazy_names(__name__)
