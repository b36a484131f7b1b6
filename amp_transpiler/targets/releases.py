"""The minor releases of ONNX Runtime: kernels, schema versions, newest opset and IR version. See `data/README.md`."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.targets.kernel_table import KernelTable, release_number, rows_of
from amp_transpiler.wheels import installed_version

__all__ = [
    "Choice",
    "Release",
    "choose_release",
    "installed_version",
    "known_releases",
    "load_release",
    "newest_release",
]

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.\S{0,40})?")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Release:
    """One minor release.

    Attributes:
        version: as users write it, such as `1.20`.
        newest_opset: the highest version of ONNX's own domain that it reads.
        newest_ir: the highest IR version that it reads.
    """

    version: str
    newest_opset: int
    newest_ir: int
    _schemas: Mapping[str, str]
    _kernels: Mapping[str, KernelTable]

    def kernels(self, provider: str) -> KernelTable:
        """Return the kernels of `cuda`, `cpu` or `webgpu`."""
        return _webgpu_kernels(self.version) if provider == "webgpu" else self._kernels[provider]

    def schema_version(self, domain: str, op_type: str, opset: int) -> int | None:
        """Return the version of the schema in force for an operator in a model that imports `opset` of its domain.

        It is that of the schemas which the release bundles, which is not always that of the installed `onnx`. The
        answer is None for an operator that the release does not know, or that is deprecated at that opset.
        """
        versions = _versions(self, domain, op_type)
        newest = max((version for version in versions if version <= opset), default=None)
        return None if newest is None or versions[newest] else newest

    def schema_versions(self, domain: str, op_type: str) -> tuple[int, ...]:
        """Return the opsets at which the operator's schema changed, oldest first; empty if unknown."""
        return tuple(sorted(_versions(self, domain, op_type)))


@functools.lru_cache(maxsize=4096)
def _versions(release: Release, domain: str, op_type: str) -> Mapping[int, bool]:
    """Version -> whether it is deprecated, of an operator's schemas."""
    text = release._schemas.get(f"{domain or 'ai.onnx'}::{op_type}", "")  # noqa: SLF001  cached beside the record
    return {int(row.rstrip("x")): row.endswith("x") for row in rows_of(text, "|", release.version)}


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The release that decides.

    Attributes:
        release: the release.
        note: why it is not the one asked for or installed; empty where it is.
    """

    release: Release
    note: str = ""


@functools.cache
def choose_release(asked: str | None) -> Choice:
    """Return the release that a user asks for: a patch version such as 1.20.1 means its minor release.

    Args:
        asked: a version; None for the installed ONNX Runtime, or without one the newest release known here.

    Raises:
        OptionError: it is no version, or one without a table that is not newer than all.
    """
    names = known_releases()
    installed = installed_version() if asked is None else None
    version = asked if asked is not None else installed or names[-1]
    match = _VERSION.fullmatch(version)
    name = f"{match[1]}.{match[2]}" if match is not None else None
    if name in names:
        return Choice(load_release(str(name)))
    if name is not None and release_number(name) > release_number(names[-1]):
        note = f"ONNX Runtime {name} is newer than the kernel tables: those of {names[-1]} decide"
        return Choice(load_release(names[-1]), note)
    if asked is None:
        note = f"there is no kernel table for the installed ONNX Runtime {installed}: that of {names[-1]} decides"
        return Choice(load_release(names[-1]), note)
    raise OptionError(f"no kernel table for ONNX Runtime {asked!r}: expected one of {', '.join(names)}")


def newest_release(most: str) -> str:
    """Return the installed release, or `most` where that is older or nothing is installed.

    Args:
        most: a release that has a table.
    """
    installed = installed_version()
    match = None if installed is None else _VERSION.fullmatch(installed)
    name = most if match is None else f"{match[1]}.{match[2]}"
    return min(name, most, key=release_number) if name in known_releases() else most


@functools.cache
def _tables(name: str = "releases") -> Mapping[str, Any]:
    import importlib.resources
    import json

    data = importlib.resources.files(__package__).joinpath("data", f"{name}.json")
    tables: Mapping[str, Any] = json.loads(data.read_text(encoding="utf-8"))
    return tables


@functools.cache
def _webgpu_kernels(release: str) -> KernelTable:
    """Return the kernels of the WebGPU provider: those of the one release that was asked, whatever the release."""
    tables = _tables("webgpu")
    return KernelTable(tables["kernels"], tables["types"], release)


def known_releases() -> tuple[str, ...]:
    """Return the releases that have a table, oldest first."""
    return tuple(_tables()["releases"])


@functools.cache
def load_release(version: str) -> Release:
    """Return the release `version`, one of `known_releases()`."""
    tables = _tables()
    facts = tables["releases"][version]
    kernels = {name: KernelTable(tables[name], tables["types"], version) for name in ("cuda", "cpu")}
    return Release(version, facts["opset"], facts["ir"], tables["schemas"], kernels)
