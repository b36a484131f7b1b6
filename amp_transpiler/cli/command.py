"""The command from its arguments to its exit status.

`--help` and a mistyped option must answer at once, so everything else is imported after the options are parsed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from amp_transpiler.cli import printing
from amp_transpiler.cli.diff_options import DIFF, parse_diff
from amp_transpiler.cli.exit_status import INTERRUPTED, status_of
from amp_transpiler.cli.options import parse
from amp_transpiler.cli.streams import lenient_streams
from amp_transpiler.cli.termination import Terminated, terminating_by_exception

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status (see the end of `--help`).

    Args:
        argv: the arguments without the program's name; None stands for those of the process.
    """
    with lenient_streams():
        return _main(argv)


def _task(arguments: list[str]) -> tuple[Callable[[], int], bool]:
    """Return what is asked for, and whether to show the traceback of an internal error.

    The word `diff` is a command where it comes first; a model of that name is `./diff`.
    """
    if arguments[:1] == [DIFF]:
        wishes = parse_diff(arguments[1:])

        def compare() -> int:
            from amp_transpiler.cli.diff import diff

            return diff(wishes)

        return compare, wishes.verbose > 0
    options = parse(arguments)

    def convert() -> int:
        from amp_transpiler.cli.run import run

        return run(options)

    return convert, options.verbose > 0


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
        printing.error(message)
        return status
