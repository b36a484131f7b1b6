"""Runs the float32 program and the emulated low one on the same inputs, given or made up; compares their outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import RemoteSession, open_program, open_source
from amp_transpiler.errors import InputError
from amp_transpiler.graph.tensors import tensor_bytes
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.precision.limits import Limits
from amp_transpiler.program.program import Program
from amp_transpiler.report import OutputComparison
from amp_transpiler.runtime.feeds import check_feeds
from amp_transpiler.runtime.memory import available_memory
from amp_transpiler.runtime.openable import AnyProgram
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.verification.close_labels import Watch
from amp_transpiler.verification.compare import compare_outputs
from amp_transpiler.verification.disk_arrays import Spill
from amp_transpiler.verification.first_states import first_states
from amp_transpiler.verification.inputs import Inputs, named_inputs
from amp_transpiler.verification.made_up_states import with_made_up_states
from amp_transpiler.verification.output_kind import OutputKind
from amp_transpiler.verification.placed_kinds import read_outputs
from amp_transpiler.verification.randomness import differing, random_upstream
from amp_transpiler.verification.rounded import RoundedOutputs, rounded_outputs
from amp_transpiler.verification.rounding_noise import DECIDED, Nudge, changed_much
from amp_transpiler.verification.steered import steered_samples
from amp_transpiler.verification.synthesis import CannotSynthesise, further_samples, synthesise_inputs

__all__ = [
    "CannotCompare",
    "Emulated",
    "Reference",
    "intermediate_values",
    "is_finite",
    "is_practically_zero",
    "make_reference",
    "named_outputs",
    "open_emulated",
]

logger = logging.getLogger(__name__)

_FURTHER_RUNS = 3  # of a program with random operators, after the two in one session and the two in new ones
_PRACTICALLY_ZERO = 2.0**-14  # float16's smallest normal number
_COPIES = 5  # opening a session holds weights about twice, for the float32 and for the emulated program


class CannotCompare(Exception):
    """The programs cannot be compared; the message gives the reason and a remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """The float32 program's inputs and outputs.

    Attributes:
        program: the float32 program.
        samples: input name -> array, one dict per sample.
        outputs: output name -> array, one dict per sample.
        given: the inputs are the user's, not made up.
        name: how the verdict calls the program.
        unsteady: the names of outputs that differ between two runs of the program -> why, as far as it is known.
    """

    program: Program
    samples: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    given: bool
    name: str = "float32"
    unsteady: Mapping[str, str] = dataclasses.field(default_factory=dict)
    _fetched: dict[tuple[str, ...], list[dict[str, Any]]] = dataclasses.field(default_factory=dict, repr=False)
    _added: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    _rounded: list[tuple[str, ...]] = dataclasses.field(default_factory=list, repr=False)  # once it is known

    def feeds(self, inputs: Iterable[str]) -> list[dict[str, Any]]:
        """Return the samples for a program with these inputs: the source, or a result, which may have states more."""
        known = set(inputs)
        every = ({**self._added, **sample} for sample in self.samples)
        return [{name: value for name, value in sample.items() if name in known} for sample in every]

    def feeds_of(self, model: ir.Model) -> list[dict[str, Any]]:
        """Return the samples for a model, whose inputs may be float32 where those of the source are float64."""
        inputs = {str(value.name): value.dtype for value in model.graph.inputs}
        return [{name: _in_type(value, inputs[name]) for name, value in feed.items()} for feed in self.feeds(inputs)]

    def of_graph(self, source: Program) -> Reference:
        """Return the part of it that concerns a graph with fewer inputs and outputs, that of `source`."""
        graph = source.model.graph
        inputs, outputs = {str(v.name) for v in graph.inputs}, {str(v.name) for v in graph.outputs}
        return Reference(
            source,
            [{name: array for name, array in sample.items() if name in inputs} for sample in self.samples],
            [{name: array for name, array in values.items() if name in outputs} for values in self.outputs],
            self.given,
            self.name,
            {name: why for name, why in self.unsteady.items() if name in outputs},
        )

    def with_samples(
        self, samples: list[dict[str, Any]], outputs: list[dict[str, Any]], unsteady: Mapping[str, str] | None = None
    ) -> Reference:
        """Return one of the same program with other samples.

        Args:
            samples: input name -> array, one dict per sample.
            outputs: output name -> array, one dict per sample.
            unsteady: further outputs that are not judged -> why.
        """
        unsteady = {**(unsteady or {}), **self.unsteady}
        added = dict(self._added)
        return dataclasses.replace(self, samples=samples, outputs=outputs, unsteady=unsteady, _fetched={}, _added=added)

    def beside(self, other: Reference) -> Reference:
        """Return one with the samples of another, too, of the same program."""
        return self.with_samples([*self.samples, *other.samples], [*self.outputs, *other.outputs])

    def unjudged(self) -> dict[str, str]:
        """Return the names of outputs whose errors say nothing -> why."""
        if self.given:
            return dict(self.unsteady)
        zero = [name for name in self.outputs[0] if all(is_practically_zero(o[name]) for o in self.outputs)]
        return {**dict.fromkeys(zero, "practically zero on made-up inputs"), **self.unsteady}

    def compare(
        self, low: Program, limits: Limits, keep: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, OutputComparison]:
        """Run `low`, emulated, on the samples and compare every output.

        Args:
            low: the converted program.
            limits: by which close labels are excused.
            keep: is given the outputs of each sample.

        Raises:
            CannotCompare: the emulated program does not run.
        """
        with open_emulated(low) as emulated:
            return self.compare_emulated(emulated, limits, keep)

    def compare_emulated(
        self, low: Emulated, limits: Limits, keep: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, OutputComparison]:
        """Do what `compare` does with a program that is open already, such as for other samples."""
        session = low.session
        self._added.update(first_states(low.program, session, self.samples))
        # Inputs that changed their type take the samples in the new one.
        feeds = self.feeds(info.name for info in session.inputs)
        samples = (check_feeds(sample, session.inputs, lenient=True) for sample in feeds)
        results = (_passed_to_keep(named_outputs(session, sample), keep) for sample in samples)  # one after the other
        return self.compare_results(results, limits, read_outputs(low.program.model, self.samples[0]))

    def compare_results(
        self,
        results: Iterable[Mapping[str, Any]],
        limits: Limits,
        kinds: Mapping[str, OutputKind] | None = None,
    ) -> dict[str, OutputComparison]:
        """Compare the outputs of another program; labels that float32 decided by a hair's breadth are excused.

        Args:
            results: output name -> array, one mapping per sample.
            limits: by which they are excused.
            kinds: output name -> how its numbers are to be read, as far as the graph says it.
        """
        watch = Watch(self.program.model.graph, self.outputs, limits)
        if not self._rounded:
            self._rounded.append(rounded_outputs(self.program.model))
        rounded = RoundedOutputs(self._rounded[0], self.outputs, limits)
        rows = compare_outputs(self.outputs, rounded.watched(watch.watched(results)), kinds)
        return rounded.measured(watch.excused(rows, self._fetch))

    def _fetch(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return values of the main graph, of every sample; those that cannot be had are missing."""
        if tuple(names) not in self._fetched:
            constants = self.program.model.graph.initializers
            fixed = {name: constants[name].const_value for name in names if name in constants}
            known = {name: tensor.numpy() for name, tensor in fixed.items() if tensor is not None}
            try:
                values = intermediate_values(self.program, names, self.samples)
            except CannotCompare as reason:
                logger.info("no label is excused: %s", reason)
                values = [{} for _ in self.samples]
            complete = [{**known, **sample, **fetched} for sample, fetched in zip(self.samples, values, strict=True)]
            self._fetched[tuple(names)] = complete
        return self._fetched[tuple(names)]


@dataclasses.dataclass(frozen=True, slots=True)
class Emulated:
    """A converted program, and the session that runs its emulation: each low result is rounded once."""

    program: Program
    session: RemoteSession


@contextlib.contextmanager
def open_emulated(low: Program) -> Iterator[Emulated]:
    """Open the emulation of a converted program.

    Raises:
        CannotCompare: the emulated program does not open, or what the caller runs in it fails.
    """
    try:
        with open_program(low) as session:
            yield Emulated(low, session)
    except RUN_ERRORS as error:
        raise CannotCompare(f"the emulated program does not run: {error_text(error)}") from error


def make_reference(
    source: Program,
    fallback: Program,
    inputs: Inputs | None,
    step: TrainingStep | None = None,
    *,
    further: int = 0,
) -> Reference:
    """Run the float32 program on `inputs`, or on inputs made up for it.

    Args:
        source: the program as the user gave it.
        fallback: the prepared program, for a source that ONNX Runtime does not load because its IR version or opset
            is too new.
        inputs: the user's, or None.
        step: the states of a training step, which are made up by their roles.
        further: how many samples of other numbers and scales are made up after the first; see `further_samples`.

    Raises:
        CannotCompare: the program does not run here, or refuses all made-up inputs.
        InputError: the user's inputs do not fit the model.
    """
    _require_memory(source.model)
    with _open(source, fallback) as (program, session):
        last_run = _LastRun(session)
        samples, outputs, sample_spill, output_spill = [], [], Spill(), Spill()
        is_in_memory = isinstance(inputs, (Mapping, list, tuple))
        try:
            for sample in _samples(program, last_run, inputs, step, further):
                outputs.append(output_spill.kept(last_run.outputs(sample)))
                samples.append(sample if is_in_memory else sample_spill.kept(sample))
            repeated = differing(outputs[0], named_outputs(session, samples[0]))
        except RUN_ERRORS as error:
            message = f"the float32 model fails on the given inputs: {error_text(error, limit=180)}"
            raise InputError(f"{message}; supply inputs that it accepts") from error
    random = random_upstream(program.model)
    if random:
        opened = program if program is fallback else program.origin
        outputs, repeated = _run_random(opened, samples, random, repeated)
    unsteady = {name: _why_unsteady(random.get(name, [])) for name in outputs[0] if name in repeated}
    if step is not None:
        unsteady = {**dict.fromkeys(_decided_by_rounding(program, step, samples, outputs), DECIDED), **unsteady}
    return Reference(program, samples, outputs, inputs is not None, unsteady=unsteady)


def _run_random(
    opened: AnyProgram, samples: list[dict[str, Any]], random: Mapping[str, list[ir.Node]], repeated: set[str]
) -> tuple[list[dict[str, Any]], set[str]]:
    """Run a program with random operators again: one with a seed draws the same numbers in every new session.

    Args:
        opened: the program.
        samples: the inputs.
        random: the random operators that the outputs depend on.
        repeated: names of outputs that differed when the program ran again in one session.

    Returns:
        The outputs, and the names of those that differ from one new session to the next.
    """
    with open_program(opened, emulate=False) as session:
        spill = Spill()
        outputs = [spill.kept(named_outputs(session, sample)) for sample in samples]
    with open_program(opened, emulate=False) as session:
        again = named_outputs(session, samples[0])
        further = [named_outputs(session, samples[0]) for _ in range(_FURTHER_RUNS)]
    # Without a seed, sessions of one process may draw the same numbers, but those of another program do not.
    unseeded = {name for name, nodes in random.items() if any("seed" not in node.attributes for node in nodes)}
    for results in further:  # few draws of few values may be equal by chance
        repeated = repeated | differing(outputs[0], results)
    return outputs, differing(outputs[0], again) | (repeated & unseeded)


def _decided_by_rounding(
    program: Program, step: TrainingStep, samples: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the outputs of a training step that are another if the samples change in their last places."""
    nudge = Nudge.of(program.model)
    with open_source(program) as session:
        nudged = [named_outputs(session, sample) for sample in nudge.applied(samples, step)]
    return changed_much(outputs, nudged, nudge.much)


def _why_unsteady(random: Sequence[ir.Node]) -> str:
    if not random:
        return "two runs in float32 differ"
    return f"random: {random[0].op_type} '{random[0].name or random[0].outputs[0].name}'"


def intermediate_values(
    program: Program, names: Iterable[str], samples: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Run a program as it is, and return the named values of its main graph, those that it computes.

    Raises:
        CannotCompare: it does not run with them as outputs.
    """
    exposed = program.clone()
    exposed.source = None  # a session must open the edited model, not its file
    graph = exposed.model.graph
    present = {str(value.name) for value in graph.outputs}
    by_name = {str(value.name): value for node in graph for value in node.outputs}
    fetched = [name for name in dict.fromkeys(names) if name in by_name]
    graph.outputs.extend(by_name[name] for name in fetched if name not in present)
    try:
        with open_program(exposed, emulate=False) as session:
            runs = [session.run(sample, fetched) for sample in samples]
    except RUN_ERRORS as error:
        raise CannotCompare(f"the program does not run with its intermediates as outputs: {error}") from error
    return [dict(zip(fetched, arrays, strict=True)) for arrays in runs]


class _LastRun:
    """Runs a session, and remembers the last run: samples that were tried need not run again.

    Args:
        session: the session.
    """

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._sample: dict[str, Any] | None = None
        self._outputs: dict[str, Any] = {}

    def outputs(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs for a sample by name."""
        if sample is not self._sample:
            self._outputs = named_outputs(self._session, sample)
            self._sample = sample
        return self._outputs


def _made_up(model: ir.Model, last_run: _LastRun, step: TrainingStep | None) -> tuple[dict[str, Any], bool]:
    """Make inputs up; if they leave every output practically zero, as with a detector, draw other images.

    Returns:
        The sample, and whether its images are drawn.
    """
    try:
        sample = synthesise_inputs(model, last_run.outputs)
        if all(map(is_practically_zero, last_run.outputs(sample).values())):
            drawn = synthesise_inputs(model, last_run.outputs, drawn=True)
            if not all(map(is_practically_zero, last_run.outputs(drawn).values())):
                return drawn, True
    except CannotSynthesise as error:
        raise CannotCompare(f"no inputs could be made up ({error}); supply some with --inputs") from error
    return (sample if step is None else with_made_up_states(sample, step, last_run.outputs)), False


def _samples(
    program: Program, last_run: _LastRun, inputs: Inputs | None, step: TrainingStep | None, further: int
) -> Iterator[dict[str, Any]]:
    """Yield the user's samples, read one after the other, or made-up ones."""
    if inputs is not None:
        yield from (sample for _, sample in named_inputs(inputs, program.model))
        return
    sample, drawn = _made_up(program.model, last_run, step)
    yield sample
    if step is not None:
        return
    accepted = [sample]
    if further:
        for further_sample in _further(program.model, last_run, sample, further, drawn=drawn):
            accepted.append(further_sample)
            yield further_sample

    def accepts(further_sample: dict[str, Any]) -> bool:
        return _is_comparable(last_run.outputs(sample), last_run.outputs(further_sample))

    yield from steered_samples(program, accepted, accepts)


def _further(
    model: ir.Model, last_run: _LastRun, first: dict[str, Any], count: int, *, drawn: bool
) -> Iterator[dict[str, Any]]:
    """Yield samples of other numbers and scales than the first: ranges of real data are not known.

    One that leaves the range of float32, or gives outputs of other ranks than the first, says nothing.
    """
    outputs = last_run.outputs(first)
    for sample in further_samples(model, last_run.outputs, count, drawn=drawn):
        other = last_run.outputs(sample)
        if set(sample) == set(first) and _is_comparable(outputs, other):
            yield sample


def _is_comparable(first: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the outputs of a further made-up sample are finite, and of the ranks of the first one's."""
    alike = all(np.ndim(other[name]) == np.ndim(output) for name, output in first.items())
    return alike and all(map(is_finite, other.values()))


def is_finite(output: Any) -> bool:
    """Whether an output has no infinite number and no NaN."""
    return not isinstance(output, np.ndarray) or output.dtype.kind not in "fc" or bool(np.isfinite(output).all())


def is_practically_zero(output: Any) -> bool:
    """Whether the largest magnitude of a float output is too small for a relative error to mean anything."""
    if not isinstance(output, np.ndarray) or output.dtype.kind != "f" or not output.size:
        return False
    return bool(np.abs(output).max() < _PRACTICALLY_ZERO)


@contextlib.contextmanager
def _open(source: Program, fallback: Program) -> Iterator[tuple[Program, RemoteSession]]:
    with contextlib.ExitStack() as stack:
        try:
            opened = source, stack.enter_context(open_source(source))
        except RUN_ERRORS as error:
            first = error_text(error)
            logger.info("the source does not load as it stands: %s", first)
            try:
                opened = fallback, stack.enter_context(open_program(fallback, emulate=False))
            except RUN_ERRORS:
                raise CannotCompare(f"the float32 model does not load in ONNX Runtime on the CPU: {first}") from error
        yield opened


def _passed_to_keep(outputs: dict[str, Any], keep: Callable[[dict[str, Any]], None] | None) -> dict[str, Any]:
    if keep is not None:
        keep(outputs)
    return outputs


def named_outputs(session: RemoteSession, sample: dict[str, Any]) -> dict[str, Any]:
    """Run a session and return its outputs by name."""
    return dict(zip((info.name for info in session.outputs), session.run(sample), strict=True))


def _require_memory(model: ir.Model) -> None:
    needed, free = _COPIES * sum(tensor_bytes(model)), available_memory()
    if free is not None and needed > free:
        raise CannotCompare(
            f"comparing would need about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free; "
            "compare on a larger machine"
        )


def _in_type(value: Any, dtype: ir.DataType | None) -> Any:
    """Return a sample in float32 where that is what an input takes, and float64 what was given."""
    is_narrowed = isinstance(value, np.ndarray) and value.dtype == np.float64 and dtype is ir.DataType.FLOAT
    return value.astype(np.float32) if is_narrowed else value
