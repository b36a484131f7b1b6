"""`Optimizer`: appends the update of every parameter to a training program."""

from __future__ import annotations

import abc
import itertools
import logging
import math
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, NoReturn, TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.autodiff.expression import Expr
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.dtypes import AMP_DTYPES, LOW_DTYPES
from amp_transpiler.graph.origins import part_of
from amp_transpiler.paddle.argument_checks import checked
from amp_transpiler.paddle.framework.backward import append_backward
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.framework.rollback import all_or_nothing
from amp_transpiler.paddle.nn.clip import ClipGradBase
from amp_transpiler.paddle.optimizer.lr_base import LRScheduler
from amp_transpiler.paddle.optimizer.step import ParameterUpdate, Setting, UpdateStep
from amp_transpiler.paddle.regularizer import L2Decay, WeightDecayRegularizer
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.update_passes.loss_scaling import float32_or_zero, unscale, zero_if

__all__ = ["Clip", "Decay", "Optimizer", "Pairs", "Parameters", "Rate", "check_trained_type"]

logger = logging.getLogger(__name__)

Pairs = list[tuple[Variable, Variable]]

# Types of the arguments that optimizers share.
Rate: TypeAlias = float | LRScheduler
Parameters: TypeAlias = Sequence[Variable | str] | None
Decay: TypeAlias = float | WeightDecayRegularizer | None
Clip: TypeAlias = ClipGradBase | None


def check_trained_type(parameter: Variable) -> None:
    """Refuse a parameter of a type that optimizers do not train.

    Raises:
        InputError: it is of such a type.
    """
    if parameter.value.dtype not in AMP_DTYPES:
        raise InputError(
            f"parameter '{parameter.name}' is {parameter.dtype}, and optimizers train float32, float16 and "
            "bfloat16: declare it as one of these, or set trainable=False"
        )


class Optimizer(abc.ABC):
    """Appends the update of parameters to the program that computes their gradients.

    Gradients are clipped, then regularised, then used, all in float32 whatever the parameter's type.

    Each optimizer is a dataclass in a file of its own. Its fields are Paddle's arguments in Paddle's order, which is
    different for each; the arguments that most of them share are described and checked here. Its `_update` appends the
    update of one parameter; its name goes into this package's `__init__`.

    Attributes:
        learning_rate: a number, or a schedule.
        parameters: variables or names to train; every trainable parameter of the program unless given.
        weight_decay: a number for `L2Decay`, or a regularizer; a parameter's own regularizer replaces it.
        grad_clip: how gradients are clipped; parameters with `need_clip=False` are left out.
        multi_precision: update a float32 master weight of each float16 and bfloat16 parameter, and round from it; may
            be set before `minimize`.
        name: Paddle's, no effect.
        beta1: how much of a running average of gradients is kept in a step. It, `beta2` and `epsilon` of Adam and AdamW
            may be variables of `static.create_global_var`, which are read in every step.
        beta2: how much of a running average of squared gradients, or of their norm, is kept in a step.
        epsilon: keeps the divisor away from 0.
        lazy_mode: no effect, which the log says: gradients are dense.
        amsgrad: whether Adam and AdamW divide by the largest average squared gradient so far.
        use_multi_tensor: Paddle's choice of kernel, no effect.
        found_inf: a bool scalar of the program: whether this step's gradients are not all finite. Mixed precision sets
            it before `apply_gradients`; optimizers whose `skips_on_overflow` is True then skip such a step.
        skips_on_overflow: whether a step without finite gradients is skipped.
        always_skips: skip such a step whatever `skips_on_overflow` is. Set along with `found_inf` for the scalers of
            PyTorch and MXNet.
        inverse_scale: a float32 scalar of the program that gradients are multiplied by, where the loss is scaled; set
            along with `found_inf`, too. An optimizer that does not skip then sees zeros in a step without finite
            gradients.
        master_weights: parameter name -> name of its float32 master.
        startup_program: the startup program that state was, or will be, added to; None for the default one.

    Raises:
        OptionError: an argument has no meaning here.
    """

    skips_on_overflow: ClassVar[bool] = False

    learning_rate: Rate
    parameters: Parameters
    weight_decay: Decay = None
    grad_clip: Clip = None
    multi_precision: bool = False
    beta1: Setting = 0.0
    beta2: Setting = 0.0
    epsilon: Setting = 0.0
    lazy_mode: bool = False
    amsgrad: bool = False

    def __post_init__(self) -> None:
        label = type(self).__name__
        _check_given(label, self)
        _check_numbers(label, self)
        self.parameters = _checked(label, self.parameters)
        self.found_inf: ir.Value | None = None
        self.always_skips = False
        self.inverse_scale: ir.Value | None = None
        self.master_weights: dict[str, str] = {}
        self.startup_program: Program | None = None
        self._rates: weakref.WeakKeyDictionary[Program, str] = weakref.WeakKeyDictionary()

    @property
    def regularization(self) -> WeightDecayRegularizer | None:
        """Return the term that `weight_decay` adds to the gradient of a parameter that has no regularizer."""
        decay = self.weight_decay
        return decay if decay is None or isinstance(decay, WeightDecayRegularizer) else L2Decay(float(decay))

    # Called by training scripts.

    @checked
    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameters: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> Pairs:
        """Append the backward pass of `loss`.

        Args:
            loss: a float variable with one element.
            startup_program: gets the initial values of accumulators; the default one unless given.
            parameters: what to differentiate with respect to; the optimizer's own `parameters` unless given.
            no_grad_set: variables that gradients stop at.

        Returns:
            (parameter, gradient) pairs.
        """
        with all_or_nothing(loss.program, owners=[self]):
            self.startup_program = startup_program if startup_program is not None else default_startup_program()
            return append_backward(loss, parameters if parameters is not None else self.parameters, no_grad_set)

    def apply_gradients(self, params_grads: Pairs) -> list[str]:
        """Append the update of every parameter given.

        Returns:
            Names of the nodes appended.

        Raises:
            InputError: a parameter has a type that cannot be trained, is updated by the program already, or needs a
                master weight and has no initial value.
        """
        pairs = list(params_grads)
        if not pairs:
            raise InputError(f"{type(self).__name__}: there are no gradients to apply")
        program = pairs[0][0].program
        for parameter, _ in pairs:
            self._check_parameter(program, parameter)
        self._warn_without_masters([parameter for parameter, _ in pairs])
        startup = self.startup_program if self.startup_program is not None else default_startup_program()
        with all_or_nothing(program, startup, owners=[self]):
            return self._append_updates(program, startup, pairs)

    def _append_updates(self, program: Program, startup: Program, pairs: Pairs) -> list[str]:
        before = len(program.model.graph)
        skips = self.skips_on_overflow or self.always_skips
        step = UpdateStep(program, startup, self.found_inf if skips else None)
        rate = step.unless_skipped(Expr(self._emit_rate(step), step.builder), 0.0)
        rates: dict[float, Expr] = {}
        for parameter, gradient in self._ready_gradients(step.builder, pairs):
            factor = self._rate_factor(parameter)
            if factor not in rates:
                rates[factor] = rate if factor == 1.0 else rate * factor
            with self._as_operator(parameter, gradient):
                self._update(self._parameter_update(step, parameter, gradient, rates[factor]))
        return [str(node.name) for node in itertools.islice(program.model.graph, before, None)]

    def _as_operator(self, parameter: Variable, gradient: ir.Value) -> AbstractContextManager[None]:
        """Mark nodes as the update of a parameter, which is one of Paddle's operators."""
        dtype = parameter.value.dtype or ir.DataType.FLOAT
        masters = self.multi_precision and dtype in LOW_DTYPES
        names = {"Param": parameter.name, "Grad": str(gradient.name)}
        attributes = self._operator_attributes(parameter)
        return part_of(type(self).__name__.lower(), dtype, names, multi_precision=masters, **attributes)

    def apply_optimize(self, loss: Variable, startup_program: Program | None, params_grads: Pairs) -> list[str]:  # noqa: ARG002  # Paddle's
        """Append the update of every parameter given: `apply_gradients` with a startup program.

        Returns:
            Names of the nodes appended.
        """
        if startup_program is not None:
            self.startup_program = startup_program
        return self.apply_gradients(params_grads)

    @checked
    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameters: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[str], Pairs]:
        """Append the backward pass and the update: a run of the program is then one training step.

        Args:
            loss: a float variable with one element.
            startup_program: gets the initial values of accumulators; the default one unless given.
            parameters: what to train; the optimizer's own `parameters` unless given.
            no_grad_set: variables that gradients stop at.

        Returns:
            Names of the optimizer's nodes, and (parameter, gradient) pairs.
        """
        startup = startup_program if startup_program is not None else default_startup_program()
        with all_or_nothing(loss.program, startup, owners=[self]):
            pairs = self.backward(loss, startup_program, parameters, no_grad_set)
            return self.apply_optimize(loss, startup_program, pairs), pairs

    def get_lr(self) -> float:
        """Return the learning rate last set, or that of the schedule for the next run."""
        rate = self.learning_rate
        return rate() if isinstance(rate, LRScheduler) else float(rate)

    @checked
    def set_lr(self, value: float, scope: Scope | None = None) -> None:
        """Change the learning rate, of programs minimized later and in the scope.

        Args:
            value: the new learning rate.
            scope: where the programs' values live; the global scope unless given.

        Raises:
            InputError: the learning rate is a schedule, which the program follows.
        """
        if isinstance(self.learning_rate, LRScheduler):
            raise InputError(f"set_lr: the learning rate follows {self.learning_rate!r}; give the optimizer a number")
        self.learning_rate = float(value)
        scope = global_scope() if scope is None else scope
        for name in self._rates.values():
            if name in scope:
                scope[name] = np.array(value, np.float32)
            else:
                logger.info("set_lr: '%s' is not in the scope; run the startup program before set_lr", name)

    def step(self, *_: object) -> NoReturn:
        """Refuse: it belongs to dynamic mode.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{type(self).__name__} has no step(): there is no dynamic mode. Call minimize(loss) once, while building; "
            "then each Executor.run(program, feed, fetch_list=[loss]) is a step"
        )

    clear_grad = clear_gradients = step

    # Defined by each optimizer.

    @abc.abstractmethod
    def _update(self, update: ParameterUpdate) -> None:
        """Append the update of one parameter and of its accumulators."""

    def _rescaled(self, builder: GraphBuilder, gradient: ir.Value) -> ir.Value:  # noqa: ARG002  # for Momentum
        """Return the gradient that weight decay is added to."""
        return gradient

    @property
    def _rescales(self) -> bool:
        """Whether `_rescaled` changes the gradient."""
        return False

    def _rate_factor(self, parameter: Variable) -> float:
        """Return the factor on the learning rate for a parameter."""
        info = parameter.info
        return 1.0 if info is None else float(info.learning_rate)

    def _operator_attributes(self, parameter: Variable) -> dict[str, float | str]:  # noqa: ARG002  # for Momentum
        """Return more attributes that Paddle's operator for the update of a parameter has."""
        return {}

    # Steps of `apply_gradients`.

    def _check_parameter(self, program: Program, parameter: Variable) -> None:
        if parameter.program is not program:
            raise InputError(f"'{parameter.name}' is of another program than the other parameters: one call each")
        check_trained_type(parameter)
        if parameter.name in program.updates:
            raise InputError(
                f"'{parameter.name}' is updated by this program already (by '{program.updates[parameter.name]}'): "
                "minimize a loss once, and give each of several optimizers parameters of its own"
            )

    def _warn_without_masters(self, parameters: Sequence[Variable]) -> None:
        low = [parameter for parameter in parameters if parameter.value.dtype in LOW_DTYPES]
        if low and not self.multi_precision:
            logger.warning(
                "%s: accumulating in %s for '%s'%s can lead to poor accuracy or slow convergence; "
                "set multi_precision=True for float32 master weights",
                type(self).__name__,
                low[0].dtype,
                low[0].name,
                f" and {len(low) - 1} more" if len(low) > 1 else "",
            )

    def _emit_rate(self, step: UpdateStep) -> ir.Value:
        """Return the learning rate of this step, a float32 scalar named `learning_rate_0` that can be fetched."""
        name = _generated("learning_rate", step.program)
        schedule = self.learning_rate
        if not isinstance(schedule, LRScheduler):
            self._rates[step.program] = name
            return step.state(name, float(schedule))
        if schedule.steps_per_epoch is None:
            return step.state(name, schedule(), driver=schedule)
        counter = _generated("@lr_step@", step.program)
        schedule.count_in(counter)
        taken = step.state(counter, schedule.initial_step, dtype=ir.DataType.INT64)
        rate = schedule.emit(step.builder, taken)
        step.replace(taken, "Add", [Expr(taken, step.builder), 1], kept=True)
        return step.builder.op("Identity", [rate], name=step.builder.names.fresh(name))

    def _ready_gradients(self, builder: GraphBuilder, pairs: Pairs) -> Iterator[tuple[Variable, ir.Value]]:
        """Yield parameters and their float32 gradients, unscaled and clipped: each just before it is used.

        Those that are plain are yielded as they are.
        """
        if self.grad_clip is None:
            for parameter, gradient_variable in pairs:
                yield (
                    parameter,
                    gradient_variable.value
                    if self._is_plain(parameter)
                    else self._unscaled(builder, gradient_variable.value),
                )
            return
        gradients = [self._unscaled(builder, gradient_variable.value) for _, gradient_variable in pairs]
        chosen = [i for i, (parameter, _) in enumerate(pairs) if parameter.info is None or parameter.info.need_clip]
        for index, clipped in zip(chosen, self.grad_clip.clip(builder, [gradients[i] for i in chosen]), strict=True):
            gradients[index] = clipped
        for (parameter, _), gradient in zip(pairs, gradients, strict=True):
            yield parameter, gradient

    def _is_plain(self, parameter: Variable) -> bool:
        """Whether a gradient is used without clipping and regularising, but for the loss scale in it."""
        scaled = self.inverse_scale is not None and self.found_inf is not None
        return scaled and self.grad_clip is None and self._regularizer_of(parameter) is None and not self._rescales

    def _regularizer_of(self, parameter: Variable) -> WeightDecayRegularizer | None:
        regularizer = parameter.info.regularizer if parameter.info is not None else None
        return regularizer if regularizer is not None else self.regularization

    def _unscaled(self, builder: GraphBuilder, gradient: ir.Value) -> ir.Value:
        if self.inverse_scale is None:
            return builder.high(gradient)
        unscaled = unscale(builder, gradient, self.inverse_scale)
        skips = self.skips_on_overflow or self.always_skips
        return unscaled if skips or self.found_inf is None else zero_if(builder, self.found_inf, unscaled)

    def _parameter_update(
        self, step: UpdateStep, parameter: Variable, gradient: ir.Value, rate: Expr
    ) -> ParameterUpdate:
        weight, key = step.builder.high(parameter.value), parameter.name
        if parameter.value.dtype in LOW_DTYPES and self.multi_precision:
            weight = step.master_weight(parameter)
            key = self.master_weights[parameter.name] = str(weight.name)
        if self._is_plain(parameter):
            builder, found_inf, inverse = step.builder, self.found_inf, self.inverse_scale
            assert found_inf is not None
            assert inverse is not None
            used = Expr(float32_or_zero(builder, found_inf, gradient), builder)
            # The scale has no inverse if it is 0, and the product with zeros must still be 0.
            scale = step.shared((inverse, found_inf), lambda: Expr(builder.where(found_inf, 0.0, inverse), builder))
            return ParameterUpdate(step, parameter, key, Expr(weight, step.builder), used, rate, scale)
        gradient = self._rescaled(step.builder, gradient)
        if (regularizer := self._regularizer_of(parameter)) is not None:
            gradient = regularizer.add_to(step.builder, gradient, weight)
        used = step.unless_skipped(Expr(gradient, step.builder), 0.0)
        return ParameterUpdate(step, parameter, key, Expr(weight, step.builder), used, rate)


def _check_given(label: str, optimizer: Optimizer) -> None:
    """Check that no number is None, which stands for nothing unless it is the default."""
    for name, field in getattr(optimizer, "__dataclass_fields__", {}).items():
        if type(field.default) in (int, float) and getattr(optimizer, name) is None:
            raise OptionError(f"{label}: {name} must be a number, got None")


def _check_numbers(label: str, optimizer: Optimizer) -> None:
    for name, beta in (("beta1", optimizer.beta1), ("beta2", optimizer.beta2)):
        if not isinstance(beta, Variable) and not 0.0 <= beta < 1.0:
            raise OptionError(f"{label}: {name} must be in [0, 1), got {beta}")
    if not isinstance(optimizer.epsilon, Variable) and optimizer.epsilon < 0.0:
        raise OptionError(f"{label}: epsilon must not be negative, got {optimizer.epsilon}")
    for name in ("beta1", "beta2", "epsilon"):
        variable = getattr(optimizer, name)
        if isinstance(variable, Variable) and not _is_held_scalar(variable):
            raise OptionError(
                f"{label}: {name} must be a number, or a float32 variable with one element that lives in the scope, as "
                f"static.create_global_var makes them, got {variable!r}"
            )
    if optimizer.lazy_mode:
        logger.warning(
            "%s: lazy_mode=True has no effect: gradients are dense here, so that the moments of all rows decay in each "
            "step, those of rows that a batch does not name as well",
            label,
        )


def _is_held_scalar(variable: Variable) -> bool:
    held = variable.name in variable.program.persistables
    return held and variable.value.dtype == ir.DataType.FLOAT and math.prod(variable.shape) == 1


def _checked(label: str, parameters: Sequence[Variable | str] | None) -> list[Variable | str] | None:
    if parameters is None:
        return None
    if isinstance(parameters, (str, Variable)):
        raise OptionError(f"{label}: parameters must be a list, got {parameters!r}: put it in brackets")
    for parameter in (listed := list(parameters)):
        if not isinstance(parameter, (str, Variable)):
            raise OptionError(
                f"{label}: parameters must be variables or names, got {parameter!r}; for a learning rate or "
                "weight decay of a parameter's own use its ParamAttr"
            )
    return listed


def _generated(key: str, program: Program) -> str:
    """Return the next `key_0`, `key_1`, ... of `unique_name` that the program does not have.

    It is not simply the first that the program lacks: two programs that share a scope must not share a learning rate.
    """
    name = unique_name.generate(key)
    while program.find(name) is not None:
        name = unique_name.generate(key)
    return name
