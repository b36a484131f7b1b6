"""PyTorch, imported where it is needed, with an error that says what to install."""

from __future__ import annotations

from typing import Any

from amp_transpiler.errors import EnvironmentProblem

__all__ = ["torch_with_distributed"]


def torch_with_distributed() -> Any:
    """Return PyTorch's module.

    Raises:
        EnvironmentProblem: it is not installed, or was built without `torch.distributed`.
    """
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise EnvironmentProblem(
            f"distributed training needs PyTorch ({error}): pip install 'amp-transpiler[distributed]'"
        ) from error
    if not torch.distributed.is_available():
        raise EnvironmentProblem(
            f"this PyTorch ({torch.__version__}) was built without torch.distributed: install one of PyTorch's wheels "
            "for Linux"
        )
    return torch
