"""Appending operators to a program: what a new node is marked with, and where its values are registered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import onnx_ir as ir

from amp_transpiler.errors import MisfitError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.lines import mark_line
from amp_transpiler.graph.misfit_messages import LEFT_TO_US, misfit, wrong_shape
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.origins import BUILT_BY_KEY, OPERATOR_KEY, built_by, operator_label
from amp_transpiler.graph.regions import REGION_KEY, current_region
from amp_transpiler.graph.roles import ROLE_KEY, Role

__all__ = ["BuiltProgram", "ProgramBuilder"]


class BuiltProgram(Protocol):
    """The part of a program that a builder reads and calls."""

    model: ir.Model
    used_names: set[str]
    is_built: bool

    def remember(self, value: ir.Value) -> None:
        """Register a value of the main graph that was just added."""

    def found_inside(self, values: Iterable[ir.Value]) -> None:
        """Let values of the body that is being built be found by name."""


class ProgramBuilder(GraphBuilder):
    """Appends to a program: marks nodes with role and regions, and registers new values with the program.

    Args:
        program: where operators go.
        role: the part of a training step that they belong to.
        sibling: another builder of the program, with which names and constants are shared.
    """

    def __init__(self, program: BuiltProgram, role: Role, sibling: ProgramBuilder | None) -> None:
        names = NameAllocator(program.model, program.used_names) if sibling is None else sibling.names
        super().__init__(program.model, names=names, shares=sibling)
        self._program = program
        self._role = role

    def node_metadata(self) -> dict[str, str]:
        """Return what a new node is marked with: its role, the current regions, and what builds it."""
        metadata = dict(self.metadata)
        if self._role != "forward":
            metadata[ROLE_KEY] = self._role
        if region := current_region():
            metadata[REGION_KEY] = region
        if function := built_by():
            metadata[BUILT_BY_KEY] = function
        if label := operator_label():
            metadata[OPERATOR_KEY] = label
        return metadata

    def on_node(self, node: ir.Node) -> None:
        """Remember the line of the user's program."""
        mark_line(node)

    def check(self, node: ir.Node) -> None:
        """Refuse a node that ONNX accepts and that cannot be computed.

        Raises:
            MisfitError: the shapes of its inputs do not fit the operator.
        """
        if node.op_type not in LEFT_TO_US or self._role != "forward" or not self._program.is_built:
            return
        if wrong_shape(node) is not None:
            raise MisfitError(misfit(node, self.opset, ""))

    def on_created(self, values: Iterable[ir.Value]) -> None:
        """Register new values with the program."""
        for value in values:
            if self.graph is self.model.graph or value.is_initializer():
                self._program.remember(value)
            else:
                self._program.found_inside([value])
