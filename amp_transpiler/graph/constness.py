"""Whether a value is a constant, and which: one question a function.

They differ in what they count, so a caller chooses by what it goes on to do:

- `constant_of`: a tensor of its own, which a pass can convert in place or copy. For prepared programs, in which every
  float Constant has a `value` and no Identity stands before a reader (`passes.unify_constants`,
  `passes.skip_identities`). All decisions and passes ask this one.
- `constant_tensor`: the numbers that a value always has, through Identity and every form of Constant. For programs
  that need not be prepared, and where only the numbers count.
- `initial_tensor`: also the default of a graph input, which callers may override. For questions of shape and type, in
  which an override makes no difference.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.ops.names import is_standard

__all__ = ["constant_array", "constant_of", "constant_tensor", "initial_tensor", "is_pow_of_two", "single_number"]

_NUMBER_FORMS = (
    ("value_float", np.float32),
    ("value_floats", np.float32),
    ("value_int", np.int64),
    ("value_ints", np.int64),
)


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer that is no graph input, or the `value` of a Constant; None otherwise."""
    if value is None:
        return None
    node = value.producer()
    if node is None:
        return None if not value.is_initializer() or value.is_graph_input() else value.const_value
    if node.op_type != "Constant" or not is_standard(node):
        return None
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else tensor_of(attribute)


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the numbers that a value always has, looking through Identity and every form of Constant."""
    while value is not None and (tensor := constant_of(value)) is None:
        node = value.producer()
        if node is None or not is_standard(node):
            return None
        if node.op_type == "Constant":
            return _number_tensor(node)
        value = node.inputs[0] if node.op_type == "Identity" else None
    return None if value is None else tensor


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """Return what `constant_tensor` finds as an array."""
    tensor = constant_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def initial_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the numbers that a value has unless a caller overrides them: a constant's, or a graph input's default."""
    if value is not None and value.is_initializer():
        return value.const_value
    return constant_tensor(value)


def is_pow_of_two(node: ir.Node) -> bool:
    """Whether `node` is a Pow whose exponent is the constant 2."""
    if node.op_type != "Pow" or not is_standard(node):
        return False
    return single_number(node.inputs[1]) == 2.0


def single_number(value: ir.Value | None) -> float | None:
    """Return the number of a constant of one element (`constant_of`); None for what is none."""
    tensor = constant_of(value)
    return None if tensor is None or tensor.size != 1 else float(tensor.numpy().reshape(()))


def _number_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for name, dtype in _NUMBER_FORMS:
        attribute = node.attributes.get(name)
        if attribute is not None and not attribute.is_ref():
            return ir.tensor(np.asarray(attribute.value, dtype))
    return None
