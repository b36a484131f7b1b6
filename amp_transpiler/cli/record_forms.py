"""Shows a record, such as a diagnosis, in the forms that the options ask for: text, JSON, a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import RenderableType

from amp_transpiler.cli import printing
from amp_transpiler.cli.places import STREAM
from amp_transpiler.files.durable import write_file
from amp_transpiler.report.as_json import dump, package_versions, plain

__all__ = ["show"]


def show(record: Any, text: RenderableType, page: Callable[[], str], *, json: str | None, report: str | None) -> None:
    """Print a record, and write its files.

    Args:
        record: a dataclass; its fields are those of the JSON.
        text: what is printed, unless the JSON is.
        page: makes the page; it is only called for a report.
        json: the file of the JSON, `-` to print it, or None.
        report: the file of the page, or None.

    Raises:
        OutputError: a file cannot be written.
    """
    if json != STREAM:
        printing.output(text)
    if json is not None:
        content = dump({**plain(record), "versions": package_versions()})
        if json == STREAM:
            printing.output(content.rstrip())
        else:
            _write(content, json)
    if report is not None:
        _write(page(), report)


def _write(text: str, path: str) -> None:
    write_file(path, text.encode("utf-8", errors="backslashreplace"))
