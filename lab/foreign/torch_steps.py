"""Training steps from PyTorch: gradients by `torch.func`, AdamW written functionally, exported by both exporters.

Exporters cannot follow `torch.func` themselves, so the step is traced to ATen operators first, as AOTAutograd does.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import onnx

from foreign.writer import Batch, Feed, ForeignStep, Role, StateRow

__all__ = ["TORCH_NETWORKS", "Exporter", "from_torch"]

Exporter = Literal["dynamo", "torchscript"]

CLASSES, ROWS, WORDS, LENGTH = 5, 8, 30, 6
_EPSILON = 1e-6  # with 1e-8 the newer exporter drops the sum, as one with zero, and divides zero by zero


@dataclasses.dataclass(frozen=True, slots=True)
class _Network:
    """A module, and what draws its inputs: `x` and `labels`."""

    make: Callable[[], Any]
    batch: Batch


def _images(shape: tuple[int, ...]) -> Batch:
    means = np.random.default_rng(11).normal(0, 1, (CLASSES, *shape))

    def batch(generator: np.random.Generator) -> Feed:
        labels = generator.integers(0, CLASSES, ROWS)
        x = means[labels] + 0.5 * generator.normal(0, 1, (ROWS, *shape))
        return {"x": x.astype(np.float32), "labels": labels.astype(np.int64)}

    return batch


def _sentences(generator: np.random.Generator) -> Feed:
    labels = generator.integers(0, CLASSES, ROWS)
    ids = (labels[:, None] * 5 + generator.integers(0, 10, (ROWS, LENGTH))) % WORDS
    return {"x": ids.astype(np.int64), "labels": labels.astype(np.int64)}


def _normalised() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES))


def _convolutional() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1, stride=2),
        nn.GELU(), nn.Flatten(), nn.Linear(6 * 16, CLASSES),
    )  # fmt: skip


def _transformer() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]  # torch is not looked at
        def __init__(self, deep: int = 16) -> None:
            super().__init__()
            self.table = nn.Embedding(WORDS, deep)
            self.first, self.second = nn.LayerNorm(deep), nn.LayerNorm(deep)
            self.qkv, self.out = nn.Linear(deep, 3 * deep), nn.Linear(deep, deep)
            self.wide, self.narrow, self.head = nn.Linear(deep, 32), nn.Linear(32, deep), nn.Linear(deep, CLASSES)

        def forward(self, ids: Any) -> Any:
            x = self.table(ids)
            q, k, v = self.qkv(self.first(x)).chunk(3, -1)
            p = torch.softmax(q @ k.transpose(1, 2) * 0.25, -1)
            x = x + self.out(p @ v)
            x = x + self.narrow(torch.tanh(self.wide(self.second(x))))
            return self.head(x.mean(1))

    return Block()


TORCH_NETWORKS = {
    "normalised": _Network(_normalised, _images((16,))),
    "convolutional": _Network(_convolutional, _images((3, 8, 8))),
    "transformer": _Network(_transformer, _sentences),
}


def from_torch(network: str, exporter: Exporter, rate: float = 1e-3) -> ForeignStep:
    """Export a step of AdamW on a network of PyTorch.

    Args:
        network: a name of `TORCH_NETWORKS`.
        exporter: `dynamo`: the one that builds on `torch.export`; `torchscript`: the one before it.
        rate: the learning rate.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    row = TORCH_NETWORKS[network]
    torch.manual_seed(0)
    module = row.make().train()
    states = _states(module)
    feed = row.batch(np.random.default_rng(0))
    tensors = [torch.from_numpy(np.array(value)) for value in (*feed.values(), *(s.start for s in states))]
    table = {**_decompositions(), **_own_decompositions()}
    traced = make_fx(_step(module, rate), decomposition_table=table)(*tensors)
    if exporter == "torchscript":
        _with_plain_copies(traced)
    names = [*feed, *(state.input for state in states)], ["loss", *(state.output for state in states)]
    return ForeignStep(_exported(traced, tensors, *names, exporter), tuple(states), row.batch, "loss")


def _states(module: Any) -> list[StateRow]:
    rows: list[StateRow] = []

    def add(name: str, role: Role, start: Any) -> None:
        flat = name.replace(".", "_")
        rows.append(StateRow(flat, f"new_{flat}", role, start.detach().clone().numpy()))

    for name, value in module.named_parameters():
        add(name, "parameter", value)
    for name, value in module.named_buffers():
        add(name, "counter" if "num_batches" in name else "statistic", value)
    for kind in ("first", "second"):
        for name, value in module.named_parameters():
            add(f"{kind}_moment_of_{name}", "moment", value.detach() * 0)
    rows.append(StateRow("count", "new_count", "counter", np.zeros((), np.float32)))
    return rows


def _step(module: Any, rate: float) -> Callable[..., tuple[Any, ...]]:
    """Return the step as a function of tensors: x, labels, then the states in the order of `_states`."""
    import torch
    from torch.func import functional_call, grad_and_value

    parameters, buffers = [dict(listing()) for listing in (module.named_parameters, module.named_buffers)]

    def step(x: Any, labels: Any, *flat: Any) -> tuple[Any, ...]:
        values = iter(flat)
        weights, buffer_values = {name: next(values) for name in parameters}, {name: next(values) for name in buffers}
        first, second = ({name: next(values) for name in parameters} for _ in range(2))

        def loss_of(weights: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            changed = {name: value.clone() for name, value in buffer_values.items()}
            logits = functional_call(module, {**weights, **changed}, (x,))
            return torch.nn.functional.cross_entropy(logits, labels), changed

        gradients, (loss, changed) = grad_and_value(loss_of, has_aux=True)(weights)
        count = next(values) + 1
        for name, gradient in gradients.items():
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient * gradient
            mean, square = first[name] / (1 - 0.9**count), second[name] / (1 - 0.999**count)
            decayed = weights[name] * (1 - 0.01 * rate)
            weights[name] = decayed - rate * mean / (torch.sqrt(square) + _EPSILON)
        groups = (weights, changed, first, second)
        return (loss, *(value for group in groups for value in group.values()), count)

    return step


def _decompositions() -> Any:
    """Return how operators that an exporter lacks, or writes as in inference, are made of others."""
    import torch
    from torch._decomp import get_decompositions

    names = (
        "native_batch_norm", "native_batch_norm_backward", "_log_softmax", "_log_softmax_backward_data",
        "_softmax", "_softmax_backward_data", "nll_loss_forward", "nll_loss_backward", "threshold_backward",
        "tanh_backward",        "gelu_backward", "native_layer_norm", "native_layer_norm_backward", "addmm", "t",
        "rsub", "_unsafe_view", "detach", "convolution_backward", "native_dropout_backward",
    )  # fmt: skip
    return get_decompositions([getattr(torch.ops.aten, name) for name in names])


def _own_decompositions() -> Any:
    """Return the gradients of a convolution, as convolutions, and of an embedding, which neither exporter has."""
    import torch
    from torch.nn.functional import conv2d, conv_transpose2d

    def backward(d: Any, x: Any, weight: Any, _: Any, stride: Any, padding: Any, *rest: Any) -> tuple[Any, ...]:
        kernel = weight.shape[2:]
        swapped = conv2d(x.transpose(0, 1), d.transpose(0, 1), padding=padding, dilation=stride)
        of_weight = swapped.transpose(0, 1)[:, :, : kernel[0], : kernel[1]]
        if not rest[-1][0]:
            return None, of_weight, d.sum((0, 2, 3))
        reached = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(d.shape[2:], stride, padding, kernel, strict=True)]
        left = [n - r for n, r in zip(x.shape[2:], reached, strict=True)]
        of_input = conv_transpose2d(d, weight, stride=stride, padding=padding, output_padding=left)
        return of_input, of_weight, d.sum((0, 2, 3))

    def of_table(d: Any, ids: Any, words: int, *rest: Any) -> Any:
        del rest
        rows = d.reshape(-1, d.shape[-1])
        return torch.zeros(words, d.shape[-1]).scatter_add(0, ids.reshape(-1, 1).expand_as(rows), rows)

    def without(x: Any, axes: Any) -> Any:
        squeezed = x
        for axis in sorted((a % x.dim() for a in axes), reverse=True):
            squeezed = squeezed.squeeze(axis)
        return squeezed

    aten = torch.ops.aten
    return {
        aten.convolution_backward.default: backward,
        aten.embedding_dense_backward.default: of_table,
        aten.squeeze.dims: without,
    }


def _with_plain_copies(traced: Any) -> None:
    """Write conversions of types by a method that the older exporter knows."""
    import torch

    for node in list(traced.graph.nodes):
        if node.target is torch.ops.aten._to_copy.default:  # noqa: SLF001  the operator's name
            with traced.graph.inserting_before(node):
                copy = traced.graph.call_method("to", (node.args[0], node.kwargs["dtype"]))
            node.replace_all_uses_with(copy)
    traced.graph.eliminate_dead_code()
    traced.recompile()


def _exported(
    traced: Any, arguments: Sequence[Any], inputs: list[str], outputs: list[str], exporter: Exporter
) -> onnx.ModelProto:
    import torch

    class Step(torch.nn.Module):  # type: ignore[misc]  # torch is not looked at
        def forward(self, *tensors: Any) -> tuple[Any, ...]:
            outcome: tuple[Any, ...] = traced(*tensors)
            return outcome

    kind = {"dynamo": True, "verbose": False} if exporter == "dynamo" else {"dynamo": False, "opset_version": 18}
    module = traced if exporter == "dynamo" else Step()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter is deprecated
        path = pathlib.Path(folder, "step.onnx")
        torch.onnx.export(module, tuple(arguments), path, input_names=inputs, output_names=outputs, **kind)
        return onnx.load(path)
