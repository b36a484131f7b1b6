#!/usr/bin/env python3
"""Train a recogniser of rows of digits, convolutions and a bidirectional LSTM, in float32 or mixed precision.

    python examples/ocr_lstm.py --level O1 --dtype bfloat16 --plot loss.png

Rows are made of scikit-learn's digits, with a little noise. It prints the loss, and the share of digits and of whole
rows that the trained network reads rightly in rows that it has not seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from amp_transpiler import paddle
from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.paddle import nn
from common import Options, main, new_programs, options, started, train, wrapped

DIGITS, SIDE, BATCH, HELD_BACK, HIDDEN = 6, 8, 16, 360, 48
Arrays = tuple[np.ndarray, np.ndarray]


def digits() -> tuple[Arrays, Arrays]:
    """Return images, float32 [n, 8, 8] from 0 to 1, and what they show, to train with and held back."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise EnvironmentProblem("the digits need scikit-learn: pip install 'amp-transpiler[examples]'") from error
    data = load_digits()
    images, shown = np.asarray(data.images / 16, np.float32), np.asarray(data.target, np.int64)
    return (images[HELD_BACK:], shown[HELD_BACK:]), (images[:HELD_BACK], shown[:HELD_BACK])


def rows(known: Arrays, seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows of six digits as images [16, 1, 8, 48], and what they show [16, 6]."""
    images, shown = known
    rng = np.random.default_rng(seed)
    while True:
        chosen = rng.integers(0, len(images), [BATCH, DIGITS])
        row = images[chosen].transpose(0, 2, 1, 3).reshape(BATCH, 1, SIDE, DIGITS * SIDE)
        noisy = row + rng.normal(0, 0.1, row.shape)
        yield {"image": noisy.astype(np.float32), "shown": shown[chosen]}


class Recogniser(nn.Layer):
    """Convolutions over the image, an LSTM over its columns in both directions, and scores for each digit."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2D(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2, 2))
        self.read = nn.LSTM(16 * SIDE // 2, HIDDEN, direction="bidirect")
        self.name = nn.Linear(2 * HIDDEN, 10)

    def forward(self, image: paddle.static.Variable) -> paddle.static.Variable:
        """Return scores [batch, digits, 10] of images [batch, 1, 8, 8 x digits]."""
        seen = self.look(image)  # [batch, 16, 4, 24]
        columns = paddle.reshape(paddle.transpose(seen, [0, 3, 1, 2]), [0, DIGITS * SIDE // 2, 16 * SIDE // 2])
        halves = paddle.reshape(self.read(columns)[0], [0, DIGITS, SIDE // 2, 2 * HIDDEN])
        scores: paddle.static.Variable = self.name(paddle.mean(halves, axis=2))
        return scores


def example(chosen: Options | None = None) -> list[float]:
    """Train; return the loss of every step."""
    chosen = options(__doc__, 200) if chosen is None else chosen
    known, held = digits()
    program, startup = new_programs(chosen)
    with paddle.static.scope_guard(paddle.static.Scope()), paddle.static.program_guard(program, startup):
        image = paddle.static.data("image", [None, 1, SIDE, DIGITS * SIDE], "float32")
        shown = paddle.static.data("shown", [None, DIGITS], "int64")
        scores = Recogniser()(image)
        loss = nn.functional.cross_entropy(scores, paddle.unsqueeze(shown, 2))
        reading = program.clone(for_test=True)
        optimizer = wrapped(paddle.optimizer.Adam(3e-3, multi_precision=True), chosen)
        optimizer.minimize(loss)
        exe = started((startup, optimizer))
        losses = train(exe, program, optimizer, loss, rows(known, chosen.seed), chosen)
        if hasattr(optimizer, "amp_init"):  # the test program becomes low, too
            optimizer.amp_init(exe.place, test_program=reading)
        unseen = [next(rows(held, seed)) for seed in range(8)]
        are_right = [
            exe.run(reading, feed=batch, fetch_list=[scores])[0].argmax(2) == batch["shown"] for batch in unseen
        ]
    right = np.concatenate(are_right)
    print(f"{right.mean():.1%} of unseen digits and {right.all(1).mean():.1%} of whole rows are read rightly")
    return losses


if __name__ == "__main__":
    raise SystemExit(main(example))
