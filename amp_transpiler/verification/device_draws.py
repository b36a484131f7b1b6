"""Runs a converted program on an emulated device: its kernels' arithmetic, in several draws of their noise."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import RemoteSession, open_program
from amp_transpiler.graph.tensors import tensor_bytes
from amp_transpiler.passes.device_arithmetic.noise import DRAW, TF32
from amp_transpiler.passes.device_arithmetic.simulate import Simulated, simulated
from amp_transpiler.passes.emulate import emulate_in_place
from amp_transpiler.precision.limits import Limits
from amp_transpiler.program.program import Program
from amp_transpiler.report import OutputComparison
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.targets.arithmetic import CUDA_TABLE, DeviceArithmetic
from amp_transpiler.verification.accuracy import CannotCompare, Reference, named_outputs
from amp_transpiler.verification.output_kind import OutputKind
from amp_transpiler.verification.placed_kinds import read_outputs

__all__ = [
    "DRAWS",
    "DeviceRuns",
    "Rows",
    "error_of",
    "open_device_runs",
    "outputs_of_draw",
    "worst_rows",
]

DRAWS = 8
"""How many draws a verdict rests on, of a program that is not large; the first has no noise."""

_LEAST_TURNS = 2
# Bytes of weights, and of the results of a run: each run takes long, and errors are averages over many numbers.
_LARGE, _LARGE_RESULTS = 1 << 25, 1 << 26
_FEW_DRAWS = 4  # of a program with more

Rows: TypeAlias = dict[str, OutputComparison]


class DeviceRuns:
    """A converted program on an emulated device. A draw is a run of one session, whatever its number.

    Args:
        session: the rewritten program, emulated.
        simulation: how it was rewritten; its program is emulated.
        reference: the samples, and what float32 makes of them.
        limits: by which close labels are excused.
        kinds: how outputs are to be read.
        few: few draws are enough, since the sums, which make most of the error, are no noise.
    """

    def __init__(
        self,
        session: RemoteSession,
        simulation: Simulated,
        reference: Reference,
        limits: Limits,
        kinds: Mapping[str, OutputKind],
        *,
        few: bool = False,
    ) -> None:
        self.simulation, self.reference, self._few = simulation, reference, few
        self._session, self._limits, self._kinds = session, limits, kinds

    @property
    def turns(self) -> int:
        """How often all samples are to run, for as many runs as there are draws: twice at least, to show a spread."""
        return max(_LEAST_TURNS, math.ceil(self.draws / len(self.reference.samples)))

    @property
    def draws(self) -> int:
        """How many draws there are."""
        if self._few:
            return _FEW_DRAWS
        weights, results = sum(tensor_bytes(self.simulation.program.model)), self.simulation.result_bytes
        return DRAWS if weights <= _LARGE and results <= _LARGE_RESULTS else _FEW_DRAWS

    @staticmethod
    def draw(turn: int, index: int) -> int:
        """Return the draw that a sample runs with in a turn: the first sample has no noise in turn 0."""
        return (turn + index) % DRAWS

    def is_tf32(self, turn: int) -> bool:
        """Whether float32 products are in TF32 in a turn: in every other one, where there are such products."""
        return self.simulation.has_tf32 and turn % 2 == 1

    def compared(self, turn: int, keep: Callable[[dict[str, Any]], None] | None = None) -> Rows:
        """Run all samples, each with another draw, and compare the outputs.

        Args:
            turn: from 0, in which the first sample runs without noise.
            keep: is given the outputs of each sample.

        Raises:
            CannotCompare: the program does not run.
        """
        reference, session = self.reference, self._session
        samples = reference.feeds(info.name for info in session.inputs)

        def outputs() -> Iterator[dict[str, Any]]:
            for index, sample in enumerate(samples):
                results = outputs_of_draw(session, sample, self.draw(turn, index), tf32=self.is_tf32(turn))
                if keep is not None:
                    keep(results)
                yield results

        try:
            return reference.compare_results(outputs(), self._limits, self._kinds)
        except RUN_ERRORS as error:
            raise CannotCompare(f"the emulated program does not run: {error_text(error)}") from error


@contextlib.contextmanager
def open_device_runs(
    reference: Reference, low: Program, arithmetic: DeviceArithmetic, limits: Limits
) -> Iterator[DeviceRuns]:
    """Open a converted program on an emulated device.

    Args:
        reference: the samples, and what float32 makes of them.
        low: the converted program; not changed.
        arithmetic: the device's.
        limits: by which close labels are excused.

    Raises:
        CannotCompare: the program does not open.
    """
    sample = reference.samples[0]
    shapes = {name: np.shape(value) for name, value in sample.items() if isinstance(value, np.ndarray)}
    simulation = simulated(low, arithmetic, shapes, draws=True)
    emulate_in_place(simulation.program)
    try:
        with open_program(simulation.program, emulate=False, fuse=False) as session:
            kinds, few = read_outputs(low.model, sample), arithmetic.table != CUDA_TABLE
            yield DeviceRuns(session, simulation, reference, limits, kinds, few=few)
    except RUN_ERRORS as error:
        raise CannotCompare(f"the emulated program does not run: {error_text(error)}") from error


def outputs_of_draw(session: RemoteSession, sample: Mapping[str, Any], draw: int, *, tf32: bool) -> dict[str, Any]:
    """Run a rewritten program once.

    Args:
        session: of the program.
        sample: its inputs, without those of the draw.
        draw: a number; 0 is without noise.
        tf32: whether float32 products are in TF32.

    Returns:
        Name -> output.
    """
    feeds = {**sample, DRAW: np.array(draw, np.float32), TF32: np.array(tf32, np.float32)}
    return named_outputs(session, check_feeds(feeds, session.inputs, lenient=True))


def worst_rows(several: Sequence[Rows]) -> Rows:
    """Return, for each output, the comparison with the largest error of several."""
    return {name: max((rows[name] for rows in several if name in rows), key=_error) for name in several[0]}


def error_of(row: OutputComparison) -> float:
    """Return the relative error of an output; infinite for another structure, and for values that are not finite."""
    return math.inf if row.nonfinite or row.structure_differs or math.isnan(row.relative) else row.relative


def _error(row: OutputComparison) -> tuple[float, float]:
    return error_of(row), row.mismatch
