"""The kernels that an ONNX Runtime provider registers, looked up by ONNX Runtime's own rule. See `data/README.md`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

__all__ = ["KernelTable", "kernel_type", "load_table"]


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
    """The kernels of one execution provider."""

    def __init__(self, rows: Mapping[str, Sequence[KernelRow]]) -> None:
        self._rows = rows

    def has_kernel(self, domain: str, op_type: str, version: int | None, types: Mapping[str, str]) -> bool:
        """Whether a kernel is registered.

        Args:
            domain: the operator's domain; empty or `ai.onnx` for ONNX's own.
            op_type: the operator's name.
            version: the schema version in force, from `schema_version`; None (no schema) has no kernel.
            types: type parameter or input name -> type, as `float16`, `tensor(float16)`, `seq(tensor(float32))`.
                Constraints on parameters that are not in `types` are ignored.
        """
        return version is not None and any(row.matches(version, types) for row in self._of(domain, op_type))

    def mentions(self, domain: str, op_type: str, type_: str) -> bool:
        """Whether any kernel of the operator, of any version, takes `type_` for any of its type parameters."""
        wanted = kernel_type(type_)
        return any(wanted in types for row in self._of(domain, op_type) for types in row.constraints.values())

    def _of(self, domain: str, op_type: str) -> Sequence[KernelRow]:
        return self._rows.get(f"{domain or 'ai.onnx'}::{op_type}", ())


@functools.cache
def load_table(name: str) -> KernelTable:
    """Read the table `data/NAME.json`."""
    import importlib.resources  # here, since they would delay `--help`, which lists the targets
    import json

    data = importlib.resources.files(__package__).joinpath("data", f"{name}.json")
    table = json.loads(data.read_text(encoding="utf-8"))
    types = {name: frozenset(members.split()) for name, members in table["types"].items()}
    return KernelTable({key: [_row(row, types) for row in rows] for key, rows in table["kernels"].items()})


def _row(text: str, types: Mapping[str, frozenset[str]]) -> KernelRow:
    """Read a row, such as `14- T=12a T1=int64`: the versions, then the types of each type parameter."""
    versions, *constraints = text.split()
    first, dash, last = versions.partition("-")
    bound = dict(constraint.split("=") for constraint in constraints)
    return KernelRow(
        int(first),
        int(last or first) if last or not dash else None,
        {name: types.get(set_name, frozenset((set_name,))) for name, set_name in bound.items()},
    )


@functools.cache
def kernel_type(type_: str) -> str:
    """Write a type as the tables do: `tensor(float)` is `float32`, `seq(tensor(double))` is `seq(tensor(float64))`."""
    text = type_.replace("tensor(float)", "tensor(float32)").replace("tensor(double)", "tensor(float64)")
    return text[len("tensor(") : -1] if text.startswith("tensor(") else text
