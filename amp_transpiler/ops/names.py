"""Names of operators: domain and type; ONNX's own domain is left out."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["is_standard", "operator_name"]


def is_standard(node: ir.Node) -> bool:
    """Whether the operator belongs to ONNX's own domain."""
    return node.domain in ("", "ai.onnx")


def operator_name(node: ir.Node) -> str:
    """Return the operator's name in lists and tables: `Conv`, `com.microsoft::BiasGelu`."""
    domain = node.domain  # asked of every node, again and again: no further call
    return node.op_type if domain in ("", "ai.onnx") else f"{domain}::{node.op_type}"
