"""`decorate`: wrap an optimizer for mixed precision. As in Paddle, the keywords decide between two overloads."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import logging
from collections.abc import Collection
from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.optimizer.base import Optimizer
from amp_transpiler.paddle.static.amp.optimizer import AmpOptions, OptimizerWithMixedPrecision
from amp_transpiler.paddle.static.amp.scalers import PADDLE, PADDLE_FP16_ONLY, Scaler, choose_scaler
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.systems.paddle.levels import LEVELS, Level
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = ["CustomOpLists", "decorate"]

logger = logging.getLogger(__name__)

CustomOpLists = AutoMixedPrecisionLists  # Paddle's older name

_WEIGHT_SUMS = ("fp32", "low")


def decorate(*args: Any, **kwargs: Any) -> OptimizerWithMixedPrecision:
    """Wrap an optimizer so that what it minimizes is computed in low precision.

    There are two overloads. A keyword that only one of them has chooses that one. Otherwise the first is chosen if
    there are three or more positional arguments and the third is a float, else the second:

    1. `decorate(optimizer, amp_lists=None, init_loss_scaling=2**15, incr_every_n_steps=1000, decr_every_n_nan_or_inf=2,
       incr_ratio=2.0, decr_ratio=0.8, use_dynamic_loss_scaling=True, use_pure_fp16=False, use_fp16_guard=None,
       use_bf16=False, use_promote=False)`: O2 with `use_pure_fp16`, else O1; `use_fp16_guard` is `use_pure_fp16` unless
       given; master weights where the optimizer has `multi_precision`.
    2. `decorate(optimizer, amp_lists=None, level="O1", dtype="float16", master_weight=None, master_grad=False,
       init_loss_scaling=2**16, incr_every_n_steps=2000, decr_every_n_nan_or_inf=1, incr_ratio=2.0, decr_ratio=0.5,
       use_dynamic_loss_scaling=None, use_amp_guard=None, use_promote=False)`: master weights unless `master_weight` is
       False; in float16 the scale is dynamic unless `use_dynamic_loss_scaling` is False.

    In bfloat16 the loss is not scaled dynamically. With the guard on (`use_fp16_guard`, `use_amp_guard`), only nodes
    that were built inside `fp16_guard()` become low. With Paddle's policy it counts only at O2, and is off in the
    second overload unless given. With the others, `None` means on if there is such a node. `disable_amp()` always
    counts.

    Both take four more keywords, which Paddle does not have:

    - `policy="paddle"`: the system whose rules choose each operator's precision. `"torch"`, `"raf"` and `"mxnet"` use
      their own lists, as in `transpile`. They have no levels (leave O1) and no promotion.
    - `scaler="paddle"`: the system whose loss scaling is used. The defaults above are those of Paddle's
      `paddle.static.amp.decorate`. `"torch"` is `torch.amp.GradScaler`: from 2**16, doubled after 2000 good steps in a
      row as long as that is finite, halved on every bad step, without a lower bound. `"mxnet"` is MXNet's `LossScaler`:
      the same up to 2**24, each new scale used one finite check after it was decided. With these two, every optimizer
      skips a bad step: parameters, moments, powers of beta, velocity and schedule stay as they were, and weight
      decay does not act. With Paddle's, SGD and Momentum take the step with zero gradients. `init_loss_scaling`,
      `incr_every_n_steps`, `incr_ratio` (growth factor) and `decr_ratio` (backoff factor) override the system's own
      numbers.
    - `fp32_params=False`: SambaNova's `--fp32-params`: the optimizer keeps float32 master weights (`multi_precision`
      is switched on), which start from the rounded parameters: `amp_init` works as with `rewrite_master_weight=True`.
      Without float16 or bfloat16 parameters, as at O1, it has no effect.
    - `weight_grad_reduce="fp32"`: SambaNova's `--weight-grad-reduce`: the format in which gradients of linear weights
      (of MatMul and Gemm) and of their biases are summed over batch dimensions. `"low"` sums in the gradient's
      format. It rounds to nearest, where SambaNova's `bf16sr` rounds stochastically.

    Raises:
        TypeError: keywords of both overloads, or unknown ones.
        OptionError: a level, dtype, policy, scaler or `weight_grad_reduce` that does not exist; a number that no scale
            can start from or move by: a first scale or ratio that is not positive and finite, a count of steps that
            is no whole number from 1 to 2**31 - 1; one that the scaler has no meaning for: `decr_every_n_nan_or_inf`
            other than 1, an `incr_ratio` of 1 or less or a `decr_ratio` of 1 or more with `"torch"` or `"mxnet"`;
            `fp32_params` with `master_weight=False`.
        RuntimeError: `optimizer` is not an optimizer.
    """
    fits = [o for o in (_Fp16Only, _Common) if kwargs.keys() <= _keywords(o)]
    if not fits:
        raise TypeError(_misfit(kwargs))
    overload: type[_Fp16Only | _Common] = fits[0] if len(fits) == 1 else _Common
    if len(fits) == 2 and len(args) >= 3 and isinstance(args[2], float):
        overload = _Fp16Only
    try:
        inspect.signature(overload).bind(*args, **kwargs)
    except TypeError as error:  # Python's own message names the class, which is not public
        raise TypeError(f"decorate: {error}; its documentation lists the two overloads") from None
    chosen = overload(*args, **kwargs)
    if not isinstance(chosen.amp_lists, (AutoMixedPrecisionLists, type(None))):
        raise OptionError(f"decorate: amp_lists must be AutoMixedPrecisionLists(...), got {chosen.amp_lists!r:.80}")
    return chosen.wrapped()


def _keywords(overload: type[_Fp16Only | _Common]) -> set[str]:
    return set(inspect.signature(overload).parameters)


def _misfit(keywords: Collection[str]) -> str:
    """Return the message that says why no overload takes these keywords."""
    first, second = _keywords(_Fp16Only), _keywords(_Common)
    if unknown := [name for name in keywords if name not in first | second]:
        near = difflib.get_close_matches(unknown[0], sorted(first | second), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"decorate: neither of its two overloads has a keyword {unknown[0]!r}{hint}"
    older, newer = (", ".join(name for name in keywords if name in only) for only in (first - second, second - first))
    return (
        f"decorate has two overloads, and these keywords mix them: {older} of the first (use_pure_fp16=, ...), {newer} "
        "of the second (level=, dtype=, ...). Give those of one: use_pure_fp16=True is level='O2' in the second, "
        "use_bf16=True is dtype='bfloat16', use_fp16_guard is use_amp_guard"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OwnKeywords:
    """Holds the keywords that Paddle's `decorate` does not have."""

    policy: str = "paddle"
    scaler: str = "paddle"
    fp32_params: bool = False
    weight_grad_reduce: str = "fp32"


class _Overload(_OwnKeywords):
    """Implements the behaviour that both overloads share. Their fields are Paddle's arguments in Paddle's order."""

    optimizer: Optimizer
    amp_lists: AutoMixedPrecisionLists | None
    init_loss_scaling: float | None
    incr_every_n_steps: int | None
    decr_every_n_nan_or_inf: int | None
    incr_ratio: float | None
    decr_ratio: float | None
    use_promote: bool

    def _scaling(self, paddle: Scaler) -> Scaler:
        return choose_scaler(
            self.scaler,
            paddle,
            init_loss_scaling=self.init_loss_scaling,
            incr_every_n_steps=self.incr_every_n_steps,
            decr_every_n_nan_or_inf=self.decr_every_n_nan_or_inf,
            incr_ratio=self.incr_ratio,
            decr_ratio=self.decr_ratio,
        )

    def _guard(self, level: Level, use_guard: bool | None) -> bool | None:
        """Return `AmpOptions.use_guard`: Paddle's rules have a guard only at O2, and only if the caller asks for it."""
        if self.policy != "paddle":
            return use_guard
        if use_guard and not level.is_pure:
            logger.warning("level %s: the guard has no effect: as in Paddle, fp16_guard counts only at O2", level.name)
        return bool(use_guard) and level.is_pure

    def _wrap(
        self,
        level: str,
        dtype: str,
        *,
        use_guard: bool | None,
        scaling: Scaler,
        dynamic: bool,
        master_grad: bool = False,
    ) -> OptimizerWithMixedPrecision:
        if not isinstance(self.optimizer, Optimizer):
            raise RuntimeError(  # noqa: TRY004  # Paddle's type
                f"decorate needs one of amp_transpiler.paddle.optimizer's optimizers, got {self.optimizer!r}"
            )
        training_level, lists = _training_level(level), self.amp_lists
        if training_level.lists == "white" and lists is not None:
            logger.warning(
                "level %s: the lists given are not used, since all but the white operators stay float32",
                training_level.name,
            )
            lists = None
        if self.weight_grad_reduce not in _WEIGHT_SUMS:
            raise OptionError(f"weight_grad_reduce should be 'fp32' or 'low', got {self.weight_grad_reduce!r}")
        if dtype == "bfloat16" and dynamic:
            logger.warning("bfloat16 has float32's range: dynamic loss scaling is switched off, and the scale set to 1")
            dynamic, scaling = False, dataclasses.replace(scaling, init_loss_scaling=1.0)
        request = Request(
            policy=self.policy,
            level=training_level.name,
            dtype=dtype,
            lists=lists if lists is not None else AutoMixedPrecisionLists(dtype=dtype),
            use_promote=self.use_promote,
        )
        choose_policy(request)  # so that a wrong request is refused here, not by minimize
        if self.fp32_params:
            self.optimizer.multi_precision = True
        options = AmpOptions(
            request=request,
            use_guard=self._guard(training_level, use_guard),
            master_grad=master_grad,
            init_loss_scaling=float(scaling.init_loss_scaling),
            dynamic=dynamic,
            rule=scaling.rule,
            fp32_params=self.fp32_params,
            weight_grad_reduce=self.weight_grad_reduce,
        )
        return OptimizerWithMixedPrecision(self.optimizer, options)


@dataclasses.dataclass(frozen=True)
class _Fp16Only(_Overload):
    optimizer: Optimizer
    amp_lists: AutoMixedPrecisionLists | None = None
    init_loss_scaling: float | None = None
    incr_every_n_steps: int | None = None
    decr_every_n_nan_or_inf: int | None = None
    incr_ratio: float | None = None
    decr_ratio: float | None = None
    use_dynamic_loss_scaling: bool = True
    use_pure_fp16: bool = False
    use_fp16_guard: bool | None = None
    use_bf16: bool = False
    use_promote: bool = False

    def wrapped(self) -> OptimizerWithMixedPrecision:
        return self._wrap(
            "O2" if self.use_pure_fp16 else "O1",
            "bfloat16" if self.use_bf16 else "float16",
            use_guard=self.use_pure_fp16 or None if self.use_fp16_guard is None else self.use_fp16_guard,
            scaling=self._scaling(PADDLE_FP16_ONLY),
            dynamic=self.use_dynamic_loss_scaling,
        )


@dataclasses.dataclass(frozen=True)
class _Common(_Overload):
    optimizer: Optimizer
    amp_lists: AutoMixedPrecisionLists | None = None
    level: str = "O1"
    dtype: str = "float16"
    master_weight: bool | None = None
    master_grad: bool = False
    init_loss_scaling: float | None = None
    incr_every_n_steps: int | None = None
    decr_every_n_nan_or_inf: int | None = None
    incr_ratio: float | None = None
    decr_ratio: float | None = None
    use_dynamic_loss_scaling: bool | None = None
    use_amp_guard: bool | None = None
    use_promote: bool = False

    def wrapped(self) -> OptimizerWithMixedPrecision:
        if self.fp32_params and self.master_weight is False:
            raise OptionError(
                "fp32_params=True asks for master weights, and master_weight=False for none: leave one out"
            )
        dtype, dynamic = low_format(self.dtype).name, self.use_dynamic_loss_scaling
        scaling = self._scaling(PADDLE)
        # Paddle's default leaves a bfloat16 program with a static scale of 65536, which nobody asks for.
        if dtype == "bfloat16" and not dynamic and scaling.init_loss_scaling == 2.0**16:
            scaling = dataclasses.replace(scaling, init_loss_scaling=1.0)
        wrapped = self._wrap(
            self.level,
            dtype,
            use_guard=self.use_amp_guard,
            scaling=scaling,
            dynamic=dtype == "float16" if dynamic is None else dynamic,
            master_grad=self.master_grad,
        )
        if self.master_weight is not False:
            self.optimizer.multi_precision = True
        return wrapped


def _training_level(name: str) -> Level:
    level_names = [level.name for level in LEVELS.values() if level.trains]
    exact_name = next((level_name for level_name in level_names if level_name.lower() == str(name).lower()), None)
    if exact_name is None:
        raise OptionError(f"level should be {', '.join(level_names[:-1])} or {level_names[-1]}, got {name!r}")
    return LEVELS[exact_name]


check_arguments(globals(), __all__)
