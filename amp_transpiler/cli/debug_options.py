"""The options of `amp-transpile debug`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amp_transpiler.cli.parser import Formatter, Parser
from amp_transpiler.cli.places import STREAM, check_name
from amp_transpiler.errors import OptionError
from amp_transpiler.options.reading import tolerance
from amp_transpiler.systems.option_names import DtypeName, LevelName, TargetName
from amp_transpiler.targets import TARGETS

if TYPE_CHECKING:
    from amp_transpiler.verification.default_device import DeviceCheck

__all__ = ["DEBUG", "DebugOptions", "debug_parser", "parse_debug"]

DEBUG = "debug"

_DESCRIPTION = """\
Find the node that is to blame for infinite numbers, NaN or large errors of a
16-bit model, the way of its fault to the outputs, and the smallest set of
nodes that mends it by staying float32. Both models run on the same data;
16-bit parts are emulated, as in the check of a conversion.

With two releases behind --ort: what changes between these for the models.
Tables say where nodes run, which known faults they meet, and what a
conversion decides. With --python the models run in both, and graphs and
results are compared."""

_STATUS = """\
exit status:
  0  nothing is wrong, or the model that --fix asks for was written;
     with two releases: nothing changes but fusions and rounding
  1  something is wrong, or changes: the diagnosis says what
  2  a model, an option or the place of a result is wrong
  3  an internal error: please report it
"""

_LEVELS = ("auto", "OD", "O1", "O2")
_DTYPES = ("float16", "bfloat16")
_DEVICE_CHECKS = ("auto", "yes", "no")
_RELEASE = re.compile(r"\d+\.\d+(\.\w+)*")
_BETWEEN = ","  # two releases in one word, as the parser gets them


@dataclasses.dataclass(frozen=True, slots=True)
class DebugOptions:
    """The options, named as on the command line; `--help` says what they mean.

    Attributes:
        low: the 16-bit model; None: the float32 one is converted.
        dtype: None for that of `low`, or float16.
        ort: one release; None for the installed one, and where there are two.
        releases: the two that are compared; None for a diagnosis.
        python: paths of interpreters that hold the releases.
        fix: where the mended model goes; None if it is not to be written.
        json: a path, `-` for stdout, or None.
    """

    float32: str
    low: str | None
    inputs: str | None
    dtype: DtypeName | None
    level: LevelName
    target: TargetName
    ort: str | None
    releases: tuple[str, str] | None
    python: tuple[str, ...]
    device: str
    tolerance: float | str | None
    device_check: DeviceCheck
    fix: str | None
    no_cure: bool
    report: str | None
    json: str | None
    verbose: int


def parse_debug(arguments: Sequence[str]) -> DebugOptions:
    """Return the options in `arguments`, which do not hold the word `debug`.

    Raises:
        OptionError: an option is unknown or has no meaning.
        SystemExit: after `--help`.
    """
    values = vars(debug_parser().parse_args(_with_joined_releases(arguments)))
    old, _, new = (values["ort"] or "").partition(_BETWEEN)
    releases = (old, new) if new else None
    ort = None if releases is not None else values["ort"]
    options = DebugOptions(**{**values, "ort": ort, "releases": releases, "python": tuple(values["python"] or ())})
    named = {"FLOAT32": options.float32, "LOW": options.low, "--inputs": options.inputs, "--fix": options.fix}
    for name, text in named.items():
        if text is not None:
            check_name(name, text)
    if options.fix is not None and options.no_cure:
        raise OptionError("--fix writes the cure, and --no-cure looks for none; drop one of them")
    if options.fix == STREAM:
        raise OptionError(f"--fix {STREAM}: the mended model is not printed; give the name of a file")
    _check_releases(options)
    return options


def _with_joined_releases(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the two releases behind `--ort` as one word; what follows one release is a model."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    for place in range(end - 2):
        if words[place] == "--ort" and all(map(_RELEASE.fullmatch, words[place + 1 : place + 3])):
            return [*words[: place + 1], _BETWEEN.join(words[place + 1 : place + 3]), *words[place + 3 :]]
    return words


def _check_releases(options: DebugOptions) -> None:
    """Raise OptionError for options that need one release, or two."""
    if options.releases is None:
        if options.python:
            raise OptionError("--python names interpreters of two releases: name these, such as --ort 1.24 1.31")
        return
    if options.fix is not None or options.no_cure:
        raise OptionError("--fix and --no-cure are about the cure of a model, and two releases are compared; drop them")
    if isinstance(options.tolerance, str):
        raise OptionError("--tolerance is one number where two releases are compared, such as --tolerance 1%")


def debug_parser() -> Parser:
    """Return the parser of `amp-transpile debug`."""
    parser = Parser(
        prog=f"amp-transpile {DEBUG}",
        usage="%(prog)s [OPTION]... FLOAT32 [LOW]",
        description=_DESCRIPTION,
        epilog=_STATUS,
        formatter_class=Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    add = parser.add_argument
    add("float32", metavar="FLOAT32", help="The .onnx file in float32.")
    add(
        "low",
        metavar="LOW",
        nargs="?",
        help="The 16-bit model that was made of it, by any tool. Default: FLOAT32 is converted.",
    )
    add("--inputs", metavar="DATA", help="An .npz file or a folder of them to run both on. Default: made-up inputs.")
    add("--dtype", choices=_DTYPES, metavar="float16|bfloat16", help="The low format. Default: LOW's, or float16.")
    add(
        "--level",
        choices=_LEVELS,
        metavar="auto|OD|O1|O2",
        default="O2",
        help="How much of FLOAT32 becomes low. Default: O2, all that the target can run.",
    )
    add(
        "--target",
        choices=tuple(TARGETS),
        metavar="TARGET",
        default="cuda",
        help=f"Whose kernels count: {', '.join(TARGETS)}. Default: cuda.",
    )
    add(
        "--ort",
        metavar="VERSION [NEWER]",
        help="The ONNX Runtime that is to run it. Default: the installed one. Two releases are compared.",
    )
    add(
        "--python",
        metavar="PYTHON",
        nargs="+",
        action="extend",
        help="Python interpreters that hold the two releases, in any order, to run the models there; give it behind "
        "the models. The installed release needs none. Default: nothing runs.",
    )
    add("--device", metavar="NAME", default="H100", help="The GPU whose arithmetic is emulated. Default: H100.")
    add(
        "--tolerance",
        metavar="T|NAME=T,...",
        type=tolerance,
        help="The largest error of an output that is right, as for a conversion.",
    )
    add(
        "--device-check",
        choices=_DEVICE_CHECKS,
        metavar="auto|yes|no",
        default="no",
        help="Run the low model on this host's device, too, as written and as ONNX Runtime fuses it, and name the "
        "kernels that depart from the emulation. Default: no.",
    )
    add("--fix", metavar="OUT.onnx", help="Write the mended model, and its recipe beside it.")
    add("--no-cure", action="store_true", help="Do not look for the cure, which takes most of the time.")
    add("--report", metavar="OUT.html", help="Write the diagnosis as a page.")
    add("--json", metavar="OUT.json", help=f"Write it as JSON; {STREAM}: print that in place of the tables.")
    add("-v", "--verbose", action="count", default=0, help="Tell more on stderr; twice: still more.")
    add("-h", "--help", action="help", help="Print this text.")
    return parser
