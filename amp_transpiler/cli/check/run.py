"""One run of the check: every model, then the report."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from amp_transpiler.cli import printing
from amp_transpiler.cli.check.examine import examine
from amp_transpiler.cli.check.finding import SEVERITIES, Checked, Severity
from amp_transpiler.cli.check.formats import written
from amp_transpiler.cli.check.options import CHECK, NEVER, CheckOptions
from amp_transpiler.cli.exit_status import CHECK_FAILED, OK
from amp_transpiler.cli.log import logging_to_stderr
from amp_transpiler.cli.places import STREAM, check_name
from amp_transpiler.cli.sources import onnx_files
from amp_transpiler.errors import OptionError, OutputError
from amp_transpiler.files.durable import write_file

__all__ = ["check"]


def check(options: CheckOptions) -> int:
    """Look at every model, print or write what was found, and return the exit status.

    Raises:
        InputError: there is no model, or the report has no place.
    """
    with logging_to_stderr(options.verbose):
        models = list(dict.fromkeys(_models(options.places)))
        _check_place(options.output, models)
        ignored = frozenset(options.ignore)
        findings = [finding for model in models for finding in examine(model, options.device, ignored)]
        checked = Checked(tuple(map(str, models)), tuple(findings), _severity(options.fail_on))
        text = written(checked, options.format)
        if options.output == STREAM:
            printing.output(text)
        else:
            write_file(options.output, f"{text}\n".encode("utf-8", errors="backslashreplace"))
        return CHECK_FAILED if checked.has_failed else OK


def _severity(text: str) -> Severity | None:
    return None if text == NEVER else next(severity for severity in SEVERITIES if severity == text)


def _models(places: list[str]) -> Iterator[pathlib.Path]:
    for text in places:
        place = pathlib.Path(text)
        if not place.exists():
            raise OptionError(f"{CHECK} {text}: no such file or folder; give a model, or a folder of models")
        if not place.is_dir():
            yield place
            continue
        files = list(onnx_files(place, recursive=True))
        if not files:
            raise OptionError(f"{CHECK} {text}: this folder has no .onnx file, nor have the folders in it")
        yield from files


def _check_place(output: str, models: list[pathlib.Path]) -> None:
    """Raise OutputError if the report would replace a model or has no folder."""
    if output == STREAM:
        return
    check_name("-o", output)
    place = pathlib.Path(output)
    if place.resolve() in {model.resolve() for model in models}:
        raise OutputError(f"-o {output}: is one of the models; give the report a file of its own")
    if place.is_dir() or not place.parent.is_dir():
        raise OutputError(f"-o {output}: cannot be written there; give a file in a folder that exists")
