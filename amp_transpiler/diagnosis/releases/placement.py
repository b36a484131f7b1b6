"""Says by the kernel tables where a release of ONNX Runtime runs each node, and what it copies between devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.cost.operators import HOST, HOST_INPUTS
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.walk import has_bodies, scopes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.report.release_difference import CopyCount, PlacementChange, Which
from amp_transpiler.targets import CPU, Target
from amp_transpiler.targets.operator import Operator, imports_of, operator_of

__all__ = ["Placement", "copy_count", "placed", "placement_changes"]

_NOWHERE = "no kernel"
_WRITTEN_OUT = ", written out"


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where a release runs the nodes of a program.

    Attributes:
        places: node -> where it runs, and the path of its scope; without nodes of constants, which are computed once.
        copies: the names of the values that are copied between devices.
    """

    places: Mapping[ir.Node, tuple[str, str]]
    copies: tuple[str, ...]


def placed(model: ir.Model, target: Target) -> Placement:
    """Look all nodes of a typed program up in the tables of a target's release."""
    imports = imports_of(dict(model.graph.opset_imports))
    known: dict[Operator, str] = {}
    places: dict[ir.Node, tuple[str, str]] = {}
    folded: set[ir.Value] = set()
    for scope in scopes(model):
        for node in scope.graph:
            if node.inputs and all(_is_constant(value, folded) for value in node.inputs):
                folded.update(node.outputs)
                continue
            operator = operator_of(node, imports)
            if operator not in known:
                known[operator] = _place(operator, target)
            places[node] = (known[operator], scope.path)
    return Placement(places, tuple(dict.fromkeys(_copies(places, folded))))


def _is_constant(value: ir.Value | None, folded: Container[ir.Value]) -> bool:
    return value is None or value in folded or constant_of(value) is not None


def _place(operator: Operator, target: Target) -> str:
    for part in target.providers:
        if part.takes(operator):
            return part.name
    for part in (target, *target.providers):
        if part.runs(operator):
            return f"{part.name}{_WRITTEN_OUT}"
    return _NOWHERE


def _copies(places: Mapping[ir.Node, tuple[str, str]], folded: Container[ir.Value]) -> Iterator[str]:
    """Yield the names of the values that a node of another device reads; what kernels read in main memory is none."""
    made_on = _makers(places, folded)
    for node in places:
        for value in node.outputs:
            for use in value.uses():
                place, reads_on = made_on[node], made_on.get(use.node, "")
                is_on_host = use.idx in HOST_INPUTS.get(use.node.op_type, ())
                if place and reads_on and reads_on != place and not (is_on_host and place == CPU.name):
                    yield str(value.name)


def _makers(places: Mapping[ir.Node, tuple[str, str]], folded: Container[ir.Value]) -> dict[ir.Node, str]:
    """Return node -> the provider in whose memory its results are made; empty if no provider runs it.

    Shapes, and the integers that are computed from nothing else, stay on the CPU: ONNX Runtime puts them there.
    """
    made_on: dict[ir.Node, str] = {}
    for node, (place, _) in places.items():
        reads = [value for value in node.inputs if not _is_constant(value, folded)]
        makers = [None if value is None else value.producer() for value in reads]
        is_host = bool(makers) and all(maker is not None and made_on.get(maker) == CPU.name for maker in makers)
        is_float = any(value.dtype is None or value.dtype.is_floating_point() for value in node.outputs)
        if place == _NOWHERE:
            made_on[node] = ""
        elif node.op_type in HOST or (is_host and not is_float and not has_bodies(node)):
            made_on[node] = CPU.name
        else:
            made_on[node] = place.removesuffix(_WRITTEN_OUT)
    return made_on


def placement_changes(which: Which, old: Placement, new: Placement) -> Iterator[PlacementChange]:
    """Yield the nodes that run elsewhere; both placements are of the same program."""
    for node, (place, scope) in old.places.items():
        other = new.places[node][0]
        if other != place:
            yield PlacementChange(
                model=which, node=str(node.name), op=operator_name(node), old=place, new=other, scope=scope
            )


def copy_count(which: Which, old: Placement, new: Placement) -> CopyCount | None:
    """Return the copies of both releases; None if they are the same."""
    if set(old.copies) == set(new.copies):
        return None
    return CopyCount(
        model=which,
        old=len(old.copies),
        new=len(new.copies),
        appearing=tuple(name for name in new.copies if name not in old.copies),
        vanishing=tuple(name for name in old.copies if name not in new.copies),
    )
