"""`decorate`: wrap an optimizer for mixed precision. Two overloads, told apart by their keywords as in Paddle."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.optimizer.base import Optimizer
from amp_transpiler.precision.lists import AutoMixedPrecisionLists
from amp_transpiler.static.amp.loss_scaling import ScalingRule
from amp_transpiler.static.amp.optimizer import AmpOptions, OptimizerWithMixedPrecision

__all__ = ["decorate"]

logger = logging.getLogger(__name__)

_LEVELS = ("O0", "OD", "O1", "O2")


def decorate(*args: Any, **kwargs: Any) -> OptimizerWithMixedPrecision:
    """Wrap an optimizer so that what it minimizes is computed in low precision.

    There are two overloads. One is left out when a keyword is given that it lacks; of two that remain, the first is
    taken when three or more positional arguments are given and the third is a float, else the second:

    1. `decorate(optimizer, amp_lists=None, init_loss_scaling=2**15, incr_every_n_steps=1000, decr_every_n_nan_or_inf=2,
       incr_ratio=2.0, decr_ratio=0.8, use_dynamic_loss_scaling=True, use_pure_fp16=False, use_fp16_guard=None,
       use_bf16=False, use_promote=False)`: O2 with `use_pure_fp16`, else O1; `use_fp16_guard` is `use_pure_fp16` unless
       given; master weights where the optimizer has `multi_precision`.
    2. `decorate(optimizer, amp_lists=None, level="O1", dtype="float16", master_weight=None, master_grad=False,
       init_loss_scaling=2**16, incr_every_n_steps=2000, decr_every_n_nan_or_inf=1, incr_ratio=2.0, decr_ratio=0.5,
       use_dynamic_loss_scaling=None, use_amp_guard=False, use_promote=False)`: master weights unless `master_weight` is
       False; the scale is dynamic in float16 unless told otherwise.

    In bfloat16 the loss is not scaled dynamically.

    Raises:
        TypeError: keywords of both overloads, or unknown ones.
        OptionError: a level or dtype that does not exist.
        RuntimeError: what is given is no optimizer.
    """
    fits = [o for o in (_fp16_only, _common) if set(kwargs) <= set(inspect.signature(o).parameters)]
    if len(fits) == 1:
        return fits[0](*args, **kwargs)
    if len(fits) == 2 and len(args) >= 3 and isinstance(args[2], float):
        return _fp16_only(*args, **kwargs)
    return _common(*args, **kwargs)


def _fp16_only(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2.0**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
    use_pure_fp16: bool = False,
    use_fp16_guard: bool | None = None,
    use_bf16: bool = False,
    use_promote: bool = False,
) -> OptimizerWithMixedPrecision:
    return _wrap(
        optimizer,
        amp_lists,
        level="O2" if use_pure_fp16 else "O1",
        dtype="bfloat16" if use_bf16 else "float16",
        use_guard=use_pure_fp16 if use_fp16_guard is None else use_fp16_guard,
        use_promote=use_promote,
        init_loss_scaling=init_loss_scaling,
        dynamic=use_dynamic_loss_scaling,
        rule=ScalingRule(incr_every_n_steps, decr_every_n_nan_or_inf, incr_ratio, decr_ratio),
    )


def _common(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    level: str = "O1",
    dtype: str = "float16",
    master_weight: bool | None = None,
    master_grad: bool = False,
    init_loss_scaling: float = 2.0**16,
    incr_every_n_steps: int = 2000,
    decr_every_n_nan_or_inf: int = 1,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.5,
    use_dynamic_loss_scaling: bool | None = None,
    use_amp_guard: bool = False,
    use_promote: bool = False,
) -> OptimizerWithMixedPrecision:
    name = low_format(dtype).name
    # Paddle leaves a bfloat16 program with a static scale of 65536; nobody who writes nothing means that.
    unscaled = name == "bfloat16" and not use_dynamic_loss_scaling and init_loss_scaling == 2.0**16
    wrapped = _wrap(
        optimizer,
        amp_lists,
        level=level,
        dtype=name,
        use_guard=use_amp_guard,
        use_promote=use_promote,
        master_grad=master_grad,
        init_loss_scaling=1.0 if unscaled else init_loss_scaling,
        dynamic=name == "float16" if use_dynamic_loss_scaling is None else use_dynamic_loss_scaling,
        rule=ScalingRule(incr_every_n_steps, decr_every_n_nan_or_inf, incr_ratio, decr_ratio),
    )
    if master_weight is not False:
        optimizer.multi_precision = True
    return wrapped


def _wrap(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None,
    *,
    level: str,
    dtype: str,
    use_guard: bool,
    use_promote: bool,
    init_loss_scaling: float,
    dynamic: bool,
    rule: ScalingRule,
    master_grad: bool = False,
) -> OptimizerWithMixedPrecision:
    if not isinstance(optimizer, Optimizer):
        raise RuntimeError(f"decorate needs one of amp_transpiler.optimizer's optimizers, got {optimizer!r}")  # noqa: TRY004  # Paddle's type
    found = next((known for known in _LEVELS if known.lower() == str(level).lower()), None)
    if found is None:
        raise OptionError(f"level should be O0, OD, O1 or O2, got {level!r}")
    if found == "OD" and amp_lists is not None:
        logger.warning("level OD: the lists given are not used, since all but the white operators stay float32")
        amp_lists = None
    if dtype == "bfloat16" and dynamic:
        logger.warning("bfloat16 has float32's range: dynamic loss scaling is switched off, and the scale set to 1")
        dynamic, init_loss_scaling = False, 1.0
    options = AmpOptions(
        level=found,
        dtype=dtype,
        lists=amp_lists if amp_lists is not None else AutoMixedPrecisionLists(dtype=dtype),
        use_guard=use_guard,
        use_promote=use_promote,
        master_grad=master_grad,
        init_loss_scaling=float(init_loss_scaling),
        dynamic=dynamic,
        rule=rule,
    )
    return OptimizerWithMixedPrecision(optimizer, options)
