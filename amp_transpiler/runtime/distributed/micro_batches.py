"""A batch split into micro-batches, and what they give put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime

from amp_transpiler.errors import InputError
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.distributed.exchange import as_tensor, as_value
from amp_transpiler.runtime.distributed.torch_module import torch_with_distributed

__all__ = ["is_open", "joined", "split_feeds"]


def split_feeds(program: Program, arrays: Mapping[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    """Split every feed whose first dimension is open into equal parts; all parts get the others.

    Raises:
        InputError: a feed cannot be split equally, or none has an open first dimension.
    """
    if count == 1:
        return [dict(arrays)]
    split = [name for name in arrays if is_open(program, name)]
    if not split:
        raise InputError(
            f"a batch cannot be split into {count} micro-batches: no input has an open first dimension; declare it as "
            "static.data(name, [None, ...]), or leave accumulate_steps out"
        )
    for name in split:
        if len(arrays[name]) % count:
            raise InputError(
                f"input '{name}': a batch of {len(arrays[name])} cannot be split into {count} equal micro-batches "
                "(accumulate_steps): feed a multiple of it"
            )
    pieces = {name: np.split(arrays[name], count) if name in split else [arrays[name]] * count for name in arrays}
    return [{name: parts[index] for name, parts in pieces.items()} for index in range(count)]


def joined(program: Program, name: str, values: Sequence[onnxruntime.OrtValue]) -> onnxruntime.OrtValue:
    """Return what is fetched in a step out of its micro-batches' values.

    Values with an open first dimension are put behind each other, other floats are averaged, and of the rest the last
    one counts.
    """
    if len(values) == 1:
        return values[0]
    torch = torch_with_distributed()
    dtype = ir.DataType(values[0].element_type())
    tensors = [as_tensor(value) for value in values]
    if tensors[0].ndim and is_open(program, name):
        result = torch.cat(tensors)
    elif dtype.is_floating_point():
        result = torch.stack(tensors).to(torch.float64).mean(0).to(tensors[0].dtype)
    else:
        return values[-1]
    if result.is_cuda:
        torch.cuda.synchronize()  # whoever reads it does not wait for PyTorch's stream
    return as_value(result, dtype)


def is_open(program: Program, name: str) -> bool:
    """Whether the first dimension of a value is open, so that it is taken for the batch."""
    shape = program.value(name).shape
    return shape is not None and len(shape) > 0 and not isinstance(shape[0], int)
