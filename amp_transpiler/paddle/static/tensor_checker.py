"""Checks the tensors of a run: those of every operator with Paddle's tensor checker, or those that are named.

Before such a run, the program runs once more on a copy of the scope, with all that is looked at as outputs. So a run
that is stopped changes nothing, and one that goes on computes what it would have.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from amp_transpiler.errors import NotFiniteError, OptionError, OutputError
from amp_transpiler.graph.builder import is_float_tensor
from amp_transpiler.graph.lines import line_of
from amp_transpiler.ops.vocabulary import paddle_names
from amp_transpiler.paddle.static.tensor_stats import TensorStats, log_file, stats_of
from amp_transpiler.phrases import first_few, quoted
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.flags import set_flags

__all__ = [
    "DebugMode",
    "TensorCheckerConfig",
    "Watched",
    "check_tensors",
    "disable_tensor_checker",
    "enable_tensor_checker",
    "exempt",
    "is_exempt",
    "watch",
]

logger = logging.getLogger(__name__)


class DebugMode(enum.Enum):
    """Says what a tensor checker does, with Paddle's names.

    `CHECK_NAN_INF_AND_ABORT` stops a run at infinity and NaN, `CHECK_NAN_INF` prints the tensors that have them and
    goes on, `CHECK_ALL_FOR_OVERFLOW` also prints those of float32 that float16 cannot hold: an element is beyond its
    range, or all of them would be zero. `CHECK_ALL` prints every one.
    """

    CHECK_NAN_INF_AND_ABORT = 0
    CHECK_NAN_INF = 1
    CHECK_ALL_FOR_OVERFLOW = 2
    CHECK_ALL = 3


_IS_SHOWN: Mapping[DebugMode, Callable[[TensorStats], bool]] = {
    DebugMode.CHECK_NAN_INF_AND_ABORT: lambda stats: not stats.is_finite,
    DebugMode.CHECK_NAN_INF: lambda stats: not stats.is_finite,
    DebugMode.CHECK_ALL_FOR_OVERFLOW: lambda stats: (
        not stats.is_finite or stats.leaves_float16 or stats.vanishes_in_float16
    ),
    DebugMode.CHECK_ALL: lambda _: True,
}


@dataclasses.dataclass(frozen=True, slots=True)
class TensorCheckerConfig:
    """Holds Paddle's settings of the tensor checker.

    Attributes:
        enable: whether it checks at all.
        debug_mode: what it does.
        output_dir: a folder for its log, `worker_cpu.0.log` or `worker_gpu.0.log`; else it prints.
        checked_op_list: the operators whose outputs are looked at, by Paddle's names; all unless given.
        skipped_op_list: operators whose outputs are not.
        debug_step: the first step that is checked and the first that is not any more, counted from 0; all unless
            given. A step is a run with feeds since the checker was enabled first.
        stack_height_limit: 0 for errors that do not name the line of your program that made the operator.

    Raises:
        OptionError: an argument has no meaning.
    """

    enable: bool
    debug_mode: DebugMode = DebugMode.CHECK_NAN_INF_AND_ABORT
    output_dir: str | os.PathLike[str] | None = None
    checked_op_list: Sequence[str] | None = None
    skipped_op_list: Sequence[str] | None = None
    debug_step: Sequence[int] | None = None
    stack_height_limit: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.debug_mode, DebugMode):
            raise OptionError(f"TensorCheckerConfig: debug_mode is a DebugMode, got {self.debug_mode!r}")
        for name in ("checked_op_list", "skipped_op_list"):
            operators = getattr(self, name)
            if operators is not None and (
                isinstance(operators, str) or not all(isinstance(op, str) for op in operators)
            ):
                raise OptionError(f"TensorCheckerConfig: {name} is a list of operators' names, got {operators!r}")
        if not isinstance(self.output_dir, (str, os.PathLike, type(None))):
            raise OptionError(f"TensorCheckerConfig: output_dir is the path of a folder, got {self.output_dir!r}")
        if not isinstance(self.stack_height_limit, int):
            raise OptionError(
                f"TensorCheckerConfig: stack_height_limit is a whole number, got {self.stack_height_limit!r}"
            )
        if self.debug_step is not None and not _is_span(self.debug_step):
            raise OptionError(
                "TensorCheckerConfig: debug_step is two whole numbers, the first step that is checked and the first "
                f"that is not any more, got {self.debug_step!r}"
            )

    @property
    def is_plain(self) -> bool:
        """Whether the flag `FLAGS_check_nan_inf` is enough for what is asked."""
        if self.debug_mode is not DebugMode.CHECK_NAN_INF_AND_ABORT or not self.stack_height_limit:
            return False
        return not any((self.output_dir, self.checked_op_list, self.skipped_op_list, self.debug_step))

    def looks_at(self, op: str) -> bool:
        """Whether it checks the outputs of an operator, given by Paddle's name."""
        is_asked = not self.checked_op_list or any(_is_same(op, name) for name in self.checked_op_list)
        return is_asked and not any(_is_same(op, name) for name in self.skipped_op_list or ())


def _is_span(span: Sequence[int]) -> bool:
    numbers = list(span)
    return len(numbers) == 2 and all(type(n) is int and n >= 0 for n in numbers) and numbers[0] < numbers[1]


def _is_same(op: str, asked: str) -> bool:
    """Whether one of Paddle's names stands for an operator: `matmul` means `matmul_v2`, too."""
    op, asked = op.replace("@grad", "_grad"), asked.replace("@grad", "_grad")
    if op == asked:
        return True
    first, second = op.removesuffix("_grad"), asked.removesuffix("_grad")
    if (first == op) != (second == asked):
        return False
    operators = paddle_names()
    return first in operators and second in operators and set(operators[first]) <= set(operators[second])


@dataclasses.dataclass(slots=True)
class _Checker:
    """Holds the tensor checker that is enabled, and counts the steps that it has seen."""

    config: TensorCheckerConfig
    steps: int = 0
    told: bool = False

    def is_due(self) -> bool:
        """Count a step, and return whether it is to be checked."""
        step, self.steps = self.steps, self.steps + 1
        span = self.config.debug_step
        return span is None or span[0] <= step < span[1]


_checkers: list[_Checker] = []  # the last one that was enabled, also while it is disabled
_enabled: list[_Checker] = []  # it, while it is enabled


def enable_tensor_checker(checker_config: TensorCheckerConfig) -> None:
    """Check the tensors of the programs that run from here on.

    By default it stops runs at infinity and NaN, as `paddle.set_flags({"FLAGS_check_nan_inf": True})` does. With any
    other setting it looks at the outputs of every operator of the main graph, which takes a second run of each step.
    The same settings, enabled again, go on counting steps.

    Raises:
        OptionError: it is given no settings.
    """
    if not isinstance(checker_config, TensorCheckerConfig):
        raise OptionError(f"enable_tensor_checker takes a TensorCheckerConfig, got {checker_config!r:.80}")
    set_flags({"FLAGS_check_nan_inf": checker_config.enable and checker_config.is_plain})
    if not _checkers or _checkers[0].config is not checker_config:
        _checkers[:] = [_Checker(checker_config)]
    _enabled[:] = _checkers if checker_config.enable and not checker_config.is_plain else []


def disable_tensor_checker() -> None:
    """Stop checking tensors: runs go on, whatever they compute."""
    set_flags({"FLAGS_check_nan_inf": False})
    _enabled.clear()


# ---- tensors that are named ----


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """Describes a tensor that is checked in each run of its program.

    Attributes:
        name: that of the value.
        op: Paddle's name of its operator, for messages.
        shown: its name in messages.
        mode: what is done.
    """

    name: str
    op: str
    shown: str
    mode: DebugMode


@dataclasses.dataclass(slots=True)
class _Watch:
    """Lists the tensors of a program that are checked, in order and each once."""

    tensors: dict[Watched, None] = dataclasses.field(default_factory=dict)

    def of_copy(self) -> _Watch:
        """Return the list for a copy of the program."""
        return _Watch(dict(self.tensors))


def watch(program: Program, tensors: Iterable[Watched]) -> None:
    """Check these tensors in each run of a program, and of its clones."""
    _watched(program).update(dict.fromkeys(tensors))


def _watched(program: Program) -> dict[Watched, None]:
    watched = program.attached.setdefault(_Watch, _Watch())
    assert isinstance(watched, _Watch)
    return watched.tensors


class _Exempt:
    """Marks a program whose runs are neither checked nor counted."""

    def of_copy(self) -> _Exempt:
        """Return the mark for a copy of the program."""
        return self


def exempt(program: Program) -> Program:
    """Leave the runs of a program alone: a tool runs it beside the user's own. Return the program."""
    program.attached[_Exempt] = _Exempt()
    return program


def is_exempt(program: Program) -> bool:
    """Whether the runs of a program are neither checked nor counted."""
    return _Exempt in program.attached


# ---- in a run ----

Compute = Callable[[Sequence[str]], list[np.ndarray]]
"""Runs the program on a copy of the scope; names of values -> their numbers."""


def check_tensors(program: Program, compute: Compute, *, has_feeds: bool, device: str, together: bool = False) -> None:
    """Check the tensors of the coming run.

    Args:
        program: the program.
        compute: see `Compute`.
        has_feeds: whether the run is fed; one that is not, such as a startup program's, is no step.
        device: where it runs, as Paddle names it.
        together: whether other processes share the run.

    Raises:
        NotFiniteError: a tensor is not finite, and its mode is to stop.
        OptionError: other processes share the run.
        OutputError: the log cannot be written.
    """
    asked = _watched(program)
    checker = next(iter(_enabled), None) if has_feeds else None
    if checker is not None and not checker.is_due():
        checker = None
    if checker is None and not asked:
        return
    if together:
        raise OptionError("tensors are looked at in a single process: run the step with Executor, without torchrun")
    tensors = list(_present(program, asked))
    if checker is not None:
        tensors += _of_operators(program, checker)
    if not tensors:
        return
    arrays = compute([tensor.name for tensor in tensors])
    stats = [stats_of(a, t.op, t.shown, device) for t, a in zip(tensors, arrays, strict=True)]
    _show(tensors, stats, device)
    bad = [(t, s) for t, s in zip(tensors, stats, strict=True) if _stops(t) and not s.is_finite]
    if bad:
        first, first_stats = bad[0]
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise NotFiniteError(
            f"{_named(first_stats)}{_line(program, first.name)}{more}. Nothing was changed in the scope. Mend the "
            "data, lower the learning rate or clip gradients; debug_mode=CHECK_NAN_INF goes on"
        )


def _stops(tensor: Watched) -> bool:
    return tensor.mode is DebugMode.CHECK_NAN_INF_AND_ABORT


def _line(program: Program, name: str) -> str:
    """Return the line of the user's program that made a value, for messages, unless they are asked not to have it."""
    value = program.find(name)
    line = None if value is None else line_of(value)
    if line is None or (_enabled and not _enabled[0].config.stack_height_limit):
        return ""
    return f", made at {line} {line.text}".rstrip()


def _named(stats: TensorStats) -> str:
    return (
        f"the operator {stats.op} made infinity or NaN: '{stats.tensor}' ({stats.dtype}) has {stats.num_nan} NaN and "
        f"{stats.num_inf} infinite of {stats.numel} numbers"
    )


def _show(tensors: Sequence[Watched], stats: Sequence[TensorStats], device: str) -> None:
    """Print the lines that are shown, or write them to the checker's log."""
    lines = [
        f"{tensor_stats}\n"
        for tensor, tensor_stats in zip(tensors, stats, strict=True)
        if _IS_SHOWN[tensor.mode](tensor_stats)
    ]
    folder = _enabled[0].config.output_dir if _enabled else None
    if folder is None:
        sys.stdout.write("".join(lines))
        return
    file = log_file(folder, device)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.writelines(lines)
    except OSError as error:
        raise OutputError(f"the tensor checker cannot write its log {file!s}: {error.strerror}") from error


def _present(program: Program, asked: Iterable[Watched]) -> Iterator[Watched]:
    """Yield those tensors that the program still has: a pass may have removed one."""
    return (tensor for tensor in asked if program.find(tensor.name) is not None)


def _of_operators(program: Program, checker: _Checker) -> list[Watched]:
    """Return the float outputs of the operators that a checker checks, in the main graph."""
    config, ops = checker.config, program.blocks[0].ops
    unknown = [name for name in config.checked_op_list or () if not any(_is_same(op.type, name) for op in ops)]
    if unknown and not checker.told:
        checker.told = True
        logger.warning("the tensor checker: %r has no operator %s", program, first_few(quoted(unknown)))
    watched: dict[str, Watched] = {}
    for op in ops:
        if config.looks_at(op.type):
            for name in op.output_arg_names:
                value = program.find(name)  # None for an output that nothing reads, such as the mask of Dropout
                if value is not None and is_float_tensor(value):
                    watched.setdefault(name, Watched(name, op.type, name, config.debug_mode))
    return list(watched.values())
