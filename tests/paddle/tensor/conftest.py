"""Results of all cases of a module, computed once."""

from __future__ import annotations

import pytest

from tests.paddle.tensor.family import compute


@pytest.fixture(scope="module")
def computed(request):
    """Return (free?) -> results of the module's CASES."""
    cache = {}

    def of(free: bool):
        if free not in cache:
            try:
                cache[free] = compute(request.module.CASES, free=free)
            except Exception as error:  # noqa: BLE001  # raised again for every case
                cache[free] = error
        if isinstance(cache[free], Exception):
            raise cache[free]
        return cache[free]

    return of
