"""Roles: which part of a training step a node belongs to, kept in its metadata."""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

__all__ = ["ROLE_KEY", "Role", "has_backward_pass", "role_of"]

Role = Literal["forward", "backward", "optimize"]
ROLE_KEY = "amp_transpiler.role"  # metadata key; nodes of the forward pass do not have it


def role_of(node: ir.Node) -> Role:
    """Return which part of a training step a node belongs to."""
    return node.metadata_props.get(ROLE_KEY, "forward")  # type: ignore[return-value]  # only roles are ever put there


def has_backward_pass(model: ir.Model) -> bool:
    """Whether a model is a training step, or the part of one that has a backward pass."""
    return any(role_of(node) == "backward" for node in model.graph)
