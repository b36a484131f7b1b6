"""Counts what PyTorch's eager mode would ask of a GPU in a training step, on tensors without contents.

An operator that is no view counts as one launch (several of PyTorch's are two or three), reads each of its tensors once
and writes its results once. Mixed precision is that of `torch.autocast("cuda")`, by the lists of its documentation;
attention is one kernel there and one back, and the optimizer is a fused one: it counts as one operator, the scaler's
check and unscaling as another.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from amp_transpiler.cost import Device, Kernel, time_of
from amp_transpiler.targets.devices import Rate
from programs.in_torch import loss_of, model_of
from programs.sizes import Network, feeds_of

__all__ = ["EAGER_LAUNCH", "TorchCounts", "count_training"]

EAGER_LAUNCH = 6e-6  # seconds that PyTorch's eager mode takes to ask for one operator
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
RATES: Mapping[torch.dtype, Rate] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
# Bytes an element of what a fused optimizer reads and writes: parameter, gradient, and its moments, all float32.
OPTIMIZER_BYTES = {"sgd": 12, "momentum": 20, "adam": 28, "adamw": 28}
UNSCALE_BYTES = 8
# torch.autocast's lists for CUDA, as far as the networks use them.
LOW_FUNCTIONS = {functional.linear, functional.conv2d, torch.conv2d, torch.matmul, torch.bmm, torch.mm}
WIDE_FUNCTIONS = {functional.layer_norm, torch.layer_norm, functional.cross_entropy, functional.mse_loss}
NO_KERNEL = {
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "alias",
}
READS_WHAT_IT_WRITES = {"embedding", "index_select", "gather", "nll_loss_forward"}


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator that ran: its name, bytes, FLOPs and the format that it multiplies in."""

    name: str
    bytes: int
    flops: int
    rate: Rate


@dataclasses.dataclass(frozen=True)
class TorchCounts:
    """A training step of PyTorch.

    Attributes:
        operators: in their order.
    """

    operators: Sequence[Operator]

    @property
    def launches(self) -> int:
        return len(self.operators)

    @property
    def bytes(self) -> int:
        return sum(operator.bytes for operator in self.operators)

    def by_name(self) -> Counter[str]:
        return Counter(operator.name for operator in self.operators)

    def bytes_by_name(self) -> Counter[str]:
        sizes: Counter[str] = Counter()
        for operator in self.operators:
            sizes[operator.name] += operator.bytes
        return sizes

    def milliseconds(self, device: Device) -> float:
        """Return the predicted time of the step."""
        kernels = [Kernel(device.seconds(op.bytes, op.flops, op.rate), 1) for op in self.operators]
        return 1e3 * time_of(kernels, EAGER_LAUNCH)


def count_training(network: Network, dtype: str | None) -> TorchCounts:
    """Count a training step: eager, autocast and scaler where `dtype` is a low format, fused optimizer."""
    with torch.device("meta"):
        model = model_of(network)
        feeds = [
            torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype) for array in feeds_of(network).values()
        ]
    counter = _Counter()
    with counter, _Attention(counter), _Autocast(None if dtype is None else DTYPES[dtype]):
        loss = loss_of(model, feeds)
        if dtype is not None:
            loss = loss * torch.empty((), device="meta")  # by the scaler
    with counter:
        loss.backward()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if dtype is not None:
        counter.add("unscale and check", parameters * UNSCALE_BYTES)
        counter.add("scaler.update", 8)
    counter.add(f"fused {network.optimizer}", parameters * OPTIMIZER_BYTES[network.optimizer])
    return TorchCounts(tuple(counter.operators))


class _Counter(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Operator] = []

    def add(self, name: str, size: int, flops: int = 0, rate: Rate = "tf32") -> None:
        self.operators.append(Operator(name, size, flops, rate))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in NO_KERNEL or _is_view(func):
            return result
        read, written = _tensors((args, kwargs)), _tensors(result)
        size = sum(map(_bytes, written))
        if name in READS_WHAT_IT_WRITES:
            size += min(size, _bytes(read[0])) + sum(map(_bytes, read[1:]))
        else:
            size += sum(map(_bytes, read))
        rate: Rate = next((RATES[tensor.dtype] for tensor in read if tensor.dtype in RATES), "tf32")
        formula = flop_registry.get(func.overloadpacket)
        flops = 0 if formula is None else int(formula(*args, **(kwargs or {}), out_val=result))
        self.add(name, size, flops, rate)
        return result


def _is_view(func: Any) -> bool:
    returned = [result.alias_info for result in func._schema.returns]  # noqa: SLF001  torch tells it nowhere else
    return any(alias is not None and not alias.is_write for alias in returned)


def _tensors(values: Any) -> list[torch.Tensor]:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return list({id(tensor): tensor for tensor in tensors}.values())


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes of what lies in memory: an expanded dimension is there once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return int(math.prod(sizes) * tensor.element_size())


class _Autocast(TorchFunctionMode):  # type: ignore[misc]  # likewise
    """`torch.autocast` for CUDA, on any device: PyTorch's own looks at the device of each tensor."""

    def __init__(self, low: torch.dtype | None) -> None:
        super().__init__()
        self.low = low
        self._weights: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.low is not None and func in LOW_FUNCTIONS:
            args, kwargs = _mapped(args, self._to_low), {k: _mapped(v, self._to_low) for k, v in kwargs.items()}
        elif self.low is not None and func in WIDE_FUNCTIONS:
            args = _mapped(args, lambda tensor: tensor.float())
        return func(*args, **kwargs)

    def _to_low(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self.low is not None
        if not isinstance(tensor, torch.nn.Parameter):
            return tensor.to(self.low)
        if id(tensor) not in self._weights:  # a weight is cast once a step
            self._weights[id(tensor)] = tensor.to(self.low)
        return self._weights[id(tensor)]


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_mapped(part, function) for part in value)
    return function(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class _Attention(TorchFunctionMode):  # type: ignore[misc]  # likewise
    """Attention as one kernel, as CUDA has it."""

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            return _OneKernel.apply(self.counter, *args)
        return func(*args, **(kwargs or {}))


class _OneKernel(torch.autograd.Function):  # type: ignore[misc]  # likewise
    @staticmethod
    def forward(ctx: Any, counter: _Counter, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.counter, ctx.inputs = counter, inputs
        query, key, _ = inputs
        flops = 4 * query.numel() * key.shape[-2]
        counter.add("attention", 4 * _bytes(query), flops, RATES.get(query.dtype, "tf32"))
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        query, key, _ = ctx.inputs
        flops = 10 * query.numel() * key.shape[-2]
        # Reads query, key, value, result and its gradient; writes three gradients.
        ctx.counter.add("attention backward", 8 * _bytes(query), flops, RATES.get(query.dtype, "tf32"))
        return None, *(torch.empty_like(tensor) for tensor in ctx.inputs)
