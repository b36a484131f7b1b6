"""Hands out initial values of parameters as `paddle.nn.initializer`."""

from amp_transpiler.paddle.initial_values import (
    Assign,
    Bilinear,
    Constant,
    Dirac,
    Initializer,
    KaimingNormal,
    KaimingUniform,
    Normal,
    Orthogonal,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    calculate_gain,
    set_global_initializer,
)

__all__ = [
    "Assign",
    "Bilinear",
    "Constant",
    "Dirac",
    "Initializer",
    "KaimingNormal",
    "KaimingUniform",
    "Normal",
    "Orthogonal",
    "TruncatedNormal",
    "Uniform",
    "XavierNormal",
    "XavierUniform",
    "calculate_gain",
    "set_global_initializer",
]
