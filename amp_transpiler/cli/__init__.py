"""The command `amp-transpile`: options in, report out."""

from amp_transpiler.cli.command import main

__all__ = ["main"]
