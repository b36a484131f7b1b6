"""Paddle's namespace: a static program written for Paddle runs with its imports changed to this package."""
# ruff: noqa: F403  # `__all__` of paddle.tensor and paddle.element_types are Paddle's own names

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names
from amp_transpiler.paddle.framework.missing_names import why_not
from amp_transpiler.wheels import require_installed

require_installed()  # modules here import it: this says what is missing

if TYPE_CHECKING:
    from amp_transpiler.paddle import (
        amp as amp,
        base as base,
        device as device,
        distributed as distributed,
        fluid as fluid,
        incubate as incubate,
        io as io,
        linalg as linalg,
        metric as metric,
        nn as nn,
        optimizer as optimizer,
        reader as reader,
        regularizer as regularizer,
        static as static,
        tensor as tensor,
        utils as utils,
    )
    from amp_transpiler.paddle.amp.dynamic import (
        autocast as autocast,
        get_autocast_cpu_dtype as get_autocast_cpu_dtype,
        get_autocast_dtype as get_autocast_dtype,
        get_autocast_gpu_dtype as get_autocast_gpu_dtype,
        is_autocast_enabled as is_autocast_enabled,
    )
    from amp_transpiler.paddle.device import (
        get_device as get_device,
        is_compiled_with_cuda as is_compiled_with_cuda,
        is_compiled_with_rocm as is_compiled_with_rocm,
        is_compiled_with_xpu as is_compiled_with_xpu,
        set_device as set_device,
    )
    from amp_transpiler.paddle.element_types import *
    from amp_transpiler.paddle.framework.default_dtype import (
        get_default_dtype as get_default_dtype,
        set_default_dtype as set_default_dtype,
    )
    from amp_transpiler.paddle.framework.parameters import create_parameter as create_parameter
    from amp_transpiler.paddle.framework.random import (
        get_rng_state as get_rng_state,
        seed as seed,
        set_rng_state as set_rng_state,
    )
    from amp_transpiler.paddle.nn.functional.activation import softmax as softmax
    from amp_transpiler.paddle.nn.functional.adaptive_pooling import adaptive_avg_pool1d as adaptive_avg_pool1d
    from amp_transpiler.paddle.nn.functional.conv import conv1d as conv1d, conv2d as conv2d, conv3d as conv3d
    from amp_transpiler.paddle.nn.functional.normalization import group_norm as group_norm, layer_norm as layer_norm
    from amp_transpiler.paddle.param_attr import ParamAttr as ParamAttr
    from amp_transpiler.paddle.reader import batch as batch
    from amp_transpiler.paddle.static.objects import load as load, save as save
    from amp_transpiler.paddle.static_mode import *
    from amp_transpiler.paddle.tensor import *
    from amp_transpiler.paddle.training_log import TrainingLog as TrainingLog, TrainingStep as TrainingStep
    from amp_transpiler.runtime.flags import get_flags as get_flags, set_flags as set_flags
    from amp_transpiler.runtime.places import CPUPlace as CPUPlace, CUDAPlace as CUDAPlace
else:
    __getattr__, __dir__ = lazy_names(__name__, why_not)
