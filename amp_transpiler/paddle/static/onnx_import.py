"""`from_onnx`: makes a trainable program of an inference model."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, ModelError, OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.checker import mend_declared_ranks, mend_declared_shapes
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.form_check import check_forms
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.regions import enter_regions
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.user_patterns import Pattern, compile_pattern
from amp_transpiler.graph.verifier import faults
from amp_transpiler.graph.walk import all_nodes, scopes
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.paddle.framework.persistables import initialise_with
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.framework.random_state import ensure_random_state
from amp_transpiler.paddle.static.input_shapes import settle_input_shapes
from amp_transpiler.paddle.static.trainable_slots import STATISTIC_SLOTS, float_constants, is_of_a_node, weight_slot
from amp_transpiler.paddle.static.untrained import warn_of_untrained
from amp_transpiler.paddle.static.weight_flow import WeightFlow
from amp_transpiler.paddle.static.written_norm import can_be_written_out, write_out
from amp_transpiler.passes.convert_opset import ConvertOpset, OpsetConversionError
from amp_transpiler.passes.inline_functions import InlineFunctions
from amp_transpiler.passes.limit_opset import LimitOpset
from amp_transpiler.passes.lower_opset import LowerOpset
from amp_transpiler.passes.manager import PassManager
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.passes.set_ir_version import SetIrVersion
from amp_transpiler.passes.unify_constants import UnifyConstants
from amp_transpiler.phrases import first_few
from amp_transpiler.program.program import TRAINING_IR, TRAINING_OPSET, Persistable, Program
from amp_transpiler.targets import CUDA

__all__ = ["from_onnx"]

logger = logging.getLogger(__name__)

Patterns = str | Sequence[str] | None

_OPSETS = (TRAINING_OPSET, 18, 17, 15)  # from 14 on BatchNormalization has a training form, from 15 on with mixed types


def from_onnx(
    model: object,
    startup_program: Program | None = None,
    trainable: Patterns = None,
    frozen: Patterns = None,
    constant_nodes: bool = False,
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
) -> Program:
    """Return a trainable program made from an ONNX model.

    Float initializers that operators read as weights become parameters: those of Conv, ConvTranspose, Gemm, MatMul,
    Einsum, the normalisations, PRelu, embedding tables of Gather, biases of Add and Sub, scales of Mul and Div behind a
    layer, rows that Concat joins to data, weights of LSTM, GRU and RNN; also behind Transpose, Reshape, Cast, Expand,
    Identity, Squeeze, Unsqueeze, and behind arithmetic with other weights, as weight normalisation has it. Everything
    else stays a constant: also numbers that a formula made, such as bases of Fourier transforms, mel filter banks,
    windows and resampling filters, and what a Constant node makes, unless asked. A warning names weights that are not
    trained: those of operators without a gradient rule, of Constant nodes, and the integers of quantised models.
    Statistics of BatchNormalization are persistable. It and Dropout get their training form, which
    `clone(for_test=True)` undoes. The model's outputs can be looked up with `program.var` and are listed in
    `program.outputs`. Names stay. Inside `fp16_guard()` or `disable_amp()` all nodes are put into that region.

    Args:
        model: anything that `amp_transpiler.load` takes; it is not changed.
        startup_program: gets the initial values, which stay on disk until it runs; the current one unless given.
        trainable: regular expressions, searched in the names of constants; those that match become parameters,
            whatever operator reads them. They win over `frozen`, so `frozen=".*", trainable="head"` trains the head
            alone.
        frozen: regular expressions for parameters that are not trained. Where both running statistics of a
            BatchNormalization match, it keeps its inference form.
        constant_nodes: whether what Constant nodes make counts as an initializer does. Some exporters, such as
            Paddle2ONNX, write all weights so.
        input_shapes: sizes of inputs that the model leaves free, such as `{"images": [8, 3, 224, 224]}`; -1 or None
            for one that stays free. Sizes of the same name are set everywhere. Without them, what needs sizes waits
            for those that are fed.

    Raises:
        ModelError: the model is unreadable or invalid, or needs an opset in which its operators cannot be expressed.
        OptionError: a pattern is malformed or matches no float constant.
        InputError: `model` is a training program, `input_shapes` does not fit its inputs, or the startup program makes
            a value of the same name but another shape or element type.
    """
    source_program = load(model)
    if source_program.is_training:
        raise InputError(
            f"{source_program!r} is a training program already: from_onnx takes models with their weights inside"
        )
    program = source_program.clone()
    enter_regions(program.model)
    startup = startup_program if startup_program is not None else default_startup_program()
    _prepare(program, input_shapes or {})
    choice = _Choice(program, _compile("trainable", trainable), _compile("frozen", frozen), constant_nodes)
    _claim_statistics(program, startup, choice)
    _claim_parameters(program, startup, choice)
    _train_dropouts(program, startup)
    graph = program.model.graph
    program.outputs = [str(value.name) for value in graph.outputs]
    graph.outputs.clear()
    program.no_gradient |= {str(value.name) for value in graph.inputs if value.name not in program.persistables}
    program.touch()
    _tell(program, choice)
    warn_of_untrained(program.model, f"from_onnx: {program.source or 'the model'}", choice.of_nodes)
    return program


# ---- preparing ----


def _prepare(program: Program, input_shapes: Mapping[str, Sequence[int | None]]) -> None:
    """Bring the model into the form of a training program: plain operators, typed, at an opset that can be trained."""
    model, what = program.model, str(program.source or "the model")
    InlineFunctions()(model)
    check_forms(model, what)
    for value in [value for value in model.graph.inputs if value.is_initializer()]:
        model.graph.inputs.remove(value)  # old models and some exporters list initializers as inputs
    settle_input_shapes(model, input_shapes, what)
    _settle(model)
    if fault := next(faults(model), None):
        raise ModelError(f"{what}: the model is invalid as it is: {fault}")
    if note := mend_declared_shapes(model):
        program.notes.append(note)
        logger.warning("from_onnx: %s: %s", what, note)
    _settle_opset(model, what)
    _settle(model)
    infer_shapes(model)
    if wrong := mend_declared_ranks(model):
        program.notes.extend(wrong)
        logger.warning("from_onnx: %s: %s", what, "; ".join(wrong))
        infer_shapes(model)
    SetIrVersion(at_least=TRAINING_IR, newest=CUDA.newest_ir)(model)
    program.touch()


def _settle(model: ir.Model) -> None:
    PassManager([UnifyConstants(), NameNodes()], typed=False)(model)
    propagate_types(model)


def _settle_opset(model: ir.Model, what: str) -> None:
    """Bring the model to the opset of programs built here, or as close to it as conversion allows."""
    try:
        limited = LimitOpset(CUDA.newest_opset, otherwise=TRAINING_OPSET)(model)
    except OpsetConversionError as error:
        raise ModelError(
            f"{what}: uses operators newer than opset {CUDA.newest_opset}, unknown to ONNX Runtime"
        ) from error
    if not limited.count:  # what was written out was written for the newest opset
        with contextlib.suppress(OpsetConversionError):
            LowerOpset(TRAINING_OPSET)(model)
    if opset_of(model, "") >= TRAINING_OPSET:
        return
    refusals: list[OpsetConversionError] = []
    for opset in _OPSETS:
        if opset_of(model, "") >= opset:
            break
        try:
            ConvertOpset(opset)(model)
        except OpsetConversionError as error:
            refusals.append(error)
            continue
        break
    if opset_of(model, "") < _OPSETS[-1]:
        raise ModelError(f"{what}: cannot be trained at opset {opset_of(model, '')}, and {refusals[-1]}") from refusals[
            -1
        ]
    if refusals:
        logger.info("%s is trained at opset %d: %s", what, opset_of(model, ""), refusals[0])


# ---- choosing ----


class _Choice:
    """Records the parameters that the table of slots and the patterns choose."""

    def __init__(self, program: Program, trainable: list[Pattern], frozen: list[Pattern], constant_nodes: bool) -> None:
        self._constant_nodes = constant_nodes
        self._trainable = trainable
        self._frozen = frozen
        self.slots: dict[str, str] = {}  # parameter -> the slot where it is read
        self.of_nodes: dict[str, str] = {}  # the same of constants that stay constants, since nodes make them
        self.of_formulas: list[str] = []  # constants that layers read, but no training made
        names = [str(value.name) for value, _ in float_constants(program.model)]
        for option, patterns in (("trainable", trainable), ("frozen", frozen)):
            for pattern in patterns:
                if not any(pattern.search(name) for name in names):
                    shown = first_few(names, 8) or "none"
                    raise OptionError(f"{option} pattern {pattern.pattern!r} matches no float constant: {shown}")

    def asked_for(self, name: str) -> bool:
        """Whether a `trainable` pattern matches the name."""
        return any(pattern.search(name) for pattern in self._trainable)

    def takes_nodes(self, name: str) -> bool:
        """Whether a constant of this name may become a parameter though a Constant node makes it."""
        return self._constant_nodes or self.asked_for(name)

    def is_frozen(self, name: str) -> bool:
        """Whether a `frozen` pattern matches the name, and no `trainable` one does."""
        return not self.asked_for(name) and any(pattern.search(name) for pattern in self._frozen)


def _compile(option: str, patterns: Patterns) -> list[Pattern]:
    return [compile_pattern(text, option) for text in ((patterns,) if isinstance(patterns, str) else patterns or ())]


def _claim_parameters(program: Program, startup: Program, choice: _Choice) -> None:
    names = NameAllocator(program.model)
    flow, weights = WeightFlow(program.model), []
    for value, tensor in float_constants(program.model):
        name = str(value.name)
        if name in program.persistables:
            continue
        slot = "trainable=" if choice.asked_for(name) else weight_slot(value, tensor, flow)
        if slot and is_of_a_node(value) and not choice.takes_nodes(name):
            choice.of_nodes[name] = slot
        elif slot:
            weights.append((value, slot))
    choice.of_formulas = flow.signal_filters
    for value, slot in weights:
        name = str(value.name)
        persistable = Persistable(name, "parameter", trainable=not choice.is_frozen(name))
        choice.slots[_promote(program, startup, value, persistable, names)] = slot


def _promote(
    program: Program, startup: Program, value: ir.Value, persistable: Persistable, names: NameAllocator
) -> str:
    """Turn a constant into a persistable input of the main graph; return its name."""
    graph, tensor, node = program.model.graph, constant_of(value), value.producer()
    assert tensor is not None
    home = value.graph
    if home is not graph and _is_ambiguous(program.model, value):
        persistable.name = names.fresh(persistable.name)
    parameter = ir.Value(name=persistable.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    parameter.doc_string = value.doc_string
    initialise_with(startup, persistable, tensor)
    value.replace_all_uses_with(parameter, replace_graph_outputs=True)
    if node is not None and home is not None:
        home.remove(node, safe=True)
    elif home is not None:
        del home.initializers[str(value.name)]
    graph.inputs.append(parameter)
    program.persistables[persistable.name] = persistable
    if not persistable.trainable:
        program.no_gradient.add(persistable.name)
    return persistable.name


def _is_ambiguous(model: ir.Model, value: ir.Value) -> bool:
    """Whether another graph uses the name for another value."""
    for scope in scopes(model):
        outputs = (output for node in scope.graph for output in node.outputs)
        for other in (*scope.graph.inputs, *scope.graph.initializers.values(), *outputs):
            if other is not value and other.name == value.name:
                return True
    return False


# ---- training forms ----


def _claim_statistics(program: Program, startup: Program, choice: _Choice) -> None:
    """Switch BatchNormalization to its training form, with persistable running statistics."""
    names = NameAllocator(program.model)
    for node in [n for n in program.model.graph if n.op_type == "BatchNormalization" and is_standard(n)]:
        slots = STATISTIC_SLOTS[node.op_type]
        for slot in slots:
            node.replace_input_with(slot, _behind_identities(node.inputs[slot]))
        running = [node.inputs[slot] for slot in slots]
        if any(constant_of(value) is None for value in running):
            if can_be_written_out(node):
                write_out(program.model, node)
            else:
                logger.warning("BatchNormalization '%s' stays as it is: its statistics are computed", node.name)
            continue
        if all(choice.is_frozen(str(value.name)) for value in running if value is not None):
            continue
        _update_statistics(program, startup, node, names)


def _behind_identities(value: ir.Value | None) -> ir.Value | None:
    """Return a constant that exporters let several layers share by Identity; else the value itself."""
    origin = value
    while origin is not None and (node := origin.producer()) is not None and node.op_type == "Identity":
        origin = node.inputs[0]
    return value if constant_of(origin) is None else origin


def _update_statistics(program: Program, startup: Program, node: ir.Node, names: NameAllocator) -> None:
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
    node.resize_outputs(3)
    for output, slot in enumerate(STATISTIC_SLOTS[node.op_type], 1):
        value = _own_statistic(program, node, slot, names)
        persistable = Persistable(str(value.name), "statistic", trainable=False)
        name = _promote(program, startup, value, persistable, names)
        replaced = node.outputs[output]
        replaced.name = names.fresh(f"{name}__next")
        replaced.type, replaced.shape = ir.TensorType(value.dtype or ir.DataType.FLOAT), value.shape
        program.updates[name] = str(replaced.name)


def _own_statistic(program: Program, node: ir.Node, slot: int, names: NameAllocator) -> ir.Value:
    """Return a constant for this slot that only this node reads: a copy if others read it, too."""
    value = node.inputs[slot]
    tensor = constant_of(value)
    assert value is not None
    assert tensor is not None  # `_claim_statistics` looked
    if len(value.uses()) == 1 and not value.is_graph_output():
        return value
    name = names.fresh(f"{node.name}.{('running_mean', 'running_var')[slot - 3]}")
    shape = ir.Shape(tensor.shape.numpy())
    copy = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)
    copy.const_value = ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape, name=name)
    program.model.graph.register_initializer(copy)
    node.replace_input_with(slot, copy)
    return copy


def _train_dropouts(program: Program, startup: Program) -> None:
    """Switch every Dropout to its training form, unless its mode is decided at run time."""
    program.touch()
    builder = program.builder()
    has_dropout = False
    for node in [n for n in all_nodes(program.model) if n.op_type == "Dropout" and is_standard(n)]:
        mode = node.inputs[2] if len(node.inputs) > 2 else None
        if mode is not None and constant_of(mode) is None:
            logger.warning("Dropout '%s' is left as it is: its training_mode is no constant", node.name)
            continue
        node.resize_inputs(3)
        if node.inputs[1] is None:
            node.replace_input_with(1, builder.constant(np.float32(0.5)))  # the schema's default
        node.replace_input_with(2, builder.constant(np.array(True)))
        has_dropout = True
    if has_dropout:
        ensure_random_state(program, startup)


# ---- telling ----


def _tell(program: Program, choice: _Choice) -> None:
    of_kind: dict[str, list[str]] = {"trained": [], "frozen": [], "statistic": []}
    for name, persistable in program.persistables.items():
        kind: str = persistable.kind
        if kind == "parameter":
            kind = "trained" if persistable.trainable else "frozen"
        of_kind.setdefault(kind, []).append(name)
    logger.info("%r: parameters that are trained: %s", program, _listed(of_kind["trained"], choice.slots))
    logger.info("%r: parameters that are frozen: %s", program, _listed(of_kind["frozen"], choice.slots))
    logger.info("%r: running statistics: %s", program, _listed(of_kind["statistic"], {}))
    if choice.of_formulas:
        logger.info(
            "%r: filters and bases of transforms, which a formula made, so that they stay constants unless trainable= "
            "names them: %s",
            program,
            _listed(choice.of_formulas, {}),
        )
    program.notes.append(
        f"{len(of_kind['trained'])} parameters are trained, {len(of_kind['frozen'])} are frozen, "
        f"{len(of_kind['statistic'])} running statistics are kept"
    )


def _listed(names: Iterable[str], slots: dict[str, Any]) -> str:
    return ", ".join(f"{name} ({slots[name]})" if name in slots else name for name in names) or "none"
