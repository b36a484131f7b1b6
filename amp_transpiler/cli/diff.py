"""`amp-transpile diff`: two models side by side."""

from __future__ import annotations

from amp_transpiler.cli import printing
from amp_transpiler.cli.diff_options import DiffOptions
from amp_transpiler.cli.exit_status import OK
from amp_transpiler.cli.log import logging_to_stderr
from amp_transpiler.cli.places import STREAM, check_reports
from amp_transpiler.files.durable import write_file
from amp_transpiler.report.as_json import dump, package_versions, plain
from amp_transpiler.report.difference import difference_page, difference_text
from amp_transpiler.verification.difference import compare_models

__all__ = ["diff"]


def diff(options: DiffOptions) -> int:
    """Compare two models, print and write the result, and return the exit status.

    Raises:
        InputError: a model, an option, or the place of a report is wrong.
    """
    with logging_to_stderr(options.verbose):
        check_reports({"--report": options.report, "--json": options.json}, (options.first, options.second), {})
        difference = compare_models(
            options.first,
            options.second,
            inputs=options.inputs,
            device=options.device,
            dims=options.dim,
            run=not options.no_run,
        )
        if options.json != STREAM:
            printing.output(difference_text(difference))
        if options.json is not None:
            text = dump({**plain(difference), "versions": package_versions()})
            if options.json == STREAM:
                printing.output(text.rstrip())
            else:
                _write(text, options.json)
        if options.report is not None:
            _write(difference_page(difference), options.report)
    return OK


def _write(text: str, path: str) -> None:
    write_file(path, text.encode("utf-8", errors="backslashreplace"))
