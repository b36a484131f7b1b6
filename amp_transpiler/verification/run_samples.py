"""Runs samples, and gives as many as runs are wanted: beside those that there are, the first in another order.

A fault that a session shows in its second run only needs a second run on other numbers to be seen.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from amp_transpiler.child_process.child import RUN_ERRORS
from amp_transpiler.child_process.remote import open_source
from amp_transpiler.errors import InputError
from amp_transpiler.runtime.feeds import ValueInfo, check_feeds, reordered
from amp_transpiler.verification.accuracy import Reference, named_outputs

__all__ = ["RUNS", "RunsSamples", "for_runs", "run_sample"]

logger = logging.getLogger(__name__)

RUNS = 3
"""Runs of each session on a device, each on another sample."""

_REFUSALS: tuple[type[Exception], ...] = (*RUN_ERRORS, InputError)


class RunsSamples(Protocol):
    """A session, as far as a check needs it: `RemoteSession`, or a planted one of a test."""

    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]

    def run(self, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None) -> list[Any]:
        """Run once and return the outputs, in the order of `fetch`."""
        ...


def run_sample(session: RunsSamples, sample: Mapping[str, Any], fetch: Sequence[str] | None = None) -> list[Any]:
    """Run a session once, on those of a sample's arrays that it takes, in its types.

    Args:
        session: the session.
        sample: input -> array.
        fetch: the results to return, in this order; None for all outputs.
    """
    names = {info.name for info in session.inputs}
    feeds = {name: value for name, value in sample.items() if name in names}
    return session.run(check_feeds(feeds, session.inputs, lenient=True), fetch)


def for_runs(reference: Reference, runs: int = RUNS) -> Reference:
    """Return a reference with one sample for each run, and the float32 outputs of all of them.

    Further samples are the first one reordered. Where the float32 program refuses them, the first sample runs again.

    Args:
        reference: the samples and outputs that are known.
        runs: how many samples are wanted.
    """
    samples, outputs = list(reference.samples[:runs]), list(reference.outputs[:runs])
    missing = runs - len(samples)
    if missing:
        further = [reordered(samples[0], shift) for shift in range(1, missing + 1)]
        results = _fp32_outputs(reference, further)
        if results is None:
            further, results = [samples[0]] * missing, [outputs[0]] * missing
        samples, outputs = samples + further, outputs + results
    return dataclasses.replace(reference, samples=samples, outputs=outputs, _fetched={})


def _fp32_outputs(reference: Reference, samples: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return what float32 computes for samples; None if it refuses one."""
    try:
        with open_source(reference.program) as session:
            return [named_outputs(session, sample) for sample in samples]
    except _REFUSALS as error:
        logger.info("the float32 program refuses a reordered sample, so the first one runs again: %s", error)
        return None
