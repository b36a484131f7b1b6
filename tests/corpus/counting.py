"""Casts and low nodes of a model, and ONNX Runtime's own converter: what ours is measured by."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

import amp_transpiler as amp
from amp_transpiler.targets import CUDA
from amp_transpiler.targets.operator import imports_of, operator_of

# A weight is a Constant in one model and an initializer in another; Shape and Size read no element of what they are
# given, so whether that is low makes no difference to them.
_NO_WORK = ("Cast", "Constant", "Shape", "Size")


def count_casts(model: onnx.ModelProto) -> int:
    """Return the number of Cast nodes in all scopes, functions included."""
    nodes = [*_nodes(model.graph.node), *(n for function in model.functions for n in _nodes(function.node))]
    return sum(node.op_type == "Cast" for node in nodes)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node)


def low_nodes(model: onnx.ModelProto) -> list[str]:
    """List the operators of the nodes, in all scopes, that the CUDA provider runs with a float16 input or output.

    Casts, constants, Shape and Size do no work and are left out; so are nodes without a float16 kernel at the model's
    opset.
    """
    typed = amp.load(onnx.shape_inference.infer_shapes(model)).model
    return [node.op_type for node in ir.traversal.RecursiveGraphIterator(typed.graph) if _is_low(node, typed)]


def _is_low(node: ir.Node, model: ir.Model) -> bool:
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if node.op_type in _NO_WORK or not any(value.dtype == ir.DataType.FLOAT16 for value in values):
        return False
    return CUDA.runs(operator_of(node, imports_of(model.graph.opset_imports)))


def convert_by_onnx_runtime(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what ONNX Runtime's converter makes of a model in float16, I/O types kept; it raises whatever it likes."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # it warns of every weight that it truncates
        converted = OnnxModel(convert_float_to_float16(model, keep_io_types=True))
        converted.topological_sort()
    return converted.model
