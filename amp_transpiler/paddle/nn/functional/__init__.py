"""Layers as functions, with Paddle's signatures; each appends standard ONNX operators to its operands' program."""
# ruff: noqa: F403  # the list of functions is `__all__` of each module

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names
from amp_transpiler.paddle.framework.missing_names import why_not

if TYPE_CHECKING:
    from amp_transpiler.paddle.nn.functional.activation import *
    from amp_transpiler.paddle.nn.functional.adaptive_pooling import *
    from amp_transpiler.paddle.nn.functional.attention import *
    from amp_transpiler.paddle.nn.functional.classification import *
    from amp_transpiler.paddle.nn.functional.common import *
    from amp_transpiler.paddle.nn.functional.conv import *
    from amp_transpiler.paddle.nn.functional.ctc import *
    from amp_transpiler.paddle.nn.functional.fractional_pooling import *
    from amp_transpiler.paddle.nn.functional.loss import *
    from amp_transpiler.paddle.nn.functional.many_classes import *
    from amp_transpiler.paddle.nn.functional.masked_attention import *
    from amp_transpiler.paddle.nn.functional.metric_loss import *
    from amp_transpiler.paddle.nn.functional.normalization import *
    from amp_transpiler.paddle.nn.functional.pooling import *
    from amp_transpiler.paddle.nn.functional.sequences import *
    from amp_transpiler.paddle.nn.functional.stochastic import *
    from amp_transpiler.paddle.nn.functional.vision import *
else:
    __getattr__, __dir__ = lazy_names(__name__, why_not)
