"""Describes a conversion in its report: from the source before a conversion, and from the result after it."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import onnx_ir as ir

from amp_transpiler.conversion import Conversion
from amp_transpiler.files.external_data import external_files
from amp_transpiler.graph.dtypes import FLOAT32, dtype_name
from amp_transpiler.graph.tensors import tensor_bytes
from amp_transpiler.graph.walk import scopes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.schema import own_opset
from amp_transpiler.passes.inserted_casts import INSERTED
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.reasons import Reason, Sentence
from amp_transpiler.program.program import Program
from amp_transpiler.report.attributes import attribute_words
from amp_transpiler.report.precision import Precision, kind_of
from amp_transpiler.report.record import CastRow, DecisionRow, ReportRecord
from amp_transpiler.report.report import Report
from amp_transpiler.report.verdict import Judgement, Verdict

__all__ = ["describe_copy", "describe_needless", "describe_result", "describe_source"]


def describe_source(
    source: Program, destination: pathlib.Path | None, policy: Policy, *, level: str | None, system: str, asked: str
) -> Report:
    """Return a report with the request and the state of the source.

    Args:
        source: the program before the conversion.
        destination: the path of the result, or None.
        policy: how the conversion decides.
        level: the level's name; None where the system has no levels.
        system: whose rules decide.
        asked: the request in words.
    """
    opset, weights = own_opset(source.model), sum(tensor_bytes(source.model))
    return Report(
        repr(source) if source.source is None else str(source.source),
        level,
        policy.low.name,
        policy.target.name,
        ort=policy.target.ort,
        system=system,
        asked=asked,
        is_copy=policy.copies,
        destination=None if destination is None else str(destination),
        opset=(opset, opset),
        weight_bytes=(weights, weights),
        file_bytes=(_file_bytes(source), None),
    )


def _file_bytes(program: Program) -> int | None:
    """Return the size of the source's files: the model and its external data; None for a source in memory."""
    if program.source is None:
        return None
    return sum(file.stat().st_size for file in {program.source, *external_files(program.model)})


def describe_result(report: ReportRecord, program: Program, conversion: Conversion, policy: Policy) -> None:
    """Add the decisions and the state of the result to `report`, as a policy has made it."""
    decisions = conversion.assignment.decisions
    report.program = program
    report.states = () if program.step is None else program.step.states
    report.decisions = tuple(_rows(program.model, conversion.assignment))
    report.nodes = len(report.decisions)
    report.low_nodes = sum(decision.precision == "low" for decision in decisions.values())
    report.high_nodes = sum(decision.precision == "high" for decision in decisions.values())
    asked = policy.objective != "rules" and policy.low is not FLOAT32
    report.kept_float32 = asked and not policy.low_io and not report.low_nodes and report.high_nodes > 0
    report.casts, report.casts_removed = conversion.casts, conversion.casts_removed
    report.casts_at = tuple(_casts(program.model))
    report.opset = (report.opset[0], own_opset(program.model))
    report.weight_bytes = (report.weight_bytes[0], sum(tensor_bytes(program.model)))
    report.missing_kernels = dict(conversion.assignment.missing_kernels)
    report.notes = (*program.notes, *report.notes)


def describe_needless(report: ReportRecord, trial: Program, conversion: Conversion, written: int | None) -> None:
    """Describe a source that is what was asked for already.

    Args:
        report: the report of the conversion.
        trial: the source, converted: nothing that matters has changed.
        conversion: the record of that.
        written: bytes of the written copy, or None.
    """
    report.states = () if trial.step is None else trial.step.states
    report.program = trial  # the source again, with names and types for every node
    report.decisions = tuple(_rows(trial.model, conversion.assignment))
    report.nodes = len(report.decisions)
    report.high_nodes = sum(kind_of(row.precision) == "high" for row in report.decisions)
    report.missing_kernels = dict(conversion.assignment.missing_kernels)
    report.file_bytes = (report.file_bytes[0], written)
    if written is None:
        report.destination = None
    if report.dtype == "float32":
        why = "the model holds no 16-bit floats"
    else:
        why = f"the model holds {report.dtype} already, and no more of it becomes {report.dtype}"
    report.verdict = Judgement(Verdict.NOT_CHECKED, {"needless": f"nothing to do: {why}"}).as_text()
    report.notes = ("the result is a copy of the source, unchanged",) if written is not None else ()


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


def describe_copy(report: ReportRecord, source: Program, written: int | None) -> None:
    """Describe a copy of the source in `report`.

    Args:
        report: the report of the conversion.
        source: the program.
        written: bytes of the written files, or None.
    """
    reason = Reason("copied", {"asked": report.asked})
    report.program = source.clone()
    report.decisions = tuple(
        _row(node, Precision.of("untouched", report.dtype), reason, scope.path)
        for scope in scopes(source.model)
        for node in scope.graph
    )
    report.nodes = len(report.decisions)
    report.file_bytes = (report.file_bytes[0], written)
    report.verdict = Judgement(Verdict.NOT_CHECKED, {"why": "nothing was changed"}).as_text()
