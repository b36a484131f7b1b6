"""Fresh programs, names and scope for each test of the building interface."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from amp_transpiler.paddle.framework.programs import data, default_main_program, default_startup_program
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.program.program import Variable
from amp_transpiler.runtime.places import CPUPlace


@pytest.fixture(autouse=True)
def _fresh(fresh_programs: None) -> None:
    """Every test here builds in programs of its own."""


@pytest.fixture
def feed_in() -> Callable[[str, np.ndarray], Variable]:
    """Make an input in the element type and shape of an array, its batch left free."""

    def make(name: str, array: np.ndarray) -> Variable:
        return data(name, [None, *array.shape[1:]], array.dtype)

    return make


@pytest.fixture
def run() -> Callable[..., list[np.ndarray]]:
    """Run the startup program once and then the main one."""

    def compute(fetch: list[Variable], **feeds: np.ndarray) -> list[np.ndarray]:
        executor = Executor(CPUPlace())
        executor.run(default_startup_program())
        return executor.run(default_main_program(), feeds, fetch)

    return compute
