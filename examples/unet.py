#!/usr/bin/env python3
"""Train a U-Net to find discs in noisy images of two sizes, in float32 or mixed precision.

    python examples/unet.py --level O2 --dtype bfloat16 --plot loss.png

The program has free image sizes: steps of 48 x 48 and of 64 x 32 pixels take turns, with the same parameters. It prints
the loss, and the share of pixels that the trained network judges rightly at each size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from amp_transpiler import paddle
from amp_transpiler.paddle import nn
from common import Options, main, new_programs, options, started, train, wrapped

SIZES = ((48, 48), (64, 32))  # multiples of 4: the network halves them twice
BATCH, FILTERS = 4, 8


def batch(rng: np.random.Generator, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return images [4, 1, height, width] with a disc in each, in noise, and which pixels are in it."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    centres = rng.uniform(8, np.subtract(size, 8), [BATCH, 2])[:, :, None, None]
    radius = rng.uniform(4, 8, [BATCH, 1, 1])
    inside = (rows - centres[:, 0]) ** 2 + (columns - centres[:, 1]) ** 2 < radius**2
    noisy = inside + rng.normal(0, 0.7, inside.shape)
    return {"image": noisy[:, None].astype(np.float32), "mask": inside[:, None].astype(np.float32)}


def batches(seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of each size in turn."""
    rng = np.random.default_rng(seed)
    while True:
        for size in SIZES:
            yield batch(rng, size)


class Block(nn.Sequential):
    """Two convolutions that keep the size, each normalised."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__(
            nn.Conv2D(channels, filters, 3, padding=1, bias_attr=False),
            nn.BatchNorm2D(filters),
            nn.ReLU(),
            nn.Conv2D(filters, filters, 3, padding=1, bias_attr=False),
            nn.BatchNorm2D(filters),
            nn.ReLU(),
        )


class UNet(nn.Layer):
    """Down twice, up twice, with what was seen at each size handed across."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.middle, self.inner = Block(1, FILTERS), Block(FILTERS, 2 * FILTERS), Block(16, 4 * FILTERS)
        self.down = nn.MaxPool2D(2, 2)
        self.up_middle = nn.Conv2DTranspose(4 * FILTERS, 2 * FILTERS, 2, stride=2)
        self.up_outer = nn.Conv2DTranspose(2 * FILTERS, FILTERS, 2, stride=2)
        self.back_middle, self.back_outer = Block(4 * FILTERS, 2 * FILTERS), Block(2 * FILTERS, FILTERS)
        self.head = nn.Conv2D(FILTERS, 1, 1)

    def forward(self, image: paddle.static.Variable) -> paddle.static.Variable:
        """Return a score for each pixel: positive inside of a disc."""
        outer = self.outer(image)
        middle = self.middle(self.down(outer))
        inner = self.inner(self.down(middle))
        middle = self.back_middle(paddle.concat([self.up_middle(inner), middle], axis=1))
        outer = self.back_outer(paddle.concat([self.up_outer(middle), outer], axis=1))
        scores: paddle.static.Variable = self.head(outer)
        return scores


def example(chosen: Options | None = None) -> list[float]:
    """Train; return the loss of every step."""
    chosen = options(__doc__, 60) if chosen is None else chosen
    program, startup = new_programs(chosen)
    with paddle.static.scope_guard(paddle.static.Scope()), paddle.static.program_guard(program, startup):
        image = paddle.static.data("image", [None, 1, None, None], "float32")
        mask = paddle.static.data("mask", [None, 1, None, None], "float32")
        scores = UNet()(image)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, mask)
        judging = program.clone(for_test=True)
        optimizer = wrapped(paddle.optimizer.Momentum(0.1, 0.9, multi_precision=True), chosen)
        optimizer.minimize(loss)
        exe = started((startup, optimizer))
        losses = train(exe, program, optimizer, loss, batches(chosen.seed), chosen)
        if hasattr(optimizer, "amp_init"):  # the test program becomes low, too
            optimizer.amp_init(exe.place, test_program=judging)
        rng = np.random.default_rng(0)
        for size in SIZES:
            held = batch(rng, size)
            (judged,) = exe.run(judging, feed=held, fetch_list=[scores])
            right = np.mean((judged > 0) == (held["mask"] > 0))
            print(f"{size[0]} x {size[1]}: {right:.1%} of the pixels are judged rightly")
    return losses


if __name__ == "__main__":
    raise SystemExit(main(example))
