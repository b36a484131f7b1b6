"""The options as parsed, with the checks that need no model."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amp_transpiler.cli.parser import build_parser
from amp_transpiler.cli.places import STREAM, check_name
from amp_transpiler.errors import OptionError
from amp_transpiler.option_table import OPTIONS

if TYPE_CHECKING:
    from amp_transpiler.precision.user_lists import UserLists

__all__ = ["Options", "parse"]

_GROUPS = re.compile(r"(gemm|softmax)(,(gemm|softmax))*,?", re.IGNORECASE)

# A copy changes nothing and compares nothing, so these would be ignored.
_COPYING = {option.name: option.copying.lower() for option in OPTIONS if option.copying is not None}
_NO_EFFECT_ON_COPIES = (
    "io_types",
    "promote",
    "white",
    "black",
    "black_var",
    "guard",
    "disable_amp",
    "include",
    "opset",
    "state",
    "master_weights",
    "loss_scaling",
    "optimize",
    "recipe",
    "save_recipe",
    "prefer",
    "device",
    "dims",
    "headroom",
    "data_max",
    "init_max",
    "max_depth_of_reduction",
    "metric",
    "metric_bound",
    "frontier",
    "inputs",
    "tolerance",
    "mismatch",
    "device_check",
    "benchmark",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The options, named as on the command line; `option_table` says what they mean.

    Attributes:
        io_types: True keeps the types of all inputs and outputs, False makes all low; names: those that become low.
        tolerance: a fraction; text that `transpile` reads, if it names outputs; or None.
        mismatch: a share, or None.
        json: a path, `-` for stdout, or None.
    """

    models: list[str]
    output: str | None
    recursive: bool
    skip_unchanged: bool
    level: str
    dtype: str | None
    target: str
    ort: str | None
    io_types: bool | frozenset[str]
    promote: bool
    white: list[str]
    black: list[str]
    black_var: list[str]
    guard: list[str]
    disable_amp: list[str]
    include: list[str]
    opset: int | None
    prefer: str
    device: str
    dims: list[tuple[str, int]]
    headroom: float
    data_max: float | None
    init_max: float | None
    max_depth_of_reduction: int | None
    policy: str
    preset: str | None
    mixed_ops: str | None
    state: list[tuple[str, str]]
    master_weights: bool
    loss_scaling: bool
    optimize: bool
    recipe: str | None
    inputs: str | None
    tolerance: float | str | None
    mismatch: float | None
    metric: str | None
    metric_bound: float | None
    frontier: bool
    device_check: str
    no_cache: bool
    no_verify: bool
    benchmark: bool
    explain: bool
    report: str | None
    json: str | None
    junit: str | None
    sarif: str | None
    save_recipe: str | None
    dry_run: bool
    jobs: int
    quiet: bool
    verbose: int

    def conversion(self) -> dict[str, Any]:
        """Return the arguments of `transpile` that are the same for every model."""
        from amp_transpiler.systems.choice import DEFAULT_DTYPE  # which loads onnx

        return {
            "level": self.level,
            "dtype": self.dtype or DEFAULT_DTYPE,
            "target": self.target,
            "ort": self.ort,
            "keep_io_types": self.kept_io_types,
            "amp_lists": self.lists,
            "use_promote": self.promote,
            "policy": self.policy,
            "preset": self.preset,
            "mixed_ops": self.mixed_ops or (),
            "guard": tuple(self.guard),
            "disable_amp": tuple(self.disable_amp),
            "include": tuple(self.include),
            "opset": self.opset,
            "state": dict(self.state) or None,
            "master_weights": self.master_weights or None,
            "loss_scaling": self.loss_scaling,
            "optimize": self.optimize,
            "recipe": self.recipe,
            "inputs": self.inputs,
            "tolerance": self.tolerance,
            "mismatch": self.mismatch,
            "prefer": self.prefer,
            "device": self.device,
            "dims": dict(self.dims) or None,
            "headroom": self.headroom,
            "data_max": self.data_max,
            "init_max": self.init_max,
            "max_depth_of_reduction": self.max_depth_of_reduction,
            "metric": self.metric,
            "metric_bound": self.metric_bound,
            "frontier": self.frontier or self.report_shows_curve,
            "device_check": self.device_check,
            "cache": not self.no_cache,
            "verify": not self.no_verify,
        }

    @property
    def report_shows_curve(self) -> bool:
        """Whether the report in HTML has a curve between error and cost to show."""
        decides = self.level.lower() == "auto" and self.policy == "paddle" and not (self.preset or self.mixed_ops)
        return self.report is not None and decides and not self.no_verify and self.dtype != "float32"

    @property
    def kept_io_types(self) -> bool | dict[str, str]:
        """`keep_io_types` of `transpile`."""
        return self.io_types if isinstance(self.io_types, bool) else dict.fromkeys(sorted(self.io_types), "low")

    @property
    def lists(self) -> UserLists | None:
        """`amp_lists` of `transpile`: the names as given, which it looks up in the model; None without any."""
        if not (self.white or self.black or self.black_var):
            return None
        from amp_transpiler.precision.user_lists import UserLists

        return UserLists(frozenset(self.white), frozenset(self.black), frozenset(self.black_var))

    @property
    def low_dtype(self) -> str:
        """The lower precision: `--dtype` if given; else bfloat16 for SambaNova's options, float16 for all others."""
        return self.dtype or ("bfloat16" if self.preset is not None or self.mixed_ops else "float16")

    @property
    def copied_by(self) -> str | None:
        """The option by which the files are copied as they are, as in `--preset mp0`; None if they are converted."""
        copying_options = {name: getattr(self, name) for name in _COPYING} if self.mixed_ops is None else {}
        copying = (
            f"--{name} {value}" for name, value in copying_options.items() if str(value).lower() == _COPYING[name]
        )
        return next(copying, None)

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
    options = Options(**vars(parse_arguments(_with_joined_mixed_ops(arguments))))
    _check_contradictions(options)
    if options.copied_by is not None:
        ignored = [name for name in _NO_EFFECT_ON_COPIES if getattr(options, name) != parser.get_default(name)]
        _check_copy(options, [f"--{name.replace('_', '-')}" for name in ignored])
    return options


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


def _check_contradictions(options: Options) -> None:
    for name in ("tolerance", "mismatch", "metric", "frontier"):
        if options.no_verify and getattr(options, name) not in (None, False):
            raise OptionError(f"--{name} needs the comparison that --no-verify skips; drop one of the two")
    both = sorted(set(options.white) & set(options.black))
    if both:
        raise OptionError(f"operator {both[0]!r} is both in --white and in --black; drop one of the two")
    if options.benchmark and options.jobs > 1:
        raise OptionError("--benchmark and --jobs: the measurements would disturb each other; drop one of the two")
    for name in ("report", "save_recipe", "explain", "benchmark", "no_cache", "dry_run"):
        if options.skip_unchanged and getattr(options, name):
            raise OptionError(
                f"--skip-unchanged and --{name.replace('_', '-')}: a model that is skipped is not converted, so there "
                "would be nothing to show or to remember; drop one of the two"
            )
    if options.skip_unchanged and options.to_stdout:
        raise OptionError("--skip-unchanged needs a result that stays; give -o a file instead of -")
    named = [name for name, _ in options.state]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise OptionError(f"--state binds input {twice[0]!r} twice; drop one of the two")
    if options.inputs is not None:
        check_name("--inputs", options.inputs)


def _check_copy(options: Options, ignored: Sequence[str]) -> None:
    if ignored:
        raise OptionError(
            f"{options.copied_by} copies the files as they are, so {', '.join(ignored)} would have no effect; "
            "drop one of the two, or choose another level or preset"
        )
