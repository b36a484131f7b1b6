"""The options of `amp-transpile diff`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from amp_transpiler.cli.parser import Formatter, Parser
from amp_transpiler.cli.places import STREAM, check_name

__all__ = ["DIFF", "DiffOptions", "diff_parser", "parse_diff"]

DIFF = "diff"

_DESCRIPTION = """\
Show two ONNX models side by side: precisions, casts, sizes, predicted times, and the outputs of the second against
those of the first on the same inputs. 16-bit parts are emulated, as in the check of a conversion."""

_STATUS = """\
exit status:
  0  compared, whatever differs
  2  a model, an option or the place of a report is wrong
  3  an internal error: please report it
"""


@dataclasses.dataclass(frozen=True, slots=True)
class DiffOptions:
    """The options, named as on the command line; `--help` says what they mean.

    Attributes:
        dim: name of an open dimension -> its size.
        json: a path, `-` for stdout, or None.
    """

    first: str
    second: str
    inputs: str | None
    device: str
    dim: dict[str, int]
    no_run: bool
    report: str | None
    json: str | None
    verbose: int


def parse_diff(arguments: Sequence[str]) -> DiffOptions:
    """Return the options in `arguments`, which do not hold the word `diff`.

    Raises:
        OptionError: an option is unknown or has no meaning.
        SystemExit: after `--help`.
    """
    parsed = vars(diff_parser().parse_args(list(arguments)))
    options = DiffOptions(**{**parsed, "dim": dict(parsed["dim"])})
    for name, text in (("FIRST", options.first), ("SECOND", options.second), ("--inputs", options.inputs)):
        if text is not None:
            check_name(name, text)
    return options


def diff_parser() -> Parser:
    """Return the parser of `amp-transpile diff`."""
    parser = Parser(
        prog=f"amp-transpile {DIFF}",
        usage="%(prog)s [OPTION]... FIRST SECOND",
        description=_DESCRIPTION,
        epilog=_STATUS,
        formatter_class=Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("first", metavar="FIRST", help="An .onnx file: the model that the other is measured by.")
    add("second", metavar="SECOND", help="The other one.")
    add("--inputs", metavar="DATA", help="An .npz file or a folder of them to run both on. Default: made-up inputs.")
    add("--device", metavar="NAME", default="H100", help="Where times are predicted for. Default: H100.")
    add(
        "--dim",
        metavar="NAME=SIZE",
        type=_dimension,
        action="append",
        default=[],
        help="The size of an open dimension, for predicted times. May be repeated.",
    )
    add("--no-run", action="store_true", help="Do not run the models, so that no outputs are compared.")
    add("--report", metavar="OUT.html", help="Write the comparison as a page.")
    add("--json", metavar="OUT.json", help=f"Write it as JSON; {STREAM}: print that in place of the tables.")
    add("-v", "--verbose", action="count", default=0, help="Tell more on stderr; twice: still more.")
    add("-h", "--help", action="help", help="Print this text.")
    return parser


def _dimension(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isascii() or not size.isdigit() or int(size) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=SIZE: expected a dimension and a number from 1 on")
    return name, int(size)
