"""Paddle's namespace: a static program written for Paddle runs with its imports changed to this package."""
# ruff: noqa: F403  # the functions in `__all__` of paddle.tensor are Paddle's own names

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle import (
        amp as amp,
        distributed as distributed,
        nn as nn,
        optimizer as optimizer,
        regularizer as regularizer,
        static as static,
        tensor as tensor,
        utils as utils,
    )
    from amp_transpiler.paddle.framework.programs import enable_static as enable_static
    from amp_transpiler.paddle.framework.random import seed as seed
    from amp_transpiler.paddle.param_attr import ParamAttr as ParamAttr
    from amp_transpiler.paddle.tensor import *
    from amp_transpiler.paddle.training_log import TrainingLog as TrainingLog, TrainingStep as TrainingStep
    from amp_transpiler.runtime.flags import get_flags as get_flags, set_flags as set_flags
    from amp_transpiler.runtime.places import CPUPlace as CPUPlace, CUDAPlace as CUDAPlace
else:
    __getattr__, __dir__ = lazy_names(__name__)
