"""Records what is wrong with a low model: which node is to blame, how its fault reaches the outputs, and the cure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

from amp_transpiler.precision.histogram import NO_NUMBERS, Histogram
from amp_transpiler.report.comparison import OutputComparison

__all__ = ["Cure", "Departure", "Diagnosis", "Fault", "NodeDiagnosis", "RunForm", "RunsOnDevice", "Suspect"]

Fault: TypeAlias = Literal["overflow", "vanishing", "constant", "integers", "kernel", "rounding"]
"""What a node does wrong. `overflow`: numbers become infinite or NaN; `vanishing`: numbers become zero; `constant`: it
reads a constant that the format does not hold; `integers`: whole numbers or truth values come out as others; `kernel`:
the device's kernel computes something else; `rounding`: ordinary rounding, of which the outputs feel too much."""

RunForm: TypeAlias = Literal["as written", "fused"]
"""How a device runs the low model: node by node as the file has them, or as ONNX Runtime fuses them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeDiagnosis:
    """A result of a float32 node, beside the same result of the low model, over all samples.

    Attributes:
        node: the node's name in the float32 model.
        op: its operator.
        value: the name of the result.
        order: its number in the order of computation, from 0.
        precision: `float16`, `bfloat16` or `float32`: what the low model has it in; for integers, their type.
        largest: the largest magnitude in float32.
        smallest: the least magnitude in float32 that is not zero; infinite if there is none.
        histogram: how many numbers are of which magnitude in float32.
        error: the norm of the difference over the norm in float32, a fraction, over numbers that are finite in both;
            for integers the share that differs.
        own_error: the same for this node alone: the low node reads what the float32 node reads.
        infinite: the share of its numbers that are infinite or NaN in the low model, and finite in float32.
        own_infinite: the same for this node alone.
        vanished: the share of its nonzero numbers that are zero in the low model.
        own_vanished: the same for this node alone.
        contribution: what the node's own error adds to an output, as a fraction of that output's norm; the largest over
            the outputs, estimated by derivatives. Infinite if the own error is. None where no output depends on it by a
            derivative.
        fault: what it does wrong; None if that is nothing that the outputs feel.
    """

    node: str
    op: str
    value: str
    order: int
    precision: str
    largest: float = 0.0
    smallest: float = float("inf")
    histogram: Histogram = NO_NUMBERS
    error: float = 0.0
    own_error: float = 0.0
    infinite: float = 0.0
    own_infinite: float = 0.0
    vanished: float = 0.0
    own_vanished: float = 0.0
    contribution: float | None = None
    fault: Fault | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A node that may be to blame.

    Attributes:
        node: its name in the float32 model.
        op: its operator.
        value: the name of its result.
        fault: what it does wrong.
        contribution: see `NodeDiagnosis`.
        why: that in a sentence.
    """

    node: str
    op: str
    value: str
    fault: Fault
    contribution: float
    why: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """Nodes that mend the low model if they stay float32; perhaps with powers of two; or another format that does.

    Attributes:
        nodes: their names in the float32 model. Leaving any one of them out fails, unless a note says that the search
            ended early.
        dtype: the other 16-bit format to convert to, with no node kept float32 for it; None for that of the low model.
        rescaled: constants, as `Report.rescaled` names them -> the exponent of the power of two that they are
            multiplied by, which changes no float32 result; empty where nodes are enough.
        error: the largest error of an output with them in float32.
        excess: the same over what is allowed; at most 1.
        runs: how many conversions were run for it.
        written: the path of the mended model; None if none was written.
    """

    nodes: tuple[str, ...]
    error: float
    excess: float
    runs: int
    dtype: str | None = None
    rescaled: Mapping[str, int] = dataclasses.field(default_factory=dict)
    written: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A result that a device computes otherwise than the emulation, from inputs in which they agree.

    Attributes:
        node: the node's name in the float32 model.
        op: the operator that ran: in a fused form that of the fused node.
        value: the name of the result in the float32 model.
        form: the form in which it departs.
        error: the norm of the difference from the emulation over the norm of that, over numbers finite in both.
        allowed: up to which such an error says nothing.
        infinite: the share of the numbers that are finite in the emulation, and infinite or NaN on the device.
        finite: the share of all numbers that are infinite or NaN in the emulation, and finite on the device.
    """

    node: str
    op: str
    value: str
    form: RunForm
    error: float
    allowed: float
    infinite: float = 0.0
    finite: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunsOnDevice:
    """The low model on a device, beside its emulation.

    Attributes:
        device: the name of the device.
        forms: those in which it ran.
        compared: how many results were compared.
        departures: the results that agree no more, in the order of computation; what follows from one is left out.
    """

    device: str
    forms: tuple[RunForm, ...]
    compared: int
    departures: tuple[Departure, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The diagnosis of a low model.

    Attributes:
        source: the float32 model.
        low: the low model; None if it was converted for the diagnosis.
        dtype: the low format.
        given: the samples are the user's, not made up.
        samples: how many there are.
        passes: how often the float32 model ran on the samples, on a few of them for the derivatives.
        error: the largest error of an output (`OutputComparison.relative`); infinite if one is infinite or NaN.
        excess: the same over what is allowed: more than 1 if a limit is exceeded.
        outputs: the comparison of every output.
        guilty: the node that is to blame; None if the limits hold and no kernel is wrong.
        suspects: nodes that may be, the likeliest first.
        path: names of the nodes through which the fault of the guilty one reaches an output, that node first.
        absorbed: name of the node of the path that made something finite of infinite numbers; None if there is none.
        nodes: every result that could be compared, in the order of computation.
        unmatched: names of the float32 nodes without a partner in the low model.
        cure: the smallest set of nodes that mends it; None if it was not asked for, or nothing is to be mended.
        on_device: how the low model ran on a device; None if it did not.
        notes: what the user should know.
    """

    source: str
    low: str | None
    dtype: str
    given: bool
    samples: int
    passes: int
    error: float
    excess: float
    outputs: Mapping[str, OutputComparison]
    guilty: Suspect | None
    suspects: tuple[Suspect, ...]
    path: tuple[str, ...]
    absorbed: str | None
    nodes: tuple[NodeDiagnosis, ...]
    unmatched: tuple[str, ...] = ()
    cure: Cure | None = None
    on_device: RunsOnDevice | None = None
    notes: tuple[str, ...] = ()
