"""Holds what each stage of a conversion says about it: a record a stage. `assembly.py` makes the report of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amp_transpiler.report.comparison import OutputComparison
from amp_transpiler.report.drawn import DeviceDraws
from amp_transpiler.report.measured import DeviceMeasurement
from amp_transpiler.report.record import CastRow, DecisionRow, FrontierPoint, MetricValue, PredictedTimes
from amp_transpiler.report.steps import StepsComparison
from amp_transpiler.report.verdict import Judgement, Verdict
from amp_transpiler.runtime.recommended_options import NO_OPTIONS, RecommendedOptions

if TYPE_CHECKING:
    from amp_transpiler.graph.training_step import State
    from amp_transpiler.program.program import Program
    from amp_transpiler.runtime.engines import EngineBuild

__all__ = [
    "Comparison",
    "Description",
    "Facts",
    "FileCheck",
    "Findings",
    "Optimization",
    "Parting",
    "Prediction",
    "Rescaling",
    "SeenNodes",
    "Task",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Findings:
    """Tells the user what a stage found out, beside its figures.

    Attributes:
        verdict: how much is known of the result now; None: as much as before.
        notes: see `Report`.
        warnings: see `Report`.
        failure: why the result is refused; empty if it is not. Of a comparison it is the whole message.
    """

    verdict: Judgement | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: str = ""

    def then(self, later: Findings) -> Findings:
        """Return these and later ones as one; a later verdict or failure replaces this one."""
        return Findings(
            self.verdict if later.verdict is None else later.verdict,
            (*self.notes, *later.notes),
            (*self.warnings, *later.warnings),
            later.failure or self.failure,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """Says what is converted, and what was asked for.

    Attributes:
        source: the model's path, or a description of the object it came from.
        level: the level that decides; None for a system without levels.
        dtype: the low format.
        target: whose kernels count.
        ort: the version of ONNX Runtime whose kernels, opset and IR version count.
        system: whose rules decide.
        asked: the requested level, policy or preset, in words.
        is_copy: the request changes nothing.
        settings: the options that differ from their defaults, as a recipe holds them.
        opset: version of ONNX's own operators in the source.
        weight_bytes: bytes of the source's initializers and tensor constants.
        file_bytes: bytes of the source's files; None if it is not on disk.
        notes: what the user should know of the request.
    """

    source: str
    level: str | None
    dtype: str
    target: str
    ort: str = ""
    system: str = "paddle"
    asked: str = ""
    is_copy: bool = False
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    opset: int = 0
    weight_bytes: int = 0
    file_bytes: int | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Optimization:
    """Says what was fused before the decision: by ONNX Runtime's optimizer, or by the passes of `fusion/`.

    Attributes:
        fused: operators that were put in -> how many.
        findings: what was done in words, or why nothing was.
        settings: what a recipe holds of it beside the options of the caller, who asked for none.
    """

    fused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    findings: Findings = Findings()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Rescaling:
    """Says which constants were multiplied by powers of two, which changes no float32 result.

    Attributes:
        exponents: a constant, by name, or an attribute of a node -> the exponent of its power of two.
        notes: what was done in words, or why nothing was.
    """

    exponents: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, dict[str, int]]:
        """The options by which a recipe does the same again."""
        return {"rescale": dict(self.exponents)} if self.exponents else {}


@dataclasses.dataclass(frozen=True, slots=True)
class Parting:
    """Says which products are computed in parts that are added up in float32.

    Attributes:
        parts: product, by node name -> how many parts.
        notes: what was done in words.
    """

    parts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, dict[str, int]]:
        """The options by which a recipe does the same again."""
        return {"split_sums": dict(self.parts)} if self.parts else {}


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Holds what runs of the result and of the float32 model showed. See `Report` for each of them."""

    outputs: Mapping[str, OutputComparison] = dataclasses.field(default_factory=dict)
    repaired: tuple[str, ...] = ()
    frontier: tuple[FrontierPoint, ...] = ()
    headroom: float | None = None
    draws: DeviceDraws | None = None
    gains: Mapping[str, float] = dataclasses.field(default_factory=dict)
    by_default: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metric: MetricValue | None = None
    steps: StepsComparison | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Description:
    """Describes the result: its nodes and their precision, its casts and its size. See `Report` for what is not here.

    Attributes:
        program: the result.
        decisions: one row a node.
        opset: version of ONNX's own operators in the result; None: that of the source.
        weight_bytes: bytes of its initializers and tensor constants; None: those of the source.
        verdict: how much is known of a result that is not compared, since it is the source; None for any other.
        notes: what was noted of the program on its way. They come before all other notes.
        replaces_notes: the notes of earlier stages speak of a conversion that was needless, so these are all.
        moot_warnings: warnings of earlier stages that do not apply to this result.
    """

    program: Program
    decisions: tuple[DecisionRow, ...]
    states: tuple[State, ...] = ()
    low_nodes: int = 0
    high_nodes: int = 0
    kept_float32: bool = False
    casts: int = 0
    casts_removed: int = 0
    casts_at: tuple[CastRow, ...] = ()
    missing_kernels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    opset: int | None = None
    weight_bytes: int | None = None
    verdict: Judgement | None = None
    notes: tuple[str, ...] = ()
    replaces_notes: bool = False
    moot_warnings: tuple[str, ...] = ()


_NO_TIMES = PredictedTimes()


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times. See `Report` for each of them.

    Attributes:
        decisions: the rows of the description, with times where these were predicted at once.
    """

    decisions: tuple[DecisionRow, ...]
    device: str = ""
    times: PredictedTimes | Callable[[], PredictedTimes] = _NO_TIMES
    prices: Callable[[Sequence[DecisionRow]], Iterable[DecisionRow]] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SeenNodes:
    """Holds what runs on data showed of the nodes.

    Attributes:
        decisions: the rows of the description or prediction, with errors, ranges and remedies.
        notes: what other data may do to the result.
    """

    decisions: tuple[DecisionRow, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class FileCheck:
    """Holds what the checks of the written file showed.

    Attributes:
        checks: those that passed, in order, a short phrase each.
        measured: what a device computed with the file; None where none did.
        findings: what they tell the user.
        engine: what TensorRT's builder made of the file; None where it was not asked.
    """

    checks: tuple[str, ...] = ()
    measured: DeviceMeasurement | None = None
    findings: Findings = Findings()
    engine: EngineBuild | None = None

    def then(self, later: FileCheck) -> FileCheck:
        """Return these checks and later ones as one."""
        return FileCheck(
            (*self.checks, *later.checks),
            later.measured or self.measured,
            self.findings.then(later.findings),
            later.engine or self.engine,
        )


@dataclasses.dataclass(slots=True)
class Facts:
    """Collects what is known of a conversion. Each stage sets its own field, once; fields are in the order of stages.

    Attributes:
        task: what is converted, and what was asked for (`load_source`).
        optimization: what was fused before the decision (`optimize_source`, `prepare_program`, `decide_and_compare`).
        preparation: what the preparation tells the user (`prepare_program`).
        rescaling: what was rescaled before the decision (`decide_and_compare`).
        parting: which products are computed in parts (`decide_and_compare`).
        comparison: what runs showed (`decide_and_compare`).
        judgement: what that tells the user (`decide_and_compare`).
        description: what the result is (`describe`, `copy_unchanged`, `leave_needless`).
        replay: what of a recipe does not fit (`describe`).
        prediction: predicted times (`predict`).
        seen: what data showed of the nodes (`predict`).
        session_options: what its sessions on the target should have (`recommend`).
        is_source_file: the written file is that of the source (`write_result`).
        file_check: what checks of the written file showed (`write_result`).
        written_bytes: bytes of the written files; None if nothing is written (`write_result`, `copy_unchanged`,
            `leave_needless`).
    """

    task: Task
    optimization: Optimization = Optimization()
    preparation: Findings = Findings()
    rescaling: Rescaling = Rescaling()
    parting: Parting = Parting()
    comparison: Comparison = Comparison()
    judgement: Findings = Findings()
    description: Description = dataclasses.field(init=False)
    replay: Findings = Findings()
    prediction: Prediction | None = None
    seen: SeenNodes | None = None
    session_options: RecommendedOptions = NO_OPTIONS
    is_source_file: bool = False
    file_check: FileCheck = FileCheck()
    written_bytes: int | None = None

    @property
    def decisions(self) -> tuple[DecisionRow, ...]:
        """The rows of the nodes, with all that is known of them."""
        return (self.seen or self.prediction or self.description).decisions

    @property
    def verdict(self) -> Judgement:
        """How much is known of the result."""
        stated = (self.file_check.findings.verdict, self.description.verdict, self.judgement.verdict)
        return next((verdict for verdict in stated if verdict is not None), Judgement(Verdict.NOT_CHECKED))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, those of the program first, then by stage."""
        before = (self.task, self.optimization.findings, self.preparation, self.rescaling, self.parting, self.judgement)
        after = (*(() if self.seen is None else (self.seen,)), self.file_check.findings)
        stages = (self.description, *(() if self.description.replaces_notes else before), *after)
        return tuple(note for stage in stages for note in stage.notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What looks wrong in the result, by stage."""
        before = (*self.optimization.findings.warnings, *self.preparation.warnings, *self.judgement.warnings)
        still = tuple(warning for warning in before if warning not in self.description.moot_warnings)
        return (*still, *self.replay.warnings, *self.file_check.findings.warnings)
