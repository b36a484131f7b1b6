"""The same networks in PyTorch: as a user of its eager mode would write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from programs.ours import EXPANSION, STRIDES
from programs.sizes import Network

__all__ = ["loss_of", "model_of", "optimizer_of"]


def model_of(network: Network) -> nn.Module:
    """Return the network with fresh weights; called with the feeds, by position, it returns its loss."""
    return _MODELS[network.kind](network)


def optimizer_of(network: Network, parameters: Sequence[nn.Parameter], **settings: Any) -> torch.optim.Optimizer:
    """Return the network's optimizer; `settings` such as `fused=True` are PyTorch's."""
    makers: Mapping[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, network.rate, **settings),
        "momentum": lambda: torch.optim.SGD(parameters, network.rate, momentum=0.9, **settings),
        "adam": lambda: torch.optim.Adam(parameters, network.rate, **settings),
        "adamw": lambda: torch.optim.AdamW(parameters, network.rate, **settings),
    }
    return makers[network.optimizer]()


def loss_of(model: nn.Module, feeds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the loss of a batch."""
    loss: torch.Tensor = model(*feeds)
    return loss


class _Bert(nn.Module):  # type: ignore[misc]  # torch is not followed
    def __init__(self, network: Network) -> None:
        super().__init__()
        hidden = network.hidden
        self.words = nn.Embedding(network.vocabulary, hidden)
        self.types, self.places = nn.Embedding(2, hidden), nn.Embedding(512, hidden)
        self.norm, self.last_norm = nn.LayerNorm(hidden, 1e-12), nn.LayerNorm(hidden, 1e-12)
        self.layers = nn.ModuleList(_EncoderLayer(network) for _ in range(network.layers[0]))
        self.dense = nn.Linear(hidden, hidden)
        self.bias = nn.Parameter(torch.zeros(network.vocabulary))

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        kinds = torch.zeros_like(places)[None]
        x = self.norm(self.words(ids) + self.types(kinds) + self.places(places))
        for layer in self.layers:
            x = layer(x)
        x = self.last_norm(functional.gelu(self.dense(x)))
        scores = functional.linear(x, self.words.weight, self.bias)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class _EncoderLayer(nn.Module):  # type: ignore[misc]  # torch is not followed
    def __init__(self, network: Network) -> None:
        super().__init__()
        hidden, self.heads = network.hidden, network.heads
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden) for _ in range(4))
        self.inner, self.outer = nn.Linear(hidden, network.intermediate), nn.Linear(network.intermediate, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, 1e-12) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self._parts())
        seen = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.output(seen))
        y: torch.Tensor = self.norms[1](x + self.outer(functional.gelu(self.inner(x))))
        return y

    def _parts(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.query, self.key, self.value


class _Pointwise(nn.Module):  # type: ignore[misc]  # torch is not followed
    def __init__(self, network: Network) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 2
        for _ in range(network.layers[0]):
            layers += [nn.Conv2d(before, network.hidden, 1), nn.BatchNorm2d(network.hidden), nn.ReLU()]
            before = network.hidden
        self.layers = nn.Sequential(*layers, nn.Conv2d(before, 1, 1))

    def forward(self, coordinates: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.layers(coordinates), target)


class _Block(nn.Module):  # type: ignore[misc]  # torch is not followed
    def __init__(self, before: int, channels: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        after = channels * EXPANSION if bottleneck else channels
        if bottleneck:
            inner = [*_convolved(before, channels, 1), *_convolved(channels, channels, 3, stride)]
            inner += _convolved(channels, after, 1, relu=False)
        else:
            inner = [*_convolved(before, channels, 3, stride), *_convolved(channels, channels, 3, relu=False)]
        self.inner = nn.Sequential(*inner)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolved(before, after, 1, stride, relu=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.inner(x) + self.shortcut(x))


class _Classifier(nn.Module):  # type: ignore[misc]  # torch is not followed
    def __init__(self, layers: Sequence[nn.Module], channels: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.scores = nn.Linear(channels, classes)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        features = self.layers(pictures).mean((2, 3))
        return functional.cross_entropy(self.scores(features), labels.flatten())


def _resnet(network: Network) -> nn.Module:
    layers: list[nn.Module] = [*_convolved(3, network.hidden, 7, 2), nn.MaxPool2d(3, 2, 1)]
    before = network.hidden
    for stage, (blocks, stride) in enumerate(zip(network.layers, STRIDES, strict=True)):
        for block in range(blocks):
            channels = network.hidden << stage
            layers.append(_Block(before, channels, stride if block == 0 else 1, bottleneck=network.bottleneck))
            before = channels * EXPANSION if network.bottleneck else channels
    return _Classifier(layers, before, network.vocabulary)


def _plain_cnn(network: Network) -> nn.Module:
    layers: list[nn.Module] = []
    before = 3
    for index, stride in enumerate(network.layers):
        channels = network.hidden * (1 + (index > 1))
        layers += _convolved(before, channels, 3, stride)
        before = channels
    return _Classifier([*layers, nn.MaxPool2d(2, 2)], before, network.vocabulary)


def _convolved(before: int, channels: int, kernel: int, stride: int = 1, *, relu: bool = True) -> list[nn.Module]:
    layers = [nn.Conv2d(before, channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(channels)]
    return [*layers, nn.ReLU(inplace=True)] if relu else layers


_MODELS: Mapping[str, Callable[[Network], nn.Module]] = {
    "bert": _Bert,
    "pointwise": _Pointwise,
    "resnet": _resnet,
    "plain_cnn": _plain_cnn,
}
