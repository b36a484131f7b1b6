"""`amp-transpile debug`: which node of a low model is guilty, and what mends it."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from amp_transpiler.cli import printing
from amp_transpiler.cli.debug_options import DebugOptions
from amp_transpiler.cli.exit_status import CHECK_FAILED, OK
from amp_transpiler.cli.log import logging_to_stderr
from amp_transpiler.cli.places import check_reports
from amp_transpiler.cli.record_forms import show
from amp_transpiler.cli.releases import releases
from amp_transpiler.errors import OutputError
from amp_transpiler.files.loading import load
from amp_transpiler.files.occupied import occupied
from amp_transpiler.report.diagnosis_page import diagnosis_page
from amp_transpiler.report.diagnosis_text import diagnosis_text, something_is_wrong
from amp_transpiler.report.picture import graphs_of
from amp_transpiler.report.recipe import recipe_beside

if TYPE_CHECKING:
    from amp_transpiler.report.diagnosis import Diagnosis

__all__ = ["debug"]


def debug(options: DebugOptions) -> int:
    """Diagnose a model, print and write the result, and return the exit status.

    Raises:
        InputError: a model, an option, or the place of a result is wrong.
    """
    with logging_to_stderr(options.verbose):
        _check_places(options)
        if options.releases is not None:
            return releases(options, *options.releases)
        diagnosis = _diagnosed(options)
        show(
            diagnosis,
            diagnosis_text(diagnosis),
            lambda: diagnosis_page(diagnosis, graphs_of(load(options.float32))),
            json=options.json,
            report=options.report,
        )
    is_wrong = something_is_wrong(diagnosis)
    is_mended = diagnosis.cure is not None and diagnosis.cure.written is not None
    if options.fix is not None and not is_mended:
        printing.message("note", f"{options.fix} is not written: {_why_not_written(diagnosis, is_wrong=is_wrong)}")
    return CHECK_FAILED if is_wrong and not is_mended else OK


def _why_not_written(diagnosis: Diagnosis, *, is_wrong: bool) -> str:
    if not is_wrong:
        return "there is nothing to mend"
    return "there is no cure" if diagnosis.cure is None else "the checks of a conversion refuse it"


def _diagnosed(options: DebugOptions) -> Diagnosis:
    from amp_transpiler.diagnosis.debug import debug as diagnose  # behind the checks of places, which take no time

    return diagnose(
        options.float32,
        options.low,
        inputs=options.inputs,
        dtype=options.dtype,
        level=options.level,
        target=options.target,
        ort=options.ort,
        device=options.device,
        tolerance=options.tolerance,
        device_check=options.device_check,
        cure=not options.no_cure,
        fix=None if options.fix is None else pathlib.Path(options.fix),
    )


def _check_places(options: DebugOptions) -> None:
    """Raise OutputError if a result would replace a file of a model, or another result, or has no folder."""
    models = [options.float32, *([options.low] if options.low is not None else [])]
    taken: dict[pathlib.Path, str] = {}
    if options.fix is not None:
        for place in _places_of(options.fix):
            if (file := occupied(place, models)) is not None:
                raise OutputError(f"--fix {options.fix}: {file} is a file of a model that is read; choose another name")
            taken[place.resolve()] = f"written by --fix {options.fix}"
    check_reports({"--report": options.report, "--json": options.json}, models, taken)


def _places_of(fix: str) -> list[pathlib.Path]:
    """Return the files that `--fix` writes.

    Raises:
        OutputError: they cannot be written there.
    """
    if pathlib.Path(fix).is_dir():  # which may have no name, such as `.`
        raise OutputError(f"--fix {fix}: is a folder; give the mended model a name")
    places = [pathlib.Path(fix), recipe_beside(fix)]
    for place in places:
        if place.is_dir() or not place.resolve().parent.is_dir():
            raise OutputError(f"--fix {fix}: {place} cannot be written; give a file in a folder that exists")
    return places
