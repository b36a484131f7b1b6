#!/usr/bin/env python3
"""Train a character language model, an LSTM, on this project's own pages, in float32 or mixed precision.

    python examples/lstm_language_model.py --level O2 --plot loss.png

It prints the loss in nats a character, and a line that the trained model writes.
"""

from __future__ import annotations

import numpy as np

from amp_transpiler import paddle
from amp_transpiler.paddle import nn
from common import Options, main, new_programs, options, started, train, wrapped
from texts import CHARACTERS, PAGES, Text, words

LENGTH, BATCH, HIDDEN = 48, 16, 128


class LanguageModel(nn.Layer):
    """An embedding, an LSTM, and a linear layer over the characters."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, HIDDEN)
        self.out = nn.Linear(HIDDEN, characters)

    def forward(self, text: paddle.static.Variable) -> paddle.static.Variable:
        """Return scores [batch, length, characters] of text [batch, length]."""
        scores: paddle.static.Variable = self.out(self.lstm(self.embedding(text))[0])
        return scores


def example(chosen: Options | None = None) -> list[float]:
    """Train; return the loss of every step."""
    chosen = options(__doc__, 200) if chosen is None else chosen
    text = Text(PAGES)
    program, startup = new_programs(chosen)
    with paddle.static.scope_guard(paddle.static.Scope()), paddle.static.program_guard(program, startup):
        characters = paddle.static.data("text", [None, LENGTH], "int64")
        wanted = paddle.static.data("next", [None, LENGTH], "int64")
        scores = LanguageModel(len(CHARACTERS))(characters)
        loss = nn.functional.cross_entropy(scores, paddle.unsqueeze(wanted, 2))
        reading = program.clone(for_test=True)
        clip = nn.ClipGradByGlobalNorm(1.0)
        optimizer = wrapped(paddle.optimizer.Adam(3e-3, grad_clip=clip, multi_precision=True), chosen)
        optimizer.minimize(loss)
        exe = started((startup, optimizer))
        losses = train(exe, program, optimizer, loss, text.batches(BATCH, LENGTH, chosen.seed), chosen)
        if hasattr(optimizer, "amp_init"):  # the test program becomes low, too
            optimizer.amp_init(exe.place, test_program=reading)
        written = text.numbers[:LENGTH]
        for _ in range(40):
            (following,) = exe.run(reading, feed={"text": written[None, -LENGTH:]}, fetch_list=[scores])
            written = np.append(written, following[0, -1].argmax())
    print(f"after {words(written[:LENGTH])!r} it writes {words(written[LENGTH:])!r}")
    return losses


if __name__ == "__main__":
    raise SystemExit(main(example))
