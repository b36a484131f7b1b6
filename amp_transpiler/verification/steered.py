"""Made-up samples that take the branches of Ifs which the first samples do not take."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.constness import constant_tensor
from amp_transpiler.ops.names import is_standard
from amp_transpiler.program.program import Program
from amp_transpiler.verification.unseen_behaviour import taken_branches

__all__ = ["steered_samples"]

logger = logging.getLogger(__name__)

_MOST_TRIES = 16
_NUMBERS = (0, 1, 2, -1, 8000, 16000)  # for a single integer: switches, and rates of sound
_FACTORS = (-1.0, 0.0)  # for floats, which conditions compare with thresholds; larger ones would overflow
_REFUSALS: tuple[type[Exception], ...] = (*RUN_ERRORS, ModelError)


def steered_samples(
    program: Program, samples: Sequence[Mapping[str, Any]], accepts: Callable[[dict[str, Any]], bool]
) -> Iterator[dict[str, Any]]:
    """Yield samples that take branches which no sample before takes: truth values and numbers that steer are changed.

    Args:
        program: the float32 program; not changed.
        samples: made-up inputs that it accepts.
        accepts: whether a sample runs, and its outputs can be compared.
    """
    ifs = [node for node in program.model.graph if node.op_type == "If" and is_standard(node)]
    if not any(constant_tensor(node.inputs[0]) is None for node in ifs):
        return
    try:
        seen = taken_branches(program, samples)
        for candidate in itertools.islice(_candidates(samples[0]), _MOST_TRIES):
            if all((name, not truth) in seen for name, truth in seen):
                return
            with contextlib.suppress(*RUN_ERRORS):  # the model refuses it
                if accepts(candidate) and (new := taken_branches(program, [candidate]) - seen):
                    seen |= new
                    yield candidate
    except _REFUSALS as error:
        logger.info("branches are not steered: %s", error)


def _candidates(sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield samples of which one input, or all floats, are others; what steers most likely comes first."""
    arrays = {name: value for name, value in sample.items() if isinstance(value, np.ndarray)}
    for name, array in arrays.items():
        if array.dtype.kind == "b":
            yield {**sample, name: ~array}
    for name, array in arrays.items():
        if array.dtype.kind in "iu" and array.size == 1:
            for number in _NUMBERS:
                if number >= 0 or array.dtype.kind == "i":
                    with contextlib.suppress(OverflowError):  # int8 has no 16000
                        yield {**sample, name: np.full(array.shape, number, array.dtype)}
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    for factor in _FACTORS if floats else ():
        yield {**sample, **{name: array * array.dtype.type(factor) for name, array in floats.items()}}
