"""One call of `transpile`: what it asks for, and its model, loaded and marked with the user's words about nodes."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from amp_transpiler.conversion import fitted
from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import Source, load
from amp_transpiler.files.saving import check_destination
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.graph.regions import DISABLE_AMP, FP16_GUARD, INCLUDE, mark_region
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.program.assemble import written_model
from amp_transpiler.program.program import Program
from amp_transpiler.program.training_info import merge
from amp_transpiler.report import Report
from amp_transpiler.report.describe import describe_source
from amp_transpiler.report.recipe import Recipe
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.systems.program_names import IoTypes, limits_by_output, low_inputs_and_outputs, resolved_lists
from amp_transpiler.targets import Target
from amp_transpiler.targets.releases import choose_release, installed_version
from amp_transpiler.verification.verify import Questions

__all__ = ["Begun", "Job", "Marks", "begin", "with_program"]


@dataclasses.dataclass(frozen=True, slots=True)
class Marks:
    """The user's words about single inputs, outputs and nodes; see `transpile`."""

    keep_io_types: IoTypes
    guard: str | Collection[str]
    disable_amp: str | Collection[str]
    include: str | Collection[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """The arguments of `transpile` that no policy is made of."""

    src: Source
    dst: str | os.PathLike[str] | None
    amp_lists: UserLists | None
    marks: Marks
    recipe: Recipe | None
    asked: Questions
    settings: Mapping[str, Any]
    verify: bool
    optimize: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """A conversion whose model is loaded.

    Attributes:
        given: the model, with the outputs that were set by hand.
        source: the same, followed by the training algorithms that it carries.
        program: a copy to work on; the source itself where nothing is compared with it.
        policy: how to decide, with the facts of the model.
        report: describes the source.
        destination: the file to write, or None.
    """

    given: Program
    source: Program
    program: Program
    policy: Policy
    report: Report
    destination: pathlib.Path | None


@collection_paused()
def begin(job: Job, request: Request, chosen: Policy) -> Begun:
    """Load the model of a call, and mark the user's regions in it.

    Args:
        job: the call.
        request: what decides, as it was asked for.
        chosen: how it decides, before anything is known of the model.

    Raises:
        InputError: the model, a name in an option, or the output place is wrong.
    """
    destination = None if job.dst is None else pathlib.Path(job.dst)
    loaded = _with_its_outputs(load(job.src))
    if destination is not None:
        check_destination(destination, loaded)
    if job.amp_lists is not None:
        request = dataclasses.replace(request, lists=resolved_lists(job.amp_lists, loaded, request.low.name))
        asked_fields = {
            name: getattr(chosen, name)
            for name in (
                *("limits", "wishes", "settled", "search_runs", "objective", "headroom", "thresholds"),
                *("device", "dims"),
            )
        }
        chosen = dataclasses.replace(choose_policy(request), **asked_fields)
    chosen = dataclasses.replace(chosen, limits=limits_by_output(loaded, chosen.limits))
    source = _with_algorithms(loaded, chosen)
    # Verification compares with the source, and level auto may write it: they work on a program of their own.
    needs_source = job.verify or chosen.objective != "rules" or not isinstance(job.src, (str, os.PathLike))
    program = source.clone() if needs_source else source
    chosen = chosen if job.optimize else with_program(chosen, program, job.marks)
    report = describe_source(
        source, destination, chosen, level=request.level_name, system=request.system, asked=request.label
    )
    report.notes = _first_notes(request, chosen.target, verify=job.verify and not chosen.copies)
    report.settings = job.settings
    return Begun(loaded, source, program, chosen, report, destination)


def _with_algorithms(source: Program, policy: Policy) -> Program:
    """Return a program whose graph is followed by the training algorithms that it carries; itself if there are none."""
    if not source.training_info or policy.copies:
        return source
    whole = source.clone()
    merge(whole)
    return whole


def _with_its_outputs(program: Program) -> Program:
    """Return the program with the outputs that were set by hand, as `save` writes it; a training program as it is."""
    if program.is_training or (model := written_model(program)) is program.model:
        return program
    chosen = Program(model)
    chosen.training_info = program.training_info
    return chosen


def _first_notes(request: Request, target: Target, *, verify: bool) -> tuple[str, ...]:
    """Say so if another ONNX Runtime decides than the one asked for, or checks the result than the one it is for."""
    notes = [note for note in (request.note, target.choice.note) if note]
    if verify and choose_release(None).release is not target.release:
        notes.append(f"checked with the installed ONNX Runtime {installed_version()}; {target.ort} was not run")
    return tuple(notes)


def with_program(policy: Policy, program: Program, asked: Marks) -> Policy:
    """Mark the user's regions in the program, and return the policy with the program's own facts filled in.

    Args:
        policy: how to decide.
        program: the program; edited in place.
        asked: the user's words.

    Raises:
        OptionError: they have no meaning for this policy, or name nothing that is there.
    """
    marks = {"guard": asked.guard, "disable_amp": asked.disable_amp, "include": asked.include}
    for name, patterns in marks.items():
        if patterns and (policy.low is FLOAT32 or (policy.copies and name == "include")):
            what = "everything becomes float32" if policy.low is FLOAT32 else "nothing is changed"
            raise OptionError(f"{name} has no meaning where {what}: drop it, or choose another dtype, level or preset")
    for kind, patterns in ((FP16_GUARD, asked.guard), (DISABLE_AMP, asked.disable_amp), (INCLUDE, asked.include)):
        for pattern in (patterns,) if isinstance(patterns, str) else patterns:
            mark_region(program, kind, nodes=pattern)
    low_io = low_inputs_and_outputs(program, asked.keep_io_types, policy.low.name)
    fitting = fitted(dataclasses.replace(policy, low_io=low_io), program)
    # A guard named for this conversion counts under every system's rules, not only under Paddle's.
    return dataclasses.replace(fitting, use_guard=policy.use_guard or bool(asked.guard), included=bool(asked.include))
