"""Starts the process that will check what is converted, before it is needed."""

from __future__ import annotations

from amp_transpiler.child_process.process import start_ahead
from amp_transpiler.cli.options import Options

__all__ = ["start_checker"]


def start_checker(options: Options) -> None:
    """Let the process that checks import ONNX Runtime while this one imports what it converts with."""
    if options.conversion.verify and options.copied_by is None:
        start_ahead()
