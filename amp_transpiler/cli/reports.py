"""Writes the files of `--report`, `--json`, `--junit`, `--sarif` and `--save-recipe`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amp_transpiler.cli import printing
from amp_transpiler.cli.places import STREAM

if TYPE_CHECKING:
    from amp_transpiler.cli.options import Options
    from amp_transpiler.cli.outcome import Outcome

__all__ = ["write_reports"]


def write_reports(outcomes: Sequence[Outcome], options: Options, *, are_many: bool) -> None:
    """Write the reports asked for. In JSON one model is a record, many are a list of records."""
    reported = [outcome for outcome in outcomes if outcome.report is not None]
    if options.report is not None and reported:
        from amp_transpiler.report.as_html import page

        reports = [(outcome.report, outcome.error) for outcome in reported if outcome.report is not None]
        _write(page(reports), options.report)
    if options.save_recipe is not None:
        for outcome in reported:
            if outcome.report is not None and outcome.error is None:
                outcome.report.save_recipe(options.save_recipe)
    for name, path in (("junit", options.junit), ("sarif", options.sarif)):
        if path is not None:
            from amp_transpiler.cli.check.formats import written
            from amp_transpiler.cli.findings import checked_conversions

            _write(f"{written(checked_conversions(outcomes), name)}\n", path)
    if options.json is None or not (reported or are_many):
        return
    from amp_transpiler.report.as_json import dump

    records = [_record(outcome, options) for outcome in outcomes]
    text = dump(records if are_many else records[0])
    if options.json == STREAM:
        printing.output(text.rstrip())
    else:
        _write(text, options.json)


def _write(text: str, path: str) -> None:
    from amp_transpiler.files.durable import write_file

    write_file(path, text.encode("utf-8", errors="backslashreplace"))


def _record(outcome: Outcome, options: Options) -> dict[str, Any]:
    from amp_transpiler.report.as_json import package_versions, report_as_dict

    record: dict[str, Any] = {"model": outcome.job.model, "exit_status": outcome.status, "error": outcome.error}
    if outcome.skipped is not None:
        record |= outcome.skipped.record
    elif outcome.report is not None:
        record |= report_as_dict(outcome.report)
    record |= {"skipped": outcome.skipped is not None, "inputs": outcome.job.inputs}
    return record | {"benchmark": outcome.benchmark, "options": options.as_written, "versions": package_versions()}
