"""Automatic mixed precision for ONNX programs on ONNX Runtime's CUDA provider.

    import amp_transpiler as amp

    report = amp.transpile("model.onnx", "model.fp16.onnx")

Names are imported when they are first used, so that the package itself costs nothing to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amp_transpiler.aliases import install_aliases
from amp_transpiler.lazy import lazy_names
from amp_transpiler.version import __version__ as __version__

if TYPE_CHECKING:
    from amp_transpiler import paddle
    from amp_transpiler.errors import (
        AmpError,
        CheckFailed,
        EnvironmentProblem,
        InputError,
        ModelError,
        OptionError,
        OutputError,
        VerificationError,
    )
    from amp_transpiler.graph.io import load, save
    from amp_transpiler.graph.program import Program, Variable
    from amp_transpiler.graph.regions import disable_amp, fp16_guard, mark_region
    from amp_transpiler.paddle import nn, optimizer, regularizer, static, utils
    from amp_transpiler.paddle.amp import debugging
    from amp_transpiler.paddle.param_attr import ParamAttr
    from amp_transpiler.paddle.static.amp.decorator import decorate
    from amp_transpiler.paddle.static.core import enable_static
    from amp_transpiler.paddle.utils.seed import seed
    from amp_transpiler.passes.emulate import emulate
    from amp_transpiler.pipeline import transpile
    from amp_transpiler.report import DecisionRow, OutputComparison, Report
    from amp_transpiler.runtime.places import CPUPlace, CUDAPlace
    from amp_transpiler.runtime.session import Session
    from amp_transpiler.systems.mxnet.conversion import (
        convert_model,
        list_conditional_fp32_ops,
        list_fp32_ops,
        list_loss_output_functions,
        list_lp16_fp32_ops,
        list_lp16_ops,
        list_lp16_use_fp32_params,
        list_widest_type_cast,
    )
    from amp_transpiler.systems.paddle.casting import cast_model_to_fp16, cast_parameters_to_fp16
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
    from amp_transpiler.systems.raf.autocast import autocast
    from amp_transpiler.systems.raf.casting_rules import CustomTypeHint, casting_rule

# Modules of Paddle's namespace that have a short path too: `import amp_transpiler.nn.functional`.
_ALIASES = {
    "debugging": "paddle.amp.debugging",
    "nn": "paddle.nn",
    "optimizer": "paddle.optimizer",
    "regularizer": "paddle.regularizer",
    "static": "paddle.static",
    "tensor": "paddle.tensor",
    "training_log": "paddle.training_log",
    "utils": "paddle.utils",
}
install_aliases(__name__, {alias: f"{__name__}.{home}" for alias, home in _ALIASES.items()})

_HOMES = {
    "AmpError": "errors",
    "AutoMixedPrecisionLists": "systems.paddle.lists",
    "CPUPlace": "runtime.places",
    "CUDAPlace": "runtime.places",
    "CheckFailed": "errors",
    "DecisionRow": "report",
    "EnvironmentProblem": "errors",
    "InputError": "errors",
    "ModelError": "errors",
    "OptionError": "errors",
    "OutputComparison": "report",
    "OutputError": "errors",
    "Program": "graph.program",
    "Report": "report",
    "Session": "runtime.session",
    "VerificationError": "errors",
    "ParamAttr": "paddle.param_attr",
    "Variable": "graph.program",
    "cast_model_to_fp16": "systems.paddle.casting",
    "debugging": "",
    "decorate": "paddle.static.amp.decorator",
    "enable_static": "paddle.static.core",
    "nn": "",
    "paddle": "",
    "optimizer": "",
    "regularizer": "",
    "seed": "paddle.utils.seed",
    "static": "",
    "utils": "",
    "cast_parameters_to_fp16": "systems.paddle.casting",
    "disable_amp": "graph.regions",
    "emulate": "passes.emulate",
    "fp16_guard": "graph.regions",
    "load": "graph.io",
    "mark_region": "graph.regions",
    "save": "graph.io",
    "CustomTypeHint": "systems.raf.casting_rules",
    "casting_rule": "systems.raf.casting_rules",
    "autocast": "systems.raf.autocast",
    "convert_model": "systems.mxnet.conversion",
    "list_conditional_fp32_ops": "systems.mxnet.conversion",
    "list_fp32_ops": "systems.mxnet.conversion",
    "list_loss_output_functions": "systems.mxnet.conversion",
    "list_lp16_fp32_ops": "systems.mxnet.conversion",
    "list_lp16_ops": "systems.mxnet.conversion",
    "list_lp16_use_fp32_params": "systems.mxnet.conversion",
    "list_widest_type_cast": "systems.mxnet.conversion",
    "transpile": "pipeline",
}

__all__ = [
    "AmpError",
    "AutoMixedPrecisionLists",
    "CPUPlace",
    "CUDAPlace",
    "CheckFailed",
    "CustomTypeHint",
    "DecisionRow",
    "EnvironmentProblem",
    "InputError",
    "ModelError",
    "OptionError",
    "OutputComparison",
    "OutputError",
    "ParamAttr",
    "Program",
    "Report",
    "Session",
    "Variable",
    "VerificationError",
    "autocast",
    "cast_model_to_fp16",
    "cast_parameters_to_fp16",
    "casting_rule",
    "convert_model",
    "debugging",
    "decorate",
    "disable_amp",
    "emulate",
    "enable_static",
    "fp16_guard",
    "list_conditional_fp32_ops",
    "list_fp32_ops",
    "list_loss_output_functions",
    "list_lp16_fp32_ops",
    "list_lp16_ops",
    "list_lp16_use_fp32_params",
    "list_widest_type_cast",
    "load",
    "mark_region",
    "nn",
    "optimizer",
    "paddle",
    "regularizer",
    "save",
    "seed",
    "static",
    "transpile",
    "utils",
]


_find = lazy_names(__name__, {name: f"{__name__}.{home}" if home else "" for name, home in _HOMES.items()})


def __getattr__(name: str) -> Any:
    value = globals()[name] = _find(name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
