"""Helpers for exporting from PyTorch: seeded sample inputs, norm layers off their trivial state, module wrappers."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from corpus import inputs

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
SEED = 1234


def perturb_norms(module: Any) -> Any:
    """Move norm layers off their initial state, in place: ones and zeros would hide mistakes. Return the module."""
    import torch

    generator = torch.Generator().manual_seed(SEED + 1)

    def normal(like: Any) -> Any:
        return torch.randn(like.shape, generator=generator)

    for layer in module.modules():
        with torch.no_grad():
            if getattr(layer, "running_mean", None) is not None:
                layer.running_mean.copy_(0.1 * normal(layer.running_mean))
                layer.running_var.copy_(0.6 + 0.8 * torch.rand(layer.running_var.shape, generator=generator))
            if "Norm" in type(layer).__name__ and getattr(layer, "weight", None) is not None:
                layer.weight.mul_(1 + 0.1 * normal(layer.weight))
                if getattr(layer, "bias", None) is not None:
                    layer.bias.add_(0.05 * normal(layer.bias))
    return module.eval()


def call_as(module: Any, call: Callable[..., Any]) -> Any:
    """Return a module that is `call(module, *inputs)`: the exporters want positional tensors in and out."""
    import torch

    class Called(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *tensors: Any) -> Any:
            return call(self.inner, *tensors)

    wrapped = Called().eval()
    wrapped.takes_varargs = True
    return wrapped


def image(n: int = 1, channels: int = 3, height: int = 224, width: int | None = None) -> Any:
    """Return pictures, normalized as image models want them."""
    import torch

    shape = (n, channels, height, width or height)
    pixels = inputs.pictures(shape, np.random.default_rng(0), channels_first=True).astype("float32")
    return torch.from_numpy(((pixels - 0.45) / 0.225).astype("float32"))


def sound(n: int, samples: int) -> Any:
    """Return voice-like sounds at 16 kHz."""
    import torch

    return torch.from_numpy(inputs.sounds((n, samples), np.random.default_rng(0)).astype("float32"))


def token_ids(batch: int, length: int, vocabulary: int) -> Any:
    """Return token ids in 1..vocabulary-1."""
    import torch

    return torch.randint(1, vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


def normal(seed: int, *shape: int) -> Any:
    """Return standard normal values."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a tensor's values; bfloat16 becomes float32, which holds them all."""
    import torch

    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: np.ndarray = wide.detach().cpu().numpy()
    return array


class _StandIn(types.ModuleType):
    """A module of which every attribute is an empty torch module class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        import torch

        stand_in = _StandInType(name, (torch.nn.Module,), {})
        setattr(self, name, stand_in)
        return stand_in


class _StandInType(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname == "torchvision" or fullname.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StandIn(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = "0.0.0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def stand_in_for_torchvision() -> None:
    """Let timm be imported without torchvision: it names it at module level, and needs none of it for these models."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
