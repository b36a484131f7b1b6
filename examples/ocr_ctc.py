#!/usr/bin/env python3
"""Train a recogniser of rows of three to six digits that is not told where each digit is: an LSTM and ctc_loss.

    python examples/ocr_ctc.py --level O2 --dtype bfloat16 --plot loss.png

The rows are those of `ocr_lstm.py`, of different lengths and with gaps. It prints the loss, and the share of unseen
rows that the trained network reads rightly: the best class of each column, repeated ones and blanks left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from amp_transpiler import paddle
from amp_transpiler.paddle import nn
from common import Options, main, new_programs, options, started, train, wrapped
from ocr_lstm import SIDE, Arrays, digits

FEWEST, MOST, BATCH, HIDDEN = 3, 6, 16, 48
WIDTH, COLUMNS = MOST * SIDE, MOST * SIDE // 2
BLANK = 0  # digit d is class d + 1


def rows(known: Arrays, seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows as images [16, 1, 8, 48], their digits as classes [16, 6], and how many there are."""
    images, shown = known
    rng = np.random.default_rng(seed)
    while True:
        image = rng.normal(0, 0.1, [BATCH, 1, SIDE, WIDTH])
        labels, lengths = np.zeros([BATCH, MOST], np.int64), rng.integers(FEWEST, MOST + 1, BATCH)
        for i, count in enumerate(lengths):
            chosen = rng.integers(0, len(images), count)
            starts = np.sort(rng.choice(WIDTH - count * SIDE + 1, count)) + np.arange(count) * SIDE
            for place, digit in zip(starts, chosen, strict=True):
                image[i, 0, :, place : place + SIDE] += images[digit]
            labels[i, :count] = shown[chosen] + 1
        yield {"image": image.astype(np.float32), "labels": labels, "lengths": lengths}


class Recogniser(nn.Layer):
    """Convolutions over the image, an LSTM over its columns in both directions, and scores for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2D(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2, 2))
        self.read = nn.LSTM(24 * SIDE // 2, HIDDEN, direction="bidirect")
        self.name = nn.Linear(2 * HIDDEN, 11)

    def forward(self, image: paddle.static.Variable) -> paddle.static.Variable:
        """Return scores [batch, columns, 11] of images [batch, 1, 8, width]."""
        seen = self.look(image)  # [batch, 24, 4, columns]
        columns = paddle.reshape(paddle.transpose(seen, [0, 3, 1, 2]), [0, COLUMNS, 24 * SIDE // 2])
        scores: paddle.static.Variable = self.name(self.read(columns)[0])
        return scores


def read(scores: np.ndarray) -> list[int]:
    """Return the classes that columns of scores spell."""
    best = scores.argmax(1)
    changed = np.concatenate([[True], best[1:] != best[:-1]])
    return [int(label) for label in best[changed] if label != BLANK]


def example(chosen: Options | None = None) -> list[float]:
    """Train; return the loss of every step."""
    chosen = options(__doc__, 400) if chosen is None else chosen
    known, held = digits()
    program, startup = new_programs(chosen)
    with paddle.static.scope_guard(paddle.static.Scope()), paddle.static.program_guard(program, startup):
        image = paddle.static.data("image", [None, 1, SIDE, WIDTH], "float32")
        labels = paddle.static.data("labels", [None, MOST], "int64")
        lengths = paddle.static.data("lengths", [None], "int64")
        scores = Recogniser()(image)
        loss = nn.functional.ctc_loss(
            paddle.transpose(scores, [1, 0, 2]), labels, paddle.full_like(lengths, COLUMNS), lengths, blank=BLANK
        )
        reading = program.clone(for_test=True)
        optimizer = wrapped(paddle.optimizer.Adam(4e-3, multi_precision=True), chosen)
        optimizer.minimize(loss)
        exe = started((startup, optimizer))
        losses = train(exe, program, optimizer, loss, rows(known, chosen.seed), chosen)
        if hasattr(optimizer, "amp_init"):  # the test program becomes low, too
            optimizer.amp_init(exe.place, test_program=reading)
        right = []
        for seed in range(8):
            batch = next(rows(held, seed))
            score_rows = exe.run(reading, feed={"image": batch["image"]}, fetch_list=[scores])[0].astype(np.float32)
            wanted = [line[:count].tolist() for line, count in zip(batch["labels"], batch["lengths"], strict=True)]
            right += [read(scored) == want for scored, want in zip(score_rows, wanted, strict=True)]
    print(f"{np.mean(right):.1%} of unseen rows are read rightly")
    return losses


if __name__ == "__main__":
    raise SystemExit(main(example))
