"""`ExponentialMovingAverage` and `ModelAverage` average parameters over the steps of a training run."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.framework.programs import default_main_program, default_startup_program
from amp_transpiler.paddle.framework.rollback import all_or_nothing
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable, Program, Variable
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.systems.paddle.master_weights import master_name

__all__ = ["ExponentialMovingAverage", "ModelAverage"]


class _Average(abc.ABC):
    """Keeps averages in the scope, which can take the place of parameters for a while.

    Args:
        name: put before the names of the averages.
    """

    def __init__(self, name: str | None) -> None:
        self._prefix = name or ""
        self._saved: dict[str, np.ndarray] = {}
        self._parameters: list[str] = []

    @abc.abstractmethod
    def _averages(self, scope: Scope) -> dict[str, np.ndarray]:
        """Return parameter -> average."""

    @contextlib.contextmanager
    def apply(self, executor: Any = None, need_restore: bool = True, scope: Scope | None = None) -> Iterator[None]:
        """Give the parameters their averages inside the `with` block.

        Args:
            executor: Paddle's, no effect.
            need_restore: whether the parameters get their values back at the end; if not, `restore` does that.
            scope: where they live; the global scope unless given.

        Raises:
            InputError: no step was averaged yet, or averages are applied already.
        """
        del executor
        active_scope = global_scope() if scope is None else scope
        if self._saved:
            raise InputError(f"{type(self).__name__}.apply: the averages are applied already: call restore() first")
        averages = self._averages(active_scope)
        self._saved = {name: np.array(active_scope[name]) for name in averages}
        try:
            active_scope.update({name: average.astype(self._saved[name].dtype) for name, average in averages.items()})
            yield
        finally:
            if need_restore:
                self.restore(scope=active_scope)

    def restore(self, executor: Any = None, scope: Scope | None = None) -> None:
        """Give the parameters the values that they had before `apply`."""
        del executor
        active_scope = global_scope() if scope is None else scope
        active_scope.update(self._saved)
        self._saved = {}

    def _state(self, program: Program, name: str, shape: Sequence[int], initial: float = 0.0) -> Variable:
        label = unique_name.generate(f"{self._prefix}{name}")
        return create_persistable(Persistable(label, "state"), shape, initial, main=program)


def _new_value(program: Program, parameter: Variable) -> ir.Value:
    """Return a parameter's value after the step in float32, unrounded if it has a master weight."""
    name = master_name(parameter.name) if master_name(parameter.name) in program.updates else parameter.name
    return program.builder("optimize").high(program.value(program.updates.get(name, name)))


def _replace(program: Program, held: Variable, value: ir.Value) -> None:
    program.updates[held.name] = str(value.name)


class ExponentialMovingAverage(_Average):
    """`average = decay * average + (1 - decay) * parameter` after each step; corrected for its start at 0 when applied.

        ema = static.ExponentialMovingAverage(0.999)
        ema.update()                  # behind minimize
        with ema.apply(exe):
            ...                       # the test program sees the averages

    Args:
        decay: how much of an average is kept in a step.
        thres_steps: a variable with the number of steps; the decay is then at most `(1 + steps) / (10 + steps)`.
        name: put before the names of the averages.

    Raises:
        OptionError: `decay` is not between 0 and 1.
    """

    def __init__(self, decay: float = 0.999, thres_steps: Variable | None = None, name: str | None = None) -> None:
        if not 0.0 <= decay < 1.0:
            raise OptionError(f"ExponentialMovingAverage: decay must be in [0, 1), got {decay}")
        super().__init__(name)
        self._decay, self._thres_steps = float(decay), thres_steps
        self._held: dict[str, str] = {}
        self._product = ""

    def update(self) -> None:
        """Append the averages of all trainable parameters to the current program; call it once, behind `minimize`.

        Raises:
            InputError: it was called before, or there is no parameter.
        """
        program = default_main_program()
        parameters = [parameter for parameter in program.all_parameters() if parameter.trainable]
        if self._held or not parameters:
            raise InputError(
                "ExponentialMovingAverage.update: "
                + ("it was called before" if self._held else f"{program!r} has no trainable parameter")
            )
        with all_or_nothing(program, default_startup_program(), owners=[self]):
            builder = program.builder("optimize")
            decay = self._decay_of(builder)
            rest = builder.sub(1.0, decay)
            for parameter in parameters:
                held = self._state(program, f"{parameter.name}_ema", parameter.shape)
                decayed = builder.mul(held.value, decay)
                _replace(program, held, builder.add(decayed, builder.mul(_new_value(program, parameter), rest)))
                self._held[parameter.name] = held.name
            product = self._state(program, "ema_decay_pow", [], 1.0)
            _replace(program, product, builder.mul(product.value, decay))
            self._product = product.name

    def _decay_of(self, builder: GraphBuilder) -> ir.Value:
        limit = builder.constant(self._decay, ir.DataType.FLOAT)
        if self._thres_steps is None:
            return limit
        steps = builder.reshape(builder.cast(self._thres_steps.value, ir.DataType.FLOAT), [])
        return builder.minimum(limit, builder.div(builder.add(steps, 1.0), builder.add(steps, 10.0)))

    def _averages(self, scope: Scope) -> dict[str, np.ndarray]:
        if not self._held or self._product not in scope or float(scope[self._product]) == 1.0:
            raise InputError("ExponentialMovingAverage.apply: no step was averaged: call update() and run the program")
        part = 1.0 - np.float64(scope[self._product])
        return {name: np.asarray(scope[held], np.float64) / part for name, held in self._held.items()}


_MOST = 16384.0  # sums of more steps would lose what is added


class ModelAverage(_Average):
    """Averages parameters over the last steps; it is created behind `minimize`, in the current program.

    Args:
        average_window_rate: the window as a part of all steps.
        parameters: variables or names; all trainable parameters unless given.
        min_average_window: the shortest window.
        max_average_window: the longest window.
        name: put before the names of the averages.

    Raises:
        InputError: there is no parameter.
    """

    def __init__(
        self,
        average_window_rate: float,
        parameters: Sequence[Variable | str] | None = None,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        program = default_main_program()
        listed = (
            program.all_parameters() if parameters is None else [program.var(program.name_of(p)) for p in parameters]
        )
        chosen = [parameter for parameter in listed if parameter.trainable]
        if not chosen:
            raise InputError(f"ModelAverage: {program!r} has no trainable parameter")
        self._rate, self._least, self._most = average_window_rate, float(min_average_window), float(max_average_window)
        with all_or_nothing(program, default_startup_program(), owners=[self]):
            self._append(program, chosen)

    def _append(self, program: Program, parameters: Sequence[Variable]) -> None:
        b = program.builder("optimize")
        updates, count, old = (self._state(program, kind, []) for kind in ("num_updates", "num_acc", "old_num_acc"))
        steps, here = b.add(updates.value, 1.0), b.add(count.value, 1.0)
        window = b.minimum(b.mul(steps, self._rate), self._most)
        full = b.op("And", [b.compare("GreaterOrEqual", here, self._least), b.compare("GreaterOrEqual", here, window)])
        rest = b.sub(steps, b.mul(b.op("Floor", [b.div(steps, _MOST)]), _MOST))
        moves = b.compare("Equal", rest, 0.0)
        self._counts = count.name, old.name
        self._sums: dict[str, list[str]] = {}
        for parameter in parameters:
            sums = [self._state(program, f"{parameter.name}_sum_{n}", parameter.shape) for n in (1, 2, 3)]
            first = b.add(sums[0].value, _new_value(program, parameter))
            second = b.where(moves, b.add(sums[1].value, first), sums[1].value)
            first = b.where(moves, 0.0, first)
            _replace(program, sums[2], b.where(full, b.add(first, second), sums[2].value))
            for held, value in zip(sums, (first, second), strict=False):
                _replace(program, held, b.where(full, 0.0, value))
            self._sums[parameter.name] = [held.name for held in sums]
        _replace(program, updates, b.op("Identity", [steps]))
        _replace(program, old, b.where(full, here, old.value))
        _replace(program, count, b.where(full, 0.0, here))

    def minimize(self, *_: Any, **__: Any) -> None:
        """Do nothing: the averages are part of the program already."""

    def _averages(self, scope: Scope) -> dict[str, np.ndarray]:
        total = sum(float(scope[name]) for name in self._counts if name in scope)
        if not total:
            raise InputError("ModelAverage.apply: no step was averaged: run the program first")
        return {
            name: np.sum([np.asarray(scope[held], np.float64) for held in sums], 0) / total
            for name, sums in self._sums.items()
        }


check_arguments(globals(), __all__)
