"""The float32 program that rounds like the 16-bit one: how a CPU shows the numerics of a GPU.

ONNX Runtime's CPU provider computes float16 graphs in float32 and drops the roundings between the nodes, and refuses
most of bfloat16. Each low result is rounded once here, as the best kernel would; for what a device's kernels do beside
that, the program is rewritten first (`device_arithmetic`).
"""

from __future__ import annotations

import os

import onnx
import onnx_ir as ir

from amp_transpiler import passes
from amp_transpiler.files.loading import load
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import LOW_DTYPES, low_format
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import propagate_types, set_dtype
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import Use, all_nodes, scopes
from amp_transpiler.ops.kinds import EXACT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.passes.inserted_casts import add_cast, redirect, rename_output
from amp_transpiler.passes.manager import Pass, PassFor, PassManager, PassResult
from amp_transpiler.passes.widening import is_low, wide_tensor, widen_attribute
from amp_transpiler.program.program import Program

__all__ = ["EmulateLow", "emulate", "emulate_in_place"]


def emulate(
    program: Program | ir.Model | onnx.ModelProto | str | os.PathLike[str], device: str | None = None
) -> Program:
    """Return a float32 program that computes what `program` does, every 16-bit result rounded to its format.

    Inputs and outputs keep their names and types, 16-bit ones included. `program` itself is not changed.

    Args:
        program: the low program.
        device: a GPU such as `H100`, whose kernels' steps are rounded as the installed ONNX Runtime has them there;
            None: every result is rounded once, and float32 is exact.

    Raises:
        ModelError: `program` cannot be read.
        OptionError: the device is unknown.
    """
    loaded = load(program)
    if device is not None:
        from amp_transpiler.passes.device_arithmetic.simulate import simulated
        from amp_transpiler.targets.arithmetic import arithmetic_of
        from amp_transpiler.targets.devices import find_device
        from amp_transpiler.targets.releases import choose_release

        arithmetic = arithmetic_of(find_device(device).name, choose_release(None).release.version)
        loaded = simulated(loaded, arithmetic).program
    return emulate_in_place(loaded.clone())


def emulate_in_place(program: Program) -> Program:
    """Turn a program into its emulation, and return it: `emulate` for one that nobody needs any more.

    Args:
        program: the low program; it is changed.
    """
    if program.model.functions:
        passes.InlineFunctions()(program.model)
    PassManager([PassFor({"Constant"}, lambda: passes.UnifyConstants())], typed=False)(program.model)
    propagate_types(program.model)
    EmulateLow()(program.model)
    verify(program.model, EmulateLow.__name__)  # it is run next
    program.source = None
    return program


class EmulateLow(Pass[PassResult]):
    """Computes float16 and bfloat16 nodes in float32 and rounds every result to its format; counts the edits.

    1. Every 16-bit value inside the program becomes float32; constants are widened in the file.
    2. A result that was 16-bit goes through a pair of casts, to its format and back, which ONNX Runtime keeps at every
       optimization level. Operators that only move or pick numbers need none.
    3. Inputs and outputs of the program keep their types, so casts stand behind the former and before the latter.
    4. CastLike becomes Cast: it would take its type from a tensor that is float32 from now on.
    """

    def call(self, model: ir.Model) -> PassResult:
        edits = 0
        for node in all_nodes(model):
            if node.op_type == "CastLike" and is_standard(node) and is_low(node.outputs[0]):
                _turn_into_cast(node)
                edits += 1
        edits += _Emulation(model).run()
        return PassResult(model, modified=bool(edits), count=edits)


class _Emulation:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = NameAllocator(model)
        self._edits = 0
        self._uses: dict[ir.Value, list[Use]] = {}
        for scope in scopes(model):
            for user in (*scope.graph, scope.graph):
                for index, value in enumerate(user.inputs if isinstance(user, ir.Node) else user.outputs):
                    if value is not None and is_low(value):
                        self._uses.setdefault(value, []).append(Use(user, index))

    def run(self) -> int:
        """Emulate the program and return the number of edits."""
        for scope in list(scopes(self._model)):
            for node in list(scope.graph):
                self._node(node)
            for value in list(scope.graph.initializers.values()):
                self._initializer(value)
            for value in scope.graph.inputs:
                self._input(value, main=scope.owner is None)
        return self._edits

    def _node(self, node: ir.Node) -> None:
        low = [value for value in node.outputs if is_low(value)]
        if not low:
            return
        leaves = any(self._leaves_the_program(use) for use in self._uses.get(low[0], []))
        if is_standard(node) and node.op_type == "Constant" and not leaves:
            self._widen_constant(node)
        elif is_standard(node) and node.op_type in ("Constant", "Cast"):
            self._widen_readers(low[0])
        else:
            self._edits += _widen_attribute(node)
            for value in low:
                self._round(value, exact=is_standard(node) and node.op_type in EXACT)

    def _round(self, value: ir.Value, exact: bool) -> None:
        """Make a 16-bit result float32, rounded to the format it had."""
        self._edits += 1
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
        """Keep a 16-bit value as it is, and give its readers inside the program a float32 copy."""
        inner = [use for use in self._uses.get(value, []) if not self._leaves_the_program(use)]
        if inner:
            self._edits += 1
            redirect(inner, add_cast(value, ir.DataType.FLOAT, "fp32", self._names))

    def _widen_constant(self, node: ir.Node) -> None:
        value = node.outputs[0]
        tensor = constant_of(value)
        if tensor is not None:
            self._edits += 1
            node.attributes["value"] = ir.AttrTensor("value", wide_tensor(tensor, str(value.name)))
            set_dtype(value, ir.DataType.FLOAT)

    def _initializer(self, value: ir.Value) -> None:
        if not is_low(value) or value.const_value is None:
            return
        leaves = any(self._leaves_the_program(use) for use in self._uses.get(value, []))
        if value.is_graph_input() or leaves:
            self._widen_readers(value)
            return
        self._edits += 1
        value.const_value = wide_tensor(value.const_value, str(value.name))
        set_dtype(value, ir.DataType.FLOAT)

    def _input(self, value: ir.Value, main: bool) -> None:
        if not is_low(value) or value.is_initializer():
            return
        if main:
            self._widen_readers(value)
        else:
            self._edits += 1
            value.type = _widened(value.type)


def _widened(type_: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(type_, ir.TensorType):
        return ir.TensorType(ir.DataType.FLOAT) if type_.dtype in LOW_DTYPES else type_
    inner = _widened(type_.elem_type) if isinstance(type_, (ir.SequenceType, ir.OptionalType)) else None
    if inner is None:
        return type_
    return ir.SequenceType(inner) if isinstance(type_, ir.SequenceType) else ir.OptionalType(inner)


def _turn_into_cast(node: ir.Node) -> None:
    dtype = node.outputs[0].dtype
    node.op_type = "Cast"
    node.resize_inputs(1)
    node.attributes["to"] = ir.AttrInt64("to", int(dtype or 0))


def _widen_attribute(node: ir.Node) -> bool:
    if node.op_type == "SequenceEmpty" and is_standard(node):  # the one such attribute whose output is no tensor
        node.attributes["dtype"] = ir.AttrInt64("dtype", int(ir.DataType.FLOAT))
        return True
    return widen_attribute(node)
