"""Imports modules by name, when they are first used: a package's public names, and single modules.

Only this module imports modules of the package by name (and `aliases`, which is a part of the import system). Tools
that follow imports cannot see such an import, so tests/test_layers.py lists who asks for one, and why.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from amp_transpiler.garbage import collection_paused

__all__ = ["import_folder", "import_late", "lazy_names"]


def import_late(module: str, name: str | None = None) -> Any:
    """Return a module of this package that is found by name, or something in it.

    Args:
        module: the module's full name.
        name: what to take from it; the module itself unless given.
    """
    imported = importlib.import_module(module)
    return imported if name is None else getattr(imported, name)


def import_folder(package: str, path: Iterable[str]) -> None:
    """Import every module that lies directly in a package.

    Args:
        package: the package's full name.
        path: its `__path__`.
    """
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")


def lazy_names(
    package: str, why_not: Callable[[str], str | None] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that hands out what its `if TYPE_CHECKING:` block re-exports.

        if TYPE_CHECKING:
            from package.module import Name as Name
            from package.functions import *
        else:
            __getattr__, __dir__ = lazy_names(__name__)

    That block is the only list of public names. Type checkers and editors read it as ordinary imports; `Name as Name`
    and `*` are how they know a re-export. At run time it is read from the source, at the first use of any name.
    `__all__` is made from it too.

    Args:
        package: the package's full name.
        why_not: from a name that the package has not got to the reason; None if there is none to tell.
    """
    homes: dict[str, str] = {}  # public name -> the module to take it from

    def find(name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # Python and its tools ask every module for such names
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not homes:
            homes.update(_public_names(package))
        if name == "__all__":
            return sorted(homes)
        if name not in homes:
            reason = None if why_not is None else why_not(name)
            raise AttributeError(f"module {package!r} has no attribute {name!r}" + (f": {reason}" if reason else ""))
        home = homes[name]
        path = f"{package}.{name}" if home == package else home  # a name may be that of a module of the package
        # What an import makes, modules, functions and classes, stays.
        with contextlib.nullcontext() if path in sys.modules else collection_paused(stays=True):
            module = importlib.import_module(path)
        value = module if home == package else getattr(module, name)
        vars(sys.modules[package])[name] = value  # so that this function is not asked again
        return value

    def names() -> list[str]:
        # Only these: modules that were imported on the way are no public names.
        special = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*special, *find("__all__")})

    return find, names


def _public_names(package: str) -> dict[str, str]:
    """Return public name -> home, from the imports of a package's `if TYPE_CHECKING:` block."""
    import ast  # here, because it would double the time that importing amp_transpiler takes

    loader: Any = getattr(sys.modules[package].__spec__, "loader", None)
    source = loader.get_source(package) if hasattr(loader, "get_source") else None
    if source is None:
        raise ImportError(f"{package}: its public names are read from its source, which is missing: install .py files")
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    checked = (node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
    homes: dict[str, str] = {}
    for line in (line for block in checked for line in block.body if isinstance(line, ast.ImportFrom)):
        home = str(line.module)
        for alias in line.names:
            if alias.name == "*":
                homes |= dict.fromkeys(importlib.import_module(home).__all__, home)
            elif alias.asname == alias.name:
                homes[alias.name] = home
    return homes
