"""The two programs of a diagnosis: the float32 one in plain form, and a low one, the user's or a conversion of it."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from amp_transpiler import stages
from amp_transpiler.child_process.child import lease
from amp_transpiler.conversion import convert, plain_copy
from amp_transpiler.diagnosis.pairs import pair
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.files.loading import Source, load
from amp_transpiler.graph.dtypes import LOW_DTYPES, LowFormat, low_format
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.job import Job
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.plan import plan
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.program.program import Program
from amp_transpiler.report.clock import Clock
from amp_transpiler.systems.option_names import DtypeName
from amp_transpiler.verification.fixed_sample import inline_branches

__all__ = ["LEVEL_AUTO_LIMITS", "Subject", "chosen_dtype", "dtype_of", "subject_of"]

LEVEL_AUTO_LIMITS: Mapping[str, float] = {"float16": 0.02, "bfloat16": 0.05}
"""Low format -> the largest error of an output that is no fault, a fraction: what level auto allows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """What a diagnosis is about.

    Attributes:
        source: the float32 model as it was given.
        prepared: it, in the form that conversions start from.
        reference: it, in the form that the low program is paired with.
        low: the low program: typed, without functions, its nodes named.
        low_name: the path of the user's low model, or words for it; None if it was converted for the diagnosis.
        policy: how a conversion of `prepared` decides.
        ranges: a look-up of constants for that.
    """

    source: Program
    prepared: Program
    reference: Program
    low: Program
    low_name: str | None
    policy: Policy
    ranges: RangeFaults

    @property
    def format(self) -> LowFormat:
        """The low format."""
        return self.policy.low

    def without_branches(self, sample: Mapping[str, Any]) -> Subject:
        """Return the same with the branches that a sample takes in place of every If of the main graphs.

        Raises:
            RUN_ERRORS: a program does not run.
        """
        copies = []
        with lease() as child:
            # A CPU refuses most of bfloat16, so what is low runs emulated.
            for program in (self.reference, self.low):
                copy = program.clone()
                copy.source = None
                if any(node.op_type == "If" for node in copy.model.graph):
                    inline_branches(copy, sample, child, low=program is self.low)
                copies.append(copy)
        return dataclasses.replace(self, reference=copies[0], low=copies[1])


def subject_of(model: Source, low: Source | None, options: ConversionOptions) -> Subject:
    """Load both models; without a low one, convert the float32 one as the options say, without any repair.

    Raises:
        InputError: a model or an option is wrong.
    """
    job = Job(model, None, plan(options), {}, Clock(None))
    stages.load_source(job)
    if job.policy.copies or job.policy.low.dtype not in LOW_DTYPES:
        raise OptionError(
            "debug looks at a conversion to 16 bits: choose float16 or bfloat16, and no level or preset "
            "that copies the files"
        )
    stages.prepare_program(job)
    prepared = job.program
    low_name = None
    if low is None:
        converted = prepared.clone()
        convert(converted, job.policy, job.ranges)
        converted.source = None
        reference, other = prepared, converted
    else:
        loaded = load(low)
        low_name = str(loaded.source or "the low model")
        other = plain_copy(loaded)
        _require_low(other, low_name)
        _require_same_ends(other, low_name, job.source)
        reference = _closer(plain_copy(job.source), prepared, other)
    _require_float32(reference)
    for program in (reference, other):
        NameNodes()(program.model)
    return Subject(job.source, prepared, reference, other, low_name, job.policy, job.ranges)


def _closer(plain: Program, prepared: Program, low: Program) -> Program:
    """Return the form of the float32 program that a low one is closer to: as written, or with norms folded, say."""
    for program in (plain, low):
        NameNodes()(program.model)
    return min(plain, prepared, key=lambda program: len(pair(program, low).unmatched))


def _require_float32(program: Program) -> None:
    if (low := dtype_of(program)) is not None:
        raise InputError(
            f"the model {program.source or program!r} has {low.name} values itself: expected the float32 model that a "
            "low one is compared with; give that, and this one as the low model"
        )


def _require_low(program: Program, name: str) -> None:
    if dtype_of(program) is None:
        raise InputError(
            f"{name} has no float16 or bfloat16 values: expected a 16-bit model; "
            "leave it out to have the float32 model converted"
        )


def _require_same_ends(low: Program, name: str, source: Program) -> None:
    """Refuse a low program that reads an input which the float32 one lacks, or lacks one of its outputs."""
    reads = {value.name for value in low.model.graph.inputs if not value.is_initializer()}
    other = sorted(str(it) for it in reads - {value.name for value in source.model.graph.inputs})
    if other:
        raise InputError(
            f"{name} has the input '{other[0]}', which the float32 model lacks: expected a model made from that one"
        )
    outputs = {value.name for value in low.model.graph.outputs}
    missing = [str(value.name) for value in source.model.graph.outputs if value.name not in outputs]
    if missing:
        raise InputError(
            f"{name} lacks the output '{missing[0]}' of the float32 model: expected a model made from that one"
        )


def chosen_dtype(dtype: DtypeName | None, low: Program | None) -> DtypeName:
    """Return the low format that is asked for; without a wish that of a low program, or float16."""
    if dtype is not None:
        return dtype
    most = None if low is None else dtype_of(plain_copy(low))
    return "bfloat16" if most is not None and most.name == "bfloat16" else "float16"


def dtype_of(program: Program) -> LowFormat | None:
    """Return the 16-bit format that most results of a typed program have; None if none is in either."""
    counts = collections.Counter(
        value.dtype for node in all_nodes(program.model) for value in node.outputs if value.dtype in LOW_DTYPES
    )
    return low_format(counts.most_common(1)[0][0]) if counts else None
