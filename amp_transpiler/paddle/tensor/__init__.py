"""Paddle's functions on tensors; each appends standard ONNX operators to the program of its operands."""
# ruff: noqa: F403  # the list of functions is `__all__` of each module

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.tensor.creation import *
    from amp_transpiler.paddle.tensor.elementwise import *
    from amp_transpiler.paddle.tensor.in_place import *
    from amp_transpiler.paddle.tensor.indexing import *
    from amp_transpiler.paddle.tensor.linalg import *
    from amp_transpiler.paddle.tensor.logic import *
    from amp_transpiler.paddle.tensor.random import *
    from amp_transpiler.paddle.tensor.reduction import *
    from amp_transpiler.paddle.tensor.search import *
    from amp_transpiler.paddle.tensor.shaping import *
else:
    __getattr__, __dir__ = lazy_names(__name__)
