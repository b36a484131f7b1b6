"""Records of a program as Paddle shows it: blocks of operators. `paddle/static/program.py` reads them off a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.graph.roles import Role

__all__ = ["Block", "Operator"]


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One of Paddle's operators: a node, part of a node, or the nodes of one parameter's update.

    Attributes:
        type: Paddle's name; ONNX's for an operator that Paddle does not have. Those of the backward pass end in
            `@grad`: a gradient here is as many operators as its formula has.
        inputs: slot -> names of values. An optimizer's are `Param` and `Grad`; the others have one, `X`.
        outputs: slot -> names of values. There is one, `Out`.
        dtype: the element type it computes in; None if it reads and writes no tensors.
        role: the part of a training step it belongs to.
        attributes: an optimizer has `multi_precision`; nodes have those of ONNX.
    """

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    dtype: ir.DataType | None
    role: Role
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def input_names(self) -> list[str]:
        """The input slots."""
        return list(self.inputs)

    @property
    def output_names(self) -> list[str]:
        """The output slots."""
        return list(self.outputs)

    @property
    def input_arg_names(self) -> list[str]:
        """The names of the values it reads."""
        return [name for names in self.inputs.values() for name in names]

    @property
    def output_arg_names(self) -> list[str]:
        """The names of the values it makes."""
        return [name for names in self.outputs.values() for name in names]

    def input(self, slot: str) -> list[str]:
        """Return the names of the values in an input slot."""
        return list(self.inputs.get(slot, ()))

    def output(self, slot: str) -> list[str]:
        """Return the names of the values in an output slot."""
        return list(self.outputs.get(slot, ()))

    def has_attr(self, name: str) -> bool:
        """Whether it has an attribute."""
        return name in self.attributes

    def attr(self, name: str) -> Any:
        """Return the value of an attribute.

        Raises:
            KeyError: it has no such attribute.
        """
        return self.attributes[name]

    def all_attrs(self) -> dict[str, Any]:
        """Return every attribute by its name."""
        return dict(self.attributes)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A graph of a program: the main one, or a body of control flow.

    Attributes:
        idx: its number; 0 is the main graph.
        ops: its operators, in their order.
        var: returns a variable of the main graph by its name.
    """

    idx: int
    ops: Sequence[Operator]
    var: Callable[[str], Any]
