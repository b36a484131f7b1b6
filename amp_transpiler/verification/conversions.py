"""The conversions of one program: each made as a policy says, run emulated, and compared with float32."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from amp_transpiler.conversion import Conversion, Trials
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.limits import Limits
from amp_transpiler.precision.policy import Objective, Policy, Settled
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.program.program import Program
from amp_transpiler.report import DeviceDraws, FrontierPoint, OutputComparison
from amp_transpiler.targets.arithmetic import DeviceArithmetic
from amp_transpiler.targets.measured import arithmetic_for
from amp_transpiler.verification.accuracy import CannotCompare, Reference
from amp_transpiler.verification.calibrate import NamedSample
from amp_transpiler.verification.default_session import DefaultSession
from amp_transpiler.verification.device_draws import error_of, open_device_runs
from amp_transpiler.verification.judge import Compared, Judge, Judged
from amp_transpiler.verification.randomness import random_upstream
from amp_transpiler.verification.signal_levels import AS_GIVEN, Gains, JudgedAtGains
from amp_transpiler.verification.user_metric import Metric

__all__ = ["Conversions", "Found", "Measured", "judging_arithmetic"]

logger = logging.getLogger(__name__)

Phase: TypeAlias = Callable[[str], contextlib.AbstractContextManager[None]]

_TURN_IN_TF32 = 1


def judging_arithmetic(prepared: Program, policy: Policy) -> DeviceArithmetic | None:
    """Return the device's arithmetic by which conversions of a program are judged.

    Args:
        prepared: the program to convert.
        policy: how to decide.

    Returns:
        None for a training step, for a program with random operators, which draw other numbers in each run of a
        session (a draw of the noise is such a run), where float32 is wanted, and for a target without CUDA's provider.
    """
    if prepared.step is not None or policy.low is FLOAT32 or random_upstream(prepared.model):
        return None
    return arithmetic_for(policy.target, policy.device)


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A conversion that was compared.

    Attributes:
        program: the converted program.
        conversion: the record of its conversion.
        outputs: the comparison of every output.
        metric: the user's measure of it; None without one.
        excesses: the error of every output over the one that is allowed there.
        excess: the largest of them, and of the metric; at most 1 if every limit is kept.
        settled: the decisions that were made before it, by a search.
        objective: what it aims at within them; see `Policy`.
        limits: those that it is judged by.
        is_float32: it has no low node, and no low inputs or outputs.
        draws: what a device may make of it; None until all draws have run, or where no device's arithmetic is emulated.
        confirmed: whether `excess` is that of the worst draw.
        failing_turn: the turn that is most beyond the limits, once all have run; None if none is.
        worst: the level of the given signals at which it is, in words; see `signal_levels.py`.
        gains: level -> the largest error of an output there; empty where no other level ran.
        by_default: output -> its relative error in ONNX Runtime's default session; empty where that did not run.
    """

    program: Program
    conversion: Conversion
    outputs: dict[str, OutputComparison]
    metric: float | None
    excesses: Mapping[str, float]
    excess: float
    settled: Mapping[str, Settled]
    objective: Objective
    limits: Limits
    is_float32: bool = False
    draws: DeviceDraws | None = None
    confirmed: bool = False
    failing_turn: int | None = None
    worst: str = AS_GIVEN
    gains: Mapping[str, float] = dataclasses.field(default_factory=dict)
    by_default: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Attributes:
        best: the cheapest conversion that keeps the limits; without one, that with the smallest error.
        evidence: what runs say about the program; None if nothing was asked of them.
        repaired: nodes that were low at first and are float32 for the limits.
        curve: points of the curve between error and cost; empty if it was not worked out.
        searched: several conversions were compared for it, now or before.
        shown: it went by the ranges that the data show; see `Policy.numerics`.
        curve_with: returns the curve with another conversion as the chosen one; None without a curve.
    """

    best: Measured
    evidence: Evidence | None = None
    repaired: tuple[str, ...] = ()
    curve: tuple[FrontierPoint, ...] = ()
    searched: bool = False
    shown: bool = False
    curve_with: Callable[[Measured], Sequence[FrontierPoint]] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Conversions:
    """The conversions of one program, each compared with float32.

    Attributes:
        prepared: the program; it is not changed.
        policy: how to decide, and the limits.
        ranges: a look-up of constants.
        reference: what to compare with.
        metric: the user's own measure, or None.
        phase: times a block.
        arithmetic: the device's, by which they are judged; None to round each low result once.
        gains: the samples at other levels, which a conversion is judged on before it counts; None for none.
        by_default: ONNX Runtime's default session, in which what holds emulated must hold, too; None not to run it.
        source_in_tf32: the source's own outputs with its products in TF32, once they are asked for.
        trials: conversions that were made to compare their times; None if there are none.
        unfused: what is written where all stays float32; None for `prepared`.
    """

    prepared: Program
    policy: Policy
    ranges: RangeFaults
    reference: Reference
    metric: Metric | None
    phase: Phase
    arithmetic: DeviceArithmetic | None = None
    gains: Gains | None = None
    by_default: DefaultSession | None = None
    source_in_tf32: list[Compared | None] = dataclasses.field(default_factory=list, repr=False)
    trials: Trials | None = None
    unfused: Program | None = None

    def measured(self, policy: Policy, *, confirm: bool = False, deciding: int | None = None) -> Measured:
        """Convert a copy as a policy says, run it emulated, and compare it.

        Where a device's arithmetic is emulated, one draw of its noise decides.

        Args:
            policy: how to decide.
            confirm: whether the other draws run, too, if the first keeps the limits.
            deciding: the turn that decides, such as one that another conversion failed in.

        Raises:
            CannotCompare: the emulated program does not run.
            InputError: the user's metric fails.
        """
        trials = Trials(self.prepared, self.ranges, self.unfused) if self.trials is None else self.trials
        with self.phase("convert"):
            program, conversion = trials.taken(policy)
        decisions = conversion.assignment.decisions.values()
        is_float32 = not policy.low_io and not any(decision.precision == "low" for decision in decisions)
        limits = policy.limits.of_float32() if is_float32 else policy.limits
        at_gains = self._judged(program, limits, is_float32=is_float32, confirm=confirm, deciding=deciding)
        judged = at_gains.judged
        return Measured(
            program,
            conversion,
            judged.outputs,
            judged.metric,
            judged.excesses,
            judged.excess,
            policy.settled,
            policy.objective,
            limits,
            is_float32,
            judged.draws,
            judged.confirmed,
            judged.failing_turn,
            at_gains.worst,
            at_gains.errors,
            judged.by_default,
        )

    def confirmed(self, measured: Measured) -> Measured:
        """Return a conversion judged by its worst draw.

        Raises:
            CannotCompare: the emulated program does not run.
            InputError: the user's metric fails.
        """
        if measured.confirmed:
            return measured
        limits, is_float32 = measured.limits, measured.is_float32
        at_gains = self._judged(measured.program, limits, is_float32=is_float32, confirm=True, certain=True)
        judged = at_gains.judged
        return dataclasses.replace(
            measured,
            outputs=judged.outputs,
            metric=judged.metric,
            excesses=judged.excesses,
            excess=judged.excess,
            draws=judged.draws,
            confirmed=True,
            failing_turn=judged.failing_turn,
            worst=at_gains.worst,
            gains=at_gains.errors,
            by_default=judged.by_default,
        )

    def _judged(
        self,
        program: Program,
        limits: Limits,
        *,
        is_float32: bool,
        confirm: bool,
        certain: bool = False,
        deciding: int | None = None,
    ) -> JudgedAtGains:
        """Judge a converted program: by one draw, or where it counts at every level of the samples and by all draws.

        One that holds so must hold in ONNX Runtime's default session, too.
        """
        with self.phase("compare"):
            if self.gains is None or is_float32 or not confirm:
                judge = self.judge(limits, is_float32=is_float32)
                judged = judge.judged(program, confirm=confirm, certain=certain, deciding=deciding)
                if self.gains is not None and not is_float32:  # it has not run at the other levels yet
                    judged = dataclasses.replace(judged, confirmed=False)
                at_gains = JudgedAtGains(judged, AS_GIVEN, {})
            else:
                at_gains = self.gains.judged(
                    program,
                    lambda at: self.at(at).judge(limits, is_float32=False),
                    binding=not limits.are_none,
                    certain=certain,
                    deciding=deciding,
                )
            if self.by_default is None or is_float32 or at_gains.judged.excess > 1.0:
                return at_gains
            return dataclasses.replace(
                at_gains, judged=self._in_default_session(self.by_default, program, at_gains.judged, limits)
            )

    def _in_default_session(self, session: DefaultSession, program: Program, judged: Judged, limits: Limits) -> Judged:
        outputs = session.outputs(program, self.reference)
        if outputs is None:
            return judged
        rows = session.compared(outputs, self.reference, limits)
        return self.judge(limits, is_float32=False).with_session(judged, rows, outputs)

    def at(self, reference: Reference) -> Conversions:
        """Return the same with other samples."""
        return (
            self if reference is self.reference else dataclasses.replace(self, reference=reference, source_in_tf32=[])
        )

    def beside_worst(self, measured: Measured) -> Conversions:
        """Return the same with further samples: those at the level where a conversion is beyond the limits."""
        if self.gains is None or measured.worst == AS_GIVEN:
            return self
        return self.at(self.reference.beside(self.gains.references()[measured.worst]))

    def judge(self, limits: Limits, *, is_float32: bool) -> Judge:
        """Return what judges a conversion: by the device's arithmetic, unless float32 itself would be judged."""
        plain = Judge(self.reference, limits, self.metric, None if is_float32 else self.arithmetic)
        return dataclasses.replace(plain, in_tf32=lambda: self._source_rows(plain))

    def error_of_source_in_tf32(self) -> float:
        """Return the largest relative error of an output of the source itself with its products in TF32.

        A device computes float32 products so unless a session sets it otherwise. 0.0 where no device's arithmetic is
        emulated, where the source has no such products, or where it does not run so.
        """
        if self.arithmetic is None:
            return 0.0
        source_rows = self._source_rows(self.judge(self.policy.limits, is_float32=False))
        unjudged = self.reference.unjudged()
        rows = () if source_rows is None else source_rows[0].items()
        return max((error_of(row) for name, row in rows if name not in unjudged), default=0.0)

    def _source_rows(self, judge: Judge) -> Compared | None:
        """Return the source's own outputs with its products in TF32; None if that is not known or there are none."""
        assert self.arithmetic is not None  # nothing else asks for TF32
        if not self.source_in_tf32:
            try:
                with open_device_runs(self.reference, self.reference.program, self.arithmetic, judge.limits) as runs:
                    in_tf32 = judge.turn(runs, _TURN_IN_TF32) if runs.is_tf32(_TURN_IN_TF32) else None
                    self.source_in_tf32.append(in_tf32)
            except (CannotCompare, ModelError) as reason:
                logger.info("what TF32 makes of the source is not known: %s", reason)
                self.source_in_tf32.append(None)
        return self.source_in_tf32[0]

    def feeds(self) -> list[dict[str, Any]]:
        """Return the samples for the prepared program."""
        return self.reference.feeds_of(self.prepared.model)

    def samples(self) -> list[NamedSample]:
        """Return the samples for the prepared program, each with its name."""
        return [(f"sample {number}", sample) for number, sample in enumerate(self.feeds(), start=1)]
