"""`DrivenValues` writes what Python computes before each run, such as the rate of a schedule, to the scope."""

from __future__ import annotations

import numpy as np
import onnxruntime

from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.scope import Scope
from amp_transpiler.runtime.values import to_ort

__all__ = ["DrivenValues"]


class DrivenValues:
    """Writes the persistable values of a program that have a driver.

    Args:
        place: where the program runs.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._written: dict[str, tuple[float, onnxruntime.OrtValue]] = {}

    def write(self, program: Program, scope: Scope) -> None:
        """Write what has changed since the last call; values that the startup program did not make are left out."""
        for name, persistable in program.persistables.items():
            if persistable.driver is None or name not in scope:
                continue
            number = float(persistable.driver())
            before, value = self._written.get(name, (None, None))
            # The same object has the same number: nothing but this writes to it, and no step updates it.
            if number != before or scope.held(name) is not value:
                value = self._place.hold(to_ort(np.array(number, np.float32)))
                scope.hold(name, value)
                self._written[name] = number, value
