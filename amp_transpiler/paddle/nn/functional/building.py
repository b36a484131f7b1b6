"""The helpers of `paddle.building`, under the name that functions of layers import them by."""

from amp_transpiler.paddle.building import (
    axis_of,
    builder_of,
    choice,
    emit,
    number_or_value,
    numbers,
    program_of,
    size_at,
    static_sizes,
    wrap,
)

__all__ = [
    "axis_of",
    "builder_of",
    "choice",
    "emit",
    "number_or_value",
    "numbers",
    "program_of",
    "size_at",
    "static_sizes",
    "wrap",
]
