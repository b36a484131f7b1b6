"""Predicts the time of a run: the price of every kernel, and a host that asks for one after the other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.cost.node_costs import NodeCost, traffic
from amp_transpiler.cost.shapes import open_dims
from amp_transpiler.cost.work import Work, is_measured, seconds_of
from amp_transpiler.targets.devices import Device
from amp_transpiler.targets.price_list import price_list

__all__ = ["Kernel", "Prediction", "kernel_of", "node_seconds", "pays_from", "predict", "predicted", "time_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One request of the host.

    Attributes:
        seconds: that the device takes, with the gap before the next kernel.
        calls: of the host.
        waits: whether the host waits for its end.
    """

    seconds: float
    calls: int
    waits: bool = False

    def alone(self, launch: float) -> float:
        """Return its time or that of its calls, `launch` seconds each, whichever is longer; both if the host waits."""
        return self.seconds + self.calls * launch if self.waits else max(self.seconds, self.calls * launch)


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """Holds the predicted time of one run.

    Attributes:
        milliseconds: from the first call of the host to the end of the last kernel.
        busy_milliseconds: that the device computes.
        launches: kernels and library calls.
        bytes: that move between the device's memory and its kernels.
        flops: of matrix products and convolutions.
        unmeasured: share of `busy_milliseconds` that is charged by a rule, because the price list has no measured row.
        is_scaled: whether the prices are those of another device, in the ratio of the makers' figures.
    """

    milliseconds: float
    busy_milliseconds: float
    launches: int
    bytes: int
    flops: int
    unmeasured: float = 0.0
    is_scaled: bool = False

    @property
    def basis(self) -> str:
        """The device whose prices these are, in words, and the share that no measurement covers."""
        listed = price_list()
        source = f"prices of {listed.device}, ONNX Runtime {listed.release}"
        scaled = ", scaled by bandwidth and rate" if self.is_scaled else ""
        return f"{source}{scaled}; {self.unmeasured:.0%} of it by a rule"


def predict(
    model: ir.Model,
    device: Device,
    dims: Mapping[str, int] | None = None,
    *,
    cuda_graph: bool = False,
    tf32: bool = True,
    fuse: bool = False,
    written: bool = False,
) -> Prediction:
    """Predict the time of one run of a model, through the larger branch of an `If` whose condition is not known.

    Args:
        model: a model.
        device: where it runs.
        dims: name of an open dimension of the inputs -> its size; see `open_dims` for the others.
        cuda_graph: whether a CUDA graph replays the run, so that the host asks once.
        tf32: whether float32 is multiplied in TF32.
        fuse: whether ONNX Runtime is yet to optimize the model; see `traffic`.
        written: whether this package will write the file; see `traffic`.
    """
    costs = traffic(model, dims, tf32=tf32, fuse=fuse, written=written)
    return predicted(costs, device, cuda_graph=cuda_graph)


def predicted(costs: Sequence[NodeCost], device: Device, *, cuda_graph: bool = False) -> Prediction:
    """Predict the time of one run of nodes with these costs; see `predict`."""
    costs = [cost for cost in costs if not cost.rare]
    listed = price_list()
    gap = listed.gap_in_graph if cuda_graph else listed.gap
    kernels = [kernel_of(cost, device, gap) for cost in costs if cost.bytes or cost.launches]
    works = [work for cost in costs for work in cost.kernels]
    busy = sum(seconds_of(work, device) for work in works)
    ruled = sum(seconds_of(work, device) for work in works if not is_measured(work))
    return Prediction(
        milliseconds=1e3 * time_of(kernels, device.launch, cuda_graph=cuda_graph),
        busy_milliseconds=1e3 * busy,
        launches=sum(cost.launches for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
        flops=sum(cost.flops for cost in costs),
        unmeasured=ruled / busy if busy else 0.0,
        is_scaled=device.name != listed.device,
    )


def pays_from(
    low_model: ir.Model,
    fp32_model: ir.Model,
    device: Device,
    dim: str,
    dims: Mapping[str, int] | None = None,
) -> int | None:
    """Return the size of an open dimension from which on a converted model is predicted faster than its source.

    Args:
        low_model: the converted model, which ONNX Runtime is yet to optimize.
        fp32_model: its source.
        device: where they run.
        dim: the name of a dimension of their inputs, such as that of the batch.
        dims: sizes of other open dimensions.

    Returns:
        The least size from which on it pays; None if it does not at the largest that is looked at, 65536.

    Raises:
        OptionError: no input has an open dimension of that name.
    """
    low, fp32 = _Curve.of(low_model, dim, dims or {}, written=True), _Curve.of(fp32_model, dim, dims or {})

    def pays(size: int) -> bool:
        return predicted(low.at(size), device).milliseconds < predicted(fp32.at(size), device).milliseconds

    largest = LARGEST
    if not pays(largest):
        return None
    while largest > 1 and pays(largest // 2):
        largest //= 2
    least = largest // 2  # it does not pay there; at `largest` it does
    while largest - least > 1:
        middle = (least + largest) // 2
        least, largest = (least, middle) if pays(middle) else (middle, largest)
    if largest >= SMALLEST or open_dims(low_model).get(dim, 0) > 1:
        return largest
    return _nearby(largest, lambda size: _is_faster(low_model, fp32_model, device, {**(dims or {}), dim: size}))


def _is_faster(low_model: ir.Model, fp32_model: ir.Model, device: Device, dims: Mapping[str, int]) -> bool:
    low = predicted(traffic(low_model, dims, fuse=True, written=True), device)
    return low.milliseconds < predicted(traffic(fp32_model, dims, fuse=True), device).milliseconds


def _nearby(size: int, pays: Callable[[int], bool]) -> int | None:
    """Return the size from which on the models themselves pay, sought from one that a curve tells; None for none.

    Small sizes have other kernels than those that a curve goes through.
    """
    least, largest = size // 2, size
    if pays(size):
        while least and pays(least):
            least, largest = least // 2, least
    else:
        least, largest = size, 2 * size
        while not pays(largest):
            if largest >= LARGEST:
                return None
            least, largest = largest, 2 * largest
    while largest - least > 1:
        middle = (least + largest) // 2
        least, largest = (least, middle) if pays(middle) else (middle, largest)
    return largest


LARGEST = 1 << 16
SMALLEST = 32  # below, products are thin, and a dimension of size 1 is moved and spread for nothing


@dataclasses.dataclass(frozen=True, slots=True)
class _Curve:
    """Writes the costs of nodes as polynomials in one dimension: bytes and operations are at most its square.

    Attributes:
        costs: at three sizes: `step`, twice and three times as much.
        step: a multiple of the size that made-up inputs have, so that strides and windows divide it.
    """

    costs: tuple[Sequence[NodeCost], ...]
    step: int

    @classmethod
    def of(cls, model: ir.Model, dim: str, dims: Mapping[str, int], *, written: bool = False) -> _Curve:
        usual = max(1, open_dims(model).get(dim, 0))
        step = usual * math.ceil(SMALLEST / usual)
        costs = [traffic(model, {**dims, dim: size}, fuse=True, written=written) for size in (step, 2 * step, 3 * step)]
        return cls(tuple(costs), step)

    def at(self, size: int) -> list[NodeCost]:
        """Return the costs at a size; launches as at the largest of the three."""
        steps = (size - self.step) / self.step
        return [
            dataclasses.replace(
                nodes[-1], kernels=_kernels(nodes, steps), **{name: _of(nodes, name, steps) for name in _SIZES}
            )
            for nodes in zip(*self.costs, strict=True)
        ]


_SIZES = ("read", "written", "copied", "flops")
_EXTENTS = ("elements", "steps", "flops", "bytes", "count")


def _kernels(nodes: Sequence[NodeCost], steps: float) -> tuple[Work, ...]:
    """Return the kernels of a node at another size: those of the largest, where they are others at the smaller ones."""
    largest = nodes[-1].kernels
    if any([work.kernel for work in cost.kernels] != [work.kernel for work in largest] for cost in nodes):
        nodes = [dataclasses.replace(nodes[-1])] * len(nodes)
    return tuple(
        dataclasses.replace(works[-1], **{name: _of(works, name, steps) for name in _EXTENTS})
        for works in zip(*(cost.kernels for cost in nodes), strict=True)
    )


def _of(costs: Sequence[NodeCost] | Sequence[Work], name: str, steps: float) -> int:
    return _extended([getattr(cost, name) for cost in costs], steps)


def _extended(points: Sequence[int], steps: float) -> int:
    """Return the value of the parabola through three points, each a step further, so many steps after the first."""
    first, second, third = points
    slope, bend = second - first, third - 2 * second + first
    return max(0, round(first + slope * steps + bend * steps * (steps - 1) / 2))


def node_seconds(cost: NodeCost, device: Device) -> float:
    """Return what a node adds to a run: its time on the device or that of its launches, whichever is longer.

    The sum over all nodes is a little more than `predict` says, for there the host runs ahead of a long kernel.
    """
    if not (cost.bytes or cost.launches):
        return 0.0
    return kernel_of(cost, device).alone(device.launch)


def time_of(kernels: Iterable[Kernel], launch: float, *, cuda_graph: bool = False) -> float:
    """Return the seconds of kernels that a host asks for one after the other, `launch` seconds a call.

    A kernel begins when it was asked for and the one before it has ended.
    """
    asked = done = 0.0
    for kernel in kernels:
        if not cuda_graph:
            asked += kernel.calls * launch
        done = max(done, asked) + kernel.seconds
        asked = max(asked, done) if kernel.waits else asked
    return done + (launch if cuda_graph else 0.0)


def kernel_of(cost: NodeCost, device: Device, gap: float | None = None) -> Kernel:
    """Return what a node asks of the device and of the host.

    Args:
        cost: the node's.
        device: where it runs.
        gap: seconds between two kernels; those of a run without a CUDA graph if it is left out.
    """
    calls = max(1, cost.launches + bool(cost.copied) + cost.waits)
    gap = price_list().gap if gap is None else gap
    return Kernel(sum(seconds_of(work, device) for work in cost.kernels) + calls * gap, calls, cost.waits > 0)
