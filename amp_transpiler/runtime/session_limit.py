"""How many sessions an executor keeps, which are compiled without sizes, and what it says where shapes take turns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.memory import available_memory

__all__ = ["OWN_SHAPES", "SessionLimit", "share_sizes"]

logger = logging.getLogger(__name__)

OWN_SHAPES = 8  # shapes of a step that get a session each; sessions beyond as many are closed where memory is short
_MOST = 256
_LEFT = 0.5  # the part of the memory that was available at first which sessions leave

Shapes = Mapping[str, tuple[int, ...]]


class SessionLimit:
    """Says when a session is closed, and warns of steps that are compiled again and again.

    Args:
        most: how many sessions are kept. None: as long as half of the memory that was available at first still is, 8
            in any case, and never more than 256.
        memory: says how many bytes are available.

    Raises:
        OptionError: `most` is below 1.
    """

    def __init__(self, most: int | None, memory: Callable[[], int | None] = available_memory) -> None:
        if most is not None and most < 1:
            raise OptionError(f"max_sessions must be 1 or more, got {most}")
        self.most = most
        self._memory = memory
        self._at_first: int | None = None
        self._closed: dict[Any, set[Any]] = {}  # by program
        self._seconds: dict[Any, list[float]] = {}  # likewise, of each compile
        self._warned: set[Any] = set()

    def is_over(self, count: int) -> bool:
        """Whether one of `count` sessions is to be closed."""
        if self.most is not None:
            return count > self.most
        available = self._memory()
        if self._at_first is None:
            self._at_first = available
        if count <= OWN_SHAPES or available is None or self._at_first is None:
            return count > _MOST
        return count > _MOST or available < _LEFT * self._at_first

    def close(self, key: tuple[Any, ...]) -> None:
        """Note that a session is closed for another; the key begins with its program."""
        self._closed.setdefault(key[0], set()).add(key)

    def forget(self, program: int) -> None:
        """Drop what is known of a program, whose sessions are gone."""
        for known in (self._closed, self._seconds):
            known.pop(program, None)
        self._warned.discard(program)

    @contextmanager
    def compiling(self, key: tuple[Any, ...], program: Program, shapes: Shapes) -> Iterator[None]:
        """Take the time of a compile, and warn once of a program that compiles again what was closed."""
        began = time.perf_counter()
        yield
        spent = self._seconds.setdefault(key[0], [])
        spent.append(time.perf_counter() - began)
        again = key in self._closed.get(key[0], ())
        if again and key[0] not in self._warned:
            self._warned.add(key[0])
            limit = f"max_sessions={self.most}" if self.most is not None else "what memory allows"
            logger.warning(
                "%r is compiled again for %s: more shapes take turns than sessions are kept (%s). A compile takes %.2f "
                "s here, so steps are slow: give Executor a larger max_sessions, or feed fewer shapes, padded",
                *(program, _shown(shapes), limit, sum(spent) / len(spent)),
            )

    def tell_unshared(self, program: Program, shapes: Shapes, why: Exception) -> None:
        """Warn that every new shape of a program is compiled by itself, since a compile without sizes failed."""
        spent = self._seconds.get(id(program), [0.0])
        logger.warning(
            "%r is fed a shape that is new again (%s), after %d others. Each is compiled by itself, in %.2f s, since "
            "the step needs the sizes (%s): feed fewer shapes, padded",
            *(program, _shown(shapes), OWN_SHAPES, sum(spent) / len(spent)),
            str(why).splitlines()[0][:200],
        )


def share_sizes(program: Program, shapes: Shapes) -> bool:
    """Whether shapes fit what inputs declare, so that a step that leaves these sizes open is the same step.

    Inputs that are fed different sizes of one dimension, and misfits, are left to the compile for the shapes.
    """
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        value = program.find(name)
        if value is None or value.shape is None or len(value.shape) != len(shape):
            return False
        for declared, size in zip(value.shape, shape, strict=True):
            label = declared.value if isinstance(declared, ir.SymbolicDim) else None
            if isinstance(declared, int) and declared != size:
                return False
            if label is not None and sizes.setdefault(label, size) != size:
                return False
    return True


def _shown(shapes: Shapes) -> str:
    return first_few([f"'{name}' {list(shape)}" for name, shape in shapes.items()], 4)
