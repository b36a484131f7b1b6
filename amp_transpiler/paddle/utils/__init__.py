"""Small helpers that building programs needs."""

from amp_transpiler.paddle.utils import unique_name

__all__ = ["unique_name"]
