"""Every test draws the same numbers, whichever tests ran before it in the same process."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _same_numbers(request):
    if (random := getattr(request.module, "RANDOM", None)) is not None:
        random.bit_generator.state = np.random.default_rng(0).bit_generator.state
