"""Updates whose values a program states: a startup program sets most of its values without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from amp_transpiler.graph.constness import constant_array, constant_of
from amp_transpiler.ops.dtype_attributes import tensor_of
from amp_transpiler.ops.names import is_standard
from amp_transpiler.program.program import Program

__all__ = ["Known", "known_updates"]

Known: TypeAlias = Callable[[], np.ndarray]
"""Makes a known value. Random numbers are drawn when it is called."""

_BYTE = 8  # bits; smaller elements are packed


def known_updates(program: Program) -> Mapping[str, Known]:
    """Return persistable name -> what makes its new value, for constants and for tensors that are filled with a number.

    A session would get them in a message, which is copied several times, and copy each once more into its outputs.
    Names with the same value have the same function.
    """
    sources = {name: _source(program.value(output)) for name, output in program.updates.items()}
    makers = {source: _known(source) for source in dict.fromkeys(sources.values())}
    return {name: make for name, source in sources.items() if (make := makers[source]) is not None}


def _source(value: ir.Value) -> ir.Value:
    """Return the value that Identities, and casts that change nothing, pass on."""
    while (node := value.producer()) is not None and node.op_type in ("Identity", "Cast") and is_standard(node):
        before = node.inputs[0]
        if before is None or before.dtype is None or before.dtype != value.dtype:
            break
        value = before
    return value


def _known(value: ir.Value) -> Known | None:
    node, tensor = value.producer(), constant_of(value)
    if tensor is not None:
        whole = tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= _BYTE
        return (lambda: np.asarray(tensor.numpy())) if whole else None
    return None if node is None else _fill(node)


def _fill(node: ir.Node) -> Known | None:
    """Return what makes the result of a ConstantOfShape whose shape is known."""
    shape = constant_array(node.inputs[0]) if node.op_type == "ConstantOfShape" and is_standard(node) else None
    if shape is None:
        return None
    attribute = node.attributes.get("value")
    fill = np.zeros(1, np.float32) if attribute is None else tensor_of(attribute).numpy()
    sizes = tuple(map(int, shape))
    if not any(fill.tobytes()):  # zeros take no memory until they are read
        return lambda: np.zeros(sizes, fill.dtype)
    return lambda: np.full(sizes, fill.reshape(()), fill.dtype)
