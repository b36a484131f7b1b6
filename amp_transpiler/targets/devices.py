"""GPUs as rows of data: what a prediction needs to know of each.

Times on the device of the price list (`price_list.py`) are made of its prices; on another one those are scaled by
bandwidth and rate. `Device.seconds`, a roofline, is what remains for kernels that are not ONNX Runtime's.

Sources, all by NVIDIA, matrix rates without sparsity and accumulated in float32:
    H100 SXM    "NVIDIA H100 Tensor Core GPU" data sheet
    H200 SXM    "NVIDIA H200 Tensor Core GPU" data sheet
    A100 SXM    "NVIDIA A100 Tensor Core GPU" data sheet, 80 GB
    L4          "NVIDIA L4 Tensor Core GPU" data sheet
    T4          "NVIDIA T4 Tensor Core GPU" data sheet; without TF32 and bfloat16, which run at the rate of float32
    RTX 4090    "NVIDIA Ada GPU Architecture" whitepaper, appendix A

A launch takes what five programs took without a CUDA graph on an H100's host, about 7 microseconds. The roofline's
shares of the peaks and its smallest kernel are round numbers that no GPU has been asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from amp_transpiler.errors import OptionError

__all__ = ["DEFAULT_DEVICE", "DEVICES", "Device", "Rate", "checked_dims", "device_for", "find_device"]

Rate: TypeAlias = Literal["float32", "tf32", "float16", "bfloat16"]
GB, TERA = 10**9, 10**12
LAUNCH = 7e-6
SMALLEST = 2e-6
MEMORY_SHARE, COMPUTE_SHARE = 0.85, 0.60


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU.

    Attributes:
        name: as users write it.
        bandwidth: bytes of its memory a second, at most.
        memory: its bytes.
        rates: format of a matrix product -> floating-point operations a second, at most.
        launch: seconds that the host takes to ask for one kernel through ONNX Runtime.
        smallest: seconds of a kernel that has next to nothing to do.
        memory_share: how much of the bandwidth a kernel reaches.
        compute_share: how much of a rate a matrix product reaches.
        lacks: the formats that it has no arithmetic for; their products run at the rate of float32.
    """

    name: str
    bandwidth: float
    memory: int
    rates: Mapping[Rate, float]
    launch: float = LAUNCH
    smallest: float = SMALLEST
    memory_share: float = MEMORY_SHARE
    compute_share: float = COMPUTE_SHARE
    lacks: frozenset[Rate] = frozenset()

    @property
    def words(self) -> str:
        """What it is, in a few words."""
        return f"{self.memory // GB} GB, {self.bandwidth / GB:,.0f} GB/s, {self.rates['float16'] / TERA:.0f} TFLOP/s"

    def seconds(self, size: float, flops: float, rate: Rate) -> float:
        """Return the time of a kernel that moves `size` bytes and computes `flops` operations, the slower of both."""
        moving = size / (self.bandwidth * self.memory_share)
        computing = flops / (self.rates[rate] * self.compute_share)
        return max(moving, computing, self.smallest)


def _device(
    name: str, bandwidth: float, memory: int, float32: float, tf32: float | None, float16: float, bfloat16: float | None
) -> Device:
    rates: dict[Rate, float | None] = {"float32": float32, "tf32": tf32, "float16": float16, "bfloat16": bfloat16}
    per_second = MappingProxyType({rate: (teraflops or float32) * TERA for rate, teraflops in rates.items()})
    lacks = frozenset(rate for rate, teraflops in rates.items() if teraflops is None)
    return Device(name=name, bandwidth=bandwidth * GB, memory=memory * GB, rates=per_second, lacks=lacks)


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            #       name        GB/s  GB  float32   TF32   fp16   bf16  TFLOP/s
            _device("H100", 3350, 80, 66.9, 494.7, 989.4, 989.4),
            _device("H200", 4800, 141, 66.9, 494.7, 989.4, 989.4),
            _device("A100", 2039, 80, 19.5, 156, 312, 312),
            _device("L4", 300, 24, 30.3, 60, 121, 121),
            _device("T4", 320, 16, 8.1, None, 65, None),
            _device("RTX4090", 1008, 24, 82.6, 82.6, 165.2, 165.2),
        )
    }
)
"""Name -> device."""


DEFAULT_DEVICE = DEVICES["H100"]
"""The device that is predicted for where none is named."""


def find_device(name: str) -> Device:
    """Return the device with this name, in any case, with or without spaces.

    Raises:
        OptionError: there is none.
    """
    wanted = name.replace(" ", "").replace("-", "").upper()
    if wanted not in DEVICES:
        raise OptionError(f"unknown device {name!r}: expected one of {', '.join(DEVICES)}")
    return DEVICES[wanted]


def device_for(name: str, target: str, dtype: str, *, runs_on_gpu: bool) -> Device:
    """Return the device with this name, if the target has it and it has the low format.

    Args:
        name: the device's.
        target: the target's name.
        dtype: the low format.
        runs_on_gpu: whether the target is a GPU's.

    Raises:
        OptionError: there is no such device, or it does not go with the others.
    """
    device = find_device(name)
    if device is not DEFAULT_DEVICE and not runs_on_gpu:
        raise OptionError(f"device {device.name} with target {target}, which runs on no GPU: drop one of the two")
    if runs_on_gpu and dtype in device.lacks:
        others = ", ".join(other.name for other in DEVICES.values() if dtype not in other.lacks)
        raise OptionError(f"a {device.name} has no {dtype}: take float16, or a device that has it ({others})")
    return device


def checked_dims(dims: Mapping[str, int] | None) -> dict[str, int]:
    """Return the sizes of open dimensions.

    Raises:
        OptionError: a size is no positive number.
    """
    sizes = dict(dims or {})
    for name, size in sizes.items():
        if isinstance(size, bool) or size != int(size) or size < 1:
            raise OptionError(f"dims has {name}={size!r}: expected a whole number of at least 1")
    return sizes
