"""The exceptions this package raises on purpose.

::

    AmpError
    ├── InputError (ValueError)      the input, the options or the output place are wrong: exit status 2
    │   ├── ModelError               the model is unreadable, or was invalid before anything was changed
    │   ├── OptionError              an unknown level, dtype, operator, pattern that matches nothing, ...
    │   └── OutputError              the output cannot be written where it was asked for
    ├── EnvironmentProblem           the installation is broken (two ONNX Runtime wheels, CUDA libraries missing)
    ├── VerificationError            a rewritten program is not well typed: a bug here; nothing is written
    └── CheckFailed                  the result failed its check or its tolerance: exit status 1; carries the report
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AmpError",
    "CheckFailed",
    "EnvironmentProblem",
    "InputError",
    "ModelError",
    "OptionError",
    "OutputError",
    "VerificationError",
]


class AmpError(Exception):
    """Base of every exception raised on purpose by this package."""


class InputError(AmpError, ValueError):
    """The model, an option or the output place is wrong; the message says which, and the remedy."""


class ModelError(InputError):
    """The model is not readable as ONNX, or was invalid before this package touched it."""


class OptionError(InputError):
    """An option or argument has an unknown value: a level, dtype, operator, pattern, ..."""


class OutputError(InputError):
    """The result cannot be written where it was asked for; nothing was written."""


class EnvironmentProblem(AmpError):
    """The installation is broken; the message names the package to install or remove."""


class VerificationError(AmpError):
    """A program is not well typed after a rewriting pass. Nothing was written."""


class CheckFailed(AmpError):
    """The converted program failed a check or the tolerance. Nothing was written.

    Attributes:
        report: the `amp_transpiler.Report` of the conversion, with `outputs`, the error of each output. Its class lies
            in a higher layer than the exceptions, so it cannot be named here.
    """

    def __init__(self, message: str, report: Any) -> None:
        super().__init__(message)
        self.report = report
