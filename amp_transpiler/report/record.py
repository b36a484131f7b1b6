"""Records the outcome of a conversion: `assembly.py` fills it; table, page, JSON and recipe read it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from amp_transpiler.errors import visible
from amp_transpiler.ops.fusions import only_in_onnxruntime
from amp_transpiler.report.comparison import OutputComparison
from amp_transpiler.report.drawn import DeviceDraws
from amp_transpiler.report.measured import DeviceMeasurement
from amp_transpiler.report.steps import StepsComparison
from amp_transpiler.report.verdict import Verdict, judgement_of
from amp_transpiler.runtime.recommended_options import NO_OPTIONS, RecommendedOptions

if TYPE_CHECKING:
    from amp_transpiler.graph.training_step import State
    from amp_transpiler.precision.histogram import Histogram
    from amp_transpiler.program.program import Program
    from amp_transpiler.runtime.engines import EngineBuild
    from amp_transpiler.view.outline import Outline

__all__ = [
    "NOTICEABLE",
    "CastRow",
    "DecisionRow",
    "FrontierPoint",
    "MetricValue",
    "OutputComparison",
    "PredictedTimes",
    "ReportRecord",
]

NOTICEABLE = 0.01
"""A smaller difference of predicted times says nothing."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class DecisionRow:
    """The precision of one node of the float32 program.

    Attributes:
        name: the node's name.
        op: the operator, with its domain unless that is ONNX's own (`Conv`, `com.microsoft::BiasGelu`).
        precision: `float16` or `bfloat16`; `float32`; `unchanged`: it has no float32 tensor, or is control flow, whose
            bodies are decided node by node. See `Precision`.
        reason: one sentence; names of values are in single quotes.
        scope: the path of the enclosing bodies, empty in the main graph (`loop_1/body`).
        error: what it adds, where it is low, to the relative error of the worst output, a fraction; None: not known.
        largest: the largest magnitude among its inputs and results; None: not known.
        sample: the sample that `largest` is from.
        flushed: the largest share, among its inputs and results, of the numbers other than zero that the low format
            makes zero, a fraction; None: not known.
        histogram: how many numbers among its inputs and results, constants left out, are of which magnitude; None: not
            known.
        bytes: bytes that it moves as it was decided; None: not known.
        milliseconds: predicted time as it was decided; None: not known.
        milliseconds_fp32: predicted time in float32; None: not known.
        bound: what its predicted time is spent on: `launch`, `bytes` that it moves, or `arithmetic`; empty: not known.
        remedy: what it would take to change its precision; empty: nothing is known to.
        attributes: attribute -> its value as text, a long one cut; of a body its name.
    """

    name: str
    op: str
    precision: str
    reason: str
    scope: str = ""
    error: float | None = None
    largest: float | None = None
    sample: str = ""
    flushed: float | None = None
    bytes: int | None = None
    milliseconds: float | None = None
    milliseconds_fp32: float | None = None
    bound: str = ""
    remedy: str = ""
    histogram: Histogram | None = None
    attributes: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        scope = f", scope={self.scope!r}" if self.scope else ""
        return f"DecisionRow({self.name!r}, {self.op!r}, {str(self.precision)!r}, {self.reason!r}{scope})"


@dataclasses.dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One assignment of many: what it costs, and what it spoils.

    Attributes:
        error: relative error of the worst output, a fraction.
        milliseconds: predicted time; None: not known.
        low_share: share of the nodes with a choice that are low.
        casts: casts that it inserts.
        measured: the error was measured by emulation; else it is predicted.
        chosen: it is the one that was carried out.
    """

    error: float
    milliseconds: float | None
    low_share: float
    casts: int
    measured: bool = False
    chosen: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PredictedTimes:
    """The predicted time of one run.

    Attributes:
        fp32: milliseconds of the source in float32; None: not known.
        result: milliseconds of the result; None: not known.
        pays_from: see `ReportRecord.pays_from`.
        basis: whose prices these are, and the share of the result's time that no measured price covers, in words.
        fp32_in_graph: as `fp32`, where a CUDA graph replays the run, so that the host asks once.
        result_in_graph: likewise, of the result.
        lowered: milliseconds of the best conversion with low nodes, limits aside, where the result was kept float32 for
            the time; None: it was not, or nothing may be low.
        fp32_fused: milliseconds in float32 of what was decided about, which `lowered` compares with: the source, fused;
            None: nothing was fused, so that it is `fp32`.
    """

    fp32: float | None = None
    result: float | None = None
    pays_from: str = ""
    basis: str = ""
    fp32_in_graph: float | None = None
    result_in_graph: float | None = None
    lowered: float | None = None
    fp32_fused: float | None = None

    @property
    def beside_lowered(self) -> float | None:
        """Milliseconds in float32 that `lowered` is compared with; None: not known."""
        return self.fp32 if self.fp32_fused is None else self.fp32_fused

    def of_source(self) -> PredictedTimes:
        """Return the times of a result whose file is that of the source."""
        return dataclasses.replace(self, result=self.fp32, result_in_graph=self.fp32_in_graph)


@dataclasses.dataclass(frozen=True, slots=True)
class MetricValue:
    """The user's own measure of a result.

    Attributes:
        name: of the function.
        value: what it returned.
        bound: the largest value that was accepted.
    """

    name: str
    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the value is accepted."""
        return self.value <= self.bound


@dataclasses.dataclass(frozen=True, slots=True)
class CastRow:
    """One cast that the conversion inserted.

    Attributes:
        value: the value that is cast.
        source: its element type.
        target: the element type of the copy.
        producer: the node that makes it; empty for an input, a weight, or a value from outside of its body.
        readers: the nodes that read the copy; empty for a graph output.
        scope: the path of the enclosing bodies, empty in the main graph.
    """

    value: str
    source: str
    target: str
    producer: str = ""
    readers: tuple[str, ...] = ()
    scope: str = ""


@dataclasses.dataclass(slots=True, repr=False)
class ReportRecord:
    """The outcome of one conversion: the data of `Report`, and what follows from them.

    `Report` is this record for users, with its forms as methods. It says what each field is.
    """

    source: str
    level: str | None
    dtype: str
    target: str
    ort: str = ""
    system: str = "paddle"
    asked: str = ""
    is_copy: bool = False
    destination: str | None = None
    program: Program | None = None
    graphs: tuple[tuple[str, Outline], ...] = ()
    decisions: tuple[DecisionRow, ...] = ()
    nodes: int = 0
    low_nodes: int = 0
    high_nodes: int = 0
    kept_float32: bool = False
    casts: int = 0
    casts_removed: int = 0
    casts_at: tuple[CastRow, ...] = ()
    device: str = ""
    times: PredictedTimes | Callable[[], PredictedTimes] = PredictedTimes()
    prices: Callable[[Sequence[DecisionRow]], Iterable[DecisionRow]] | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    headroom: float | None = None
    opset: tuple[int, int] = (0, 0)
    weight_bytes: tuple[int, int] = (0, 0)
    file_bytes: tuple[int | None, int | None] = (None, None)
    missing_kernels: dict[str, int] = dataclasses.field(default_factory=dict)
    states: tuple[State, ...] = ()
    steps: StepsComparison | None = None
    outputs: dict[str, OutputComparison] = dataclasses.field(default_factory=dict)
    draws: DeviceDraws | None = None
    gains: dict[str, float] = dataclasses.field(default_factory=dict)
    by_default: dict[str, float] = dataclasses.field(default_factory=dict)
    measured: DeviceMeasurement | None = None
    engine: EngineBuild | None = None
    metric: MetricValue | None = None
    verdict: str = Verdict.NOT_CHECKED
    checks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fused: dict[str, int] = dataclasses.field(default_factory=dict)
    rescaled: dict[str, int] = dataclasses.field(default_factory=dict)
    in_parts: dict[str, int] = dataclasses.field(default_factory=dict)
    repaired: tuple[str, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    session_options: RecommendedOptions = NO_OPTIONS

    def __post_init__(self) -> None:
        if not self.asked and self.level is not None:
            self.asked = f"level {self.level}"

    @property
    def verdict_word(self) -> Verdict:
        """The word that the verdict begins with."""
        return judgement_of(self.verdict).word

    @property
    def predicted_ms(self) -> tuple[float | None, float | None]:
        """Predicted time of one run, in float32 and of the result; None: not known."""
        times = self.known_times()
        return times.fp32, times.result

    @property
    def predicted_graph_ms(self) -> tuple[float | None, float | None]:
        """As `predicted_ms`, where a CUDA graph replays the run, so that launches cost the host next to nothing."""
        times = self.known_times()
        return times.fp32_in_graph, times.result_in_graph

    @property
    def needs_onnxruntime(self) -> tuple[str, ...]:
        """Those of the `fused` operators that only ONNX Runtime has; empty: no other tool lacks any of them.

        Of a result of `fuse`, its file says the same in its metadata, under `amp_transpiler.needs_onnxruntime`.
        """
        return only_in_onnxruntime(self.fused)

    @property
    def slower(self) -> bool:
        """Whether the result is predicted slower than float32 by more than a hundredth."""
        before, after = self.predicted_ms
        return before is not None and after is not None and after > before * (1 + NOTICEABLE)

    @property
    def pays_from(self) -> str:
        """From where on the result is faster than float32, where it is slower at the given shapes, in words.

        Of a model that was kept float32, from where on the best conversion with low nodes is. Such as `batch=8`; empty:
        not known, or it is faster.
        """
        return self.known_times().pays_from

    @property
    def predicted_from(self) -> str:
        """Whose prices the predicted times are made of, and the share that no measurement covers; empty: not known."""
        return self.known_times().basis

    @property
    def session_code(self) -> str:
        """Python that opens the result with its `session_options`, without this package: at most three lines."""
        return self.session_options.code(self.destination or self.source)

    def known_times(self) -> PredictedTimes:
        """Return `times`, predicted now if they have not been."""
        if callable(self.times):
            self.times = self.times()
        return self.times

    def priced_decisions(self) -> tuple[DecisionRow, ...]:
        """Return `decisions` with bytes, predicted time and its bound, predicted now if they have not been."""
        if self.prices is not None:
            self.decisions, self.prices = tuple(self.prices(self.decisions)), None
        return self.decisions

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Predicted times may be a function of the program, and pictures of it never change.
        self.priced_decisions()
        shared: dict[str, Any] = {"times": self.known_times(), "graphs": self.graphs}
        names = [field.name for field in dataclasses.fields(self) if field.name not in shared]
        copies: dict[str, Any] = {name: copy.deepcopy(getattr(self, name), memo) for name in names}
        return dataclasses.replace(self, **shared, **copies)

    def __repr__(self) -> str:
        nodes = f"{self.low_nodes} of {self.nodes} nodes {self.dtype}, {self.high_nodes} float32, {self.casts} casts"
        done = "copied" if self.is_copy else nodes
        place = "" if self.destination is None else f" -> {visible(self.destination, 80)}"
        return f"<Report of {visible(self.source, 80)}{place}, {self.asked}: {done}; {visible(self.verdict)}>"
