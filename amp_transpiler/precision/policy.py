"""A policy: everything that a decision depends on besides the program, one explicit field each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.precision.assignment import ConstantStorage
from amp_transpiler.precision.limits import HEADROOM, Limits
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.rules import Rules
from amp_transpiler.precision.thresholds import Thresholds
from amp_transpiler.precision.training.wishes import TrainingWishes
from amp_transpiler.targets import Target

if TYPE_CHECKING:
    from amp_transpiler.precision.custom_types import PortTypes
    from amp_transpiler.precision.evidence import Evidence

__all__ = ["Float64Choice", "InParts", "Objective", "Policy", "Settled"]

Objective: TypeAlias = Literal["rules", "low", "time", "balance"]
"""What decides about nodes that may be either; see `Policy`."""

Float64Choice: TypeAlias = Literal["keep", "float32", "float32-io"]
"""The ways to treat the source's float64; see `Policy`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """A decision that was made before.

    Attributes:
        precision: of the node. One that has no low form stays float32 whatever was decided.
        reason: why.
    """

    precision: Literal["low", "high"]
    reason: Reason


@dataclasses.dataclass(frozen=True, slots=True)
class InParts:
    """How a product is computed where it is low: in parts that are added up in float32.

    Attributes:
        count: how many.
        fault: what is wrong with the whole product in the low format, in words.
    """

    count: int
    fault: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How one conversion decides. Levels, systems and presets are tables that fill these fields.

    Attributes:
        rules: the rules of the system: they decide about a node that may be low.
        low: the low format; float32 to make nothing low, but everything in `widens` float32.
        widens: 16-bit formats of the source that are made float32 before anything is decided.
        float64: whether the source's float64 is made float32 as well, and with `float32-io` its inputs and outputs.
        target: the backend whose kernels count.
        copies: change nothing: the files are copied byte for byte, and no other field matters.
        numerics: `static`: operators that are unsafe by `precision/numerics.py` stay float32; `shown`: but those for
            which the ranges of `evidence` speak; `ignore`: none does.
        strict_ranges: every constant that the low format cannot hold keeps its readers in float32, the "minus infinity"
            of masks and small constants included.
        drop_islands: groups of low nodes between quantized operators that cost more casts than they are worth become
            float32, or none do.
        objective: what decides about nodes that may be either. `rules`: the rules, then `drop_islands`; `low`: the most
            computation in lower precision at the fewest casts; `time`: the least predicted time. These two are exact
            (`precision/min_cut.py`). `balance`: of the conversions by both, and float32, the one that pays
            (`precision/balance.py`).
        device: the device whose time counts.
        dims: name of an open dimension of the inputs -> its size, for predicted times.
        evidence: what runs on data showed of this very program.
        headroom: how many times the range that data showed must fit into the low format.
        thresholds: magnitudes and sums from which nodes stay float32.
        low_parameters: parameters of a training program are stored low where every reader wants them low.
        search_runs: how many other conversions may be run for one that keeps the limits.
        limits: how far the outputs may be from float32.
        use_guard: if the program has any `fp16_guard` region, only nodes inside one may be low.
        included: some nodes are low by force (regions of the kind `include`).
        custom_types: operator without a schema -> the types that the user declares of its inputs and outputs.
        float32_inputs: operator -> the inputs, by index, that stay float32 though others of it are low.
        opset: the version of ONNX's own domain to convert to; None: the source's, or a higher one with more low nodes.
        low_io: names of graph inputs and outputs that become low themselves.
        parts: product, by node name -> in how many parts it is computed where it is low, and why.
        forced_high: node name -> reason, for nodes that stay float32 whatever the rules say.
        settled: node name -> its precision, for nodes that were decided before: by a recipe, or by a search.
        parameters: names of the graph inputs of a training program that hold parameters.
        training: the program is a training program, so BatchNormalization and Dropout are lowered to plain operators
            before it runs.
        constants: where constants are converted (see `Assignment`).
        outputs_as_computed: outputs of the program keep the precision they are computed in. Updates of a training
            program's state do not: they stay float32.
        wishes: the user's, about a training step.
    """

    rules: Rules
    low: LowFormat
    target: Target
    widens: frozenset[ir.DataType] = frozenset()
    float64: Float64Choice = "keep"
    copies: bool = False
    numerics: Literal["ignore", "static", "shown"] = "ignore"
    strict_ranges: bool = False
    drop_islands: Literal["none", "quantized"] = "none"
    objective: Objective = "rules"
    device: str = "H100"
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    evidence: Evidence | None = None
    headroom: float = HEADROOM
    thresholds: Thresholds = dataclasses.field(default_factory=Thresholds)
    low_parameters: bool = False
    search_runs: int = 0
    limits: Limits = dataclasses.field(default_factory=Limits)
    use_guard: bool = True
    included: bool = False
    float32_inputs: Mapping[str, frozenset[int]] = dataclasses.field(default_factory=dict)
    custom_types: Mapping[str, PortTypes] = dataclasses.field(default_factory=dict)
    opset: int | None = None
    low_io: frozenset[str] = frozenset()
    parts: Mapping[str, InParts] = dataclasses.field(default_factory=dict)
    forced_high: Mapping[str, Reason] = dataclasses.field(default_factory=dict)
    settled: Mapping[str, Settled] = dataclasses.field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    training: bool = False
    constants: ConstantStorage = "offline"
    outputs_as_computed: bool = False
    wishes: TrainingWishes = dataclasses.field(default_factory=TrainingWishes)
