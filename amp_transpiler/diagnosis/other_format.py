"""Tries the other 16-bit format: where many small roundings add up, that mends a model better than float32 nodes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.diagnosis.subject import Subject, subject_of
from amp_transpiler.errors import AmpError
from amp_transpiler.files.loading import Source
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.report.clock import Clock
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.systems.option_names import DtypeName
from amp_transpiler.verification.accuracy import CannotCompare, Reference
from amp_transpiler.verification.conversions import Conversions, Measured, judging_arithmetic
from amp_transpiler.verification.verify import signal_gains

__all__ = ["conversions_of", "in_other_format"]

logger = logging.getLogger(__name__)

_ERRORS: tuple[type[Exception], ...] = (*RUN_ERRORS, CannotCompare, AmpError)
_OTHER: Mapping[str, DtypeName] = {"float16": "bfloat16", "bfloat16": "float16"}


def conversions_of(subject: Subject, reference: Reference) -> Conversions:
    """Return the conversions of a float32 model, judged as `transpile` judges, so that what holds can be written."""
    prepared, policy = subject.prepared, subject.policy
    return Conversions(
        prepared,
        policy,
        subject.ranges,
        reference,
        None,
        Clock(None).phase,
        judging_arithmetic(prepared, policy),
        signal_gains(prepared, policy, reference),
    )


def in_other_format(
    model: Source, options: ConversionOptions, reference: Reference
) -> tuple[DtypeName, Measured] | None:
    """Return the other 16-bit format and a conversion to it, if that keeps the limits as it is; else None.

    Args:
        model: the float32 model.
        options: how it is converted to the format that does not keep them.
        reference: the samples, and what is right.
    """
    other = _OTHER.get(str(options.dtype))
    if other is None:
        return None
    try:
        subject = subject_of(model, None, dataclasses.replace(options, dtype=other))
        conversions = conversions_of(subject, reference)
        measured = conversions.measured(subject.policy)
    except _ERRORS as error:
        logger.info("no conversion to %s: %s", other, error_text(error))
        return None
    return (other, measured) if measured.excess <= 1.0 else None
