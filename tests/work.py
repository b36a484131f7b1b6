"""How much work a piece of code does, for tests that it does little: counted, since time depends on the machine."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator


@dataclasses.dataclass
class Work:
    """The number of calls, of Python functions and of built-in ones, that this thread made."""

    calls: int = 0


@contextlib.contextmanager
def counted_work() -> Iterator[Work]:
    """Count the calls that are made within a `with` block."""
    work = Work()

    def count(_frame: object, event: str, _argument: object) -> None:
        work.calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield work
    finally:
        sys.setprofile(before)
