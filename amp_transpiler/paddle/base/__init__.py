"""Provides the names of `paddle.base`, Paddle's older namespace for static programs, before that `paddle.fluid`."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle import optimizer as optimizer, regularizer as regularizer
    from amp_transpiler.paddle.base import backward as backward, core as core, framework as framework
    from amp_transpiler.paddle.base.data_feeder import DataFeeder as DataFeeder
    from amp_transpiler.paddle.framework.backward import append_backward as append_backward, gradients as gradients
    from amp_transpiler.paddle.framework.programs import (
        data as data,
        default_main_program as default_main_program,
        default_startup_program as default_startup_program,
        program_guard as program_guard,
    )
    from amp_transpiler.paddle.nn import clip as clip, initializer as initializer
    from amp_transpiler.paddle.param_attr import ParamAttr as ParamAttr
    from amp_transpiler.paddle.static import io as io
    from amp_transpiler.paddle.static.executor import Executor as Executor
    from amp_transpiler.paddle.static.settings import (
        BuildStrategy as BuildStrategy,
        CompiledProgram as CompiledProgram,
        cpu_places as cpu_places,
        cuda_places as cuda_places,
        device_guard as device_guard,
        name_scope as name_scope,
    )
    from amp_transpiler.paddle.utils import unique_name as unique_name
    from amp_transpiler.program.program import Program as Program, Variable as Variable
    from amp_transpiler.runtime.flags import get_flags as get_flags, set_flags as set_flags
    from amp_transpiler.runtime.places import CPUPlace as CPUPlace, CUDAPlace as CUDAPlace
    from amp_transpiler.runtime.scope import Scope as Scope, global_scope as global_scope, scope_guard as scope_guard
else:
    __getattr__, __dir__ = lazy_names(__name__)
