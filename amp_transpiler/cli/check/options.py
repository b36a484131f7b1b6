"""The options of `amp-transpile --check`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from amp_transpiler.cli.check.finding import RULES, SEVERITIES
from amp_transpiler.cli.parser import Formatter, Parser
from amp_transpiler.cli.places import STREAM, check_name
from amp_transpiler.targets.devices import DEFAULT_DEVICE, DEVICES

__all__ = ["CHECK", "FORMATS", "NEVER", "CheckOptions", "check_parser", "parse_check"]

CHECK = "--check"
FORMATS = ("text", "json", "sarif", "junit")
NEVER = "never"

_DESCRIPTION = """\
Look at ONNX models without converting them, for the CI of a model repository. Folders are searched with the folders
inside them, except hidden ones."""

_STATUS = """\
exit status:
  0  nothing found that --fail-on counts
  1  something found
  2  an option or a place is wrong
  3  an internal error: please report it

examples:
  amp-transpile --check models/
  amp-transpile --check models/ --format sarif -o findings.sarif
  amp-transpile --check . --fail-on warning --ignore pays
"""


@dataclasses.dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options, named as on the command line; `--help` says what they mean."""

    places: list[str]
    format: str
    output: str
    fail_on: str
    ignore: list[str]
    device: str
    verbose: int


def parse_check(arguments: Sequence[str]) -> CheckOptions:
    """Return the options in `arguments`, which do not hold `--check`.

    Raises:
        OptionError: an option is unknown or has no meaning.
        SystemExit: after `--help`.
    """
    options = CheckOptions(**vars(check_parser().parse_intermixed_args(list(arguments))))
    for place in options.places:
        check_name("PATH", place)
    return options


def check_parser() -> Parser:
    """Return the parser of `amp-transpile --check`."""
    parser = Parser(
        prog=f"amp-transpile {CHECK}",
        usage="%(prog)s [OPTION]... PATH...",
        description=_DESCRIPTION,
        epilog=f"{_rules_text()}\n{_STATUS}",
        formatter_class=Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("places", metavar="PATH", nargs="+", help="A model, or a folder of models.")
    add("--format", choices=FORMATS, default="text", help="How to say what was found. Default: text.")
    add("-o", dest="output", metavar="FILE", default=STREAM, help="Write it to a file. Default: standard output.")
    add(
        "--fail-on",
        choices=(*SEVERITIES, NEVER),
        default="error",
        help="The mildest finding that makes the exit status 1. Default: error.",
    )
    add(
        "--ignore",
        metavar="RULE",
        choices=tuple(RULES),
        action="append",
        default=[],
        help="Leave out a rule of the list below. May be repeated.",
    )
    add(
        "--device",
        metavar="NAME",
        choices=tuple(DEVICES),
        default=DEFAULT_DEVICE.name,
        help=f"Where times are predicted for. Default: {DEFAULT_DEVICE.name}.",
    )
    add("-v", "--verbose", action="count", default=0, help=argparse.SUPPRESS)
    add("-h", "--help", action="help", help="Print this text.")
    return parser


def _rules_text() -> str:
    rows = [f"  {rule.name:<15} {rule.severity:<8} {rule.title}" for rule in RULES.values()]
    return "rules:\n" + "\n".join(rows) + "\n"
