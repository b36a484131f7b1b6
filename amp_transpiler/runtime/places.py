"""Places: the devices that programs run on. A further device is one more subclass of `Place`, listed in `PLACES`."""

from __future__ import annotations

import abc
import contextlib
import ctypes
import dataclasses
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.runtime import cuda, cuda_runtime, ort
from amp_transpiler.runtime.provider_options import Use, cuda_options
from amp_transpiler.runtime.values import device_of, from_ort, to_ort

if TYPE_CHECKING:
    from amp_transpiler.runtime.uploads import Uploads

__all__ = [
    "PLACES",
    "PLACE_VARIABLE",
    "CPUPlace",
    "CUDAPlace",
    "Place",
    "PlaceDecision",
    "decide_place",
    "default_place",
    "place_named",
    "to_host",
]

_logger = logging.getLogger(__name__)

PLACE_VARIABLE = "AMP_TRANSPILER_PLACE"
"""The environment variable that names the place of sessions, executors and checks that are given none."""

_DEFAULTS = ort.SessionSettings()
_FIRST_WITH_TF32 = (8, 0)  # the compute capability


class Place(abc.ABC):
    """A device: it opens sessions and holds values. `str(place)` is its name.

    Attributes:
        device: the name that ONNX Runtime gives its memory.
        emulates_low: programs with float16 or bfloat16 values run there as float32 programs that round like them.
        in_main_memory: its values lie in main memory, where numpy reads them without a copy.
        reads_gemm_options: float16 matrix products accumulate there as ORT_CUDA_GEMM_OPTIONS says.
        has_provider_options: its provider takes the options of `provider_options`, and captures CUDA graphs.
        memory_kind: the memory that `memory_in_use` and `peak_memory` count: `device`, that of all processes; or
            `resident`, that of this process.
    """

    __slots__ = ()

    device: ClassVar[str]
    emulates_low: ClassVar[bool]
    in_main_memory: ClassVar[bool]
    reads_gemm_options: ClassVar[bool]
    memory_kind: ClassVar[Literal["device", "resident"]]
    has_provider_options: ClassVar[bool] = False

    @abc.abstractmethod
    def problem(self) -> str | None:
        """Return why ONNX Runtime cannot run here, with the remedy, or None if it can."""

    @abc.abstractmethod
    def providers(self, options: Mapping[str, str] | None = None) -> Sequence[ort.Provider]:
        """Return ONNX Runtime's providers for a session here, the preferred one first, which gets the options."""

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
            EnvironmentProblem: this device cannot be used.
            ORT_ERRORS: ONNX Runtime refuses the model.
        """
        problem = self.problem()
        if problem is not None:
            raise EnvironmentProblem(f"cannot run on {self}: {problem}")
        providers = self.providers(dict(settings.provider_options))
        if not settings.cached:
            return ort.open_session(model, settings, providers)
        from amp_transpiler.runtime.graph_cache import open_cached

        return open_cached(
            model, settings, providers, self.kind(), lambda form, how: ort.open_session(form, how, providers)
        )

    def kind(self) -> str:
        """Return what an optimized graph depends on of this device."""
        return str(self)

    def hardware_name(self) -> str:
        """Return the device's name by its maker; the place's own where it has none."""
        return str(self)

    def options_for(self, use: Use) -> dict[str, str]:  # noqa: ARG002  # a place without options has none for any use
        """Return the options of this place's provider for a kind of session."""
        return {}

    def queues_steps(self) -> bool:
        """Whether sessions of steps share one allocator and one stream here, so that the host need not wait."""
        return False

    def copied(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return a copy of a tensor in this device's memory, made when the steps that are queued are done."""
        return self.hold(to_ort(np.array(to_host(value))))

    @abc.abstractmethod
    def copy_into(self, target: onnxruntime.OrtValue, value: onnxruntime.OrtValue) -> None:
        """Overwrite a tensor in this device's memory with one of equal size there, behind the steps that are queued."""

    def wait(self) -> None:  # noqa: B027  # where runs return when they are done there is nothing to wait for
        """Wait until the steps that are queued here are done."""

    def has_tf32(self) -> bool:
        """Whether float32 products may be computed in TF32 here."""
        return False

    def uploads(self) -> Uploads | None:
        """Return what copies feeds here while the last step runs; None if a session has to copy them itself."""
        return None

    def make_room(self, size: int) -> None:  # noqa: B027  # a place whose sessions share nothing has nothing to do
        """Have memory ready for a step whose results take `size` bytes at most, and give other unused memory back."""

    def release_unused_memory(self) -> None:  # noqa: B027  # a place whose sessions share nothing has nothing to do
        """Give memory back that closed sessions of steps took."""


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

    def providers(self, options: Mapping[str, str] | None = None) -> Sequence[ort.Provider]:  # noqa: ARG002  # it has none
        """Return the CPU provider."""
        return [ort.CPU_PROVIDER]

    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None:
        """Let an output be written to main memory."""
        binding.bind_output(name, self.device)

    def hold(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return `value`, which the CPU provider reads where it is; one on another device is copied to main memory."""
        if value.device_name() == self.device or not value.is_tensor():
            return value
        return to_ort(to_host(value))

    def bring_back(self, value: onnxruntime.OrtValue) -> np.ndarray:
        """Return the array that a tensor in main memory holds."""
        return from_ort(value)

    def copy_into(self, target: onnxruntime.OrtValue, value: onnxruntime.OrtValue) -> None:
        """Overwrite a tensor in main memory, where no step is queued."""
        ctypes.memmove(target.data_ptr(), value.data_ptr(), value.tensor_size_in_bytes())

    def memory_in_use(self) -> int | None:
        """Return the bytes that this process has resident; None if unknown."""
        from amp_transpiler.runtime.memory import current_memory

        return current_memory()

    def peak_memory(self) -> int | None:
        """Return the most bytes that this process has had resident; None if unknown."""
        from amp_transpiler.runtime.memory import peak_memory

        return peak_memory()


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
    has_provider_options = True

    def __post_init__(self) -> None:
        if self.device_id < 0:
            raise OptionError(f"CUDAPlace: device_id must be 0 or more, got {self.device_id}")

    def __str__(self) -> str:
        return f"CUDA:{self.device_id}"

    def problem(self) -> str | None:
        """Return why ONNX Runtime cannot use this device, or None if it can."""
        return cuda.cuda_problem(self.device_id)

    def providers(self, options: Mapping[str, str] | None = None) -> Sequence[ort.Provider]:
        """Return the CUDA provider and, for nodes without a CUDA kernel, the CPU provider."""
        return cuda.providers(self.device_id, options)

    def hardware_name(self) -> str:
        """Return the name that the driver gives the device, such as `NVIDIA H100 80GB HBM3`."""
        return cuda.driver_device_facts(self.device_id).name

    def kind(self) -> str:
        """Return the generation of the device."""
        return f"{self.device} {cuda_runtime.capability(self.device_id)}"

    def options_for(self, use: Use) -> dict[str, str]:
        """Return the CUDA provider's options; the steps of executors have a stream in common."""
        options = cuda_options(use)
        if use == "step" and self.queues_steps():
            options["user_compute_stream"] = str(self._stream().address)
        return options

    def queues_steps(self) -> bool:
        """Whether sessions can share an allocator, which they do unless they bring one of their own."""
        if self.problem() is not None:
            return False
        from amp_transpiler.runtime import shared_memory  # here and below: only steps on a device share memory

        return shared_memory.sharing(self.device_id)

    def copied(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return a copy of a tensor in this device's memory, queued behind the steps."""
        copy = self.empty(value.shape(), ir.DataType(value.element_type()))
        self.copy_into(copy, value)
        return copy

    def copy_into(self, target: onnxruntime.OrtValue, value: onnxruntime.OrtValue) -> None:
        """Queue a copy within this device's memory behind the steps."""
        size = value.tensor_size_in_bytes()
        cuda_runtime.copy_within(target.data_ptr(), value.data_ptr(), size, self._stream())

    def wait(self) -> None:
        """Wait until the steps that are queued on this device are done."""
        cuda_runtime.wait_for_steps(self.device_id)

    def has_tf32(self) -> bool:
        """Whether the device has TF32, and the environment does not forbid it."""
        known = cuda_runtime.capability(self.device_id)
        return known is not None and known >= _FIRST_WITH_TF32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"

    def uploads(self) -> Uploads | None:
        """Return what copies feeds here while the last step runs, if steps are queued."""
        from amp_transpiler.runtime.uploads import Uploads

        return Uploads(self.device_id) if self.queues_steps() else None

    def make_room(self, size: int) -> None:
        """Give unused memory back, whose pieces have other sizes, and take one piece for a step."""
        if self.queues_steps():
            from amp_transpiler.runtime import shared_memory

            shared_memory.release_unused(self.device_id)
            if size:
                shared_memory.reserve(self.device_id, size)

    def release_unused_memory(self) -> None:
        """Give the shared memory that no value lies in back to the device."""
        if self.queues_steps():
            from amp_transpiler.runtime import shared_memory

            shared_memory.release_unused(self.device_id)

    def bind_output(self, binding: onnxruntime.IOBinding, name: str) -> None:
        """Let an output be written to the device's memory."""
        binding.bind_output(name, self.device, self.device_id)

    def hold(self, value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
        """Return `value` in this device's memory."""
        if not value.is_tensor() or device_of(value) == (self.device, self.device_id):
            return value
        if value.device_name() != CPUPlace.device:  # on another device
            value = to_ort(to_host(value))
        copy = self.empty(value.shape(), ir.DataType(value.element_type()))
        # In the steps' own stream: what lay in that memory before may still be in use by a step that is queued.
        stream = self._stream() if self.queues_steps() else None
        cuda_runtime.copy_to_device(copy.data_ptr(), value.data_ptr(), value.tensor_size_in_bytes(), stream)
        return copy

    def empty(self, shape: Sequence[int], dtype: ir.DataType) -> onnxruntime.OrtValue:
        """Return a tensor in this device's memory, of any content."""
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, dtype.value, self.device, self.device_id)

    def bring_back(self, value: onnxruntime.OrtValue) -> np.ndarray:
        """Return the array of a tensor on a device, copied to main memory. It waits for steps that are not done."""
        array = np.empty(value.shape(), ir.DataType(value.element_type()).numpy())
        _, device_id = device_of(value)
        cuda_runtime.wait_for_steps(device_id)
        if array.size:
            cuda_runtime.copy_to_host(array.ctypes.data, value.data_ptr(), array.nbytes)
        return array

    def _stream(self) -> cuda_runtime.Stream:
        return cuda_runtime.stream_of(self.device_id, "compute")

    def memory_in_use(self) -> int | None:
        """Return the bytes that all processes use on this device."""
        from amp_transpiler.runtime.memory import device_memory_in_use

        return device_memory_in_use(self.device_id)

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


@dataclasses.dataclass(frozen=True, slots=True)
class PlaceDecision:
    """Return the place where sessions run unless they are given one.

    Attributes:
        place: where.
        level: the level of the line in the log.
        line: what the log says: the place, and why that one.
    """

    place: Place
    level: int
    line: str


def default_place() -> Place:
    """Return the place of `AMP_TRANSPILER_PLACE`; without it `CUDAPlace(0)` if a device answers, else `CPUPlace()`.

    The log says which, and why, once. If ONNX Runtime cannot use the device (its CUDA libraries are missing, or the
    wheel has no CUDA provider), a warning names the package to install and the CPU is used. Asking for `CUDAPlace`, or
    for `CUDA:0` by the variable, then raises.

    Raises:
        OptionError: the variable names no place.
        EnvironmentProblem: the variable names a place that cannot be used.
    """
    return _logged_place(os.environ.get(PLACE_VARIABLE, ""))


@functools.cache
def _logged_place(wanted: str) -> Place:
    decision = decide_place(wanted)
    _logger.log(decision.level, decision.line)
    return decision.place


def decide_place(wanted: str) -> PlaceDecision:
    """Return where sessions run by default, and why: the one decision of this process and of the checks' child.

    Args:
        wanted: the value of `AMP_TRANSPILER_PLACE`; empty if it is not set.

    Raises:
        OptionError: there is no such place.
        EnvironmentProblem: the place that is wanted cannot be used.
    """
    if wanted:
        place = _wanted_place(wanted)
        return PlaceDecision(place, logging.INFO, f"running on {place}, as {PLACE_VARIABLE} says")
    if cuda.driver_device_count() == 0:  # asked first: checking for a problem loads ONNX Runtime's CUDA libraries
        return PlaceDecision(CPUPlace(), logging.INFO, "running on the CPU: no NVIDIA device answers")
    first = CUDAPlace(0)
    problem = first.problem()
    if problem is not None:
        return PlaceDecision(CPUPlace(), logging.WARNING, f"running on the CPU: {problem}")
    return PlaceDecision(first, logging.INFO, f"running on {first}")


def _wanted_place(wanted: str) -> Place:
    try:
        place = place_named(wanted)
    except OptionError as error:
        raise OptionError(
            f"the environment variable {PLACE_VARIABLE} is {wanted!r}: expected a place such as CPU or CUDA:0; "
            "correct it, or unset it to run on CUDA:0 where a device answers, else on the CPU"
        ) from error
    problem = place.problem()
    if problem is not None:
        raise EnvironmentProblem(
            f"the environment variable {PLACE_VARIABLE} says {place}, which cannot be used: {problem}. "
            f"Set {PLACE_VARIABLE} to another place, or unset it"
        )
    return place
