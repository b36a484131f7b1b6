"""The default operator lists: one row an operator, its colour at level O1, and why.

The colours are those of Paddle's static AMP since 2.5, carried over to ONNX's operators. `UNLISTED` is Paddle's answer
for an operator that it has in no list; it is written out here so that no operator is forgotten. Operators which only
move values are gray, listed by Paddle or not.
"""

from __future__ import annotations

import enum

from amp_transpiler.ops.table_text import table_rows

__all__ = ["DEFAULT_COLOURS", "FINER_CLASSES", "Colour"]


class Colour(enum.Enum):
    """What the lists say of an operator.

    Attributes:
        WHITE: always low.
        BLACK: float32 for numerical reasons at O1; level O2 lifts it.
        GRAY: follows its producers.
        UNSUPPORTED: float32 at every level: the extra black list, and what the user listed as black.
        UNLISTED: float32 at O1, low at O2.
    """

    WHITE = "white"
    BLACK = "black"
    GRAY = "gray"
    UNSUPPORTED = "unsupported"
    UNLISTED = "unlisted"


FINER_CLASSES = {
    "Conv": ("Conv[depthwise]", "Conv[3d]"),
    "Gather": ("Gather[embedding]",),
    "MaxPool": ("MaxPool[indices]",),
    "Pow": ("Pow[scalar]",),
}
"""Operator -> classes of its nodes that have a row of their own."""

_WHITE = """
Conv                                            matrix product: conv2d, groups included
MatMul                                          matrix product: matmul, matmul_v2, mul
Gemm                                            matrix product: mul, fused_gemm_epilogue
Einsum                                          matrix product: einsum
Attention                                       matrix products with a softmax kept inside: fused_attention
MaxPool[indices]                                max_pool2d_with_index
QuantizeLinear                                  fake_quantize_dequantize_abs_max: the result is an integer anyway
DequantizeLinear                                fake_quantize_dequantize_abs_max: exact within a scale's rounding
com.microsoft::FusedConv                        matrix product with its activation
com.microsoft::NhwcFusedConv                    matrix product with its activation
com.microsoft::NhwcConv                         matrix product, channels last
com.microsoft::FusedGemm                        matrix product: fused_gemm_epilogue
com.microsoft::FusedMatMul                      matrix product: fused_gemm_epilogue
com.microsoft::FusedMatMulActivation            matrix product with its activation
com.microsoft::TransposeMatMul                  matrix product
com.microsoft::GemmFastGelu                     matrix product with its activation: fused_feedforward
com.microsoft::MatMulNBits                      matrix product with quantised weights
com.microsoft::MatMulBnb4                       matrix product with quantised weights
com.microsoft::MoE                              matrix products of experts: fused_feedforward
com.microsoft::Attention                        matrix products with a softmax kept inside: fused_attention
com.microsoft::MultiHeadAttention               matrix products with a softmax kept inside: fused_attention
com.microsoft::GroupQueryAttention              matrix products with a softmax kept inside: fused_attention
com.microsoft::PackedAttention                  matrix products with a softmax kept inside: fused_attention
com.microsoft::PackedMultiHeadAttention         matrix products with a softmax kept inside: fused_attention
com.microsoft::PagedAttention                   matrix products with a softmax kept inside: fused_attention
com.microsoft::SparseAttention                  matrix products with a softmax kept inside: fused_attention
com.microsoft::LongformerAttention              matrix products with a softmax kept inside: fused_attention
com.microsoft::DecoderAttention                 matrix products with a softmax kept inside: fused_attention
com.microsoft::DecoderMaskedSelfAttention       matrix products with a softmax kept inside: fused_attention
com.microsoft::DecoderMaskedMultiHeadAttention  matrix products with a softmax kept inside: fused_attention
"""

_BLACK = """
Tan                                             steep near its poles: tan
Acos                                            steep near 1: acos
Asin                                            steep near 1: asin
Sinh                                            overflows early: sinh
Cosh                                            overflows early: cosh
Atanh                                           steep near 1: atanh
Exp                                             overflows early: exp
Log                                             steep near 0: log
Reciprocal                                      overflows near 0: reciprocal
Pow[scalar]                                     overflows early: pow, square
ReduceSum                                       sums many values: reduce_sum
ReduceMean                                      sums many values: mean, reduce_mean
ReduceProd                                      multiplies many values: reduce_prod
ReduceL1                                        sums many values: p_norm
ReduceL2                                        sums many squares: p_norm, frobenius_norm
ReduceSumSquare                                 sums many squares: square and reduce_sum
ReduceLogSum                                    sums many values and takes their log
ReduceLogSumExp                                 sums many exponentials: logsumexp
CumSum                                          sums many values: cumsum
CumProd                                         multiplies many values: cumprod
LpNormalization                                 sums many powers: p_norm
MeanVarianceNormalization                       sums many squares
GroupNormalization                              sums many squares: group_norm
LayerNormalization                              sums many squares: layer_norm
RMSNormalization                                sums many squares: layer_norm without a mean
SimplifiedLayerNormalization                    sums many squares: layer_norm without a mean
Softmax                                         exponentials and their sum: softmax
LogSoftmax                                      exponentials and their sum: log_softmax
Softplus                                        exponential and log: softplus
SoftmaxCrossEntropyLoss                         a loss: softmax_with_cross_entropy, cross_entropy
NegativeLogLikelihoodLoss                       a loss: nll_loss
com.microsoft::SkipLayerNormalization           sums many squares: layer_norm
com.microsoft::SkipSimplifiedLayerNormalization sums many squares: layer_norm without a mean
com.microsoft::EmbedLayerNormalization          sums many squares: layer_norm after a look-up
com.microsoft::GatedRMSNorm                     sums many squares: layer_norm without a mean
com.microsoft::BranchwiseRMSNorm                sums many squares: layer_norm without a mean
com.microsoft::GroupNorm                        sums many squares: group_norm
com.microsoft::SkipGroupNorm                    sums many squares: group_norm
com.microsoft::BiasSoftmax                      exponentials and their sum: softmax
com.microsoft::Inverse                          divides by what may be near 0
com.microsoft::CDist                            sums many squares: dist
"""

_EXTRA_BLACK = """
Resize                                          interpolation: the positions need float32: *_interp_v2
Upsample                                        interpolation: the positions need float32: *_interp_v2
Gather[embedding]                               the table is updated row by row in training: lookup_table_v2
ScatterElements                                 accumulates into few places: scatter
ScatterND                                       accumulates into few places: scatter
Scatter                                         accumulates into few places: scatter
BitCast                                         the bits are the meaning: another type is another value
com.microsoft::TorchEmbedding                   the table is updated row by row in training: lookup_table_v2
com.microsoft::CropAndResize                    interpolation: the positions need float32: *_interp_v2
"""

_GRAY = """
Add                                             elementwise_add
Sub                                             elementwise_sub
Mul                                             elementwise_mul, scale
Div                                             elementwise_div
Max                                             elementwise_max
Min                                             elementwise_min
Pow                                             elementwise_pow
Mod                                             elementwise_mod
Floor                                           elementwise_floordiv
Sum                                             elementwise_add of any number
Mean                                            elementwise_add of any number, scaled
Neg                                             scale by -1, exact
BatchNormalization                              batch_norm
Tanh                                            tanh
Sigmoid                                         sigmoid
Relu                                            relu, exact
Clip                                            relu6, exact
LeakyRelu                                       leaky_relu
Sign                                            sign, exact
TopK                                            top_k, moves values
AveragePool                                     pool2d
MaxPool                                         pool2d, exact
GlobalAveragePool                               pool2d over everything
GlobalMaxPool                                   pool2d over everything, exact
Dropout                                         dropout
Flatten                                         flatten2, moves values
Reshape                                         reshape2, moves values
Transpose                                       transpose2, moves values
Slice                                           slice, moves values
Split                                           split, moves values
Concat                                          concat, moves values
Gather                                          gather, moves values
Cast                                            cast
CastLike                                        cast
RandomNormal                                    gaussian_random
RandomNormalLike                                gaussian_random
RandomUniform                                   uniform_random
RandomUniformLike                               uniform_random
Bernoulli                                       uniform_random compared
ConstantOfShape                                 fill_constant
Constant                                        assign_value
EyeLike                                         fill_constant
Shape                                           reads no value
Size                                            reads no value
Identity                                        moves values
Squeeze                                         moves values
Unsqueeze                                       stack and unstack, moves values
Expand                                          moves values
Tile                                            moves values
Where                                           moves values
Pad                                             moves values
GatherElements                                  moves values
GatherND                                        moves values
TensorScatter                                   moves values: no place is written twice
DepthToSpace                                    moves values
SpaceToDepth                                    moves values
ReverseSequence                                 moves values
Compress                                        moves values
CenterCropPad                                   moves values
MaxUnpool                                       moves values
Trilu                                           moves values
If                                              its bodies are decided node by node
Loop                                            its body is decided node by node
Scan                                            its body is decided node by node
SequenceMap                                     its body is decided node by node
SequenceAt                                      moves values
SequenceConstruct                               moves values
SequenceEmpty                                   moves values
SequenceErase                                   moves values
SequenceInsert                                  moves values
SequenceLength                                  reads no value
SplitToSequence                                 moves values
ConcatFromSequence                              moves values
Optional                                        moves values
OptionalGetElement                              moves values
OptionalHasElement                              reads no value
com.microsoft::BiasAdd                          elementwise_add
com.microsoft::GatedAdd                         elementwise_add
com.microsoft::BiasDropout                      elementwise_add and dropout
com.microsoft::BitmaskDropout                   dropout
com.microsoft::BitmaskBiasDropout               elementwise_add and dropout
com.microsoft::MaxpoolWithMask                  pool2d, exact
com.microsoft::ExpandDims                       moves values
com.microsoft::Pad                              moves values
com.microsoft::GatherND                         moves values
com.microsoft::Trilu                            moves values
com.microsoft::UnfoldTensor                     moves values
com.microsoft::RemovePadding                    moves values
com.microsoft::RestorePadding                   moves values
"""

_UNLISTED = """
Conv[depthwise]                                 depthwise_conv2d: few products a sum, bound by memory
Conv[3d]                                        conv3d
ConvTranspose                                   conv2d_transpose
DeformConv                                      deformable_conv
CausalConvWithState                             depthwise convolution
LinearAttention                                 recurrent sum
LSTM                                            lstm
GRU                                             gru
RNN                                             rnn
Gelu                                            gelu
Erf                                             erf
Swish                                           swish
SwiGLU                                          swiglu
HardSwish                                       hard_swish
HardSigmoid                                     hard_sigmoid
Mish                                            mish
Elu                                             elu
Selu                                            selu
Celu                                            celu
PRelu                                           prelu
ThresholdedRelu                                 thresholded_relu
Shrink                                          hard_shrink, softshrink
Softsign                                        softsign
Hardmax                                         an index as a vector
Abs                                             abs
Sqrt                                            sqrt
Sin                                             sin
Cos                                             cos
Atan                                            atan
Asinh                                           asinh
Acosh                                           acosh
Ceil                                            ceil
Round                                           round
InstanceNormalization                           instance_norm
LRN                                             lrn
LpPool                                          sums powers
GlobalLpPool                                    sums powers
ReduceMax                                       reduce_max
ReduceMin                                       reduce_min
ArgMax                                          arg_max
ArgMin                                          arg_min
Equal                                           equal
Less                                            less_than
LessOrEqual                                     less_equal
Greater                                         greater_than
GreaterOrEqual                                  greater_equal
IsNaN                                           isnan
IsInf                                           isinf
NonZero                                         where_index
Unique                                          unique
OneHot                                          one_hot
Range                                           range: whole numbers beyond 2048 are no float16
Col2Im                                          fold
AffineGrid                                      affine_grid: positions
GridSample                                      grid_sampler: positions
RotaryEmbedding                                 positions
RoiAlign                                        roi_align: positions
MaxRoiPool                                      roi_pool: positions
NonMaxSuppression                               multiclass_nms: float32 only
Det                                             determinant
DFT                                             fft
STFT                                            stft
BlackmanWindow                                  made at compile time
HammingWindow                                   made at compile time
HannWindow                                      made at compile time
MelWeightMatrix                                 made at compile time
Multinomial                                     multinomial
TfIdfVectorizer                                 counts
DynamicQuantizeLinear                           quantisation parameters
QLinearConv                                     quantised
QLinearMatMul                                   quantised
com.microsoft::Gelu                             gelu
com.microsoft::BiasGelu                         gelu
com.microsoft::FastGelu                         gelu
com.microsoft::QuickGelu                        gelu
com.microsoft::BiasSplitGelu                    gelu
com.microsoft::ScaledSiLU                       swish
com.microsoft::RotaryEmbedding                  positions
com.microsoft::GemmaRotaryEmbedding             positions
com.microsoft::MRotaryEmbedding                 positions
com.microsoft::RelativePositionBias             positions
com.microsoft::GatedRelativePositionBias        positions
com.microsoft::GridSample                       grid_sampler: positions
com.microsoft::ConvTransposeWithDynamicPads     conv2d_transpose
com.microsoft::CausalConvWithState              depthwise convolution
com.microsoft::LinearAttention                  recurrent sum
com.microsoft::Rfft                             fft
com.microsoft::Irfft                            fft
com.microsoft::ComplexMul                       fft
com.microsoft::ComplexMulConj                   fft
com.microsoft::IsAllFinite                      isfinite
com.microsoft::Range                            range
"""


def _rows(colour: Colour, table: str) -> dict[str, tuple[Colour, str]]:
    return {key: (colour, reason) for key, reason in table_rows(table).items()}


DEFAULT_COLOURS: dict[str, tuple[Colour, str]] = {
    **_rows(Colour.WHITE, _WHITE),
    **_rows(Colour.BLACK, _BLACK),
    **_rows(Colour.UNSUPPORTED, _EXTRA_BLACK),
    **_rows(Colour.GRAY, _GRAY),
    **_rows(Colour.UNLISTED, _UNLISTED),
}
"""Operator or finer class -> its colour by default and the reason."""
