"""The opset of ONNX's own domain, as a model imports it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.walk import all_nodes, scopes
from amp_transpiler.ops.names import is_standard

__all__ = ["OpsetConversionError", "set_standard_opset", "standard_nodes", "standard_opset"]


class OpsetConversionError(ModelError):
    """An operator of the model cannot be carried over to another opset; the model is left as it was."""


def standard_opset(model: ir.Model) -> int:
    """Return the version that the model imports; 1 where it neither imports nor uses the domain.

    Raises:
        ModelError: it uses the domain without importing it.
    """
    imports = model.graph.opset_imports
    version = imports.get("", imports.get("ai.onnx"))
    if version is not None:
        return version
    node = next(standard_nodes(model), None)
    if node is not None:
        raise ModelError(f"node '{node.name}' ({node.op_type}): the model does not import ONNX's own domain")
    return 1


def standard_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of every scope whose operator is ONNX's own."""
    return (node for node in all_nodes(model) if is_standard(node))


def set_standard_opset(model: ir.Model, version: int) -> None:
    """Let the model, its bodies and its functions import `version`."""
    for scope in scopes(model):
        if scope.owner is None or scope.graph.opset_imports:
            _set_domain(scope.graph.opset_imports, version)
    for node in standard_nodes(model):
        if node.version is not None:
            node.version = version
    for function in model.functions.values():
        _set_domain(function.opset_imports, version)


def _set_domain(imports: dict[str, int], version: int) -> None:
    imports.pop("ai.onnx", None)  # the other spelling of the same domain
    imports[""] = version
