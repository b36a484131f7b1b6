"""Converting a program in memory: preparing it, deciding, carrying the decision out. No checks beyond types."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.dtypes import BFLOAT16
from amp_transpiler.graph.names import NameAllocator, name_nodes
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.regions import DISABLE_AMP, region_of
from amp_transpiler.graph.shape_inference import complete_shapes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import faults, verify
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.limits import NEWEST_IR, NEWEST_OPSET
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.cast_cleanup import clean_casts
from amp_transpiler.passes.casts import INSERTED, apply_assignment
from amp_transpiler.passes.constants import skip_identities, unify_constants
from amp_transpiler.passes.equivalents import EQUIVALENTS, rewrite_equivalents
from amp_transpiler.passes.fold_batch_norm import fold_batch_norm
from amp_transpiler.passes.functions import inline_functions
from amp_transpiler.passes.fusion_guard import guard_fusions
from amp_transpiler.passes.newer_operators import write_out_newer_operators
from amp_transpiler.passes.opset import OpsetConversionError, convert_opset, lower_opset
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.constraints import RangeFaults, Target, constrain
from amp_transpiler.precision.opset_choice import choose_opset
from amp_transpiler.precision.policy import Policy

__all__ = ["Conversion", "convert", "fitted", "prepare", "prepare_and_convert"]

logger = logging.getLogger(__name__)

_FIRST_IR_WITH_NODE_METADATA = 10
_OPSET_OF_CASTS = 13  # for a program without any operator of ONNX's own domain
_FIRST_OPSET_WITH_BFLOAT16 = 13  # where Cast knows it
_LAST_IR_WITH_INITIALIZERS_AS_INPUTS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Conversion:
    """What was done to a program.

    Attributes:
        assignment: the decision.
        converted: names of the constants that became low.
        casts: casts that the conversion put in and that are there at the end.
        casts_removed: casts of the source that became needless.
    """

    assignment: Assignment
    converted: set[str]
    casts: int
    casts_removed: int


def prepare_and_convert(program: Program, policy: Policy) -> Conversion:
    """Prepare a program, a model or a training program, and convert it, in place and unchecked but for types.

    Args:
        program: what to convert; it no longer is what its source file holds.
        policy: what to go by; what it says of parameters and training is taken from the program.

    Raises:
        ModelError: the program was not valid to begin with, or needs an opset that ONNX Runtime does not know.
        OptionError: the system at hand refuses the program.
        VerificationError: the result is not well typed.
    """
    policy = fitted(policy, program)
    ranges = RangeFaults(policy.low, strict=policy.strict_ranges)
    prepare(program, policy, ranges)
    conversion = convert(program, policy, ranges)
    if program.is_training:
        complete_shapes(program.model)  # which a backward pass goes by, of the operators that were put in
    program.touch()
    program.source = None
    return conversion


def fitted(policy: Policy, program: Program) -> Policy:
    """Return the policy with what it says of parameters and training taken from a program.

    What replaces another persistable value after a run is none of those that may become low.
    """
    parameters = frozenset(p.name for p in program.persistables.values() if p.kind == "parameter")
    parameters -= frozenset(program.updates.values())
    rules = policy.rules.with_source_opsets(dict(program.model.graph.opset_imports))
    return dataclasses.replace(policy, rules=rules, parameters=parameters, training=program.is_training)


def prepare(program: Program, policy: Policy, ranges: RangeFaults) -> None:
    """Bring a program into the form that deciding works on, in place; it computes the same as before.

    Functions are inlined, nodes named, constants and types settled, the opset chosen, and normalisations
    folded into the convolutions before them where they could not be low themselves.

    Raises:
        ModelError: the program was not valid to begin with, or needs an opset that ONNX Runtime does not know.
    """
    model, what = program.model, str(program.source or "the model")
    if calls := inline_functions(model):
        program.notes.append(f"{calls} calls of model-local functions were inlined")
    _release_initializers(program)
    unify_constants(model)
    skip_identities(model, keep=program.is_training)
    name_nodes(model, NameAllocator(model))
    propagate_types(model)
    if fault := next(faults(model), None):
        raise ModelError(f"{what}: the model is invalid as it is, before any conversion: {fault}")
    model.graph.opset_imports.setdefault("", _OPSET_OF_CASTS)
    if not _lower_opset(program):
        raise ModelError(
            f"{what}: uses operators newer than opset {NEWEST_OPSET}, which ONNX Runtime does not know yet"
        )
    _settle_opset(program, policy, Target(policy.target, policy.low, training=policy.training))
    _fold(program, policy, ranges)
    _settle_ir_version(model)


def convert(program: Program, policy: Policy, ranges: RangeFaults) -> Conversion:
    """Decide about a prepared program and carry the decision out, in place.

    Raises:
        VerificationError: the result is not well typed.
    """
    model = program.model
    with _put_out(program, policy):
        assignment = assign(model, policy, ranges)
        converted = apply_assignment(model, assignment, NameAllocator(model))
        removed = clean_casts(model)
    guard_fusions(model)
    verify(model, "carrying out the assignment")
    casts = sum(INSERTED in node.meta for node in all_nodes(model))
    logger.info("%d constants converted, %d casts added, %d removed", len(converted), casts, removed)
    return Conversion(assignment, converted, casts, removed)


@contextlib.contextmanager
def _put_out(program: Program, policy: Policy) -> Iterator[None]:
    """Make what must not change its type an output of a training program's graph, which otherwise has none.

    That is what replaces a persistable value after a run, and what is fetched unless it may come as it is computed.
    """
    if not program.is_training:
        yield
        return
    graph, before = program.model.graph, [str(value.name) for value in program.model.graph.outputs]
    fetched = () if policy.outputs_as_computed else program.outputs
    graph.outputs.clear()
    values = [program.find(name) for name in dict.fromkeys((*program.updates.values(), *fetched))]
    graph.outputs.extend(value for value in values if value is not None and not value.is_graph_input())
    try:
        yield
    finally:
        graph.outputs.clear()
        program.touch()
        graph.outputs.extend(program.value(name) for name in before)


def _lower_opset(program: Program) -> bool:
    """Bring the program to an opset that ONNX Runtime reads, writing newer operators out where ONNX defines how."""
    model = program.model
    if lower_opset(model, NEWEST_OPSET):
        return True
    written = write_out_newer_operators(model, NEWEST_OPSET)
    if not written or not lower_opset(model, NEWEST_OPSET):
        return False
    unify_constants(model)
    name_nodes(model, NameAllocator(model))
    propagate_types(model)
    program.notes.append(f"newer than opset {NEWEST_OPSET}, so written out by definition: {', '.join(written)}")
    return True


def _release_initializers(program: Program) -> None:
    """Make initializers constants in models so old that every one of them had to be listed as an input."""
    model = program.model
    listed = [value for value in model.graph.inputs if value.is_initializer()]
    if model.ir_version <= _LAST_IR_WITH_INITIALIZERS_AS_INPUTS:
        for value in listed:
            model.graph.inputs.remove(value)
        old, model.ir_version = model.ir_version, _LAST_IR_WITH_INITIALIZERS_AS_INPUTS + 1
        if listed:
            program.notes.append(
                f"{len(listed)} initializers, inputs by the rules of IR version {old}, are constants now"
            )
    elif listed:
        program.notes.append(
            f"{len(listed)} initializers are graph inputs, so callers may override them: they stay float32 and are "
            "cast at run time; export without keep_initializers_as_inputs to have them converted"
        )


def _settle_opset(program: Program, policy: Policy, target: Target) -> None:
    model = program.model
    if policy.low_io and policy.low is BFLOAT16 and opset_of(model, "") < _FIRST_OPSET_WITH_BFLOAT16:
        convert_opset(model, _FIRST_OPSET_WITH_BFLOAT16)
        program.notes.append(f"opset raised to {_FIRST_OPSET_WITH_BFLOAT16}: inputs and outputs are to be bfloat16")
    choice = choose_opset(model, target, _has_equivalent, policy.rules.can_lower)
    if not choice.reason:
        return
    names = {str(node.name) for node in choice.rewrite}
    try:
        convert_opset(model, choice.opset)
    except OpsetConversionError as error:
        program.notes.append(f"opset kept at {opset_of(model, '')}: {error}")
        return
    rewrite_equivalents(model, [node for node in all_nodes(model) if node.name in names])
    name_nodes(model, NameAllocator(model))
    propagate_types(model)
    verify(model, f"raising the opset to {choice.opset}")
    program.notes.append(choice.reason)


def _has_equivalent(node: ir.Node) -> bool:
    equivalent = EQUIVALENTS.get(node.op_type)
    return equivalent is not None and equivalent.applies(node) is None


def _fold(program: Program, policy: Policy, ranges: RangeFaults) -> None:
    """Fold a BatchNormalization that must stay high into a producer that can be low."""
    model, target = program.model, Target(policy.target, policy.low, training=policy.training)

    def can_be_low(node: ir.Node) -> bool:
        inputs = policy.rules.low_inputs_of_norms if node.op_type == "BatchNormalization" else None
        form = constrain(model, node, target, inputs=inputs).form
        return form is not None and not any(ranges.of(node.inputs[index]) for index in form.inputs)

    def wanted(node: ir.Node) -> bool:
        producer = node.inputs[0].producer() if node.inputs[0] is not None else None
        if producer is None or DISABLE_AMP in region_of(node) or region_of(node) != region_of(producer):
            return False  # what the user wants as it is written is not rewritten
        return policy.rules.may_fold(node, producer) and can_be_low(producer) and not can_be_low(node)

    folded = fold_batch_norm(model, wanted)
    if folded:
        propagate_types(model)
        verify(model, "folding BatchNormalization")
        program.notes.append(f"{len(folded)} BatchNormalization nodes folded into their producers")


def _settle_ir_version(model: ir.Model) -> None:
    """Raise the IR version to what the opset and the metadata of nodes need, and lower it to what can be loaded."""
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.graph.opset_imports.items()]
    needed = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    if any(node.metadata_props for node in all_nodes(model)):
        needed = max(needed, _FIRST_IR_WITH_NODE_METADATA)
    model.ir_version = min(max(model.ir_version, needed), NEWEST_IR)
