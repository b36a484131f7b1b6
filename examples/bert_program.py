"""BERT with its masked-language-model head as a static program, of this package's own layers.

Parameters have the names that transformers gives those of `BertForMaskedLM`; weights of linear layers are
[in, out] here, so they are the transposes of what PyTorch holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from amp_transpiler.paddle import static, tensor
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.initializer import Normal
from amp_transpiler.paddle.optimizer import SGD, Momentum, Optimizer
from amp_transpiler.paddle.param_attr import ParamAttr

SPREAD = 0.02  # standard deviation of initial weights, as in BERT


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT; the defaults are those of bert-base-uncased, with one layer.

    Attributes:
        vocabulary: how many tokens there are.
        hidden: features of a token; a multiple of `heads`.
        layers: of the encoder.
        heads: of each attention.
        intermediate: features between the two linear layers that follow an attention.
        positions: the longest sequence that has learnt positions.
        token_types: how many kinds of segments there are.
        epsilon: of LayerNorm.
    """

    vocabulary: int = 30522
    hidden: int = 768
    layers: int = 1
    heads: int = 12
    intermediate: int = 3072
    positions: int = 512
    token_types: int = 2
    epsilon: float = 1e-12

    def fault(self, sequence: int) -> str | None:
        """Return what is wrong with these sizes for sequences of this length, or None."""
        if self.hidden % self.heads:
            return f"--heads {self.heads} does not divide --hidden {self.hidden}"
        if sequence > self.positions:
            return f"--sequence {sequence} is beyond the {self.positions} positions that are learnt"
        return None


@dataclasses.dataclass(frozen=True)
class TrainingStep:
    """A complete training step: forward pass, loss, backward pass and optimizer.

    Attributes:
        main: the step; feeds `input_ids` and `labels`, both int64 [batch, sequence].
        startup: makes its parameters.
        logits: float32 [batch * sequence, vocabulary].
        loss: float32, one number.
    """

    main: static.Program
    startup: static.Program
    logits: static.Variable
    loss: static.Variable

    def parameters(self) -> int:
        """Return how many numbers are trained."""
        return sum(math.prod(parameter.shape) for parameter in self.main.all_parameters())


def training_step(
    config: BertConfig,
    batch: int,
    sequence: int,
    *,
    rate: float = 0.1,
    momentum: float = 0.0,
    seed: int = 1,
    wrap: Callable[[Optimizer], Any] | None = None,
) -> TrainingStep:
    """Build the step: cross entropy against a label for every token, and stochastic gradient descent.

    Args:
        config: the sizes of the model.
        batch: sequences a step.
        sequence: tokens of each.
        rate: the learning rate.
        momentum: 0 for none.
        seed: of the initial values.
        wrap: is given the optimizer and returns the one to use, such as `amp.decorate`; None for float32.
    """
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = seed
    with static.program_guard(main, startup):
        ids = static.data("input_ids", [batch, sequence], "int64")
        labels = static.data("labels", [batch, sequence], "int64")
        logits = bert_for_masked_lm(ids, config)
        loss = functional.cross_entropy(logits, tensor.reshape(labels, [batch * sequence]))
        optimizer = Momentum(rate, momentum) if momentum else SGD(rate)
        (optimizer if wrap is None else wrap(optimizer)).minimize(loss, startup)
    return TrainingStep(main, startup, logits, loss)


def bert_for_masked_lm(ids: static.Variable, config: BertConfig) -> static.Variable:
    """Append BERT to the current program; return the scores of the vocabulary at every place.

    Between the embeddings and the scores all tokens of all sequences are rows of one matrix, as RAF's import from
    PyTorch has it: then the gradient of a weight is one product, and not one a sequence that must be summed.

    Args:
        ids: tokens, int64 [batch, sequence], both sizes known.
        config: the sizes.

    Returns:
        float32 [batch * sequence, vocabulary].
    """
    words = _weight("bert.embeddings.word_embeddings", [config.vocabulary, config.hidden])
    x = tensor.reshape(_embeddings(ids, words, config), [math.prod(ids.shape), config.hidden])
    for index in range(config.layers):
        x = _encoder_layer(x, ids.shape, config, f"bert.encoder.layer.{index}")
    head = "cls.predictions"
    x = functional.gelu(_linear(x, config.hidden, f"{head}.transform.dense"))
    x = _layer_norm(x, config, f"{head}.transform.LayerNorm")
    bias = static.nn.create_parameter([config.vocabulary], name=f"{head}.bias", is_bias=True)
    return tensor.matmul(x, words, transpose_y=True) + bias


def _embeddings(ids: static.Variable, words: static.Variable, config: BertConfig) -> static.Variable:
    """Words, token types, all of them 0, and positions, added and normalised."""
    length = ids.shape[1]
    types = _weight("bert.embeddings.token_type_embeddings", [config.token_types, config.hidden])
    places = _weight("bert.embeddings.position_embeddings", [config.positions, config.hidden])
    x = functional.embedding(ids, words)
    x = x + functional.embedding(tensor.zeros([1, length], "int64"), types)
    x = x + functional.embedding(tensor.arange(0, length, dtype="int64"), places)
    return _layer_norm(x, config, "bert.embeddings.LayerNorm")


def _encoder_layer(x: static.Variable, tokens: tuple[int, ...], config: BertConfig, name: str) -> static.Variable:
    heads = [*tokens, config.heads, config.hidden // config.heads]
    query, key, value = (
        tensor.reshape(_linear(x, config.hidden, f"{name}.attention.self.{part}"), heads)
        for part in ("query", "key", "value")
    )
    seen = tensor.reshape(functional.scaled_dot_product_attention(query, key, value), x.shape)
    x = x + _linear(seen, config.hidden, f"{name}.attention.output.dense")
    x = _layer_norm(x, config, f"{name}.attention.output.LayerNorm")
    inner = functional.gelu(_linear(x, config.intermediate, f"{name}.intermediate.dense"))
    return _layer_norm(x + _linear(inner, config.hidden, f"{name}.output.dense"), config, f"{name}.output.LayerNorm")


def _weight(name: str, shape: list[int]) -> static.Variable:
    return static.nn.create_parameter(shape, name=f"{name}.weight", default_initializer=Normal(0.0, SPREAD))


def _linear(x: static.Variable, size: int, name: str) -> static.Variable:
    weight = ParamAttr(name=f"{name}.weight", initializer=Normal(0.0, SPREAD))
    return static.nn.fc(x, size, weight_attr=weight, bias_attr=f"{name}.bias")


def _layer_norm(x: static.Variable, config: BertConfig, name: str) -> static.Variable:
    return static.nn.layer_norm(
        x,
        begin_norm_axis=x.ndim - 1,
        epsilon=config.epsilon,
        param_attr=f"{name}.weight",
        bias_attr=f"{name}.bias",
    )
