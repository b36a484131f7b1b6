"""Records what changes for a model between two releases of ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

from amp_transpiler.report.comparison import OutputComparison

__all__ = [
    "CopyCount",
    "DecisionChange",
    "FaultChange",
    "Fusion",
    "OperatorCount",
    "PlacementChange",
    "ReleaseDeparture",
    "ReleaseDifference",
    "ReleaseRun",
    "RunDifference",
    "Which",
]

Which: TypeAlias = Literal["float32", "low"]
"""The model that a row is about."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChange:
    """A node that runs elsewhere in the other release, by the kernel tables.

    Attributes:
        model: the model.
        node: its name.
        op: its operator.
        old, new: where it runs: the name of a provider, `cuda` or `cpu`, with `, written out` where its function body
            runs there; `no kernel`.
        scope: the path of the enclosing bodies, empty in the main graph.
    """

    model: Which
    node: str
    op: str
    old: str
    new: str
    scope: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CopyCount:
    """The copies between devices that a model needs, by the kernel tables.

    Attributes:
        model: the model.
        old, new: how many values are copied in either release.
        appearing: the names of those that only the new one copies.
        vanishing: the names of those that only the old one copies.
    """

    model: Which
    old: int
    new: int
    appearing: tuple[str, ...] = ()
    vanishing: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FaultChange:
    """A known fault that a model meets in only one of the releases.

    Attributes:
        model: the model.
        node: the name of the node; empty if it is about the model as a whole.
        op: its operator.
        release: the release that has it.
        table: where it is known from: `limit`, `refused kernel`, `wrong kernel` or `fault`.
        fault: what happens, in a sentence.
        scope: the path of the enclosing bodies, empty in the main graph.
    """

    model: Which
    node: str
    op: str
    release: str
    table: str
    fault: str
    scope: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecisionChange:
    """A node that a conversion for the other release decides otherwise.

    Attributes:
        node: its name.
        op: its operator.
        old, new: its precision in either conversion; empty where that has no such node.
        old_reason, new_reason: why.
        scope: the path of the enclosing bodies, empty in the main graph.
    """

    node: str
    op: str
    old: str
    new: str
    old_reason: str
    new_reason: str
    scope: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRun:
    """The outcome of running a model in a release.

    Attributes:
        release: the version that ran it, such as `1.24.4`.
        python: the path of its interpreter.
        stage: `load` or `run` where it failed; empty if it ran.
        message: what the release said; empty if it ran.
    """

    release: str
    python: str
    stage: str = ""
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCount:
    """An operator of the optimized graphs, with its domain unless that is ONNX's own.

    Attributes:
        op: the operator.
        old, new: how many nodes of it each release's graph has.
    """

    op: str
    old: int
    new: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A node of only one optimized graph, which stands for nodes of the model.

    Attributes:
        release: the release whose graph has it.
        op: its operator.
        value: the name of its result.
        nodes: names of the nodes that it stands for.
    """

    release: str
    op: str
    value: str
    nodes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDeparture:
    """A node at which the results of both releases part.

    Attributes:
        node: its name.
        op: its operator.
        value: the name of its result.
        error: the difference over the old result, by their norms; of integers the share that differs; infinite for
            another shape, or where numbers are finite in only one release.
        optimized: in sessions with default optimizations; else without any.
        rounding: it is no more than kernels that round in another order differ by.
    """

    node: str
    op: str
    value: str
    error: float
    optimized: bool
    rounding: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """A model that ran in both releases on the same samples.

    Attributes:
        model: the model.
        provider: the execution provider; empty if no session was opened.
        old, new: what became of it in either release.
        samples: how many samples ran.
        given: they are the user's, not made up.
        outputs: output -> the new release's against the old one's.
        excess: the largest difference of an output over what is allowed; more than 1 if a limit is exceeded.
        operators: operators of which the optimized graphs have other numbers.
        fusions: nodes of only one optimized graph.
        departures: where results part: the first difference at all, and the first beyond rounding, in sessions without
            optimizations and with the default ones.
        notes: what the user should know.
    """

    model: Which
    provider: str
    old: ReleaseRun
    new: ReleaseRun
    samples: int
    given: bool
    outputs: Mapping[str, OutputComparison] = dataclasses.field(default_factory=dict)
    excess: float = 0.0
    operators: tuple[OperatorCount, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    departures: tuple[ReleaseDeparture, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether only one release runs the model, or an output differs by more than what is allowed."""
        return bool(self.old.message) != bool(self.new.message) or not self.excess <= 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDifference:
    """What changes for a model between two releases.

    Attributes:
        source: the float32 model.
        low: the low model; None: a conversion for the old release.
        old, new: the releases, as they were asked for.
        target: whose kernels count.
        device: the device whose faults count.
        dtype: the low format.
        level: what a conversion makes low.
        placement: nodes that run elsewhere.
        copies: copies between devices, of the models whose copies change.
        faults: known faults that only one release has.
        decisions: nodes that conversions for the releases decide otherwise.
        runs: the models that ran in both; empty if nothing ran.
        not_run: why nothing ran; empty if the models ran.
        notes: what the user should know.
    """

    source: str
    low: str | None
    old: str
    new: str
    target: str
    device: str
    dtype: str
    level: str
    placement: tuple[PlacementChange, ...] = ()
    copies: tuple[CopyCount, ...] = ()
    faults: tuple[FaultChange, ...] = ()
    decisions: tuple[DecisionChange, ...] = ()
    runs: tuple[RunDifference, ...] = ()
    not_run: str = ""
    notes: tuple[str, ...] = ()

    @property
    def something_changes(self) -> bool:
        """Whether anything changes but fusions and rounding."""
        by_tables = self.placement or self.copies or self.faults or self.decisions
        return bool(by_tables) or any(run.differs for run in self.runs)
