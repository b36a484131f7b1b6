"""Lists the known faults that a program meets in a release: limits, refused and wrong kernels, faults of ONNX Runtime.

Rows of `FAULTS` are those of docs/onnxruntime_faults.md that a graph shows and that not every release has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import all_nodes, scopes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.schema import own_opset
from amp_transpiler.passes.guard_transposes import crashing_products
from amp_transpiler.precision.device_faults import DeviceFaults
from amp_transpiler.report.release_difference import FaultChange, Which
from amp_transpiler.targets import Target
from amp_transpiler.targets.kernel_table import is_within
from amp_transpiler.targets.operator import Operator, imports_of, operator_of
from amp_transpiler.targets.provider import Provider

__all__ = ["FAULTS", "RuntimeFault", "fault_changes"]

Key = tuple[ir.Node | None, str, str]
"""A node, None for the model as a whole; the table, and the fault."""


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeFault:
    """A fault of ONNX Runtime.

    Attributes:
        name: that of docs/onnxruntime_faults.md.
        first: the first release that has it, of those that were tried.
        last: the last one; None: the newest has it.
        provider: `CPU` or `CUDA`.
        symptom: what happens.
        nodes: lists the nodes of a typed program that meet it.
    """

    name: str
    first: str
    last: str | None
    provider: str
    symptom: str
    nodes: Callable[[ir.Model], Iterable[ir.Node]]


FAULTS = (
    RuntimeFault(
        "transposed batch",
        "1.23",
        None,
        "CPU",
        "a session with default optimizations crashes on the CPU when it opens (SIGSEGV in MatmulTransposeFusion)",
        crashing_products,
    ),
)
"""A row a fault, as far as releases differ in it; the other faults of the page were seen in every release."""


def fault_changes(
    which: Which, model: ir.Model, releases: tuple[Target, Target], low: LowFormat, device: str
) -> tuple[FaultChange, ...]:
    """Return the faults that a program meets in only one of two releases.

    Args:
        which: which program it is.
        model: the program: typed, without functions.
        releases: a target as either release has it.
        low: the low format.
        device: the device whose kernels count.
    """
    paths = {node: scope.path for scope in scopes(model) for node in scope.graph}
    known = [dict.fromkeys(_faults(model, target, low, device)) for target in releases]
    changes = []
    for target, here, other in zip(releases, known, reversed(known), strict=True):
        elsewhere = {(node, table) for node, table, _ in other}
        for node, table, fault in here:
            if (node, table) not in elsewhere:
                name, op = ("", "") if node is None else (str(node.name), operator_name(node))
                scope = "" if node is None else paths[node]
                changes.append(
                    FaultChange(
                        model=which, node=name, op=op, release=target.ort, table=table, fault=fault, scope=scope
                    )
                )
    return tuple(changes)


def _faults(model: ir.Model, target: Target, low: LowFormat, device: str) -> Iterator[Key]:
    yield from _limits(model, target)
    yield from _refused_kernels(model, target)
    wrong = DeviceFaults(model, target, low, device)
    for node in all_nodes(model):
        types = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
        if low.dtype in types and (reason := wrong.of(node)) is not None:
            yield node, "wrong kernel", str(reason)
    names = {part.name.upper() for part in target.providers}
    for fault in FAULTS:
        if fault.provider in names and is_within(target.ort, fault.first, fault.last):
            for node in fault.nodes(model):
                yield node, "fault", f"{fault.symptom} ({fault.name})"


def _limits(model: ir.Model, target: Target) -> Iterator[Key]:
    opset, version = own_opset(model), model.ir_version
    if opset > target.newest_opset:
        reads = f"ONNX Runtime {target.ort} reads opsets up to {target.newest_opset}, and the model has {opset}"
        yield None, "limit", reads
    if version > target.newest_ir:
        reads = f"ONNX Runtime {target.ort} reads IR versions up to {target.newest_ir}, and the model has {version}"
        yield None, "limit", reads


def _refused_kernels(model: ir.Model, target: Target) -> Iterator[Key]:
    imports = imports_of(dict(model.graph.opset_imports))
    known: dict[Operator, str | None] = {}
    for node in all_nodes(model):
        operator = operator_of(node, imports)
        if operator not in known:
            known[operator] = _refusal(operator, target)
        if (reason := known[operator]) is not None:
            yield node, "refused kernel", reason


def _refusal(operator: Operator, target: Target) -> str | None:
    for part in target.providers:
        if isinstance(part, Provider) and (reason := part.refusal(operator)) is not None:
            return reason
    return None
