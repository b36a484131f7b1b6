"""Converts a program in memory: prepares it, decides, and carries the decision out. It checks only types."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from amp_transpiler import passes
from amp_transpiler.errors import ModelError, OptionError
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT32
from amp_transpiler.graph.form_check import check_forms
from amp_transpiler.graph.regions import DISABLE_AMP, INCLUDE, drop_region, has_guard, is_kept, region_of
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.shape_inference import complete_shapes, written_bytes
from amp_transpiler.graph.tensors import tensor_bytes
from amp_transpiler.graph.training_step import UPDATES_KEY
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import faults
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import operator_name
from amp_transpiler.passes.apply_assignment import ApplyAssignment
from amp_transpiler.passes.clean_casts import CleanCasts
from amp_transpiler.passes.import_domains import ImportDomains
from amp_transpiler.passes.inserted_casts import INSERTED
from amp_transpiler.passes.limit_opset import LimitOpset
from amp_transpiler.passes.manager import Pass, PassFor, PassManager, PassResult, run_pass
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.passes.raise_opset import RaiseOpset
from amp_transpiler.passes.release_initializers import ReleaseInitializers, lists_every_initializer
from amp_transpiler.passes.set_ir_version import SetIrVersion
from amp_transpiler.passes.standard_opset import OpsetConversionError
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.constraints import Constraints
from amp_transpiler.precision.device_faults import QUICK_GELU, SKIP_NORMS, DeviceFaults, faulty_operators
from amp_transpiler.precision.opset_choice import (
    FIRST_OPSET_WITH_BFLOAT16,
    OpsetChoice,
    asked_opset,
    choose_opset,
    opset_for_io,
    opset_past_renames,
)
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.training import find_training_step, possible_states
from amp_transpiler.program.low_values import has_values_of
from amp_transpiler.program.program import Program
from amp_transpiler.targets.kernel_table import is_within
from amp_transpiler.targets.webgpu import WEBGPU
from amp_transpiler.view.outline import outline

if TYPE_CHECKING:
    from amp_transpiler.cost import NodeCost
    from amp_transpiler.precision.balance import Aim, Candidate

__all__ = [
    "Conversion",
    "Trials",
    "candidate_of",
    "convert",
    "fitted",
    "plain_copy",
    "prepare",
    "prepare_and_convert",
    "written_traffic",
]

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Conversion:
    """A decision carried out.

    Attributes:
        assignment: the decision.
        converted: names of the constants that are in lower precision now.
        casts: inserted casts that are left at the end.
        casts_removed: casts of the source that were removed.
    """

    assignment: Assignment
    converted: frozenset[str]
    casts: int
    casts_removed: int


def prepare_and_convert(program: Program, policy: Policy) -> Conversion:
    """Prepare a program and convert it, in place.

    Args:
        program: a model or a training program. Its `source` is cleared, since the file holds another program now.
        policy: how to decide; `parameters` and `training` are taken from the program.

    Raises:
        ModelError: the program is invalid, or needs an opset that ONNX Runtime does not know.
        OptionError: the policy's system refuses the program.
        VerificationError: the result is not well typed.
    """
    if program.training_info:  # few models have it
        from amp_transpiler.program.training_info import merge

        merge(program)
    policy = fitted(policy, program)
    ranges = RangeFaults(policy.low, strict=policy.strict_ranges)
    prepare(program, policy, ranges)
    if program.has_variables:
        from amp_transpiler.passes.raise_low_nodes import RaiseLowNodes
        from amp_transpiler.training_passes.split_biases import SplitBiases

        run_pass(
            RaiseLowNodes(_forward(program, policy, policy.rules.raises), set(program.updates.values())), program.model
        )
        run_pass(SplitBiases(_forward(program, policy, policy.rules.separates_bias)), program.model)
    conversion = convert(program, policy, ranges)
    if program.merged is not None:
        from amp_transpiler.program.training_info import split

        split(program)
    if program.has_variables:
        complete_shapes(program.model)  # a backward pass needs the shapes of the new operators too
    program.touch()
    program.source = None
    return conversion


def _forward(program: Program, policy: Policy, rule: Callable[[ir.Node], bool]) -> Callable[[ir.Node], bool]:
    """Return whether a rule of the system holds for a node: one of the forward pass, where regions leave it a say."""
    guarded = policy.use_guard and has_guard(program.model)

    def holds(node: ir.Node) -> bool:
        if role_of(node) != "forward" or DISABLE_AMP in region_of(node) or is_kept(node, guarded=guarded):
            return False
        return rule(node)

    return holds


def fitted(policy: Policy, program: Program) -> Policy:
    """Return the policy with `parameters`, `training` and the rules' source opsets taken from a program.

    Parameters that another value updates stay float32.
    """
    parameters = frozenset(p.name for p in program.persistables.values() if p.kind == "parameter")
    parameters -= frozenset(program.updates.values())
    rules = policy.rules.with_source_opsets(dict(program.model.graph.opset_imports))
    return dataclasses.replace(policy, rules=rules, parameters=parameters, training=program.has_variables)


@collection_paused()
def prepare(program: Program, policy: Policy, ranges: RangeFaults) -> None:
    """Bring a program into the form that decisions are made about, in place; it computes the same as before.

    Args:
        program: the program. If it is a loaded training step, its `step` is set and its optimizer is marked.
        policy: how decisions will be made, and what the user wishes of a training step.
        ranges: a look-up of constants.

    Raises:
        ModelError: the program is invalid, or needs an opset that ONNX Runtime does not know.
        OptionError: a wish about the training step cannot be met.
    """
    model, source = program.model, str(program.source or "the model")
    program.notes += PassManager(_loaded_passes(model), typed=False)(model).notes
    check_forms(model, source)
    in_engine = policy.target.builds_engines
    listed = possible_states(model) if in_engine or lists_every_initializer(model) else frozenset()
    program.notes += PassManager(_source_passes(program, listed, in_engine=in_engine), typed=False)(model).notes
    propagate_types(model)
    if listed:
        _release_all_but_states(program, policy, listed)
    program.before = outline(model.graph, program.persistables, program.outputs)
    if fault := next(faults(model), None):
        raise ModelError(f"{source}: the model is invalid as it is, before any conversion: {fault}")
    if not program.has_variables:  # what users cast there stays
        _make_float32(program, policy)
    try:
        program.notes += PassManager([LimitOpset(policy.target.newest_opset)])(model).notes
    except OpsetConversionError as error:
        raise ModelError(
            f"{source}: uses operators newer than opset {policy.target.newest_opset}, which ONNX Runtime "
            f"{policy.target.ort} does not know yet: {error}"
        ) from error
    try:
        program.notes += PassManager(_typed_passes(model, policy, ranges))(model).notes
    except OpsetConversionError as error:
        if policy.opset is None:
            raise
        raise OptionError(f"opset {policy.opset} does not do for {source}: {error}") from error
    if not program.is_training:
        _recognise(program, policy)
    if policy.low is not FLOAT32:
        DeviceFaults(model, policy.target, policy.low, policy.device, policy.dims).share_shapes()


def _parted_kernels(policy: Policy) -> frozenset[str]:
    """Return the kernels that nothing may be fused into; where time is the aim, QuickGelu's error is accepted."""
    faulty = faulty_operators(policy.target, policy.low, policy.device) & {QUICK_GELU, *SKIP_NORMS}
    return faulty - {QUICK_GELU} if policy.objective == "time" else faulty


def plain_copy(program: Program) -> Program:
    """Return a copy of a loaded model in plain form: without functions, constants in one form, every value typed.

    Raises:
        ModelError: the program is invalid.
    """
    plain = program.clone()
    plain.notes += PassManager(_loaded_passes(plain.model), typed=False)(plain.model).notes
    check_forms(plain.model, str(program.source or "the model"))
    plain.notes += PassManager(_source_passes(plain), typed=False)(plain.model).notes
    propagate_types(plain.model)
    return plain


def _release_all_but_states(program: Program, policy: Policy, listed: Collection[str]) -> None:
    """Make the initializers that turn out to be no states constants after all."""
    from amp_transpiler.passes.release_named import ReleaseNamed

    step = find_training_step(program.model, policy.wishes.state, _recorded_updates(program))
    states = set() if step is None else set(step.bindings)
    ReleaseNamed(set(listed) - states)(program.model)


def _split_gemm_updates() -> Pass[PassResult]:
    from amp_transpiler.update_passes import SplitGemmUpdates

    return SplitGemmUpdates()


def _guard_statistics() -> Pass[PassResult]:
    from amp_transpiler.training_passes import GuardStatistics

    return GuardStatistics()


def _recognise(program: Program, policy: Policy) -> None:
    """Find the state of a loaded training step, and mark its optimizer, which stays float32 at every level."""
    PassManager([PassFor({"Gemm"}, _split_gemm_updates)])(program.model)
    program.step = find_training_step(program.model, policy.wishes.state, _recorded_updates(program))
    if program.step is not None:
        from amp_transpiler.precision.training import mark_optimizer, with_additions

        program.step = with_additions(program.model.graph, program.step)
        marked = mark_optimizer(program.model, program.step)
        logger.info("a training step: %d states, %d nodes of its optimizer", len(program.step.states), marked)


def _recorded_updates(program: Program) -> dict[str, str]:
    """Return the input and output of every state that the file itself names."""
    recorded = {} if program.merged is None else dict(program.merged.state)
    text = program.model.metadata_props.get(UPDATES_KEY, "{}")
    try:
        written = json.loads(text)
    except ValueError:
        written = None
    if not isinstance(written, dict):
        program.notes.append(f"metadata '{UPDATES_KEY}' of the source is no JSON object, and is not used")
        return recorded
    return {str(name): str(output) for name, output in written.items()} | recorded


def _make_float32(program: Program, policy: Policy) -> None:
    """Make float64 and other 16-bit formats float32, as far as the policy says."""
    wants = policy.widens | ({ir.DataType.DOUBLE} if policy.float64 != "keep" else set())
    if has_values_of(program.model, wants):
        from amp_transpiler.passes.source_floats import make_float32  # few programs have them

        make_float32(program, policy)


def _loaded_passes(model: ir.Model) -> list[Pass[Any]]:
    """Leave no calls of functions, and import what is used. The forms of nodes may still be wrong."""
    return [*([passes.InlineFunctions()] if model.functions else ()), ImportDomains()]


def _source_passes(
    program: Program, listed: Collection[str] = (), *, in_engine: bool = False
) -> list[Pass[Any] | PassFor]:
    """Turn what was loaded into plain operators and constants. Its own types may still be wrong.

    Args:
        program: the program.
        listed: names of initializers that may be states, and so no constants.
        in_engine: an engine is built of it.
    """
    return [
        ReleaseInitializers(keep=listed, in_engine=in_engine),
        PassFor({"Constant"}, lambda: passes.UnifyConstants()),
        PassFor({"STFT"}, lambda: passes.SpellDefaults()),
        PassFor({"Identity", "Cast"}, lambda: passes.SkipIdentities(keep=program.has_variables)),
        *(() if program.has_variables else _size_passes()),
        NameNodes(),
    ]


def _size_passes() -> list[PassFor]:
    """Fold sizes that are known, and drop checks of sizes that always hold."""
    return [
        PassFor({"Shape"}, lambda: passes.FoldKnownSizes()),
        PassFor({"Where"}, lambda: passes.SkipExpandChecks()),
    ]


def _has_equivalent(node: ir.Node) -> bool:
    from amp_transpiler.passes.rewrite_equivalents import has_equivalent  # asked only of nodes that lose their kernel

    return has_equivalent(node)


def _typed_passes(model: ir.Model, policy: Policy, ranges: RangeFaults) -> list[Pass[Any] | PassFor]:
    """Choose the opset before folding: it decides which kernels exist, and a missing kernel is the reason to fold."""
    constraints = Constraints(
        model, policy.target, policy.low, training=policy.training, float32_inputs=policy.float32_inputs
    )

    faulty = faulty_operators(policy.target, policy.low, policy.device)

    def can_lower(node: ir.Node) -> bool:
        return operator_name(node) not in faulty and policy.rules.can_lower(node)

    def best_opset(model: ir.Model) -> OpsetChoice:
        return choose_opset(model, constraints, _has_equivalent, can_lower)

    def fold_norms() -> Pass[Any]:
        from amp_transpiler.precision.norm_folding import folds_norm  # for models with normalisations only

        return passes.FoldBatchNorm(folds_norm(constraints, policy.rules, ranges))

    if policy.low is FLOAT32:
        return [*_asked_opset(policy, constraints), SetIrVersion()]
    return [
        *_asked_opset(policy, constraints),
        *([RaiseOpset(lambda model: opset_for_io(model, policy.low), required=True)] if policy.low_io else ()),
        *([RaiseOpset(lambda model: opset_past_renames(model, policy.low))] if policy.opset is None else ()),
        *([RaiseOpset(best_opset, training=policy.training)] if policy.opset is None else ()),
        *(() if policy.training else (PassFor({"BatchNormalization"}, fold_norms),)),
        *((passes.FoldConstants(),) if policy.target.builds_engines else ()),
        SetIrVersion(newest=policy.target.newest_ir),
    ]


def _asked_opset(policy: Policy, constraints: Constraints) -> list[Pass[Any]]:
    """Bring a program to the opset that the user asked for, exactly: what is newer is written out by definition."""
    opset = policy.opset
    if opset is None:
        return []
    if policy.low_io and policy.low is BFLOAT16 and opset < FIRST_OPSET_WITH_BFLOAT16:
        raise OptionError(
            f"opset {opset} has no bfloat16, which inputs and outputs become: ask for {FIRST_OPSET_WITH_BFLOAT16}"
        )
    return [
        LimitOpset(opset),
        RaiseOpset(lambda model: asked_opset(model, constraints, _has_equivalent, opset), required=True),
    ]


@collection_paused()
def convert(program: Program, policy: Policy, ranges: RangeFaults, source: Program | None = None) -> Conversion:
    """Decide about a prepared program and carry the decision out, in place.

    Args:
        program: the program.
        policy: how to decide.
        ranges: a look-up of constants.
        source: what is written where all stays float32; None for the program itself.

    Raises:
        VerificationError: the result is not well typed.
    """
    trials = Trials(program, ranges, source)
    if policy.objective == "balance":
        from amp_transpiler.precision.balance import aimed, balanced

        policy = aimed(policy, balanced(trials.candidates(policy)), program.model)
    return _carried_out(program, trials.settled(policy), ranges)


class Trials:
    """Conversions of a prepared program that are made to compare their times; the one that is wanted is made only once.

    Args:
        prepared: the program; not changed.
        ranges: a look-up of constants.
        source: what is written where all stays float32; None for the program itself.
    """

    def __init__(self, prepared: Program, ranges: RangeFaults, source: Program | None = None) -> None:
        self._prepared, self._ranges, self._source = prepared, ranges, source or prepared
        self._waiting: list[tuple[Policy, Program, Conversion]] = []
        self._predicted: list[tuple[Program, Candidate]] = []  # the times of programs, predicted once

    def candidates(self, policy: Policy) -> dict[Aim, Candidate]:
        """Return what may be chosen where no limit forbids any of it.

        Args:
            policy: how to decide.
        """
        # What stays float32 is written as its source, without the shapes that a result has, which let more be fused.
        by_aim: dict[Aim, Candidate] = {"float32": candidate_of(self._source, policy, written=False)}
        for aim in ("low", "time"):
            by_aim[aim] = self.candidate(*self._trial(dataclasses.replace(policy, objective=aim)), policy)
        return by_aim

    def candidate(self, converted: Program, conversion: Conversion, policy: Policy) -> Candidate:
        """Return `candidate_of` what is written of a converted program: its source where all of it is float32.

        All policies have the same device and sizes.
        """
        prediction = next((candidate for program, candidate in self._predicted if program is converted), None)
        if prediction is None:
            is_low = any(decision.precision == "low" for decision in conversion.assignment.decisions.values())
            written = is_low or bool(policy.low_io)
            prediction = candidate_of(converted if written else self._source, policy, written=written)
            self._predicted.append((converted, prediction))
        return prediction

    def settled(self, policy: Policy) -> Policy:
        """Return a policy as it is carried out: where time is the aim, with the aim whose result is predicted faster.

        What ONNX Runtime will fuse has one precision where time is the aim; that with casts inside may be faster.
        """
        if policy.objective != "time" or policy.settled:
            return policy
        from amp_transpiler.precision.least_time import LEAST_GAIN

        low = dataclasses.replace(policy, objective="low")
        times = [self.candidate(*self._trial(tried), policy).milliseconds for tried in (policy, low)]
        return low if times[1] < (1 - LEAST_GAIN) * times[0] else policy

    def taken(self, policy: Policy) -> tuple[Program, Conversion]:
        """Return a program converted as a policy says, for the caller to keep, and the record of its conversion.

        Raises:
            VerificationError: the result is not well typed.
        """
        policy = self.settled(policy)
        trial = self._trial(policy)
        self._waiting = [entry for entry in self._waiting if entry[1] is not trial[0]]
        return trial

    @collection_paused()
    def _trial(self, policy: Policy) -> tuple[Program, Conversion]:
        for tried, program, conversion in self._waiting:
            if tried == policy:
                return program, conversion
        program = self._prepared.clone()
        conversion = _carried_out(program, policy, self._ranges)
        self._waiting.append((policy, program, conversion))
        return program, conversion


def candidate_of(program: Program, policy: Policy, *, written: bool = True) -> Candidate:
    """Return the predicted time of a program on the policy's device, and its sizes.

    Args:
        program: the program.
        policy: has the device, and the sizes of open dimensions.
        written: whether it is a result, which is written with all of its shapes.
    """
    from amp_transpiler.cost import find_device, predicted, traffic
    from amp_transpiler.precision.balance import Candidate

    model = program.model
    source_bytes = None if written or program.widened else program.source_bytes  # what stays float32 is its source
    costs = written_traffic(model, policy) if written else traffic(model, policy.dims, fuse=True)
    milliseconds = predicted(costs, find_device(policy.device)).milliseconds
    file_bytes = functools.cache(lambda: written_bytes(model) if source_bytes is None else source_bytes())
    return Candidate(milliseconds, sum(tensor_bytes(model)), file_bytes)


def written_traffic(converted: ir.Model, policy: Policy) -> list[NodeCost]:
    """Return the costs by which a converted model's time is predicted, wherever one is reported: those of its file."""
    from amp_transpiler.cost import traffic

    return traffic(converted, policy.dims, fuse=True, written=True)


def _carried_out(program: Program, policy: Policy, ranges: RangeFaults) -> Conversion:
    model = program.model
    with _pinned_outputs(program, policy):
        assignment = assign(model, policy, ranges)
        if assignment.without_form:  # in few programs
            from amp_transpiler.precision.fused import fused_advice

            program.notes += fused_advice(assignment)
        written = assignment
        if assignment.parts:
            from amp_transpiler.passes.split_sums import with_parts_written

            written = with_parts_written(model, assignment)
        applied = run_pass(ApplyAssignment(written), model)
        cleaned = run_pass(CleanCasts(inserted_only=program.has_variables), model)
        if assignment.row_sums:
            from amp_transpiler.passes.row_products import RowProducts

            run_pass(RowProducts(assignment.row_sums), model)
    PassManager(_finishing_passes(program, policy))(model)
    if policy.included:
        drop_region(model, INCLUDE)
    casts = sum(INSERTED in node.meta for node in all_nodes(model))
    logger.info("%d constants converted, %d casts inserted, %d removed", len(applied.converted), casts, cleaned.removed)
    return Conversion(assignment, applied.converted, casts, cleaned.removed)


def _finishing_passes(program: Program, policy: Policy) -> list[PassFor]:
    """Keep ONNX Runtime from fusing what it would get wrong, and let it fuse what would be slow."""
    is_web = policy.target.name == WEBGPU.name and policy.low is not FLOAT32
    every_square = is_web or (policy.low is BFLOAT16 and is_within(policy.target.ort, None, "1.23"))
    guard = PassFor({"Pow"}, lambda: passes.GuardFusions(every=every_square, kind="mixed" if is_web else "bfloat16"))
    if program.has_variables:  # its weights are no constants, and any of its values may be fetched
        return [guard]
    spells = policy.drop_islands != "none" and policy.low is not FLOAT32  # other systems' nodes stay theirs
    return [
        guard,
        PassFor({"Sigmoid", "Add"}, lambda: passes.PartFusions(_parted_kernels(policy))),
        *(_spelling_passes() if spells else ()),
        PassFor({"GroupQueryAttention"}, lambda: passes.GuardCaches()),
        PassFor({"Transpose"}, lambda: passes.GuardTransposes()),
        PassFor({"Transpose"}, lambda: passes.GuardVectors()),
        PassFor({"BatchNormalization"}, _guard_statistics),
    ]


def _spelling_passes() -> list[PassFor]:
    """Write what exporters write as ONNX Runtime recognises it, or with fewer kernels."""
    return [
        PassFor({"Reciprocal"}, lambda: passes.SpellNorms()),
        PassFor({"Sin"}, lambda: passes.SignRotations()),
        PassFor({"ConstantOfShape"}, lambda: passes.FillSums()),  # rarer than the sums
    ]


@contextlib.contextmanager
def _pinned_outputs(program: Program, policy: Policy) -> Iterator[None]:
    """Temporarily list updates and fetched values as graph outputs, so that casting keeps their types.

    A program that is built has no outputs in its graph. Fetched values are left out where the policy hands outputs out
    as they are computed.
    """
    if not program.has_variables and not program.outputs:
        yield
        return
    graph, before = program.model.graph, [str(value.name) for value in program.model.graph.outputs]
    fetched = () if policy.outputs_as_computed else program.outputs
    outputs = () if program.has_variables else before
    graph.outputs.clear()
    values = [program.find(name) for name in dict.fromkeys((*outputs, *program.updates.values(), *fetched))]
    graph.outputs.extend(value for value in values if value is not None and not value.is_graph_input())
    try:
        yield
    finally:
        graph.outputs.clear()
        program.touch()  # a cast's result may have taken the name of what was an output
        graph.outputs.extend(program.value(name) for name in before)
