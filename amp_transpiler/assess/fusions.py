"""Says what was fused before the decision, and what was not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from amp_transpiler.ops.fusions import only_in_onnxruntime
from amp_transpiler.precision.policy import Policy
from amp_transpiler.report.facts import Findings

if TYPE_CHECKING:
    from amp_transpiler.fusion.fuse import Fused

__all__ = ["said_of_fusing"]


def said_of_fusing(fused: Fused, policy: Policy, *, by_default: bool) -> Findings:
    """Return what was fused in words; who asked for it hears what was not, too.

    Args:
        fused: what was fused.
        policy: how nodes are decided.
        by_default: nobody asked for it.
    """
    if fused.reason:
        return Findings() if by_default else Findings(warnings=(f"nothing fused: {fused.reason}",))
    notes = [] if by_default else list(_not_fused(fused, policy))
    if fused.operators:
        has_own = bool(only_in_onnxruntime(fused.operators))
        needs = "; the result needs ONNX Runtime, whose own operators are among them" if has_own else ""
        undo = ", which --fuse none leaves out" if by_default else ""
        notes.append(f"fused before the decision{undo}: {_counted(fused.operators)}{needs}")
    return Findings(notes=tuple(notes))


def _not_fused(fused: Fused, policy: Policy) -> Iterator[str]:
    if fused.missing:
        without = f"ONNX Runtime {policy.target.ort} has no sound {policy.low.name} kernel for it"
        yield f"not fused, since {without}: {', '.join(fused.missing)}"
    if fused.slower:
        yield f"not fused, since the price list says that it is faster without: {', '.join(fused.slower)}"
    if fused.torn:
        yield f"not fused, since a region holds only some of the nodes: {_counted(fused.torn)}"
    if fused.named:
        yield f"not fused, since the lists name {', '.join(fused.names)}: {_counted(fused.named)}"


def _counted(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.rpartition('::')[2]}" for name, count in operators.items())
