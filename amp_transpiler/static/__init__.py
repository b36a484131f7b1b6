"""Building and running programs, in Paddle's words. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.graph.program import Program
    from amp_transpiler.graph.variable import Variable
    from amp_transpiler.runtime.executor import Executor
    from amp_transpiler.runtime.scope import Scope, global_scope, scope_guard
    from amp_transpiler.static import amp, nn
    from amp_transpiler.static.backward import append_backward, gradients
    from amp_transpiler.static.core import data, default_main_program, default_startup_program, program_guard
    from amp_transpiler.static.io import load, load_inference_model, save, save_inference_model, save_training_program
    from amp_transpiler.static.onnx_import import from_onnx

__all__ = [
    "Executor",
    "Program",
    "Scope",
    "Variable",
    "amp",
    "append_backward",
    "data",
    "default_main_program",
    "default_startup_program",
    "from_onnx",
    "global_scope",
    "gradients",
    "load",
    "load_inference_model",
    "nn",
    "program_guard",
    "save",
    "save_inference_model",
    "save_training_program",
    "scope_guard",
]

_HOMES = {
    "Executor": "amp_transpiler.runtime.executor",
    "Program": "amp_transpiler.graph.program",
    "Scope": "amp_transpiler.runtime.scope",
    "Variable": "amp_transpiler.graph.variable",
    "amp": "",
    "append_backward": "amp_transpiler.static.backward",
    "data": "amp_transpiler.static.core",
    "default_main_program": "amp_transpiler.static.core",
    "default_startup_program": "amp_transpiler.static.core",
    "from_onnx": "amp_transpiler.static.onnx_import",
    "global_scope": "amp_transpiler.runtime.scope",
    "gradients": "amp_transpiler.static.backward",
    "load": "amp_transpiler.static.io",
    "load_inference_model": "amp_transpiler.static.io",
    "nn": "",
    "program_guard": "amp_transpiler.static.core",
    "save": "amp_transpiler.static.io",
    "save_inference_model": "amp_transpiler.static.io",
    "save_training_program": "amp_transpiler.static.io",
    "scope_guard": "amp_transpiler.runtime.scope",
}

__getattr__ = lazy_names(__name__, _HOMES)
