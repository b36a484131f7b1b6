"""An older opset for a model that uses nothing newer."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import type_string
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.schema_changes import keeps_meaning, schema_history, schema_in_force, since_version
from amp_transpiler.passes.standard_opset import (
    OpsetConversionError,
    set_standard_opset,
    standard_nodes,
    standard_opset,
)

__all__ = ["LowerOpset", "needing"]

logger = logging.getLogger(__name__)


class LowerOpset(Pass[PassResult]):
    """Declares opset `target` for a model that is above it and uses nothing newer; edits no node.

    A node may stay if its operator meant the same at `target` and already took the node's attributes, inputs, outputs
    and element types. A model that is not above `target` is left as it is, and so is the IR version.

    Raises:
        OpsetConversionError: a node needs a newer opset, or the installed onnx does not know the opset of the model.
            The model is as it was.
    """

    def __init__(self, target: int) -> None:
        self._target = target

    def call(self, model: ir.Model) -> PassResult:
        source, target = standard_opset(model), self._target
        if source <= target:
            return PassResult(model, modified=False)
        known = onnx.defs.onnx_opset_version()
        if source > known:  # what its operators mean cannot be looked up
            raise OpsetConversionError(
                f"opset {source} is not known to the installed onnx {onnx.__version__}, "
                f"which ends at opset {known}: install a newer onnx"
            )
        for node in needing(model, target):
            raise OpsetConversionError(f"opset {source} is needed by node '{node.name}' ({node.op_type})")
        set_standard_opset(model, target)
        return PassResult(model, modified=True)


def needing(model: ir.Model, target: int) -> Iterator[ir.Node]:
    """Yield the nodes that keep a model from opset `target`, which is below its own."""
    called = (node for function in model.functions.values() for node in function.all_nodes() if is_standard(node))
    source = standard_opset(model)
    return (node for node in (*standard_nodes(model), *called) if not _valid_before(node, source, target))


_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


def _valid_before(node: ir.Node, source: int, target: int) -> bool:
    if since_version("", node.op_type, source) == since_version("", node.op_type, target):
        return True
    old = schema_in_force("", node.op_type, target)
    if old is None or old.deprecated or not _meant_the_same(node.op_type, target, source):
        return False
    return node.attributes.keys() <= old.attributes.keys() and _types_fit(node, old)


def _meant_the_same(op_type: str, old: int, new: int) -> bool:
    history = [s for s in schema_history("", op_type) if s.since_version <= new]
    steps = itertools.pairwise(history)
    return all(keeps_meaning(before, after) for before, after in steps if after.since_version > old)


def _types_fit(node: ir.Node, schema: onnx.defs.OpSchema) -> bool:
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for index, value in enumerate(values):
            if value is None or not value.name:
                continue
            if index >= len(formals) and (not formals or formals[-1].option != _VARIADIC):
                return False
            if type_string(value.type) not in formals[min(index, len(formals) - 1)].types:
                return False
    return True
