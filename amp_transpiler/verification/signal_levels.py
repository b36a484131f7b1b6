"""Judges a conversion on signals and pictures that are quieter or louder than those that the user gave.

A recording that was verified says little about the same one at a tenth of its level: what is near zero then loses
digits in a low format, or becomes zero. So given signals and pictures run at other levels, too, each once, rounded once
a node; the draws of a device's arithmetic run at the level where outputs differ most.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_source
from amp_transpiler.errors import AmpError
from amp_transpiler.graph.input_roles import ModelInput, names_sound
from amp_transpiler.program.program import Program
from amp_transpiler.verification.accuracy import (
    Reference,
    is_finite,
    is_practically_zero,
    named_outputs,
    open_emulated,
)
from amp_transpiler.verification.device_draws import error_of
from amp_transpiler.verification.disk_arrays import Spill
from amp_transpiler.verification.judge import Judge, Judged

__all__ = ["AS_GIVEN", "Gains", "JudgedAtGains", "scaled_inputs"]

logger = logging.getLogger(__name__)

AS_GIVEN = "as given"
_GAINS: Mapping[str, float] = {"at a tenth": 0.1, "at three times": 3.0}  # in words -> factor of the values
_QUIET: Mapping[str, float] = {"at a hundredth": 0.01}
_ROLES = frozenset({"image", "sound"})
_CHANNELS = 2  # of a sound at most, and sounds in a batch of one whose axes have no names
_LONG = 1024  # samples of a sound at least
_LEAST_PICTURE = 8  # rows and columns
_SILENT = "practically zero at another level of the inputs"


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedAtGains:
    """The judgement of a conversion where its outputs differ most.

    Attributes:
        judged: there.
        worst: that level in words; `AS_GIVEN` for the samples as they are.
        errors: level in words -> the largest relative error of an output, rounded once a node.
    """

    judged: Judged
    worst: str
    errors: Mapping[str, float]


class Gains:
    """The samples of a reference at other levels; each is run in float32 when it is first asked for.

    Args:
        reference: the samples as they were given.
        levels: in words -> the factor of the values.
    """

    def __init__(self, reference: Reference, levels: Mapping[str, float] | None = None) -> None:
        self._reference = reference
        self._levels = _GAINS if levels is None else levels
        self._inputs = scaled_inputs(reference.program.model, reference.samples[0]) if reference.given else ()
        self._known: dict[str, Reference] | None = None

    def references(self) -> Mapping[str, Reference]:
        """Return what float32 computes at each level, in words; none where no input is a signal or a picture."""
        if self._known is None:
            self._known = dict(self._run()) if self._inputs else {}
        return self._known

    def quieter(self) -> Gains:
        """Return the same samples at a hundredth of their level alone, where most conversions are not judged."""
        return Gains(self._reference, _QUIET)

    def rounded_once(self, program: Program, judge_of: Callable[[Reference], Judge]) -> tuple[float, float]:
        """Return the largest excess over the limits at these levels, and the largest error; zeros without levels.

        Args:
            program: a converted program; not changed.
            judge_of: returns what judges it against a reference.

        Raises:
            CannotCompare: the emulated program does not run.
        """
        references = self.references().values()
        if not references:
            return 0.0, 0.0
        with open_emulated(program) as emulated:
            judged = [(judge_of(at).rounded_once(emulated), at) for at in references]
        return max(judgement.excess for judgement, _ in judged), max(_error(*pair) for pair in judged)

    def judged(
        self,
        program: Program,
        judge_of: Callable[[Reference], Judge],
        *,
        binding: bool = True,
        certain: bool = False,
        deciding: int | None = None,
    ) -> JudgedAtGains:
        """Judge a converted program at every level, and by all draws where its outputs differ most.

        Args:
            program: the program; not changed.
            judge_of: returns what judges it against a reference.
            binding: whether limits are held at other levels, too; otherwise these are noted, and the judgement is that
                of the samples as given.
            certain: all draws run even if the limits are not kept.
            deciding: the turn of draws that runs first.

        Raises:
            CannotCompare: the emulated program does not run.
        """
        every = {AS_GIVEN: self._reference, **self.references()}
        if len(every) == 1:
            judged = judge_of(self._reference).judged(program, confirm=True, certain=certain, deciding=deciding)
            return JudgedAtGains(judged, AS_GIVEN, {})
        with open_emulated(program) as emulated:  # once for all levels
            plain = {words: judge_of(at).rounded_once(emulated) for words, at in every.items()}
        errors = {words: _error(judged, every[words]) for words, judged in plain.items()}
        worst = max(every, key=lambda words: (plain[words].excess, errors[words])) if binding else AS_GIVEN
        if plain[worst].excess > 1.0 and not certain:
            return JudgedAtGains(dataclasses.replace(plain[worst], confirmed=False), worst, errors)
        known = plain[worst].outputs, plain[worst].metric
        judge = judge_of(every[worst])
        judged = judge.judged(program, confirm=True, certain=certain, deciding=deciding, plain=known)
        return JudgedAtGains(judged, worst, errors)

    def _run(self) -> Iterator[tuple[str, Reference]]:
        """Yield the levels that the program accepts, and at which its outputs are finite and like those before."""
        reference = self._reference
        try:
            with open_source(reference.program) as session:
                for words, factor in self._levels.items():
                    sample_spill, output_spill = Spill(), Spill()
                    samples = [sample_spill.kept(_scaled(sample, self._inputs, factor)) for sample in reference.samples]
                    try:
                        outputs = [output_spill.kept(named_outputs(session, sample)) for sample in samples]
                    except RUN_ERRORS as error:
                        logger.info("float32 does not run on the samples %s: %s", words, error)
                        continue
                    if all(map(_is_like, outputs, reference.outputs)):
                        yield words, reference.with_samples(samples, outputs, _silent(outputs))
        except RUN_ERRORS as error:  # the prepared program stands in for the source: the samples as given are enough
            logger.info("the source does not open for further levels: %s", error)


def scaled_inputs(model: ir.Model, sample: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the inputs that are signals or pictures.

    Args:
        model: the model.
        sample: input name -> array; its shapes decide where those of the model are open.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    return tuple(name for name, array in sample.items() if name in inputs and _is_signal(inputs[name], array))


def _is_signal(value: ir.Value, array: Any) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.ndim == 0:
        return False
    try:
        info = ModelInput.of(value)
    except AmpError:  # no tensor
        return False
    if info.role == "image":
        return bool(min(sorted(array.shape)[-2:]) >= _LEAST_PICTURE)
    if info.role == "bytes":
        return array.ndim == len(("batch", "height", "width", "channels"))
    if array.dtype.kind != "f":
        return bool(array.dtype == np.int16) and _is_long(array)
    named = info.role == "sound" and names_sound(info.name, info.dims or ())
    # Any long row of floats has the role of a sound, and rows of features are none.
    return named or (info.role in ("sound", "numbers") and _is_long(array))


def _is_long(array: np.ndarray) -> bool:
    """Whether all but one axis are channels, or a batch of one."""
    sizes = sorted(array.shape)
    return sizes[-1] >= _LONG and all(size <= _CHANNELS for size in sizes[:-1])


def _scaled(sample: Mapping[str, Any], names: Sequence[str], factor: float) -> dict[str, Any]:
    return {name: _times(value, factor) if name in names else value for name, value in sample.items()}


def _times(array: np.ndarray, factor: float) -> np.ndarray:
    if array.dtype.kind == "f":
        return np.asarray(array * factor, array.dtype)
    info = np.iinfo(array.dtype)
    return np.asarray(np.clip(np.rint(array * factor), info.min, info.max), array.dtype)


def _is_like(outputs: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether outputs have the ranks of others, and are finite where those are."""
    return all(
        np.ndim(output) == np.ndim(before[name]) and (is_finite(output) or not is_finite(before[name]))
        for name, output in outputs.items()
    )


def _silent(outputs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the outputs of which a relative error says nothing."""
    return {name: _SILENT for name in outputs[0] if all(is_practically_zero(arrays[name]) for arrays in outputs)}


def _error(judged: Judged, reference: Reference) -> float:
    unjudged = reference.unjudged()
    return max((error_of(row) for name, row in judged.outputs.items() if name not in unjudged), default=0.0)
