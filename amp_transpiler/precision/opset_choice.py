"""Chooses the opset that a program is converted at: its own, or a higher one at which more of its nodes can be low.

bfloat16 came to Conv at opset 22, where MaxPool, Dropout and others lose their CUDA kernels (`targets/kernel_table.py`
says why). So a higher opset is taken only if more computing nodes can be low there, and no node loses its kernel but
those that can be written in operators that keep theirs (`passes/rewrite_equivalents.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import onnx_ir as ir

from amp_transpiler.graph.dtypes import BFLOAT16, LowFormat
from amp_transpiler.graph.node_kind import Kind, kind_at, kind_of
from amp_transpiler.graph.walk import all_nodes, has_bodies
from amp_transpiler.ops.kinds import COMPUTE
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.precision.constraints import FIRST_OPSET_WITH_BFLOAT16, Constraints, touches_float32
from amp_transpiler.targets import Target
from amp_transpiler.targets.operator import operator_of

__all__ = [
    "FIRST_OPSET_WITH_BFLOAT16",
    "OpsetChoice",
    "asked_opset",
    "choose_opset",
    "opset_for_io",
    "opset_past_renames",
    "opset_without_loss",
]

_RENAMED = {"Upsample": "Resize", "Scatter": "ScatterElements"}
_OPSET_OF_NEW_NAMES = 11  # by which all of them have their new names, and say what Resize does between pixels


@dataclasses.dataclass(frozen=True, slots=True)
class OpsetChoice:
    """The opset chosen.

    Attributes:
        opset: the version to be in.
        reason: one sentence; empty where the program stays as it is.
        rewrite: nodes that need an equivalent there because they lose their kernel.
    """

    opset: int
    reason: str = ""
    rewrite: tuple[ir.Node, ...] = ()


def opset_for_io(model: ir.Model, low: LowFormat) -> OpsetChoice:
    """Return the opset that a model needs for inputs and outputs in `low`."""
    opset = opset_of(model, "")
    if low is not BFLOAT16 or opset >= FIRST_OPSET_WITH_BFLOAT16:
        return OpsetChoice(opset)
    reason = f"opset raised to {FIRST_OPSET_WITH_BFLOAT16}: inputs and outputs become bfloat16"
    return OpsetChoice(FIRST_OPSET_WITH_BFLOAT16, reason)


def opset_past_renames(model: ir.Model, low: LowFormat) -> OpsetChoice:
    """Return the opset at which operators with an old name have their new one, for a format that is newer than both.

    An operator that is gone at a newer opset would else seem to lose its kernel there, and keep the model where nothing
    can be bfloat16.
    """
    opset = opset_of(model, "")
    if low is not BFLOAT16 or opset >= _OPSET_OF_NEW_NAMES:
        return OpsetChoice(opset)
    nodes = [node for node in all_nodes(model) if is_standard(node)]
    old = sorted({node.op_type for node in nodes} & set(_RENAMED))
    if not old or not any(node.op_type in COMPUTE for node in nodes):
        return OpsetChoice(opset)
    renamed = ", ".join(f"{name} is {_RENAMED[name]}" for name in old)
    return OpsetChoice(
        _OPSET_OF_NEW_NAMES, f"opset {opset} -> {_OPSET_OF_NEW_NAMES}: {renamed} there, on the way to {low.name}"
    )


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Count:
    """Nodes that can be low. Of two counts, the one with more computing nodes is the greater."""

    computing: int = 0
    nodes: int = 0

    def __add__(self, other: _Count) -> _Count:
        return _Count(self.computing + other.computing, self.nodes + other.nodes)


@dataclasses.dataclass(slots=True)
class _Group:
    """The nodes of one kind: whether they can be low or lose their kernel is the same for all.

    Attributes:
        kind: theirs, at the program's own opset.
        nodes: the nodes.
        wanted: those that the rules would make low.
    """

    kind: Kind
    nodes: list[ir.Node]
    wanted: _Count


def choose_opset(
    model: ir.Model,
    constraints: Constraints,
    has_equivalent: Callable[[ir.Node], bool],
    can_lower: Callable[[ir.Node], bool] = lambda _: True,
) -> OpsetChoice:
    """Return the opset at which the most computing nodes can be low, then the most nodes; the lowest of equals.

    Args:
        model: a typed program.
        constraints: the constraints of its nodes.
        has_equivalent: whether a node can be written in operators that keep their kernels.
        can_lower: whether the rules would make a node low; nodes that they would not do not count.
    """
    model_opset = opset_of(model, "")
    groups = _groups(model, model_opset, can_lower)
    total = sum((group.wanted for group in groups), _Count())
    start = most = _can_be_low(groups, constraints, model_opset)
    best = OpsetChoice(model_opset)
    for opset in _candidates(groups, model_opset, constraints.target):
        low = _can_be_low(groups, constraints, opset)
        if low <= most or most == total:
            continue
        lost = [
            node for group in groups if _loses_kernel(group, constraints, model_opset, opset) for node in group.nodes
        ]
        if lost and low.computing == most.computing:
            continue  # the equivalents of lost nodes cost more than cheap nodes gain by being low
        if all(map(has_equivalent, lost)):
            reason = _reason(start, low, total, constraints.low.name, lost)
            best, most = OpsetChoice(opset, f"opset {model_opset} -> {opset}: {reason}", tuple(lost)), low
    return best


def asked_opset(
    model: ir.Model, constraints: Constraints, has_equivalent: Callable[[ir.Node], bool], opset: int
) -> OpsetChoice:
    """Return the opset that the user asked for, at or above the model's own.

    Nodes that lose their kernel there are rewritten if they can be.

    Args:
        model: a typed program.
        constraints: the constraints of its nodes.
        has_equivalent: whether a node can be written in operators that keep their kernels.
        opset: the opset.
    """
    model_opset = opset_of(model, "")
    if opset == model_opset:
        return OpsetChoice(model_opset)
    groups = _groups(model, model_opset, lambda _: True)
    lost = [node for group in groups if _loses_kernel(group, constraints, model_opset, opset) for node in group.nodes]
    rewrite = tuple(filter(has_equivalent, lost))
    notes = (
        ("written in operators that keep their kernels", {node.op_type for node in rewrite}),
        (
            f"without a kernel on {constraints.target.name} there",
            {node.op_type for node in lost if node not in rewrite},
        ),
    )
    told = [f"; {', '.join(sorted(op_types))} {what}" for what, op_types in notes if op_types]
    return OpsetChoice(opset, f"opset {model_opset} -> {opset} as asked{''.join(told)}", rewrite)


def opset_without_loss(model: ir.Model, constraints: Constraints, opset: int, reason: str) -> OpsetChoice:
    """Return a higher opset if no node loses its kernel there and as many can be low; else the program's own.

    Args:
        model: a typed program.
        constraints: the constraints of its nodes.
        opset: the opset.
        reason: what it is raised for.
    """
    model_opset = opset_of(model, "")
    groups = _groups(model, model_opset, lambda _: True)
    loses = any(_loses_kernel(group, constraints, model_opset, opset) for group in groups)
    before, after = (_can_be_low(groups, constraints, version) for version in (model_opset, opset))
    if loses or after < before:
        return OpsetChoice(model_opset)
    return OpsetChoice(opset, f"opset {model_opset} -> {opset}: {reason}")


def _groups(model: ir.Model, opset: int, can_lower: Callable[[ir.Node], bool]) -> list[_Group]:
    """Group the nodes of ONNX's own domain with a float32 tensor and no body by their kinds."""
    groups: dict[Kind, _Group] = {}
    for node in all_nodes(model):
        if is_standard(node) and touches_float32(node) and not has_bodies(node):
            kind = kind_of(node, opset)
            group = groups.setdefault(kind, _Group(kind, [], _Count()))
            group.nodes.append(node)
            if can_lower(node):
                group.wanted += _Count(int(node.op_type in COMPUTE), 1)
    return list(groups.values())


def _can_be_low(groups: list[_Group], constraints: Constraints, opset: int) -> _Count:
    """Count the nodes that can be low at `opset`."""
    kinds = ((group, kind_at(group.kind, opset)) for group in groups)
    forms = ((group, constraints.of(group.nodes[0], opset=opset, kind=kind).form) for group, kind in kinds)
    return sum((group.wanted for group, form in forms if form is not None), _Count())


def _candidates(groups: list[_Group], model_opset: int, target: Target) -> Iterator[int]:
    """Opsets above `own` at which the schema of a node of the program changes."""
    op_types = {group.nodes[0].op_type for group in groups}
    versions = {version for op_type in op_types for version in target.release.schema_versions("", op_type)}
    return iter(sorted(version for version in versions if model_opset < version <= target.newest_opset))


def _loses_kernel(group: _Group, constraints: Constraints, model_opset: int, opset: int) -> bool:
    """Whether nodes leave their provider at `opset`: they have a float32 kernel at `own`, and none of any type there.

    A node that only a fallback ran must still be run by some provider.
    """
    node, providers = group.nodes[0], constraints.target.providers
    version = constraints.target.release.schema_version
    if version("", node.op_type, model_opset) == version("", node.op_type, opset):
        return False
    if constraints.of(node, opset=opset).form is not None:
        return False
    before, after = (
        [provider.has_kernel(operator_of(node, constraints.imports(version))) for provider in providers]
        for version in (model_opset, opset)
    )
    return any(before) and (not any(after) or (before[0] and not after[0]))


def _reason(before: _Count, after: _Count, total: _Count, low: str, lost: list[ir.Node]) -> str:
    if after.computing > before.computing:
        counts = f"{after.computing} instead of {before.computing} of {total.computing} computing nodes"
    else:
        counts = f"{after.nodes} instead of {before.nodes} of {total.nodes} nodes"
    if not lost:
        return f"{counts} can be {low}"
    op_types = ", ".join(sorted({node.op_type for node in lost}))
    return f"{counts} can be {low}; {op_types} written in operators that keep their kernels"
