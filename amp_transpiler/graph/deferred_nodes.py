"""Nodes that wait for sizes: they stand for what `autodiff/deferred.py` writes out once a step is fed."""

from __future__ import annotations

import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.random_copies import drawn_again
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.phrases import first_few, quoted

__all__ = ["WAITING_DOMAIN", "refuse_waiting", "waiting_nodes"]

WAITING_DOMAIN = "amp_transpiler"


def waiting_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that wait for sizes."""
    return [node for node in all_nodes(model) if node.domain == WAITING_DOMAIN]


def refuse_waiting(model: ir.Model, what: str) -> None:
    """Refuse a program with nodes that no ONNX Runtime knows, or that would draw again, before it gets out.

    Raises:
        ModelError: there are some; it says how to write the step.
    """
    waiting = waiting_nodes(model)
    if waiting:
        names = first_few(quoted(node.name for node in waiting))
        raise ModelError(
            f"{what}: {len(waiting)} gradients wait for sizes that the program leaves free ({names}), so that it "
            "cannot be written as it is. static.save_training_program(program, path, feed={input: shape}) writes the "
            "step for the shapes of its feed; or give static.data or from_onnx(input_shapes=) all sizes"
        )
    if drawn := drawn_again(all_nodes(model)):
        raise ModelError(
            f"{what}: {first_few(quoted(node.name for node in drawn))} drop at random in bodies of control flow that "
            "run again for their gradients, where ONNX's Dropout would drop others. static.save_training_program("
            "program, path) writes the step with operators that drop the same"
        )
