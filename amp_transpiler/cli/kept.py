"""Remembers conversions, so that `--skip-unchanged` can leave out what would come out the same.

A record is named by a digest of all that a conversion depends on: the files of the model and of its samples, options,
versions, the device that checks. It holds a digest of the files that were written: a result that was changed or removed
since is made again. What failed is tried again, too.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from amp_transpiler.cli.options import Options
from amp_transpiler.cli.overview import Row

if TYPE_CHECKING:
    from amp_transpiler.cli.destinations import Job
    from amp_transpiler.report import Report

__all__ = ["Kept", "Made"]

_logger = logging.getLogger(__name__)

_FORMAT = 1  # raised when a record holds something else
_BLOCK = 1 << 22  # bytes read at once
_NOTHING = ""  # in place of a digest: there was nothing to convert, so nothing was written


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A conversion of a former call.

    Attributes:
        row: what the table says about it.
        record: its report as JSON has it.
    """

    row: Row
    record: dict[str, Any]


class Kept:
    """The record of one conversion.

    Args:
        job: the model, its destination and its samples.
        options: how it is converted.
    """

    def __init__(self, job: Job, options: Options) -> None:
        from amp_transpiler.files.user_cache import Records

        self._job = job
        self._records = Records("converted")
        self._name = "" if self._records.folder is None else _question(job, options)

    def find(self) -> Made | None:
        """Return the equal conversion of a former call whose result is there as it was written; None without one."""
        data = self._records.get(self._name) if self._name else None
        if data is None:
            return None
        try:
            record = json.loads(data)
            conversion = Made(Row(**record["row"]), dict(record["record"]))
            written = None if record["result"] == _NOTHING else conversion.record["destination"]
            return conversion if record["result"] == self._result(written) else None
        except (ValueError, TypeError, KeyError) as error:
            _logger.warning("a record of a conversion in the cache cannot be read, so it is made anew: %s", error)
            return None

    def keep(self, row: Row, report: Report) -> None:
        """Remember a conversion that went well."""
        from amp_transpiler.report.as_json import plain, report_as_dict

        if self._name:
            result = self._result(report.destination)
            record = {"row": plain(row), "record": report_as_dict(report), "result": result}
            self._records.put(self._name, json.dumps(record).encode())

    def _result(self, written: str | None) -> str:
        """Return the digest of the result's files; of none, nothing."""
        from amp_transpiler.files.digest import new_digest
        from amp_transpiler.files.occupied import files_of

        if written is None:
            return _NOTHING
        digest = new_digest()
        _add_files(digest, files_of(pathlib.Path(written)))
        return digest.hexdigest()


def _question(job: Job, options: Options) -> str:
    """Return the digest of all that a conversion depends on."""
    from amp_transpiler.child_process.child import default_place_name, hardware_name
    from amp_transpiler.files.digest import new_digest
    from amp_transpiler.files.occupied import files_of
    from amp_transpiler.report.as_json import package_versions
    from amp_transpiler.verification.evidence_cache import in_words

    conversion = options.conversion
    asked = {name: value for name, value in conversion.keywords().items() if name not in ("inputs", "recipe")}
    place = "none" if not conversion.verify or conversion.device_check == "no" else hardware_name(default_place_name())
    digest = new_digest()
    digest.update(in_words((_FORMAT, package_versions(), place, asked, os.path.realpath(job.output))).encode())
    _add_files(digest, files_of(job.model))
    metric = None if conversion.metric is None else str(conversion.metric).rpartition(":")[0]
    for file in (job.inputs, options.as_written["recipe"], metric):
        digest.update(b"\0")
        if file is not None:
            _add_files(digest, _files_at(pathlib.Path(file)))
    return digest.hexdigest()


def _files_at(place: pathlib.Path) -> Iterable[pathlib.Path]:
    return place.rglob("*") if place.is_dir() else [place]


def _add_files(digest: Any, files: Iterable[pathlib.Path]) -> None:
    """Add the names and bytes of files. One that is not there or cannot be read is an absence that the digest shows."""
    for file in sorted(files):
        digest.update(f"{file.name}\0".encode("utf-8", errors="backslashreplace"))
        if not file.is_file():
            continue
        try:
            with file.open("rb") as stream:
                while block := stream.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            digest.update(f"unreadable: {error.errno}".encode())
