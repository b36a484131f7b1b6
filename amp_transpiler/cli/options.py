"""The options as parsed, with the checks that need no model."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from amp_transpiler.cli.parser import build_parser
from amp_transpiler.cli.places import STREAM, check_name
from amp_transpiler.errors import OptionError
from amp_transpiler.options.command import CommandOptions
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.option import declarations
from amp_transpiler.options.table import OPTIONS
from amp_transpiler.systems.option_names import DEFAULT_DTYPE

__all__ = ["Options", "parse"]

_GROUPS = re.compile(r"(gemm|softmax)(,(gemm|softmax))*,?", re.IGNORECASE)
_COPYING = {option.name: option.copying.lower() for option in OPTIONS if option.copying is not None}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options(CommandOptions):
    """The options of one call of the command.

    Attributes:
        conversion: the options of `transpile` that are the same for every model.
        as_written: option -> what was written on the command line, or its default, for the report in JSON.
    """

    conversion: ConversionOptions
    as_written: Mapping[str, Any]

    @property
    def inputs(self) -> str | None:
        """The place of the samples, as it was written; `samples.py` says what it may be."""
        place: str | None = self.as_written["inputs"]
        return place

    @property
    def low_dtype(self) -> str:
        """The lower precision: `--dtype` if given; else bfloat16 for SambaNova's options, float16 for all others."""
        asked = self.conversion
        by_sambanova = asked.preset is not None or bool(asked.mixed_ops)
        return "bfloat16" if asked.dtype is DEFAULT_DTYPE and by_sambanova else asked.dtype

    @property
    def copied_by(self) -> str | None:
        """The option by which the files are copied as they are, as in `--preset mp0`; None if they are converted."""
        names = {} if self.conversion.mixed_ops else _COPYING
        copying = {name: str(getattr(self.conversion, name)) for name in names}
        return next((f"--{name} {value}" for name, value in copying.items() if value.lower() == names[name]), None)

    @property
    def silent(self) -> bool:
        """Whether no table is printed."""
        return self.quiet or self.json == STREAM

    @property
    def to_stdout(self) -> bool:
        """Whether the model goes to standard output, so that nothing else may."""
        return self.output == STREAM


def parse(argv: Sequence[str] | None) -> Options:
    """Return the options in `argv`; None stands for the arguments of the process.

    Raises:
        OptionError: an option is unknown, has no meaning, or contradicts another.
        SystemExit: after `--help` and `--version`.
    """
    parser = build_parser()
    arguments = sys.argv[1:] if argv is None else list(argv)
    # Models may stand between options; but behind `--` they may begin with a dash, which that parsing forgets.
    parse_arguments = parser.parse_args if "--" in arguments else parser.parse_intermixed_args
    raw = vars(parse_arguments(_with_joined_mixed_ops(arguments)))
    conversion = ConversionOptions(**_values(ConversionOptions, raw))
    options = Options(conversion=conversion, as_written=_as_written(raw), **_values(CommandOptions, raw))
    _check_contradictions(options, raw["state"])
    if options.copied_by is not None:
        _check_copy(options.copied_by, raw)
    if _report_shows_curve(options):
        return dataclasses.replace(options, conversion=dataclasses.replace(conversion, frontier=True))
    return options


def _values(record: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that have flags or a place on the command line."""
    declared = declarations(record).items()
    return {field: declaration.value_of(raw) for field, declaration in declared if declaration.options[0].name in raw}


def _as_written(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was written of each option; for those that were left out their defaults, where these are words."""
    declared = [*declarations(CommandOptions).values(), *declarations(ConversionOptions).values()]
    defaults = {option.name: declaration.default for declaration in declared for option in declaration.options}
    written = {
        option.name: _word(defaults[option.name]) if raw[option.name] is None else raw[option.name]
        for option in OPTIONS
        if option.name in raw and option.name != "models"
    }
    io_types = written["io_types"]
    return written | {"io_types": ("low", "keep")[io_types] if isinstance(io_types, bool) else list(io_types)}


def _word(default: Any) -> Any:
    """Return a default as the command shows it; None for one that stands for more than itself."""
    return None if default is DEFAULT_DTYPE or default == () else default


def _report_shows_curve(options: Options) -> bool:
    """Whether the report in HTML has a curve between error and cost to show."""
    asked = options.conversion
    by_cost = asked.level.lower() == "auto" and asked.policy == "paddle" and not (asked.preset or asked.mixed_ops)
    return options.report is not None and by_cost and asked.verify and asked.dtype != "float32"


def _with_joined_mixed_ops(arguments: Sequence[str]) -> list[str]:
    """Join `--mixed-ops gemm softmax` with a comma: argparse would take the second one for a model."""
    joined: list[str] = []
    groups = False  # whether the last argument holds groups
    for index, argument in enumerate(arguments):
        if groups and _GROUPS.fullmatch(argument):
            joined[-1] += f",{argument}"
            continue
        groups = argument.startswith("--mixed-ops=") or (index > 0 and arguments[index - 1] == "--mixed-ops")
        joined.append(argument)
    return joined


def _check_contradictions(options: Options, states: Sequence[tuple[str, str]]) -> None:
    asked = options.conversion
    for name in ("tolerance", "mismatch", "metric", "frontier"):
        if not asked.verify and getattr(asked, name) not in (None, False):
            raise OptionError(f"--{name} needs the comparison that --no-verify skips; drop one of the two")
    lists = asked.amp_lists
    both = [] if lists is None else sorted(set(lists.custom_white_list) & set(lists.custom_black_list))
    if both:
        raise OptionError(f"operator {both[0]!r} is both in --white and in --black; drop one of the two")
    if options.benchmark and options.jobs > 1:
        raise OptionError("--benchmark and --jobs: the measurements would disturb each other; drop one of the two")
    _check_skipping(options)
    named = [name for name, _ in states]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise OptionError(f"--state binds input {twice[0]!r} twice; drop one of the two")
    if options.inputs is not None:
        check_name("--inputs", options.inputs)


def _check_skipping(options: Options) -> None:
    if not options.skip_unchanged:
        return
    shows_or_remembers = {
        "report": options.report,
        "save_recipe": options.save_recipe,
        "explain": options.explain,
        "benchmark": options.benchmark,
        "no_cache": not options.conversion.cache,
        "dry_run": options.dry_run,
    }
    for name, asked in shows_or_remembers.items():
        if asked:
            raise OptionError(
                f"--skip-unchanged and --{name.replace('_', '-')}: a model that is skipped is not converted, so there "
                "would be nothing to show or to remember; drop one of the two"
            )
    if options.to_stdout:
        raise OptionError("--skip-unchanged needs a result that stays; give -o a file instead of -")


def _check_copy(copied_by: str, raw: Mapping[str, Any]) -> None:
    """Refuse what would be ignored, since a copy changes nothing and compares nothing."""
    declared = [*declarations(ConversionOptions).values(), *declarations(CommandOptions).values()]
    ignored = [
        option.flags[-1]
        for declaration in declared
        for option in declaration.options
        if option.flags and option.is_lost_on_copies
        if option.is_written(raw) and raw[option.name] != declaration.default
    ]
    if ignored:
        raise OptionError(
            f"{copied_by} copies the files as they are, so {', '.join(ignored)} would have no effect; "
            "drop one of the two, or choose another level or preset"
        )
