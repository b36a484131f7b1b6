"""Lists operators as rows of data: what their CUDA kernels read, compute and launch.

Operators that are in no table read all of their inputs, write all of their outputs and are one launch. The exceptions
were counted on ONNX Runtime's CUDA provider, one node at a time (`lab/launches.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir

from amp_transpiler.cost.shapes import Sizes
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.product_operands import stacked_shape
from amp_transpiler.targets.kernel_conditions import holds

__all__ = [
    "ALIASES",
    "FLOPS",
    "HOST",
    "HOST_INPUTS",
    "LAUNCHES",
    "LOW",
    "MOVES",
    "ONLY_SHAPES",
    "READS_WHAT_IT_WRITES",
    "ROWS_OF_FEW_BITS",
    "SCATTERS",
    "SCRATCH",
    "WITHOUT_FLOAT32",
    "WITHOUT_KERNEL",
    "adds_bias",
    "copied_bytes",
    "few_bit_rows",
    "in_place",
    "requantized",
]

Number: TypeAlias = Callable[[ir.Node, Sizes], int]

LOW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_CLOSE = 16  # nodes before a scatter that are looked at
ROWS_OF_FEW_BITS = 16  # of a product with weights of few bits that one kernel reads as they are
# The output lies in the input's memory.
ALIASES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# Of their first input they take only what they write.
READS_WHAT_IT_WRITES = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
# They look at shapes, or at numbers in main memory.
ONLY_SHAPES = frozenset({"ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Range"})
# They write a few places of a copy of their first input, or of itself where nothing else reads it.
SCATTERS = frozenset({"ScatterElements", "ScatterND"})
VARIADIC = ("Sum", "Max", "Min", "Mean")
# They run on the CPU, and so does what computes with nothing but their results.
HOST = frozenset({"Shape", "Size"})
# The CUDA provider has no kernel for them: they run on the CPU, and their results are copied to the device.
WITHOUT_KERNEL = frozenset({"NonMaxSuppression", "STFT"})
# It has kernels for 16 bits only: in float32 they run on the CPU, between copies.
WITHOUT_FLOAT32 = frozenset({"GroupQueryAttention", "QMoE", "SparseAttention"})
# Inputs that CUDA kernels take from main memory: to compute one of them on the host is no reason to stay there.
HOST_INPUTS: Mapping[str, frozenset[int]] = MappingProxyType(
    {
        **dict.fromkeys(("ConstantOfShape", "RandomNormal", "RandomUniform"), frozenset({0})),
        **dict.fromkeys(("CumSum", "Expand", "OneHot", "Reshape", "Split", "Tile", "TopK"), frozenset({1})),
        **dict.fromkeys(("Squeeze", "Unsqueeze", "ReduceMax", "ReduceMean", "ReduceSum"), frozenset({1})),
        "Pad": frozenset({1, 2, 3}),
        "Range": frozenset({0, 1, 2}),
        "Resize": frozenset({1, 2, 3}),
        "Slice": frozenset({1, 2, 3, 4}),
    }
)


def _shape(node: ir.Node, index: int, sizes: Sizes) -> tuple[int, ...]:
    value = node.inputs[index] if index < len(node.inputs) else None
    return sizes.shape(value) or ()


def _attribute(node: ir.Node, name: str, default: int) -> int:
    return node.attributes.get_int(name, default)


# ---- what is computed; operators that are no matrix products are bound by memory long before ----
def _matmul(node: ir.Node, sizes: Sizes, index: int = 0) -> int:
    first = stacked_shape(node, 0, _shape(node, index, sizes))
    if not first:
        return 0
    inner = first[-2] if _attribute(node, "transA", 0) and len(first) > 1 else first[-1]
    return 2 * inner * sizes.elements(node.outputs[0])


def _conv(node: ir.Node, sizes: Sizes, weight: int = 1) -> int:
    return 2 * sizes.elements(node.outputs[0]) * math.prod(_shape(node, weight, sizes)[1:])


def _conv_transpose(node: ir.Node, sizes: Sizes) -> int:
    return 2 * sizes.elements(node.inputs[0]) * math.prod(_shape(node, 1, sizes)[1:])


def _attention(node: ir.Node, sizes: Sizes) -> int:
    """Count the scores and their product with the values; query and key are [B, S, D] or [B, H, S, D]."""
    query, key = _shape(node, 0, sizes), _shape(node, 1, sizes) or _shape(node, 0, sizes)
    return 4 * math.prod(query) * key[-2] if query else 0


def _grouped_attention(node: ir.Node, sizes: Sizes) -> int:
    """Count the same over all tokens so far: query is [B, S, D], alone or with key and value, past [B, H, P, D]."""
    query, past = _shape(node, 0, sizes), _shape(node, 3, sizes)
    if len(query) != 3:
        return 0
    return 4 * sizes.elements(node.outputs[0]) * (query[1] + (past[2] if len(past) == 4 else 0))


def _packed_attention(node: ir.Node, sizes: Sizes) -> int:
    """Count attention with the projections before it: input [B, S, I], weight [I, 3 D] of query, key and value."""
    tokens, weight = _shape(node, 0, sizes), _shape(node, 1, sizes)
    if len(tokens) != 3 or len(weight) != 2:
        return 0
    batch, length, inner = tokens
    return 2 * batch * length * inner * weight[1] + 4 * batch * length * length * weight[1] // 3


def _recurrent(node: ir.Node, sizes: Sizes) -> int:
    """Count each step's product with W [directions, gates, inputs] and R [directions, gates, hidden]."""
    steps = math.prod(_shape(node, 0, sizes)[:2])
    return 2 * steps * sum(math.prod(_shape(node, index, sizes)) for index in (1, 2))


FLOPS: Mapping[str, Number] = MappingProxyType(
    {
        **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "GemmFastGelu", "TransposeMatMul"), _matmul),
        **dict.fromkeys(("MatMulInteger", "QLinearMatMul", "DynamicQuantizeMatMul", "MatMulNBits"), _matmul),
        **dict.fromkeys(("Conv", "FusedConv", "NhwcConv", "ConvInteger", "NhwcFusedConv"), _conv),
        "QLinearConv": lambda node, sizes: _conv(node, sizes, weight=3),
        "ConvTranspose": _conv_transpose,
        "Attention": lambda node, sizes: (_packed_attention if node.domain else _attention)(node, sizes),
        "MultiHeadAttention": _attention,
        "GroupQueryAttention": _grouped_attention,
        **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    }
)


# ---- what is launched ----
def _gemm(node: ir.Node, sizes: Sizes) -> int:
    """Spread the bias over the result, then multiply; a bias of the result's size is copied."""
    return 1 + (_has(node, 2) and sizes.elements(node.inputs[2]) != sizes.elements(node.outputs[0]))


def adds_bias(node: ir.Node) -> bool:
    """Return whether a convolution adds its bias in a separate launch unless ONNX Runtime fuses the two."""
    return node.op_type == "Conv" and _has(node, 2)


def _reduce_mean(node: ir.Node, sizes: Sizes) -> int:
    """Add, then divide over leading or trailing dimensions; over others cuDNN does both."""
    shape = _shape(node, 0, sizes)
    axes = _axes(node, len(shape))
    remaining = [index for index, size in enumerate(shape) if index not in axes and size != 1]
    reduced = [index for index in axes if shape[index] != 1]
    return 1 + (not remaining or not reduced or max(remaining) < min(reduced) or max(reduced) < min(remaining))


def _axes(node: ir.Node, rank: int) -> set[int]:
    constant = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    listed = node.attributes.get_ints("axes", ()) if constant is None else constant.numpy().tolist()
    return {axis % rank for axis in listed} if listed and rank else set(range(rank))


def _variadic(node: ir.Node, sizes: Sizes) -> int:
    """Add eight operands of one shape at once, then the sum with seven more; two at a time where shapes differ."""
    if len(node.inputs) == 1:
        return 0  # a copy
    if len({sizes.shape(value) for value in node.inputs}) == 1:
        return 1 + math.ceil(max(0, len(node.inputs) - 8) / 7)
    return max(1, len(node.inputs) - 1)


def _moved(node: ir.Node, sizes: Sizes) -> int:
    return 0 if copied_bytes(node, sizes) else 1


def _is_low(node: ir.Node, sizes: Sizes) -> bool:
    return sizes.dtype(node.inputs[0]) in LOW


def _batch_norm(node: ir.Node, sizes: Sizes) -> int:
    """Cast scale, bias and both statistics of a low format to float32 first."""
    return 5 if _is_low(node, sizes) else 1


def _fused_attention(node: ir.Node, sizes: Sizes) -> int:
    """Launch projection, bias, a kernel and one for the mask if low; scores, softmax and both transposes in float32."""
    if not node.domain:
        return _standard_attention(node, sizes)
    return 3 + _has(node, 3) if _is_low(node, sizes) else 6


def _standard_attention(node: ir.Node, sizes: Sizes) -> int:
    """Launch a kernel, and one for rows without a score if there is a mask; or two products with a softmax between.

    The kernel reads and writes rows by positions, the products by heads: what comes otherwise is transposed. Truths of
    a mask become numbers.
    """
    has_heads, has_mask = len(_shape(node, 0, sizes)) == 4, _has(node, 3)
    reads_truths = has_mask and sizes.dtype(node.inputs[3]) == ir.DataType.BOOL
    if holds("unfused", node, sizes.shape):
        return 3 + 4 * (not has_heads) + reads_truths
    return 1 + 2 * has_heads + has_mask + reads_truths


def _multi_head_attention(node: ir.Node, sizes: Sizes) -> int:
    """Launch one kernel in low formats, and three where a bias is added; a mask of keys keeps them from it."""
    if not _is_low(node, sizes) or _has(node, 4):
        return 7
    return 4 if _has(node, 3) else 1


def _cached_attention(node: ir.Node, sizes: Sizes) -> int:
    """Rotate and append in two kernels, attend in one; find the lengths for a past that is not empty."""
    past = _shape(node, 3, sizes)
    return 3 + (len(past) == 4 and past[2] > 0)


def _few_bits(node: ir.Node, sizes: Sizes) -> int:
    """Multiply few rows at once, and more of them by a matrix that was written in full."""
    return 1 + (few_bit_rows(node, sizes) > ROWS_OF_FEW_BITS)


def few_bit_rows(node: ir.Node, sizes: Sizes) -> int:
    """Return the rows that a product with weights of few bits multiplies."""
    return math.prod(_shape(node, 0, sizes)[:-1])


def _embedding(node: ir.Node, _: Sizes) -> int:
    return 1 + _has(node, 7)


def _recurrent_launches(node: ir.Node, _: Sizes) -> int:
    """Call cuDNN once; order the results of two directions, and look at the lengths of sequences."""
    direction = node.attributes.get("direction")
    return 1 + (direction is not None and direction.value == "bidirectional") + _has(node, 4)


def _dequantized(node: ir.Node, _: Sizes) -> int:
    """ONNX Runtime gives every reader of dequantized numbers a separate node."""
    return max(1, len({use.node for use in node.outputs[0].uses()}))


MOVES = ALIASES | {"Transpose"}
_LONGEST = 8  # chain of moves that is followed


def requantized(node: ir.Node) -> int:
    """Return the launches of what ONNX Runtime puts around a move between quantized operators.

    It has moves work on quantized numbers: after each that follows a DequantizeLinear, and before each that leads to a
    QuantizeLinear, there is a further pair of the two.
    """
    maker, readers = _origin(node), _readers(node)
    after = maker == "DequantizeLinear" and "QuantizeLinear" not in readers
    before = _end(node) == "QuantizeLinear" and maker != "DequantizeLinear"
    return 2 * (after + before)


def _origin(node: ir.Node) -> str:
    """Return the operator in front of a chain of moves."""
    maker: ir.Node | None = node
    for _ in range(_LONGEST):
        value = maker.inputs[0] if maker is not None and maker.inputs else None
        maker = None if value is None else value.producer()
        if maker is None or maker.op_type not in MOVES:
            break
    return "" if maker is None else maker.op_type


def _end(node: ir.Node) -> str:
    """Return the operator behind a chain of moves that nothing else reads."""
    for _ in range(_LONGEST):
        uses = [use.node for use in node.outputs[0].uses()]
        if len(uses) != 1:
            return ""
        node = uses[0]
        if node.op_type not in MOVES:
            return node.op_type
    return ""


def _readers(node: ir.Node) -> set[str]:
    return {use.node.op_type for use in node.outputs[0].uses()}


def _has(node: ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


LAUNCHES: Mapping[str, Number] = MappingProxyType(
    {
        "BatchNormalization": _batch_norm,
        "Gemm": _gemm,
        "ConvTranspose": lambda node, _: 1 + _has(node, 2),
        "ReduceMean": _reduce_mean,
        **dict.fromkeys(VARIADIC, _variadic),
        **dict.fromkeys(("Slice", "Transpose"), _moved),
        "Attention": _fused_attention,
        "MultiHeadAttention": _multi_head_attention,
        "GroupQueryAttention": _cached_attention,
        "MatMulNBits": _few_bits,
        "EmbedLayerNormalization": _embedding,
        "GroupNormalization": lambda *_: 18,  # ONNX Runtime runs it as the function that ONNX defines
        **dict.fromkeys(("GatherND", "GroupNorm", "ReduceSumSquare"), lambda *_: 2),
        **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent_launches),
        "DequantizeLinear": _dequantized,
    }
)


# ---- what the kernels of one node hand to each other through memory ----
def _attention_scratch(node: ir.Node, sizes: Sizes) -> int:
    """Keep query, key and value before and after the bias, in float32 the scores before and after the softmax, too."""
    if node.op_type == "Attention" and not node.domain:
        return _standard_attention_scratch(node, sizes)
    result, heads = sizes.shape(node.outputs[0]) or (), _attribute(node, "num_heads", 1)
    if len(result) != 3 or LAUNCHES[node.op_type](node, sizes) == 1:
        return 0
    projected = 3 * sizes.bytes(node.outputs[0])
    if _is_low(node, sizes):
        return projected
    batch, length, _ = result
    return projected + sizes.bytes(node.outputs[0]) + 2 * 4 * batch * heads * length**2


def _standard_attention_scratch(node: ir.Node, sizes: Sizes) -> int:
    """Keep what is transposed, and of products the scores in float32 and the weights."""
    query, result = (sizes.bytes(value) for value in (node.inputs[0], node.outputs[0]))
    has_heads = len(_shape(node, 0, sizes)) == 4
    if not holds("unfused", node, sizes.shape):
        return (query + result) * has_heads
    key, value = (sizes.bytes(value) for value in node.inputs[1:3])
    scores = FLOPS["Attention"](node, sizes) // (4 * max(1, _shape(node, 0, sizes)[-1]))
    heads = 1 if has_heads else _attribute(node, "q_num_heads", 1)
    return (query + key + value + result) * (not has_heads) + 2 * 4 * scores * heads


SCRATCH: Mapping[str, Number] = MappingProxyType(dict.fromkeys(("Attention", "MultiHeadAttention"), _attention_scratch))


# ---- what is copied by the device itself, without a kernel ----
def copied_bytes(node: ir.Node, sizes: Sizes) -> int:
    """Return the bytes that the kernel of a node has copied within the device, instead of launching or besides."""
    if not node.outputs:
        return 0
    op, written = node.op_type, sizes.bytes(node.outputs[0])
    if op in ALIASES:  # an output of a graph has separate memory
        return written if node.outputs[0].is_graph_output() else 0
    if op in VARIADIC and len(node.inputs) == 1:
        return written
    if op in SCATTERS:
        return 0 if in_place(node) else written
    if op == "Gemm" and _has(node, 2) and sizes.elements(node.inputs[2]) == sizes.elements(node.outputs[0]):
        return written
    if op == "Transpose" and _keeps_order(node, _shape(node, 0, sizes)):
        return written
    if op == "Slice" and _is_one_piece(_shape(node, 0, sizes), sizes.shape(node.outputs[0]) or ()):
        return written
    return 0


def in_place(node: ir.Node) -> bool:
    """Return whether a scatter overwrites its first input: a result in separate memory that nothing else reads.

    A look-up may read it too: it runs first, since it was written first. So may whatever makes the scatter's operands:
    the scatter waits for it. ONNX Runtime's ScatterElements always copies. A view that nothing else reads hides
    nothing: its source is overwritten.
    """
    first = node.inputs[0]
    while first is not None and _is_own_view(first):
        view = first.producer()
        first = None if view is None else view.inputs[0]
    producer = None if first is None else first.producer()
    if node.op_type != "ScatterND" or first is None or producer is None or producer.op_type in ALIASES:
        return False
    readers = [use.node for use in first.uses() if use.node.op_type != "GatherElements"]
    if len(readers) > 1:
        before = _awaited(node)
        readers = [reader for reader in readers if reader not in before]
    return len(readers) == 1 and not first.is_graph_output()


def _awaited(scatter: ir.Node) -> set[ir.Node]:
    """Return the nodes close before a scatter that make its indices and updates."""
    awaited: dict[ir.Node, None] = {}
    values = [value for value in scatter.inputs[1:] if value is not None]
    for value in values:  # which grows
        producer = value.producer()
        if producer is not None and producer not in awaited and len(awaited) < _CLOSE:
            awaited[producer] = None
            values += [each for each in producer.inputs if each is not None]
    return set(awaited)


def _is_own_view(value: ir.Value) -> bool:
    """Whether a value is a view that one node reads, of a value that only the view reads."""
    node = value.producer()
    if node is None or node.op_type not in ALIASES or node.op_type == "Identity" or value.is_graph_output():
        return False
    source = node.inputs[0]
    return len(value.uses()) == 1 and source is not None and len(source.uses()) == 1 and not source.is_graph_output()


def _keeps_order(node: ir.Node, shape: tuple[int, ...]) -> bool:
    """Whether a transposition moves nothing but dimensions of size 1."""
    order = node.attributes.get_ints("perm") or range(len(shape) - 1, -1, -1)
    moved = [axis for axis in order if axis < len(shape) and shape[axis] != 1]
    return bool(shape) and moved == sorted(moved)


def _is_one_piece(source: tuple[int, ...], taken: tuple[int, ...]) -> bool:
    """Whether a slice is one stretch of memory: all before the last sliced dimension is 1, all behind it whole."""
    if not source:
        return False
    cut = [index for index, (size, part) in enumerate(zip(source, taken, strict=False)) if size != part]
    return len(source) == len(taken) and math.prod(taken[: cut[-1] if cut else 0]) == 1
