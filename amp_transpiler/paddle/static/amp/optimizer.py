"""`OptimizerWithMixedPrecision`: an optimizer whose program computes in low precision."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.autodiff.context import low_weight_sums
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.origins import part_of
from amp_transpiler.paddle.argument_checks import checked
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.framework.rollback import all_or_nothing
from amp_transpiler.paddle.framework.scalar_loss import as_one_number, check_loss
from amp_transpiler.paddle.optimizer.base import Optimizer, check_trained_type
from amp_transpiler.paddle.static.amp.scaler_state import ScalerState
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable, Program, Variable
from amp_transpiler.runtime.places import Place
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.systems.paddle.casting import cast_parameters_to_fp16, cast_program
from amp_transpiler.systems.paddle.levels import LEVELS, Level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.update_passes.loss_scaling import (
    ScalingRule,
    check_finite,
    update_loss_scaling,
)

__all__ = ["AmpOptions", "OptimizerWithMixedPrecision"]

logger = logging.getLogger(__name__)

Pairs = list[tuple[Variable, Variable]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AmpOptions:
    """Holds the resolved arguments of `decorate`.

    Attributes:
        request: whose rules decide, at which level, with which lists, in which format.
        use_guard: only nodes built inside `fp16_guard` run in lower precision; None: if there are any.
        master_grad: Paddle's, no effect: gradients are clipped, regularised and used in float32 anyway.
        init_loss_scaling: the scale to start from.
        dynamic: whether the scale changes.
        rule: how the scale changes.
        fp32_params: whether master weights start from the rounded parameters.
        weight_grad_reduce: `fp32` or `low`: the format in which gradients of linear weights and biases are summed.
    """

    request: Request
    use_guard: bool | None
    master_grad: bool
    init_loss_scaling: float
    dynamic: bool
    rule: ScalingRule
    fp32_params: bool
    weight_grad_reduce: str

    @property
    def level(self) -> str:
        """The level's name: O0, OD, O1 or O2."""
        return self.request.level

    @property
    def mode(self) -> Level:
        """The level: which lists hold, and whether parameters become low too."""
        return LEVELS[self.level]

    @property
    def dtype(self) -> str:
        """The low format's name."""
        return self.request.low.name

    @property
    def lists(self) -> AutoMixedPrecisionLists | None:
        """The caller's lists, or None."""
        return self.request.lists

    @property
    def use_promote(self) -> bool:
        """Paddle's promotion: operators on no list stay float32 if any of their inputs is."""
        return self.request.use_promote


class OptimizerWithMixedPrecision:
    """An optimizer that `decorate` has wrapped.

    `minimize` rewrites the forward program, appends the backward pass of the scaled loss, unscales and checks the
    gradients, and appends the wrapped optimizer's update and that of the loss scale.

    Attributes:
        options: the arguments of `decorate`, resolved.
        found_inf: a bool scalar of the program: whether this step's gradients are not all finite. None before
            `minimize`, and if the loss is not scaled.
    """

    def __init__(self, optimizer: Optimizer, options: AmpOptions) -> None:
        self._optimizer = optimizer
        self.options = options
        self._program: Program | None = None
        self._startup: Program | None = None
        self._state: ScalerState | None = None
        self._scaled_loss: Variable | None = None
        self._low_names: set[str] = set()
        self.found_inf: ir.Value | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_optimizer"], name)

    @property
    def _scales(self) -> bool:
        """Whether the loss is scaled at all."""
        options = self.options
        return not options.mode.changes_nothing and (options.dynamic or options.init_loss_scaling != 1.0)

    def get_loss_scaling(self) -> Variable:
        """Return the loss scale, a float32 variable of shape [1].

        Raises:
            RuntimeError: `minimize` was not called yet.
        """
        return self._made_state().scale

    def get_scaled_loss(self) -> Variable | None:
        """Return the scaled loss; None before `minimize`."""
        return self._scaled_loss

    def state_dict(self, scope: Scope | None = None) -> dict[str, float | int]:
        """Return the state of the loss scaler, as `torch.amp.GradScaler.state_dict` does.

        The keys are PyTorch's: `scale`, `growth_factor`, `backoff_factor`, `growth_interval` and `_growth_tracker`
        (good steps in a row). With `scaler="paddle"` there are also `decr_every_n_nan_or_inf` and `_bad_step_tracker`
        (bad steps in a row), with `scaler="mxnet"` `_next_scale` (LossScaler's `_next_loss_scale`). A static
        scale has only `scale`; a program whose loss is not scaled has an empty state.

        Args:
            scope: where the values live; the global scope unless given.

        Returns:
            Python floats and ints, which can be pickled.

        Raises:
            InputError: the scope has no such values, since the startup program has not run there.
            RuntimeError: `minimize` was not called yet.
        """
        state = self._made_state()
        return state.to_dict(global_scope() if scope is None else scope) if self._scales else {}

    def load_state_dict(self, state_dict: Mapping[str, Any], scope: Scope | None = None) -> None:
        """Continue from a state of the loss scaler; run the startup program before.

        PyTorch's own states fit `scaler="torch"`. Factors and intervals are constants of the program, so they must be
        those that `decorate` was given.

        Args:
            state_dict: what `state_dict` returned.
            scope: where the values live; the global scope unless given.

        Raises:
            InputError: keys are missing or unknown, a value is not one that the state can have, or the startup program
                has not run in the scope; nothing changed.
            OptionError: a factor or an interval differs from the program's; nothing changed.
            RuntimeError: `minimize` was not called yet.
        """
        state = self._made_state()
        if self._scales:
            state.load(global_scope() if scope is None else scope, state_dict)
        elif state_dict:
            raise InputError(
                f"load_state_dict: the state has {', '.join(sorted(map(str, state_dict)))}, and this program does not "
                "scale its loss: leave the state out, or decorate with a scale"
            )

    def update_scale(self, new_scale: float, scope: Scope | None = None) -> None:
        """Set the loss scale, as `torch.amp.GradScaler.update(new_scale)` does; the counters stay.

        With `scaler="mxnet"` the scale decided for the next check is set too; it would undo this otherwise.

        Args:
            new_scale: positive and finite.
            scope: where the values live; the global scope unless given.

        Raises:
            InputError: `new_scale` is not such a number, the program does not scale its loss, or the startup program
                has not run in the scope.
            RuntimeError: `minimize` was not called yet.
        """
        state = self._made_state()
        if not self._scales:
            raise InputError("update_scale: this program does not scale its loss; decorate with a scale")
        state.set_scale(global_scope() if scope is None else scope, new_scale)

    @checked
    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: object = None,
    ) -> Pairs:
        """Rewrite the forward program in low precision and append the backward pass of the scaled loss.

        Returns:
            (parameter, gradient of the scaled loss) pairs.
        """
        if callbacks is not None:
            raise OptionError(
                "backward: callbacks are Paddle's and have no meaning for an ONNX program; leave them out"
            )
        check_loss(loss)
        startup = startup_program if startup_program is not None else default_startup_program()
        with all_or_nothing(loss.program, startup, owners=[self, self._optimizer]):
            return self._backward(loss, startup, parameter_list, no_grad_set)

    def _backward(
        self,
        loss: Variable,
        startup: Program,
        parameter_list: Sequence[Variable | str] | None,
        no_grad_set: Collection[Variable | str] | None,
    ) -> Pairs:
        program = self._program = loss.program
        self._startup = startup
        self._make_state(program)
        if not self.options.mode.changes_nothing:
            self._low_names = self._cast(program)
        builder = program.builder("backward")
        value = builder.high(as_one_number(loss).value)
        if self._scales:
            value = builder.cast(value, ir.DataType.FLOAT)  # of a float64 loss, too: the scale is float32, as in Paddle
            value = builder.mul(value, builder.reshape(self.get_loss_scaling().value, []))
        self._scaled_loss = Variable(program, str(value.name))
        if loss.name not in program.outputs:
            program.outputs.append(loss.name)
        listed = set(program.outputs)
        with low_weight_sums(self.options.weight_grad_reduce == "low"):
            pairs = self._optimizer.backward(self._scaled_loss, self._startup, parameter_list, no_grad_set)
        program.outputs = [name for name in program.outputs if name in listed]
        return pairs

    def apply_gradients(self, params_grads: Pairs) -> list[str]:
        """Append unscaling, the finite check, the update of the scale, and the wrapped optimizer's update.

        In a step whose gradients are not finite, `scaler="paddle"` gives the optimizer zeros, and Adam and its
        relatives skip; with the others every optimizer skips: parameters and all its state stay as they were.

        Returns:
            Names of the optimizer's nodes.
        """
        if self._program is None or self._startup is None:
            raise RuntimeError("call backward (or minimize) first")
        with all_or_nothing(self._program, self._startup, owners=[self, self._optimizer]):
            return self._append_updates(params_grads)

    def _append_updates(self, params_grads: Pairs) -> list[str]:
        assert self._program is not None
        builder = self._program.builder("optimize")
        params = [param for param, _ in params_grads]
        for param in params:
            check_trained_type(param)
        grads = [grad.value for _, grad in params_grads]
        inverse = None
        if self._scales:
            scale = builder.reshape(self.get_loss_scaling().value, [])
            with part_of("check_finite_and_unscale", ir.DataType.FLOAT):
                self.found_inf, inverse = check_finite(builder, grads, scale)
            if self.options.dynamic:
                with part_of("update_loss_scaling", ir.DataType.FLOAT):
                    self._update_scale(self.found_inf)
        pairs = [(p, Variable(self._program, str(g.name))) for p, g in zip(params, grads, strict=True)]
        return self._apply_guarded(pairs, inverse)

    def _apply_guarded(self, pairs: Pairs, inverse_scale: ir.Value | None) -> list[str]:
        """Let the wrapped optimizer skip bad steps of this program only: its own settings are restored."""
        wrapped = self._optimizer
        before = wrapped.found_inf, wrapped.always_skips, wrapped.inverse_scale
        skips_all = self.options.rule.skips_all
        wrapped.found_inf, wrapped.always_skips, wrapped.inverse_scale = self.found_inf, skips_all, inverse_scale
        try:
            return wrapped.apply_gradients(pairs)
        finally:
            wrapped.found_inf, wrapped.always_skips, wrapped.inverse_scale = before

    def apply_optimize(self, loss: Variable, startup_program: Program | None, params_grads: Pairs) -> list[str]:  # noqa: ARG002  # Paddle's
        """Call `apply_gradients`."""
        return self.apply_gradients(params_grads)

    @checked
    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[str], Pairs]:
        """Append a whole training step: `backward`, then `apply_gradients`.

        Returns:
            Names of the optimizer's nodes, and (parameter, scaled gradient) pairs.
        """
        startup = startup_program if startup_program is not None else default_startup_program()
        with all_or_nothing(loss.program, startup, owners=[self, self._optimizer]):
            pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
            return self.apply_optimize(loss, startup_program, pairs), pairs

    def amp_init(
        self,
        place: Place,
        scope: Scope | None = None,
        test_program: Program | None = None,
        use_fp16_test: bool = False,
        rewrite_master_weight: bool = False,
        *,
        use_bf16_test: bool = False,
    ) -> None:
        """Round the parameters that the training program reads in lower precision, and rewrite a test program.

        Call it after `minimize` and after the startup program has run. At O2 the test program is always rewritten,
        since its parameters are rounded; at O1 only with `use_fp16_test` or `use_bf16_test`, which mean the same.

        Args:
            place: where the program runs.
            scope: where the values live; the global scope unless given.
            test_program: a program that shares the parameters.
            use_fp16_test: at O1, rewrite the test program too.
            rewrite_master_weight: whether master weights get the rounded values; always so with `fp32_params`.
            use_bf16_test: the name of `use_fp16_test` where the format is bfloat16.

        Raises:
            RuntimeError: `minimize` was not called yet.
        """
        if self._program is None:
            raise RuntimeError("amp_init: please call the minimize method first")
        pure = self.options.mode.is_pure
        if pure and self._low_names:
            cast_parameters_to_fp16(
                place,
                self._program,
                global_scope() if scope is None else scope,
                self._low_names,
                self.options.dtype,
                rewrite_master_weight or self.options.fp32_params,
                self._optimizer.master_weights,
            )
        if test_program is not None and (pure or use_fp16_test or use_bf16_test):
            self._cast(test_program)

    def _cast(self, program: Program) -> set[str]:
        return cast_program(program, choose_policy(self.options.request), use_guard=self.options.use_guard)

    def _make_state(self, program: Program) -> None:
        def state(key: str, initial: float, dtype: ir.DataType) -> Variable:
            name = unique_name.generate(key)
            return create_persistable(
                Persistable(name, "state"), (1,), initial, dtype, main=program, startup=self._startup
            )

        rule, first = self.options.rule, self.options.init_loss_scaling
        scale = state("loss_scaling", first, ir.DataType.FLOAT)
        if not (self.options.dynamic and self._scales):
            self._state = ScalerState(scale, rule)
            return
        self._state = ScalerState(
            scale,
            rule,
            good=state("num_good_steps", 0, ir.DataType.INT32),
            bad=state("num_bad_steps", 0, ir.DataType.INT32) if rule.counts_bad_steps else None,
            next_scale=state("next_loss_scaling", first, ir.DataType.FLOAT) if rule.delayed else None,
        )

    def _made_state(self) -> ScalerState:
        if self._state is None:
            raise RuntimeError("there is no loss scale yet: call minimize (or backward) first")
        return self._state

    def _update_scale(self, found_inf: ir.Value) -> None:
        assert self._program is not None
        held = self._made_state()
        assert held.good is not None
        builder, updates = self._program.builder("optimize"), self._program.updates
        moving = held.scale if held.next_scale is None else held.next_scale
        bad = None if held.bad is None else held.bad.value
        scale, good, bad = update_loss_scaling(
            builder, found_inf, moving.value, held.good.value, bad, self.options.rule
        )
        if held.next_scale is not None:  # the scale decided at the previous check is used from now on
            updates[held.scale.name] = str(builder.op("Identity", [held.next_scale.value]).name)
        updates[moving.name] = str(scale.name)
        updates[held.good.name] = str(good.name)
        if held.bad is not None and bad is not None and bad is not held.bad.value:
            updates[held.bad.name] = str(bad.name)
