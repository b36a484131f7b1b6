"""`amp-transpile diff`: two models side by side."""

from __future__ import annotations

from amp_transpiler.cli.diff_options import DiffOptions
from amp_transpiler.cli.exit_status import OK
from amp_transpiler.cli.log import logging_to_stderr
from amp_transpiler.cli.places import check_reports
from amp_transpiler.cli.record_forms import show
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
        text, page = difference_text(difference), lambda: difference_page(difference)
        show(difference, text, page, json=options.json, report=options.report)
    return OK
