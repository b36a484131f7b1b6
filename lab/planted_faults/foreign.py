"""Makes the 16-bit models of other tools: everything low, whatever that does, and names that may be counters."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import amp_transpiler as amp
from amp_transpiler.graph.proto import to_proto
from planted_faults.editing import copy_of

__all__ = ["CLIPPING", "TOOLS", "own", "renamed"]

CLIPPING = ("onnxconverter_common",)
"""Tools that bring constants into 1e-7 to 1e4; onnxruntime leaves what reads a larger one in float32."""

_LOW = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_KEEPS_FLOAT = {"Resize": (1, 2), "Upsample": (1,)}  # inputs that no schema lets be low


@contextlib.contextmanager
def _only_errors(logger: str) -> Iterator[None]:
    """Let a logger tell nothing but errors in a block: thousands of conversions have the same to say."""
    told = logging.getLogger(logger)
    before = told.level
    told.setLevel(logging.ERROR)
    try:
        yield
    finally:
        told.setLevel(before)


def own(model: onnx.ModelProto, dtype: str, keeps: Sequence[str] = ()) -> onnx.ModelProto:
    """Convert with this package at level O2, unverified; nodes of some names stay float32."""
    options: Any = {"dtype": dtype, "disable_amp": [f"^{re.escape(name)}$" for name in keeps]}
    with _only_errors("amp_transpiler"):
        report = amp.transpile(copy_of(model), None, level="O2", verify=False, **options)
    assert report.program is not None
    return to_proto(report.program.model)


def _by_converter_common(model: onnx.ModelProto, _: str) -> onnx.ModelProto:
    from onnxconverter_common.float16 import convert_float_to_float16

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each constant that it clips
        converted: onnx.ModelProto = convert_float_to_float16(
            copy_of(model), keep_io_types=True, op_block_list=["Resize"]
        )
    return converted


def _by_onnx_runtime(model: onnx.ModelProto, _: str) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    with _only_errors("onnxruntime.transformers.float16"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = OnnxModel(convert_float_to_float16(copy_of(model), keep_io_types=True, op_block_list=["Resize"]))
    converted.topological_sort()
    low: onnx.ModelProto = converted.model
    return low


def _plainly(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """Make every float of the main graph low, as a script of a few lines does; inputs and outputs keep their types."""
    converted, low = copy_of(model), _LOW[dtype]
    graph = converted.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(_low_tensor(tensor, dtype))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(_low_tensor(attribute.t, dtype))
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = low
    del graph.value_info[:]
    _cast_inside(graph)
    _cast_at_the_ends(graph, low)
    return converted


def _cast_inside(graph: onnx.GraphProto) -> None:
    """Cast the few inputs that have to be float32."""
    nodes, count = list(graph.node), 0
    for node in nodes:
        for index in _KEEPS_FLOAT.get(node.op_type, ()):
            if index < len(node.input) and node.input[index]:
                count += 1
                name = f"float_{count}"
                place = list(graph.node).index(node)
                graph.node.insert(
                    place, helper.make_node("Cast", [node.input[index]], [name], f"Cast_f{count}", to=TensorProto.FLOAT)
                )
                node.input[index] = name


def _cast_at_the_ends(graph: onnx.GraphProto, low: int) -> None:
    constants = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT and value.name not in constants:
            name = f"{value.name}_low"
            for node in graph.node:
                node.input[:] = [name if read == value.name else read for read in node.input]
            graph.node.insert(0, helper.make_node("Cast", [value.name], [name], f"Cast_{value.name}", to=low))
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            name = f"{value.name}_low"
            for node in graph.node:
                node.input[:] = [name if read == value.name else read for read in node.input]
                node.output[:] = [name if result == value.name else result for result in node.output]
            graph.node.append(
                helper.make_node("Cast", [name], [value.name], f"Cast_{value.name}_out", to=TensorProto.FLOAT)
            )


def _low_tensor(tensor: TensorProto, dtype: str) -> TensorProto:
    numpy_type = np.dtype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(numpy_type), tensor.name)


TOOLS: dict[str, tuple[Callable[[onnx.ModelProto, str], onnx.ModelProto], tuple[str, ...]]] = {
    "onnxconverter_common": (_by_converter_common, ("float16",)),
    "onnxruntime": (_by_onnx_runtime, ("float16",)),
    "plain": (_plainly, ("float16", "bfloat16")),
    "amp_transpiler": (own, ("float16", "bfloat16")),
}
"""Name of a tool -> what converts, and the formats it has."""


def renamed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model whose nodes and inner values are called by counters, and the nodes' old names -> new ones."""
    copy = copy_of(model)
    del copy.graph.value_info[:]
    fixed = {value.name for value in (*copy.graph.input, *copy.graph.output)}
    values: dict[str, str] = {"": ""}
    nodes: dict[str, str] = {}

    def of(name: str) -> str:
        return name if name in fixed else values.setdefault(name, f"v{len(values)}")

    for tensor in copy.graph.initializer:
        tensor.name = of(tensor.name)
    for index, node in enumerate(copy.graph.node):
        nodes[node.name] = f"n{index}"
        node.name = f"n{index}"
        node.input[:] = [of(name) for name in node.input]
        node.output[:] = [of(name) for name in node.output]
    return copy, nodes
