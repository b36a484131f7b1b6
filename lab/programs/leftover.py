"""Launches of our step beyond PyTorch's: by operator, with the reason."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["REASONS", "rows"]

Record = dict[str, Any]

# Our operators and PyTorch's that do the same work, by the name of that work. What is in no row is "other".
WORK: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "matrix products": (
        frozenset({"MatMul", "FusedMatMul", "Gemm"}),
        frozenset({"mm", "addmm", "bmm", "baddbmm"}),
    ),
    "convolutions": (frozenset({"Conv", "ConvTranspose"}), frozenset({"convolution", "convolution_backward"})),
    "casts": (frozenset({"Cast"}), frozenset({"_to_copy"})),
    "sums and means": (
        frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceSumSquare", "ReduceL2", "Sum"}),
        frozenset({"sum", "mean", "mse_loss"}),
    ),
    "normalisation, softmax, attention": (
        frozenset(
            {
                "LayerNormalization", "SkipLayerNormalization", "BatchNormalization", "HyperConnectionPreMix",
                "HyperConnectionPostMix", "Softmax", "LogSoftmax", "Attention",
            }
        ),
        frozenset(
            {
                "native_layer_norm", "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward",
                "_log_softmax", "_log_softmax_backward_data", "attention", "attention backward",
            }
        ),
    ),
    "movement": (
        frozenset({"Transpose", "Concat", "Split", "Slice", "Expand", "Pad", "Tile"}),
        frozenset({"clone", "cat", "expand", "copy_"}),
    ),
    "look-ups": (
        frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "MaxPool", "OneHot"}),
        frozenset(
            {
                "embedding", "embedding_dense_backward", "nll_loss_forward", "nll_loss_backward",
                "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
            }
        ),
    ),
    "activations": (
        frozenset({"Relu", "Gelu", "FastGelu", "Erf", "Exp", "Tanh", "Sigmoid"}),
        frozenset({"relu", "relu_", "gelu", "gelu_backward", "threshold_backward"}),
    ),
    "optimizer, scaler": (
        frozenset(),
        frozenset({"unscale and check", "scaler.update", "fused sgd", "fused momentum", "fused adam", "fused adamw"}),
    ),
}  # fmt: skip
REASONS: Mapping[str, str] = {
    "matrix products": "attention is products and a Softmax here, one kernel each way there; a Gemm with a bias is two",
    "convolutions": "the gradients of input and weight are operators of their own; PyTorch's one call runs both",
    "casts": "what ONNX Runtime has no low kernel for, and low copies of parameters; PyTorch casts each weight, too",
    "sums and means": "gradients of biases and broadcasts, statistics; PyTorch has most of them in its kernels",
    "normalisation, softmax, attention": "their backward passes are written in elementwise operators and sums here",
    "movement": "Concat and Split of the optimizer's groups, and transposes that PyTorch has as strides",
    "look-ups": "the gradient of a look-up is a scatter, with the comparisons that bound its indices",
    "activations": "their backward passes are elementwise operators here",
    "optimizer, scaler": "one fused kernel each there; elementwise operators on groups of parameters here",
    "elementwise": "the optimizer's groups, the scaler's checks, backward passes of what has no operator for it",
}


def rows(steps: Sequence[Record], torch_steps: Sequence[Record]) -> list[Record]:
    """Return, for each network's lowest level in float16 (or what there is), our launches and PyTorch's by work."""
    theirs = {(step["network"], step["dtype"]): step for step in torch_steps}
    table = []
    for network in dict.fromkeys(step["network"] for step in steps):
        matching = [step for step in steps if step["network"] == network and step["dtype"] != "bfloat16"]
        if not matching or (network, matching[-1]["dtype"]) not in theirs:  # counted earlier, and not asked for now
            continue
        step = matching[-1]  # levels go down
        mine = _by_work(step["ours"]["by_operator"], 0)
        other = _by_work(theirs[network, step["dtype"]]["by_operator"], 1)
        for work in REASONS:
            ours, torch = mine[work].total(), other[work].total()
            if ours or torch:
                row = {"network": network, "level": step["level"], "work": work, "reason": REASONS[work]}
                table.append({**row, "ours": ours, "torch": torch, "operators": _named(mine[work])})
    return table


def _by_work(by_operator: Mapping[str, int], side: int) -> dict[str, collections.Counter[str]]:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for operator, number in by_operator.items():
        work = next((work for work, sides in WORK.items() if operator in sides[side]), "elementwise")
        counts[work][operator] += number
    return counts


def _named(operators: collections.Counter[str]) -> str:
    """Return operators with their numbers, the most frequent first."""
    return ", ".join(f"{operator} {number}" for operator, number in operators.most_common() if number)
