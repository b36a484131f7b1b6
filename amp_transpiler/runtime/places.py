"""Places: the devices that programs run on. A further device is one more subclass of `Place`, listed in `PLACES`."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.runtime import cuda, memory, ort
from amp_transpiler.runtime.values import from_ort, is_extension

__all__ = ["PLACES", "CPUPlace", "CUDAPlace", "Place", "default_place", "place_named", "to_host"]

_logger = logging.getLogger(__name__)

_DEFAULTS = ort.SessionSettings()


class Place(abc.ABC):
    """A device: it opens sessions and holds values. `str(place)` is its name.

    Attributes:
        device: the name that ONNX Runtime gives its memory.
        emulates_low: programs with float16 or bfloat16 values run there as float32 programs that round like them.
        in_main_memory: its values lie in main memory, where numpy reads them without a copy.
        reads_gemm_options: float16 matrix products accumulate there as ORT_CUDA_GEMM_OPTIONS says.
        memory_kind: the memory that `memory_in_use` and `peak_memory` count: `device`, that of all processes; or
            `resident`, that of this process.
    """

    __slots__ = ()

    device: ClassVar[str]
    emulates_low: ClassVar[bool]
    in_main_memory: ClassVar[bool]
    reads_gemm_options: ClassVar[bool]
    memory_kind: ClassVar[Literal["device", "resident"]]

    @abc.abstractmethod
    def problem(self) -> str | None:
        """Return why ONNX Runtime cannot run here, with the remedy, or None if it can."""

    @abc.abstractmethod
    def providers(self) -> Sequence[ort.Provider]:
        """Return ONNX Runtime's providers for a session here, the preferred one first."""

    @abc.abstractmethod
    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None:
        """Let an output be written to this device's memory, which ONNX Runtime allocates."""

    @abc.abstractmethod
    def hold(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return `value` in this device's memory; `value` itself if it is there already or cannot be moved."""

    @abc.abstractmethod
    def bring_back(self, value: onnxruntime.OrtValue) -> np.ndarray:
        """Return the array of a tensor in this device's memory, copied to main memory."""

    @abc.abstractmethod
    def memory_in_use(self) -> int | None:
        """Return the bytes in use now (see `memory_kind`); None if unknown."""

    @abc.abstractmethod
    def peak_memory(self) -> int | None:
        """Return the highest number of bytes in use so far (see `memory_kind`); None if unknown."""

    def open_session(
        self, model: bytes | str | os.PathLike[str], settings: ort.SessionSettings = _DEFAULTS
    ) -> onnxruntime.InferenceSession:
        """Return a session of `model` that runs here and prints nothing.

        Args:
            model: a serialised model, or the path of one.
            settings: how to open it.

        Raises:
            EnvironmentProblem: two ONNX Runtime wheels are installed, or this device cannot be used.
            ORT_ERRORS: ONNX Runtime refuses the model.
        """
        ort.refuse_two_wheels()
        problem = self.problem()
        if problem is not None:
            raise EnvironmentProblem(f"cannot run on {self}: {problem}")
        return ort.open_session(model, settings, self.providers())


@dataclasses.dataclass(frozen=True, slots=True)
class CPUPlace(Place):
    """The processor, through ONNX Runtime's CPU provider."""

    device = "cpu"
    # The provider computes float16 in float32 without rounding in between, and has few bfloat16 kernels.
    emulates_low = True
    in_main_memory = True
    reads_gemm_options = False
    memory_kind = "resident"

    def __str__(self) -> str:
        return "CPU"

    def problem(self) -> str | None:
        """Return None: every ONNX Runtime has the CPU provider."""
        return None

    def providers(self) -> Sequence[ort.Provider]:
        """Return the CPU provider."""
        return [ort.CPU_PROVIDER]

    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None:
        """Let an output be written to main memory."""
        binding.bind_output(name, self.device)

    def hold(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return `value`: the CPU provider reads values where they are."""
        return value

    def bring_back(self, value: onnxruntime.OrtValue) -> np.ndarray:
        """Return the array that a tensor in main memory holds."""
        array = from_ort(value)
        if array is None:
            raise InputError("an empty optional has no array")
        return array

    def memory_in_use(self) -> int | None:
        """Return the bytes that this process has resident; None if unknown."""
        return memory.current_memory()

    def peak_memory(self) -> int | None:
        """Return the most bytes that this process has had resident; None if unknown."""
        return memory.peak_memory()


@dataclasses.dataclass(frozen=True, slots=True)
class CUDAPlace(Place):
    """An NVIDIA device, through ONNX Runtime's CUDA provider.

    Attributes:
        device_id: index among the visible devices (`CUDA_VISIBLE_DEVICES` counts).

    Raises:
        OptionError: `device_id` is negative.
    """

    device_id: int = 0

    device = "cuda"
    emulates_low = False
    in_main_memory = False
    reads_gemm_options = True
    memory_kind = "device"

    def __post_init__(self) -> None:
        if self.device_id < 0:
            raise OptionError(f"CUDAPlace: device_id must be 0 or more, got {self.device_id}")

    def __str__(self) -> str:
        return f"CUDA:{self.device_id}"

    def problem(self) -> str | None:
        """Return why ONNX Runtime cannot use this device, or None if it can."""
        return cuda.cuda_problem(self.device_id)

    def providers(self) -> Sequence[ort.Provider]:
        """Return the CUDA provider and, for nodes without a CUDA kernel, the CPU provider."""
        return cuda.providers(self.device_id)

    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None:
        """Let an output be written to the device's memory."""
        binding.bind_output(name, self.device, self.device_id)

    def hold(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return `value` on the device; bfloat16 stays where it is."""
        # ONNX Runtime's bindings copy through numpy, which has no bfloat16: such a value moves when a session reads it.
        if value.device_name() == self.device or is_extension(ir.DataType(value.element_type()).numpy()):
            return value
        return onnxruntime.OrtValue.ortvalue_from_numpy(value.numpy(), self.device, self.device_id)

    def bring_back(self, value: onnxruntime.OrtValue) -> np.ndarray:
        """Return the array of a tensor on a device, copied to main memory."""
        dtype = ir.DataType(value.element_type())
        if is_extension(dtype.numpy()):
            value = self._copied_by_a_session(value, dtype)
        return CPUPlace().bring_back(value)

    def _copied_by_a_session(self, value: onnxruntime.OrtValue, dtype: ir.DataType) -> onnxruntime.OrtValue:
        """Copy to main memory through a session, because ONNX Runtime's bindings copy through numpy."""
        kind = dtype.name.lower()
        text = (
            f'<ir_version: 10, opset_import: ["" : 21]> copy ({kind}[...] x) => ({kind}[...] y) {{ y = Identity(x) }}'
        )
        message = ir.to_proto(ir.from_onnx_text(text)).SerializeToString()
        session = self.open_session(message, ort.SessionSettings(optimize=False, threads=1))
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y", "cpu")
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    def memory_in_use(self) -> int | None:
        """Return the bytes that all processes use on this device."""
        return memory.device_memory_in_use(self.device_id)

    def peak_memory(self) -> int | None:
        """Return the bytes in use: ONNX Runtime's arena keeps all memory that it once took."""
        return self.memory_in_use()


PLACES: tuple[type[Place], ...] = (CPUPlace, CUDAPlace)


def place_named(name: str) -> Place:
    """Return the place whose `str` is `name`, such as `CPU` or `CUDA:0`.

    Raises:
        OptionError: there is no such place.
    """
    device, *index = name.split(":")
    for kind in PLACES:
        if kind.device == device.lower():
            with contextlib.suppress(TypeError, ValueError):  # an index that is not a number, or that it does not have
                return kind(*map(int, index))
    raise OptionError(f"unknown place {name!r}: expected one such as {', '.join(str(kind()) for kind in PLACES)}")


def to_host(value: onnxruntime.OrtValue) -> np.ndarray:
    """Return the array of a tensor value on any device, copied to main memory.

    Raises:
        InputError: the value is not a tensor, or an empty optional.
    """
    return place_named(value.device_name()).bring_back(value)


@functools.cache
def default_place() -> Place:
    """Return `CUDAPlace(0)` if a device answers, else `CPUPlace()`; the log says which, once.

    If ONNX Runtime cannot use the device (its CUDA libraries are missing, or the wheel has no CUDA provider), a warning
    names the package to install and the CPU is used. Asking for `CUDAPlace` then raises.
    """
    if cuda.driver_device_count() == 0:  # asked first: checking for a problem loads ONNX Runtime's CUDA libraries
        _logger.info("running on the CPU: no NVIDIA device answers")
        return CPUPlace()
    place = CUDAPlace(0)
    problem = place.problem()
    if problem is not None:
        _logger.warning("running on the CPU: %s", problem)
        return CPUPlace()
    _logger.info("running on %s", place)
    return place
