"""The kernels that an ONNX Runtime provider registers, looked up by ONNX Runtime's own rule. See `data/README.md`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["KernelTable", "is_within", "kernel_type", "release_number", "rows_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class KernelRow:
    """Kernels of one operator that serve the same schema versions.

    Attributes:
        first: the first schema version served.
        last: the last one; None for an open-ended registration.
        constraints: type parameter (in a few cases an input's name) -> the types served.
    """

    first: int
    last: int | None
    constraints: Mapping[str, frozenset[str]]

    def matches(self, version: int, types: Mapping[str, str]) -> bool:
        """Whether ONNX Runtime would take a kernel of this row for `types` at schema version `version`."""
        # An open-ended kernel serves its first version only. ONNX Runtime does not trust it with newer schemas, which
        # may mean something else. So MaxPool, open-ended from 12, has no CUDA kernel at opset 22, which has a new
        # schema: a kernel may vanish when the opset is raised.
        served = version == self.first if self.last is None else self.first <= version <= self.last
        return served and all(
            kernel_type(types[name]) in allowed for name, allowed in self.constraints.items() if name in types
        )


class KernelTable:
    """The kernels that one execution provider has in one release. Rows are read when an operator is first asked about.

    Args:
        texts: operator -> its rows in all releases, as the data file has them.
        types: the names of sets of types -> the types.
        release: the release, such as `1.20`.
    """

    def __init__(self, texts: Mapping[str, str], types: Mapping[str, str], release: str) -> None:
        self._texts = texts
        self._types = types
        self._release = release
        self._rows: dict[tuple[str, str], Sequence[KernelRow]] = {}

    def has_kernel(self, domain: str, op_type: str, version: int | None, types: Mapping[str, str]) -> bool:
        """Whether a kernel is registered.

        Args:
            domain: the operator's domain; empty or `ai.onnx` for ONNX's own.
            op_type: the operator's name.
            version: the schema version in force, from `Release.schema_version`; None (no schema) has no kernel.
            types: type parameter or input name -> type, as `float16`, `tensor(float16)`, `seq(tensor(float32))`.
                Constraints on parameters that are not in `types` are ignored.
        """
        return version is not None and any(row.matches(version, types) for row in self._of(domain, op_type))

    def mentions(self, domain: str, op_type: str, type_: str) -> bool:
        """Whether any kernel of the operator, of any version, takes `type_` for any of its type parameters."""
        wanted = kernel_type(type_)
        return any(wanted in types for row in self._of(domain, op_type) for types in row.constraints.values())

    def _of(self, domain: str, op_type: str) -> Sequence[KernelRow]:
        rows = self._rows.get((domain, op_type))
        if rows is None:
            text = self._texts.get(f"{domain or 'ai.onnx'}::{op_type}", "")
            rows = [self._row(row) for row in rows_of(text, ";", self._release)]
            self._rows[domain, op_type] = rows
        return rows

    def _row(self, text: str) -> KernelRow:
        """Read a row, such as `14- T=12a T1=int64`: the versions, then the types of each type parameter."""
        versions, *constraints = text.split()
        first, dash, last = versions.partition("-")
        bound = dict(constraint.split("=") for constraint in constraints)
        return KernelRow(
            int(first),
            int(last or first) if last or not dash else None,
            {name: frozenset(self._types.get(named, named).split()) for name, named in bound.items()},
        )


def rows_of(text: str, separator: str, release: str) -> Iterator[str]:
    """Yield the rows that a release has, of rows such as `11-` and `22-@1.21-`, `14-@-1.19,1.23-1.25`."""
    for marked in text.split(separator) if text else ():
        row, _, spans = marked.partition("@")
        if not spans or any(is_within(release, *span.split("-")) for span in spans.split(",")):
            yield row


def is_within(release: str, first: str | None, last: str | None) -> bool:
    """Whether a release is not before `first` and not after `last`; an empty or missing one sets no limit."""
    number = release_number(release)
    return (not first or release_number(first) <= number) and (not last or number <= release_number(last))


@functools.cache
def release_number(release: str) -> tuple[int, ...]:
    """Return `1.20` as numbers that can be compared."""
    return tuple(map(int, release.split(".")))


@functools.cache
def kernel_type(type_: str) -> str:
    """Write a type as the tables do: `tensor(float)` is `float32`, `seq(tensor(double))` is `seq(tensor(float64))`."""
    text = type_.replace("tensor(float)", "tensor(float32)").replace("tensor(double)", "tensor(float64)")
    return text[len("tensor(") : -1] if text.startswith("tensor(") else text
