"""Building and running programs, in Paddle's words. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.graph.program import Program, Variable
    from amp_transpiler.paddle.static import amp, nn
    from amp_transpiler.paddle.static.backward import append_backward, gradients
    from amp_transpiler.paddle.static.core import data, default_main_program, default_startup_program, program_guard
    from amp_transpiler.paddle.static.executor import Executor
    from amp_transpiler.paddle.static.io import (
        load,
        load_inference_model,
        save,
        save_inference_model,
        save_training_program,
    )
    from amp_transpiler.paddle.static.onnx_import import from_onnx
    from amp_transpiler.runtime.scope import Scope, global_scope, scope_guard

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
    "Executor": "amp_transpiler.paddle.static.executor",
    "Program": "amp_transpiler.graph.program",
    "Scope": "amp_transpiler.runtime.scope",
    "Variable": "amp_transpiler.graph.program",
    "amp": "",
    "append_backward": "amp_transpiler.paddle.static.backward",
    "data": "amp_transpiler.paddle.static.core",
    "default_main_program": "amp_transpiler.paddle.static.core",
    "default_startup_program": "amp_transpiler.paddle.static.core",
    "from_onnx": "amp_transpiler.paddle.static.onnx_import",
    "global_scope": "amp_transpiler.runtime.scope",
    "gradients": "amp_transpiler.paddle.static.backward",
    "load": "amp_transpiler.paddle.static.io",
    "load_inference_model": "amp_transpiler.paddle.static.io",
    "nn": "",
    "program_guard": "amp_transpiler.paddle.static.core",
    "save": "amp_transpiler.paddle.static.io",
    "save_inference_model": "amp_transpiler.paddle.static.io",
    "save_training_program": "amp_transpiler.paddle.static.io",
    "scope_guard": "amp_transpiler.runtime.scope",
}

__getattr__ = lazy_names(__name__, _HOMES)
