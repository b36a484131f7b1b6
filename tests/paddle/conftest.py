"""Fresh programs, names and scope, for the tests that ask for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from amp_transpiler.paddle import static
from amp_transpiler.paddle.utils import unique_name


@pytest.fixture
def fresh_programs() -> Iterator[None]:
    """Build in programs, names and a scope of the test's own."""
    with (
        static.program_guard(static.Program(), static.Program()),
        unique_name.guard(),
        static.scope_guard(static.Scope()),
    ):
        yield
