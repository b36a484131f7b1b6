"""Compares two models: precision, size, predicted time, and their outputs on the same inputs."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from amp_transpiler.cost import find_device, open_dims, predict
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.files.external_data import external_files
from amp_transpiler.files.loading import load
from amp_transpiler.graph.tensors import tensor_bytes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.schema import own_opset
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.phrases import counted
from amp_transpiler.precision.limits import Limits
from amp_transpiler.program.program import Program
from amp_transpiler.report import OutputComparison
from amp_transpiler.report.difference import Difference, ModelFacts, NodeDifference
from amp_transpiler.verification.accuracy import CannotCompare, Reference, make_reference
from amp_transpiler.verification.inputs import Inputs
from amp_transpiler.view.outline import precision_of

__all__ = ["compare_models"]

_LOW = frozenset({"float16", "bfloat16"})


class _Node(NamedTuple):
    op: str
    precision: str
    scope: str


def compare_models(
    first: str | os.PathLike[str] | Program,
    second: str | os.PathLike[str] | Program,
    *,
    inputs: Inputs | None = None,
    device: str = "H100",
    dims: Mapping[str, int] | None = None,
    run: bool = True,
) -> Difference:
    """Compare two models.

    Args:
        first: the model that the other is measured by.
        second: the other one.
        inputs: what to run both on; None: inputs are made up.
        device: where times are predicted for.
        dims: name of an open dimension -> its size, for the predictions.
        run: run both and compare outputs.

    Raises:
        InputError: a model, an input or the device is wrong.
    """
    where = find_device(device)
    models = (load(first), load(second))
    sizes = _sizes(models, dims or {})
    nodes = [dict(_nodes(model.model)) for model in models]
    facts = []
    for model, named_nodes, size in zip(models, nodes, sizes, strict=True):
        predicted = predict(model.model, where, size, fuse=True)
        facts.append(_facts(model, named_nodes, predicted.milliseconds, predicted.launches))
    outputs, compared = _compared(*models, inputs) if run else ({}, "not run")
    alone = [
        tuple(name for name, node in nodes_here.items() if name not in other and node.precision != "cast")
        for nodes_here, other in (nodes, reversed(nodes))
    ]
    return Difference(
        first=facts[0],
        second=facts[1],
        device=where.name,
        nodes=tuple(_differing(*nodes)),
        only_first=alone[0],
        only_second=alone[1],
        outputs=outputs,
        compared=compared,
    )


def _sizes(models: Sequence[Program], dims: Mapping[str, int]) -> list[dict[str, int]]:
    """Return for each model the given sizes of the dimensions that it has.

    Raises:
        OptionError: no model has a dimension of this name.
    """
    known = [open_dims(model.model) for model in models]
    for name in dims:
        if not any(name in symbols for symbols in known):
            names = ", ".join(sorted({name for symbols in known for name in symbols})) or "none"
            raise OptionError(f"neither model has an open dimension {name!r}; open dimensions with a name: {names}")
    return [{name: size for name, size in dims.items() if name in symbols} for symbols in known]


def _nodes(model: ir.Model) -> Iterator[tuple[str, _Node]]:
    """Yield every node by its name, or that of its first output."""
    typed = model.clone()
    propagate_types(typed)
    for scope in scopes(typed):
        for node in scope.graph:
            name = node.name or next((str(value.name) for value in node.outputs if value.name), "")
            yield name, _Node(operator_name(node), precision_of(node), scope.path)


def _facts(program: Program, nodes: Mapping[str, _Node], milliseconds: float, launches: int) -> ModelFacts:
    operators: dict[str, collections.Counter[str]] = {}
    for node in nodes.values():
        operators.setdefault(node.op, collections.Counter())[node.precision] += 1
    files = () if program.source is None else {program.source, *external_files(program.model)}
    return ModelFacts(
        source=repr(program) if program.source is None else str(program.source),
        opset=own_opset(program.model),
        precisions=collections.Counter(node.precision for node in nodes.values()),
        operators=operators,
        weight_bytes=sum(tensor_bytes(program.model)),
        file_bytes=sum(file.stat().st_size for file in files) if files else None,
        milliseconds=milliseconds,
        launches=launches,
    )


def _differing(first: Mapping[str, _Node], second: Mapping[str, _Node]) -> Iterator[NodeDifference]:
    for name, node in first.items():
        other = second.get(name)
        if other is not None and other.op == node.op and other.precision != node.precision:
            yield NodeDifference(name, node.op, node.precision, other.precision, node.scope)


def _compared(first: Program, second: Program, inputs: Inputs | None) -> tuple[dict[str, OutputComparison], str]:
    """Run both on the same inputs, their low parts emulated; return the comparison, and what it rests on."""
    source = emulate(first) if _is_low(first) else first
    try:
        reference = _common(make_reference(source, source, inputs), second)
        comparisons = reference.compare(second, Limits())
    except CannotCompare as reason:
        return {}, f"not compared: {reason}"
    except InputError as error:
        if inputs is not None:
            raise
        return {}, f"not compared: the second model does not take the inputs of the first: {error}"
    data = counted(len(reference.samples), "given sample") if reference.given else "one made-up sample"
    missing = {str(value.name) for value in first.model.graph.outputs} - set(comparisons)
    without = f"; without {', '.join(sorted(missing))}, which the second model lacks" if missing else ""
    return comparisons, f"the second model against the first, on {data}{without}"


def _common(reference: Reference, second: Program) -> Reference:
    """Return the reference with the outputs that both models have."""
    names = {str(value.name) for value in second.model.graph.outputs}
    outputs = [{name: array for name, array in sample.items() if name in names} for sample in reference.outputs]
    if not outputs[0]:
        raise CannotCompare("the models have no output of the same name")
    return dataclasses.replace(reference, outputs=outputs)


def _is_low(program: Program) -> bool:
    return any(node.precision in _LOW for _, node in _nodes(program.model))
