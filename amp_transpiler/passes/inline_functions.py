"""Inlining of model-local functions, so that every later pass sees plain operators."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.errors import ModelError, visible
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.functions import call_graph, check_expansion
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.regions import REGION_KEY, enter
from amp_transpiler.graph.walk import bodies
from amp_transpiler.ops.schema import signature
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.program.program import install

__all__ = ["InlineFunctions"]

logger = logging.getLogger(__name__)

_DEEPEST = 32  # bodies inside of bodies; protobuf writes no file with more


class InlineFunctions(Pass[PassResult]):
    """Replaces every call of a model-local function by the function's body; counts the calls.

    1. Functions called from functions and from bodies of control flow are inlined too, and all definitions are dropped.
    2. Inlined nodes get the metadata of the call where they have none under the same key. They are in the regions of
       the call, and in their own inside of those.
    3. Names of graph inputs, outputs and initializers stay; other names stay unless taken.

    Raises:
        ModelError: functions call each other in a circle or stand for too many nodes, use a graph given as attribute,
            or import another opset than the model of a domain whose operators differ between the two; a call has more
            inputs or outputs than its function. The model is then as it was.
    """

    def call(self, model: ir.Model) -> PassResult:
        if not model.functions:
            return PassResult(model, modified=False)
        calls = _inline(model)
        logger.info("%d calls of model-local functions inlined", calls)
        notes = (f"{calls} calls of model-local functions were inlined",) if calls else ()
        return PassResult(model, modified=True, count=calls, notes=notes)

    def ensures(self, model: ir.Model) -> None:
        if model.functions:
            raise ir.passes.PostconditionError("model-local functions are left")


@collection_paused()
def _inline(model: ir.Model) -> int:
    """Inline on a copy, which then takes the place of the model's graph; return the number of calls."""
    check_expansion(model, "the model")
    graph = call_graph(model, "the model")
    copy = model.clone()
    for identifier in copy.functions.keys() - set(graph.order):  # uncalled ones bind nothing, not even opsets
        del copy.functions[identifier]
    for imports in (copy.graph.opset_imports, *(function.opset_imports for function in copy.functions.values())):
        if "ai.onnx" in imports:  # the other spelling of the same domain
            imports.setdefault("", imports.pop("ai.onnx"))
    _align_opsets(copy)
    for function in copy.functions.values():
        _separate_outputs(function)
    _complete_calls(copy)
    _Inliner(copy).graph(copy.graph, 1)
    domains = {domain for domain, _, _ in model.functions}
    copy.functions.clear()
    _forget_domains(copy, domains)
    _separate_scopes(copy)
    install(model, copy)
    return graph.calls


class _Inliner:
    """Puts the nodes of functions in the place of calls, from the outermost calls to the innermost.

    Every node of the result is made once, and every name is found at once, so the cost is that of the result.
    """

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._node_names = _Names("node")
        self._value_names = _Names("val")

    def graph(self, graph: ir.Graph, depth: int) -> None:
        """Inline every call in a graph and in the bodies of its nodes, including those that inlining brings."""
        if depth > _DEEPEST:
            raise ModelError(f"model-local functions put more than {_DEEPEST} bodies of control flow into each other")
        self._value_names.take(value.name for value in graph.inputs)
        self._value_names.take(graph.initializers)
        for node in graph:
            self._node_names.take([node.name])
            self._value_names.take(value.name for value in node.outputs)
        for node in graph:  # which goes on with the nodes that take a call's place
            function = self._functions.get(node.op_identifier())
            if function is None:
                for _, body in bodies(node):
                    self.graph(body, depth + 1)
                continue
            nodes, values = self._instance(node, function)
            ir.convenience.replace_nodes_and_values(graph, node, [node], nodes, node.outputs, values)

    def _instance(self, call: ir.Node, function: ir.Function) -> tuple[list[ir.Node], list[ir.Value]]:
        """Return a copy of the function's nodes, fed by the inputs of the call, and of its outputs."""
        _check_call(call, function)
        copy = function.clone()
        defaults = {name: attribute for name, attribute in copy.attributes.items() if attribute.value is not None}
        attributes = {**defaults, **call.attributes}
        for parameter, value in itertools.zip_longest(copy.inputs, call.inputs):
            for node, index in tuple(parameter.uses()):
                node.replace_input_with(index, value)
        nodes, values = list(copy.graph), list(copy.outputs)
        for node in nodes:
            self._settle(node, call, attributes)
        copy.outputs.clear()
        copy.graph.remove(nodes)
        return nodes, values

    def _settle(self, node: ir.Node, call: ir.Node, attributes: Mapping[str, ir.Attr]) -> None:
        """Give a copied node its names, the metadata of the call, and values for references to attributes."""
        for name, attribute in list(node.attributes.items()):
            if attribute.is_ref():
                passed = attributes.get(str(attribute.ref_attr_name))
                if passed is None:  # an optional attribute that the call leaves out
                    del node.attributes[name]
                else:
                    node.attributes[name] = _renamed(name, passed, call)
        for _, body in bodies(node):
            for inner in body:
                self._settle(inner, call, attributes)
        enter(node, call.metadata_props.get(REGION_KEY, ""))
        for key, text in call.metadata_props.items():
            node.metadata_props.setdefault(key, text)
        node.name = self._node_names.fresh(node.name)
        for value in node.outputs:
            value.name = self._value_names.fresh(value.name)


class _Names:
    """Names in use: a new one is its hint, or the hint with the next free number from 2."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def take(self, names: Iterable[str | None]) -> None:
        self._taken.update(name for name in names if name is not None)

    def fresh(self, hint: str | None) -> str:
        hint = name = hint or self._default
        count = self._last.get(hint, 1)
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._last[hint] = count
        self._taken.add(name)
        return name


def _check_call(call: ir.Node, function: ir.Function) -> None:
    for kind, count, known in (
        ("inputs", len(call.inputs), len(function.inputs)),
        ("outputs", len(call.outputs), len(function.outputs)),
    ):
        if count > known:
            name, node = visible(f"{function.domain}::{function.name}", 80), visible(str(call.name), 60)
            raise ModelError(f"node '{node}' calls function '{name}' with {count} {kind}, and it has {known}")


def _renamed(name: str, attribute: ir.Attr, call: ir.Node) -> ir.Attr:
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        raise ModelError(
            f"node '{visible(str(call.name), 60)}' gives a function the graph '{visible(attribute.name, 60)}' as "
            "attribute, which cannot be inlined"
        )
    return ir.Attr(name, attribute.type, attribute.value, doc_string=attribute.doc_string)


# ---- before ----


def _align_opsets(model: ir.Model) -> None:
    """Let all functions import the versions of the model, if that changes no operator they use."""
    imports, missing = model.graph.opset_imports, dict[str, int]()
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            if domain not in imports:
                missing[domain] = max(version, missing.get(domain, 0))
    imports.update(missing)
    for function in model.functions.values():
        for domain, version in list(function.opset_imports.items()):
            for op_type in _operators(model, function, domain):
                if not _same_operator(domain, op_type, version, imports[domain]):
                    raise ModelError(
                        f"function '{function.domain}::{function.name}' imports opset {version} of "
                        f"'{domain or 'ai.onnx'}', the model {imports[domain]}, and {op_type} differs between the two; "
                        "export the model with one opset"
                    )
            function.opset_imports[domain] = imports[domain]


def _operators(model: ir.Model, function: ir.Function, domain: str) -> list[str]:
    nodes = (node for node in function.all_nodes() if node.domain == domain)
    return sorted({node.op_type for node in nodes if node.op_identifier() not in model.functions})


def _same_operator(domain: str, op_type: str, declared: int, actual: int) -> bool:
    if declared == actual:
        return True
    from amp_transpiler.passes.schema_changes import only_widens  # for few programs only

    if declared < actual and only_widens(domain, op_type, declared, actual):
        return True
    old, new = signature(domain, op_type, declared), signature(domain, op_type, actual)
    return old is not None and new is not None and old.since_version == new.since_version


def _separate_outputs(function: ir.Function) -> None:
    """Put an Identity before an output that is an input or another output: each needs a name of its own outside."""
    inputs, seen = set(function.inputs), set[ir.Value]()
    for index, value in enumerate(function.outputs):
        if value in inputs or value in seen:
            node = ir.Node("", "Identity", [value], outputs=[ir.Value(name=f"{value.name}_out{index}")])
            function.append(node)
            function.outputs[index] = node.outputs[0]
        seen.add(value)


def _complete_calls(model: ir.Model) -> None:
    """Give calls all outputs of their function; a nameless one must not take the name away from the inner value."""
    called = (node for function in model.functions.values() for node in function.all_nodes())
    for node in [*model.graph.all_nodes(), *called]:
        function = model.functions.get(node.op_identifier())
        if function is None:
            continue
        if len(node.outputs) < len(function.outputs):
            node.resize_outputs(len(function.outputs))
        for value in node.outputs:
            if not value.name:
                value.name = None


# ---- after ----


def _forget_domains(model: ir.Model, domains: set[str]) -> None:
    """Drop the imports of domains that held functions only."""
    used = {node.domain for node in model.graph.all_nodes()}
    for domain in domains - used - {""}:
        model.graph.opset_imports.pop(domain, None)


def _separate_scopes(model: ir.Model) -> None:
    """Rename values of a body whose name an enclosing graph has too, as copies of a function's body may."""
    names = NameAllocator(model)

    def visit(graph: ir.Graph, outer: set[str]) -> None:
        values = [value for value in _defined(graph) if value.name]
        for value in values:
            if value.name in outer:
                value.name = names.fresh(str(value.name))
        mine = {str(value.name) for value in values}
        outer |= mine
        for node in graph:
            for _, body in bodies(node):
                visit(body, outer)
        outer -= mine

    visit(model.graph, set())


def _defined(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
