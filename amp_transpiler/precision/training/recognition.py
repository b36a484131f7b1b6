"""Recognises the training step in a loaded program: which outputs replace which inputs, by dataflow, never by name."""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping

import onnx_ir as ir

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.shape_inference import sizes_from_inputs
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.graph.walk import has_bodies

__all__ = ["find_training_step", "holds_gradients", "possible_states"]

logger = logging.getLogger(__name__)

_MOST_LOOKED_AT = 200
_TRAINING_DOMAIN = "ai.onnx.preview.training"


def find_training_step(
    model: ir.Model, bound: Mapping[str, str] | None = None, recorded: Mapping[str, str] | None = None
) -> TrainingStep | None:
    """Return the training step that a program is, or None.

    Args:
        model: a typed and prepared program: functions inlined, nodes in topological order. It is not changed.
        bound: input -> output that replaces it, for pairs that the user names.
        recorded: likewise, for pairs that the file names; those that are not there count for nothing.

    Raises:
        OptionError: a pair in `bound` cannot be: a name is unknown, or shape or type differ.
    """
    by_user, by_file = _checked(model, bound or {}), _recorded(model, recorded or {})
    reasons = dict.fromkeys(by_file, "the file says so") | dict.fromkeys(by_user, "named with --state")
    possible = _possible_pairs(model)
    if not possible and not reasons:
        return None
    if any(map(has_bodies, model.graph)):  # few models have control flow
        from amp_transpiler.precision.training.flatten import flattened, has_control_flow

        if has_control_flow(model):
            return find_training_step(flattened(model), bound, recorded)
    if not reasons:
        from amp_transpiler.precision.training.necessary import may_hold_gradients

        values, outputs = ([v for side in sides for v in side] for sides in zip(*possible.values(), strict=True))
        if not may_hold_gradients(model.graph, values, outputs):
            return None
    from amp_transpiler.precision.training.state_search import StateSearch  # for few programs only

    return StateSearch(model, possible.values(), by_file | by_user, reasons).run()


def _recorded(model: ir.Model, recorded: Mapping[str, str]) -> dict[ir.Value, ir.Value]:
    """Return the pairs that a file names, as values, without those whose names are gone or do not fit."""
    pairs: dict[ir.Value, ir.Value] = {}
    for name, output in recorded.items():
        try:
            pairs |= _checked(model, {name: output})
        except OptionError as error:
            logger.info("a state that the file names is not used: %s", error)
    return pairs


def possible_states(model: ir.Model) -> frozenset[str]:
    """Return the names of the inputs with an initial value that have the type and shape of some output."""
    pairs = _possible_pairs(model).values()
    return frozenset(str(value.name) for inputs, _ in pairs for value in inputs if value.is_initializer())


def holds_gradients(model: ir.Model) -> bool:
    """Whether a typed and prepared program without known states computes gradients of inputs or weights all the same.

    It does if it has operators that are gradients or optimizers by name, or if the gradient of a weight is proven that
    goes into an output of the weight's shape.
    """
    if any(node.op_type.endswith("Grad") or node.domain == _TRAINING_DOMAIN for node in model.graph):
        return True
    outputs = {(value.dtype, _static(value)): value for value in model.graph.outputs if _static(value)}
    weights = (*model.graph.inputs, *model.graph.initializers.values())
    pairs = {
        value: outputs[value.dtype, _static(value)] for value in weights if (value.dtype, _static(value)) in outputs
    }
    if not pairs:
        return False
    from amp_transpiler.precision.training.necessary import may_hold_gradients  # these are for few programs only

    if not may_hold_gradients(model.graph, pairs, pairs.values()):
        return False
    from amp_transpiler.precision.training.dataflow import Dataflow
    from amp_transpiler.precision.training.proofs import Proofs

    flow = Dataflow(model)
    proofs = Proofs(flow, pairs, {value: {value: 0} for value in pairs})
    return any(flow.size(proof.gradient) == flow.size(value) for value in proofs.found for proof in proofs.found[value])


def _checked(model: ir.Model, bound: Mapping[str, str]) -> dict[ir.Value, ir.Value]:
    """Return the given pairs as values."""
    inputs = {str(value.name): value for value in (*model.graph.initializers.values(), *model.graph.inputs)}
    outputs = {str(value.name): value for value in model.graph.outputs}
    pairs: dict[ir.Value, ir.Value] = {}
    for name, output in bound.items():
        which = f"--state {name}={output}"
        if name not in inputs:
            raise OptionError(f"{which}: the model has no input '{name}'; it has {', '.join(inputs) or 'none'}")
        if output not in outputs:
            raise OptionError(f"{which}: the model has no output '{output}'; it has {', '.join(outputs)}")
        old, new = inputs[name], outputs[output]
        if old.dtype != new.dtype or not _may_be_equal(old, new):
            raise OptionError(
                f"{which}: an update has the shape and type of its state, but '{name}' is {old.dtype} {old.shape} and "
                f"'{output}' is {new.dtype} {new.shape}"
            )
        if new in pairs.values():
            raise OptionError(f"{which}: output '{output}' is the update of another input already")
        pairs[old] = new
    return pairs


def _may_be_equal(old: ir.Value, new: ir.Value) -> bool:
    if old.shape is None or new.shape is None:
        return True
    sizes = zip(old.shape, new.shape, strict=False)
    return len(old.shape) == len(new.shape) and all(
        a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int)
    )


Key = tuple[ir.DataType | None, tuple[int, ...]]


def _possible_pairs(model: ir.Model) -> dict[Key, tuple[list[ir.Value], list[ir.Value]]]:
    """Return inputs and outputs by type and static shape, where there are both."""
    by_type: dict[Key, tuple[list[ir.Value], list[ir.Value]]] = collections.defaultdict(lambda: ([], []))
    inferred: dict[str, list[int | None]] | None = None
    for side, values in enumerate((model.graph.inputs, model.graph.outputs)):
        for value in values:
            shape = _static(value)
            if shape is None and side and _is_carried_from_static(value):
                inferred = sizes_from_inputs(model) if inferred is None else inferred
                sizes = inferred.get(str(value.name), [None])
                shape = None if None in sizes else tuple(size or 0 for size in sizes)
            if shape is not None:
                by_type[value.dtype, shape][side].append(value)
    return {key: pair for key, pair in by_type.items() if pair[0] and pair[1]}


def _is_carried_from_static(output: ir.Value) -> bool:
    """Whether elementwise arithmetic leads from an input of static shape and the same type to an output, soon."""
    # Asked only of outputs with an open shape.
    from amp_transpiler.precision.training.operators import is_elementwise, is_movement

    pending, seen = [output], {output}
    while pending and len(seen) < _MOST_LOOKED_AT:
        value = pending.pop()
        if value.is_graph_input() and value.dtype == output.dtype and _static(value):
            return True
        node = value.producer()
        if node is not None and (is_elementwise(node) or is_movement(node)):
            fresh = [operand for operand in node.inputs if operand is not None and operand not in seen]
            seen.update(fresh)
            pending.extend(fresh)
    return False


def _static(value: ir.Value) -> tuple[int, ...] | None:
    if value.shape is None or not all(isinstance(size, int) for size in value.shape):
        return None
    return tuple(int(size) for size in value.shape)  # type: ignore[arg-type]  # all are
