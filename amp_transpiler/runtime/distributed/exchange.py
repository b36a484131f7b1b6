"""Values of ONNX Runtime exchanged between ranks in place: PyTorch reads and writes their memory through DLPack."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx_ir as ir
import onnxruntime

from amp_transpiler.runtime.distributed.torch_module import torch_with_distributed
from amp_transpiler.runtime.distributed.world import World
from amp_transpiler.runtime.values import capsule_of, has_bool_capsules, value_of

__all__ = ["Copied", "Exchange", "as_tensor", "as_value"]

_SPINS = 2000  # looks at a device's queue before each further one waits
_WAIT = 2e-4  # seconds


def as_tensor(value: onnxruntime.OrtValue) -> Any:
    """Return a PyTorch tensor in the memory of a value; of bool, it is uint8."""
    torch = torch_with_distributed()
    tensor = torch.utils.dlpack.from_dlpack(capsule_of(value))
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def as_value(tensor: Any, dtype: ir.DataType | None = None) -> onnxruntime.OrtValue:
    """Return a value in the memory of a PyTorch tensor; of uint8, it is bool where `dtype` says so."""
    torch = torch_with_distributed()
    if dtype == ir.DataType.BOOL and has_bool_capsules():
        tensor = tensor.view(torch.bool)
    return value_of(torch.utils.dlpack.to_dlpack(tensor), dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Copied:
    """A value that `rank` has.

    Attributes:
        rank: whose value it is.
        dtype: its element type.
        shape: its shape.
        value: the value itself on that rank, None on the others.
    """

    rank: int
    dtype: ir.DataType
    shape: tuple[int, ...]
    value: onnxruntime.OrtValue | None


class Exchange:
    """Sums and copies of values over all ranks of a world. Every rank must ask for the same, in the same order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._torch = torch_with_distributed()
        self._on_device = not world.place.in_main_memory

    def start_sum(self, value: onnxruntime.OrtValue) -> Callable[[], None]:
        """Begin to add up a value over all ranks, in its own memory; call the result before it is read."""
        return self._start(self._torch.distributed.all_reduce, as_tensor(value))

    def copies(self, items: Iterable[Copied]) -> list[onnxruntime.OrtValue]:
        """Return values that one rank each has: that rank's own as it is, the others' in new memory."""
        self._synchronize()
        results, pending = [], []
        for item in items:
            if item.value is not None:
                tensor = as_tensor(item.value).to(self._device())
                results.append(item.value)
            else:
                tensor = self._torch.empty(list(item.shape), dtype=self._kind(item.dtype), device=self._device())
                results.append(as_value(tensor, item.dtype))
            pending.append(self._start(self._torch.distributed.broadcast, tensor, src=item.rank))
        for finish in pending:
            finish()
        return results

    def _kind(self, dtype: ir.DataType) -> Any:
        """Return PyTorch's name of an element type; DLPack has bool as uint8."""
        name = {"FLOAT": "float32", "DOUBLE": "float64", "BOOL": "uint8"}.get(dtype.name, dtype.name.lower())
        return getattr(self._torch, name)

    def add_into(self, total: onnxruntime.OrtValue, value: onnxruntime.OrtValue) -> None:
        """Add a value to another one, in the memory of that."""
        self._synchronize()
        as_tensor(total).add_(as_tensor(value))
        self._synchronize()

    def mean(self, number: float) -> float:
        """Return the mean of a number over all ranks."""
        tensor = self._torch.tensor([number], dtype=self._torch.float64, device=self._device())
        self._start(self._torch.distributed.all_reduce, tensor)()
        return float(tensor.item()) / self._world.size

    def start_comparison(self, numbers: Sequence[int]) -> Callable[[], bool]:
        """Begin to compare whole numbers over all ranks; call the result to know whether all have the same."""
        both = [*numbers, *(-number for number in numbers)]  # the greatest of each, and the least
        tensor = self._torch.tensor(both, dtype=self._torch.int64, device=self._device())
        finish = self._start(self._torch.distributed.all_reduce, tensor, op=self._torch.distributed.ReduceOp.MAX)

        def are_equal() -> bool:
            finish()
            return bool(tensor.tolist() == both)

        return are_equal

    def _device(self) -> str:
        return f"cuda:{self._torch.cuda.current_device()}" if self._on_device else "cpu"

    def _synchronize(self) -> None:
        """Wait for everything on the device: ONNX Runtime and PyTorch queue their work on different streams."""
        if self._on_device:
            self._torch.cuda.synchronize()

    def _start(self, operation: Callable[..., Any], tensor: Any, **options: Any) -> Callable[[], None]:
        self._synchronize()
        try:
            work = operation(tensor, async_op=True, **options)
        except RuntimeError as error:
            raise self._world.lost(error) from error

        def finish() -> None:
            try:
                if self._on_device:
                    self._watch(work)
                work.wait()
            except RuntimeError as error:
                raise self._world.lost(error) from error
            self._synchronize()

        return finish

    def _watch(self, work: Any) -> None:
        """Wait until a device has done its part: NCCL itself waits on the device, and ends the process at its limit."""
        ends, looks = time.monotonic() + 0.9 * self._world.timeout, 0
        while not work.is_completed():
            looks += 1
            if looks > _SPINS:
                time.sleep(_WAIT)
                if time.monotonic() > ends:
                    raise self._world.lost(None)
