"""RAF's families, carried over to ONNX's operators: a row an operator, the inputs that vote, RAF's name for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

from amp_transpiler.ops.table_text import table_rows

__all__ = ["FAMILIES", "Family"]

Kind: TypeAlias = Literal["always", "never", "infer", "either", "concat", "follow", "data", "none"]


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """How RAF decides about an operator.

    Attributes:
        kind: `always` low, `never` low; `infer`: float32 if more voting inputs are float32 than low, and left alone if
            nothing votes or there are several outputs; `either`: low if any voting input is; `concat`: low if more
            inputs are low than not, of five at most; `follow`: as its first float32 input; `data`: that input is
            low always, the others never; `none`: never asked.
        votes: how many float32 inputs vote, from the first on; None: all.
        reason: RAF's name of the operator, or of its nearest relative there.
    """

    kind: Kind
    votes: int | None
    reason: str


# operator, family, number of voting inputs (* for all, - where nothing votes), RAF's operator or nearest relative.
_TABLE = """
Conv                       always - conv2d
ConvTranspose              always - conv2d_transpose
MatMul                     always - matmul, batch_matmul
Gemm                       always - dense
Einsum                     always - not in RAF, like matmul
DeformConv                 always - not in RAF, like conv2d
Attention                  always - not in RAF, like the matmuls it is made of
LinearAttention            always - not in RAF, like the matmuls it is made of
CausalConvWithState        always - not in RAF, like conv2d
LSTM                       always - not in RAF, its time is in dense products
GRU                        always - not in RAF, its time is in dense products
RNN                        always - not in RAF, its time is in dense products

Range                      never - arange
Exp                        never - exp
Pow                        never - power
Reciprocal                 never - reciprocal
Softmax                    never - softmax
LogSoftmax                 never - log_softmax
Erf                        never - erf
Gelu                       never - gelu
Atan                       never - atan
Tanh                       never - tanh
Mul                        never - multiply
ReduceSum                  never - sum
GatherND                   never - gather_nd
NegativeLogLikelihoodLoss  never - nll_loss
SoftmaxCrossEntropyLoss    never - cross_entropy
Sinh                       never - not in RAF, like exp
Cosh                       never - not in RAF, like exp
Elu                        never - not in RAF, like exp
Selu                       never - not in RAF, like exp
Celu                       never - not in RAF, like exp
Softplus                   never - not in RAF, like exp
Mish                       never - not in RAF, like tanh and exp
Tan                        never - not in RAF, like atan
Acos                       never - not in RAF, like atan
Asin                       never - not in RAF, like atan
Acosh                      never - not in RAF, like atan
Asinh                      never - not in RAF, like atan
Atanh                      never - not in RAF, like atan
ReduceL1                   never - not in RAF, like sum
ReduceL2                   never - not in RAF, like sum
ReduceSumSquare            never - not in RAF, like sum
ReduceLogSum               never - not in RAF, like sum
ReduceLogSumExp            never - not in RAF, like sum and exp
LpNormalization            never - not in RAF, like sum and power
LRN                        never - not in RAF, like sum and power
LpPool                     never - not in RAF, like sum and power
GlobalLpPool               never - not in RAF, like sum and power
Col2Im                     never - not in RAF, like sum
ScatterElements            never - not in RAF forward, like gather_dx, which accumulates
ScatterND                  never - not in RAF forward, like gather_nd_dx, which accumulates
Scatter                    never - not in RAF forward, like gather_dx, which accumulates
RotaryEmbedding            never - not in RAF, like multiply
Det                        never - not in RAF, like multiply and sum
DFT                        never - not in RAF, like multiply and sum
STFT                       never - not in RAF, like multiply and sum
BlackmanWindow             never - not in RAF, like arange
HammingWindow              never - not in RAF, like arange
HannWindow                 never - not in RAF, like arange
MelWeightMatrix            never - not in RAF, like arange
AffineGrid                 never - not in RAF, like arange: positions
GridSample                 never - not in RAF, positions like arange's
RoiAlign                   never - not in RAF, positions like arange's
MaxRoiPool                 never - not in RAF, positions like arange's
NonMaxSuppression          never - not in RAF, positions like arange's
Bernoulli                  never - not in RAF, it compares with random numbers of float32
Multinomial                never - not in RAF, like softmax, whose result it reads
TfIdfVectorizer            never - not in RAF, like multiply
DynamicQuantizeLinear      never - not in RAF, its scale is float32
QLinearConv                never - not in RAF, its scales are float32
QLinearMatMul              never - not in RAF, its scales are float32

AveragePool                infer 1 avg_pool2d
MaxPool                    infer 1 max_pool2d
GlobalAveragePool          infer 1 adaptive_avg_pool2d
GlobalMaxPool              infer 1 adaptive_max_pool2d
Pad                        infer 1 pad
Relu                       infer 1 relu
Abs                        infer 1 abs
Ceil                       infer 1 ceil
Floor                      infer 1 floor
Round                      infer 1 round
Sign                       infer 1 sign
Cos                        infer 1 cos
Sin                        infer 1 sin
Log                        infer 1 log
Sigmoid                    infer 1 sigmoid
Sqrt                       infer 1 sqrt
Equal                      infer 2 equal
Less                       infer 2 less
LessOrEqual                infer 2 less_equal
Greater                    infer 2 greater
GreaterOrEqual             infer 2 greater_equal
Max                        infer * maximum
Min                        infer * minimum
Mod                        infer 2 mod
Div                        infer 2 divide
Reshape                    infer 1 reshape
Transpose                  infer 1 transpose
Squeeze                    infer 1 squeeze
Unsqueeze                  infer 1 expand_dims
Slice                      infer 1 strided_slice
Resize                     infer 1 resize2d
Tile                       infer 1 repeat
Expand                     infer 1 broadcast_to
Where                      infer 2 where
CumSum                     infer 1 cumsum
TopK                       infer 1 topk
ArgMax                     infer 1 argmax
ArgMin                     infer 1 argmin
ReduceMean                 infer 1 mean
ReduceMax                  infer 1 max
ReduceMin                  infer 1 min
ReduceProd                 infer 1 prod
Gather                     infer 1 take, embedding
GatherElements             infer 1 gather
Dropout                    infer 1 dropout
Clip                       infer 1 clip
ConstantOfShape            infer 0 full, zeros, ones
OneHot                     infer 0 one_hot
EyeLike                    infer 0 not in RAF, like zeros
RandomNormal               infer 0 not in RAF, like full
RandomNormalLike           infer 0 not in RAF, like full
RandomUniform              infer 0 not in RAF, like full
RandomUniformLike          infer 0 not in RAF, like full
Neg                        infer 1 not in RAF's rules, like abs
LeakyRelu                  infer 1 not in RAF, like relu
PRelu                      infer 2 not in RAF, like relu with a second input
ThresholdedRelu            infer 1 not in RAF, like relu
Shrink                     infer 1 not in RAF, like relu
HardSigmoid                infer 1 not in RAF, like relu
HardSwish                  infer 1 not in RAF, like relu
Hardmax                    infer 1 not in RAF, like argmax
Swish                      infer 1 not in RAF, like sigmoid
SwiGLU                     infer 1 not in RAF, like sigmoid
Softsign                   infer 1 not in RAF, like divide
Mean                       infer * not in RAF, like mean
CumProd                    infer 1 not in RAF, like cumsum
IsNaN                      infer 1 not in RAF, like equal
IsInf                      infer 1 not in RAF, like equal
NonZero                    infer 1 not in RAF, like argmax
Unique                     infer 1 not in RAF, like sort
Identity                   infer 1 not in RAF, moves values like reshape
Flatten                    infer 1 not in RAF, moves values like reshape
Compress                   infer 1 not in RAF, moves values like strided_slice
CenterCropPad              infer 1 not in RAF, moves values like pad
DepthToSpace               infer 1 not in RAF, moves values like transpose
SpaceToDepth               infer 1 not in RAF, moves values like transpose
ReverseSequence            infer 1 not in RAF, moves values like transpose
TensorScatter              infer 2 not in RAF, moves values: no place is written twice
MaxUnpool                  infer 1 not in RAF, moves values like where
Trilu                      infer 1 not in RAF, moves values like where
Upsample                   infer 1 not in RAF, like resize2d
QuantizeLinear             infer 1 not in RAF, like round
DequantizeLinear           infer 1 not in RAF, its only float input is the scale

Add                        either 2 add
Sub                        either 2 subtract
Sum                        either * not in RAF, like add
Concat                     concat * concatenate
Split                      follow 1 split
BatchNormalization         data 1 batch_norm
LayerNormalization         follow 1 layer_norm
RMSNormalization           follow 1 not in RAF, like layer_norm
SimplifiedLayerNormalization follow 1 not in RAF, like layer_norm
GroupNormalization         follow 1 not in RAF, like layer_norm
InstanceNormalization      follow 1 not in RAF, like layer_norm
MeanVarianceNormalization  follow 1 not in RAF, like layer_norm

Cast                       none - cast keeps its type
CastLike                   none - cast_like keeps its type
BitCast                    none - not in RAF, like cast
Constant                   none - converted as its readers need it
Shape                      none - shape reads no value
Size                       none - size reads no value
If                         none - its bodies are decided node by node
Loop                       none - its body is decided node by node
Scan                       none - its body is decided node by node
SequenceMap                none - its body is decided node by node
SequenceAt                 none - not in RAF, sequences cannot be cast
SequenceConstruct          none - not in RAF, sequences cannot be cast
SequenceEmpty              none - not in RAF, sequences cannot be cast
SequenceErase              none - not in RAF, sequences cannot be cast
SequenceInsert             none - not in RAF, sequences cannot be cast
SequenceLength             none - not in RAF, sequences cannot be cast
SplitToSequence            none - not in RAF, sequences cannot be cast
ConcatFromSequence         none - not in RAF, sequences cannot be cast
Optional                   none - not in RAF, optionals cannot be cast
OptionalGetElement         none - not in RAF, optionals cannot be cast
OptionalHasElement         none - not in RAF, optionals cannot be cast
"""

# The same for operators of com.microsoft.
_CONTRIB = """
FusedConv                       always - conv2d with its activation
NhwcFusedConv                   always - conv2d with its activation
NhwcConv                        always - conv2d, channels last
ConvTransposeWithDynamicPads    always - conv2d_transpose
CausalConvWithState             always - not in RAF, like conv2d
FusedGemm                       always - dense with its activation
FusedMatMul                     always - matmul
FusedMatMulActivation           always - matmul with its activation
TransposeMatMul                 always - batch_matmul_nt, _tn, _tt
GemmFastGelu                    always - dense with its activation
MatMulNBits                     always - not in RAF, like matmul
MatMulBnb4                      always - not in RAF, like matmul
MoE                             always - not in RAF, like the matmuls it is made of
Attention                       always - not in RAF, like the matmuls it is made of
MultiHeadAttention              always - not in RAF, like the matmuls it is made of
GroupQueryAttention             always - not in RAF, like the matmuls it is made of
PackedAttention                 always - not in RAF, like the matmuls it is made of
PackedMultiHeadAttention        always - not in RAF, like the matmuls it is made of
PagedAttention                  always - not in RAF, like the matmuls it is made of
SparseAttention                 always - not in RAF, like the matmuls it is made of
LongformerAttention             always - not in RAF, like the matmuls it is made of
DecoderAttention                always - not in RAF, like the matmuls it is made of
DecoderMaskedSelfAttention      always - not in RAF, like the matmuls it is made of
DecoderMaskedMultiHeadAttention always - not in RAF, like the matmuls it is made of
LinearAttention                 always - not in RAF, like the matmuls it is made of
Gelu                            never - gelu
BiasGelu                        never - gelu
FastGelu                        never - gelu
QuickGelu                       never - gelu
BiasSplitGelu                   never - gelu
BiasSoftmax                     never - softmax
GatherND                        never - gather_nd
Range                           never - arange
Inverse                         never - not in RAF, like reciprocal
CDist                           never - not in RAF, like sum and power
CropAndResize                   never - not in RAF, positions like arange's
GridSample                      never - not in RAF, positions like arange's
RotaryEmbedding                 never - not in RAF, like multiply
GemmaRotaryEmbedding            never - not in RAF, like multiply
MRotaryEmbedding                never - not in RAF, like multiply
GatedRelativePositionBias       never - not in RAF, like multiply
ComplexMul                      never - not in RAF, like multiply
ComplexMulConj                  never - not in RAF, like multiply
Rfft                            never - not in RAF, like multiply and sum
Irfft                           never - not in RAF, like multiply and sum
TorchEmbedding                  infer 1 embedding
RelativePositionBias            infer 1 not in RAF, like embedding
ScaledSiLU                      infer 1 not in RAF, like sigmoid
IsAllFinite                     infer * not in RAF, like equal
BitmaskDropout                  infer 1 dropout
MaxpoolWithMask                 infer 1 max_pool2d
ExpandDims                      infer 1 expand_dims
Pad                             infer 1 pad
Trilu                           infer 1 not in RAF, moves values like where
UnfoldTensor                    infer 1 not in RAF, moves values like strided_slice
BiasAdd                         either * not in RAF, like two adds
GatedAdd                        either 2 not in RAF, like add
BiasDropout                     either * not in RAF, like add
BitmaskBiasDropout              either * not in RAF, like add
SkipLayerNormalization          either 2 not in RAF, like add and layer_norm
SkipSimplifiedLayerNormalization either 2 not in RAF, like add and layer_norm
SkipGroupNorm                   follow 1 not in RAF, like layer_norm
EmbedLayerNormalization         follow 1 not in RAF, like embedding and layer_norm
GatedRMSNorm                    follow 1 not in RAF, like layer_norm
BranchwiseRMSNorm               follow 1 not in RAF, like layer_norm
GroupNorm                       follow 1 not in RAF, like layer_norm
RemovePadding                   follow 1 not in RAF, like split
RestorePadding                  follow 1 not in RAF, like split
"""


def _rows(table: str, prefix: str = "") -> dict[str, Family]:
    found: dict[str, Family] = {}
    for operator, row in table_rows(table).items():
        kind, votes, reason = row.split(maxsplit=2)
        found[prefix + operator] = Family(cast(Kind, kind), int(votes) if votes.isdigit() else None, reason)
    return found


FAMILIES: Mapping[str, Family] = {**_rows(_TABLE), **_rows(_CONTRIB, "com.microsoft::")}
"""Operator -> its family."""
