"""Small training programs, and their batches, that ranks train together and one process trains alone."""

import contextlib

import numpy as np
from amp_transpiler.nn import functional as F

import amp_transpiler as amp
from amp_transpiler import nn, optimizer as optimizers, static
from amp_transpiler.paddle.utils import unique_name

BATCH = 8
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.Momentum(0.1, grad_clip=nn.ClipGradByGlobalNorm(1.0)),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "lamb": lambda: optimizers.Lamb(0.01),
}


class Net:
    """A training program with its values."""

    def __init__(self, main, startup, loss, optimizer, level):
        self.main, self.startup, self.loss, self.optimizer, self.level = main, startup, loss, optimizer, level
        self.scope = static.Scope()

    def start(self, exe):
        exe.run(self.startup, scope=self.scope)
        if self.level != "fp32":
            self.optimizer.amp_init(amp.CPUPlace(), scope=self.scope)
        return self

    def state(self):
        return {name: self.scope[name] for name in self.main.persistables if name in self.scope}


@contextlib.contextmanager
def building(seed=1):
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = seed
    with unique_name.guard(), static.program_guard(main, startup):
        yield main, startup


def minimized(main, startup, loss, optimizer="adamw", level="fp32", **decorated):
    chosen = OPTIMIZERS[optimizer]()
    if level != "fp32":
        chosen = amp.decorate(chosen, level=level, **decorated)
    chosen.minimize(loss, startup)
    return Net(main, startup, loss, chosen, level)


def perceptron(optimizer="adamw", level="fp32", dropout=0.0, **decorated):
    with building() as (main, startup):
        x = static.data("x", [None, 6])
        label = static.data("label", [None, 1], "int64")
        h = F.relu(static.nn.fc(x, 8))
        h = F.dropout(h, dropout) if dropout else h
        loss = F.cross_entropy(static.nn.fc(F.relu(static.nn.fc(h, 8)), 3), label)
        return minimized(main, startup, loss, optimizer, level, **decorated)


def equal_layers(optimizer="adamw", level="fp32", dropout=0.0, **decorated):
    """Four layers of equal shape, which are updated together."""
    with building() as (main, startup):
        h = static.data("x", [None, 6])
        label = static.data("label", [None, 1], "int64")
        for _ in range(4):
            h = F.tanh(static.nn.fc(h, 6))
        h = F.dropout(h, dropout) if dropout else h
        loss = F.cross_entropy(static.nn.fc(h, 3), label)
        return minimized(main, startup, loss, optimizer, level, **decorated)


def convnet(optimizer="momentum", level="fp32", seed=1, **decorated):
    """Two convolutions with BatchNormalization behind."""
    with building(seed) as (main, startup):
        x = static.data("x", [None, 2, 5, 5])
        label = static.data("label", [None, 1], "int64")
        h = F.relu(static.nn.batch_norm(static.nn.conv2d(x, 4, 3, padding=1)))
        h = F.relu(static.nn.batch_norm(static.nn.conv2d(h, 4, 3)))
        loss = F.cross_entropy(static.nn.fc(h, 3), label)
        return minimized(main, startup, loss, optimizer, level, **decorated)


def batches(net, count, batch=BATCH, seed=5):
    """Yield feeds of a whole batch."""
    random = np.random.default_rng(seed)
    shape = [int(size) for size in net.main.var("x").shape[1:]]
    for _ in range(count):
        yield {
            "x": random.standard_normal((batch, *shape), np.float32),
            "label": random.integers(0, 3, (batch, 1), np.int64),
        }


def share(feed, rank, world):
    """Return the part of a batch that a rank is fed."""
    return {name: np.split(array, world)[rank] for name, array in feed.items()}
