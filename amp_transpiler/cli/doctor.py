"""`amp-transpile doctor`: what is installed, what will run where, and what mends what is missing."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amp_transpiler.cli import printing
from amp_transpiler.cli.exit_status import CHECK_FAILED, OK
from amp_transpiler.cli.measuring import device_problem, measure_device, measured_lines
from amp_transpiler.cli.parser import Formatter, Parser

if TYPE_CHECKING:
    from rich.console import RenderableType

    from amp_transpiler.cli.diagnosis import Row

__all__ = ["DOCTOR", "DoctorOptions", "doctor", "doctor_parser", "parse_doctor"]

DOCTOR = "doctor"

_DESCRIPTION = "Say what is installed, what will run where, and which line mends what is missing."
_STATUS = """\
exit status:
  0  everything works that this machine can do
  1  something does not; the table names the line that mends it. With --measure: or no GPU answers
"""
_SIGNS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options.

    Attributes:
        json: print JSON in place of tables.
        measure: also ask the GPU for the arithmetic of its kernels.
    """

    json: bool
    measure: bool = False
    verbose: int = 0


def parse_doctor(arguments: Sequence[str]) -> DoctorOptions:
    """Return the options in `arguments`, which do not hold the word `doctor`.

    Raises:
        OptionError: an option is unknown.
        SystemExit: after `--help`.
    """
    return DoctorOptions(**vars(doctor_parser().parse_args(list(arguments))))


def doctor_parser() -> Parser:
    """Return the parser of `amp-transpile doctor`."""
    parser = Parser(
        prog=f"amp-transpile {DOCTOR}",
        description=_DESCRIPTION,
        epilog=_STATUS,
        formatter_class=Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("--json", action="store_true", help="Print the same as JSON.")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="Ask the GPU how its kernels round, some hundred of them on small graphs, and keep the answers in the "
        "user's cache folder. It takes about a minute.",
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help=argparse.SUPPRESS)
    parser.add_argument("-h", "--help", action="help", help="Print this text.")
    return parser


def doctor(options: DoctorOptions) -> int:
    """Print what is installed, and return the exit status."""
    from amp_transpiler.cli.diagnosis import diagnose, what_runs_where
    from amp_transpiler.cli.installation import look

    installation = look()
    rows, places = diagnose(installation), what_runs_where(installation)
    problem = device_problem(installation) if options.measure else None
    measured = measure_device() if options.measure and problem is None else None
    if options.json:
        from amp_transpiler.report.as_json import dump

        parts = [dataclasses.asdict(row) for row in rows]
        record = {"parts": parts, "runs": dict(places), "installation": dataclasses.asdict(installation)}
        if options.measure:
            record["measured"] = {"problem": problem} if measured is None else dataclasses.asdict(measured)
        printing.output(dump(record).rstrip())
    else:
        printing.output(_table(rows))
        printing.output("\nwhat runs where")
        printing.output("\n".join(f"  {work + ':':<23}{place}" for work, place in places))
        for row in rows:
            if row.remedy:
                printing.output(f"\n{row.part}: {row.found}\n  {row.remedy}")
        if measured is not None:
            printing.output("\n" + "\n".join(measured_lines(measured)))
    if problem is not None and not options.json:
        printing.error(f"doctor --measure: there is no device to ask: {problem}")
    return CHECK_FAILED if problem is not None or any(row.state == "problem" for row in rows) else OK


def _table(rows: Sequence[Row]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(_SIGNS[row.state], row.part, row.found)
    return table
