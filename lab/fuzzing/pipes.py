"""Messages between the fuzzer, its worker and its judge."""

from __future__ import annotations

import os
from typing import IO


def private_stdout() -> IO[str]:
    """Keep the pipe to the parent for us: what foreign code prints goes to stderr."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe
