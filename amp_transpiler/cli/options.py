"""The options of `amp-transpile`: parsed, and checked as far as that goes without a model."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import NoReturn

from amp_transpiler.errors import OptionError
from amp_transpiler.version import __version__

__all__ = ["Options", "parse"]

_EPILOG = """\
exit status:
  0  written and checked
  1  the result failed its check or tolerance; the report is shown, no model is written
  2  the input, the options or the output place are wrong; nothing is written
  3  an internal error: please report it
  With several models the highest counts; one that fails does not stop the others.

examples:
  amp-transpile model.onnx                                   float16, beside the model, checked
  amp-transpile model.onnx -o out.onnx --dtype bfloat16 --inputs samples.npz --tolerance 1%
  amp-transpile model.onnx --level O2 --black Softmax --disable-amp 'head/.*' --explain
  amp-transpile a.onnx b.onnx -o converted/ --json - | jq '.[].verdict'
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The options, named as on the command line.

    Attributes:
        io_types: True keeps the types of all inputs and outputs, False makes all low; names: those that become low.
        tolerance: a fraction, or None.
        json: a path, `-` for stdout, or None.
    """

    models: list[pathlib.Path]
    output: str | None
    level: str
    dtype: str | None
    target: str
    io_types: bool | frozenset[str]
    promote: bool
    white: list[str]
    black: list[str]
    black_var: list[str]
    guard: list[str]
    disable_amp: list[str]
    policy: str
    preset: str | None
    mixed_ops: str | None
    inputs: str | None
    tolerance: float | None
    no_verify: bool
    benchmark: bool
    explain: bool
    report: str | None
    json: str | None
    dry_run: bool
    quiet: bool
    verbose: int

    @property
    def copies(self) -> bool:
        """Whether nothing is to be changed: level O0, or preset mp0 without mixed operators."""
        by_preset = self.preset is not None and self.preset.lower() == "mp0" and self.mixed_ops is None
        return by_preset or self.level == "O0"


def parse(argv: Sequence[str] | None) -> Options:
    """Return the options in `argv`, those of the process if None.

    Raises:
        OptionError: an option is unknown, has no meaning, or contradicts another.
        SystemExit: `--help` and `--version`, which print and leave.
    """
    options = Options(**vars(_parser().parse_args(argv)))
    _check_combinations(options)
    return options


class _Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its whole usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="amp-transpile",
        description="Turn fp32 ONNX models into valid, checked mixed-precision (float16 or bfloat16) models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", type=pathlib.Path, help="an fp32 ONNX file")
    parser.add_argument(
        "-o",
        dest="output",
        metavar="OUT",
        help="the file to write, or with several models the folder; default: STEM.fp16.onnx or STEM.bf16.onnx beside "
        "MODEL, replaced if present",
    )
    _add_precision_options(parser.add_argument_group("what becomes low"))
    _add_check_options(parser.add_argument_group("checking"))
    _add_report_options(parser.add_argument_group("report"))
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def _add_precision_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--level",
        choices=("auto", "O0", "OD", "O1", "O2"),
        default="auto",
        help="auto: as much as is safe (default); O0: nothing; OD: the white list only; O1: by the lists; "
        "O2: all but the black list",
    )
    add(
        "--dtype",
        type=_dtype,
        metavar="float16|bfloat16",
        help="the low format (default: float16; with --preset or --mixed-ops bfloat16)",
    )
    add(
        "--target",
        choices=("cuda", "cpu", "any", "tensorrt"),
        default="cuda",
        help="whose kernels count (default: cuda, ONNX Runtime's CUDA provider)",
    )
    add(
        "--io-types",
        type=_io_types,
        default=True,
        metavar="keep|low|NAME=low,...",
        help="types of the graph's inputs and outputs: kept (default), low, or low for those named",
    )
    add("--promote", action="store_true", help="a gray node with one high input becomes high (use_promote)")
    add("--white", action="append", default=[], metavar="OP", help="an operator that is always low; may be repeated")
    add("--black", action="append", default=[], metavar="OP", help="an operator that is always high; may be repeated")
    add("--black-var", action="append", default=[], metavar="NAME", help="nodes that read or write NAME stay high")
    add("--guard", action="append", default=[], type=_regex, metavar="REGEX", help="only nodes so named may be low")
    add("--disable-amp", action="append", default=[], type=_regex, metavar="REGEX", help="nodes so named stay high")
    add(
        "--policy",
        choices=("paddle", "torch", "raf", "mxnet"),
        default="paddle",
        help="whose rules: paddle, with levels (default); torch's autocast lists; RAF's casting rules; MXNet's lists",
    )
    add(
        "--preset",
        metavar="mp0|mp1|mp4|default",
        help="SambaNova's: mp0 copies, mp1 lowers the inputs of GEMM-like operators, mp4 everything, default "
        "everything up to a conversion to float32; instead of --policy and --level",
    )
    add(
        "--mixed-ops",
        type=_mixed_ops,
        metavar="gemm,softmax",
        help="SambaNova's, whatever the preset: gemm: low in, float32 out; softmax: float32 in, low out",
    )


def _add_check_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--inputs", metavar="DATA.npz|FOLDER", help="samples to compare with; default: made up from the input shapes")
    add(
        "--tolerance",
        type=_tolerance,
        metavar="T",
        help="the largest relative error of any output, as 0.01 or 1%%; default: 2%% (float16) or 5%% (bfloat16) at "
        "level auto, else only a warning",
    )
    add("--no-verify", action="store_true", help="check the structure only, do not run the model")
    add("--benchmark", action="store_true", help="time the fp32 and the low model on the provider at hand")


def _add_report_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--explain", action="store_true", help="one line a node: its precision and the reason")
    add("--report", metavar="OUT.html", help="write the report as an HTML page")
    add("--json", metavar="OUT.json", help="write the report for machines; - prints it, and nothing else, to stdout")
    add("--dry-run", action="store_true", help="convert and check, but write no model")
    add("-q", "--quiet", action="store_true", help="print errors only")
    add("-v", "--verbose", action="count", default=0, help="log what is done; twice: everything")


def _dtype(text: str) -> str:
    names = {"float16": "float16", "fp16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}
    if text.lower() not in names:
        raise argparse.ArgumentTypeError(f"unknown low-precision dtype {text!r}: expected float16 or bfloat16")
    return names[text.lower()]


def _mixed_ops(text: str) -> str:
    if not text.replace(",", " ").strip():
        raise argparse.ArgumentTypeError(f"{text!r} names no operator: expected gemm, softmax, or both with a comma")
    return text


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"bad regular expression {text!r}: {error}") from error
    return text


def _tolerance(text: str) -> float:
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):  # NaN fails as well
        raise argparse.ArgumentTypeError(f"{text!r} is no tolerance: expected a fraction above 0 such as 0.01, or 1%")
    return value


def _io_types(text: str) -> bool | frozenset[str]:
    """Return True (keep all), False (all low), or the names that go low."""
    if text in ("keep", "low"):
        return text == "keep"
    low = set()
    for item in text.split(","):
        name, equals, kind = item.rpartition("=")
        if not (name and equals and kind == "low"):
            raise argparse.ArgumentTypeError(f"{item!r} is neither 'keep', 'low' nor NAME=low")
        low.add(name)
    return frozenset(low)


def _check_combinations(options: Options) -> None:
    """Raise OptionError for options that make no sense together, or at all for now."""
    if options.no_verify and options.tolerance is not None:
        raise OptionError("--tolerance needs the comparison that --no-verify leaves out; drop one of the two")
    both = sorted(set(options.white) & set(options.black))
    if both:
        raise OptionError(f"operator {both[0]!r} is both in --white and in --black; drop one of the two")
    if options.copies:
        _check_copy(options)


def _check_copy(options: Options) -> None:
    """Raise OptionError for options about what becomes low, or about comparing it, where the files are copied."""
    given = {
        "--io-types": options.io_types is not True,
        "--promote": options.promote,
        "--white": options.white,
        "--black": options.black,
        "--black-var": options.black_var,
        "--guard": options.guard,
        "--disable-amp": options.disable_amp,
        "--inputs": options.inputs is not None,
        "--tolerance": options.tolerance is not None,
        "--benchmark": options.benchmark,
    }
    meaningless = [option for option, value in given.items() if value]
    if meaningless:
        asked = "--level O0" if options.level == "O0" else f"--preset {options.preset}"
        raise OptionError(
            f"{asked} copies the files as they are, so {', '.join(meaningless)} would have no effect; "
            "drop one of the two, or choose another level or preset"
        )
