"""Switches of the whole process, as Paddle's `FLAGS_...`: a table of names, defaults and meanings."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from amp_transpiler.errors import OptionError

__all__ = ["FLAGS", "TUNING", "Flag", "flag", "get_flags", "set_flags"]

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """A switch.

    Attributes:
        name: Paddle's name, or one in its style.
        default: its value unless the environment variable of the same name, or `set_flags`, says otherwise.
        meaning: what it does when it is on.
    """

    name: str
    default: bool
    meaning: str


FLAGS = (
    Flag(
        "FLAGS_check_nan_inf",
        False,
        "a run whose updates, losses or fetched values are not finite is an error that names the node; nothing changes",
    ),
    Flag(
        "FLAGS_check_index_range",
        True,
        "labels and embedding ids outside of their range are an error, also negative ones that would wrap round",
    ),
)
TUNING = frozenset(
    f"FLAGS_{name}"
    for name in (
        "allocator_strategy apply_pass_to_program benchmark conv_workspace_size_limit cublaslt_exhaustive_search_times "
        "cudnn_batchnorm_spatial_persistent cudnn_deterministic cudnn_exhaustive_search eager_delete_tensor_gb "
        "embedding_deterministic enable_cublas_tensor_op_math enable_pir_api enable_pir_in_executor "
        "fast_eager_deletion_mode fraction_of_gpu_memory_to_use gemm_use_half_precision_compute_type "
        "gpu_memory_limit_mb initial_gpu_memory_in_mb max_inplace_grad_add memory_fraction_of_eager_deletion "
        "new_executor_use_cuda_graph pir_apply_inplace_pass reallocate_gpu_memory_in_mb use_autotune "
        "use_cuda_managed_memory use_mkldnn use_pinned_memory use_stream_safe_cuda_allocator"
    ).split()
)
"""Paddle's flags that tune its own kernels, memory and executor: they are kept, and have no effect."""
_without_effect: dict[str, Any] = {}
_WORDS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}
_values: dict[str, bool] = {}


def flag(name: str) -> bool:
    """Return the value of a flag of the table."""
    if name not in _values:
        known = next(row for row in FLAGS if row.name == name)
        _values[name] = _boolean(name, os.environ.get(name, known.default))
    return _values[name]


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags of the whole process, as in `paddle.set_flags({"FLAGS_check_nan_inf": True})`.

    They are read when a program runs. An environment variable of the same name gives the first value. Flags that tune
    Paddle's own kernels, memory and executor (`TUNING`) have no effect, which the log says.

    Args:
        flags: name -> True or False (1 or 0).

    Raises:
        OptionError: there is no such flag, or a value is not true or false; nothing changed.
    """
    tuning = {name: value for name, value in flags.items() if name in TUNING}
    checked = {_known(name): _boolean(name, value) for name, value in flags.items() if name not in tuning}
    _values.update(checked)
    _without_effect.update(tuning)
    if tuning:
        logger.info("set_flags: %s tune Paddle's own runtime, and have no effect", ", ".join(sorted(tuning)))


def get_flags(flags: str | Iterable[str]) -> dict[str, Any]:
    """Return the values of flags by name; of those without effect what `set_flags` was given.

    Args:
        flags: a name, or several.

    Raises:
        OptionError: there is no such flag.
    """
    asked = [flags] if isinstance(flags, str) else list(flags)
    return {name: _without_effect[name] if name in _without_effect else flag(_known(name)) for name in asked}


def _known(name: str) -> str:
    names = [row.name for row in FLAGS]
    if name not in names:
        raise OptionError(f"there is no flag {name!r}: the flags are {', '.join(names)}")
    return name


def _boolean(name: str, value: Any) -> bool:
    truth = _WORDS.get(str(value).lower())
    if truth is None:
        raise OptionError(f"{name} is true or false, got {value!r}")
    return truth
