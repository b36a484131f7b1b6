"""`paddle.static`: builds, runs, saves and loads programs."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.framework.backward import append_backward as append_backward, gradients as gradients
    from amp_transpiler.paddle.framework.parameters import create_parameter as create_parameter
    from amp_transpiler.paddle.framework.programs import (
        data as data,
        default_main_program as default_main_program,
        default_startup_program as default_startup_program,
        program_guard as program_guard,
    )
    from amp_transpiler.paddle.param_attr import WeightNormParamAttr as WeightNormParamAttr
    from amp_transpiler.paddle.static import amp as amp, nn as nn
    from amp_transpiler.paddle.static.averages import ExponentialMovingAverage as ExponentialMovingAverage
    from amp_transpiler.paddle.static.buckets import Bucket as Bucket
    from amp_transpiler.paddle.static.evaluation import (
        accuracy as accuracy,
        auc as auc,
        ctr_metric_bundle as ctr_metric_bundle,
    )
    from amp_transpiler.paddle.static.executor import Executor as Executor
    from amp_transpiler.paddle.static.export import (
        load_inference_model as load_inference_model,
        save_inference_model as save_inference_model,
        save_training_program as save_training_program,
    )
    from amp_transpiler.paddle.static.io import (
        load as load,
        load_program_state as load_program_state,
        save as save,
        set_program_state as set_program_state,
    )
    from amp_transpiler.paddle.static.lora import add_lora as add_lora, load_lora as load_lora, save_lora as save_lora
    from amp_transpiler.paddle.static.lora_merge import merge_lora as merge_lora
    from amp_transpiler.paddle.static.onnx_import import from_onnx as from_onnx
    from amp_transpiler.paddle.static.printing import Print as Print
    from amp_transpiler.paddle.static.serialized import (
        deserialize_persistables as deserialize_persistables,
        deserialize_program as deserialize_program,
        load_from_file as load_from_file,
        normalize_program as normalize_program,
        save_to_file as save_to_file,
        serialize_persistables as serialize_persistables,
        serialize_program as serialize_program,
    )
    from amp_transpiler.paddle.static.settings import (
        BuildStrategy as BuildStrategy,
        CompiledProgram as CompiledProgram,
        ExecutionStrategy as ExecutionStrategy,
        InputSpec as InputSpec,
        cpu_places as cpu_places,
        create_global_var as create_global_var,
        cuda_places as cuda_places,
        device_guard as device_guard,
        name_scope as name_scope,
        xpu_places as xpu_places,
    )
    from amp_transpiler.paddle.static.unavailable import (
        IpuCompiledProgram as IpuCompiledProgram,
        IpuStrategy as IpuStrategy,
        ipu_shard_guard as ipu_shard_guard,
        py_func as py_func,
        set_ipu_shard as set_ipu_shard,
    )
    from amp_transpiler.paddle.static.variable_files import (
        load_params as load_params,
        load_persistables as load_persistables,
        load_vars as load_vars,
        save_params as save_params,
        save_persistables as save_persistables,
        save_vars as save_vars,
    )
    from amp_transpiler.paddle.tensor.subscripts import setitem as setitem
    from amp_transpiler.program.program import Program as Program, Variable as Variable
    from amp_transpiler.runtime.scope import Scope as Scope, global_scope as global_scope, scope_guard as scope_guard
else:
    __getattr__, __dir__ = lazy_names(__name__)
