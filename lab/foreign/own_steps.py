"""Training steps that `paddle.static.save_training_program` writes: `transpile` reads them as any other file."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import load_file

from amp_transpiler import optimizer as optimizers, static
from amp_transpiler.paddle.nn import functional
from foreign.writer import Feed, ForeignStep, Role, StateRow

__all__ = ["OWN", "saved"]

CLASSES, ROWS, SIZE = 5, 8, 8

# Name -> how the optimizer is decorated.
OWN: dict[str, dict[str, Any] | None] = {
    "fp32": None,
    "O1": {"level": "O1", "dtype": "float16"},
    "O2": {"level": "O2", "dtype": "float16"},
    "O2_bfloat16": {"level": "O2", "dtype": "bfloat16"},
}

_MEANS = np.random.default_rng(11).normal(0, 1, (CLASSES, 3, SIZE, SIZE))


def _batch(generator: np.random.Generator) -> Feed:
    labels = generator.integers(0, CLASSES, (ROWS, 1))
    x = _MEANS[labels[:, 0]] + 0.5 * generator.normal(0, 1, (ROWS, 3, SIZE, SIZE))
    return {"x": x.astype(np.float32), "label": labels.astype(np.int64)}


def saved(name: str, folder: pathlib.Path, rate: float = 1e-3) -> ForeignStep:
    """Build a small convolutional network with batch normalisation and Adam, and save its training step.

    Args:
        name: a name of `OWN`.
        folder: where the files go.
        rate: the learning rate.
    """
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    main.random_seed = startup.random_seed = 3
    decoration = OWN[name]
    with static.program_guard(main, startup), static.scope_guard(scope):
        x = static.data("x", [None, 3, SIZE, SIZE])
        label = static.data("label", [None, 1], "int64")
        h = functional.relu(static.nn.batch_norm(static.nn.conv2d(x, 6, 3, padding=1)))
        h = functional.max_pool2d(h, kernel_size=2, stride=2)
        loss = functional.cross_entropy(static.nn.fc(h, CLASSES), label, reduction="mean")
        optimizer: Any = optimizers.Adam(learning_rate=rate)
        if decoration is not None:
            optimizer = static.amp.decorate(optimizer, **decoration)
        optimizer.minimize(loss)
        executor = static.Executor()
        executor.run(startup)
        if decoration is not None:
            optimizer.amp_init(executor.place, scope=scope)
        kinds = {key: row.kind for key, row in main.persistables.items()}
        static.save_training_program(main, folder / f"{name}.onnx", fetch_list=[loss])
    model = onnx.load(folder / f"{name}.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    start = load_file(folder / f"{name}.state.safetensors")
    updates = json.loads(metadata["amp_transpiler.updates"])
    rows = tuple(StateRow(key, output, _role(kinds[key], start[key]), start[key]) for key, output in updates.items())
    (fetched,) = json.loads(metadata["amp_transpiler.fetches"]).values()
    fixed = {key: value for key, value in start.items() if key not in updates}  # the learning rate

    def batch(generator: np.random.Generator) -> Feed:
        return {**_batch(generator), **fixed}

    return ForeignStep(model, rows, batch, fetched)


def _role(kind: str, start: np.ndarray) -> Role:
    if kind == "parameter":
        return "parameter"
    if kind == "statistic":
        return "statistic"
    return "moment" if start.size > 1 else "counter"
