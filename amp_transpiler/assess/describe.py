"""Describes what is converted, and what has become of it, for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir

from amp_transpiler.conversion import Conversion
from amp_transpiler.files.external_data import external_files
from amp_transpiler.graph.dtypes import FLOAT32, dtype_name
from amp_transpiler.graph.tensors import tensor_bytes
from amp_transpiler.graph.training_step import State
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.schema import own_opset
from amp_transpiler.passes.inserted_casts import INSERTED
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.reasons import Reason, Sentence
from amp_transpiler.precision.training import UNSCALED
from amp_transpiler.program.program import Program
from amp_transpiler.report.attributes import attribute_words
from amp_transpiler.report.facts import Description, Task
from amp_transpiler.report.precision import Precision, kind_of
from amp_transpiler.report.record import CastRow, DecisionRow
from amp_transpiler.report.verdict import Judgement, Verdict

__all__ = ["describe_copy", "describe_needless", "describe_result", "describe_source"]


def describe_source(
    source: Program,
    policy: Policy,
    *,
    level: str | None,
    system: str,
    asked: str,
    settings: Mapping[str, Any],
    notes: tuple[str, ...],
) -> Task:
    """Return the request and the state of the source.

    Args:
        source: the program before the conversion.
        policy: how the conversion decides.
        level: the level's name; None where the system has no levels.
        system: whose rules decide.
        asked: the request in words.
        settings: the options that a recipe holds.
        notes: what the user should know of the request.
    """
    return Task(
        repr(source) if source.source is None else str(source.source),
        level,
        policy.low.name,
        policy.target.name,
        ort=policy.target.ort,
        system=system,
        asked=asked,
        is_copy=policy.copies,
        settings=settings,
        opset=own_opset(source.model),
        weight_bytes=sum(tensor_bytes(source.model)),
        file_bytes=_file_bytes(source),
        notes=notes,
    )


def _file_bytes(program: Program) -> int | None:
    """Return the size of the source's files: the model and its external data; None for a source in memory."""
    if program.source is None:
        return None
    return sum(file.stat().st_size for file in {program.source, *external_files(program.model)})


def describe_result(program: Program, conversion: Conversion, policy: Policy) -> Description:
    """Describe a result: the decisions, and the state that a policy has made of the program."""
    decisions = conversion.assignment.decisions
    low_nodes = sum(decision.precision == "low" for decision in decisions.values())
    high_nodes = sum(decision.precision == "high" for decision in decisions.values())
    asked = policy.objective != "rules" and policy.low is not FLOAT32
    return Description(
        program,
        tuple(_rows(program.model, conversion.assignment)),
        states=_states(program),
        low_nodes=low_nodes,
        high_nodes=high_nodes,
        kept_float32=asked and not policy.low_io and not low_nodes and high_nodes > 0,
        casts=conversion.casts,
        casts_removed=conversion.casts_removed,
        casts_at=tuple(_casts(program.model)),
        missing_kernels=conversion.assignment.missing_kernels,
        opset=own_opset(program.model),
        weight_bytes=sum(tensor_bytes(program.model)),
        notes=(*program.notes, *_of_target(policy, low_nodes)),
        moot_warnings=() if low_nodes else (UNSCALED,),
    )


def _of_target(policy: Policy, low_nodes: int) -> Iterator[str]:
    """Yield what is known of times where none are predicted: nobody should ship a slower model unawares."""
    if low_nodes and not policy.target.runs_on_gpu:
        yield f"on a CPU {policy.low.name} makes a model smaller, and seldom faster: --benchmark measures both"


def describe_needless(trial: Program, conversion: Conversion, dtype: str, *, is_written: bool) -> Description:
    """Describe a source that is what was asked for already.

    Args:
        trial: the source, converted: nothing that matters has changed.
        conversion: the record of that.
        dtype: what was asked for.
        is_written: a copy was written.
    """
    rows = tuple(_rows(trial.model, conversion.assignment))
    if dtype == "float32":
        why = "the model holds no 16-bit floats"
    else:
        why = f"the model holds {dtype} already, and no more of it becomes {dtype}"
    return Description(
        trial,  # the source again, with names and types for every node
        rows,
        states=_states(trial),
        high_nodes=sum(kind_of(row.precision) == "high" for row in rows),
        missing_kernels=conversion.assignment.missing_kernels,
        verdict=Judgement(Verdict.NOT_CHECKED, {"needless": f"nothing to do: {why}"}),
        notes=("the result is a copy of the source, unchanged",) if is_written else (),
        replaces_notes=True,
    )


def _states(program: Program) -> tuple[State, ...]:
    return () if program.step is None else program.step.states


def _rows(model: ir.Model, assignment: Assignment) -> Iterator[DecisionRow]:
    paths = {scope.graph: scope.path for scope in scopes(model)}
    for node, decision in assignment.decisions.items():
        if INSERTED in node.meta:
            continue  # a cast put in when the program was prepared
        path = paths.get(node.graph, "") if isinstance(node.graph, ir.Graph) else ""
        precision = Precision.of(decision.precision, assignment.low.name)
        yield _row(node, precision, decision.reason, path)


def _row(node: ir.Node, precision: Precision, reason: Reason, path: str) -> DecisionRow:
    attributes = attribute_words(node)
    return DecisionRow(str(node.name), operator_name(node), precision, Sentence.of(reason), path, attributes=attributes)


def _casts(model: ir.Model) -> Iterator[CastRow]:
    for scope in scopes(model):
        for node in scope.graph:
            if INSERTED in node.meta and node.op_type == "Cast":
                yield _cast_row(node, scope.path)


def _cast_row(cast: ir.Node, path: str) -> CastRow:
    value, copy = cast.inputs[0], cast.outputs[0]
    assert value is not None, "a cast reads a value"
    producer = value.producer()
    is_near = producer is not None and producer.graph is cast.graph
    return CastRow(
        str(value.name),
        _dtype(value),
        _dtype(copy),
        producer=str(producer.name) if producer is not None and is_near else "",
        readers=tuple(dict.fromkeys(str(node.name) for node, _ in copy.uses())),
        scope=path,
    )


def _dtype(value: ir.Value) -> str:
    return "?" if value.dtype is None else dtype_name(value.dtype)


def describe_copy(source: Program, task: Task) -> Description:
    """Describe a copy of the source."""
    reason = Reason("copied", {"asked": task.asked})
    rows = (
        _row(node, Precision.of("untouched", task.dtype), reason, scope.path)
        for scope in scopes(source.model)
        for node in scope.graph
    )
    why = "nothing was changed"
    return Description(source.clone(), tuple(rows), verdict=Judgement(Verdict.NOT_CHECKED, {"why": why}))
