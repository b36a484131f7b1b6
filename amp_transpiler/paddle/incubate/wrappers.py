"""Wraps optimizers, those of mixed precision among them: merged gradients, look-ahead, recomputing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.framework.rollback import all_or_nothing
from amp_transpiler.paddle.optimizer.base import Optimizer, Pairs
from amp_transpiler.paddle.optimizer.step import UpdateStep
from amp_transpiler.paddle.static.amp.optimizer import OptimizerWithMixedPrecision
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.training_passes import ask_for_recompute

__all__ = ["GradientMergeOptimizer", "LookAhead", "RecomputeOptimizer"]

Parameters = Sequence[Variable | str] | None
Stopped = Collection[Variable | str] | None


class _Wrapper:
    """Wraps an optimizer; attributes that the wrapper lacks are read from that optimizer.

    Args:
        inner_optimizer: an optimizer, or the result of `decorate`.

    Raises:
        OptionError: it is something else.
    """

    def __init__(self, inner_optimizer: Any) -> None:
        if not isinstance(inner_optimizer, (Optimizer, OptimizerWithMixedPrecision, RecomputeOptimizer)):
            raise OptionError(f"{type(self).__name__}: inner_optimizer must be an optimizer, got {inner_optimizer!r}")
        self.inner_optimizer = inner_optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner_optimizer"], name)

    @property
    def _owners(self) -> list[object]:
        owners: list[object] = [self]
        inner: Any = self.inner_optimizer
        while inner is not None:
            owners.append(inner)
            names = vars(inner)  # of the optimizer inside, where there is one
            inner = names.get("inner_optimizer", names.get("_optimizer"))
        return owners


class GradientMergeOptimizer(_Wrapper):
    """Sums the gradients of `k_steps` runs in float32, and updates at every `k_steps`-th only.

    In between, parameters, moments, schedules and loss scales stay as they are; running statistics of layers do not.

    Args:
        inner_optimizer: an optimizer, or the result of `decorate`.
        k_steps: the number of runs.
        avg: whether the mean of the gradients is used, instead of their sum.

    Raises:
        OptionError: `k_steps` is below 1.
    """

    def __init__(self, inner_optimizer: Any, k_steps: int = 1, avg: bool = True) -> None:
        super().__init__(inner_optimizer)
        if k_steps < 1:
            raise OptionError(f"GradientMergeOptimizer: k_steps must be 1 or more, got {k_steps}")
        self.k_steps, self.avg = int(k_steps), avg

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameters: Parameters = None,
        no_grad_set: Stopped = None,
    ) -> tuple[list[str], Pairs]:
        """Append the backward pass, the sums, and the update.

        Returns:
            Names of the optimizer's nodes, and (parameter, gradient of this run) pairs.
        """
        startup = startup_program if startup_program is not None else default_startup_program()
        with all_or_nothing(loss.program, startup, owners=self._owners):
            pairs = self.inner_optimizer.backward(loss, startup, parameters, no_grad_set)
            if self.k_steps == 1:
                return self.inner_optimizer.apply_gradients(pairs), pairs
            return self._apply(loss.program, startup, pairs), pairs

    def _apply(self, program: Program, startup: Program, pairs: Pairs) -> list[str]:
        step = UpdateStep(program, startup, None)
        b = step.builder
        counter = step.state(unique_name.generate("gradient_merge_step"), 0, dtype=ir.DataType.INT64)
        count = b.add(counter, 1)
        last = b.compare("Equal", count, self.k_steps)
        program.updates[str(counter.name)] = str(b.where(last, 0, count).name)
        merged: Pairs = []
        for parameter, gradient in pairs:
            held = step.state(unique_name.generate(f"{parameter.name}@GRAD@GradientMerge"), 0.0, parameter.shape)
            total = b.add(held, b.high(gradient.value))
            program.updates[str(held.name)] = str(b.where(last, 0.0, total).name)
            used = b.mul(total, 1.0 / self.k_steps) if self.avg else total
            merged.append((parameter, Variable(program, str(used.name))))
        before = dict(program.updates)
        nodes: list[str] = self.inner_optimizer.apply_gradients(merged)
        for name, update in list(program.updates.items()):
            if before.get(name) != update:
                program.updates[name] = str(b.where(last, program.value(update), program.value(name)).name)
        return nodes


class RecomputeOptimizer(_Wrapper):
    """Computes activations again in the backward pass, instead of keeping them: less memory for more time.

    As with `Executor(recompute=True)`, those that are large and cheap are computed again, by the same operators from
    the same values: every result stays the same, to the bit.

    Args:
        optimizer: an optimizer, or the result of `decorate`.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        """Take Paddle's list of what is kept, without effect: the sizes of a step decide what is recomputed."""

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameters: Parameters = None,
        no_grad_set: Stopped = None,
    ) -> Pairs:
        """Append the backward pass; see the inner optimizer's."""
        pairs: Pairs = self.inner_optimizer.backward(loss, startup_program, parameters, no_grad_set)
        ask_for_recompute(loss.program.model)
        return pairs

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameters: Parameters = None,
        no_grad_set: Stopped = None,
    ) -> tuple[list[str], Pairs]:
        """Append the backward pass and the update; see the inner optimizer's.

        Returns:
            Names of the optimizer's nodes, and (parameter, gradient) pairs.
        """
        nodes: list[str]
        pairs: Pairs
        nodes, pairs = self.inner_optimizer.minimize(loss, startup_program, parameters, no_grad_set)
        ask_for_recompute(loss.program.model)
        return nodes, pairs


class LookAhead(_Wrapper):
    """Every `k` steps the parameters go back a part of the way to where they were `k` steps ago.

    `slow += alpha * (fast - slow); fast = slow`. As in Paddle, `slow` starts from the parameters after the first step.

    Args:
        inner_optimizer: an optimizer, or the result of `decorate`.
        alpha: the part of the way that is kept.
        k: the number of steps.
        name: Paddle's, no effect.

    Raises:
        OptionError: `alpha` is not between 0 and 1, or `k` is below 1.
    """

    def __init__(self, inner_optimizer: Any, alpha: float = 0.5, k: int = 5, name: str | None = None) -> None:
        del name
        super().__init__(inner_optimizer)
        if not 0.0 <= alpha <= 1.0 or k < 1:
            raise OptionError(f"LookAhead: alpha must be in [0, 1] and k 1 or more, got {alpha} and {k}")
        self.alpha, self.k = float(alpha), int(k)

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameters: Parameters = None,
        no_grad_set: Stopped = None,
    ) -> tuple[list[str], Pairs]:
        """Append the backward pass, the inner update, and the way back.

        Returns:
            Names of the inner optimizer's nodes, and (parameter, gradient) pairs.

        Raises:
            InputError: the inner optimizer updates no parameter.
        """
        startup = startup_program if startup_program is not None else default_startup_program()
        with all_or_nothing(loss.program, startup, owners=self._owners):
            nodes, pairs = self.inner_optimizer.minimize(loss, startup, parameters, no_grad_set)
            step = UpdateStep(loss.program, startup, None)
            b = step.builder
            counter = step.state(unique_name.generate("lookahead_step"), 0, dtype=ir.DataType.INT64)
            count = step.replace(counter, "Add", [Expr(counter, b), 1])
            first = b.compare("Equal", count, 1)
            meets = b.compare("Equal", b.op("Mod", [count, b.constant(self.k)]), 0)
            for parameter, _ in pairs:
                self._append(step, parameter, first, meets)
        return nodes, pairs

    def _append(self, step: UpdateStep, parameter: Variable, first: ir.Value, meets: ir.Value) -> None:
        program, b = step.program, step.builder
        name = self.inner_optimizer.master_weights.get(parameter.name, parameter.name)
        if name not in program.updates:
            raise InputError(f"LookAhead: the inner optimizer does not update '{parameter.name}'")
        fast = b.high(program.value(program.updates[name]))
        held = step.state(unique_name.generate(f"{parameter.name}_slow"), 0.0, parameter.shape)
        slow = b.where(first, fast, held)
        mixed = b.add(b.mul(fast, self.alpha), b.mul(slow, 1.0 - self.alpha))
        program.updates[str(held.name)] = str(b.where(meets, mixed, slow).name)
        updated = b.where(meets, mixed, fast)
        if name != parameter.name:
            program.updates[name] = str(updated.name)
        program.updates[parameter.name] = str(b.cast(updated, parameter.value.dtype).name)


check_arguments(globals(), __all__)
