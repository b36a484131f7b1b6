"""Running programs: places, sessions on ONNX Runtime, latency and memory."""

from amp_transpiler.runtime.places import CPUPlace, CUDAPlace, Place, default_place

__all__ = ["CPUPlace", "CUDAPlace", "Place", "default_place"]
