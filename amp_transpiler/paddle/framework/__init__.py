"""Builds programs: the current ones, the values that outlive a run, random numbers, the backward pass.

Under `paddle.framework` it also hands out Paddle's names.
"""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.framework import random as random
    from amp_transpiler.paddle.framework.default_dtype import (
        get_default_dtype as get_default_dtype,
        set_default_dtype as set_default_dtype,
    )
    from amp_transpiler.paddle.framework.mode import (
        in_dynamic_mode as in_dynamic_mode,
        in_dynamic_or_pir_mode as in_dynamic_or_pir_mode,
        in_pir_mode as in_pir_mode,
    )
    from amp_transpiler.paddle.framework.parameters import create_parameter as create_parameter
    from amp_transpiler.paddle.framework.variable_kinds import (
        Parameter as Parameter,
        is_parameter as is_parameter,
        is_persistable as is_persistable,
    )
    from amp_transpiler.paddle.param_attr import ParamAttr as ParamAttr
    from amp_transpiler.runtime.places import CPUPlace as CPUPlace, CUDAPlace as CUDAPlace
else:
    __getattr__, __dir__ = lazy_names(__name__)
