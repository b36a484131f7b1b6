"""Offers attention and transformers as layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.building import builder_of, wrap
from amp_transpiler.paddle.framework.programs import default_main_program
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.nn.layer.base import Layer
from amp_transpiler.paddle.nn.layer.common import Dropout, Linear
from amp_transpiler.paddle.nn.layer.container import LayerList
from amp_transpiler.paddle.nn.layer.function_layer import find_function
from amp_transpiler.paddle.nn.layer.norm import LayerNorm
from amp_transpiler.paddle.param_attr import Attr
from amp_transpiler.program.program import Variable

__all__ = [
    "MultiHeadAttention",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

Mask = Variable | None


class MultiHeadAttention(Layer):
    """Attends with several heads, each on a part of the features.

    Args:
        embed_dim: features of the query and of the result.
        num_heads: the number of heads; divides `embed_dim`.
        dropout: the probability that a share is dropped in training.
        kdim: features of the key; as the query's unless given.
        vdim: features of the value; as the query's unless given.
        need_weights: whether the shares are returned too.
        weight_attr: of the four weights.
        bias_attr: of the four biases; False for none.

    Raises:
        OptionError: the heads do not divide the features.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        kdim: int | None = None,
        vdim: int | None = None,
        need_weights: bool = False,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise OptionError(f"MultiHeadAttention: {embed_dim} features cannot be split into {num_heads} heads")
        self._heads, self._dropout, self._shown = num_heads, dropout, need_weights
        self.q_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)
        self.k_proj = Linear(kdim or embed_dim, embed_dim, weight_attr, bias_attr)
        self.v_proj = Linear(vdim or embed_dim, embed_dim, weight_attr, bias_attr)
        self.out_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)

    def forward(
        self,
        query: Variable,
        key: Variable | None = None,
        value: Variable | None = None,
        attn_mask: Mask = None,
        cache: Any = None,
    ) -> Any:
        """Attend.

        Args:
            query: [batch, length, features].
            key: [batch, length of the key, features]; the query unless given.
            value: as the key; the key unless given.
            attn_mask: what may be attended to (bool, or whole numbers other than 0), or floats that are added to the
                scores; in a shape that can be broadcast to [batch, heads, length, length of the key].
            cache: must be None.

        Returns:
            [batch, length, features]; with `need_weights` also the shares, [batch, heads, length, length of the key].

        Raises:
            OptionError: a cache is given.
        """
        if cache is not None:
            raise OptionError("MultiHeadAttention: a cache needs eager mode: feed what was computed before instead")
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self._split(self.q_proj(query)), self._split(self.k_proj(key)), self._split(self.v_proj(value))
        mask = None if attn_mask is None else _as_mask(attn_mask)
        if not self._shown:
            mixed = functional.scaled_dot_product_attention(q, k, v, mask, self._dropout, training=self.training)
            return self.out_proj(_joined(mixed))
        shares = self._shares(q, k, mask)
        b = builder_of(shares)
        mixed = wrap(q, b.transpose(b.matmul(shares.value, b.transpose(v.value, [0, 2, 1, 3])), [0, 2, 1, 3]))
        return self.out_proj(_joined(mixed)), shares

    def _split(self, x: Variable) -> Variable:
        """Return [batch, length, heads, features of a head]."""
        size = x.shape[2] // self._heads
        return wrap(x, builder_of(x).reshape(x.value, [0, 0, self._heads, size]))

    def _shares(self, q: Variable, k: Variable, mask: Mask) -> Variable:
        b = builder_of(q)
        query = b.mul(b.transpose(q.value, [0, 2, 1, 3]), 1.0 / math.sqrt(q.shape[3]))
        scores = b.matmul(query, b.transpose(k.value, [0, 2, 3, 1]))
        if mask is not None and mask.value.dtype == ir.DataType.BOOL:
            scores = b.where(mask.value, scores, -math.inf)
        elif mask is not None:
            scores = b.add(scores, mask.value)
        shares = functional.softmax(wrap(q, scores))
        return functional.dropout(shares, self._dropout, training=self.training)


def _as_mask(mask: Variable) -> Variable:
    """Return whole numbers as truth values, and anything else as it is."""
    if mask.value.dtype in (ir.DataType.INT32, ir.DataType.INT64):
        return wrap(mask, builder_of(mask).cast(mask.value, ir.DataType.BOOL))
    return mask


def _joined(x: Variable) -> Variable:
    """Return [batch, length, heads, size] as [batch, length, heads * size]."""
    return wrap(x, builder_of(x).reshape(x.value, [0, 0, x.shape[2] * x.shape[3]]))


def _attrs(attributes: Any, count: int) -> list[Any]:
    """Return one attribute for each part of a layer, given as a list or as one for all."""
    if not isinstance(attributes, (list, tuple)):
        return [attributes] * count
    if len(attributes) == 1:
        return list(attributes) * count
    if len(attributes) != count:
        raise OptionError(f"a list of attributes must have 1 or {count} entries, got {len(attributes)}")
    return list(attributes)


class _Block(Layer):
    """Holds what encoder and decoder layers share: normalisation, dropout and the feed-forward part.

    Args:
        d_model: features.
        nhead: heads.
        dim_feedforward: features inside the feed-forward part.
        dropout: probability of dropout behind each part.
        activation: `relu`, `gelu`, ...
        attn_dropout: probability of dropout of shares; as `dropout` unless given.
        act_dropout: probability of dropout behind the activation; as `dropout` unless given.
        normalize_before: normalise before each part, instead of behind it.
        weight_attr: of the weights: one for all, or one for each part.
        bias_attr: of the biases, likewise.
        layer_norm_eps: added to variances.
    """

    attentions: tuple[str, ...] = ()

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        layer_norm_eps: float = 1e-05,
    ) -> None:
        super().__init__()
        self._config = (
            (d_model, nhead, dim_feedforward, dropout, activation, attn_dropout, act_dropout),
            (normalize_before, weight_attr, bias_attr, layer_norm_eps),
        )
        self._first, self._activation = normalize_before, find_function(activation)
        count = len(self.attentions) + 1
        weights, biases = _attrs(weight_attr, count), _attrs(bias_attr, count)
        drop = dropout if attn_dropout is None else attn_dropout
        for name, weight, bias in zip(self.attentions, weights, biases, strict=False):
            setattr(self, name, MultiHeadAttention(d_model, nhead, drop, weight_attr=weight, bias_attr=bias))
        self.linear1 = Linear(d_model, dim_feedforward, weights[-1], biases[-1])
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weights[-1], biases[-1])
        for number in range(1, count + 1):
            setattr(self, f"norm{number}", LayerNorm(d_model, layer_norm_eps))
            setattr(self, f"dropout{number}", Dropout(dropout))

    def _fresh(self) -> Any:
        """Return a layer of the same settings, with separate parameters."""
        return type(self)(*self._config[0], *self._config[1])

    def _part(self, number: int, x: Variable, compute: Any) -> Variable:
        """Return `x` plus what a part computes of it, normalised before or behind."""
        norm, drop = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        changed = drop(compute(norm(x) if self._first else x))
        result: Variable = x + changed
        return result if self._first else norm(result)

    def _feed_forward(self, x: Variable) -> Variable:
        result: Variable = self.linear2(self.dropout(self._activation(self.linear1(x))))
        return result


class TransformerEncoderLayer(_Block):
    """Self-attention and a feed-forward part. The arguments are described at its base."""

    attentions = ("self_attn",)

    def forward(self, src: Variable, src_mask: Mask = None, cache: Any = None) -> Variable:
        """Return [batch, length, features] of the same."""
        x = self._part(1, src, lambda y: self.self_attn(y, y, y, src_mask, cache))
        return self._part(2, x, self._feed_forward)


class TransformerDecoderLayer(_Block):
    """Self-attention, attention to the encoder's result, and a feed-forward part; see its base for the arguments."""

    attentions = ("self_attn", "cross_attn")

    def forward(
        self, tgt: Variable, memory: Variable, tgt_mask: Mask = None, memory_mask: Mask = None, cache: Any = None
    ) -> Variable:
        """Return [batch, length, features] of `tgt`, given the encoder's result."""
        x = self._part(1, tgt, lambda y: self.self_attn(y, y, y, tgt_mask, cache))
        x = self._part(2, x, lambda y: self.cross_attn(y, memory, memory, memory_mask))
        return self._part(3, x, self._feed_forward)


class _Stack(Layer):
    """Calls layers of the same settings one after the other.

    Args:
        layer: the first one.
        num_layers: how many there are.
        norm: a normalisation of the result.
    """

    def __init__(self, layer: Any, num_layers: int, norm: Layer | None = None) -> None:
        super().__init__()
        self.layers = LayerList([layer, *(layer._fresh() for _ in range(num_layers - 1))])  # noqa: SLF001  # its own kind
        self.norm = norm

    def _normalised(self, x: Variable) -> Variable:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Calls encoder layers one after the other.

    Args:
        encoder_layer: the first one; the others have its settings.
        num_layers: how many there are.
        norm: a normalisation of the result.
    """

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Layer | None = None) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(self, src: Variable, src_mask: Mask = None, cache: Any = None) -> Variable:
        """Return [batch, length, features] of the same."""
        for layer in self.layers:
            src = layer(src, src_mask, cache)
        return self._normalised(src)


class TransformerDecoder(_Stack):
    """Calls decoder layers one after the other.

    Args:
        decoder_layer: the first one; the others have its settings.
        num_layers: how many there are.
        norm: a normalisation of the result.
    """

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Layer | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self, tgt: Variable, memory: Variable, tgt_mask: Mask = None, memory_mask: Mask = None, cache: Any = None
    ) -> Variable:
        """Return [batch, length, features] of `tgt`, given the encoder's result."""
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, cache)
        return self._normalised(tgt)


class Transformer(Layer):
    """An encoder and a decoder.

    Args:
        d_model: features.
        nhead: heads.
        num_encoder_layers: layers of the encoder.
        num_decoder_layers: layers of the decoder.
        dim_feedforward: features inside the feed-forward parts.
        dropout: probability of dropout.
        activation: `relu`, `gelu`, ...
        attn_dropout: of shares; as `dropout` unless given.
        act_dropout: behind the activation; as `dropout` unless given.
        normalize_before: normalise before each part, and the results of both.
        weight_attr: of the weights.
        bias_attr: of the biases.
        custom_encoder: an encoder instead.
        custom_decoder: a decoder instead.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        custom_encoder: Layer | None = None,
        custom_decoder: Layer | None = None,
    ) -> None:
        super().__init__()
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, attn_dropout, act_dropout, normalize_before)
        if isinstance(weight_attr, (list, tuple)) or isinstance(bias_attr, (list, tuple)):
            raise OptionError(
                "Transformer: one weight_attr and one bias_attr for all parts; build the parts for others"
            )
        attributes = (weight_attr, bias_attr)
        if custom_encoder is None:
            first = TransformerEncoderLayer(*sizes, *attributes)
            custom_encoder = TransformerEncoder(first, num_encoder_layers, self._norm(d_model, normalize_before))
        self.encoder = custom_encoder
        if custom_decoder is None:
            other = TransformerDecoderLayer(*sizes, *attributes)
            custom_decoder = TransformerDecoder(other, num_decoder_layers, self._norm(d_model, normalize_before))
        self.decoder = custom_decoder

    @staticmethod
    def _norm(size: int, normalize_before: bool) -> LayerNorm | None:
        return LayerNorm(size) if normalize_before else None

    def forward(
        self,
        src: Variable,
        tgt: Variable,
        src_mask: Mask = None,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
    ) -> Variable:
        """Return [batch, length, features] of `tgt`, given `src`."""
        memory = self.encoder(src, src_mask)
        result: Variable = self.decoder(tgt, memory, tgt_mask, memory_mask)
        return result

    def generate_square_subsequent_mask(self, length: int) -> Variable:
        """Return [length, length]: 0 for this position and those before it, minus infinity for those after it."""
        program = default_main_program()
        mask = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        return Variable(program, str(program.builder().constant(mask).name))


check_arguments(globals(), __all__)
