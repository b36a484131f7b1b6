#!/usr/bin/env python3
"""Train a generative adversarial network on scikit-learn's digits, in float32 or mixed precision.

    python examples/gan.py --level O1 --plot loss.png

Two programs share the parameters of generator and discriminator through the scope, and each trains one of them. It
prints the generator's loss, and a digit that the trained generator draws.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from amp_transpiler import paddle
from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.paddle import nn
from common import Options, main, new_programs, options, started, train, wrapped

NOISE, PIXELS, BATCH = 16, 64, 32


def digits() -> np.ndarray:
    """Return images, float32 [n, 64] from -1 to 1."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise EnvironmentProblem("the digits need scikit-learn: pip install 'amp-transpiler[examples]'") from error
    return np.asarray(load_digits().data / 8 - 1, np.float32)


class Generator(nn.Sequential):
    """Makes images [batch, 64] from noise [batch, 16]."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, PIXELS), nn.Tanh())


class Discriminator(nn.Sequential):
    """Scores images: positive for real ones."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(PIXELS, 64), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(64, 1))


class Game:
    """One of the two programs: both networks, and a loss that trains one of them."""

    def __init__(self, chosen: Options, *, of_generator: bool) -> None:
        self.program, self.startup = new_programs(chosen)
        # With names that begin anew, both programs have the same parameters.
        with paddle.utils.unique_name.guard(), paddle.static.program_guard(self.program, self.startup):
            noise = paddle.static.data("noise", [None, NOISE], "float32")
            generator, discriminator = Generator(), Discriminator()
            images = generator(noise)
            judged = discriminator(images)
            self.images = images
            if of_generator:
                self.loss = _judged_as(judged, 1.0)
                parameters = generator.parameters()
            else:
                real = paddle.static.data("real", [None, PIXELS], "float32")
                self.loss = _judged_as(discriminator(real), 0.9) + _judged_as(judged, 0.0)
                parameters = discriminator.parameters()
            adam = paddle.optimizer.Adam(2e-3, beta1=0.5, parameters=parameters, multi_precision=True)
            self.optimizer = wrapped(adam, chosen)
            self.optimizer.minimize(self.loss)


def _judged_as(scores: paddle.static.Variable, wanted: float) -> paddle.static.Variable:
    """Return how far scores are from a probability that is wanted."""
    return nn.functional.binary_cross_entropy_with_logits(scores, paddle.full_like(scores, wanted))


def feeds(chosen: Options, exe: paddle.static.Executor, judge: Game) -> Iterator[dict[str, np.ndarray]]:
    """Yield noise for the generator, each time after a turn of the discriminator."""
    rng, images = np.random.default_rng(chosen.seed), digits()
    while True:
        noise = rng.standard_normal([2, BATCH, NOISE], np.float32)
        real = images[rng.integers(0, len(images), BATCH)]
        exe.run(judge.program, feed={"noise": noise[0], "real": real})
        yield {"noise": noise[1]}


def drawn(image: np.ndarray) -> str:
    """Return an image as text."""
    shades = " .:*#@"
    levels = np.clip((image.reshape(8, 8) + 1) / 2 * len(shades), 0, len(shades) - 1).astype(int)
    return "\n".join("".join(2 * shades[level] for level in row) for row in levels)


def example(chosen: Options | None = None) -> list[float]:
    """Train; return the loss of the generator in every step."""
    chosen = options(__doc__, 600) if chosen is None else chosen
    with paddle.static.scope_guard(paddle.static.Scope()):
        judge, maker = Game(chosen, of_generator=False), Game(chosen, of_generator=True)
        exe = started((judge.startup, judge.optimizer), (maker.startup, maker.optimizer))
        losses = train(exe, maker.program, maker.optimizer, maker.loss, feeds(chosen, exe, judge), chosen)
        noise = np.random.default_rng(0).standard_normal([1, NOISE], np.float32)
        (image,) = exe.run(maker.program.clone(for_test=True), feed={"noise": noise}, fetch_list=[maker.images])
    print(drawn(np.asarray(image, np.float32)))
    return losses


if __name__ == "__main__":
    raise SystemExit(main(example))
