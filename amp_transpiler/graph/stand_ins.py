"""ONNX's operators in the place of ONNX Runtime's own: nodes whose results have the same shapes.

ONNX cannot infer shapes through operators that it does not know. A stand-in lets it: it computes something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx_ir as ir

from amp_transpiler.ops.names import operator_name

__all__ = ["stand_ins"]

Placeholder = Callable[[list[int | None], int], str]
"""Makes a graph input of a shape and element type, and returns its name."""

_KEEPS_SHAPE = """Affine ImageScaler LayerNormalization ParametricSoftplus Scale ScaledTanh SimplifiedLayerNormalization
ThresholdedRelu com.microsoft::BiasAdd com.microsoft::BiasGelu com.microsoft::BiasSoftmax com.microsoft::FastGelu
com.microsoft::Gelu com.microsoft::GroupNorm com.microsoft::QuickGelu com.microsoft::RotaryEmbedding
com.microsoft::SkipLayerNormalization com.microsoft::SkipSimplifiedLayerNormalization com.microsoft::Trilu""".split()

# operator -> output -> input of the same shape
_SHAPES: Mapping[str, Mapping[int, int]] = {
    **{operator: {0: 0} for operator in _KEEPS_SHAPE},
    "com.microsoft::SkipLayerNormalization": {0: 0, 3: 0},
    "com.microsoft::SkipSimplifiedLayerNormalization": {0: 0, 3: 0},
}

# operator -> ONNX's operator that its attributes belong to, and the inputs that it takes
_OPERATORS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "com.microsoft::FusedConv": ("Conv", (0, 1)),
    "com.microsoft::FusedGemm": ("Gemm", (0, 1)),
    "com.microsoft::EmbedLayerNormalization": ("Gather", (2, 0)),  # rows of the table of words, by their numbers
}


def stand_ins(node: ir.Node, placeholder: Placeholder) -> list[onnx.NodeProto]:
    """Return nodes that stand for one of ONNX Runtime's own; none if no shape of its results is known.

    Args:
        node: a node whose operator ONNX does not have.
        placeholder: makes a graph input.
    """
    name = operator_name(node)
    names = ["" if value is None else str(value.name) for value in node.inputs]
    results = [str(value.name) for value in node.outputs]
    if name in _SHAPES:
        pairs = [(source, index) for index, source in _SHAPES[name].items() if index < len(results) and results[index]]
        return [onnx.helper.make_node("Identity", [names[source]], [results[index]]) for source, index in pairs]
    if name in _OPERATORS:
        op_type, inputs = _OPERATORS[name]
        stand_in = onnx.helper.make_node(op_type, [names[index] for index in inputs], results[:1])
        if op_type != "Gather":
            for attribute in node.attributes.values():
                ir.serde.serialize_attribute_into(stand_in.attribute.add(), attribute)
        return [stand_in]
    if name == "com.microsoft::FusedMatMul":
        return _product(node, names, results)
    if (sizes := _weight_sizes(name, node)) is not None and node.inputs[0] is not None and node.inputs[0].dtype:
        weight = placeholder(sizes, int(node.inputs[0].dtype))
        return [onnx.helper.make_node("MatMul", [names[0], weight], results[:1])]
    if name == "com.microsoft::GroupQueryAttention" and len(names) > 1 and names[1]:  # otherwise query holds all three
        return [onnx.helper.make_node("Identity", names[:1], results[:1])]
    return []


def _product(node: ir.Node, names: list[str], results: list[str]) -> list[onnx.NodeProto]:
    """Stand for FusedMatMul, which may transpose the last two axes of its inputs."""
    if node.attributes.get_int("transBatchA", 0) or node.attributes.get_int("transBatchB", 0):
        return []
    left, right = node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0)
    if not left and not right:
        return [onnx.helper.make_node("MatMul", names[:2], results[:1])]
    equation = f"...{'ji' if left else 'ij'},...{'kj' if right else 'jk'}->...ik"
    return [onnx.helper.make_node("Einsum", names[:2], results[:1], equation=equation)]


def _weight_sizes(name: str, node: ir.Node) -> list[int | None] | None:
    """Return the shape of the matrix that turns the shape of input 0 into that of output 0."""
    if name == "com.microsoft::MatMulNBits":
        return [node.attributes.get_int("K", None), node.attributes.get_int("N", None)]
    weights = node.inputs[1] if name == "com.microsoft::Attention" else None
    if weights is None or weights.shape is None or len(weights.shape) != 2:
        return None
    rows, columns = (size if isinstance(size, int) else None for size in weights.shape)
    widths = node.attributes.get_ints("qkv_hidden_sizes", None)  # without it, query, key and value are of one size
    return [rows, widths[2] if widths else columns // 3 if columns else None]
