"""Reads the state of a loss scaler from a scope as a dictionary, and writes it to one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.program.program import Variable
from amp_transpiler.runtime.scope import Scope
from amp_transpiler.update_passes.loss_scaling import LARGEST_COUNT, ScalingRule, is_count, is_positive

__all__ = ["ScalerState"]

logger = logging.getLogger(__name__)

# Constants of the program: key -> the argument of decorate. The first three are torch.amp.GradScaler's keys.
_FACTORS = {"growth_factor": "incr_ratio", "backoff_factor": "decr_ratio", "growth_interval": "incr_every_n_steps"}
_BAD_STEPS = "decr_every_n_nan_or_inf"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ScalerState:
    """Holds the persistable variables of a loss scaler.

    Attributes:
        scale: the scale of the next step, float32 of shape [1].
        good: good steps in a row, int32; None if the scale is static.
        bad: bad steps in a row, int32; None if the rule does not count them.
        next_scale: the scale after the next finite check, float32; None if the rule is not delayed.
        rule: how the scale changes.
    """

    scale: Variable
    rule: ScalingRule
    good: Variable | None = None
    bad: Variable | None = None
    next_scale: Variable | None = None

    def to_dict(self, scope: Scope) -> dict[str, float | int]:
        """Return the state as Python numbers.

        Raises:
            InputError: the scope has no value for it.
        """
        state: dict[str, float | int] = {"scale": self._read(scope, self.scale)}
        state |= self._factors()
        return state | {key: self._read(scope, variable) for key, variable in self._moving().items()}

    def load(self, scope: Scope, given: Mapping[str, Any]) -> None:
        """Write the numbers of `to_dict` to a scope: all of them, or none if there is an error.

        Raises:
            InputError: keys are missing or unknown, a value is not one that the state can have, or the startup
                program has not run in this scope.
            OptionError: a factor is not that of the program.
        """
        self._check_keys(given)
        for key, factor in self._factors().items():
            if given[key] != factor:
                argument = _FACTORS.get(key, key)
                raise OptionError(
                    f"load_state_dict: {key} is {given[key]!r}, and this program was made with {factor!r}, which is a "
                    f"constant of it: decorate with {argument}={given[key]!r}, or set state_dict[{key!r}] = {factor!r}"
                )
        variables = {"scale": self.scale, **self._moving()}
        # Without a lower bound, enough bad steps in a row halve the scale to 0, so 0 is a valid state then.
        vanishes = self.good is not None and self.rule.floor is None
        arrays = {variable.name: _array(key, given[key], vanishes) for key, variable in variables.items()}
        self._require_values(scope, "load_state_dict")
        if given["scale"] == 0:
            logger.warning("load_state_dict: the loss scale is 0, so no step will be taken until update_scale sets one")
        scope.update(arrays)

    def set_scale(self, scope: Scope, value: float) -> None:
        """Make `value` the scale of the next step, and of the one after it.

        Raises:
            InputError: it is not a positive, finite number, or the startup program has not run in this scope.
        """
        array = _array("scale", value)
        self._require_values(scope, "update_scale")
        scope.update({variable.name: array for variable in (self.scale, self.next_scale) if variable is not None})

    def _factors(self) -> dict[str, float | int]:
        if self.good is None:
            return {}
        factors = {key: getattr(self.rule, field) for key, field in _FACTORS.items()}
        return factors if self.bad is None else {**factors, _BAD_STEPS: self.rule.decr_every_n_nan_or_inf}

    def _moving(self) -> dict[str, Variable]:
        held = {"_growth_tracker": self.good, "_bad_step_tracker": self.bad, "_next_scale": self.next_scale}
        return {key: variable for key, variable in held.items() if variable is not None}

    def _require_values(self, scope: Scope, caller: str) -> None:
        """Raise InputError if the startup program has not run: its run would overwrite what is written now."""
        for variable in (self.scale, *self._moving().values()):
            if variable.name not in scope:
                raise InputError(
                    f"{caller}: the scope has no value for '{variable.name}': run the startup program first, or give "
                    "its scope"
                )

    def _read(self, scope: Scope, variable: Variable) -> float | int:
        if variable.name not in scope:
            raise InputError(
                f"state_dict: the scope has no value for '{variable.name}': run the startup program, or give its scope"
            )
        number: float | int = scope[variable.name].item()
        return number

    def _check_keys(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise InputError(f"load_state_dict needs a dictionary that state_dict made, got {state!r}")
        keys = {"scale", *self._factors(), *self._moving()}
        missing, unknown = sorted(keys - set(state)), sorted(map(str, set(state) - keys))
        if missing or unknown:
            wrong = [f"has no {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(unknown)}"] * bool(unknown)
            raise InputError(
                f"load_state_dict: the state {' and '.join(wrong)}; this scaler's keys are {', '.join(sorted(keys))}: "
                "load a state that was saved with the same scaler="
            )


def _array(key: str, value: Any, vanishes: bool = False) -> np.ndarray:
    """Return a value of the state as the array that the program holds; with `vanishes`, a scale may be 0."""
    if key.endswith("scale"):
        nothing = vanishes and isinstance(value, (float, np.floating)) and value == 0
        if not nothing and not is_positive(value):
            raise InputError(f"the loss scale ({key}) must be a positive number that float32 holds, got {value!r}")
        return np.array([value], np.float32)
    if not is_count(value, 0):
        raise InputError(f"{key} must be a whole number of steps from 0 to {LARGEST_COUNT}, got {value!r}")
    return np.array([value], np.int32)
