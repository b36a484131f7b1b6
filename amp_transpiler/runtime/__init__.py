"""Running programs: places, sessions on ONNX Runtime, training steps, latency and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.runtime.places import CPUPlace, CUDAPlace, Place, default_place
    from amp_transpiler.runtime.session import Session

__all__ = ["CPUPlace", "CUDAPlace", "Place", "Session", "default_place"]

_PLACES = f"{__name__}.places"
__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, _PLACES) | {"Session": f"{__name__}.session"})
