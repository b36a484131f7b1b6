"""Paddle's oldest name of `paddle.base`, which imports of it find (`install_aliases`); type checkers read this file."""

from amp_transpiler.paddle import base as _base


def __getattr__(name: str) -> object:
    return getattr(_base, name)
