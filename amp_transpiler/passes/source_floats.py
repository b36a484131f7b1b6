"""Makes floats of the source float32 before anything is decided: other 16-bit formats, and float64 if that is asked."""

from __future__ import annotations

from amp_transpiler.graph.dtypes import FLOAT32
from amp_transpiler.graph.regions import DISABLE_AMP, region_of
from amp_transpiler.graph.walk import WIDENED, all_nodes
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.narrow_float64 import NarrowFloat64
from amp_transpiler.passes.widen_low_floats import WidenLowFloats
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.refitting import refitting_note
from amp_transpiler.program.program import Program

__all__ = ["make_float32"]


def make_float32(program: Program, policy: Policy) -> None:
    """Make floats float32, in place; the program gets the notes. It comes first: float32 may need no opset as new.

    Args:
        program: a typed program.
        policy: which floats, and which inputs and outputs with them.

    Raises:
        OptionError: the program has such floats where they cannot change.
    """
    _widen(program, policy)
    if policy.float64 != "keep":
        _narrow(program, policy)


def _widen(program: Program, policy: Policy) -> None:
    widened = run_pass(WidenLowFloats(policy.widens, policy.low_io), program.model)
    program.widened = widened.formats
    program.notes += widened.notes
    excluded = sum(
        node.meta.get(WIDENED) in widened.formats and DISABLE_AMP in region_of(node)
        for node in all_nodes(program.model)
    )
    if excluded:
        formats = " and ".join(sorted(widened.formats))
        program.notes.append(
            f"nodes inside disable_amp regions that were {formats} and compute in float32 now: {excluded}"
        )
    if policy.low is not FLOAT32:
        program.notes += refitting_note(widened.constants, policy.low)


def _narrow(program: Program, policy: Policy) -> None:
    graph = program.model.graph
    changes_all = policy.float64 == "float32-io"
    new_io = {str(value.name) for value in (*graph.inputs, *graph.outputs)} if changes_all else policy.low_io
    narrowed = run_pass(NarrowFloat64(new_io), program.model)
    program.notes += narrowed.notes
    if narrowed.modified:
        program.widened |= {"float64"}
        program.notes += refitting_note(narrowed.constants, FLOAT32)
