"""Why a node has no gradient: as it is used, or until its sizes are known."""

from __future__ import annotations

from amp_transpiler.errors import ModelError

__all__ = ["NotDifferentiable", "SizesUnknown"]


class NotDifferentiable(Exception):
    """Raised by a rule when a node has no gradient as it is used. The driver adds which node it is."""


class SizesUnknown(NotDifferentiable, ModelError):
    """Raised where a rule needs sizes that are free. Once inputs are fed they are known; see `autodiff.deferred`."""
