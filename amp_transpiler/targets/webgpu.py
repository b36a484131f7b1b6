"""ONNX Runtime's WebGPU provider, that of onnxruntime-web. The CPU provider runs what it has no kernel for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from amp_transpiler.targets.cpu import CPU
from amp_transpiler.targets.provider import Provider
from amp_transpiler.targets.releases import choose_release, newest_release

if TYPE_CHECKING:
    from amp_transpiler.targets.releases import Choice

__all__ = ["WEBGPU", "WebGpu"]

_NEWEST = "1.30"
"""The newest release of onnxruntime-web, which decides where none is asked for. Its kernels are `data/webgpu.json`."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class WebGpu(Provider):
    """A provider of onnxruntime-web, whose releases are fewer than those of ONNX Runtime."""

    @property
    def choice(self) -> Choice:
        """The release that decides: the one asked for, else the newest one that is not newer than the installed one."""
        return choose_release(self.asked or newest_release(_NEWEST))


WEBGPU = WebGpu(
    name="webgpu",
    description="onnxruntime-web's WebGPU provider",
    provider="WebGpuExecutionProvider",
    fallback=CPU,
    lacks=frozenset({"bfloat16"}),
)
