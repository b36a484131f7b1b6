"""Exit statuses, and which error leads to which."""

from __future__ import annotations

import sys

from amp_transpiler.errors import CheckFailed, EnvironmentProblem, InputError, VerificationError, visible

__all__ = ["CHECK_FAILED", "EXIT_STATUS_TEXT", "INTERNAL_ERROR", "INTERRUPTED", "OK", "WRONG_INPUT", "status_of"]

OK, CHECK_FAILED, WRONG_INPUT, INTERNAL_ERROR, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_STATUS_TEXT = """\
exit status:
  0    written, and checked unless --no-verify is given
  1    the result failed its check or tolerance; no model is written
  2    the input, an option, the output place or the installation is wrong; no model is written
  3    an internal error: please report it
  130  interrupted; ended by another signal: 128 and its number, such as 143 for SIGTERM
  With several models the highest status counts; one that fails does not stop the others.
"""


def status_of(error: Exception, *, verbose: bool) -> tuple[int, str]:
    """Return the exit status that an error leads to, and its message.

    Args:
        error: what was raised.
        verbose: print the traceback of an internal error.
    """
    if isinstance(error, CheckFailed):
        return CHECK_FAILED, str(error)
    if isinstance(error, VerificationError):
        return CHECK_FAILED, f"{error}; nothing was written; please report this"
    if isinstance(error, (InputError, EnvironmentProblem)):
        return WRONG_INPUT, str(error)
    if isinstance(error, MemoryError):
        return INTERNAL_ERROR, "out of memory; --no-verify needs the least"
    if verbose:
        import traceback

        lines = "".join(traceback.format_exception(error)).splitlines()
        sys.stderr.write("".join(f"{visible(line, None)}\n" for line in lines))
    hint = "" if verbose else " with the traceback that -v shows"
    return INTERNAL_ERROR, f"internal error: {type(error).__name__}: {error}; please report it{hint}"
