"""Runs nodes in float32 that the target cannot run in their 16-bit format."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import onnx_ir as ir

from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import FLOAT16, LowFormat, low_format
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import set_dtype
from amp_transpiler.graph.walk import bodies, is_used, scopes
from amp_transpiler.ops.kinds import EXACT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import Signature, opset_of, signature, type_string
from amp_transpiler.passes.clean_casts import CleanCasts
from amp_transpiler.passes.inserted_casts import add_cast, rename_output
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.passes.widening import is_low, wide_tensor, widen_attribute
from amp_transpiler.targets import CPU, Target
from amp_transpiler.targets.operator import imports_of, operator_of

__all__ = ["Legalize"]

logger = logging.getLogger(__name__)

_LOW_TYPES = ("tensor(float16)", "tensor(bfloat16)")
_FLOAT = "tensor(float)"
_UNTOUCHED = {"Cast", "Constant"}
_MOVES = EXACT - {"Dropout"}  # which scales in training


class Legalize(Pass[PassResult]):
    """Moves float16 and bfloat16 nodes that the target cannot run to float32, in any scope; counts them.

    1. A node is moved where its schema does not admit the types bound in it, or the target has no kernel for them at
       the model's opset, and float32 helps: the target has a kernel for that, or the schema admits only that, or ONNX
       Runtime's CPU provider can run the node in float32 and not as it is.
    2. Its 16-bit inputs are cast to float32 (of constants it gets a float32 copy) and its 16-bit outputs back, so every
       other node reads the same values as before.
    3. Casts that this leaves without meaning are removed.

    The values of the model must be typed.

    Args:
        target: whose kernels count.
        low: in float16, a node stays as it is if the CPU provider computes it between its own casts.
    """

    def __init__(self, target: Target, low: LowFormat) -> None:
        self._target = target
        self._low = low

    def call(self, model: ir.Model) -> PassResult:
        judge, widening, count = _Judge(model, self._target, self._low), _Widening(model), 0
        for scope in list(scopes(model)):
            for node in list(scope.graph):
                if judge.needs_float32(node):
                    logger.debug(
                        "%s '%s' is computed in float32: %s cannot run it in 16 bits",
                        node.op_type,
                        node.name,
                        self._target.name,
                    )
                    widening.widen(node)
                    count += 1
        if count:
            CleanCasts()(model)
        return PassResult(model, modified=bool(count), count=count)


def _is_low_tensor(value: ir.Value | None) -> bool:
    return is_low(value) and value is not None and isinstance(value.type, ir.TensorType)


def _types(values: Sequence[ir.Value | None]) -> list[str | None]:
    return [None if value is None else type_string(value.type) for value in values]


def _widened(types: Sequence[str | None]) -> list[str | None]:
    return [_FLOAT if type_ in _LOW_TYPES else type_ for type_ in types]


@dataclasses.dataclass(frozen=True, slots=True)
class _Typed:
    """A node with types at its slots, which need not be those it has."""

    node: ir.Node
    sig: Signature
    inputs: list[str | None]
    outputs: list[str | None]

    def is_admitted(self) -> bool:
        """Whether the schema permits the types."""
        for types, formal in ((self.inputs, self.sig.input), (self.outputs, self.sig.output)):
            for index, type_ in enumerate(types):
                slot = formal(index)
                if slot is not None and type_ is not None and type_ not in self.sig.types(slot):
                    return False
        return True


class _Judge:
    def __init__(self, model: ir.Model, target: Target, low: LowFormat) -> None:
        self._model = model
        self._imports = imports_of(model.graph.opset_imports)
        self._target = target
        self._cpu = CPU if low is FLOAT16 else dataclasses.replace(CPU, inserts_casts=False)

    def needs_float32(self, node: ir.Node) -> bool:
        if any(True for _ in bodies(node)) or (is_standard(node) and node.op_type in _UNTOUCHED):
            return False
        values = [*node.inputs, *node.outputs]
        if not any(map(_is_low_tensor, values)):
            return False
        sig = signature(node.domain, node.op_type, opset_of(self._model, node.domain))
        if sig is None:
            logger.debug("%s::%s '%s' is left alone: its schema is not known", node.domain, node.op_type, node.name)
            return False
        inputs, outputs = _types(node.inputs), _types(node.outputs)
        as_is = _Typed(node, sig, inputs, outputs)
        wide = _Typed(node, sig, _widened(inputs), _widened(outputs))
        if any("float16" in (type_ or "") for type_ in (*wide.inputs, *wide.outputs)):
            return False  # a sequence or optional of low tensors, which cannot be cast
        if not wide.is_admitted():
            return False
        if not as_is.is_admitted():
            return True
        if self._runs(as_is, self._target):
            return False
        # bfloat16 without a kernel anywhere is refused when the session is created: float32 on the CPU is better.
        return self._runs(wide, self._target) or (not self._runs(as_is, self._cpu) and self._runs(wide, self._cpu))

    def _runs(self, typed: _Typed, target: Target) -> bool:
        operator = operator_of(typed.node, self._imports)
        inputs, outputs = tuple(typed.inputs), tuple(typed.outputs)
        return target.runs(dataclasses.replace(operator, inputs=inputs, outputs=outputs))


class _Widening:
    """Moves nodes to float32, casting each value once."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = NameAllocator(model)
        self._wide: dict[ir.Value, ir.Value] = {}  # low value -> the same numbers in float32

    def widen(self, node: ir.Node) -> None:
        widen_attribute(node)
        for index, value in enumerate(node.inputs):
            if value is not None and _is_low_tensor(value):
                node.replace_input_with(index, self._in_float32(value, node))
                self._drop_unused_constant(value)
        for value in node.outputs:
            if _is_low_tensor(value):
                self._round(value, node)

    def _in_float32(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        if value not in self._wide:
            tensor = constant_of(value)
            self._wide[value] = self._cast(value, reader) if tensor is None else self._copy(value, tensor)
        return self._wide[value]

    def _cast(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        wide = add_cast(value, ir.DataType.FLOAT, "fp32", self._names)
        _tag(wide, reader)
        return wide

    def _copy(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a float32 initializer of the main graph, which every scope sees."""
        name = self._names.fresh(f"{value.name}__amp_fp32")
        copy = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(tensor.shape.numpy()))
        copy.const_value = wide_tensor(tensor, name)
        self._model.graph.register_initializer(copy)
        return copy

    def _drop_unused_constant(self, value: ir.Value) -> None:
        if is_used(value) or constant_of(value) is None:
            return
        producer, graph = value.producer(), value.graph
        if graph is None:
            return
        if producer is None:
            del graph.initializers[str(value.name)]
        else:
            graph.remove(producer, safe=True)

    def _round(self, value: ir.Value, node: ir.Node) -> None:
        """Make an output float32, and let its readers have it rounded to the type it had, under the name it had."""
        dtype = value.dtype
        set_dtype(value, ir.DataType.FLOAT)
        if dtype is None or not is_used(value):
            return
        rounded = ir.Value()  # stands for the readers while the cast itself is made
        value.replace_all_uses_with(rounded, replace_graph_outputs=True)
        low = add_cast(value, dtype, low_format(dtype).short, self._names)
        rounded.replace_all_uses_with(low, replace_graph_outputs=True)
        rename_output(value, low, self._names, "rounding")
        _tag(low, node)
        if (
            is_standard(node) and node.op_type in EXACT
        ):  # it moves or picks numbers: those of its float32 result are low
            self._wide[low] = value


def _tag(value: ir.Value, node: ir.Node) -> None:
    """Let the node that makes `value` carry the metadata of `node`: its role and region."""
    producer = value.producer()
    if producer is not None:
        producer.metadata_props.update(node.metadata_props)
