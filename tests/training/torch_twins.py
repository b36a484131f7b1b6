"""The networks of `networks` in torch: the same layers, in the order in which ours make their parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from amp_transpiler.program.program import Program
from amp_transpiler.runtime.scope import Scope
from tests.training.networks import CLASSES, HEADS, HIDDEN, LENGTH, VOCABULARY

Tensors = dict[str, torch.Tensor]


class Conv(nn.Sequential):
    """A convolution and its normalization."""

    def __init__(self, channels: int, filters: int, size: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(channels, filters, size, stride=stride, padding=size // 2), nn.BatchNorm2d(filters, eps=1e-5)
        )


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
        )

    def forward(self, feed: Tensors) -> torch.Tensor:
        return functional.cross_entropy(self.layers(feed["image"]), feed["label"][:, 0])


class Pointwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden = [layer for channels in (2, 16, 16) for layer in (Conv(channels, 16, 1), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Conv2d(16, 1, 1))

    def forward(self, feed: Tensors) -> torch.Tensor:
        return functional.mse_loss(self.layers(feed["coordinates"]), feed["target"])


class Block(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = Conv(channels, filters, 3, stride)
        self.second = Conv(filters, filters, 3)
        self.short = nn.Identity() if (channels, stride) == (filters, 1) else Conv(channels, filters, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = (Block(8, 8, 1), Block(8, 16, 2), Block(16, 24, 2))
        self.layers = nn.Sequential(
            *(Conv(3, 8, 3), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, CLASSES))
        )

    def forward(self, feed: Tensors) -> torch.Tensor:
        return functional.cross_entropy(self.layers(feed["image"]), feed["label"][:, 0])


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.places = nn.Embedding(LENGTH, HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.places(torch.arange(LENGTH))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.output = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.inputs)
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(HIDDEN // HEADS) + mask, -1)
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(HIDDEN)
        self.wide, self.narrow = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)
        self.last_norm = nn.LayerNorm(HIDDEN)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attention(x, mask))
        return self.last_norm(x + self.narrow(functional.gelu(self.wide(x))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = Embedding(), nn.LayerNorm(HIDDEN)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(2))
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, feed: Tensors) -> torch.Tensor:
        x = self.norm(self.embedding(feed["ids"]))
        for layer in self.layers:
            x = layer(x, feed["mask"])
        return functional.cross_entropy(self.head(x).flatten(0, 1), feed["label"].flatten())


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.norms = nn.ModuleList([nn.LayerNorm(HIDDEN)])
        self.attention = Attention()
        self.second_norm = nn.LayerNorm(HIDDEN)
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.last_norm = nn.LayerNorm(HIDDEN)

    def forward(self, feed: Tensors) -> torch.Tensor:
        x = self.embedding(feed["ids"])
        mask = torch.full((LENGTH, LENGTH), -10000.0, dtype=x.dtype).triu(1)
        x = x + self.attention(self.norms[0](x), mask)
        x = x + self.narrow(functional.gelu(self.wide(self.second_norm(x)), approximate="tanh"))
        logits = self.last_norm(x) @ self.embedding.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), feed["label"].flatten())


TWINS = {"lenet": LeNet, "pointwise": Pointwise, "resnet": ResNet, "bert": Bert, "gpt2": Gpt2}


def _parameters(module: nn.Module) -> Iterator[tuple[nn.Parameter, bool]]:
    """Yield every parameter, and whether it is a matrix that we keep the other way round."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            yield parameter, isinstance(part, nn.Linear) and name == "weight"


def twin_of(name: str, program: Program, scope: Scope) -> nn.Module:
    """Return the twin of a network in float32, with the parameters that `scope` holds for `program`."""
    module = TWINS[name]()
    ours = [parameter.name for parameter in program.all_parameters() if parameter.trainable]
    theirs = list(_parameters(module))
    assert len(ours) == len(theirs), f"{len(ours)} parameters, torch has {len(theirs)}"
    with torch.no_grad():
        for key, (parameter, turned) in zip(ours, theirs, strict=True):
            value = scope[key].T if turned else scope[key]
            assert value.shape == tuple(parameter.shape), f"{key}: {value.shape}, torch has {tuple(parameter.shape)}"
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return module


def to_torch(feed: dict[str, np.ndarray], dtype: torch.dtype) -> Tensors:
    """Return a batch as tensors, its float ones of `dtype`."""
    tensors = {name: torch.from_numpy(array) for name, array in feed.items()}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
