"""A user's own measure of how far a result is from float32: `--metric FILE.py:FUNCTION`."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

from amp_transpiler.errors import InputError, OptionError, innermost_text

__all__ = ["Metric", "MetricFunction", "load_metric"]

Outputs: TypeAlias = Sequence[Mapping[str, Any]]
MetricFunction: TypeAlias = Callable[[Outputs, Outputs], float]
"""Takes the outputs of float32 and those of the result, one dict (output -> array) a sample; the less it returns, the
better."""


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A measure and its limit.

    Attributes:
        name: as messages call it.
        function: the measure.
        bound: the largest value that is accepted.
    """

    name: str
    function: MetricFunction
    bound: float

    def of(self, exact: Outputs, low: Outputs) -> float:
        """Return the measure of a result; infinite if it is NaN.

        Args:
            exact: outputs of the float32 program, one dict a sample.
            low: those of the result, with the same names and shapes.

        Raises:
            InputError: the function raises an exception, or returns no number.
        """
        try:
            measure = float(self.function(exact, low))
        except Exception as error:  # the user's code may raise anything
            raise InputError(
                f"metric {self.name}: {type(error).__name__}: {innermost_text(error)}; it takes the outputs of float32 "
                "and of the result, a list with a dict (output -> array) for each sample, and returns a number"
            ) from error
        return math.inf if math.isnan(measure) else measure


def load_metric(given: str | MetricFunction | None, bound: float | None) -> Metric | None:
    """Return the metric of the options `metric` and `metric_bound`; None if there is none.

    Args:
        given: `FILE.py:FUNCTION`, or a function.
        bound: the largest value that is accepted.

    Raises:
        OptionError: one of the two is missing, or the text names no function.
        InputError: the file cannot be run.
    """
    if given is None and bound is None:
        return None
    if given is None or bound is None:
        raise OptionError("metric and metric_bound go together: give the function, and the largest value to accept")
    if isinstance(bound, bool) or not math.isfinite(bound):
        raise OptionError(f"metric_bound is {bound!r}: expected a finite number, the largest value to accept")
    if callable(given):
        return Metric(getattr(given, "__name__", "metric"), given, float(bound))
    path, colon, name = str(given).rpartition(":")
    if not (colon and path and name.isidentifier()):
        raise OptionError(f"metric is {given!r}: expected FILE.py:FUNCTION, such as accuracy.py:top1_loss")
    function = getattr(_module(pathlib.Path(path)), name, None)
    if not callable(function):
        raise OptionError(f"metric is {given!r}: {path} has no function {name!r}")
    return Metric(str(given), function, float(bound))


def _module(path: pathlib.Path) -> ModuleType:
    """Run a file as a module of its own; it can import what lies in the same folder."""
    if not path.is_file():
        raise InputError(f"metric: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"amp_transpiler_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise OptionError(f"metric: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent.absolute())
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # likewise
        raise InputError(f"metric: {path} cannot be run: {type(error).__name__}: {innermost_text(error)}") from error
    finally:
        sys.path.remove(folder)
    return module
