"""Holds one call of `transpile`: its plan, and what the stages of the pipeline have made of its model so far."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from amp_transpiler.conversion import Conversion
from amp_transpiler.files.loading import Source
from amp_transpiler.plan import Plan
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.program.program import Program
from amp_transpiler.report.clock import Clock
from amp_transpiler.report.facts import Facts
from amp_transpiler.verification.accuracy import Reference
from amp_transpiler.verification.verify import Basis

__all__ = ["Job"]


@dataclasses.dataclass(slots=True)
class Job:
    """A conversion on its way through the stages. Each of them reads what those before it have set.

    Attributes:
        src: the model as the caller has it.
        dst: the file that the caller named, or None.
        plan: what is asked for.
        settings: what a recipe of the conversion holds of the options.
        clock: times it.
        loaded: the model, with the outputs that were set by hand; where `program` is the same object, it is edited.
        source: the same, followed by the training algorithms that it carries.
        program: what is worked on: a copy, or the source itself where nothing is compared with it; at last the result.
        policy: how to decide, with the facts of the model.
        facts: what the stages say, for the report that the caller gets.
        destination: the file to write, or None.
        reference: what float32 computes, where the optimized program was compared with that.
        ranges: what the low format cannot hold.
        is_changed: the program got what its training step needs in lower precision.
        needless: the program as it is, where a conversion would add nothing to it.
        unfused: the program before it was fused, which the user's gain is predicted against; None where nothing was.
        prepared: the program as it is decided about.
        conversion: what was decided and carried out.
        basis: what the written file is checked against; None for no check.
        is_done: nothing is left to do for the stages that follow.
    """

    src: Source
    dst: str | os.PathLike[str] | None
    plan: Plan
    settings: Mapping[str, Any]
    clock: Clock
    loaded: Program = dataclasses.field(init=False)
    source: Program = dataclasses.field(init=False)
    program: Program = dataclasses.field(init=False)
    policy: Policy = dataclasses.field(init=False)
    facts: Facts = dataclasses.field(init=False)
    destination: pathlib.Path | None = None
    reference: Reference | None = None
    ranges: RangeFaults = dataclasses.field(init=False)
    is_changed: bool = False
    needless: tuple[Program, Conversion] | None = None
    unfused: Program | None = None
    prepared: Program = dataclasses.field(init=False)
    conversion: Conversion = dataclasses.field(init=False)
    basis: Basis | None = None
    is_done: bool = False
