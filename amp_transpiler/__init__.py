"""Automatic mixed precision for ONNX programs on ONNX Runtime's CUDA provider.

    import amp_transpiler as amp

    report = amp.transpile("model.onnx", "model.fp16.onnx")

Names are imported when they are first used, so that only importing the package takes no time.
"""

from typing import TYPE_CHECKING

from amp_transpiler.aliases import install_aliases
from amp_transpiler.late_sympy import import_sympy_late as _import_sympy_late
from amp_transpiler.lazy import lazy_names
from amp_transpiler.telemetry import switch_off as _switch_telemetry_off
from amp_transpiler.version import __version__ as __version__

_switch_telemetry_off()  # before anything here imports ONNX Runtime
_import_sympy_late()  # before anything here imports onnx_ir

# Modules of Paddle's namespace that have a short path too: `import amp_transpiler.nn.functional`.
_ALIASES = {
    "debugging": "paddle.static.amp.debugging",
    "distributed": "paddle.distributed",
    "nn": "paddle.nn",
    "optimizer": "paddle.optimizer",
    "paddle.fluid": "paddle.base",
    "regularizer": "paddle.regularizer",
    "static": "paddle.static",
    "tensor": "paddle.tensor",
    "training_log": "paddle.training_log",
    "utils": "paddle.utils",
}
install_aliases(__name__, {alias: f"{__name__}.{home}" for alias, home in _ALIASES.items()})

if TYPE_CHECKING:
    from amp_transpiler import compat as compat, paddle as paddle
    from amp_transpiler.diagnosis.debug import debug as debug
    from amp_transpiler.diagnosis.releases.compare import compare_releases as compare_releases
    from amp_transpiler.errors import (
        AmpError as AmpError,
        CheckFailed as CheckFailed,
        DistributedError as DistributedError,
        EnvironmentProblem as EnvironmentProblem,
        InputError as InputError,
        ModelError as ModelError,
        NotFiniteError as NotFiniteError,
        OptionError as OptionError,
        OutputError as OutputError,
        StepCheckFailed as StepCheckFailed,
        VerificationError as VerificationError,
    )
    from amp_transpiler.files.loading import load as load
    from amp_transpiler.files.saving import save as save
    from amp_transpiler.graph.regions import (
        disable_amp as disable_amp,
        fp16_guard as fp16_guard,
        mark_region as mark_region,
    )
    from amp_transpiler.measuring.benchmark import (
        BenchmarkResult as BenchmarkResult,
        Profile as Profile,
        benchmark as benchmark,
        measure_peak as measure_peak,
        profile as profile,
    )
    from amp_transpiler.measuring.profiling import StepProfile as StepProfile, profile_step as profile_step
    from amp_transpiler.paddle import (
        ParamAttr as ParamAttr,
        distributed as distributed,
        enable_static as enable_static,
        nn as nn,
        optimizer as optimizer,
        regularizer as regularizer,
        seed as seed,
        static as static,
        utils as utils,
    )
    from amp_transpiler.paddle.static.amp import debugging as debugging, decorate as decorate
    from amp_transpiler.passes.emulate import emulate as emulate
    from amp_transpiler.pipeline import transpile as transpile
    from amp_transpiler.program.program import Program as Program, Variable as Variable
    from amp_transpiler.report import (
        CastRow as CastRow,
        DecisionRow as DecisionRow,
        FrontierPoint as FrontierPoint,
        OutputComparison as OutputComparison,
        Report as Report,
    )
    from amp_transpiler.runtime.flags import get_flags as get_flags, set_flags as set_flags
    from amp_transpiler.runtime.liveness import kept_bytes as kept_bytes, live_bytes as live_bytes
    from amp_transpiler.runtime.places import CPUPlace as CPUPlace, CUDAPlace as CUDAPlace
    from amp_transpiler.runtime.recommended_options import RecommendedOptions as RecommendedOptions
    from amp_transpiler.runtime.session import Session as Session
    from amp_transpiler.runtime.session_options import session_options as session_options
    from amp_transpiler.systems.mxnet.conversion import (
        convert_model as convert_model,
        list_conditional_fp32_ops as list_conditional_fp32_ops,
        list_fp32_ops as list_fp32_ops,
        list_loss_output_functions as list_loss_output_functions,
        list_lp16_fp32_ops as list_lp16_fp32_ops,
        list_lp16_ops as list_lp16_ops,
        list_lp16_use_fp32_params as list_lp16_use_fp32_params,
        list_widest_type_cast as list_widest_type_cast,
    )
    from amp_transpiler.systems.paddle.casting import (
        cast_model_to_fp16 as cast_model_to_fp16,
        cast_parameters_to_fp16 as cast_parameters_to_fp16,
    )
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists as AutoMixedPrecisionLists
    from amp_transpiler.systems.raf.casting_rules import CustomTypeHint as CustomTypeHint, casting_rule as casting_rule
    from amp_transpiler.systems.raf.conversion import autocast as autocast
else:
    __getattr__, __dir__ = lazy_names(__name__)
