"""The argument parser, built from the declared options."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, NoReturn

from amp_transpiler.cli.exit_status import EXIT_STATUS_TEXT
from amp_transpiler.errors import OptionError
from amp_transpiler.options.option import GROUPS, Option
from amp_transpiler.options.table import OPTIONS, flag_for, similar_flags
from amp_transpiler.version import __version__

__all__ = ["FIRST_EXAMPLES", "Formatter", "Parser", "build_parser"]

_COMMAND = "amp-transpile"
_UNKNOWN = re.compile(r"unrecognized arguments: (--[^\s=]+)")

_USAGE = """\
%(prog)s [OPTION]... MODEL...
       %(prog)s diff [OPTION]... FIRST SECOND
       %(prog)s debug [OPTION]... FLOAT32 [LOW]
       %(prog)s --check [OPTION]... PATH...
       %(prog)s doctor [--measure] [--json]
       %(prog)s --completion bash|zsh|fish"""

_MOST_USED = """\
usage: amp-transpile MODEL... [OPTION]...

Turns float32 ONNX models into checked 16-bit ones, beside the model or in -o.

{options}

  amp-transpile --help all          every option; or a group of them:
                                    {groups}
  amp-transpile diff --help         two models side by side
  amp-transpile debug --help        which node is to blame for NaN or errors
  amp-transpile --check --help      the models of a repository
  amp-transpile doctor --help       what runs where on this machine
"""

_EXAMPLES = """\
examples:
  amp-transpile model.onnx                                   float16, beside the model, checked
  amp-transpile model.onnx -o out.onnx --dtype bfloat16 --inputs samples.npz --tolerance 1%
  amp-transpile model.onnx --level O2 --black Softmax --disable-amp 'head/.*' --explain
  amp-transpile models/ -o converted/ --jobs 4 --json - | jq '.[].verdict'
  amp-transpile diff model.onnx model.fp16.onnx              both side by side; see amp-transpile diff --help
  amp-transpile debug model.onnx --inputs samples.npz        which node is to blame for NaN or large errors
  amp-transpile --check models/                              for CI; see amp-transpile --check --help
  zcat model.onnx.gz | amp-transpile - -o model.fp16.onnx
"""

FIRST_EXAMPLES = """\
amp-transpile turns float32 ONNX models into checked float16 or bfloat16 ones. Three ways to begin:

  amp-transpile model.onnx                                       convert and check it: writes model.fp16.onnx
  amp-transpile model.onnx --inputs samples.npz --tolerance 1%   the fastest one within 1 % on your data
  amp-transpile diff model.onnx model.fp16.onnx                  what has changed, side by side

amp-transpile --help lists the options used most; amp-transpile doctor says what will run where on this machine.
"""
"""What the command prints without arguments."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser, whose results are named as the rows of `OPTIONS`; None, False or [] for what was not given."""
    parser = Parser(
        prog=_COMMAND,
        usage=_USAGE,
        description="Turn float32 ONNX models into valid, checked mixed-precision (float16 or bfloat16) models.",
        epilog=f"{EXIT_STATUS_TEXT}\n{_EXAMPLES}",
        formatter_class=Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    groups = {name: parser.add_argument_group(heading) for name, heading in GROUPS.items()}
    for option in OPTIONS:
        if option.flags or option.metavar:
            _add(groups[option.group], option)
    other = parser.add_argument_group("other")
    other.add_argument(
        "-h",
        "--help",
        action=_Help,
        nargs="?",
        metavar="all|GROUP",
        default=argparse.SUPPRESS,
        help=f"Print the options used most; all; or a group of them: {', '.join(GROUPS)}.",
    )
    other.add_argument("--version", action="version", version=f"%(prog)s {__version__}", help="Print the version.")
    return parser


class _Help(argparse.Action):
    """Prints the options used most on one screen; behind `all` or the name of a group those."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, values: Any, option_string: str | None = None) -> None:
        del option_string
        if values == "all":
            text = parser.format_help()
        elif values in GROUPS:
            text = _group_help(values)
        else:
            text = _short_help()
        sys.stdout.write(text)
        parser.exit()


def _short_help() -> str:
    rows = [(f"{', '.join(row.flags)} {row.metavar or ''}", row.short) for row in OPTIONS if row.short]
    width = max(len(flags) for flags, _ in rows)
    options = "\n".join(f"  {flags:<{width}}  {meaning}" for flags, meaning in rows)
    return _MOST_USED.format(options=options, groups=", ".join(GROUPS))


def _group_help(name: str) -> str:
    parser = Parser(prog=_COMMAND, usage=argparse.SUPPRESS, formatter_class=Formatter, add_help=False)
    group = parser.add_argument_group(GROUPS[name])
    for option in OPTIONS:
        if option.group == name and (option.flags or option.metavar):
            _add(group, option)
    return parser.format_help()


class Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise OptionError with the message."""
        unknown = _UNKNOWN.match(message) if self.prog == _COMMAND else None
        remedy = None if unknown is None else flag_for(unknown[1])
        hint = "" if unknown is None else similar_flags(unknown[1])
        raise OptionError(remedy or f"{message}{hint}; see {self.prog} --help")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps each line of a help text by itself, so that values are listed one a line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=21)

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = []
        for line in text.splitlines():
            value, separator, meaning = line.partition("\t")
            if not separator:
                lines += super()._split_lines(line, width)
                continue
            indent = " " * (2 + len(value))
            wrapped = super()._split_lines(meaning, max(width - len(indent), 11))  # a terminal may be very narrow
            lines += [f"  {value}{wrapped[0]}", *(f"{indent}{part}" for part in wrapped[1:])]
        return lines


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    """Add an option to its group."""
    if not option.flags:
        group.add_argument(option.name, metavar=option.metavar, nargs="+", help=_help(option))
        return
    settings: dict[str, Any] = {"dest": option.name, "help": _help(option)}
    if option.is_switch:
        settings |= {"action": "store_true"}
    elif option.metavar is None:
        settings |= {"action": "count"}
    else:
        settings |= {"metavar": option.metavar, "type": option.read}
        if option.default is not None:
            settings["choices"] = tuple(option.values)
        if option.repeated:
            settings |= {"action": "append", "default": []}
    group.add_argument(*option.flags, **settings)


def _help(option: Option) -> str:
    text = option.text
    if option.metavar and option.flags and option.repeated:
        text += " May be repeated."
    if option.default is not None:
        text += f" Default: {option.default}."
    width = max(map(len, option.values), default=0) + 2
    lines = [text, *(f"{value:{width}}\t{meaning}" for value, meaning in option.values.items())]
    return "\n".join(lines).replace("`", "").replace("%", "%%")
