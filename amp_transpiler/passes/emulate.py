"""The fp32 program that rounds like the low one: how a CPU shows the numerics of a GPU.

ONNX Runtime's CPU provider computes fp16 graphs in fp32 and drops the roundings between the nodes, and refuses most of
bfloat16. So every value of a low type becomes float32 here, and every result that was low goes through a pair of
casts, to the low type and back, which ONNX Runtime keeps at every optimization level. Accumulation inside an operator
is in float32, as it is in CUDA's matrix products and reductions.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.graph.constants import computed_tensor
from amp_transpiler.graph.dtypes import LOW_DTYPES, low_format
from amp_transpiler.graph.io import load
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.program import Program
from amp_transpiler.graph.types import propagate_types, set_dtype
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import Use, all_nodes, constant_of, scopes
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute
from amp_transpiler.ops.kinds import EXACT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.casts import add_cast, redirect, rename_output
from amp_transpiler.passes.constants import unify_constants
from amp_transpiler.passes.functions import inline_functions

__all__ = ["emulate"]


def emulate(program: Program | ir.Model | onnx.ModelProto | str | os.PathLike[str]) -> Program:
    """Return a float32 program that computes what `program` does, every low result rounded to its format.

    Inputs and outputs keep their names and types, low ones included. `program` itself is not changed.

    Raises:
        ModelError: `program` cannot be read.
    """
    result = load(program).clone()
    model = result.model
    inline_functions(model)
    unify_constants(model)
    propagate_types(model)
    for node in all_nodes(model):
        if node.op_type == "CastLike" and is_standard(node) and _is_low(node.outputs[0]):
            _turn_into_cast(node)
    _Emulation(model).run()
    verify(model, "emulation")
    result.source = None
    return result


def _is_low(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in LOW_DTYPES


class _Emulation:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = NameAllocator(model)
        self._uses: dict[ir.Value, list[Use]] = {}
        for scope in scopes(model):
            for user in (*scope.graph, scope.graph):
                for index, value in enumerate(user.inputs if isinstance(user, ir.Node) else user.outputs):
                    if value is not None and _is_low(value):
                        self._uses.setdefault(value, []).append(Use(user, index))

    def run(self) -> None:
        for scope in list(scopes(self._model)):
            for node in list(scope.graph):
                self._node(node)
            for value in list(scope.graph.initializers.values()):
                self._initializer(value)
            for value in scope.graph.inputs:
                self._input(value, main=scope.owner is None)

    def _node(self, node: ir.Node) -> None:
        low = [value for value in node.outputs if _is_low(value)]
        if not low:
            return
        leaves = any(self._leaves_the_program(use) for use in self._uses.get(low[0], []))
        if is_standard(node) and node.op_type == "Constant" and not leaves:
            _widen_constant(node)
        elif (is_standard(node) and node.op_type == "Constant") or (is_standard(node) and node.op_type == "Cast"):
            self._widen_readers(low[0])
        else:
            _retype(node)
            for value in low:
                self._round(value, exact=is_standard(node) and node.op_type in EXACT)

    def _round(self, value: ir.Value, exact: bool) -> None:
        """Make a low result float32, rounded to the format it had."""
        dtype, uses = value.dtype, self._uses.get(value, [])
        if dtype is None or not isinstance(value.type, ir.TensorType):  # a sequence: its elements were rounded before
            value.type = _widened(value.type)
            return
        set_dtype(value, ir.DataType.FLOAT)
        outputs = [use for use in uses if self._leaves_the_program(use)]
        inner = [use for use in uses if use not in outputs]
        if not uses or (exact and not outputs):
            return
        rounded = add_cast(value, dtype, low_format(dtype).short, self._names)
        if inner:
            redirect(inner, add_cast(rounded, ir.DataType.FLOAT, "rounded", self._names))
        if outputs:
            redirect(outputs, rounded)
            rename_output(value, rounded, self._names, "rounding")

    def _leaves_the_program(self, use: Use) -> bool:
        return use.user is self._model.graph

    def _widen_readers(self, value: ir.Value) -> None:
        """Keep a low value as it is, and give its readers inside the program a float32 copy."""
        inner = [use for use in self._uses.get(value, []) if not self._leaves_the_program(use)]
        if inner:
            redirect(inner, add_cast(value, ir.DataType.FLOAT, "fp32", self._names))

    def _initializer(self, value: ir.Value) -> None:
        if not _is_low(value) or value.const_value is None:
            return
        if value.is_graph_input():
            self._widen_readers(value)
            return
        if any(self._leaves_the_program(use) for use in self._uses.get(value, [])):
            self._widen_readers(value)
            return
        value.const_value = _wide_tensor(value.const_value, str(value.name))
        set_dtype(value, ir.DataType.FLOAT)

    def _input(self, value: ir.Value, main: bool) -> None:
        if not _is_low(value) or value.is_initializer():
            return
        if main:
            self._widen_readers(value)
        else:
            value.type = _widened(value.type)


def _widened(type_: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(type_, ir.TensorType):
        return ir.TensorType(ir.DataType.FLOAT) if type_.dtype in LOW_DTYPES else type_
    inner = _widened(type_.elem_type) if isinstance(type_, (ir.SequenceType, ir.OptionalType)) else None
    if inner is None:
        return type_
    return ir.SequenceType(inner) if isinstance(type_, ir.SequenceType) else ir.OptionalType(inner)


def _turn_into_cast(node: ir.Node) -> None:
    """CastLike takes its type from a tensor that is float32 from now on: say the type outright instead."""
    dtype = node.outputs[0].dtype
    node.op_type = "Cast"
    node.resize_inputs(1)
    node.attributes["to"] = ir.AttrInt64("to", int(dtype or 0))


def _retype(node: ir.Node) -> None:
    rule = dtype_attribute(node)
    if node.op_type == "SequenceEmpty" and is_standard(node):
        node.attributes["dtype"] = ir.AttrInt64("dtype", int(ir.DataType.FLOAT))
    if rule is None or attribute_dtype(node, rule) not in LOW_DTYPES:
        return
    if not any(_is_low(node.outputs[index]) for index in rule.outputs if index < len(node.outputs)):
        return
    if rule.attribute not in node.attributes and not isinstance(rule.default, ir.DataType):
        return  # typed by an input, which becomes float32 as well
    if not rule.holds_tensor:
        node.attributes[rule.attribute] = ir.AttrInt64(rule.attribute, int(ir.DataType.FLOAT))
        return
    tensor = node.attributes[rule.attribute].as_tensor()
    node.attributes[rule.attribute] = ir.AttrTensor(rule.attribute, _wide_tensor(tensor, tensor.name or ""))


def _widen_constant(node: ir.Node) -> None:
    value = node.outputs[0]
    tensor = constant_of(value)
    if tensor is not None:
        node.attributes["value"] = ir.AttrTensor("value", _wide_tensor(tensor, str(value.name)))
        set_dtype(value, ir.DataType.FLOAT)


def _wide_tensor(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return computed_tensor(tensor, lambda array: array.astype(np.float32), ir.DataType.FLOAT, name)
