"""Inlining of model-local functions, so that every later pass sees plain operators."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.program import install
from amp_transpiler.graph.walk import bodies
from amp_transpiler.ops.schema import signature
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.schema_changes import only_widens

__all__ = ["InlineFunctions"]

logger = logging.getLogger(__name__)


class InlineFunctions(Pass[PassResult]):
    """Replaces every call of a model-local function by the function's body; counts the calls.

    1. Functions called from functions and from bodies of control flow are inlined too, and all definitions are dropped.
    2. Inlined nodes get the metadata of the call where they have none under the same key, so that a region marked on a
       call covers the nodes that replace it.
    3. Names of graph inputs, outputs and initializers stay; other names stay unless taken.

    Raises:
        ModelError: functions call each other in a cycle, take a graph as attribute, or import another opset than the
            model of a domain whose operators differ between the two. The model is then as it was.
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


def _inline(model: ir.Model) -> int:
    """Inline on a copy, which then takes the place of the model's graph; return the number of calls."""
    copy = model.clone()
    for imports in (copy.graph.opset_imports, *(function.opset_imports for function in copy.functions.values())):
        if "ai.onnx" in imports:  # the other spelling of the same domain
            imports.setdefault("", imports.pop("ai.onnx"))
    _align_opsets(copy)
    for function in copy.functions.values():
        _separate_outputs(function)
    _complete_calls(copy)
    try:
        InlinePass()(copy)
    except (ValueError, RuntimeError, ir.passes.PassError, ir.passes.InvariantError) as error:
        raise ModelError(f"model-local functions cannot be inlined: {_root_cause(error)}") from error
    calls = _calls(model)
    domains = {domain for domain, _, _ in model.functions}
    copy.functions.clear()
    _forget_domains(copy, domains)
    _separate_scopes(copy)
    install(model, copy)
    return calls


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _calls(model: ir.Model) -> int:
    """Count the calls, those inside a called function once for each time that it is called."""
    known: dict[ir.OperatorIdentifier, int] = {}

    def count(nodes: Iterator[ir.Node]) -> int:
        return sum(1 + of(node.op_identifier()) for node in nodes if node.op_identifier() in model.functions)

    def of(function: ir.OperatorIdentifier) -> int:
        if function not in known:
            known[function] = count(model.functions[function].all_nodes())
        return known[function]

    return count(model.graph.all_nodes())


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
    if declared == actual or (declared < actual and only_widens(domain, op_type, declared, actual)):
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
        own = [value for value in _defined(graph) if value.name]
        for value in own:
            if value.name in outer:
                value.name = names.fresh(str(value.name))
        mine = {str(value.name) for value in own}
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
