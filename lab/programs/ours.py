"""The networks as static programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.paddle import tensor
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.optimizer import SGD, Adam, AdamW, Momentum, Optimizer
from bert_program import BertConfig, bert_for_masked_lm
from programs.sizes import Network
from train_convnet import network as pointwise_network

__all__ = ["LEVELS", "Step", "training_step"]

LEVELS = ("fp32", "O1", "O2")
STRIDES = (1, 2, 2, 2)
EXPANSION = 4  # of a block with a bottleneck


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step.

    Attributes:
        main: forward pass, loss, backward pass and optimizer.
        startup: makes its parameters.
        loss: float32, one number.
        optimizer: what `minimize` was called on; of mixed precision, the decorated one.
    """

    main: static.Program
    startup: static.Program
    loss: static.Variable
    optimizer: Any


def training_step(network: Network, level: str = "fp32", dtype: str = "float16", seed: int = 1) -> Step:
    """Build a network's training step.

    Args:
        network: the network.
        level: "fp32"; Paddle's "O1" or "O2"; "torch", PyTorch's autocast and scaler; or "raf", RAF's autocast.
        dtype: the low format.
        seed: of the initial values.
    """
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = seed
    with static.program_guard(main, startup):
        loss = _LOSSES[network.kind](network)
        optimizer: Any = _optimizer(network, low_parameters=level == "O2")
        if level == "torch":
            optimizer = amp.decorate(optimizer, policy="torch", scaler="torch", dtype=dtype)
        elif level not in ("fp32", "raf"):
            optimizer = static.amp.decorate(optimizer, level=level, dtype=dtype)
        optimizer.minimize(loss, startup)
    if level == "raf":
        main = amp.autocast(main, dtype=dtype)
    return Step(main, startup, loss, optimizer)


def _optimizer(network: Network, *, low_parameters: bool) -> Optimizer:
    rate = network.rate
    if network.optimizer == "sgd":
        return SGD(rate)
    if network.optimizer == "momentum":
        return Momentum(rate, 0.9, multi_precision=low_parameters)
    return (Adam if network.optimizer == "adam" else AdamW)(rate, multi_precision=low_parameters)


# ---- the networks, up to their loss ----
def _bert(network: Network) -> static.Variable:
    ids, labels = (static.data(name, [network.batch, network.size], "int64") for name in ("input_ids", "labels"))
    config = BertConfig(
        vocabulary=network.vocabulary,
        hidden=network.hidden,
        layers=network.layers[0],
        heads=network.heads,
        intermediate=network.intermediate,
    )
    logits = bert_for_masked_lm(ids, config)
    return functional.cross_entropy(logits, tensor.reshape(labels, [network.batch * network.size]))


def _pointwise(network: Network) -> static.Variable:
    return pointwise_network(network.size, network.hidden)[2]


def _resnet(network: Network) -> static.Variable:
    pictures, labels = _pictures(network)
    x = functional.max_pool2d(_convolved(pictures, network.hidden, 7, 2), 3, 2, 1)
    for stage, (blocks, stride) in enumerate(zip(network.layers, STRIDES, strict=True)):
        for block in range(blocks):
            channels, first = network.hidden << stage, stride if block == 0 else 1
            x = (_bottleneck if network.bottleneck else _basic)(x, channels, first)
    return _classified(x, labels, network)


def _basic(x: static.Variable, channels: int, stride: int) -> static.Variable:
    shortcut = x if stride == 1 and x.shape[1] == channels else _convolved(x, channels, 1, stride, relu=False)
    inner = _convolved(_convolved(x, channels, 3, stride), channels, 3, relu=False)
    return functional.relu(inner + shortcut)


def _bottleneck(x: static.Variable, channels: int, stride: int) -> static.Variable:
    wide = channels * EXPANSION
    shortcut = x if stride == 1 and x.shape[1] == wide else _convolved(x, wide, 1, stride, relu=False)
    inner = _convolved(_convolved(x, channels, 1), channels, 3, stride)
    return functional.relu(_convolved(inner, wide, 1, relu=False) + shortcut)


def _plain_cnn(network: Network) -> static.Variable:
    x, labels = _pictures(network)
    for index, stride in enumerate(network.layers):
        x = _convolved(x, network.hidden * (1 + (index > 1)), 3, stride)
    return _classified(functional.max_pool2d(x, 2, 2), labels, network)


def _pictures(network: Network) -> tuple[static.Variable, static.Variable]:
    pictures = static.data("pictures", [network.batch, 3, network.size, network.size])
    return pictures, static.data("labels", [network.batch, 1], "int64")


def _convolved(
    x: static.Variable, channels: int, kernel: int, stride: int = 1, *, relu: bool = True
) -> static.Variable:
    x = static.nn.conv2d(x, channels, kernel, stride=stride, padding=kernel // 2, bias_attr=False)
    return static.nn.batch_norm(x, act="relu" if relu else None)


def _classified(x: static.Variable, labels: static.Variable, network: Network) -> static.Variable:
    scores = static.nn.fc(tensor.mean(x, axis=[2, 3]), network.vocabulary)
    return functional.cross_entropy(scores, labels)


_LOSSES: Mapping[str, Callable[[Network], static.Variable]] = {
    "bert": _bert,
    "pointwise": _pointwise,
    "resnet": _resnet,
    "plain_cnn": _plain_cnn,
}
