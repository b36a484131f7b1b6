"""Finds the low form of a node: the inputs and outputs that become low, by its schema and the target's kernels.

The other float32 slots stay float32: Resize's scales, for example, or LayerNormalization's Mean and InvStdDev.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TypeGuard

import onnx_ir as ir

from amp_transpiler.graph.dtypes import BFLOAT16, LowFormat
from amp_transpiler.graph.node_kind import Kind, kind_of
from amp_transpiler.ops.dtype_attributes import DTYPE_ATTRIBUTES
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import Signature, Slot, opset_of
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.targets import Target
from amp_transpiler.targets.operator import Imports, Operator, Types, imports_of, operator_of

__all__ = ["FIRST_OPSET_WITH_BFLOAT16", "Constraint", "Constraints", "LowForm", "is_float32", "touches_float32"]

FIRST_OPSET_WITH_BFLOAT16 = 13  # where Cast knows it

_FLOAT = "tensor(float)"

# They read a tensor of any float type, and their result does not depend on it.
_READS_ANY = {"Shape", "Size", "Cast"}

# Lowered to plain operators before a training program runs: data and result may be low, all else stays float32.
_LOWERED_FOR_TRAINING = {"BatchNormalization", "Dropout"}

# Operators whose meaning a low form would change.
_KEEPS_ITS_TYPE = {
    "BitCast": Reason("bits"),
    "DynamicQuantizeLinear": Reason("float32-scale"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class LowForm:
    """The inputs and outputs of a node, by index, that become low."""

    inputs: frozenset[int]
    outputs: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Constraint:
    """The low form that a node can have.

    Attributes:
        form: its low form, or None if it must stay float32.
        reason: why it must; None if it need not.
        reads_any: it accepts any float type (Shape, Cast) and is itself neither low nor float32.
        missing_kernel: it stays float32 only because no kernel exists.
        no_schema: the operator is unknown.
    """

    form: LowForm | None
    reason: Reason | None = None
    reads_any: bool = False
    missing_kernel: bool = False
    no_schema: bool = False


def is_float32(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Whether `value` is a float32 tensor."""
    type_ = None if value is None else value.type
    return isinstance(type_, ir.TensorType) and type_.dtype == ir.DataType.FLOAT


def touches_float32(node: ir.Node) -> bool:
    """Whether a float32 tensor goes in or out of `node`."""
    return any(map(is_float32, node.inputs)) or any(map(is_float32, node.outputs))


class Constraints:
    """The constraints of a program's nodes, worked out once a kind and kept for further programs.

    Args:
        model: the typed program.
        target: the target whose kernels count.
        low: the low format.
        training: the program is a training program, so BatchNormalization and Dropout are lowered to plain operators
            before it runs. No kernel of theirs is needed then, and their statistics may stay float32.
        float32_inputs: operator -> the inputs, by index, that the user keeps in float32.
    """

    def __init__(
        self,
        model: ir.Model,
        target: Target,
        low: LowFormat,
        *,
        training: bool = False,
        float32_inputs: Mapping[str, frozenset[int]] | None = None,
    ) -> None:
        self.target = target
        self.low = low
        self._model = model
        self._of_kind = _judge(target, low, training)
        self._float32_inputs = float32_inputs or {}

    def of(
        self,
        node: ir.Node,
        *,
        opset: int | None = None,
        inputs: frozenset[int] | None = None,
        anywhere: bool = False,
        kind: Kind | None = None,
    ) -> Constraint:
        """Return the constraint of a node.

        Args:
            node: a node with a float32 input or output and no body.
            opset: judge at this version of ONNX's domain instead of the program's own.
            inputs: look for the low form in which exactly these inputs are low; None: that with the most low slots.
            anywhere: a kernel of the provider that the target falls back to will do.
            kind: that of the node at this version, where it is known.
        """
        if opset is None or not is_standard(node):
            kind, imports = kind or kind_of(node, opset_of(self._model, node.domain)), self.imports()
        else:
            kind, imports = kind or kind_of(node, opset), self.imports(opset)
        constraint = self._of_kind(kind, imports, inputs, anywhere)
        high = self._float32_inputs.get(operator_name(node)) if self._float32_inputs else None
        if high is None or constraint.form is None or not constraint.form.inputs & high:
            return constraint
        others = constraint.form.inputs - high
        if inputs is None and others:
            constraint = self._of_kind(kind, imports, others, anywhere)
            if constraint.form is not None:
                return constraint
        values = {"operator": operator_name(node), "inputs": ", ".join(map(str, sorted(high))), "low": self.low.name}
        return Constraint(None, Reason("kept-input", values))

    def imports(self, opset: int | None = None) -> Imports:
        """The domains that the program imports, with `opset` as the version of ONNX's own if it is given."""
        return _imports(tuple(self._model.graph.opset_imports.items()), opset)


@functools.lru_cache
def _imports(opset_imports: Imports, opset: int | None) -> Imports:
    return imports_of(dict(opset_imports) if opset is None else {**dict(opset_imports), "": opset})


JudgesKind = Callable[[Kind, Imports, "frozenset[int] | None", bool], Constraint]


@functools.cache
def _judge(target: Target, low: LowFormat, training: bool) -> JudgesKind:
    # Opset choice, folding and assignment ask about the same kinds, and so does the next program.
    return functools.lru_cache(maxsize=8192)(_Judge(target, low, training).constraint)


@dataclasses.dataclass(frozen=True, slots=True)
class _FloatSlot:
    """A float32 input or output of a node, with its type parameter."""

    index: int
    output: bool
    param: str


class _Judge:
    """Works out the constraint of a kind."""

    def __init__(self, target: Target, low: LowFormat, training: bool) -> None:
        self._target = target
        self._low = low
        self._low_type = f"tensor({low.name})"
        self._training = training

    def constraint(self, kind: Kind, imports: Imports, inputs: frozenset[int] | None, anywhere: bool) -> Constraint:
        """Return the constraint of a kind in a program with these imports."""
        operator = operator_of(kind, imports)
        sig, name, standard = operator.signature, kind.op_type, not kind.domain
        if sig is None:
            values = {"domain": kind.domain or "ai.onnx", "operator": name}
            return Constraint(None, Reason("no-schema", values), no_schema=True)
        if standard and name in _READS_ANY:
            return Constraint(None, Reason("user-cast") if name == "Cast" else None, reads_any=True)
        if standard and name in _KEEPS_ITS_TYPE:
            return Constraint(None, _KEEPS_ITS_TYPE[name])
        slots = _float_slots(kind, sig)
        if isinstance(slots, Reason):
            return Constraint(None, slots)
        if self._low_type not in sig.allowed.get(_primary(slots), ()):
            return Constraint(None, self._forbidden(name, sig.since_version))
        newest = dict(imports).get("", FIRST_OPSET_WITH_BFLOAT16)
        if self._low is BFLOAT16 and newest < FIRST_OPSET_WITH_BFLOAT16:  # other domains have it at any opset
            return Constraint(None, self._forbidden("Cast", newest))
        if self._training and standard and name in _LOWERED_FOR_TRAINING:
            lowered = _lowered_form(kind, sig)
            fits = inputs is None or lowered.form is None or lowered.form.inputs == inputs
            return lowered if fits else Constraint(None, _no_such_form(name))
        runs = self._runs_anywhere if anywhere else functools.partial(self._runs_as_well, operator)
        return self._form_that_runs(operator, sig, slots, inputs, runs)

    def _forbidden(self, op_type: str, version: int) -> Reason:
        return Reason("schema", {"operator": op_type, "version": version, "low": self._low.name})

    def _runs_as_well(self, operator: Operator, lowered: Operator) -> bool:
        """Whether the target runs an operator's low form; or the fallback does, where it runs that in float32, too.

        Not where only integers come out, as of QuantizeLinear: that would spare no memory, and change them.
        """
        target, fallback = self._target, self._target.fallback
        if target.runs(lowered):
            return True
        if fallback is None or _FLOAT not in operator.outputs:
            return False
        return fallback.has_kernel(lowered) and not target.runs(operator)

    def _runs_anywhere(self, operator: Operator) -> bool:
        """Whether the target or its last resort runs the operator, so that the program loads at all."""
        return self._target.runs(operator) or self._target.providers[-1].runs(operator)

    def _form_that_runs(
        self,
        operator: Operator,
        sig: Signature,
        slots: list[_FloatSlot],
        inputs: frozenset[int] | None,
        runs: Callable[[Operator], bool],
    ) -> Constraint:
        """The form with the most low slots, or with exactly these low inputs, that `runs` accepts."""
        name, primary, fixed = operator.op_type, _primary(slots), _fixed_parameters(operator, sig)
        params = dict.fromkeys(slot.param for slot in slots)
        free = [param for param in params if self._low_type in sig.allowed.get(param, ()) and param not in fixed]
        for chosen in _subsets(free, primary):
            form = _form(slots, chosen)
            if (inputs is None or form.inputs == inputs) and runs(self._lowered(operator, sig, chosen)):
                return Constraint(form)
        if inputs is not None:
            return Constraint(None, _no_such_form(name))
        values = {"operator": name, "version": sig.since_version, "low": self._low.name, "target": self._target.name}
        return Constraint(None, Reason("no-kernel", values), missing_kernel=True)

    def _lowered(self, operator: Operator, sig: Signature, params: frozenset[str]) -> Operator:
        """The operator with these type parameters bound to the low format."""

        def lowered(types: Types, formal: Callable[[int], Slot | None]) -> Types:
            slots = (formal(index) for index in range(len(types)))
            return tuple(
                self._low_type if type_ == _FLOAT and slot is not None and slot.type in params else type_
                for type_, slot in zip(types, slots, strict=True)
            )

        inputs, outputs = lowered(operator.inputs, sig.input), lowered(operator.outputs, sig.output)
        return dataclasses.replace(operator, inputs=inputs, outputs=outputs)


def _float_slots(kind: Kind, sig: Signature) -> list[_FloatSlot] | Reason:
    """List the float32 slots of a kind, outputs last; or say which of its values cannot be low."""
    slots = []
    for output, types, formal in ((False, kind.inputs, sig.input), (True, kind.outputs, sig.output)):
        for index, type_ in enumerate(types):
            if type_ is None:
                continue
            slot = formal(index)
            if "float" in type_ and not type_.startswith("tensor("):
                return Reason("no-tensor", {"type": type_.split("(")[0]})
            if type_ != _FLOAT or slot is None:
                continue
            if slot.type in sig.allowed and not slot.homogeneous:
                return Reason("any-types")
            slots.append(_FloatSlot(index, output, slot.type))
    return slots or Reason("no-slot")


def _primary(slots: list[_FloatSlot]) -> str:
    """The type parameter that decides a node's precision: that of its first float32 output, or else input."""
    return next((slot.param for slot in slots if slot.output), slots[0].param)


def _lowered_form(kind: Kind, sig: Signature) -> Constraint:
    data, other = sig.input(0), sig.input(1)
    assert data is not None
    if other is not None and data.type == other.type:
        return Constraint(None, Reason("one-type", {"operator": kind.op_type, "version": sig.since_version}))
    return Constraint(LowForm(frozenset((0,)), frozenset((0,))))


def _fixed_parameters(operator: Operator, sig: Signature) -> set[str]:
    """Type parameters that an attribute pins to float32, such as LayerNormalization's stash_type."""
    rule = DTYPE_ATTRIBUTES.get(operator.op_type) if not operator.domain else None
    if rule is None or rule.attribute != "stash_type":
        return set()
    return {slot.type for index in rule.outputs if (slot := sig.output(index)) is not None}


def _subsets(free: list[str], primary: str) -> Iterator[frozenset[str]]:
    """Every set of parameters that holds `primary`, larger ones first."""
    others = [param for param in free if param != primary]
    for size in range(len(others), -1, -1):
        for chosen in itertools.combinations(others, size):
            yield frozenset((primary, *chosen))


def _form(slots: list[_FloatSlot], params: frozenset[str]) -> LowForm:
    chosen = [slot for slot in slots if slot.param in params]
    return LowForm(
        frozenset(slot.index for slot in chosen if not slot.output),
        frozenset(slot.index for slot in chosen if slot.output),
    )


def _no_such_form(op_type: str) -> Reason:
    return Reason("no-form", {"operator": op_type})
