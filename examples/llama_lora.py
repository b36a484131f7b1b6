#!/usr/bin/env python3
"""Fine-tune a small Llama by low-rank adapters, in float32 or mixed precision.

    python examples/llama_lora.py --level O2 --plot loss.png

A small Llama is trained on this project's pages first and written as an ONNX model. That model is then imported,
frozen, given adapters, and tuned to read Python. It prints the loss of both parts, and the size of model and adapters.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile

import numpy as np
import onnx

from amp_transpiler import paddle
from amp_transpiler.paddle import nn
from common import Options, main, new_programs, options, started, train, wrapped
from texts import CHARACTERS, PAGES, SOURCE, Text

LENGTH, BATCH, HIDDEN, HEADS, LAYERS, RANK = 48, 8, 64, 4, 2, 4
Variable = paddle.static.Variable


class RMSNorm(nn.Layer):
    """Scales rows to a root mean square of 1, then by weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([HIDDEN], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x: Variable) -> Variable:
        """Return [batch, length, hidden] as given."""
        mean: Variable = paddle.mean(paddle.square(x), axis=-1, keepdim=True)
        return x * paddle.rsqrt(mean + 1e-5) * self.weight


def rotated(x: Variable) -> Variable:
    """Turn the pairs of [batch, length, heads, size] by angles that grow with the position."""
    size = HIDDEN // HEADS
    angles = np.outer(np.arange(LENGTH), 10_000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    cosines, sines = (np.tile(wave(angles), 2)[None, :, None] for wave in (np.cos, np.sin))
    first, second = paddle.split(x, 2, axis=-1)
    turned: Variable = x * cosines + paddle.concat([-second, first], axis=-1) * sines
    return turned


class Block(nn.Layer):
    """Attention with rotated positions, and a gated layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = RMSNorm(), RMSNorm()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (_linear(HIDDEN, HIDDEN) for _ in range(4))
        self.gate_proj, self.up_proj = _linear(HIDDEN, 2 * HIDDEN), _linear(HIDDEN, 2 * HIDDEN)
        self.down_proj = _linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: Variable) -> Variable:
        """Return [batch, length, hidden] as given."""
        normed = self.before(x)
        heads = [0, LENGTH, HEADS, HIDDEN // HEADS]
        query, key, value = (paddle.reshape(p(normed), heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        seen = nn.functional.scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        x = x + self.o_proj(paddle.reshape(seen, [0, LENGTH, HIDDEN]))
        normed = self.between(x)
        gated: Variable = nn.functional.silu(self.gate_proj(normed)) * self.up_proj(normed)
        wide: Variable = self.down_proj(gated)
        return x + wide


def _linear(size: int, out: int) -> nn.Linear:
    return nn.Linear(size, out, bias_attr=False)


class Llama(nn.Layer):
    """An embedding, blocks, a normalisation, and a linear layer over the characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = RMSNorm(), _linear(HIDDEN, len(CHARACTERS))

    def forward(self, text: Variable) -> Variable:
        """Return scores [batch, length, characters] of text [batch, length]."""
        scores: Variable = self.head(self.norm(self.blocks(self.embedding(text))))
        return scores


def loss_of(scores: Variable) -> Variable:
    """Return the mean loss in nats a character, of scores and the input `next`."""
    wanted = paddle.static.data("next", [None, LENGTH], "int64")
    loss: Variable = nn.functional.cross_entropy(scores, paddle.unsqueeze(wanted, 2))
    return loss


def pretrained(chosen: Options) -> onnx.ModelProto:
    """Train a Llama in float32 on the pages, and return it as an ONNX model."""
    quick = dataclasses.replace(chosen, level="O0", plot=None)
    program, startup = new_programs(quick)
    with paddle.static.program_guard(program, startup):
        scores = Llama()(paddle.static.data("text", [None, LENGTH], "int64"))
        model = program.clone(for_test=True)
        loss = loss_of(scores)
        optimizer = wrapped(paddle.optimizer.AdamW(3e-3), quick)
        optimizer.minimize(loss)
        exe = started((startup, optimizer))
        train(exe, program, optimizer, loss, Text(PAGES).batches(BATCH, LENGTH, chosen.seed), quick)
    model.outputs = [scores.name]
    return model.to_onnx(paddle.static.global_scope())


def example(chosen: Options | None = None) -> list[float]:
    """Train and tune; return the loss of every step of the tuning."""
    chosen = options(__doc__, 120) if chosen is None else chosen
    with paddle.static.scope_guard(paddle.static.Scope()), paddle.utils.unique_name.guard():
        model = pretrained(chosen)
    _, startup = new_programs(chosen)
    with paddle.static.scope_guard(paddle.static.Scope()):
        program = paddle.static.from_onnx(model, startup)
        adapters = paddle.static.add_lora(program, "linear", RANK, alpha=2 * RANK, startup_program=startup)
        with paddle.static.program_guard(program, startup):
            loss = loss_of(program.var(program.outputs[0]))
            optimizer = wrapped(paddle.optimizer.AdamW(5e-3, weight_decay=0.0, multi_precision=True), chosen)
            optimizer.minimize(loss)
        exe = started((startup, optimizer))
        losses = train(exe, program, optimizer, loss, Text(SOURCE).batches(BATCH, LENGTH, chosen.seed), chosen)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "adapters.safetensors"
            paddle.static.save_lora(program, file)
            of_adapters, whole = file.stat().st_size / 1e3, model.ByteSize() / 1e3
        print(f"{len(adapters)} adapters take {of_adapters:.0f} kB, the model {whole:.0f} kB")
    return losses


if __name__ == "__main__":
    raise SystemExit(main(example))
