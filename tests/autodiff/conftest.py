"""Each test draws the same random numbers, whichever tests ran before it."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _same_numbers(request):
    if (random := getattr(request.module, "RANDOM", None)) is not None:
        random.bit_generator.state = np.random.default_rng(0).bit_generator.state
