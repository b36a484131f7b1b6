"""Reads the options that a written model's metadata ask of its sessions."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from amp_transpiler.program.program import Program
from amp_transpiler.runtime.recommended_options import (
    DISABLED_KEY,
    NO_OPTIONS,
    OPTIMIZERS,
    SESSION_KEY,
    RecommendedOptions,
)

__all__ = ["session_options"]

_logger = logging.getLogger(__name__)


def session_options(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model | Program) -> RecommendedOptions:
    """Return what a model's metadata say of its sessions; no options where they say nothing.

    Names that this package does not write are left out: a file cannot have its sessions do anything else.

    Args:
        model: a file, a message, an `onnx_ir.Model` or a program.
    """
    text = _metadata(model).get(SESSION_KEY, "{}")
    try:
        entries = json.loads(text)
    except ValueError:
        entries = None
    if not isinstance(entries, dict):
        _logger.warning("metadata '%s' of the model is no JSON object, and is not used", SESSION_KEY)
        return NO_OPTIONS
    names = str(entries.get(DISABLED_KEY, "")).split(";")
    return RecommendedOptions(tuple(name for name in names if name in OPTIMIZERS))


def _metadata(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model | Program) -> Mapping[str, str]:
    if isinstance(model, onnx.ModelProto):
        return {entry.key: entry.value for entry in model.metadata_props}
    if isinstance(model, ir.Model):
        return model.metadata_props
    if isinstance(model, Program):
        return model.model.metadata_props
    from amp_transpiler.files.loading import load  # of a file

    return load(model).model.metadata_props
