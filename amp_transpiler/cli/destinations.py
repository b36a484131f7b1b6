"""The files that the command writes: results, reports, and the folder for results.

Every place is compared with every file of every source and result before any work is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

from amp_transpiler.cli.options import Options
from amp_transpiler.cli.places import STREAM, check_name, is_standard_input
from amp_transpiler.cli.samples import MADE_UP, is_template, samples_of
from amp_transpiler.cli.sources import Sources
from amp_transpiler.cli.streams import is_closed
from amp_transpiler.errors import OutputError

__all__ = ["Job", "check_places", "destinations", "jobs_of", "makes_folder", "output_folder"]

_REPORTS = ("report", "json", "junit", "sarif", "save_recipe")  # options that name a file to write
_SUFFIXES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One model and where its result goes.

    Attributes:
        model: a file, or a name of standard input.
        output: a file, or `-` for standard output.
        inputs: its samples: a file or folder; None for made-up ones.
        found: the samples were found beside the model; nobody named them.
        keep: remember the conversion, so that a later call may skip it.
        float32: the file where all of the result is float32; None for `output`, whose name the user gave.
    """

    model: pathlib.Path
    output: pathlib.Path
    inputs: str | None = None
    found: bool = False
    keep: bool = False
    float32: pathlib.Path | None = None


def jobs_of(sources: Sources, options: Options) -> list[Job]:
    """Return each model with its destination and its samples.

    Raises:
        OutputError: `-o` cannot mean what it says, or two results would be the same file.
        InputError: what `--inputs` names cannot be read.
    """
    samples = samples_of(sources, options)
    keep = (sources.are_many or options.skip_unchanged) and not (options.dry_run or not options.conversion.cache)
    return [
        dataclasses.replace(job, inputs=samples[job.model].place, found=samples[job.model].found, keep=keep)
        for job in destinations(sources, options)
    ]


def destinations(sources: Sources, options: Options) -> list[Job]:
    """Return where each model's result goes.

    Raises:
        OutputError: `-o` cannot mean what it says, or two results would be the same file.
    """
    _check_output(sources, options)
    jobs = [
        Job(model, _destination(model, sources, options), float32=_place_of_float32(model, sources, options))
        for model in sources.models
    ]
    taken: dict[str, pathlib.Path] = {}
    for job in jobs:
        place = os.path.realpath(job.output)
        if place in taken:
            raise OutputError(
                f"{job.model} and {taken[place]} would both be written to {job.output}; convert them one by one with -o"
            )
        taken[place] = job.model
    return jobs


def _check_output(sources: Sources, options: Options) -> None:
    output = options.output
    if output is None:
        if is_standard_input(sources.models[0]) and not options.dry_run:
            raise OutputError("a model from standard input has no place of its own; say with -o where its result goes")
        return
    if output == STREAM:
        if sources.are_many:
            raise OutputError("-o -: standard output takes one model; give -o a folder for several")
        if options.json == STREAM:
            raise OutputError("-o - and --json -: both would be written to standard output; give one of them a file")
        if sys.stdout.isatty() or is_closed(sys.stdout):
            raise OutputError("-o -: standard output is a terminal or closed; redirect it, or give -o a file")
        return
    check_name("-o", output)
    if not sources.are_many and not _ends_with_slash(output) and pathlib.Path(output).is_dir():
        raise OutputError(
            f"-o {output}: is a folder, not a regular file; for a result inside it write -o {output}{os.sep}"
        )
    if _is_stream_device(output):
        raise OutputError(f"-o {output}: is a device, not a regular file; -o - writes to standard output")


def _place_of_float32(model: pathlib.Path, sources: Sources, options: Options) -> pathlib.Path | None:
    """Return where a result goes that is float32 throughout; None where the user gave the name."""
    if options.output is not None and not _is_folder(sources, options):
        return None
    return _destination(model, sources, options, "float32")


def _destination(model: pathlib.Path, sources: Sources, options: Options, dtype: str | None = None) -> pathlib.Path:
    stem = "stdin" if is_standard_input(model) else model.stem
    name = f"{stem}.{_SUFFIXES[dtype or options.low_dtype]}.onnx"
    if options.output is None:
        return model.with_name(name) if model.name else model
    output = pathlib.Path(options.output)
    return output / sources.inside(model).with_name(name) if _is_folder(sources, options) else output


def _is_folder(sources: Sources, options: Options) -> bool:
    """Whether `-o` names a folder: for many models, and with a slash at its end."""
    output = options.output
    return output is not None and output != STREAM and (sources.are_many or _ends_with_slash(output))


def _ends_with_slash(name: str) -> bool:
    return name.endswith(("/", os.sep))  # Windows takes both


def _is_stream_device(name: str) -> bool:
    """Whether a name stands for an open descriptor, which may be a file that only looks like one to replace."""
    return str(pathlib.Path(name).absolute().parent) in {"/dev", "/dev/fd", "/proc/self/fd"} and os.path.lexists(name)


def makes_folder(sources: Sources, options: Options) -> bool:
    """Whether the folder that `-o` names is made where it is missing."""
    return not options.dry_run and _is_folder(sources, options)


@contextlib.contextmanager
def output_folder(sources: Sources, options: Options, jobs: Sequence[Job]) -> Iterator[None]:
    """Create the folder that results go to, and those inside it; remove them again if nothing was written there."""
    if not makes_folder(sources, options):
        yield
        return
    folder = pathlib.Path(str(options.output))
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"-o {options.output}: names a folder here, but this is a file")
    created: list[pathlib.Path] = []
    try:
        for needed in dict.fromkeys([folder, *_folders_inside(folder, jobs)]):
            if not needed.exists():
                created.append(needed)
            _make(needed)
        yield
    finally:
        for needed in reversed(created):
            with contextlib.suppress(OSError):  # Not empty: there are results in it.
                needed.rmdir()


def _folders_inside(folder: pathlib.Path, jobs: Sequence[Job]) -> list[pathlib.Path]:
    """Return the folders inside `folder` that results go to, each behind the one that it is in."""
    needed = {job.output.parent for job in jobs} | {parent for job in jobs for parent in job.output.parents}
    return sorted(place for place in needed if folder in place.parents)


def _make(folder: pathlib.Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot make this folder ({error.strerror}); create it first") from error


def check_places(options: Options, jobs: Sequence[Job], *, makes_folder: bool) -> None:
    """Raise OutputError if a result or report would replace a file that is in use, or could not be written.

    Args:
        options: the places.
        jobs: the models and their results.
        makes_folder: whether the folder of the results will be made.
    """
    in_use = _InUse(options, jobs)
    if options.to_stdout and (weights := in_use.weights_of(jobs[0].model)):
        raise OutputError(f"-o -: standard output has no place for weights in another file ({weights[0].name})")
    if len(jobs) > 1:  # the conversion of one model does this itself
        for job in jobs:
            for output in filter(None, (job.output, job.float32)):
                if (file_in_use := in_use.file_at(output)) is not None:
                    raise OutputError(f"{output}: the result of {job.model} would replace {file_in_use}; use -o")
    if options.save_recipe is not None and len(jobs) > 1:
        raise OutputError("--save-recipe: a recipe is of one model; convert the models one by one")
    taken: dict[str, str] = {}
    written = [(f"--{name.replace('_', '-')}", getattr(options, name)) for name in _REPORTS]
    for option, text in written:
        if text is None or text == STREAM:
            continue
        path = _report_place(option, text, new_folder=pathlib.Path(str(options.output)) if makes_folder else None)
        place = os.path.realpath(path)
        owner = taken.get(place) or str(in_use.file_at(path) or in_use.result_at(path) or "")
        if owner:
            raise OutputError(f"{option} {text}: is also {owner}; give each a file of its own")
        if model := _model_of_weights(pathlib.Path(place)):
            raise OutputError(f"{option} {text}: holds weights of {model}; choose another file")
        taken[place] = text


def _model_of_weights(path: pathlib.Path) -> pathlib.Path | None:
    from amp_transpiler.files.data_files import model_of_weights  # which imports what reads models

    return model_of_weights(path)


def _report_place(option: str, text: str, new_folder: pathlib.Path | None) -> pathlib.Path:
    check_name(option, text)
    path = pathlib.Path(text)
    if path.is_dir():
        raise OutputError(f"{option} {text}: is a folder; give the name of a file")
    if path.parent == new_folder and not new_folder.exists():
        return path
    if not path.parent.is_dir():
        raise OutputError(f"{option} {text}: the folder {path.parent} does not exist; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"{option} {text}: cannot be written there; choose another place")
    if path.is_file() and _is_stream_device(text):
        raise OutputError(f"{option} {text}: is an open file of this process; name that file, or print with --json -")
    return path


class _InUse:
    """The files that a call reads or writes: of its models, results and samples. Each model is read at most once."""

    def __init__(self, options: Options, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        named = {options.inputs, *(job.inputs for job in jobs)} - {None, MADE_UP}
        self._inputs = sorted(os.path.realpath(place) for place in named if place and not is_template(place))
        self._files: dict[pathlib.Path, set[pathlib.Path]] = {}

    def file_at(self, path: pathlib.Path) -> pathlib.Path | None:
        """Return the file of a model, or of the samples, that is at `path`."""
        from amp_transpiler.files.occupied import files_of

        place = pathlib.Path(os.path.realpath(path))
        for model in (job.model for job in self._jobs):
            files = {pathlib.Path(os.path.realpath(model))}
            if place.exists():  # else it can be no file of weights, and the models need not be read
                files = self._files[model] = self._files.get(model) or files_of(model)
            for file in files:
                if place == file or (place.exists() and file.exists() and place.samefile(file)):
                    return model if file.name == model.name else file
        is_sample = any(place == samples or samples in place.parents for samples in map(pathlib.Path, self._inputs))
        return path if is_sample and place.exists() else None

    def weights_of(self, model: pathlib.Path) -> list[pathlib.Path]:
        """Return the other files that a model consists of."""
        from amp_transpiler.files.occupied import files_of

        return sorted(files_of(model) - {pathlib.Path(os.path.realpath(model))})

    def result_at(self, path: pathlib.Path) -> pathlib.Path | None:
        """Return the result that `path` is, or whose weights would be there."""
        from amp_transpiler.files.occupied import belongs_to_result

        return next((job.output for job in self._jobs if belongs_to_result(path, job.output)), None)
