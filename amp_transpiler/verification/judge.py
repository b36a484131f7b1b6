"""Judges one conversion against limits: its outputs emulated, rounded once a node and as a device's kernels round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from amp_transpiler.ops.names import operator_name
from amp_transpiler.precision.limits import Limits
from amp_transpiler.program.program import Program
from amp_transpiler.report import DeviceDraws, OutputComparison
from amp_transpiler.targets.arithmetic import CUDA_TABLE, DeviceArithmetic
from amp_transpiler.verification.accuracy import Emulated, Reference, open_emulated
from amp_transpiler.verification.amplifier import amplifier_of
from amp_transpiler.verification.device_draws import DeviceRuns, Rows, error_of, open_device_runs, worst_rows
from amp_transpiler.verification.disk_arrays import Spill
from amp_transpiler.verification.limit_excess import excess_of_metric, excesses
from amp_transpiler.verification.user_metric import Metric

__all__ = ["Compared", "Judge", "Judged"]

_DECIDING_TURN = 2  # with noise, and exact float32 products; else the first one
_OF_SOURCE = 2.0  # times the error of the source itself in TF32, which no conversion can mend
_MOSTLY = 0.75  # of what is allowed: where the source itself takes less in TF32, a conversion can keep the limit

Compared: TypeAlias = "tuple[Rows, float | None]"
"""The comparison of every output, and the user's metric; None without one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """The outputs of a conversion, judged.

    Attributes:
        outputs: the comparison of every output; the worst one where several draws ran.
        metric: the user's measure of it, the worst one; None without one.
        excesses: the error of every output over the one that is allowed there.
        excess: the largest of them, and of the metric.
        draws: the record of all draws; None where they did not all run.
        confirmed: nothing more would be run to judge it.
        failing_turn: the turn that is most beyond the limits, once all have run; None if none is.
        by_default: output -> its relative error in ONNX Runtime's default session, which is among those judged; empty
            where that did not run.
    """

    outputs: Rows
    metric: float | None
    excesses: Mapping[str, float]
    excess: float
    draws: DeviceDraws | None = None
    confirmed: bool = False
    failing_turn: int | None = None
    by_default: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Judge:
    """Judges conversions of one program.

    Attributes:
        reference: what to compare with.
        limits: what is allowed.
        metric: the user's own measure, or None.
        arithmetic: the device's; None to round each low result once.
        in_tf32: returns the source's own outputs, compared, with its products in TF32; None where that is not known.
    """

    reference: Reference
    limits: Limits
    metric: Metric | None
    arithmetic: DeviceArithmetic | None
    in_tf32: Callable[[], Compared | None] | None = None

    def judged(
        self,
        program: Program,
        *,
        confirm: bool = False,
        certain: bool = False,
        deciding: int | None = None,
        plain: Compared | None = None,
    ) -> Judged:
        """Run a converted program emulated, and judge its outputs.

        Args:
            program: the program; not changed.
            confirm: whether all draws run, if the first keeps the limits.
            certain: all draws run in any case.
            deciding: the turn that runs first, such as one that another conversion failed in.
            plain: what the program came to with each low result rounded once, where that has run already.

        Raises:
            CannotCompare: the emulated program does not run.
            InputError: the user's metric fails.
        """
        if self.arithmetic is None:
            with open_emulated(program) as emulated:
                return self.rounded_once(emulated)
        with open_device_runs(self.reference, program, self.arithmetic, self.limits) as runs:
            if deciding is None:
                deciding = _DECIDING_TURN if runs.turns > _DECIDING_TURN else 0
            first_turn = self.turn(runs, deciding)
            first = self._judge([first_turn])
            if not certain and not (confirm and first.excess <= 1.0):
                return first
            turns = {turn: first_turn if turn == deciding else self.turn(runs, turn) for turn in range(runs.turns)}
        if plain is None:
            with open_emulated(program) as emulated:
                plain = self._plain(emulated)
        shares = self._shares_of_source([compared for turn, compared in turns.items() if runs.is_tf32(turn)])
        if shares is not None:
            turns = {turn: compared for turn, compared in turns.items() if not runs.is_tf32(turn)}
        draws = self._record(program, runs, {turn: rows for turn, (rows, _) in turns.items()}, plain[0])
        if shares is not None:
            draws = dataclasses.replace(draws, tf32=shares[0], source_tf32=shares[1])
        judged = self._judge([plain, *turns.values()])
        return dataclasses.replace(judged, draws=draws, confirmed=True, failing_turn=self._failing_turn(runs, turns))

    def rounded_once(self, emulated: Emulated) -> Judged:
        """Judge a converted program with each low result rounded once, whatever the device's arithmetic.

        Raises:
            CannotCompare: the emulated program does not run.
            InputError: the user's metric fails.
        """
        return dataclasses.replace(self._judge([self._plain(emulated)]), confirmed=True)

    def with_session(self, judged: Judged, rows: Rows, outputs: list[dict[str, Any]]) -> Judged:
        """Return a judgement of which the run in a session of ONNX Runtime is a part, too.

        Args:
            judged: that of the emulation.
            rows: the outputs of the session, compared.
            outputs: the same as arrays, one dict per sample, for the metric.
        """
        combined = self._judge([(judged.outputs, judged.metric), (rows, self._metric_of(outputs))])
        return dataclasses.replace(
            judged,
            outputs=combined.outputs,
            metric=combined.metric,
            excesses=combined.excesses,
            excess=combined.excess,
            by_default={name: error_of(row) for name, row in rows.items()},
        )

    def _failing_turn(self, runs: DeviceRuns, turns: Mapping[int, Compared]) -> int | None:
        """Return the turn, of those whose float32 is exact, that is most beyond the limits; None if none is."""
        excess = {turn: self._judge([turns[turn]]).excess for turn in turns if not runs.is_tf32(turn)}
        worst = max(excess, key=lambda turn: excess[turn])
        return worst if excess[worst] > 1.0 else None

    def _shares_of_source(self, tf32: Sequence[Compared]) -> tuple[dict[str, float], dict[str, float]] | None:
        """Return the errors in TF32 of the outputs, and of the source's, if only TF32 is to blame for what is beyond.

        A device computes float32 products in TF32 unless a session sets it otherwise. Where just that takes the source
        itself about as far from float32, limits are held against runs whose float32 is exact, and both are said.

        Returns:
            None where the limits hold in TF32, too, or where the conversion is to blame.
        """
        if not tf32 or self.in_tf32 is None or (judged := self._judge(tf32)).excess <= 1.0:
            return None
        source = self.in_tf32()
        if source is None:
            return None
        rows, metric = source
        if self._judge([source]).excess <= _MOSTLY:
            return None
        errors = {name: error_of(row) for name, row in judged.outputs.items()}
        of_source = {name: error_of(rows[name]) for name in errors if name in rows}
        pairs = [(errors[name], of_source.get(name, 0.0)) for name, excess in judged.excesses.items() if excess > 1.0]
        if judged.metric is not None and metric is not None:
            pairs.append((judged.metric, metric))
        return (errors, of_source) if all(error <= _OF_SOURCE * least for error, least in pairs) else None

    def _plain(self, emulated: Emulated) -> Compared:
        results, keep = self._result_list()
        rows = self.reference.compare_emulated(emulated, self.limits, keep)
        return rows, self._metric_of(results)

    def turn(self, runs: DeviceRuns, turn: int) -> Compared:
        """Return the outputs of a turn, compared with float32."""
        results, keep = self._result_list()
        rows = runs.compared(turn, keep)
        return rows, self._metric_of(results)

    def _result_list(self) -> tuple[list[dict[str, Any]], Callable[[dict[str, Any]], None] | None]:
        """Return a list of outputs, and what puts them there; None where no metric reads them."""
        results: list[dict[str, Any]] = []
        if self.metric is None:
            return results, None
        spill = Spill()
        return results, lambda outputs: results.append(spill.kept(outputs))

    def _metric_of(self, results: list[dict[str, Any]]) -> float | None:
        return None if self.metric is None else self.metric.of(self.reference.outputs, results)

    def _judge(self, compared: Sequence[Compared]) -> Judged:
        """Judge the worst of several comparisons."""
        rows = worst_rows([rows for rows, _ in compared])
        by_output = excesses(rows.values(), self.reference, self.limits)
        excess, values = max(by_output.values(), default=0.0), [value for _, value in compared if value is not None]
        metric = max(values, default=None)
        if self.metric is not None and metric is not None:
            excess = max(excess, excess_of_metric(metric, self.metric))
        return Judged(rows, metric, by_output, excess)

    def _record(
        self, program: Program, runs: DeviceRuns, turns: Mapping[int, Rows], plain: Mapping[str, OutputComparison]
    ) -> DeviceDraws:
        """Record what all draws came to, and which node is to blame where they are far apart."""
        assert self.arithmetic is not None  # there are draws of no other
        errors = {name: tuple(error_of(rows[name]) for rows in turns.values()) for name in next(iter(turns.values()))}
        draws = DeviceDraws(
            self.arithmetic.wanted_device,
            self.arithmetic.wanted_release,
            str(self.arithmetic),
            runs.draws,
            errors,
            {name: error_of(row) for name, row in plain.items()},
            runs.simulation.unmeasured,
            adds_in_low=self.arithmetic.table != CUDA_TABLE,
        )
        judged = [name for name in errors if name not in self.reference.unjudged()]
        shaky = max((name for name in judged if draws.is_ill_conditioned(name)), key=draws.spread, default=None)
        if shaky is None:
            return draws
        worst = max(turns, key=lambda turn: error_of(turns[turn][shaky]))
        node = amplifier_of(program, runs, shaky, worst)
        if node is None:
            return draws
        return dataclasses.replace(draws, amplifier=str(node.name), amplifier_op=operator_name(node))
