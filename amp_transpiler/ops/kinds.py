"""Kinds of operators that the rules speak of, of ONNX's own domain unless said otherwise."""

from __future__ import annotations

__all__ = ["BOUNDED", "CAPPED", "COMPUTE", "CONTRIB_COMPUTE", "EXACT", "MOVEMENT", "SUMS"]

# The operators whose time low precision is for.
COMPUTE = frozenset(
    {"Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}
)

# The same in com.microsoft.
CONTRIB_COMPUTE = frozenset(
    {
        "Attention",
        "DecoderMaskedMultiHeadAttention",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "GemmFastGelu",
        "GroupQueryAttention",
        "MultiHeadAttention",
        "NhwcConv",
        "NhwcFusedConv",
        "PackedAttention",
        "PackedMultiHeadAttention",
        "QMoE",
        "MoE",
        "TransposeMatMul",
    }
)

# Values are moved, repeated or dropped, never computed: the result in a low format is exact if the input is.
MOVEMENT = frozenset(
    {
        "CenterCropPad",
        "Compress",
        "Concat",
        "DepthToSpace",
        "Dropout",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "MaxPool",
        "OneHot",
        "Pad",
        "Reshape",
        "ReverseSequence",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
    }
)

# Results lie within a small interval whatever comes in.
BOUNDED = frozenset(
    {
        "Softmax",
        "Hardmax",
        "Sigmoid",
        "HardSigmoid",
        "Tanh",
        "Sin",
        "Cos",
        "Atan",
        "Erf",
        "Sign",
        "Softsign",
        "Exp",
        "Reciprocal",
        "LayerNormalization",
        "InstanceNormalization",
        "LpNormalization",
    }
)

# Reductions that are sums of squares in themselves.
SUMS = frozenset({"ReduceL2", "ReduceSumSquare"})

# Every result is one of the inputs, or its negation: exact in a low format like movement is.
EXACT = MOVEMENT | frozenset({"Abs", "Clip", "Max", "Min", "Neg", "Relu", "Sign", "TopK", "Where"})

# A constant of theirs that rounds to infinity keeps its meaning: no bound, or a comparison that is always decided.
CAPPED = frozenset({"Clip", "Max", "Min", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
