"""Looks up what is installed on this machine, as far as the package uses it. `diagnosis.py` says what it means."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.metadata
import io
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
import warnings

from amp_transpiler import telemetry
from amp_transpiler.errors import EnvironmentProblem, OptionError
from amp_transpiler.version import __version__
from amp_transpiler.wheels import fault_of_runtime, installed_wheels, too_old_for_training

__all__ = ["EXTRAS", "Gpu", "Installation", "look"]

EXTRAS = {
    "torch": ("distributed", "training on several GPUs"),
    "matplotlib": ("plot", "pictures of loss curves"),
}
"""Package -> the extra of ours that brings it, and what it is for."""

# What ONNX Runtime's CUDA provider loads, by the CUDA release that it is built for.
_LIBRARIES = {
    12: ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcurand.so.10", "libcufft.so.11"),
    13: ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10"),
}
_CUDNN = "libcudnn.so.9"
_DRIVER_FILE = pathlib.Path("/proc/driver/nvidia/version")


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """A CUDA device.

    Attributes:
        name: as the driver calls it.
        memory: its bytes.
        capability: its compute capability; None: not known.
    """

    name: str
    memory: int
    capability: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What was found.

    Attributes:
        package: our version.
        python: Python's version.
        system: the operating system and processor.
        wheels: packages that bring the module `onnxruntime` -> version.
        runtime: the version of ONNX Runtime that was imported; None if that failed.
        runtime_error: why it could not be imported.
        runtime_remedy: the command that mends that.
        providers: what this ONNX Runtime can run on.
        telemetry: why ONNX Runtime sends telemetry; empty if it does not.
        built_for: the CUDA release that it is built for, such as `13.0`; None for a build without CUDA.
        driver: the release of the NVIDIA driver; None: not known, or no driver.
        driver_cuda: the newest CUDA release that the driver knows; None without a driver.
        gpus: the devices that this process sees.
        hidden: the value of CUDA_VISIBLE_DEVICES; None: not set.
        missing: CUDA and cuDNN libraries that cannot be loaded.
        cuda_problem: why ONNX Runtime cannot run on the first device; None if it can.
        wanted_place: the value of AMP_TRANSPILER_PLACE; empty: not set.
        place_problem: why nothing can run on the place that is wanted; None if it can.
        training_problem: why nothing can be trained; empty if it can.
        training_remedy: the command that mends that.
        extras: optional package -> version, or None.
        cache: the folder of the cache; None: switched off.
        cache_is_writable: whether files can be written there.
        free_temporary: free bytes where temporary files go.
        memory: bytes of main memory that are free; None: not known.
    """

    package: str = __version__
    python: str
    system: str
    wheels: dict[str, str]
    runtime: str | None
    runtime_error: str = ""
    runtime_remedy: str = ""
    providers: tuple[str, ...] = ()
    telemetry: str = ""
    built_for: str | None = None
    driver: str | None = None
    driver_cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()
    hidden: str | None = None
    missing: tuple[str, ...] = ()
    cuda_problem: str | None = None
    wanted_place: str = ""
    place_problem: str | None = None
    training_problem: str = ""
    training_remedy: str = ""
    extras: dict[str, str | None] = dataclasses.field(default_factory=dict)
    cache: str | None = None
    cache_is_writable: bool = True
    free_temporary: int = 0
    memory: int | None = None


def look() -> Installation:
    """Return what is installed here. Nothing is changed, and nothing is raised for what is missing."""
    installation = Installation(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        wheels={wheel.name: wheel.version for wheel in installed_wheels()},
        runtime=None,
        driver=_driver_release(),
        hidden=os.environ.get("CUDA_VISIBLE_DEVICES"),
        extras={name: _version(name) for name in EXTRAS},
        free_temporary=shutil.disk_usage(tempfile.gettempdir()).free,
        memory=_free_memory(),
    )
    return _with_cache(_with_runtime(installation))


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _with_runtime(installation: Installation) -> Installation:
    fault = fault_of_runtime()
    if fault is not None:
        what, remedy = fault
        return dataclasses.replace(installation, runtime_error=what, runtime_remedy=remedy)
    import onnxruntime

    from amp_transpiler.runtime import cuda, places

    built_for = str(onnxruntime.cuda_version) if getattr(onnxruntime, "cuda_version", "") else None
    count = cuda.driver_device_count()
    place_name = os.environ.get(places.PLACE_VARIABLE, "")
    training_problem, training_remedy = _training_problem()
    return dataclasses.replace(
        installation,
        runtime=onnxruntime.__version__,
        providers=tuple(onnxruntime.get_available_providers()),
        telemetry=telemetry.why_on(),
        built_for=built_for,
        driver_cuda=cuda.driver_cuda_version(),
        gpus=tuple(_gpu(number) for number in range(count)),
        missing=_missing_libraries(built_for),
        cuda_problem=cuda.cuda_problem(0),
        wanted_place=place_name,
        place_problem=_place_problem(place_name),
        training_problem=training_problem,
        training_remedy=training_remedy,
    )


def _training_problem() -> tuple[str, str]:
    outdated = too_old_for_training()
    if outdated is None:
        return "", ""
    wheel, oldest = outdated
    return f"it needs {wheel.name} {oldest} or newer, and {wheel.version} is installed", f"pip install -U {wheel.name}"


def _place_problem(wanted: str) -> str | None:
    from amp_transpiler.runtime.places import decide_place

    try:
        decide_place(wanted)
    except (OptionError, EnvironmentProblem) as error:
        return str(error)
    return None


def _missing_libraries(built_for: str | None) -> tuple[str, ...]:
    """Return the libraries of CUDA and cuDNN that do not load; none on systems other than Linux."""
    if built_for is None or not sys.platform.startswith("linux"):
        return ()
    import onnxruntime

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnxruntime.preload_dlls()  # those that pip installed
    wanted = (*_LIBRARIES.get(int(built_for.split(".")[0]), ()), _CUDNN)
    return tuple(name for name in wanted if not _loads(name))


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _gpu(number: int) -> Gpu:
    """Return a device as the driver describes it."""
    from amp_transpiler.runtime import cuda, cuda_runtime

    name, size = ctypes.create_string_buffer(256), ctypes.c_size_t(0)
    driver = cuda.driver_library()
    if driver is not None:
        driver.cuDeviceGetName(name, len(name), number)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), number)
    return Gpu(name.value.decode(errors="replace") or f"device {number}", size.value, cuda_runtime.capability(number))


def _driver_release() -> str | None:
    with contextlib.suppress(OSError):
        matched = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", _DRIVER_FILE.read_text(encoding="utf-8", errors="replace"))
        return matched[0] if matched else None
    return None


def _free_memory() -> int | None:
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/meminfo").read_text(encoding="ascii")
        matched = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
        return int(matched[1]) * 1024 if matched else None
    return None


def _with_cache(installation: Installation) -> Installation:
    from amp_transpiler.files.user_cache import base_folder

    place = base_folder()
    if place is None:
        return installation
    folder = place[0]
    existing = next(part for part in (folder, *folder.parents) if part.exists())
    return dataclasses.replace(installation, cache=str(folder), cache_is_writable=os.access(existing, os.W_OK))
