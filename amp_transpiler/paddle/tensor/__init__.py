"""Provides Paddle's functions on tensors; each appends standard ONNX operators to the program of its operands."""
# ruff: noqa: F403  # the list of functions is `__all__` of each module

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.tensor.arrays import (
        array_length as array_length,
        array_read as array_read,
        array_write as array_write,
        create_array as create_array,
    )
    from amp_transpiler.paddle.tensor.creation import *
    from amp_transpiler.paddle.tensor.decompositions import inverse as inverse
    from amp_transpiler.paddle.tensor.distributions import (
        bernoulli_ as bernoulli_,
        binomial as binomial,
        cauchy_ as cauchy_,
        geometric_ as geometric_,
        log_normal_ as log_normal_,
        normal_ as normal_,
        poisson as poisson,
        standard_gamma as standard_gamma,
    )
    from amp_transpiler.paddle.tensor.elementwise import *
    from amp_transpiler.paddle.tensor.in_place import *
    from amp_transpiler.paddle.tensor.indexing import *
    from amp_transpiler.paddle.tensor.linalg import *
    from amp_transpiler.paddle.tensor.logic import *
    from amp_transpiler.paddle.tensor.random import *
    from amp_transpiler.paddle.tensor.reduction import *
    from amp_transpiler.paddle.tensor.search import *
    from amp_transpiler.paddle.tensor.shaping import *
    from amp_transpiler.paddle.tensor.special import *
    from amp_transpiler.paddle.tensor.statistics import *
else:
    __getattr__, __dir__ = lazy_names(__name__)
