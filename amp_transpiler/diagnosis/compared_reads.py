"""Goes back from a value to the nearest values of which something is known."""

from __future__ import annotations

from collections.abc import Container, Iterator

import onnx_ir as ir

from amp_transpiler.graph.walk import reads_of

__all__ = ["compared_reads"]


def compared_reads(value: ir.Value, compared: Container[ir.Value]) -> Iterator[ir.Value]:
    """Yield the nearest values that a result is computed from and that were compared.

    Args:
        value: the result.
        compared: the values that were. Another one stands for those that it is computed from.
    """
    node = value.producer()
    pending = [] if node is None else reads_of(node)
    seen: set[ir.Value] = set()
    while pending:
        read = pending.pop()
        if read in compared:
            yield read
        elif read not in seen and (maker := read.producer()) is not None:
            seen.add(read)
            pending += reads_of(maker)
