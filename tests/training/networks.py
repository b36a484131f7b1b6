"""The networks that the training tests train, built by our interface; small, each with a batch of made-up data.

Parameters are made in the order in which `torch_twins` lists them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from amp_transpiler import static
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.paddle.nn import functional
from amp_transpiler.program.program import Variable

VOCABULARY, LENGTH, HIDDEN, HEADS = 40, 12, 32, 4
CLASSES = 10

Feed = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """A network under test.

    Attributes:
        name: its name in test ids and in `torch_twins`.
        build: makes the inputs, the forward pass and the loss in the current program, and returns the loss.
        batch: makes one batch from a random generator.
        rate: a learning rate for Adam that moves the loss and keeps it smooth.
    """

    name: str
    build: Callable[[], Variable]
    batch: Callable[[np.random.Generator], Feed]
    rate: float = 1e-3

    def __str__(self) -> str:
        return self.name


# ---- operators that layers do not cover ----


def _builder(x: Variable) -> GraphBuilder:
    return x.program.builder()


def reshape(x: Variable, shape: list[int]) -> Variable:
    return Variable(x.program, str(_builder(x).reshape(x.value, shape).name))


def transpose(x: Variable, perm: list[int]) -> Variable:
    return Variable(x.program, str(_builder(x).transpose(x.value, perm).name))


def constant(value: np.ndarray) -> Variable:
    program = static.default_main_program()
    return Variable(program, str(program.builder().constant(value).name))


# ---- convolutional networks ----


def _conv_norm(x: Variable, filters: int, size: int, stride: int = 1, act: str | None = "relu") -> Variable:
    hidden = static.nn.conv2d(x, filters, size, stride=stride, padding=size // 2)
    return static.nn.batch_norm(hidden, act=act)


def _mean_cross_entropy(logits: Variable, label: Variable) -> Variable:
    return functional.cross_entropy(logits, label, reduction="mean")


def lenet() -> Variable:
    x = static.data("image", [None, 1, 28, 28])
    label = static.data("label", [None, 1], "int64")
    x = functional.max_pool2d(functional.relu(static.nn.conv2d(x, 6, 5, padding=2)), kernel_size=2, stride=2)
    x = functional.max_pool2d(functional.relu(static.nn.conv2d(x, 16, 5)), kernel_size=2, stride=2)
    x = functional.relu(static.nn.fc(x, 120))
    x = functional.relu(static.nn.fc(x, 84))
    return _mean_cross_entropy(static.nn.fc(x, CLASSES), label)


def _lenet_batch(random: np.random.Generator) -> Feed:
    image = random.normal(size=(8, 1, 28, 28)).astype(np.float32)
    return {"image": image, "label": random.integers(0, CLASSES, (8, 1))}


def pointwise() -> Variable:
    """The network of ROCm's blog on mixed precision: 1x1 convolutions that draw a picture from its coordinates."""
    x = static.data("coordinates", [None, 2, 16, 16])
    target = static.data("target", [None, 1, 16, 16])
    for _ in range(3):
        x = _conv_norm(x, 16, 1)
    return functional.mse_loss(static.nn.conv2d(x, 1, 1), target)


def _pointwise_batch(random: np.random.Generator) -> Feed:
    axis = np.linspace(-1, 1, 16, dtype=np.float32) + np.float32(random.uniform(-0.1, 0.1))
    coordinates = np.stack(np.meshgrid(axis, axis))[None]
    waves = np.cos(6 * coordinates).mean(1, keepdims=True)
    return {"coordinates": coordinates, "target": (np.round(waves * 2) / 2).astype(np.float32)}


def _basic_block(x: Variable, filters: int, stride: int) -> Variable:
    hidden = _conv_norm(x, filters, 3, stride)
    hidden = _conv_norm(hidden, filters, 3, act=None)
    if stride != 1 or x.shape[1] != filters:
        x = _conv_norm(x, filters, 1, stride, act=None)
    return functional.relu(hidden + x)


def resnet() -> Variable:
    x = static.data("image", [None, 3, 16, 16])
    label = static.data("label", [None, 1], "int64")
    x = _conv_norm(x, 8, 3)
    for filters, stride in ((8, 1), (16, 2), (24, 2)):
        x = _basic_block(x, filters, stride)
    x = functional.adaptive_avg_pool2d(x, 1)
    return _mean_cross_entropy(static.nn.fc(x, CLASSES), label)


def _resnet_batch(random: np.random.Generator) -> Feed:
    image = random.normal(size=(8, 3, 16, 16)).astype(np.float32)
    return {"image": image, "label": random.integers(0, CLASSES, (8, 1))}


# ---- transformers ----


def _embed(ids: Variable, size: int) -> Variable:
    """Token embeddings, and one of its place for each token."""
    places = constant(np.arange(LENGTH, dtype=np.int64)[None])
    return static.nn.embedding(ids, [size, HIDDEN]) + static.nn.embedding(places, [LENGTH, HIDDEN])


def _norm(x: Variable) -> Variable:
    return static.nn.layer_norm(x, begin_norm_axis=2)


def _linear(x: Variable, size: int) -> Variable:
    return static.nn.fc(x, size, num_flatten_dims=2)


def attention(x: Variable, mask: Variable) -> Variable:
    """Attention of every token to every other, as separate operators; `mask` is added to the scores."""
    size = HIDDEN // HEADS
    query, key, value = (reshape(_linear(x, HIDDEN), [0, LENGTH, HEADS, size]) for _ in range(3))
    scores = transpose(query, [0, 2, 1, 3]) @ transpose(key, [0, 2, 3, 1]) * (1 / math.sqrt(size))
    mixed = functional.softmax(scores + mask) @ transpose(value, [0, 2, 1, 3])
    return _linear(reshape(transpose(mixed, [0, 2, 1, 3]), [0, LENGTH, HIDDEN]), HIDDEN)


def bert() -> Variable:
    ids = static.data("ids", [None, LENGTH], "int64")
    mask = static.data("mask", [None, 1, 1, LENGTH])
    label = static.data("label", [None, LENGTH, 1], "int64")
    x = _norm(_embed(ids, VOCABULARY))
    for _ in range(2):
        x = _norm(x + attention(x, mask))
        x = _norm(x + _linear(functional.gelu(_linear(x, 2 * HIDDEN)), HIDDEN))
    return _token_loss(_linear(x, VOCABULARY), label)


def _token_loss(logits: Variable, label: Variable) -> Variable:
    return _mean_cross_entropy(reshape(logits, [-1, VOCABULARY]), reshape(label, [-1, 1]))


def _bert_batch(random: np.random.Generator) -> Feed:
    lengths = random.integers(LENGTH // 2, LENGTH + 1, (4, 1, 1, 1))
    mask = np.where(np.arange(LENGTH) < lengths, 0, -10000).astype(np.float32)
    tokens = random.integers(0, VOCABULARY, (2, 4, LENGTH))
    return {"ids": tokens[0], "mask": mask, "label": tokens[1][..., None]}


def gpt2() -> Variable:
    """A GPT-2 block; the output layer is the token embedding."""
    ids = static.data("ids", [None, LENGTH], "int64")
    label = static.data("label", [None, LENGTH, 1], "int64")
    mask = constant(np.triu(np.full((LENGTH, LENGTH), -10000, np.float32), 1))
    x = _embed(ids, VOCABULARY)
    table = x.program.all_parameters()[0]
    x = x + attention(_norm(x), mask)
    x = x + _linear(functional.gelu(_linear(_norm(x), 4 * HIDDEN), approximate=True), HIDDEN)
    return _token_loss(_norm(x) @ transpose(table, [1, 0]), label)


def _gpt2_batch(random: np.random.Generator) -> Feed:
    tokens = random.integers(0, VOCABULARY, (4, LENGTH + 1))
    return {"ids": tokens[:, :-1], "label": tokens[:, 1:, None]}


NETWORKS = (
    Network("lenet", lenet, _lenet_batch),
    Network("pointwise", pointwise, _pointwise_batch),
    Network("resnet", resnet, _resnet_batch),
    Network("bert", bert, _bert_batch),
    Network("gpt2", gpt2, _gpt2_batch),
)
