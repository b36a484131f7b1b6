"""Results of all cases of a module, computed once."""

from __future__ import annotations

import pytest

from tests.paddle.tensor.family import compute


@pytest.fixture(scope="module")
def computed(request):
    """Return (free?) -> results of the module's CASES."""
    kept = {}

    def of(free: bool):
        if free not in kept:
            try:
                kept[free] = compute(request.module.CASES, free=free)
            except Exception as error:  # noqa: BLE001  # raised again for every case
                kept[free] = error
        if isinstance(kept[free], Exception):
            raise kept[free]
        return kept[free]

    return of
