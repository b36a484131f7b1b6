"""Adds the persistable values that Dropout masks are computed from: a seed and a step number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.framework.random import generator
from amp_transpiler.program.program import Persistable, Program
from amp_transpiler.runtime.lowering import RANDOM_SEED, RANDOM_STEP

__all__ = ["ensure_random_state"]


def ensure_random_state(main: Program, startup: Program) -> None:
    """Add a random seed, and a step number that grows by one with every run, to a program that has none.

    Both are int64 scalars that checkpoints hold too. The startup program derives the seed from the program's
    `random_seed`, its own or that of `amp_transpiler.seed`, and sets the step to zero.

    Args:
        main: the program that draws random numbers.
        startup: the program that computes its initial values.
    """

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if main.random_seed:
            random = generator(main.random_seed, RANDOM_SEED)
        return random.integers(0, 2**63 - 1, shape, np.int64)

    for name, initial in ((RANDOM_SEED, draw), (RANDOM_STEP, 0)):
        persistable = Persistable(name, "state", trainable=False)
        create_persistable(persistable, (), initial, ir.DataType.INT64, main=main, startup=startup)
    if RANDOM_STEP not in main.updates:
        after = main.builder("optimize").add(main.value(RANDOM_STEP), 1)
        main.updates[RANDOM_STEP] = str(after.name)
