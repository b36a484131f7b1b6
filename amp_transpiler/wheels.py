"""Checks the ONNX Runtime that is installed: one module, which any of several wheels brings.

No wheel of ONNX Runtime is a dependency of this package: `onnxruntime`, `onnxruntime-gpu` and their sisters install
the same module over each other, and other packages bring another one. Whichever is there is used.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import logging
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from amp_transpiler.errors import EnvironmentProblem, innermost_text

__all__ = [
    "INSTALL",
    "OLDEST",
    "OLDEST_FOR_TRAINING",
    "OLDEST_ONNX_FOR_TRAINING",
    "PUT_GPU_WHEEL",
    "Fault",
    "Wheel",
    "fault_of_installation",
    "fault_of_runtime",
    "installed_version",
    "installed_wheels",
    "require_for_training",
    "require_installed",
    "require_runtime",
    "too_old_for_training",
]

_logger = logging.getLogger(__name__)

_MODULE = "onnxruntime"
OLDEST = "1.22"
"""The oldest minor release that conversion and its check work with: the bound of the extras in pyproject.toml."""
OLDEST_FOR_TRAINING = "1.31"
"""Training copies values between devices with what older releases lack."""
OLDEST_ONNX_FOR_TRAINING = "1.22"

_REINSTALL = "pip install --force-reinstall --no-deps {}"
PUT_GPU_WHEEL = _REINSTALL.format("onnxruntime-gpu")
"""What puts the CUDA provider in the place of another build, and leaves the wheels that other packages ask for."""
INSTALL = "pip install 'amp-transpiler[cpu]', or with an NVIDIA GPU: pip install 'amp-transpiler[cuda]'"
"""What brings ONNX Runtime."""

Fault: TypeAlias = tuple[str, str]
"""Why ONNX Runtime cannot be used, and the command that mends it."""

_VERSION = re.compile(r"""^__version__ = ["']([^"']+)["']""", re.MULTILINE)
# Beginnings of the folders that wheels with the module leave: onnxruntime-gpu, -directml, -openvino, -qnn, ort-nightly.
_NAMES = ("onnxruntime", "ort_")


@dataclasses.dataclass(frozen=True, slots=True)
class Wheel:
    """An installed package: one that brings the module `onnxruntime`, or one that is used beside it.

    Attributes:
        name: as pip knows it, such as `onnxruntime-gpu`.
        version: its version.
    """

    name: str
    version: str

    def __str__(self) -> str:
        """The name and the version, as pip lists them."""
        return f"{self.name} {self.version}"


def installed_wheels() -> tuple[Wheel, ...]:
    """Return the wheels that brought the module `onnxruntime` which Python finds, by name.

    More than one: they share its folder, and the one that was installed last has overwritten the others' files. If
    there is no module, those that are listed all the same: their files were removed, with another wheel.
    """
    loaded = sys.modules.get(_MODULE)
    spec = importlib.util.find_spec(_MODULE) if loaded is None else loaded.__spec__
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folders = [pathlib.Path(places[0]).parent] if places else [pathlib.Path(entry) for entry in sys.path]
    wheels = {wheel for folder in folders for wheel in _wheels_in(folder)}
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


def _wheels_in(folder: pathlib.Path) -> Iterator[Wheel]:
    for information in folder.glob("*.dist-info"):
        if information.name.lower().startswith(_NAMES):
            distribution = importlib.metadata.PathDistribution(information)
            # Not `files`: from Python 3.12 on it leaves out files that are gone.
            if f"\n{_MODULE}/__init__.py," in f"\n{distribution.read_text('RECORD') or ''}":
                name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
                yield Wheel(name, distribution.version)


def installed_version() -> str | None:
    """Return the version of the installed ONNX Runtime without importing it; None if there is none."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        return str(getattr(loaded, "__version__", "")) or None
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or spec.origin is None:
        return None
    # Its wheels have several names, and nothing keeps two of them from being installed: the module says which it is.
    match = _VERSION.search(pathlib.Path(spec.origin).read_text(encoding="utf-8", errors="replace"))
    return None if match is None else match[1]


def fault_of_installation() -> Fault | None:
    """Return why the installed ONNX Runtime cannot be used, as far as its files tell; None if it can."""
    version, wheels = installed_version(), installed_wheels()
    if version is None and not wheels:
        return "no wheel of it is installed", INSTALL
    if version is None:
        return f"the files of {_names(wheels)} are gone", _reinstall(wheels)
    if _number(version) < _number(OLDEST):
        return f"{version} is older than {OLDEST}, the oldest that works", f"pip install -U {_last(wheels)}"
    return None


@functools.cache
def fault_of_runtime() -> Fault | None:
    """Return why ONNX Runtime cannot be imported, or None, and then it has been."""
    fault = fault_of_installation()
    if fault is not None:
        return fault
    try:
        import onnxruntime

        onnxruntime.InferenceSession  # noqa: B018  parts of two wheels can lack it
    except (ImportError, AttributeError, OSError) as error:
        wheels = installed_wheels()
        why = innermost_text(error)
        return f"the module that {_names(wheels)} brought cannot be imported: {why}", _reinstall(wheels)
    return None


@functools.cache
def require_installed() -> None:
    """Return if an ONNX Runtime is installed that is not too old; a log line warns of several wheels.

    Raises:
        EnvironmentProblem: there is none, or an older one than `OLDEST`.
    """
    _refuse(fault_of_installation())
    wheels = installed_wheels()
    if len(wheels) > 1:
        text = "%s share a folder: the files of the one installed last are used, ONNX Runtime %s"
        _logger.warning(text, _names(wheels), installed_version())


def require_runtime() -> None:
    """Return if ONNX Runtime can be imported, and import it.

    Raises:
        EnvironmentProblem: it is not installed, too old, or its files do not fit together.
    """
    require_installed()
    _refuse(fault_of_runtime())


@functools.cache
def require_for_training() -> None:
    """Return if ONNX Runtime and `onnx` are new enough for training.

    Raises:
        EnvironmentProblem: one is older than training was tested with.
    """
    outdated = too_old_for_training()
    if outdated is not None:
        wheel, oldest = outdated
        raise EnvironmentProblem(
            f"training needs {wheel.name} {oldest} or newer, and {wheel.version} is installed: "
            f"run `pip install -U {wheel.name}`; conversion works as it is"
        )


def too_old_for_training() -> tuple[Wheel, str] | None:
    """Return an installed package that is too old for training, and the version that it needs; None if none is."""
    runtime = Wheel(_last(installed_wheels()), installed_version() or "0")
    onnx = Wheel("onnx", importlib.metadata.version("onnx"))
    for wheel, oldest in ((runtime, OLDEST_FOR_TRAINING), (onnx, OLDEST_ONNX_FOR_TRAINING)):
        if _number(wheel.version) < _number(oldest):
            return wheel, oldest
    return None


def _refuse(fault: Fault | None) -> None:
    if fault is not None:
        what, remedy = fault
        raise EnvironmentProblem(f"ONNX Runtime cannot be used: {what}; {remedy}")


def _names(wheels: Sequence[Wheel]) -> str:
    return " and ".join(map(str, wheels)) or _MODULE


def _last(wheels: Sequence[Wheel]) -> str:
    """Return the wheel to keep of several: the one that can do more than that for the CPU, which comes first."""
    return wheels[-1].name if wheels else _MODULE


def _reinstall(wheels: Sequence[Wheel]) -> str:
    """Return the command that puts a wheel's files back, and leaves what other packages ask for."""
    return _REINSTALL.format(_last(wheels))


def _number(version: str) -> tuple[int, ...]:
    """Return the minor release as numbers; (0,) of what is no version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match is not None else (0,)
