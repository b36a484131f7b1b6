"""Runs the command from its arguments to its exit status.

`--help` and a mistyped option must answer at once, so everything else is imported after the options are parsed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

from amp_transpiler.cli import printing
from amp_transpiler.cli.check.options import CHECK, parse_check
from amp_transpiler.cli.completion import COMPLETION, completion
from amp_transpiler.cli.debug_options import DEBUG, parse_debug
from amp_transpiler.cli.diff_options import DIFF, parse_diff
from amp_transpiler.cli.doctor import DOCTOR, doctor, parse_doctor
from amp_transpiler.cli.exit_status import INTERRUPTED, WRONG_INPUT, status_of
from amp_transpiler.cli.options import parse
from amp_transpiler.cli.parser import FIRST_EXAMPLES
from amp_transpiler.cli.streams import lenient_streams
from amp_transpiler.cli.termination import Terminated, terminating_by_exception
from amp_transpiler.errors import help_link

__all__ = ["main"]

Task: TypeAlias = tuple[Callable[[], int], bool]
"""What to do, and whether to show the traceback of an internal error."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status (see the end of `--help`).

    Args:
        argv: the arguments without the program's name; None stands for those of the process.
    """
    with lenient_streams():
        return _main(argv)


def _convert(arguments: list[str]) -> Task:
    options = parse(arguments)

    def convert() -> int:
        from amp_transpiler.cli.run import run

        return run(options)

    return convert, options.verbose > 0


def _diff(arguments: list[str]) -> Task:
    options = parse_diff(arguments)

    def compare() -> int:
        from amp_transpiler.cli.diff import diff

        return diff(options)

    return compare, options.verbose > 0


def _debug(arguments: list[str]) -> Task:
    options = parse_debug(arguments)

    def diagnose() -> int:
        from amp_transpiler.cli.debug import debug

        return debug(options)

    return diagnose, options.verbose > 0


def _doctor(arguments: list[str]) -> Task:
    options = parse_doctor(arguments)
    return lambda: doctor(options), options.verbose > 0


def _check(arguments: list[str]) -> Task:
    options = parse_check(arguments)

    def look() -> int:
        from amp_transpiler.cli.check.run import check

        return check(options)

    return look, options.verbose > 0


def _complete(arguments: list[str]) -> Task:
    return lambda: completion(arguments), False


def _examples(_: list[str]) -> Task:
    def show() -> int:
        sys.stderr.write(FIRST_EXAMPLES)
        return WRONG_INPUT

    return show, False


_WORDS: dict[str, Callable[[list[str]], Task]] = {
    DIFF: _diff,
    DEBUG: _debug,
    DOCTOR: _doctor,
    COMPLETION: _complete,
}
"""Words that are commands where they come first; a model of such a name is `./diff`."""


def _task(arguments: list[str]) -> Task:
    """Return what is asked for, and whether to show the traceback of an internal error."""
    if not arguments:
        return _examples(arguments)
    if arguments[0] in _WORDS:
        return _WORDS[arguments[0]](arguments[1:])
    options, dashes, files = _partition(arguments, "--")
    if CHECK in options:
        options.remove(CHECK)
        return _check([*options, *dashes, *files])
    return _convert(arguments)


def _partition(arguments: list[str], mark: str) -> tuple[list[str], list[str], list[str]]:
    """Return the arguments before a mark, the mark, and those behind it."""
    if mark not in arguments:
        return list(arguments), [], []
    place = arguments.index(mark)
    return arguments[:place], [mark], arguments[place + 1 :]


def _main(argv: Sequence[str] | None) -> int:
    verbose = False
    try:
        run, verbose = _task(sys.argv[1:] if argv is None else list(argv))
        with terminating_by_exception():
            return run()
    except Terminated as error:
        printing.error(str(error))
        return 128 + error.number
    except KeyboardInterrupt:
        printing.error("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        status, message = status_of(error, verbose=verbose)
        printing.error(message, help_link(error))
        return status
