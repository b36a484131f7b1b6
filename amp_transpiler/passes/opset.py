"""Raising the opset of a model, in place and without loss; lowering it where nothing newer is used."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.checker import checker_fault, mend_declared_shapes
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.program import install
from amp_transpiler.graph.proto import to_proto_without_weights
from amp_transpiler.graph.walk import all_nodes, scopes
from amp_transpiler.ops.limits import NEWEST_OPSET
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import type_string
from amp_transpiler.passes.node_builder import NodeBuilder
from amp_transpiler.passes.opset_adapters import ADAPTERS, Site, Unadaptable
from amp_transpiler.passes.schema_changes import (
    keeps_meaning,
    only_widens,
    schema_history,
    schema_in_force,
    since_version,
)

__all__ = ["OpsetConversionError", "convert_opset", "lower_opset", "only_widens"]

logger = logging.getLogger(__name__)


class OpsetConversionError(ModelError):
    """An operator of the model cannot be carried over to another opset; the model is left as it was."""


def convert_opset(model: ir.Model, target: int) -> None:
    """Raise the opset of ONNX's own domain to `target`, in place.

    Where every operator of the model means the same at both opsets only the import changes. Otherwise the nodes that
    change are edited on a copy, which is checked and then takes the place of `model.graph`: on an error the model is as
    it was. Weights are shared, not read. Everything else stays: names, doc strings, metadata, other domains.

    Args:
        model: functions inlined, nodes in topological order.
        target: at most 26, and not below the present opset.

    Raises:
        OpsetConversionError: an operator cannot be carried over; the message names it and both versions.
        ModelError: the model has model-local functions.
        ValueError: `target` is out of range.
    """
    source = _opset(model)
    if not source <= target <= NEWEST_OPSET:
        raise ValueError(f"target opset {target}: expected {source} (the model's) to {NEWEST_OPSET}")
    if model.functions:
        names = ", ".join(f"{domain}::{name}" for domain, name, _ in list(model.functions)[:3])
        raise ModelError(f"model-local functions must be inlined before the opset is raised: {names}")
    if source == target:
        return
    if all(only_widens(node.domain, node.op_type, source, target) for node in _standard_nodes(model)):
        _set_import(model, target)
        logger.info("opset %d -> %d: no operator of the model changes", source, target)
        return
    before = to_proto_without_weights(model)
    copy = model.clone()
    edited = _adapt(copy, source, target, _InferredFacts(before))
    _set_import(copy, target)
    _check(model, copy, source, target)
    install(model, copy)
    logger.info("opset %d -> %d: %d nodes adapted", source, target, edited)


def lower_opset(model: ir.Model, target: int = NEWEST_OPSET) -> bool:
    """Declare opset `target` for a model that is above it, where it uses nothing newer; return whether it could.

    A node may stay if its operator meant the same at `target` and already took the node's attributes, inputs, outputs
    and element types. True also for a model that is not above `target`; after False the model is as it was. The IR
    version is not touched.
    """
    source = _opset(model)
    if source <= target:
        return True
    nodes = [*_standard_nodes(model), *(n for f in model.functions.values() for n in f.all_nodes() if is_standard(n))]
    for node in nodes:
        if not _valid_before(node, source, target):
            logger.info("opset %d is needed by node '%s' (%s)", source, node.name, node.op_type)
            return False
    _set_import(model, target)
    for function in model.functions.values():
        _set_domain(function.opset_imports, target)
    return True


def _opset(model: ir.Model) -> int:
    imports = model.graph.opset_imports
    version = imports.get("", imports.get("ai.onnx"))
    if version is not None:
        return version
    node = next(_standard_nodes(model), None)
    if node is not None:
        raise ModelError(f"node '{node.name}' ({node.op_type}): the model does not import ONNX's own domain")
    return 1


def _standard_nodes(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in all_nodes(model) if is_standard(node))


def _set_import(model: ir.Model, version: int) -> None:
    for scope in scopes(model):
        if scope.owner is None or scope.graph.opset_imports:
            _set_domain(scope.graph.opset_imports, version)
    for node in _standard_nodes(model):
        if node.version is not None:
            node.version = version


def _set_domain(imports: dict[str, int], version: int) -> None:
    imports.pop("ai.onnx", None)  # the other spelling of the same domain
    imports[""] = version


# ---- raising ----


def _adapt(model: ir.Model, source: int, target: int, facts: _InferredFacts) -> int:
    names = NameAllocator(model)
    edited = 0
    for node in list(_standard_nodes(model)):
        if only_widens("", node.op_type, source, target):
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
    if schema_in_force("", node.op_type, version) is None:
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
    """Element types and numbers of axes, as declared or, failing that, as ONNX infers them from the whole model."""

    def __init__(self, model: onnx.ModelProto) -> None:
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
            self._types = _infer_types(self._model)
        found = self._types.get(str(value.name))
        return found.tensor_type if found is not None and found.HasField("tensor_type") else None


def _infer_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        logger.info("shapes could not be inferred: %s", error)
        return {}
    found: dict[str, onnx.TypeProto] = {}
    ambiguous: set[str] = set()
    pending = [inferred.graph]
    while pending:
        graph = pending.pop()
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.name in found and found[info.name] != info.type:
                ambiguous.add(info.name)  # sibling branches may use a name twice
            found[info.name] = info.type
        for node in graph.node:
            for attribute in node.attribute:
                pending.extend([*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])])
    return {name: type_ for name, type_ in found.items() if name not in ambiguous}


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


# ---- lowering ----

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
