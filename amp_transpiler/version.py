"""Tells the version of the package, where every layer may read it."""

import importlib.metadata

__all__ = ["__version__"]


def _installed() -> str:
    """Return the version of the installed distribution; an editable one keeps that of its installation."""
    try:
        return importlib.metadata.version("amp-transpiler")
    except importlib.metadata.PackageNotFoundError:  # its folder was put on the path
        return "0.0.0.dev0"


__version__ = _installed()
