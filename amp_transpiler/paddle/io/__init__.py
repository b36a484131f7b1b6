"""Provides data for training: data sets, samplers, and the loader that makes batches of them."""
# ruff: noqa: F403  # the names are `__all__` of each module

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.io.dataset import *
    from amp_transpiler.paddle.io.loader import (
        DataLoader as DataLoader,
        default_collate_fn as default_collate_fn,
        get_worker_info as get_worker_info,
    )
    from amp_transpiler.paddle.io.sampler import *
else:
    __getattr__, __dir__ = lazy_names(__name__)
