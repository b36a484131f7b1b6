"""Provides the names of `paddle.base.framework`, Paddle's older module for programs."""

from amp_transpiler.paddle.framework.mode import in_dynamic_mode, in_dynamic_or_pir_mode, in_pir_mode
from amp_transpiler.paddle.framework.programs import default_main_program, default_startup_program, program_guard
from amp_transpiler.paddle.framework.variable_kinds import Parameter
from amp_transpiler.program.program import Program, Variable

__all__ = [
    "Parameter",
    "Program",
    "Variable",
    "default_main_program",
    "default_startup_program",
    "in_dynamic_mode",
    "in_dynamic_or_pir_mode",
    "in_pir_mode",
    "program_guard",
]
