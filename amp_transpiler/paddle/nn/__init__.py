"""Building blocks of networks: layers, functions, initial values, gradient clipping."""
# ruff: noqa: F403  # the list of layers is `__all__` of each module

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.nn import functional as functional, initializer as initializer, layer as layer
    from amp_transpiler.paddle.nn.clip import (
        ClipGradByGlobalNorm as ClipGradByGlobalNorm,
        ClipGradByNorm as ClipGradByNorm,
        ClipGradByValue as ClipGradByValue,
    )
    from amp_transpiler.paddle.nn.layer.activation import *
    from amp_transpiler.paddle.nn.layer.base import Layer as Layer, Module as Module, Parameter as Parameter
    from amp_transpiler.paddle.nn.layer.common import *
    from amp_transpiler.paddle.nn.layer.container import *
    from amp_transpiler.paddle.nn.layer.conv import *
    from amp_transpiler.paddle.nn.layer.loss import *
    from amp_transpiler.paddle.nn.layer.many_classes import *
    from amp_transpiler.paddle.nn.layer.norm import *
    from amp_transpiler.paddle.nn.layer.padding import *
    from amp_transpiler.paddle.nn.layer.pooling import *
    from amp_transpiler.paddle.nn.layer.rnn import *
    from amp_transpiler.paddle.nn.layer.transformer import *
    from amp_transpiler.paddle.nn.layer.unavailable import *
else:
    __getattr__, __dir__ = lazy_names(__name__)
