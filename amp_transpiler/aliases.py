"""Gives Paddle's namespace shorter paths: `amp_transpiler.nn.functional` is `amp_transpiler.paddle.nn.functional`.

An alias is the same module object under a second name, not a copy, so that classes compare equal however they were
imported. Only the import system can do that for submodules: hence a finder.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # importing importlib.abc takes 8 ms, and only the type checker needs it

__all__ = ["install_aliases"]


def install_aliases(package: str, homes: Mapping[str, str]) -> None:
    """Let `import package.ALIAS` and `import package.ALIAS.anything.below` find the module behind the alias.

    Args:
        package: the package that gets the aliases; a second call for it replaces those of the first.
        homes: alias -> the full name of the module it stands for.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "aliases_of", None) != package]
    sys.meta_path.insert(0, _AliasFinder(package, homes))


class _AliasFinder(MetaPathFinder):
    def __init__(self, package: str, homes: Mapping[str, str]) -> None:
        self.aliases_of = package
        self._homes = {f"{package}.{alias}": home for alias, home in homes.items()}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the signature is the import system's
        target: ModuleType | None = None,  # noqa: ARG002 - likewise
    ) -> importlib.machinery.ModuleSpec | None:
        for alias, home in self._homes.items():
            if fullname == alias or fullname.startswith(f"{alias}."):
                real = home + fullname.removeprefix(alias)
                return importlib.machinery.ModuleSpec(fullname, _AliasLoader(real)) if _exists(real) else None
        return None


def _exists(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


class _AliasLoader(Loader):
    """Hands out a module that is imported under its own name, with that name's specification restored."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:  # noqa: ARG002 - the import system's
        module = importlib.import_module(self._real)
        self._original_spec = module.__spec__  # the import system puts the alias's in its place
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._original_spec
