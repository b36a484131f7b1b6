"""Accepts names of `paddle.static` that tell Paddle how to compile and place a program; few have an effect."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable, Program, Variable
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace, default_place

__all__ = [
    "BuildStrategy",
    "CompiledProgram",
    "ExecutionStrategy",
    "InputSpec",
    "cpu_places",
    "create_global_var",
    "cuda_places",
    "device_guard",
    "name_scope",
    "xpu_places",
]


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """Return a variable that lives in the scope from run to run and that no optimizer trains.

    Args:
        shape: its dimensions.
        value: the number that the startup program fills it with.
        dtype: its element type.
        persistable: no effect: it persists.
        force_cpu: no effect.
        name: its name; `global_var_0` and so on unless given.

    Raises:
        InputError: a dimension is open, or a program has the name with another shape or type.
    """
    del persistable, force_cpu
    sizes = [int(size) for size in shape]
    if any(size < 0 for size in sizes):
        raise InputError(f"create_global_var: the shape must be known, got {list(shape)}")
    held = Persistable(name or unique_name.generate("global_var"), "statistic", trainable=False)
    variable = create_persistable(held, sizes, value, parse_dtype(dtype))
    variable.stop_gradient = True
    return variable


@dataclasses.dataclass(slots=True)
class InputSpec:
    """Describes shape, element type and name of an input.

    Attributes:
        shape: its dimensions; None or -1 for an open one.
        dtype: its element type.
        name: its name.
        stop_gradient: whether no gradient passes through it.
    """

    shape: Sequence[int | None]
    dtype: Any = "float32"
    name: str | None = None
    stop_gradient: bool = False

    @classmethod
    def from_tensor(cls, tensor: Variable, name: str | None = None) -> InputSpec:
        """Return the specification of a variable."""
        return cls(list(tensor.shape), tensor.dtype, name or tensor.name)

    @classmethod
    def from_numpy(cls, ndarray: np.ndarray, name: str | None = None) -> InputSpec:
        """Return the specification of an array."""
        return cls(list(ndarray.shape), ndarray.dtype.name, name)

    def batch(self, batch_size: int) -> InputSpec:
        """Put a dimension in front, and return the specification."""
        self.shape = [int(batch_size), *self.shape]
        return self

    def unbatch(self) -> InputSpec:
        """Take the first dimension away, and return the specification.

        Raises:
            InputError: there is none.
        """
        if not self.shape:
            raise InputError("InputSpec.unbatch: there is no dimension to take away")
        self.shape = list(self.shape)[1:]
        return self


class _Strategy:
    """Settings of Paddle's compiler. Any can be set and read; none has an effect: ONNX Runtime optimizes by itself."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self._settings[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self._settings.get(name, False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._settings.items())})"


class BuildStrategy(_Strategy):
    """Settings of how Paddle builds a graph: any is accepted, none has an effect."""

    class ReduceStrategy:
        """Ways to sum gradients, of no effect."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy:
        """Ways to scale gradients, of no effect."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2


class ExecutionStrategy(_Strategy):
    """Settings of how Paddle runs a graph: any is accepted, none has an effect."""


class CompiledProgram:
    """Wraps a program for `Executor.run`, which compiles every program.

    Args:
        program_or_graph: the program.
        build_strategy: no effect.
    """

    def __init__(self, program_or_graph: Program, build_strategy: BuildStrategy | None = None) -> None:
        self.program = program_or_graph
        self.build_strategy = build_strategy

    def __repr__(self) -> str:
        return f"CompiledProgram({self.program!r})"

    def with_data_parallel(self, *_: Any, **__: Any) -> CompiledProgram:
        """Return the program: `distributed` runs one on several devices."""
        return self


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Return as many CPU places; one unless a count is given."""
    return [CPUPlace() for _ in range(1 if device_count is None else int(device_count))]


def cuda_places(device_ids: Sequence[int] | int | None = None) -> list[CUDAPlace]:
    """Return the CUDA places of these devices; that of the default device unless some are given.

    Raises:
        EnvironmentProblem: none are given, and the default device is no CUDA device.
    """
    if device_ids is None:
        place = default_place()
        if not isinstance(place, CUDAPlace):
            raise EnvironmentProblem(
                f"cuda_places: no CUDA device answers, or AMP_TRANSPILER_PLACE says {place}: use cpu_places(), or name "
                "the devices"
            )
        return [place]
    return [CUDAPlace(int(number)) for number in ([device_ids] if isinstance(device_ids, int) else device_ids)]


def xpu_places(device_ids: Sequence[int] | None = None) -> list[Any]:
    """Refuse: there is no such device here.

    Raises:
        EnvironmentProblem: always.
    """
    raise EnvironmentProblem(f"xpu_places({device_ids}): programs run on CPUs and CUDA devices: use cuda_places()")


@contextlib.contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Do nothing: ONNX Runtime places each operator.

    Args:
        device: `cpu`, `gpu`, `gpu:0`, ...

    Raises:
        OptionError: it is no such word.
    """
    if device is not None and not re.fullmatch(r"(cpu|gpu|npu|xpu)(:(\d+|all))?", device):
        raise OptionError(f"device_guard: device must be 'cpu', 'gpu' or 'gpu:NUMBER', got {device!r}")
    yield


@contextlib.contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Do nothing: it groups operators in Paddle's drawings.

    Args:
        prefix: the group's name.
    """
    del prefix
    yield


check_arguments(globals(), __all__)
