"""`amp-transpile debug --ort OLD NEW`: what changes for a model between two releases of ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_transpiler.cli.debug_options import DebugOptions
from amp_transpiler.cli.exit_status import CHECK_FAILED, OK
from amp_transpiler.cli.record_forms import show
from amp_transpiler.report.release_page import release_page
from amp_transpiler.report.release_text import release_text

if TYPE_CHECKING:
    from amp_transpiler.report.release_difference import ReleaseDifference

__all__ = ["releases"]


def releases(options: DebugOptions, old: str, new: str) -> int:
    """Compare two releases, print and write the result, and return the exit status.

    Raises:
        InputError: a model, an option, an interpreter or the place of a result is wrong.
    """
    difference = _compared(options, old, new)
    show(
        difference,
        release_text(difference),
        lambda: release_page(difference),
        json=options.json,
        report=options.report,
    )
    return CHECK_FAILED if difference.something_changes else OK


def _compared(options: DebugOptions, old: str, new: str) -> ReleaseDifference:
    from amp_transpiler.diagnosis.releases.compare import compare_releases  # behind the checks, which take no time

    assert not isinstance(options.tolerance, str), "the options were checked"
    return compare_releases(
        options.float32,
        options.low,
        ort=(old, new),
        inputs=options.inputs,
        python=options.python,
        dtype=options.dtype,
        level=options.level,
        target=options.target,
        device=options.device,
        tolerance=options.tolerance,
    )
