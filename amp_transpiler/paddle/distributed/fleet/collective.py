"""`paddle.distributed.fleet` for collective training: every process computes gradients of its share of a batch.

    fleet.init(is_collective=True)
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    optimizer = fleet.distributed_optimizer(paddle.optimizer.Adam(1e-3), strategy)
    optimizer.minimize(loss)

A process that torchrun did not start is alone. There are no parameter servers.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.distributed import environment
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.incubate.wrappers import GradientMergeOptimizer, RecomputeOptimizer
from amp_transpiler.paddle.optimizer import Lamb, LarsMomentum
from amp_transpiler.paddle.optimizer.adam import Adam
from amp_transpiler.paddle.optimizer.momentum import Momentum
from amp_transpiler.paddle.static.amp.decorator import decorate
from amp_transpiler.paddle.static.export import save_inference_model as export
from amp_transpiler.paddle.static.variable_files import load_persistables, save_persistables as save_files
from amp_transpiler.program.program import Program, Variable
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists

__all__ = [
    "DistributedStrategy",
    "PaddleCloudRoleMaker",
    "UserDefinedRoleMaker",
    "barrier_worker",
    "distributed_optimizer",
    "init",
    "is_first_worker",
    "is_server",
    "is_worker",
    "load_persistables",
    "save_inference_model",
    "save_persistables",
    "stop_worker",
    "worker_index",
    "worker_num",
]

_AMP = {
    "init_loss_scaling": "init_loss_scaling",
    "incr_every_n_steps": "incr_every_n_steps",
    "decr_every_n_nan_or_inf": "decr_every_n_nan_or_inf",
    "incr_ratio": "incr_ratio",
    "decr_ratio": "decr_ratio",
    "use_dynamic_loss_scaling": "use_dynamic_loss_scaling",
    "use_pure_fp16": "use_pure_fp16",
    "use_fp16_guard": "use_fp16_guard",
    "use_bf16": "use_bf16",
    "use_promote": "use_promote",
}
_LISTS = ("custom_white_list", "custom_black_list", "custom_black_varnames")
_NOT_HERE = {  # switch of a strategy -> what to do instead
    "sharding": "DataParallelExecutor(shard_optimizer=True) splits the optimizer's state",
    "pipeline": "a program runs on one device",
    "tensor_parallel": "a program runs on one device",
    "hybrid_configs": "a program runs on one device",
    "dgc": "gradients are exchanged whole",
    "localsgd": "gradients are exchanged in every step",
    "adaptive_localsgd": "gradients are exchanged in every step",
    "a_sync": "there are no parameter servers",
    "heter_ccl_mode": "there are no parameter servers",
    "semi_auto": "a program runs on one device",
    "auto": "a program runs on one device",
    "asp": "weights are dense",
    "qat": "nothing is quantized",
}


@dataclasses.dataclass
class DistributedStrategy:
    """What `distributed_optimizer` wraps an optimizer in.

    Settings of Paddle's that only tune its own communication are taken and have no effect. One that would change what
    is computed, and that is not here, is refused when it is switched on.

    Attributes:
        amp: mixed precision.
        amp_configs: keywords of the first overload of `static.amp.decorate`, and the custom lists.
        gradient_merge: whether gradients of several runs are joined.
        gradient_merge_configs: `k_steps` and `avg`.
        lars: Momentum becomes LarsMomentum.
        lars_configs: `lars_coeff`, `lars_weight_decay`, `epsilon`, `exclude_from_weight_decay`.
        lamb: Adam becomes Lamb.
        lamb_configs: `lamb_weight_decay` and `exclude_from_weight_decay`.
        recompute: whether activations are computed again, as `incubate.optimizer.RecomputeOptimizer` says.
        recompute_configs: Paddle's `checkpoints` and the like, no effect: what pays is decided for a step's sizes.
    """

    amp: bool = False
    amp_configs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gradient_merge: bool = False
    gradient_merge_configs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lars: bool = False
    lars_configs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lamb: bool = False
    lamb_configs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    recompute: bool = False
    recompute_configs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting.

        Raises:
            OptionError: it would change what is computed, and is not available.
        """
        if value and name in _NOT_HERE:
            raise OptionError(f"DistributedStrategy.{name} is not available: {_NOT_HERE[name]}")
        object.__setattr__(self, name, value)


class PaddleCloudRoleMaker:
    """Says that a run is collective, as all are; its arguments have no effect."""

    def __init__(self, is_collective: bool = True, **_: Any) -> None:
        if not is_collective:
            raise OptionError("a role maker must have is_collective=True: there are no parameter servers")


UserDefinedRoleMaker = PaddleCloudRoleMaker


def init(
    role_maker: object = None, is_collective: bool = True, strategy: DistributedStrategy | None = None, **_: Any
) -> None:
    """Join the other processes, if torchrun has started this one; a single process joins nothing.

    Args:
        role_maker: Paddle's, no effect.
        is_collective: must be True, or left out with a role maker.
        strategy: what `distributed_optimizer` takes unless it is given one.

    Raises:
        OptionError: parameter servers are asked for.
        EnvironmentProblem, DistributedError: as `init_parallel_env`.
    """
    if not is_collective and role_maker is None:
        raise OptionError("fleet.init: there are no parameter servers: give is_collective=True")
    _state["strategy"] = strategy or DistributedStrategy()
    environment.init_parallel_env()


_state: dict[str, DistributedStrategy] = {}


def distributed_optimizer(optimizer: Any, strategy: DistributedStrategy | None = None) -> Any:
    """Return an optimizer with what the strategy says around it.

    With several processes `static.Executor` trains the program together with the others: it joins their gradients, as
    `distributed.DataParallelExecutor` does.

    Raises:
        EnvironmentProblem, DistributedError: `init` was not called, and joining now fails; as `init_parallel_env`.
        OptionError: a setting means nothing, or LARS and LAMB get another optimizer than Momentum and Adam.
    """
    chosen = strategy or _state.get("strategy") or DistributedStrategy()
    if chosen.lars:
        optimizer = _lars(optimizer, chosen.lars_configs)
    if chosen.lamb:
        optimizer = _lamb(optimizer, chosen.lamb_configs)
    if chosen.amp:
        optimizer = _mixed(optimizer, chosen.amp_configs)
    if chosen.recompute:
        optimizer = RecomputeOptimizer(optimizer)
    if chosen.gradient_merge:
        settings = _checked_settings("gradient_merge_configs", chosen.gradient_merge_configs, ("k_steps", "avg"))
        optimizer = GradientMergeOptimizer(optimizer, **settings)
    environment.init_parallel_env()
    return optimizer


def _checked_settings(label: str, settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    if unknown := sorted(set(settings) - set(names)):
        raise OptionError(f"{label} has no {', '.join(unknown)}; it has {', '.join(names)}")
    return dict(settings)


def _mixed(optimizer: Any, configs: Mapping[str, Any]) -> Any:
    settings = _checked_settings("amp_configs", configs, (*_AMP, *_LISTS))
    lists = {name: settings.pop(name) for name in _LISTS if name in settings}
    dtype = "bfloat16" if settings.get("use_bf16") else "float16"
    amp_lists = AutoMixedPrecisionLists(**lists, dtype=dtype) if lists else None
    return decorate(optimizer, amp_lists, **{"use_pure_fp16": False, **settings})


def _lars(optimizer: Any, configs: Mapping[str, Any]) -> Any:
    if not isinstance(optimizer, Momentum):
        raise OptionError(f"strategy.lars needs a Momentum optimizer, got {type(optimizer).__name__}")
    names = ("lars_coeff", "lars_weight_decay", "epsilon", "exclude_from_weight_decay")
    return LarsMomentum(
        optimizer.learning_rate,
        optimizer.momentum,
        parameter_list=optimizer.parameters,
        grad_clip=optimizer.grad_clip,
        **_checked_settings("lars_configs", configs, names),
    )


def _lamb(optimizer: Any, configs: Mapping[str, Any]) -> Any:
    if not isinstance(optimizer, Adam):
        raise OptionError(f"strategy.lamb needs an Adam optimizer, got {type(optimizer).__name__}")
    settings: dict[str, Any] = {name: getattr(optimizer, name) for name in ("beta1", "beta2", "epsilon")}
    decay_settings = _checked_settings("lamb_configs", configs, ("lamb_weight_decay", "exclude_from_weight_decay"))
    excluded = tuple(decay_settings.pop("exclude_from_weight_decay", ()))
    return Lamb(
        optimizer.learning_rate,
        parameters=optimizer.parameters,
        grad_clip=optimizer.grad_clip,
        exclude_from_weight_decay_fn=(lambda p: any(part in p.name for part in excluded)) if excluded else None,
        **settings,
        **decay_settings,
    )


# ---- the processes ----


def worker_index() -> int:
    """Return the number of this process."""
    return environment.get_rank()


def worker_num() -> int:
    """Return how many processes there are."""
    return environment.get_world_size()


def is_first_worker() -> bool:
    """Return whether this is process 0, which writes files."""
    return worker_index() == 0


def is_worker() -> bool:
    """Return True: every process trains."""
    return True


def is_server() -> bool:
    """Return False: there are no parameter servers."""
    return False


def barrier_worker() -> None:
    """Wait until every process has come here; a single process goes on."""
    if worker_num() > 1:
        environment.barrier()


def stop_worker() -> None:
    """Leave the other processes."""
    environment.destroy_process_group()


# ---- files ----


def save_inference_model(
    executor: object,
    dirname: str | os.PathLike[str],
    feeded_var_names: Sequence[Variable | str],
    target_vars: Sequence[Variable | str],
    main_program: Program | None = None,
    **_: Any,
) -> None:
    """Write what predicts `target_vars` to `DIRNAME/model.onnx`; only process 0 does. See `static`'s function."""
    if not is_first_worker():
        return
    program = default_main_program() if main_program is None else main_program
    feeds = [program.var(name) if isinstance(name, str) else name for name in feeded_var_names]
    export(pathlib.Path(dirname) / "model", feeds, list(target_vars), executor, program)


def save_persistables(
    executor: object, dirname: str | os.PathLike[str], main_program: Program | None = None, **_: Any
) -> None:
    """Write all persistable values, a file each; only process 0 does."""
    if is_first_worker():
        save_files(executor, dirname, main_program)
