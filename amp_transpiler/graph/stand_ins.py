"""ONNX's operators in the place of ONNX Runtime's own: nodes whose results have the same shapes.

ONNX cannot infer shapes through operators that it does not know. A stand-in lets it: it computes something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

__all__ = ["stand_ins"]

Placeholder = Callable[[int, int], str]
"""Makes a matrix of that many rows and columns, and returns its name."""

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


def stand_ins(
    node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto], placeholder: Placeholder
) -> list[onnx.NodeProto]:
    """Return nodes that stand for one of ONNX Runtime's own; none if no shape of its results is known.

    Args:
        node: a node whose operator ONNX does not have.
        weights: name -> initializer.
        placeholder: makes a constant.
    """
    name = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    names, results = list(node.input), list(node.output)
    if name in _SHAPES:
        pairs = [(source, index) for index, source in _SHAPES[name].items() if index < len(results) and results[index]]
        return [onnx.helper.make_node("Identity", [names[source]], [results[index]]) for source, index in pairs]
    if name in _OPERATORS:
        op_type, inputs = _OPERATORS[name]
        stand_in = onnx.NodeProto(op_type=op_type, input=[names[index] for index in inputs], output=results[:1])
        if op_type != "Gather":
            stand_in.attribute.extend(node.attribute)
        return [stand_in]
    if name == "com.microsoft::FusedMatMul":
        return _product(node)
    if (sizes := _weight_sizes(name, node, weights)) is not None:
        return [onnx.helper.make_node("MatMul", [names[0], placeholder(*sizes)], results[:1])]
    if name == "com.microsoft::GroupQueryAttention" and len(names) > 1 and names[1]:  # otherwise query holds all three
        return [onnx.helper.make_node("Identity", names[:1], results[:1])]
    return []


def _product(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Stand for FusedMatMul, which may transpose the last two axes of its inputs, and take stacks behind rows."""
    options = {attribute.name: attribute.i for attribute in node.attribute}
    if not any(options.get(name) for name in ("transA", "transB", "transBatchA", "transBatchB")):
        return [onnx.helper.make_node("MatMul", node.input[:2], node.output[:1])]
    left = _axes("ji" if options.get("transA") else "ij", options.get("transBatchA"))
    right = _axes("kj" if options.get("transB") else "jk", options.get("transBatchB"))
    return [onnx.helper.make_node("Einsum", node.input[:2], node.output[:1], equation=f"{left},{right}->...ik")]


def _axes(matrix: str, is_first: int | None) -> str:
    """Return the axes of a stack of matrices, whose rows may come before the stack, as an Einsum names them."""
    return f"{matrix[0]}...{matrix[1]}" if is_first else f"...{matrix}"


def _weight_sizes(name: str, node: onnx.NodeProto, weights: Mapping[str, onnx.TensorProto]) -> tuple[int, int] | None:
    """Return the shape of the matrix that turns the shape of input 0 into that of output 0."""
    options = {attribute.name: attribute for attribute in node.attribute}
    if name == "com.microsoft::MatMulNBits" and {"K", "N"} <= options.keys():
        return options["K"].i, options["N"].i
    weight = weights.get(node.input[1]) if name == "com.microsoft::Attention" else None
    if weight is None or len(weight.dims) != 2:
        return None
    widths = options["qkv_hidden_sizes"].ints if "qkv_hidden_sizes" in options else [0, 0, weight.dims[1] // 3]
    return weight.dims[0], widths[2]
