"""Automatic mixed precision for ONNX programs on ONNX Runtime's CUDA provider.

    import amp_transpiler as amp

    report = amp.transpile("model.onnx", "model.fp16.onnx")

Names are imported when they are first used, so that the package itself costs nothing to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_transpiler.casting import cast_model_to_fp16, cast_parameters_to_fp16
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
    from amp_transpiler.graph.program import Program
    from amp_transpiler.pipeline import transpile
    from amp_transpiler.precision.lists import AutoMixedPrecisionLists
    from amp_transpiler.precision.regions import disable_amp, fp16_guard, mark_region
    from amp_transpiler.report import DecisionRow, OutputComparison, Report
    from amp_transpiler.rewrite.emulate import emulate
    from amp_transpiler.runtime.places import CPUPlace, CUDAPlace
    from amp_transpiler.runtime.session import Session

__version__ = "0.1.0"

_HOMES = {
    "AmpError": "errors",
    "AutoMixedPrecisionLists": "precision.lists",
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
    "cast_model_to_fp16": "casting",
    "cast_parameters_to_fp16": "casting",
    "disable_amp": "precision.regions",
    "emulate": "rewrite.emulate",
    "fp16_guard": "precision.regions",
    "load": "graph.io",
    "mark_region": "precision.regions",
    "save": "graph.io",
    "transpile": "pipeline",
}

__all__ = [
    "AmpError",
    "AutoMixedPrecisionLists",
    "CPUPlace",
    "CUDAPlace",
    "CheckFailed",
    "DecisionRow",
    "EnvironmentProblem",
    "InputError",
    "ModelError",
    "OptionError",
    "OutputComparison",
    "OutputError",
    "Program",
    "Report",
    "Session",
    "VerificationError",
    "cast_model_to_fp16",
    "cast_parameters_to_fp16",
    "disable_amp",
    "emulate",
    "fp16_guard",
    "load",
    "mark_region",
    "save",
    "transpile",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
