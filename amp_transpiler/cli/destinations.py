"""The files that the command writes: results, reports, and the folder for several models."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence

from amp_transpiler.cli.options import Options
from amp_transpiler.errors import OutputError

__all__ = ["Job", "check_report_places", "destinations", "output_folder", "write_text"]

_SUFFIXES = {"float16": "fp16", "bfloat16": "bf16"}


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One model and where its result goes."""

    model: pathlib.Path
    output: pathlib.Path


def destinations(options: Options) -> list[Job]:
    """Return where each model's result goes.

    Raises:
        OutputError: two results, or a result and a source, would be the same file.
    """
    jobs = [Job(model, _destination(model, options)) for model in options.models]
    taken: dict[str, pathlib.Path] = {}
    sources = {os.path.realpath(job.model): job.model for job in jobs}
    for job in jobs:
        place = os.path.realpath(job.output)
        if place in taken:
            raise OutputError(
                f"{job.model} and {taken[place]} would both be written to {job.output}; convert them one by one with -o"
            )
        if place in sources and len(jobs) > 1:
            raise OutputError(f"{job.output}: the result of {job.model} would replace model {sources[place]}; use -o")
        taken[place] = job.model
    return jobs


def _destination(model: pathlib.Path, options: Options) -> pathlib.Path:
    default = model.with_name(f"{model.stem}.{_SUFFIXES[options.low_dtype]}.onnx") if model.name else model
    if options.output is None:
        return default
    output = pathlib.Path(options.output)
    return output if len(options.models) == 1 else output / default.name


@contextlib.contextmanager
def output_folder(options: Options) -> Iterator[None]:
    """Create the folder that several models go to; remove it again if nothing was written."""
    if options.output is None or len(options.models) == 1 or options.dry_run:
        yield
        return
    folder = pathlib.Path(options.output)
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: with several models -o names a folder, but this is a file")
    is_new = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot make this folder ({error.strerror}); create it first") from error
    try:
        yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # Not empty: there are results in it.
                folder.rmdir()


def check_report_places(options: Options, jobs: Sequence[Job]) -> None:
    """Raise OutputError if a report could not be written, before any work is done."""
    taken = {os.path.realpath(path): path for job in jobs for path in (job.model, job.output)}
    for option, text in (("--report", options.report), ("--json", options.json)):
        if text is None or text == "-":
            continue
        path = pathlib.Path(text)
        place = os.path.realpath(path)
        if path.is_dir():
            raise OutputError(f"{option} {text}: is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise OutputError(f"{option} {text}: the folder {path.parent} does not exist; create it first")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OutputError(f"{option} {text}: cannot be written there; choose another place")
        if place in taken:
            raise OutputError(f"{option} {text}: is also {taken[place]}; give the report a file of its own")
        taken[place] = path


def write_text(text: str, path: pathlib.Path) -> None:
    """Write a report completely or not at all.

    Raises:
        OutputError: the disk is full, for example.
    """
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        if path.exists() and not path.is_file():  # A device or pipe cannot be replaced by a finished file.
            path.write_bytes(data)
            return
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            staged.write_bytes(data)
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: the report cannot be written: {error.strerror or error}") from error
