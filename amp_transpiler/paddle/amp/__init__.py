"""Mixed precision under Paddle's shorter path, `paddle.amp`: names of `static.amp`, and settings of dynamic mode."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.amp.dynamic import (
        GradScaler as GradScaler,
        auto_cast as auto_cast,
        decorate as decorate,
        is_bfloat16_supported as is_bfloat16_supported,
        is_float16_supported as is_float16_supported,
    )
    from amp_transpiler.paddle.static.amp import debugging as debugging
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
else:
    __getattr__, __dir__ = lazy_names(__name__)
