"""The networks' names and sizes: those of the experiments, and small ones that show that everything works."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

__all__ = ["NETWORKS", "SMALL", "Network", "feeds_of", "shallow", "small"]

Optimizer: TypeAlias = Literal["sgd", "momentum", "adam", "adamw"]


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and its training.

    Attributes:
        name: of its row in a table.
        kind: "bert", "resnet", "pointwise" or "plain_cnn": which builder makes it.
        batch: samples a step.
        optimizer: which one.
        rate: the learning rate.
        layers: encoder layers, or residual blocks of each stage.
        hidden: features of a token, or channels.
        heads: of each attention.
        intermediate: features between the linear layers behind an attention.
        vocabulary: tokens, or classes of pictures.
        size: tokens of a sample, or pixels along each side.
        bottleneck: whether the residual blocks are of three convolutions.
    """

    name: str
    kind: Literal["bert", "resnet", "pointwise", "plain_cnn"]
    batch: int
    optimizer: Optimizer
    rate: float
    layers: tuple[int, ...]
    hidden: int
    vocabulary: int
    size: int
    heads: int = 1
    intermediate: int = 0
    bottleneck: bool = False


def _bert(name: str, batch: int, optimizer: Optimizer, rate: float, layers: int) -> Network:
    return Network(name, "bert", batch, optimizer, rate, (layers,), 768, 30522, 128, 12, 3072)


NETWORKS: Mapping[str, Network] = {
    "rocm": Network("ROCm's network", "pointwise", 1, "adam", 1e-3, (3,), 256, 0, 512),
    "raf": _bert("RAF's BERT, one layer", 8, "sgd", 0.1, 1),
    "resnet18": Network("ResNet-18", "resnet", 128, "momentum", 0.1, (2, 2, 2, 2), 64, 1000, 224),
    "transformer": _bert("transformer, 4 layers", 32, "adamw", 1e-3, 4),
    "resnet50": Network("ResNet-50", "resnet", 32, "momentum", 0.1, (3, 4, 6, 3), 64, 1000, 224, bottleneck=True),
    "transformer_cpu": Network("transformer", "bert", 8, "adamw", 1e-3, (2,), 256, 1000, 64, 4, 1024),
    "cnn_cpu": Network("CNN of 4 convolutions", "plain_cnn", 8, "momentum", 0.1, (1, 1, 2, 1), 32, 10, 32),
}

_BERT = {"batch": 2, "hidden": 16, "heads": 2, "intermediate": 32, "vocabulary": 50, "size": 8}
_PICTURES = {"batch": 2, "hidden": 4, "vocabulary": 10, "size": 32}
SMALL: Mapping[str, Mapping[str, int]] = {
    "bert": _BERT,
    "resnet": _PICTURES,
    "pointwise": {"hidden": 4, "size": 16},
    "plain_cnn": _PICTURES,
}
"""Kind -> the sizes that take next to no time."""


def small(network: Network) -> Network:
    """Return a network of the same form that takes next to no time."""
    return dataclasses.replace(network, **SMALL[network.kind])  # type: ignore[arg-type]  # all of these are numbers


def shallow(network: Network) -> Network:
    """Return a network with the same sizes and at most two layers, or two blocks in a stage: it compiles sooner."""
    return dataclasses.replace(network, layers=tuple(min(layers, 2) for layers in network.layers))


def feeds_of(network: Network, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a batch of random numbers, by the names of the static program's inputs."""
    random, batch, size = np.random.default_rng(seed), network.batch, network.size
    if network.kind == "bert":
        ids, labels = random.integers(0, network.vocabulary, (2, batch, size))
        return {"input_ids": ids, "labels": labels}
    if network.kind == "pointwise":
        shapes = {"coordinates": (batch, 2, size, size), "target": (batch, 1, size, size)}
        return {name: random.random(shape, np.float32) for name, shape in shapes.items()}
    pictures = random.standard_normal((batch, 3, size, size), np.float32)
    return {"pictures": pictures, "labels": random.integers(0, network.vocabulary, (batch, 1))}
