"""The command `amp-transpile`: options in, a report out.

Heavy modules are imported where they are needed, so that `--help` and a mistyped option answer at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import pathlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amp_transpiler.cli.options import Options, parse
from amp_transpiler.errors import (
    CheckFailed,
    EnvironmentProblem,
    InputError,
    OptionError,
    OutputError,
    VerificationError,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from amp_transpiler.graph.program import Program
    from amp_transpiler.report import Report
    from amp_transpiler.runtime.benchmark import BenchmarkResult
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["main"]

_logger = logging.getLogger(__name__)

OK, CHECK_FAILED, WRONG_INPUT, INTERNAL_ERROR, INTERRUPTED = 0, 1, 2, 3, 130
PHASES = ("load", "prepare", "check source", "convert", "run fp32", "compare", "repair", "write", "check result")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status (see the end of `--help`).

    Args:
        argv: the arguments, without the program's name; None: those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # A name that the terminal cannot show must not end the run.
            stream.reconfigure(errors="backslashreplace")
    verbose = False
    try:
        options = parse(argv)
        verbose = options.verbose > 0
        with _logging(options.verbose):
            return _run(options)
    except InputError as error:
        _complain(str(error))
        return WRONG_INPUT
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        _complain(_internal(error, verbose=verbose))
        return INTERNAL_ERROR


# ---- places to write to ----


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    """One model and where its result goes."""

    model: pathlib.Path
    output: pathlib.Path


def _jobs(options: Options) -> list[_Job]:
    """Return where each model's result goes.

    Raises:
        OutputError: two results, or a result and a source, would be the same file.
    """
    suffix = {"float16": "fp16", "bfloat16": "bf16"}[_dtype(options)]
    jobs = []
    for model in options.models:
        output = model.with_name(f"{model.stem}.{suffix}.onnx") if model.name else model
        if options.output is not None and len(options.models) == 1:
            output = pathlib.Path(options.output)
        elif options.output is not None:
            output = pathlib.Path(options.output) / output.name
        jobs.append(_Job(model, output))
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


def _dtype(options: Options) -> str:
    """The low format: that asked for, else SambaNova's bfloat16 where its rules are, else float16."""
    return options.dtype or ("bfloat16" if options.preset is not None or options.mixed_ops else "float16")


@contextlib.contextmanager
def _output_folder(options: Options) -> Iterator[None]:
    """Have the folder that several models go to; one made in vain is removed again."""
    if options.output is None or len(options.models) == 1 or options.dry_run:
        yield
        return
    folder = pathlib.Path(options.output)
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: with several models -o names a folder, but this is a file")
    made = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot make this folder ({error.strerror}); create it first") from error
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):  # Not empty: there are results in it.
                folder.rmdir()


def _check_report_places(options: Options, jobs: Sequence[_Job]) -> None:
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


def _write_text(text: str, path: pathlib.Path) -> None:
    """Write a report, whole or not at all; to a device or pipe directly."""
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        if path.exists() and not path.is_file():
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


# ---- the work ----


@dataclasses.dataclass(slots=True)
class _Outcome:
    """What became of one model."""

    job: _Job
    status: int = OK
    report: Report | None = None
    error: str | None = None
    benchmark: BenchmarkResult | None = None


def _run(options: Options) -> int:
    jobs = _jobs(options)
    _check_report_places(options, jobs)
    outcomes = []
    with _output_folder(options):
        for job in jobs:
            outcome = _convert(job, options)
            outcomes.append(outcome)
            _show(outcome, options, first=len(outcomes) == 1)
    if len(outcomes) > 1 and not _silent(options):
        good = sum(outcome.status == OK for outcome in outcomes)
        print(f"\n{len(outcomes)} models: {good} converted, {len(outcomes) - good} failed")
    _write_reports(outcomes, options)
    return max(outcome.status for outcome in outcomes)


def _convert(job: _Job, options: Options) -> _Outcome:
    """Convert one model; errors end up in the outcome, so that the other models still get their turn."""
    outcome = _Outcome(job)
    try:
        outcome.report = _transpile(job, options)
        if options.benchmark:
            outcome.benchmark = _benchmark(job, outcome.report, options)
    except CheckFailed as error:
        outcome.status, outcome.report, outcome.error = CHECK_FAILED, error.report, str(error)
    except VerificationError as error:
        outcome.status, outcome.error = CHECK_FAILED, f"{error}; nothing was written; please report this"
    except (InputError, EnvironmentProblem) as error:
        outcome.status, outcome.error = WRONG_INPUT, str(error)
    except Exception as error:  # noqa: BLE001 - one line instead of a traceback, and the next model
        outcome.status, outcome.error = INTERNAL_ERROR, _internal(error, verbose=options.verbose > 0)
    if outcome.error is not None and len(options.models) > 1 and str(job.model) not in outcome.error:
        outcome.error = f"{job.model}: {outcome.error}"
    return outcome


def _transpile(job: _Job, options: Options) -> Report:
    from amp_transpiler.pipeline import transpile

    with _progress(job, options) as progress:
        return transpile(
            job.model,
            None if options.dry_run else job.output,
            level=options.level,
            dtype=_dtype(options),
            target=options.target,
            keep_io_types=_kept_types(job, options),
            amp_lists=_lists(job, options),
            use_promote=options.promote,
            policy=options.policy,
            preset=options.preset,
            mixed_ops=options.mixed_ops or (),
            guard=tuple(options.guard),
            disable_amp=tuple(options.disable_amp),
            inputs=options.inputs,
            tolerance=options.tolerance,
            verify=not options.no_verify,
            progress=progress,
        )


def _kept_types(job: _Job, options: Options) -> bool | frozenset[str]:
    """Return what `transpile` calls `keep_io_types`: all, none, or the names of this model that are kept."""
    if isinstance(options.io_types, bool):
        return options.io_types
    import onnx_ir as ir

    from amp_transpiler.graph.io import load

    graph = load(job.model).model.graph
    values = {str(value.name): value for value in (*graph.inputs, *graph.outputs)}
    for name in sorted(options.io_types):
        if name not in values:
            raise OptionError(
                f"--io-types {name}=low: {job.model} has no input or output {name!r}{_near(name, values)}; "
                f"it has {', '.join(sorted(values))}"
            )
        if values[name].dtype != ir.DataType.FLOAT:
            raise OptionError(f"--io-types {name}=low: {name!r} is {values[name].dtype}; only float32 can become low")
    return frozenset(values) - options.io_types


def _lists(job: _Job, options: Options) -> AutoMixedPrecisionLists | None:
    """Return the lists that the options describe, None where they describe none.

    Raises:
        OptionError: a name is no operator of ONNX, no alias, and no operator of this model.
    """
    if not (options.white or options.black or options.black_var):
        return None
    from amp_transpiler.graph.io import load
    from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists, known_operator

    program = load(job.model)
    for option, names in (("--white", options.white), ("--black", options.black)):
        _check_operators(option, names, job, program)
    _check_variables(options.black_var, job, program)
    white, black = set(options.white), set(options.black)
    lists = AutoMixedPrecisionLists(
        custom_white_list=set(filter(known_operator, white)),
        custom_black_list=set(filter(known_operator, black)),
        custom_black_varnames=set(options.black_var),
        dtype=_dtype(options),
    )
    _add_custom_operators(lists, *(frozenset(n for n in names if not known_operator(n)) for names in (white, black)))
    return lists


def _add_custom_operators(lists: AutoMixedPrecisionLists, white: frozenset[str], black: frozenset[str]) -> None:
    """List operators that only the model at hand knows; the constructor would warn of them as typing errors."""
    lists.custom_white_list |= white
    lists.white_list |= white
    lists.custom_black_list |= black
    lists.black_list |= black
    lists.unsupported_list |= black


def _check_operators(option: str, names: Sequence[str], job: _Job, program: Program) -> None:
    from amp_transpiler.systems.paddle.lists import unknown_operators

    model = program.model
    nodes = itertools.chain(model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values()))
    operators = {f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in nodes}
    for name, near in unknown_operators(names, operators):
        meant = f"; did you mean {' or '.join(near)}?" if near else "; names are ONNX's, for example Conv"
        raise OptionError(f"{option} {name}: no operator of ONNX, no known alias, and not in {job.model}{meant}")


def _check_variables(names: Sequence[str], job: _Job, program: Program) -> None:
    """Raise OptionError for a value that the model lacks: it would silently do nothing."""
    if not names or program.model.functions:
        return  # A function's values get their names when it is inlined.
    from amp_transpiler.graph.walk import scopes

    known: set[str] = set()
    for scope in scopes(program.model):
        known.update(str(value.name) for value in scope.graph.inputs)
        known.update(scope.graph.initializers)
        known.update(str(value.name) for node in scope.graph for value in node.outputs)
    for name in names:
        if name not in known:
            raise OptionError(f"--black-var {name}: {job.model} has no value of that name{_near(name, known)}")


def _near(name: str, known: Mapping[str, object] | set[str]) -> str:
    import difflib

    found = difflib.get_close_matches(name, list(known), n=3)
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def _benchmark(job: _Job, report: Report, options: Options) -> BenchmarkResult | None:
    """Time both programs; the model is written by now, so what goes wrong here is only a warning."""
    from amp_transpiler.graph.io import load
    from amp_transpiler.runtime.benchmark import benchmark
    from amp_transpiler.runtime.ort import ORT_ERRORS, error_text
    from amp_transpiler.runtime.session import Session
    from amp_transpiler.verification.inputs import CannotSynthesise, given_inputs, synthesise_inputs

    low = report.program if report.destination is None else report.destination
    assert low is not None, "a report has its program"
    failures: tuple[type[Exception], ...] = (CannotSynthesise, *ORT_ERRORS)
    model = load(job.model).model
    try:
        if options.inputs is not None:
            feeds = given_inputs(options.inputs, model)[0]
        else:
            feeds = synthesise_inputs(model, Session(job.model).run)
        return benchmark(job.model, low, feeds)
    except failures as error:
        _logger.warning("no benchmark: %s", error_text(error))
        return None


@contextlib.contextmanager
def _progress(job: _Job, options: Options) -> Iterator[Callable[[str, float], None] | None]:
    """Show a bar on a terminal once the work has taken a second; hand out what moves it."""
    if options.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[model]}  {task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=len(PHASES), model=job.model.name)

    def advance(phase: str, done: float) -> None:
        reached = PHASES.index(phase) + done if phase in PHASES else 0.0
        # Repairs go back to an earlier phase; the bar does not.
        bar.update(task, description=phase, completed=max(reached, bar.tasks[0].completed))

    timer = threading.Timer(1.0, bar.start)  # A short run shows none.
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()  # It may be starting the bar right now.
        bar.stop()


# ---- what is printed ----


class _Printer(logging.Handler):
    """Log records as lines like the command's own messages; looks `sys.stderr` up each time, for a bar replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"amp-transpile: {record.levelname.lower()}: {self.format(record)}", file=sys.stderr)


@contextlib.contextmanager
def _logging(verbose: int) -> Iterator[None]:
    logger = logging.getLogger("amp_transpiler")
    level, handler = logger.level, _Printer()
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _complain(message: str) -> None:
    """Print one line to stderr."""
    print(f"amp-transpile: error: {' '.join(message.split())}", file=sys.stderr)


def _internal(error: Exception, *, verbose: bool) -> str:
    if isinstance(error, MemoryError):
        return "out of memory; --no-verify needs least"
    if verbose:
        traceback.print_exception(error)
    hint = "" if verbose else " with the traceback that -v shows"
    return f"internal error: {type(error).__name__}: {error}; please report it{hint}"


def _silent(options: Options) -> bool:
    return options.quiet or options.json == "-"


def _show(outcome: _Outcome, options: Options, *, first: bool) -> None:
    """Print the report of one model, then its error if there is one."""
    if outcome.report is not None and not _silent(options):
        from amp_transpiler.report.explain import explain_lines
        from amp_transpiler.report.table import benchmark_table, summary

        if not first:
            _print("")
        if options.explain:
            _print("\n".join(explain_lines(outcome.report)) + "\n")
        _print(summary(outcome.report, failed=outcome.error is not None))
        if outcome.benchmark is not None:
            _print(benchmark_table(outcome.benchmark, outcome.report.dtype))
    if outcome.error is not None:
        _complain(outcome.error)


def _print(what: RenderableType) -> None:
    """Print to stdout. A reader that has gone (`| head`) is no reason to stop converting."""
    from rich.console import Console

    try:
        if isinstance(what, str):
            print(what)
        else:
            Console(file=sys.stdout, markup=False, highlight=False, emoji=False).print(what)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_reports(outcomes: Sequence[_Outcome], options: Options) -> None:
    """Write what `--report` and `--json` ask for: one record for one model, a list of records for several."""
    reported = [outcome for outcome in outcomes if outcome.report is not None]
    if options.report is not None and reported:
        from amp_transpiler.report.as_html import page

        reports = [(outcome.report, outcome.error) for outcome in reported if outcome.report is not None]
        _write_text(page(reports), pathlib.Path(options.report))
    if options.json is None or not (reported or len(outcomes) > 1):
        return
    from amp_transpiler.report.as_json import dump

    records = [_record(outcome, options) for outcome in outcomes]
    text = dump(records if len(records) > 1 else records[0])
    if options.json == "-":
        _print(text.rstrip())
    else:
        _write_text(text, pathlib.Path(options.json))


def _record(outcome: _Outcome, options: Options) -> dict[str, Any]:
    from amp_transpiler.report.as_json import package_versions, report_as_dict

    asked = dataclasses.asdict(options)
    del asked["models"]
    if isinstance(options.io_types, bool):
        asked["io_types"] = "keep" if options.io_types else "low"
    record: dict[str, Any] = {"model": outcome.job.model, "exit_status": outcome.status, "error": outcome.error}
    if outcome.report is not None:
        record |= report_as_dict(outcome.report)
    return record | {"benchmark": outcome.benchmark, "options": asked, "versions": package_versions()}
