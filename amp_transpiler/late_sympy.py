"""Loads onnx_ir without sympy, until a computation with symbolic sizes.

`onnx_ir._core` imports sympy at its top, only for arithmetic of symbolic dimensions (`SymbolicDim("n") + 1`), which no
conversion needs. Importing sympy takes as long as importing numpy, onnx, ONNX Runtime and onnx_ir together. So that one
module gets a stand-in for the name `sympy`, which imports sympy when something is asked of it.

Only the names of that module are touched. `sys.modules["sympy"]` is never anything but sympy, so `import sympy`
anywhere else does what it always does, and Python's own locks guard the late import. Where onnx_ir was imported
before this package, nothing is changed. An onnx_ir that is built otherwise works too: what it asks of sympy while it
is imported is answered by sympy.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # importing importlib.abc takes 8 ms, and only the type checker needs it

__all__ = ["import_sympy_late"]

_READER = "onnx_ir._core"
_SYMPY = "sympy"
_PACKAGE, _PARSER = "onnx_ir", "_symbolic_shapes"  # the parser of expressions reads names of sympy while it is imported


def import_sympy_late() -> None:
    """See to it that importing onnx_ir does not import sympy, if neither is imported yet."""
    if _READER not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds `onnx_ir._core` as the other finders do, to have it executed with stand-ins; nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _READER or _SYMPY in sys.modules:
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
        specs = (finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Executes a module whose import statements ask `_import`."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]  # any loader's

    def exec_module(self, module: ModuleType) -> None:
        # Only the stand-ins remain of this: tools that read a module's source ask its own loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        # An import statement calls the `__import__` of the builtins that its module names.
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        self._loader.exec_module(module)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002  the names are those of the builtin
    locals: Mapping[str, object] | None = None,  # noqa: A002  likewise
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as `__import__` does, but for sympy and its reader in onnx_ir: for these return stand-ins."""
    if level == 0 and name == _SYMPY and not fromlist:
        return _LateModule(_SYMPY)
    if level == 0 and name == _PACKAGE and fromlist and _PARSER in fromlist:
        others = tuple(entry for entry in fromlist if entry != _PARSER)
        return _WithLateParser(builtins.__import__(name, globals, locals, others or ("__name__",), level))
    return builtins.__import__(name, globals, locals, fromlist or (), level)


class _LateModule(ModuleType):
    """Stands for a module, which is imported when something is asked of it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


class _WithLateParser(ModuleType):
    """Stands for onnx_ir in `from onnx_ir import ..., _symbolic_shapes`."""

    def __init__(self, package: ModuleType) -> None:
        super().__init__(package.__name__)
        self._package = package

    def __getattr__(self, name: str) -> Any:
        return _LateModule(f"{_PACKAGE}.{_PARSER}") if name == _PARSER else getattr(self._package, name)
