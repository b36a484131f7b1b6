"""Runs a model or a training step three times on the stand-ins, for `scripts/lints.py`."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

import amp_transpiler as amp
import launches
from amp_transpiler import static
from amp_transpiler.errors import InputError
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.runtime.feeds import ValueInfo
from amp_transpiler.runtime.openable import AnyProgram
from programs.ours import training_step
from programs.sessions import Sessions
from programs.sizes import Network, feeds_of

__all__ = ["Ran", "model", "step"]

Counts = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Ran:
    """A model or step that ran three times.

    Attributes:
        first: what `launches.counting()` counted in the first run.
        steady: the same of the third run.
        fed: bytes of each feed that the program copies to the device in every run.
        graphs: the graphs that ONNX Runtime made of what ran.
    """

    first: Counts
    steady: Counts
    fed: Sequence[int] = ()
    graphs: Sequence[ir.Model] = ()


def step(network: Network, level: str, dtype: str) -> Ran:
    """Run the training step of a network at a level, with a low format."""
    program, arrays = training_step(network, level, dtype), feeds_of(network)
    _sessions()  # of those that are opened from now on
    with static.scope_guard(static.Scope()), static.Executor(amp.CUDAPlace(0)) as executor:
        executor.run(program.startup)
        fed = [array.nbytes for array in arrays.values()]
        return _thrice(lambda: executor.run(program.main, arrays, [program.loss], return_numpy=False), fed)


def model(
    program: AnyProgram,
    arrays: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    provider_options: Mapping[str, str] | None = None,
) -> Ran:
    """Run a model in a `Session`, with its inputs and outputs on the device.

    Args:
        program: the model.
        arrays: its inputs; zeros where None.
        dims: name of a symbolic dimension -> its size where inputs are zeros; 1 for others.
        provider_options: options of the CUDA provider.
    """
    _sessions()  # of those that are opened from now on
    place = amp.CUDAPlace(0)
    with amp.Session(program, place, provider_options=provider_options, cuda_graph=False, cache=False) as session:
        values = _zeros(session.inputs, dims or {}) if arrays is None else arrays
        return _thrice(session.bind(values), ())


@functools.cache
def _sessions() -> Sessions:
    """Return the sessions of this process, which cannot be watched twice."""
    folder = tempfile.TemporaryDirectory(prefix="linted-")
    atexit.register(folder.cleanup)
    return Sessions(pathlib.Path(folder.name))


def _thrice(run: Callable[[], Any], fed: Sequence[int]) -> Ran:
    """Run, and return the counts of the first and the third time with the graphs."""
    sessions = _sessions()
    sessions.used.clear()
    with launches.counting() as first:
        run()
    run()
    with launches.counting() as steady:
        run()
    graphs = list(sessions.graphs())
    for graph in graphs:  # ONNX Runtime writes no shapes
        infer_shapes(graph)
    return Ran(first, steady, fed, graphs)


def _zeros(inputs: Sequence[ValueInfo], dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return zeros for the inputs that have no default."""
    arrays = {}
    for info in inputs:
        if not info.required:
            continue
        if info.numpy is None or info.shape is None:
            raise InputError(
                f"input {info.name!r} is {info}: zeros can be made for a tensor of known rank only, so give arrays"
            )
        shape = [size if isinstance(size, int) else dims.get(size or "", 1) for size in info.shape]
        arrays[info.name] = np.zeros(shape, info.numpy)
    return arrays
