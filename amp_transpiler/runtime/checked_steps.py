"""`CheckedSteps`: an executor of steps that checks the first runs of training steps."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime

from amp_transpiler.graph.roles import has_backward_pass
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.compile import CompiledStep
from amp_transpiler.runtime.executor import StepExecutor
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.scope import Scope
from amp_transpiler.runtime.step_check import StepCheck
from amp_transpiler.runtime.step_options import StepOptions

__all__ = ["CheckedSteps"]

logger = logging.getLogger(__name__)


class CheckedSteps(StepExecutor):
    """Runs steps, and checks the first runs of every session of a training step against the emulation.

    It checks the sessions that go on to run: a session that was closed and is opened again is checked again.
    """

    _shares = False  # the emulation is of one shape

    def __init__(self, place: Place, options: StepOptions, *, max_sessions: int | None = None) -> None:
        super().__init__(place, options, max_sessions=max_sessions)
        self._checks: weakref.WeakKeyDictionary[onnxruntime.InferenceSession, StepCheck] = weakref.WeakKeyDictionary()
        self._reported: weakref.WeakSet[Program] = weakref.WeakSet()

    def _outputs(
        self,
        program: Program,
        fetch: Sequence[str],
        step: CompiledStep,
        feeds: Mapping[str, np.ndarray],
        arrays: Mapping[str, np.ndarray],
        scope: Scope,
    ) -> dict[str, onnxruntime.OrtValue]:
        state = self._state(step, scope)  # in the types of the program, which a value of the scope need not have
        check = self._check_of(program, fetch, step)
        if check is None or check.is_done:
            return self._run(step, feeds, state)
        outputs = check.run(step, lambda: self._run(step, feeds, state), feeds, arrays, scope)
        if check.summary:
            logger.log(logging.DEBUG if program in self._reported else logging.INFO, "%s", check.summary)
            self._reported.add(program)
        return outputs

    def _check_of(self, program: Program, fetch: Sequence[str], step: CompiledStep) -> StepCheck | None:
        """Return the check of a compiled step; None if it is no training step."""
        if step.session is None or not program.updates:
            return None
        check = self._checks.get(step.session)
        if check is None and has_backward_pass(program.model):
            check = self._checks[step.session] = StepCheck(program, fetch, self.place, self._options)
        return check
