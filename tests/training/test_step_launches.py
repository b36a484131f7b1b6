"""Launches and device memory of whole training steps, counted without a GPU; the networks are in `lab/programs`."""

import dataclasses

import pytest

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("network", ROWS)
def test_a_step_launches_few_kernels_and_takes_less_memory_than_float32(counted_step, network):
    row = ROWS[network]
    low = counted_step(network, row.level, "float16")
    wide = counted_step(network, "fp32", "float32")
    assert low["launches"] <= row.launches
    assert low["memory"]["in_use_peak"] <= row.memory * wide["memory"]["in_use_peak"]


@pytest.mark.parametrize("network", ["raf", "transformer"])
def test_bfloat16_takes_no_more_launches_than_float16(counted_step, network):
    level = ROWS[network].level
    launches = {dtype: counted_step(network, level, dtype)["launches"] for dtype in ("bfloat16", "float16")}
    assert launches["bfloat16"] <= launches["float16"]
