"""`paddle.amp`, Paddle's shorter path of mixed precision: has names of `static.amp` and settings of dynamic mode."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.amp import debugging as debugging
    from amp_transpiler.paddle.amp.dynamic import (
        GradScaler as GradScaler,
        auto_cast as auto_cast,
        autocast as autocast,
        black_list as black_list,
        decorate as decorate,
        get_autocast_cpu_dtype as get_autocast_cpu_dtype,
        get_autocast_dtype as get_autocast_dtype,
        get_autocast_gpu_dtype as get_autocast_gpu_dtype,
        is_autocast_enabled as is_autocast_enabled,
        is_bfloat16_supported as is_bfloat16_supported,
        is_float16_supported as is_float16_supported,
        white_list as white_list,
    )
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
else:
    __getattr__, __dir__ = lazy_names(__name__)
