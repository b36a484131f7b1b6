"""Types, casts and constants changed as a decision about precision says."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import convert_array, low_tensor, read
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import set_dtype
from amp_transpiler.graph.walk import Use, scopes
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute, tensor_of
from amp_transpiler.passes.inserted_casts import add_cast, redirect, rename_output
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.parameters import convert_constant, copy_constant, limit_constant
from amp_transpiler.precision.assignment import Assignment
from amp_transpiler.precision.constraints import is_float32

__all__ = ["Applied", "ApplyAssignment", "retype_attributes"]


@dataclasses.dataclass
class Applied(PassResult):
    """An assignment carried out.

    Attributes:
        converted: names of the constants that are in lower precision now.
    """

    converted: frozenset[str] = frozenset()


class ApplyAssignment(Pass[Applied]):
    """Changes types as an assignment says and inserts the casts that this needs; counts both.

    1. A cast stands right behind the value that it converts, in the scope of that value: one cast for each value and
       direction.
    2. A constant is converted in the file where it can be, instead of cast (see `Assignment.constants`).
    3. An attribute that sets the type of an output changes with it.
    4. Every value keeps its name, except where a graph output stays float32 while its producer does not: there the
       cast's result takes the name over.

    Args:
        assignment: the decision about this very model.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def requires(self, model: ir.Model) -> None:
        node = next(iter(self._assignment.decisions), None)
        if node is not None and all(scope.graph is not node.graph for scope in scopes(model)):
            raise ir.passes.PreconditionError(
                f"the assignment is about another model: '{node.name}' is not of this one"
            )

    def call(self, model: ir.Model) -> Applied:
        return _Edit(model, self._assignment).run()


class _Edit:
    """One application of an assignment: the model's names, what is converted and how much is edited."""

    def __init__(self, model: ir.Model, assignment: Assignment) -> None:
        self._model = model
        self._assignment = assignment
        self._low = assignment.low
        self._names = NameAllocator(model)
        self._converted: set[str] = set()
        self._edits = 0

    def run(self) -> Applied:
        self._limit_masks()
        assignment, uses = self._assignment, _float_uses(self._model)
        for value in [*uses, *(value for value in assignment.low_values if value not in uses)]:
            self._value(value, uses.get(value, []))
        for node, decision in assignment.decisions.items():
            if decision.form is not None and retype_attributes(node, decision.form.outputs, self._low):
                self._edits += 1
        edits = self._edits
        return Applied(self._model, modified=bool(edits), count=edits, converted=frozenset(self._converted))

    def _limit_masks(self) -> None:
        uses: dict[ir.Value, list[Use]] = {}
        for node, index in sorted(self._assignment.masks, key=lambda use: (str(use[0].name), use[1])):
            value = node.inputs[index]
            assert value is not None  # it is a constant
            uses.setdefault(value, []).append(Use(node, index))
        for value, readers in uses.items():
            limit_constant(value, readers, self._low, self._names)
        self._edits += len(uses)

    def _value(self, value: ir.Value, readers: list[Use]) -> None:
        assignment = self._assignment
        wants = [(use, assignment.wanted(use.user, use.index)) for use in readers]
        low_uses = [use for use, want in wants if want == "low"]
        high_uses = [use for use, want in wants if want == "high"]
        tensor = constant_of(value)
        if tensor is not None:
            exact = [
                use for use, want in wants if want == "high" or (want == "any" and _sees_rounding(use, assignment))
            ]
            self._constant(value, tensor, low_uses, exact)
        elif value in assignment.rounded_values:
            self._store_low(value, [use for use, want in wants if want != "high"], high_uses)
        elif value in assignment.low_values:
            self._edits += 1
            set_dtype(value, self._low.dtype)
            if value.const_value is not None:  # an input's default
                value.const_value = low_tensor(value.const_value, self._low, str(value.name))
            if high_uses:
                self._cast_for(value, high_uses, ir.DataType.FLOAT, "fp32")
        elif low_uses:
            self._cast_for(value, low_uses, self._low.dtype, self._low.short)

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol, low_uses: list[Use], high_uses: list[Use]) -> None:
        """Convert a constant that all readers want low; where only some do, give those a copy or a cast.

        A constant of one element is never cast at run time: other systems have an attribute in its place.
        """
        if not low_uses:
            return
        storage = "offline" if tensor.size == 1 else self._assignment.constants
        if storage == "runtime" or (storage == "whole" and high_uses):
            self._cast_for(value, low_uses, self._low.dtype, self._low.short)
            return
        self._edits += 1
        if not high_uses:
            convert_constant(value, self._low)
            self._converted.add(str(value.name))
            return
        copy = copy_constant(value, self._low, self._names)
        redirect(low_uses, copy)
        self._converted.add(str(copy.name))

    def _store_low(self, value: ir.Value, low_uses: list[Use], high_uses: list[Use]) -> None:
        """Round the result of a float32 node: low readers take the rounded value, float32 readers cast it back."""
        self._edits += 1
        stored = add_cast(value, self._low.dtype, self._low.short, self._names)
        redirect(low_uses, stored)
        if high_uses:
            self._cast_for(stored, high_uses, ir.DataType.FLOAT, "fp32", named_by=value)

    def _cast_for(
        self, value: ir.Value, uses: list[Use], dtype: ir.DataType, suffix: str, named_by: ir.Value | None = None
    ) -> None:
        """Let `uses` read a cast of `value`; an output of the program keeps its name (that of `named_by`, if given)."""
        self._edits += 1
        main_output = next((use for use in uses if use.user is self._model.graph), None)
        result = add_cast(value, dtype, suffix, self._names)
        redirect(uses, result)
        if main_output is not None:
            rename_output(named_by or value, result, self._names, suffix)


def _float_uses(model: ir.Model) -> dict[ir.Value, list[Use]]:
    """List, for every float32 value that is read, the places that read it."""
    uses: dict[ir.Value, list[Use]] = {}
    for scope in scopes(model):
        for user in (*scope.graph, scope.graph):
            values = user.inputs if isinstance(user, ir.Node) else user.outputs
            for index, value in enumerate(values):
                if is_float32(value):
                    uses.setdefault(value, []).append(Use(user, index))
    return uses


def _sees_rounding(use: Use, assignment: Assignment) -> bool:
    """Whether the result of a reader that takes any precision depends on rounding.

    That of Shape and Size does not, nor that of the user's own cast to the same format.
    """
    if isinstance(use.user, ir.Graph) or use.user.op_type != "Cast":
        return isinstance(use.user, ir.Graph)
    return use.user.outputs[0].dtype != assignment.low.dtype


def retype_attributes(node: ir.Node, outputs: Collection[int], low: LowFormat) -> bool:
    """Change the attribute that sets the type of one of `outputs` to `low`; return whether it was another type."""
    rule = dtype_attribute(node)
    if rule is None or not set(rule.outputs) & set(outputs) or attribute_dtype(node, rule) == low.dtype:
        return False
    if not rule.holds_tensor:
        node.attributes[rule.attribute] = ir.AttrInt64(rule.attribute, int(low.dtype))
        return True
    attribute = node.attributes.get(rule.attribute)
    if attribute is None:  # ConstantOfShape's default is one float32 zero
        zero = ir.Tensor(np.zeros(1, low.numpy), dtype=low.dtype)
        node.attributes[rule.attribute] = ir.AttrTensor(rule.attribute, zero)
        return True
    rounded = read(tensor_of(attribute), lambda array: convert_array(array, low))
    tensor = ir.Tensor(rounded, dtype=low.dtype, name=tensor_of(attribute).name)
    node.attributes[rule.attribute] = ir.AttrTensor(rule.attribute, tensor)
    return True
