"""Predicted time: a roofline for every kernel, and a host that asks for one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from amp_transpiler.precision.cost.devices import Device
from amp_transpiler.precision.cost.traffic import NodeCost, traffic

__all__ = ["Kernel", "Prediction", "node_seconds", "predict", "time_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One request of the host.

    Attributes:
        seconds: that the device takes.
        calls: of the host.
    """

    seconds: float
    calls: int


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """The time of one run.

    Attributes:
        milliseconds: from the first call of the host to the end of the last kernel.
        busy_milliseconds: that the device computes.
        launches: kernels and library calls.
        bytes: that move between the device's memory and its kernels.
        flops: of matrix products and convolutions.
    """

    milliseconds: float
    busy_milliseconds: float
    launches: int
    bytes: int
    flops: int


def predict(
    model: ir.Model,
    device: Device,
    dims: Mapping[str, int] | None = None,
    *,
    cuda_graph: bool = False,
    tf32: bool = True,
) -> Prediction:
    """Predict the time of one run of a model.

    Args:
        model: a model as ONNX Runtime runs it; see `traffic`.
        device: where it runs.
        dims: name of an open dimension of the inputs -> its size. Others count as 1.
        cuda_graph: whether a CUDA graph replays the run, so that the host asks once.
        tf32: whether float32 is multiplied in TF32.
    """
    costs = traffic(model, dims, tf32=tf32)
    kernels = [_kernel(cost, device) for cost in costs if cost.bytes or cost.launches]
    return Prediction(
        milliseconds=1e3 * time_of(kernels, device.launch, cuda_graph=cuda_graph),
        busy_milliseconds=1e3 * sum(kernel.seconds for kernel in kernels),
        launches=sum(cost.launches for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
        flops=sum(cost.flops for cost in costs),
    )


def node_seconds(cost: NodeCost, device: Device) -> float:
    """Return what a node adds to a run: its time on the device or that of its launches, whichever is longer.

    The sum over all nodes is a little more than `predict` says, for there the host runs ahead of a long kernel.
    """
    if not (cost.bytes or cost.launches):
        return 0.0
    kernel = _kernel(cost, device)
    return max(kernel.seconds, kernel.calls * device.launch)


def time_of(kernels: Iterable[Kernel], launch: float, *, cuda_graph: bool = False) -> float:
    """Return the seconds of kernels that a host asks for one after the other, `launch` seconds a call.

    A kernel begins when it was asked for and the one before it has ended.
    """
    asked = done = 0.0
    for kernel in kernels:
        if not cuda_graph:
            asked += kernel.calls * launch
        done = max(done, asked) + kernel.seconds
    return done + (launch if cuda_graph else 0.0)


def _kernel(cost: NodeCost, device: Device) -> Kernel:
    """A node of several launches is one kernel here: what lies between them mostly stays in the cache."""
    calls = max(1, cost.launches + bool(cost.copied))
    seconds = device.seconds(cost.bytes, cost.flops, cost.rate) + (calls - 1) * device.smallest
    return Kernel(seconds, calls)
