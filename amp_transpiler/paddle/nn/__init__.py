"""Building blocks of networks: functions, initial values, gradient clipping."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.nn import functional as functional, initializer as initializer
    from amp_transpiler.paddle.nn.clip import (
        ClipGradByGlobalNorm as ClipGradByGlobalNorm,
        ClipGradByNorm as ClipGradByNorm,
        ClipGradByValue as ClipGradByValue,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
