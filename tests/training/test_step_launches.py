"""Launches and device memory of whole training steps, counted without a GPU; the networks are in `lab/programs`."""

import dataclasses
import functools
import pathlib

import pytest

from tests.counted import Counted

pytestmark = pytest.mark.slow

STEP = pathlib.Path(__file__).resolve().parents[2] / "lab" / "programs" / "counted_step.py"


@dataclasses.dataclass(frozen=True)
class Row:
    """A network in mixed precision.

    Attributes:
        level: its level.
        launches: the most that a step may launch.
        memory: the most that its tensors may take, as a share of float32's.
    """

    level: str
    launches: int
    memory: float


ROWS = {
    "rocm": Row("O1", 255, 0.55),  # statistics of rows in pieces, and biases that leave: 6 ms of kernels, once 12
    "raf": Row("O1", 224, 0.85),
    "resnet18": Row("O2", 1160, 0.6),  # sums by sample and parts of weight gradients: 21 ms of kernels, once 77
    "transformer": Row("O2", 525, 0.7),
}


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """What a step launches, and the most bytes that its tensors take."""
    counted = Counted(tmp_path_factory.mktemp("steps"))

    @functools.cache
    def count(network, level, dtype):
        found = counted.program(STEP, network, level, dtype, exact_memory=True)
        return found["launches"], found["memory"]["in_use_peak"]

    return count


@pytest.mark.parametrize("network", ROWS)
def test_a_step_launches_few_kernels_and_takes_less_memory_than_float32(step, network):
    row = ROWS[network]
    launches, memory = step(network, row.level, "float16")
    _, whole = step(network, "fp32", "float32")
    assert launches <= row.launches
    assert memory <= row.memory * whole


@pytest.mark.parametrize("network", ["raf", "transformer"])
def test_bfloat16_takes_no_more_launches_than_float16(step, network):
    level = ROWS[network].level
    assert step(network, level, "bfloat16")[0] <= step(network, level, "float16")[0]
