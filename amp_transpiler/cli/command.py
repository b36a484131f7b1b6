"""The command from its arguments to its exit status.

`--help` and a mistyped option must answer at once, so everything else is imported after the options are parsed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from amp_transpiler.cli import printing
from amp_transpiler.cli.exit_status import INTERRUPTED, status_of
from amp_transpiler.cli.options import parse

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status (see the end of `--help`).

    Args:
        argv: the arguments without the program's name; None stands for those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # A name that the terminal cannot show must not end the run.
            stream.reconfigure(errors="backslashreplace")
    verbose = False
    try:
        options = parse(argv)
        verbose = options.verbose > 0
        from amp_transpiler.cli.run import run

        return run(options)
    except KeyboardInterrupt:
        printing.error("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        status, message = status_of(error, verbose=verbose)
        printing.error(message)
        return status
