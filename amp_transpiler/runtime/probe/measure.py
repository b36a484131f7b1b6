"""All questions asked of one device: the rows, with what they depend on."""

from __future__ import annotations

import ctypes
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator

import onnxruntime

from amp_transpiler.runtime.cuda import driver_device_facts
from amp_transpiler.runtime.places import CUDAPlace, Place
from amp_transpiler.runtime.probe.answers import SETTINGS, Row, answer
from amp_transpiler.runtime.probe.catalogue import questions
from amp_transpiler.runtime.probe.question import Question

__all__ = ["device_row", "measure"]


def measure(place: Place, chosen: Iterable[Question] | None = None) -> Iterator[Row]:
    """Yield a row for every question, as it is answered.

    Args:
        place: the device.
        chosen: the questions; None for all.

    Raises:
        EnvironmentProblem: the device cannot be used.
    """
    device = device_row(place)
    for question in questions() if chosen is None else chosen:
        yield {**device, **answer(question, place)}


def device_row(place: Place) -> Row:
    """Return what an answer depends on beside the question: the device, its driver, the libraries, the options.

    Raises:
        EnvironmentProblem: the driver does not know the device.
    """
    row: Row = {"device": str(place), "sm": None, "driver": None, "onnxruntime": onnxruntime.__version__}
    if isinstance(place, CUDAPlace):
        facts = driver_device_facts(place.device_id)
        row |= {"device": facts.name, "sm": "{}{}".format(*facts.capability), "driver": driver_release()}
    cuda = str(onnxruntime.cuda_version or "") if isinstance(place, CUDAPlace) else ""
    return {
        **row,
        "cuda": cuda or None,
        "cudnn": _cudnn_version() if cuda else None,
        "options": dict(SETTINGS.provider_options),
    }


def driver_release() -> str | None:
    """Return the release of NVIDIA's driver, such as 580.65.06; None where no library says it."""
    release = ctypes.create_string_buffer(96)
    try:
        library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return _release_of_module()
    if library.nvmlInit_v2() != 0 or library.nvmlSystemGetDriverVersion(release, len(release)) != 0:
        return _release_of_module()
    return release.value.decode(errors="replace")


def _release_of_module() -> str | None:
    """Return what the kernel's module says: a container may have it without NVML."""
    file = pathlib.Path("/proc/driver/nvidia/version")
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


def _cudnn_version() -> str | None:
    try:
        library = ctypes.CDLL("cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9")
    except OSError:
        return None
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = int(library.cudnnGetVersion())
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
