"""`amp-transpile doctor --measure`: asks the GPU of this machine for the arithmetic of its kernels, and keeps it."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from amp_transpiler.cli.installation import Installation

if TYPE_CHECKING:
    from amp_transpiler.runtime.places import Place
    from amp_transpiler.runtime.probe.keeping import Summary

__all__ = ["Measured", "device_problem", "measure_device", "measured_lines"]

_LISTED = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """The answers of a device.

    Attributes:
        device: its name.
        summary: what the rows come to.
        file: where they lie; None if they could not be kept.
    """

    device: str
    summary: Summary
    file: pathlib.Path | None


def device_problem(machine: Installation) -> str | None:
    """Return why no device can be asked on a machine, or None."""
    if machine.runtime is None:
        return f"ONNX Runtime does not work here: {machine.runtime_error}"
    if machine.wanted_place.upper() == "CPU":
        return "AMP_TRANSPILER_PLACE is CPU: unset it, or name a CUDA device"
    return machine.place_problem or machine.cuda_problem


def device() -> Place:
    """Return the device to ask: the one that sessions run on by default, which `device_problem` has looked at."""
    from amp_transpiler.runtime.places import default_place

    return default_place()


def measure_device() -> Measured:
    """Ask the device all questions, and keep the answers.

    Raises:
        EnvironmentProblem: the device cannot be used.
    """
    from amp_transpiler.runtime.probe.keeping import keep, summarize
    from amp_transpiler.runtime.probe.measure import measure

    rows = list(measure(device()))
    return Measured(rows[0]["device"], summarize(rows), keep(rows))


def measured_lines(measured: Measured) -> list[str]:
    """Return what is printed of the answers."""
    summary = measured.summary
    counts = f"{summary.rows - summary.refused} kernels answered, {summary.refused} refused, {summary.on_cpu} ran"
    lines = [
        f"the arithmetic of {measured.device}",
        f"  {summary.rows} rows: {counts} on the CPU",
        f"  other results in every run: {_listed(summary.restless)}",
        f"  not as one rounding would have it: {_listed(summary.rounding)}",
    ]
    where = measured.file or "nowhere: the cache folder is switched off or cannot be written to"
    return [*lines, f"  kept in {where}"]


def _listed(names: tuple[str, ...]) -> str:
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) + more) or "none"
