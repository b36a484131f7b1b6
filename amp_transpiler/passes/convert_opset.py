"""A newer opset for a model, without loss."""

from __future__ import annotations

import logging

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.checker import checker_fault, mend_declared_shapes
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.proto import to_proto_without_weights
from amp_transpiler.graph.walk import PLUGIN
from amp_transpiler.ops.limits import NEWEST_OPSET
from amp_transpiler.ops.schema import only_in_runtime
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.node_builder import NodeBuilder
from amp_transpiler.passes.opset_adapters import ADAPTERS, Site, Unadaptable
from amp_transpiler.passes.schema_changes import only_widens, schema_history, schema_in_force
from amp_transpiler.passes.standard_opset import (
    OpsetConversionError,
    set_standard_opset,
    standard_nodes,
    standard_opset,
)
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import install

__all__ = ["ConvertOpset", "OpsetConversionError"]

logger = logging.getLogger(__name__)


class ConvertOpset(Pass[PassResult]):
    """Raises the opset of ONNX's own domain to `target`, without loss; counts the nodes that it adapts.

    1. Where every operator of the model means the same at both opsets, only the import changes.
    2. Otherwise the nodes that change are edited on a copy, which is checked and then takes the place of the model's
       graph: after an error the model is as it was. Weights are shared, not read.

    Everything else stays: names, doc strings, metadata, other domains.

    Args:
        target: at most 26, and not below the opset of the model.

    Raises:
        OpsetConversionError: an operator cannot be carried over; the message names it and both versions.
        ModelError: the model has model-local functions.
        ValueError: `target` is out of range.
    """

    def __init__(self, target: int) -> None:
        self._target = target

    def requires(self, model: ir.Model) -> None:
        source = standard_opset(model)
        if not source <= self._target <= NEWEST_OPSET:
            raise ValueError(f"target opset {self._target}: expected {source} (the model's) to {NEWEST_OPSET}")
        if model.functions:
            names = first_few([f"{domain}::{name}" for domain, name, _ in model.functions])
            raise ModelError(f"model-local functions must be inlined before the opset is raised: {names}")

    def call(self, model: ir.Model) -> PassResult:
        source, target = standard_opset(model), self._target
        if source == target:
            return PassResult(model, modified=False)
        if all(only_widens(node.domain, node.op_type, source, target) for node in standard_nodes(model)):
            set_standard_opset(model, target)
            logger.info("opset %d -> %d: no operator of the model changes", source, target)
            return PassResult(model, modified=True)
        copy = model.clone()
        edited = _adapt(copy, source, target, _InferredFacts(model))
        set_standard_opset(copy, target)
        _check(model, copy, source, target)
        install(model, copy)
        logger.info("opset %d -> %d: %d nodes adapted", source, target, edited)
        return PassResult(model, modified=True, count=edited)


def _adapt(model: ir.Model, source: int, target: int, facts: _InferredFacts) -> int:
    names = NameAllocator(model)
    edited = 0
    for node in list(standard_nodes(model)):
        if PLUGIN in node.meta or only_widens("", node.op_type, source, target):
            continue
        edited += 1
        try:
            _adapt_node(node, source, target, names, facts)
        except Unadaptable as error:
            raise OpsetConversionError(
                f"node '{node.name}' ({node.op_type}) cannot be carried from opset {source} to {target}: {error}; "
                "export the model at the newer opset"
            ) from error
    return edited


def _adapt_node(node: ir.Node, source: int, target: int, names: NameAllocator, facts: _InferredFacts) -> None:
    """Take the node through each version of its operator, which may become another one on the way."""
    version = source
    if schema_in_force("", node.op_type, version) is None and not only_in_runtime("", node.op_type, version):
        raise Unadaptable(f"ONNX has no such operator at opset {source}")
    while version < target:
        before = schema_in_force("", node.op_type, version)
        history = schema_history("", node.op_type)
        after = next((schema for schema in history if version < schema.since_version <= target), None)
        if after is None:
            return
        adapter = ADAPTERS.get((node.op_type, after.since_version))
        version = after.since_version
        if adapter is not None:
            adapter(Site(node, NodeBuilder(node, names), facts))
        elif before is None or not only_widens("", node.op_type, before.since_version, version):
            raise Unadaptable(f"{node.op_type} changed at opset {version} in a way that is not provided for")


class _InferredFacts:
    """Element types and numbers of axes, as declared or, failing that, as ONNX infers them from the whole model.

    Args:
        model: as it is before any node is adapted; read once something is not declared.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._types: dict[str, onnx.TypeProto] | None = None

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type, or None if unknown."""
        if value is None or value.dtype is not None:
            return None if value is None else value.dtype
        inferred = self._inferred(value)
        return ir.DataType(inferred.elem_type) if inferred is not None and inferred.elem_type else None

    def rank(self, value: ir.Value | None) -> int | None:
        """The number of axes, or None if unknown."""
        if value is None or value.shape is not None:
            return None if value is None or value.shape is None else len(value.shape)
        inferred = self._inferred(value)
        return len(inferred.shape.dim) if inferred is not None and inferred.HasField("shape") else None

    def _inferred(self, value: ir.Value) -> onnx.TypeProto.Tensor | None:
        if self._types is None:
            self._types = _infer_types(to_proto_without_weights(self._model))
        type_proto = self._types.get(str(value.name))
        return type_proto.tensor_type if type_proto is not None and type_proto.HasField("tensor_type") else None


def _infer_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.info("shapes could not be inferred: %s", error)
        return {}
    types: dict[str, onnx.TypeProto] = {}
    ambiguous: set[str] = set()
    pending = [inferred.graph]
    while pending:
        graph = pending.pop()
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.name in types and types[info.name] != info.type:
                ambiguous.add(info.name)  # sibling branches may use a name twice
            types[info.name] = info.type
        for node in graph.node:
            for attribute in node.attribute:
                pending.extend([*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])])
    return {name: type_ for name, type_ in types.items() if name not in ambiguous}


def _check(before: ir.Model, after: ir.Model, source: int, target: int) -> None:
    """See that the raised model is as valid as it was; newer inference functions refute more wrong shapes."""
    if not checker_fault(after):
        return
    if mended := mend_declared_shapes(after):
        logger.info("%s", mended)
        return
    if old := checker_fault(before):
        logger.warning("the model was invalid before its opset was raised: %s", old)
        return
    fault = checker_fault(after)
    raise OpsetConversionError(f"the model, valid at opset {source}, is invalid once raised to {target}: {fault}")
