"""The diagnosis of an installation: one row a part, with the command that mends what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, TypeAlias

from amp_transpiler.cli.installation import EXTRAS, Installation
from amp_transpiler.targets.price_list import price_list
from amp_transpiler.targets.releases import choose_release
from amp_transpiler.telemetry import VARIABLE
from amp_transpiler.wheels import PUT_GPU_WHEEL

__all__ = ["Row", "State", "diagnose", "what_runs_where"]

State: TypeAlias = Literal["ok", "note", "problem"]

_GB = 10**9
_LITTLE_MEMORY, _LITTLE_SPACE = 2 * _GB, 1 * _GB


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A part of the installation.

    Attributes:
        part: its name.
        state: `problem`: something that the package needs or that this machine could do does not work; `note`:
            something is absent that only some uses need.
        found: what was found.
        remedy: the line that mends it; empty if there is nothing to do.
    """

    part: str
    state: State
    found: str
    remedy: str = ""


def diagnose(found: Installation) -> list[Row]:
    """Return the rows of an installation, from the package outwards to the device."""
    rows = [Row("amp-transpiler", "ok", f"{found.package}, Python {found.python}, {found.system}")]
    rows.append(_runtime(found))
    if found.runtime is not None:
        rows += [_telemetry(found), _driver(found), *_devices(found), _libraries(found), *_default_place(found)]
        rows.append(_arithmetic(found))
    rows += _extras(found)
    rows += _room(found)
    return rows


def what_runs_where(found: Installation) -> list[tuple[str, str]]:
    """Return each kind of work, and the place where it will run."""
    if found.runtime is None:
        return [("conversion", "nowhere: it needs an ONNX Runtime, of any kind")]
    low = check = "the CPU; float16 and bfloat16 are emulated there, rounded as a GPU rounds them"
    if found.place_problem is not None:
        low = check = place = "nothing runs until AMP_TRANSPILER_PLACE is corrected or unset"
    elif place := _device(found):
        check = f"{low}; then {place}, whose word counts"
    return [
        ("conversion", "the CPU; it needs no GPU, whatever the target"),
        ("the check of a result", check),
        ("amp.Session, training", place or low),
        ("--benchmark", place or "the CPU, whose times say nothing about a GPU"),
        ("predicted times", _prices()),
    ]


def _prices() -> str:
    """Return whose prices of kernels predictions are made of."""
    listed = price_list()
    return f"prices that an {listed.device} showed with ONNX Runtime {listed.release}; for other devices scaled"


def _device(found: Installation) -> str:
    """Return the device that sessions run on by default, with its name; empty for the CPU."""
    place = found.wanted_place.upper() or ("CUDA:0" if found.cuda_problem is None else "CPU")
    if place == "CPU":
        return ""
    number = int(place.partition(":")[2] or "0")
    name = found.gpus[number].name if number < len(found.gpus) else "the GPU"
    return f"CUDA:{number} ({name})"


def _runtime(found: Installation) -> Row:
    part, wheels = "ONNX Runtime", " and ".join(f"{name} {version}" for name, version in found.wheels.items())
    if found.runtime is None:
        return Row(part, "problem", found.runtime_error, found.runtime_remedy)
    build = f"built for CUDA {found.built_for}" if found.built_for else "a build for the CPU"
    names = ", ".join(name.removesuffix("ExecutionProvider") for name in found.providers)
    text = f"{found.runtime} ({wheels or 'no package of that name'}), {build}; providers: {names}"
    if found.gpus and found.built_for is None:
        return Row(part, "problem", f"{text}; it cannot use the NVIDIA device", PUT_GPU_WHEEL)
    notes = [choose_release(found.runtime).note]
    if len(found.wheels) > 1:
        notes.append("they share a folder, and the files of the one installed last are used")
    told = "; ".join(note for note in notes if note)
    return Row(part, "note", f"{text}; {told}") if told else Row(part, "ok", text)


def _telemetry(found: Installation) -> Row:
    part = "telemetry"
    if found.system.startswith("Windows"):
        return Row(part, "ok", "ONNX Runtime's events go to Windows, whose settings of privacy decide")
    if found.telemetry:
        return Row(part, "note", f"on: {found.telemetry}", f"export {VARIABLE}=1")
    return Row(part, "ok", f"off: {VARIABLE} was set before ONNX Runtime was imported")


def _arithmetic(found: Installation) -> Row:
    """Say whose kernels' arithmetic verdicts rest on, and whether it is that of the installed release."""
    from amp_transpiler.targets.arithmetic import arithmetic_of  # which a machine without ONNX Runtime does not need
    from amp_transpiler.targets.devices import DEFAULT_DEVICE

    release = ".".join((found.runtime or "").split(".")[:2])
    arithmetic = arithmetic_of(DEFAULT_DEVICE.name, release)
    count = sum(map(len, arithmetic.rows.values()))
    text = f"{count} kernels in a format, as measured on {arithmetic}"
    if arithmetic.release == release:
        return Row("arithmetic", "ok", text)
    return Row("arithmetic", "note", f"{text}: verdicts for {release} are estimates, with more noise")


def _driver(found: Installation) -> Row:
    from amp_transpiler.runtime.cuda import FIRST_DRIVERS  # which imports onnxruntime

    part = "NVIDIA driver"
    if found.driver_cuda is None:
        if found.driver is None:
            return Row(part, "note", "none; all work is done on the CPU")
        remedy = "give the process the driver's libcuda.so.1, such as with docker run --gpus all"
        return Row(part, "problem", f"{found.driver} is loaded, but this process cannot open it", remedy)
    text = f"{found.driver or 'release not known'}, knows CUDA {found.driver_cuda[0]}.{found.driver_cuda[1]}"
    needed = int((found.built_for or "0").split(".")[0])
    if needed <= found.driver_cuda[0]:
        return Row(part, "ok", text)
    first = FIRST_DRIVERS.get(needed)
    remedy = f"update the driver to {first} or newer" if first else "update the driver"
    return Row(part, "problem", f"{text}; ONNX Runtime is built for CUDA {found.built_for}", remedy)


def _devices(found: Installation) -> Iterator[Row]:
    if not found.gpus and found.driver_cuda is not None:
        hidden = found.hidden is not None
        why = f"none visible; CUDA_VISIBLE_DEVICES is {found.hidden!r}" if hidden else "none answers"
        remedy = "unset CUDA_VISIBLE_DEVICES" if hidden else "look at what nvidia-smi says"
        yield Row("device", "problem", why, remedy)
    for number, gpu in enumerate(found.gpus):
        text = f"{gpu.name}, {gpu.memory / _GB:.0f} GB"
        if gpu.capability is not None:
            text += f", compute capability {gpu.capability[0]}.{gpu.capability[1]}"
        works = number > 0 or found.cuda_problem is None
        yield Row(f"device {number}", "ok" if works else "problem", text if works else f"{text}: not usable yet")


def _libraries(found: Installation) -> Row:
    part = "CUDA and cuDNN"
    if found.built_for is None:
        return Row(part, "ok", "not needed by a build for the CPU")
    remedy = "pip install 'amp-transpiler[cuda]'"
    if not found.missing:
        return Row(part, "ok", "all that ONNX Runtime's CUDA provider loads are there")
    text = f"cannot be loaded: {', '.join(found.missing)}"
    if not found.gpus:
        return Row(part, "note", f"{text}; not needed without a device")
    return Row(part, "problem", text, remedy)


def _default_place(found: Installation) -> Iterator[Row]:
    if found.place_problem is not None:
        yield Row("default place", "problem", found.place_problem, "unset AMP_TRANSPILER_PLACE")
    elif found.wanted_place:
        yield Row("default place", "ok", f"{found.wanted_place}, as AMP_TRANSPILER_PLACE says")


def _extras(found: Installation) -> Iterator[Row]:
    for name, version in found.extras.items():
        extra, purpose = EXTRAS[name]
        if version is None:
            yield Row(name, "note", f"not installed; for {purpose}", f"pip install 'amp-transpiler[{extra}]'")
        else:
            yield Row(name, "ok", version)


def _room(found: Installation) -> Iterator[Row]:
    if found.cache is None:
        yield Row("cache", "ok", "switched off by AMP_TRANSPILER_CACHE")
    elif not found.cache_is_writable:
        remedy = "export AMP_TRANSPILER_CACHE=FOLDER, one that you may write to"
        yield Row("cache", "note", f"{found.cache} cannot be written; nothing is remembered", remedy)
    else:
        yield Row("cache", "ok", found.cache)
    little = found.free_temporary < _LITTLE_SPACE
    remedy = "export TMPDIR=FOLDER, one with more room" if little else ""
    free = f"{found.free_temporary / _GB:.1f} GB free"
    yield Row("temporary files", "note" if little else "ok", free, remedy)
    if found.memory is not None:
        little = found.memory < _LITTLE_MEMORY
        remedy = "convert large models with --no-verify, which needs the least" if little else ""
        yield Row("memory", "note" if little else "ok", f"{found.memory / _GB:.1f} GB free", remedy)
