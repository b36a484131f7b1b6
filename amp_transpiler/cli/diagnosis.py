"""Diagnoses an installation: one row a part, with the command that mends what is wrong."""

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


def diagnose(installation: Installation) -> list[Row]:
    """Return the rows of an installation, from the package outwards to the device."""
    rows = [Row("amp-transpiler", "ok", f"{installation.package}, Python {installation.python}, {installation.system}")]
    rows.append(_runtime(installation))
    if installation.runtime is not None:
        rows += [
            _telemetry(installation),
            _driver(installation),
            *_devices(installation),
            _libraries(installation),
            *_default_place(installation),
        ]
        rows.append(_arithmetic(installation))
        if installation.training_problem:
            rows.append(Row("training", "note", installation.training_problem, installation.training_remedy))
    rows += _extras(installation)
    rows += _room(installation)
    return rows


def what_runs_where(installation: Installation) -> list[tuple[str, str]]:
    """Return each kind of work, and the place where it will run."""
    if installation.runtime is None:
        return [("conversion", "nowhere: it needs an ONNX Runtime, of any kind")]
    low = check = "the CPU; float16 and bfloat16 are emulated there, rounded as a GPU rounds them"
    if installation.place_problem is not None:
        low = check = place = "nothing runs until AMP_TRANSPILER_PLACE is corrected or unset"
    elif place := _device(installation):
        check = f"{low}; then {place}, whose word counts"
    sessions = [("amp.Session, training", place or low)]
    if installation.training_problem:
        sessions = [("amp.Session", place or low), ("training", f"nowhere: {installation.training_problem}")]
    return [
        ("conversion", "the CPU; it needs no GPU, whatever the target"),
        ("the check of a result", check),
        *sessions,
        ("--benchmark", place or "the CPU, whose times say nothing about a GPU"),
        ("predicted times", _prices()),
    ]


def _prices() -> str:
    """Return whose prices of kernels predictions are made of."""
    listed = price_list()
    return f"prices that an {listed.device} showed with ONNX Runtime {listed.release}; for other devices scaled"


def _device(installation: Installation) -> str:
    """Return the device that sessions run on by default, with its name; empty for the CPU."""
    place = installation.wanted_place.upper() or ("CUDA:0" if installation.cuda_problem is None else "CPU")
    if place == "CPU":
        return ""
    number = int(place.partition(":")[2] or "0")
    name = installation.gpus[number].name if number < len(installation.gpus) else "the GPU"
    return f"CUDA:{number} ({name})"


def _runtime(installation: Installation) -> Row:
    part, wheels = "ONNX Runtime", " and ".join(f"{name} {version}" for name, version in installation.wheels.items())
    if installation.runtime is None:
        return Row(part, "problem", installation.runtime_error, installation.runtime_remedy)
    build = f"built for CUDA {installation.built_for}" if installation.built_for else "a build for the CPU"
    names = ", ".join(name.removesuffix("ExecutionProvider") for name in installation.providers)
    text = f"{installation.runtime} ({wheels or 'no package of that name'}), {build}; providers: {names}"
    if installation.gpus and installation.built_for is None:
        return Row(part, "problem", f"{text}; it cannot use the NVIDIA device", PUT_GPU_WHEEL)
    notes = [choose_release(installation.runtime).note]
    if len(installation.wheels) > 1:
        notes.append("they share a folder, and the files of the one installed last are used")
    listed = "; ".join(note for note in notes if note)
    return Row(part, "note", f"{text}; {listed}") if listed else Row(part, "ok", text)


def _telemetry(installation: Installation) -> Row:
    part = "telemetry"
    if installation.system.startswith("Windows"):
        return Row(part, "ok", "ONNX Runtime's events go to Windows, whose settings of privacy decide")
    if installation.telemetry:
        return Row(part, "note", f"on: {installation.telemetry}", f"export {VARIABLE}=1")
    return Row(part, "ok", f"off: {VARIABLE} was set before ONNX Runtime was imported")


def _arithmetic(installation: Installation) -> Row:
    """Say whose kernels' arithmetic verdicts rest on, and whether it is that of the installed release."""
    from amp_transpiler.targets.arithmetic import arithmetic_of  # which a machine without ONNX Runtime does not need
    from amp_transpiler.targets.devices import DEFAULT_DEVICE

    release = ".".join((installation.runtime or "").split(".")[:2])
    arithmetic = arithmetic_of(DEFAULT_DEVICE.name, release)
    count = sum(map(len, arithmetic.rows.values()))
    text = f"{count} kernels in a format, as measured on {arithmetic}"
    if arithmetic.release == release:
        return Row("arithmetic", "ok", text)
    return Row("arithmetic", "note", f"{text}: verdicts for {release} are estimates, with more noise")


def _driver(installation: Installation) -> Row:
    from amp_transpiler.runtime.cuda import FIRST_DRIVERS  # which imports onnxruntime

    part = "NVIDIA driver"
    if installation.driver_cuda is None:
        if installation.driver is None:
            return Row(part, "note", "none; all work is done on the CPU")
        remedy = "give the process the driver's libcuda.so.1, such as with docker run --gpus all"
        return Row(part, "problem", f"{installation.driver} is loaded, but this process cannot open it", remedy)
    major, minor = installation.driver_cuda[:2]
    text = f"{installation.driver or 'release not known'}, knows CUDA {major}.{minor}"
    needed = int((installation.built_for or "0").split(".")[0])
    if needed <= major:
        return Row(part, "ok", text)
    first = FIRST_DRIVERS.get(needed)
    remedy = f"update the driver to {first} or newer" if first else "update the driver"
    return Row(part, "problem", f"{text}; ONNX Runtime is built for CUDA {installation.built_for}", remedy)


def _devices(installation: Installation) -> Iterator[Row]:
    if not installation.gpus and installation.driver_cuda is not None:
        hidden = installation.hidden is not None
        why = f"none visible; CUDA_VISIBLE_DEVICES is {installation.hidden!r}" if hidden else "none answers"
        remedy = "unset CUDA_VISIBLE_DEVICES" if hidden else "look at what nvidia-smi says"
        yield Row("device", "problem", why, remedy)
    for number, gpu in enumerate(installation.gpus):
        text = f"{gpu.name}, {gpu.memory / _GB:.0f} GB"
        if gpu.capability is not None:
            text += f", compute capability {gpu.capability[0]}.{gpu.capability[1]}"
        works = number > 0 or installation.cuda_problem is None
        yield Row(f"device {number}", "ok" if works else "problem", text if works else f"{text}: not usable yet")


def _libraries(installation: Installation) -> Row:
    part = "CUDA and cuDNN"
    if installation.built_for is None:
        return Row(part, "ok", "not needed by a build for the CPU")
    remedy = "pip install 'amp-transpiler[cuda]'"
    if not installation.missing:
        return Row(part, "ok", "all that ONNX Runtime's CUDA provider loads are there")
    text = f"cannot be loaded: {', '.join(installation.missing)}"
    if not installation.gpus:
        return Row(part, "note", f"{text}; not needed without a device")
    return Row(part, "problem", text, remedy)


def _default_place(installation: Installation) -> Iterator[Row]:
    if installation.place_problem is not None:
        yield Row("default place", "problem", installation.place_problem, "unset AMP_TRANSPILER_PLACE")
    elif installation.wanted_place:
        yield Row("default place", "ok", f"{installation.wanted_place}, as AMP_TRANSPILER_PLACE says")


def _extras(installation: Installation) -> Iterator[Row]:
    for name, version in installation.extras.items():
        extra, purpose = EXTRAS[name]
        if version is None:
            yield Row(name, "note", f"not installed; for {purpose}", f"pip install 'amp-transpiler[{extra}]'")
        else:
            yield Row(name, "ok", version)


def _room(installation: Installation) -> Iterator[Row]:
    if installation.cache is None:
        yield Row("cache", "ok", "switched off by AMP_TRANSPILER_CACHE")
    elif not installation.cache_is_writable:
        remedy = "export AMP_TRANSPILER_CACHE=FOLDER, one that you may write to"
        yield Row("cache", "note", f"{installation.cache} cannot be written; nothing is remembered", remedy)
    else:
        yield Row("cache", "ok", installation.cache)
    little = installation.free_temporary < _LITTLE_SPACE
    remedy = "export TMPDIR=FOLDER, one with more room" if little else ""
    free = f"{installation.free_temporary / _GB:.1f} GB free"
    yield Row("temporary files", "note" if little else "ok", free, remedy)
    if installation.memory is not None:
        little = installation.memory < _LITTLE_MEMORY
        remedy = "convert large models with --no-verify, which needs the least" if little else ""
        yield Row("memory", "note" if little else "ok", f"{installation.memory / _GB:.1f} GB free", remedy)
