"""Estimates how much the rounding of each node and value adds to a program's outputs, by reverse sweeps on data.

For the error e of a result, made by rounding, and the adjoint a of that result, an output changes by the sum over
elements of a * e. Where the signs of rounding errors are as good as random, the square of that is the sum of (a * e)^2.
The adjoint is that of random signs over the output's norm, averaged over a few draws: so the sum is the square of the
share of the output's norm that the rounding adds. The contributions of different nodes add up as squares. Where slices
of an output are of uneven size (class scores next to boxes), each is weighed over its own norm, as errors are judged.

A node's own error is that of its twin in lower precision on inputs that are low already; the rounding of an input is
that of its cast. Where an operator has no gradient rule its gain is measured: its input changes a little, at random.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.child import lease
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import all_nodes, bodies, has_bodies, reads_of
from amp_transpiler.precision.constraints import Constraints, LowForm, touches_float32
from amp_transpiler.precision.evidence import Evidence
from amp_transpiler.precision.pole_operators import input_at_pole
from amp_transpiler.program.program import Program
from amp_transpiler.targets import Target
from amp_transpiler.verification.calibrate import PIECE, Calibration, NamedSample, calibrate
from amp_transpiler.verification.fixed_sample import SettledProgram, Surveys, settle
from amp_transpiler.verification.output_error import part_weights
from amp_transpiler.verification.partition import result_bytes
from amp_transpiler.verification.reverse_sweep import Contributions, Draw, Sweep, open_sweep

__all__ = ["Sensitivity", "collect_evidence", "low_forms", "measure_sensitivity"]

logger = logging.getLogger(__name__)

_DRAWS = 4  # of random signs, for each sample
_FEW_DRAWS = 2  # in all, where results take so many bytes that each is an average over very many elements already
_LARGE = 1 << 29
_SAMPLES = 3  # that are differentiated
_MOST_GROUPS = 4  # of outputs that are swept each on its own


def low_forms(model: ir.Model, target: Target, low: LowFormat) -> dict[str, LowForm]:
    """Return the low form of every node that can be low, by its name."""
    constraints = Constraints(model, target, low)
    nodes = (node for node in all_nodes(model) if not has_bodies(node) and touches_float32(node))
    forms = {str(node.name): constraints.of(node).form for node in nodes}
    return {name: form for name, form in forms.items() if form is not None}


def collect_evidence(
    prepared: Program, target: Target, low: LowFormat, samples: Iterable[NamedSample], *, given: bool
) -> Evidence:
    """Return what runs on samples say about a prepared program: ranges over all of them, errors over a few.

    Args:
        prepared: the prepared float32 program; not changed.
        target: whose kernels count.
        low: the low format.
        samples: names and inputs, taken one by one; a few are kept.
        given: the samples are the user's, not made up.

    Raises:
        InputError: there is no sample.
        RUN_ERRORS: the program does not run.
    """
    few: list[Mapping[str, Any]] = []
    surveys = Surveys(prepared)
    calibration = calibrate(prepared, low, _keeping(samples, few), surveys=surveys)
    forms = low_forms(prepared.model, target, low)
    chosen = few[:: math.ceil(len(few) / _SAMPLES)]
    beyond = frozenset(_become_infinite(prepared, low, calibration))
    return measure_sensitivity(prepared, low, forms, chosen, beyond=beyond, surveys=surveys).evidence(
        calibration, given=given
    )


def _become_infinite(program: Program, low: LowFormat, calibration: Calibration) -> Iterator[str]:
    """Yield the values that the low format cannot hold, or makes zero where an operator has a pole."""
    for name, seen in calibration.ranges.items():
        if seen.largest > low.max:
            yield name
    for node in all_nodes(program.model):
        at_pole = input_at_pole(node)
        read = None if at_pole is None else calibration.ranges.get(str(at_pole.name))
        if read is not None and read.flushed > 0.0:
            yield str(node.outputs[0].name)


def _keeping(samples: Iterable[NamedSample], few: list[Mapping[str, Any]]) -> Iterator[NamedSample]:
    """Yield the samples, and keep a few of them at equal distances."""
    step = 1
    for index, (name, feeds) in enumerate(samples):
        if index % step == 0:
            few.append(feeds)
            if len(few) > 2 * _SAMPLES:
                few[:] = few[::2]
                step *= 2
        yield name, feeds


@dataclasses.dataclass(frozen=True, slots=True)
class Sensitivity:
    """Squares of what rounding adds to each output, as shares of its norm.

    Attributes:
        by_output: output -> contributions.
        estimated: node -> why its error is an estimate.
    """

    by_output: Mapping[str, Contributions]
    estimated: Mapping[str, str]

    def evidence(self, calibration: Calibration, *, given: bool) -> Evidence:
        """Return it as evidence, together with ranges."""
        every = self.by_output.values()
        return Evidence(
            ranges=calibration.ranges,
            node_errors=_worst(contributions.nodes for contributions in every),
            cast_errors=_worst(contributions.casts for contributions in every),
            node_errors_by_output={name: contributions.nodes for name, contributions in self.by_output.items()},
            cast_errors_by_output={name: contributions.casts for name, contributions in self.by_output.items()},
            read_errors_by_output={name: contributions.reads for name, contributions in self.by_output.items()},
            alone_errors=_worst(contributions.alone for contributions in every),
            estimated=self.estimated,
            samples=calibration.samples,
            given=given,
        )


def _worst(every: Iterable[Mapping[str, float]]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for errors in every:
        for name, error in errors.items():
            worst[name] = max(error, worst.get(name, 0.0))
    return worst


def measure_sensitivity(
    program: Program,
    low: LowFormat,
    forms: Mapping[str, LowForm],
    samples: Sequence[Mapping[str, Any]],
    *,
    draws: int | None = None,
    limit: float = PIECE,
    beyond: frozenset[str] = frozenset(),
    surveys: Surveys | None = None,
) -> Sensitivity:
    """Sweep a program back on samples.

    Args:
        program: a typed program without functions, such as a prepared one; not changed.
        low: the low format.
        forms: node name -> its low form, for the nodes that may be low, those in bodies included.
        samples: the inputs, one mapping per sample.
        draws: random cotangents for each sample and group of outputs; None for as many as the program's size asks for:
            where it is large, the first sample and one more have one each. Elements that are swept one by one need
            none; where results take several pieces, there are as many samples as make four sweeps, one at least.
        limit: bytes that the results of the nodes that run together may take.
        beyond: names of values that are known to become infinite in the low format.
        surveys: those of the program.

    Raises:
        ModelError: the program is of an opset before 13, and cannot be raised.
        RUN_ERRORS: it does not run, or its derivative does not.
    """
    totals: dict[str, _Total] = {}
    estimated: dict[str, str] = {}
    key, stack, few, exact = "", contextlib.ExitStack(), False, 0
    with lease() as child, stack:  # a second child would be started, and take fresh memory, for each further sample
        for index, feeds in enumerate(samples):
            if few and index % math.ceil(len(samples) / _FEW_DRAWS):
                continue
            settled = settle(program, feeds, child, surveys)
            if settled.key != key:
                stack.close()
                targets = [name for names in settled.targets.values() for name in names]
                sweep = stack.enter_context(open_sweep(settled.program, low, forms, targets, limit, child, beyond))
                key = settled.key
                estimated |= _estimated(settled.program, forms, sweep.measured)
            if draws is None:
                size = result_bytes(settled.program)
                few = size > _LARGE
                count = math.ceil(_FEW_DRAWS / len(samples)) if few else _DRAWS
            else:
                size, few, count = 0.0, False, draws
            swept = _add_sample(totals, _Run(settled, sweep, low, forms), feeds, index, count)
            exact += swept
            if swept and size > PIECE and exact + swept > _DRAWS:
                break
    return Sensitivity({name: total.contributions() for name, total in totals.items()}, estimated)


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    settled: SettledProgram
    sweep: Sweep
    low: LowFormat
    forms: Mapping[str, LowForm]


@dataclasses.dataclass(slots=True)
class _Total:
    """Sums over the samples of an output.

    Attributes:
        norm: of the squares of its norm.
        draws: of contributions.
        exact: whether its elements were swept one by one, so that no random signs come in.
    """

    norm: float = 0.0
    draws: Draw = dataclasses.field(default_factory=Draw)
    exact: bool = True

    def add(self, draw: Draw, weight: float) -> None:
        """Add contributions that are shares of a norm whose square is, over the draws, `weight`."""
        for sums, contributions in ((self.draws.squares, draw.squares), (self.draws.signed, draw.signed)):
            for field, name, error in contributions.items():
                sums.add(field, name, weight * error)

    def contributions(self) -> Contributions:
        """Return the shares of the norm over all samples.

        Sums of squares are steady, but blind to errors that depend on each other, as those of equal pixels do. Squares
        of sums are not, but a few draws leave them noisy. Their geometric mean ranks nodes better than either.
        """
        contributions = Contributions()
        for field, name, square in self.draws.squares.items():
            signed = self.draws.signed.of(field)[name]
            error = (signed if self.exact else math.sqrt(square) * math.sqrt(signed)) / self.norm
            contributions.add(
                field, name, min(error, 1.0) if math.isfinite(error) else error
            )  # gains of estimates multiply
        return contributions


def _add_sample(totals: dict[str, _Total], run: _Run, feeds: Mapping[str, Any], index: int, draws: int) -> int:
    """Sweep back from every output, or group of outputs, some times; return how many sweeps were of one element."""
    one_by_one = 0
    norms = {name: _norm(run.settled, name) for name in run.settled.targets}
    felt = [name for name, norm in norms.items() if norm > 0.0]
    known = run.sweep.values(feeds)
    for group in _groups(felt):
        seeds = _one_by_one(run.settled, group, draws)
        exact = bool(seeds)
        one_by_one += len(seeds)
        seeds = seeds or [_signs(run.settled, group, np.random.default_rng([index, draw])) for draw in range(draws)]
        for name in group:
            total = totals.setdefault(name, _Total())
            total.norm += norms[name]
            total.exact &= exact
        for seed in seeds:
            swept, adjoints = run.sweep.back(known, seed)
            _add_inputs(swept, feeds, adjoints, run.low)
            for contributions in (swept.squares, swept.signed):
                spread_over_bodies(run.settled.program, run.forms, contributions)
            for name in group:
                totals[name].add(swept, norms[name] if exact else norms[name] / draws)
    return one_by_one


def _groups(names: Sequence[str]) -> list[list[str]]:
    size = math.ceil(len(names) / _MOST_GROUPS)
    return [list(names[start : start + size]) for start in range(0, len(names), max(1, size))]


def _norm(settled: SettledProgram, output: str) -> float:
    """Return the square of the norm of an output, or of the scores that it comes from, without what is not finite."""
    arrays = (settled.values[name].astype(np.float64) for name in settled.targets[output])
    return float(sum(np.square(array[np.isfinite(array)]).sum() for array in arrays))


def _one_by_one(settled: SettledProgram, outputs: Sequence[str], most: int) -> list[dict[str, np.ndarray]]:
    """Return cotangents of one element each over the norm, for an output with few elements; none for others."""
    targets = settled.targets[outputs[0]] if len(outputs) == 1 else ()
    if len(targets) != 1 or settled.values[targets[0]].size > most:
        return []
    array = settled.values[targets[0]]
    norm = math.sqrt(_norm(settled, outputs[0]))
    every = np.eye(array.size, dtype=np.float32) / np.float32(norm)
    return [{targets[0]: row.reshape(array.shape)} for row in every[np.isfinite(array).ravel()]]


def _signs(settled: SettledProgram, outputs: Sequence[str], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random signs over the norm, for the values that outputs are or come from; over those of uneven slices."""
    seeds: dict[str, np.ndarray] = {}
    for output in outputs:
        norm = math.sqrt(_norm(settled, output))
        for name in settled.targets[output]:
            array = settled.values[name]
            signs = rng.choice(np.array([-1.0, 1.0], np.float32), array.shape)
            weights = part_weights(array) if settled.targets[output] == (output,) else None
            signs = signs / np.float32(norm) if weights is None else signs * weights
            seed = np.where(np.isfinite(array), signs, np.float32(0.0)).astype(np.float32)
            seeds[name] = seeds[name] + seed if name in seeds else seed
    return seeds


def _add_inputs(draw: Draw, feeds: Mapping[str, Any], adjoints: Mapping[str, np.ndarray], low: LowFormat) -> None:
    """Add the casts of the program's inputs."""
    for name, adjoint in adjoints.items():
        if name in feeds:
            exact = np.asarray(feeds[name], np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                error = exact.astype(low.numpy).astype(np.float32) - exact
                product = np.where(adjoint == 0.0, 0.0, adjoint.astype(np.float64) * error)
            draw.squares.add("casts", name, float(np.square(product).sum()))
            draw.signed.add("casts", name, float(np.square(product.sum())))


# ---- estimates ----


def spread_over_bodies(program: Program, forms: Mapping[str, LowForm], contributions: Contributions) -> None:
    """Give the nodes inside a node with bodies equal shares of what was measured for all of them."""
    for node in program.model.graph:
        if has_bodies(node):
            inner = [name for name in _inside(node) if name in forms]
            for errors in (contributions.nodes, contributions.alone):
                whole = errors.pop(str(node.name), None)
                if whole is not None:
                    errors.update(dict.fromkeys(inner, whole / max(1, len(inner))))


def _inside(node: ir.Node) -> list[str]:
    return [str(inner.name) for _, body in bodies(node) for inner in body.all_nodes()]


def _estimated(program: Program, forms: Mapping[str, LowForm], measured: Mapping[str, str]) -> dict[str, str]:
    """Return the nodes whose adjoint went through an operator without a gradient rule, and those inside bodies."""
    why: dict[str, str] = {}
    through: dict[ir.Value, str] = {}
    for node in reversed(list(program.model.graph)):
        name = str(node.name)
        operator = next((through[value] for value in node.outputs if value in through), "")
        if operator:
            why[name] = f"it is felt through {operator}, which has no gradient rule: the gain was measured"
        if name in measured:
            operator = f"{node.op_type} '{name}'"
        if has_bodies(node):
            share = f"an equal share of what the body of {node.op_type} '{name}' adds as a whole"
            why.update(dict.fromkeys(_inside(node), share))
        if operator:
            through.update(dict.fromkeys(reads_of(node), operator))
    return {name: reason for name, reason in why.items() if name in forms}
