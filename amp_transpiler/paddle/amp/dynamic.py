"""Names of `paddle.amp` that scripts of both modes use: `decorate`, `GradScaler`'s settings, what devices support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.base import core
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.paddle.static.amp import decorator, fp16_lists
from amp_transpiler.runtime.places import CUDAPlace, Place, default_place
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.systems.paddle.operator_set import OperatorSet

__all__ = [
    "GradScaler",
    "auto_cast",
    "autocast",
    "black_list",
    "decorate",
    "get_autocast_cpu_dtype",
    "get_autocast_dtype",
    "get_autocast_gpu_dtype",
    "is_autocast_enabled",
    "is_bfloat16_supported",
    "is_float16_supported",
    "white_list",
]

_NO_EAGER = (
    "there is no eager mode. Build the program, wrap the optimizer with static.amp.decorate(optimizer, level=...) and "
    "call minimize(loss)"
)


class GradScaler:
    """Holds the settings of Paddle's loss scaler: give it to `amp.decorate(optimizer, scaler=...)`.

    Args:
        enable: whether the loss is scaled.
        init_loss_scaling: the first scale.
        incr_ratio: its factor when it grows.
        decr_ratio: its factor when it shrinks.
        incr_every_n_steps: good steps in a row before it grows.
        decr_every_n_nan_or_inf: bad steps in a row before it shrinks.
        use_dynamic_loss_scaling: whether it changes.
    """

    def __init__(
        self,
        enable: bool = True,
        init_loss_scaling: float = 2.0**16,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.5,
        incr_every_n_steps: int = 2000,
        decr_every_n_nan_or_inf: int = 1,
        use_dynamic_loss_scaling: bool = True,
    ) -> None:
        self._enable = enable
        self._settings: dict[str, Any] = {
            "init_loss_scaling": init_loss_scaling,
            "incr_ratio": incr_ratio,
            "decr_ratio": decr_ratio,
            "incr_every_n_steps": incr_every_n_steps,
            "decr_every_n_nan_or_inf": decr_every_n_nan_or_inf,
            "use_dynamic_loss_scaling": use_dynamic_loss_scaling,
        }

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `static.amp.decorate` that mean the same."""
        if self._enable:
            return dict(self._settings)
        return {"init_loss_scaling": 1.0, "use_dynamic_loss_scaling": False}

    state_dict = settings

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the settings of a `state_dict`.

        Raises:
            OptionError: there are others.
        """
        if unknown := sorted(set(state_dict) - set(self._settings)):
            raise OptionError(f"GradScaler: unknown settings {', '.join(unknown)}")
        self._settings.update(state_dict)

    def is_enable(self) -> bool:
        """Return whether the loss is scaled."""
        return self._enable

    def is_use_dynamic_loss_scaling(self) -> bool:
        """Return whether the scale changes."""
        return bool(self._settings["use_dynamic_loss_scaling"])

    def get_init_loss_scaling(self) -> float:
        """Return the first scale."""
        return float(self._settings["init_loss_scaling"])

    def set_init_loss_scaling(self, new_init_loss_scaling: float) -> None:
        """Set the first scale."""
        self._settings["init_loss_scaling"] = new_init_loss_scaling

    def get_incr_ratio(self) -> float:
        """Return the factor by which the scale grows."""
        return float(self._settings["incr_ratio"])

    def set_incr_ratio(self, new_incr_ratio: float) -> None:
        """Set the factor by which the scale grows."""
        self._settings["incr_ratio"] = new_incr_ratio

    def get_decr_ratio(self) -> float:
        """Return the factor by which the scale shrinks."""
        return float(self._settings["decr_ratio"])

    def set_decr_ratio(self, new_decr_ratio: float) -> None:
        """Set the factor by which the scale shrinks."""
        self._settings["decr_ratio"] = new_decr_ratio

    def get_incr_every_n_steps(self) -> int:
        """Return after how many good steps the scale grows."""
        return int(self._settings["incr_every_n_steps"])

    def set_incr_every_n_steps(self, new_incr_every_n_steps: int) -> None:
        """Set after how many good steps the scale grows."""
        self._settings["incr_every_n_steps"] = new_incr_every_n_steps

    def get_decr_every_n_nan_or_inf(self) -> int:
        """Return after how many bad steps the scale shrinks."""
        return int(self._settings["decr_every_n_nan_or_inf"])

    def set_decr_every_n_nan_or_inf(self, new_decr_every_n_nan_or_inf: int) -> None:
        """Set after how many bad steps the scale shrinks."""
        self._settings["decr_every_n_nan_or_inf"] = new_decr_every_n_nan_or_inf

    def scale(self, var: Any) -> Any:
        """Refuse: the program scales its loss itself."""
        raise OptionError(f"GradScaler.scale({var!r}): {_NO_EAGER}")

    def unscale_(self, optimizer: Any) -> None:
        """Refuse: the program unscales its gradients itself."""
        raise OptionError(f"GradScaler.unscale_({optimizer!r}): {_NO_EAGER}")

    def step(self, optimizer: Any) -> None:
        """Refuse: a run of the program is a step."""
        raise OptionError(f"GradScaler.step({optimizer!r}): {_NO_EAGER}")

    def update(self) -> None:
        """Refuse: the program updates its scale itself."""
        raise OptionError(f"GradScaler.update: {_NO_EAGER}")

    def minimize(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Refuse: the decorated optimizer's `minimize` does that."""
        del args, kwargs
        raise OptionError(f"GradScaler.minimize({optimizer!r}): {_NO_EAGER}")


def decorate(*args: Any, **kwargs: Any) -> Any:
    """Wrap an optimizer for mixed precision, as `static.amp.decorate` does, or a network and its optimizer.

    `decorate(models, optimizers=None, level="O1", dtype="float16", master_weight=None, save_dtype=None,
    master_grad=False, excluded_layers=None)` is the form of dynamic mode: it returns the network as it is, since the
    program is cast when the loss is minimized, and the wrapped optimizer. In both forms `scaler=` takes a `GradScaler`.

    Raises:
        OptionError: `save_dtype` or `excluded_layers` is given, which programs do not have; or see
            `static.amp.decorate`.
        TypeError: see `static.amp.decorate`.
    """
    scaler = kwargs.pop("scaler", None)
    if isinstance(scaler, GradScaler):
        kwargs = {**scaler.settings(), **kwargs}
    elif scaler is not None:
        kwargs["scaler"] = scaler
    first = kwargs.get("models", args[0] if args else None)
    if "models" not in kwargs and not isinstance(_first(first), Layer):
        return decorator.decorate(*args, **kwargs)
    return _decorate_both(*args, **kwargs)


def _first(item: Any) -> Any:
    return item[0] if isinstance(item, (list, tuple)) and item else item


def _decorate_both(
    models: Any,
    optimizers: Any = None,
    level: str = "O1",
    dtype: str = "float16",
    master_weight: bool | None = None,
    save_dtype: Any = None,
    master_grad: bool = False,
    excluded_layers: Sequence[Any] | None = None,
    **scaling: Any,
) -> Any:
    if save_dtype is not None or excluded_layers is not None:
        raise OptionError(
            "amp.decorate: save_dtype and excluded_layers are of dynamic mode: static.save writes what the "
            "scope holds, and `with amp_transpiler.disable_amp():` around a part of the program keeps it float32"
        )
    if optimizers is None:
        return models
    settings = {"level": level, "dtype": dtype, "master_weight": master_weight, "master_grad": master_grad, **scaling}
    if not isinstance(optimizers, (list, tuple)):
        return models, decorator.decorate(optimizers, **settings)
    return models, [decorator.decorate(optimizer, **settings) for optimizer in optimizers]


class auto_cast:  # noqa: N801  # Paddle's name
    """Refuses: it belongs to dynamic mode.

    Raises:
        OptionError: always, unless `enable` is False; then it does nothing.
    """

    def __init__(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        if enable:
            raise OptionError(f"amp.auto_cast: {_NO_EAGER}")

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


def is_float16_supported(device: Any = None) -> bool:
    """Return whether the device computes in float16 itself: CUDA devices do; CPUs emulate it.

    Args:
        device: a place, or a name such as `cpu` or `gpu:0`; the best device here unless given.

    Raises:
        OptionError: (a ValueError) it is neither.
    """
    return _is_cuda(device)


def is_bfloat16_supported(device: Any = None) -> bool:
    """Return whether programs run in bfloat16: CUDA devices compute in it, and for CPUs `core.supports_bfloat16` tells.

    Args:
        device: a place, or a name such as `cpu` or `gpu:0`; the best device here unless given.

    Raises:
        OptionError: (a ValueError) it is neither.
    """
    return _is_cuda(device) or core.supports_bfloat16()


def _is_cuda(device: Any) -> bool:
    if device is None:
        device = default_place()
    if isinstance(device, Place):
        return isinstance(device, CUDAPlace)
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind not in ("cpu", "gpu") or not (number or "0").isdigit():
        raise OptionError(f"a device is a place, 'cpu', 'gpu' or 'gpu:0', 'gpu:1', ..., got {device!r}")
    return kind == "gpu"


def is_autocast_enabled(device_type: str | None = None) -> bool:  # noqa: ARG001  # Paddle's
    """Return False: nothing is cast while a program is built; `decorate`'s `minimize` casts it as a whole."""
    return False


def get_autocast_dtype(device_type: str | None = None) -> str:
    """Return the format that `decorate` takes unless it is told another."""
    return "bfloat16" if device_type == "cpu" else "float16"


def get_autocast_cpu_dtype() -> str:
    """Return Paddle's format for CPUs."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype() -> str:
    """Return Paddle's format for CUDA devices."""
    return get_autocast_dtype("gpu")


def white_list() -> dict[str, dict[str, OperatorSet]]:
    """Return the default operators that are low: format -> level -> a set that knows Paddle's and ONNX's names."""
    return {dtype: dict.fromkeys(("OD", "O1", "O2"), fp16_lists.white_list) for dtype in ("float16", "bfloat16")}


def black_list() -> dict[str, dict[str, OperatorSet]]:
    """Return the default operators that are float32, in the form of `white_list`: at O1 for numerical reasons too."""
    lists = AutoMixedPrecisionLists()
    extra = OperatorSet(lists.extra_black_list)
    of_level = {"OD": OperatorSet(), "O1": OperatorSet(fp16_lists.black_list | extra), "O2": extra}
    return {dtype: dict(of_level) for dtype in ("float16", "bfloat16")}


autocast = auto_cast
