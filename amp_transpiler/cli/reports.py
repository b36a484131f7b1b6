"""The files of `--report` and `--json`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amp_transpiler.cli import printing
from amp_transpiler.cli.destinations import write_text

if TYPE_CHECKING:
    from amp_transpiler.cli.options import Options
    from amp_transpiler.cli.outcome import Outcome

__all__ = ["write_reports"]


def write_reports(outcomes: Sequence[Outcome], options: Options) -> None:
    """Write the reports asked for. In JSON one model is a record, several are a list of records."""
    reported = [outcome for outcome in outcomes if outcome.report is not None]
    if options.report is not None and reported:
        from amp_transpiler.report.as_html import page

        reports = [(outcome.report, outcome.error) for outcome in reported if outcome.report is not None]
        write_text(page(reports), pathlib.Path(options.report))
    if options.json is None or not (reported or len(outcomes) > 1):
        return
    from amp_transpiler.report.as_json import dump

    records = [_record(outcome, options) for outcome in outcomes]
    text = dump(records if len(records) > 1 else records[0])
    if options.json == "-":
        printing.output(text.rstrip())
    else:
        write_text(text, pathlib.Path(options.json))


def _record(outcome: Outcome, options: Options) -> dict[str, Any]:
    from amp_transpiler.report.as_json import package_versions, report_as_dict

    asked = dataclasses.asdict(options)
    del asked["models"]
    if isinstance(options.io_types, bool):
        asked["io_types"] = "keep" if options.io_types else "low"
    record: dict[str, Any] = {"model": outcome.job.model, "exit_status": outcome.status, "error": outcome.error}
    if outcome.report is not None:
        record |= report_as_dict(outcome.report)
    return record | {"benchmark": outcome.benchmark, "options": asked, "versions": package_versions()}
