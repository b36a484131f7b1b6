"""Provides helpers for building programs: `paddle.utils`."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.utils import unique_name as unique_name
else:
    __getattr__, __dir__ = lazy_names(__name__)
