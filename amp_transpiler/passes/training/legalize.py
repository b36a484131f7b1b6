"""Nodes that the target cannot run in the low format they were given, moved to float32 between casts."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constants import computed_tensor
from amp_transpiler.graph.dtypes import LOW_DTYPES, low_format
from amp_transpiler.graph.names import NameAllocator
from amp_transpiler.graph.types import set_dtype
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import bodies, constant_of, scopes
from amp_transpiler.ops.dtype_attributes import attribute_dtype, dtype_attribute
from amp_transpiler.ops.kinds import EXACT
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import Signature, opset_of, signature, type_string
from amp_transpiler.passes.cast_cleanup import clean_casts
from amp_transpiler.passes.casts import add_cast, rename_output
from amp_transpiler.passes.training.take_over import is_used
from amp_transpiler.precision.constraints import Target
from amp_transpiler.targets import attribute_values, bind_types, body_has_kernels, kernel_table, schema_version

__all__ = ["legalize"]

logger = logging.getLogger(__name__)

_LOW_TYPES = ("tensor(float16)", "tensor(bfloat16)")
_FLOAT = "tensor(float)"
_UNTOUCHED = {"Cast", "Constant"}
_MOVES = EXACT - {"Dropout"}  # which scales in training


def legalize(model: ir.Model, target: Target) -> int:
    """Move nodes of float16 and bfloat16 that cannot run so to float32, and return how many were moved.

    A node is moved, in any scope, where its schema does not admit the types bound in it or the target has no kernel for
    them at the model's opset, and float32 helps: the target has a kernel for that, or the schema admits only that, or
    ONNX Runtime's CPU provider can run the node in float32 and not as it is. Its low inputs are cast to float32 (of
    constants it gets a float32 copy) and its low outputs back, so every other node reads what it read before. Casts
    that this leaves without meaning are removed.

    Args:
        model: the program, its values typed.
        target: whose kernels count.

    Raises:
        VerificationError: the result is not well typed.
    """
    judge, pass_, count = _Judge(model, target), _Widening(model), 0
    for scope in list(scopes(model)):
        for node in list(scope.graph):
            if judge.needs_float32(node):
                logger.debug(
                    "%s '%s' is computed in float32: %s cannot run it low", node.op_type, node.name, target.name
                )
                pass_.widen(node)
                count += 1
    if count:
        clean_casts(model)
    verify(model, "legalization")
    return count


def _is_low(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in LOW_DTYPES and isinstance(value.type, ir.TensorType)


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
    def __init__(self, model: ir.Model, target: Target) -> None:
        self._model = model
        self._target = target
        self._cpu = Target("cpu", target.low)

    def needs_float32(self, node: ir.Node) -> bool:
        if any(True for _ in bodies(node)) or (is_standard(node) and node.op_type in _UNTOUCHED):
            return False
        values = [*node.inputs, *node.outputs]
        if not any(map(_is_low, values)):
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
        node, sig = typed.node, typed.sig
        version = schema_version(node.domain, node.op_type, opset_of(self._model, node.domain))
        types = bind_types(sig, typed.inputs, typed.outputs)
        if target.has_kernel(node.domain, node.op_type, version, types, attribute_values(node)):
            return True
        if not sig.has_function or target.name == "tensorrt":
            return False
        elsewhere = kernel_table("cpu").has_kernel if target.name == "cuda" else None
        imports = self._model.graph.opset_imports
        return bool(body_has_kernels(node, imports, typed.inputs, typed.outputs, target.has_kernel, elsewhere))


class _Widening:
    """Moves nodes to float32, casting each value once."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = NameAllocator(model)
        self._wide: dict[ir.Value, ir.Value] = {}  # low value -> the same numbers in float32

    def widen(self, node: ir.Node) -> None:
        _retype(node)
        for index, value in enumerate(node.inputs):
            if value is not None and _is_low(value):
                node.replace_input_with(index, self._in_float32(value, node))
                self._drop_unused_constant(value)
        for value in node.outputs:
            if _is_low(value):
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
        """A float32 initializer of the main graph, which every scope sees."""
        name = self._names.fresh(f"{value.name}__amp_fp32")
        copy = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(tensor.shape.numpy()))
        copy.const_value = _wide_tensor(tensor, name)
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


def _retype(node: ir.Node) -> None:
    """Let an attribute that sets the type of low outputs say float32."""
    rule = dtype_attribute(node)
    if rule is None or attribute_dtype(node, rule) not in LOW_DTYPES or rule.attribute not in node.attributes:
        return
    if not any(_is_low(node.outputs[index]) for index in rule.outputs if index < len(node.outputs)):
        return
    if rule.holds_tensor:
        tensor = node.attributes[rule.attribute].as_tensor()
        wide = ir.AttrTensor(rule.attribute, _wide_tensor(tensor, tensor.name or ""))
        node.attributes[rule.attribute] = wide
    else:
        node.attributes[rule.attribute] = ir.AttrInt64(rule.attribute, int(ir.DataType.FLOAT))


def _wide_tensor(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return computed_tensor(tensor, lambda array: array.astype(np.float32), ir.DataType.FLOAT, name)
