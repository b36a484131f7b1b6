"""PyTorch's autocast classes on CUDA, carried over to ONNX's operators: one row an operator, with torch's name for it.

The classes are those of `ATen/autocast_mode.h`. torch's `fp32_set_opt_dtype` (sum, prod, softmax, cumsum, ...) and
`fp32_append_dtype` (norm), in which an explicit output type wins, are in `FP32` here: an ONNX operator has no such
argument, a type that the user asked for is a Cast of its own. What torch has in no list falls through; it is written
out here so that no operator is forgotten. Operators that torch does not have are of the class of their nearest relative
there. The same classes serve float16 and bfloat16.
"""

from __future__ import annotations

import enum

from amp_transpiler.ops.table_text import table_rows

__all__ = ["TORCH_CLASSES", "TorchClass"]


class TorchClass(enum.Enum):
    """What torch's autocast does with an operator.

    Attributes:
        LOWER_PRECISION_FP: all float32 inputs are cast to low.
        FP32: all low inputs are cast to float32.
        PROMOTE: all float inputs are cast to the widest among them.
        FALL_THROUGH: no cast; the type of the result is that of torch's own promotion.
    """

    LOWER_PRECISION_FP = "lower_precision_fp"
    FP32 = "fp32"
    PROMOTE = "promote"
    FALL_THROUGH = "fall_through"


_LOWER_PRECISION_FP = """
Conv                                            conv1d, conv2d, conv3d
ConvTranspose                                   conv_transpose1d, conv_transpose2d, conv_transpose3d
CausalConvWithState                             conv1d over the state and the input
MatMul                                          matmul
Gemm                                            addmm, linear
Einsum                                          einsum
Attention                                       scaled_dot_product_attention
LinearAttention                                 nearest: scaled_dot_product_attention
LSTM                                            lstm_cell, _cudnn_rnn
GRU                                             gru_cell, _cudnn_rnn
RNN                                             rnn_tanh_cell, rnn_relu_cell, _cudnn_rnn
PRelu                                           prelu
QLinearConv                                     conv2d, quantised
QLinearMatMul                                   matmul, quantised
com.microsoft::FusedConv                        conv2d with its activation
com.microsoft::NhwcFusedConv                    conv2d with its activation
com.microsoft::NhwcConv                         conv2d, channels last
com.microsoft::ConvTransposeWithDynamicPads     conv_transpose2d
com.microsoft::CausalConvWithState              conv1d over the state and the input
com.microsoft::FusedGemm                        addmm with its activation
com.microsoft::FusedMatMul                      matmul, scaled
com.microsoft::FusedMatMulActivation            matmul with its activation
com.microsoft::TransposeMatMul                  matmul of a transpose
com.microsoft::GemmFastGelu                     linear with gelu
com.microsoft::MatMulNBits                      linear with quantised weights
com.microsoft::MatMulBnb4                       linear with quantised weights
com.microsoft::MoE                              linear, for each expert
com.microsoft::Attention                        linear and scaled_dot_product_attention
com.microsoft::MultiHeadAttention               scaled_dot_product_attention
com.microsoft::GroupQueryAttention              scaled_dot_product_attention
com.microsoft::PackedAttention                  linear and scaled_dot_product_attention
com.microsoft::PackedMultiHeadAttention         scaled_dot_product_attention
com.microsoft::PagedAttention                   scaled_dot_product_attention
com.microsoft::SparseAttention                  scaled_dot_product_attention
com.microsoft::LongformerAttention              scaled_dot_product_attention
com.microsoft::DecoderAttention                 linear and scaled_dot_product_attention
com.microsoft::DecoderMaskedSelfAttention       linear and scaled_dot_product_attention
com.microsoft::DecoderMaskedMultiHeadAttention  scaled_dot_product_attention
com.microsoft::LinearAttention                  nearest: scaled_dot_product_attention
com.microsoft::GatedRelativePositionBias        linear, then a gate
"""

_FP32 = """
Acos                                            acos
Asin                                            asin
Cosh                                            cosh
Sinh                                            sinh
Tan                                             tan
Exp                                             exp
Log                                             log
Reciprocal                                      reciprocal
Pow                                             pow, with a tensor or a number as exponent
Softplus                                        softplus
Softmax                                         softmax
LogSoftmax                                      log_softmax
CumSum                                          cumsum
CumProd                                         cumprod
ReduceSum                                       sum
ReduceProd                                      prod
ReduceL1                                        linalg_vector_norm, norm
ReduceL2                                        linalg_vector_norm, norm
ReduceSumSquare                                 pow and sum
ReduceLogSum                                    sum and log
ReduceLogSumExp                                 logsumexp
LayerNormalization                              layer_norm
RMSNormalization                                rms_norm
SimplifiedLayerNormalization                    rms_norm
GroupNormalization                              group_norm
LpNormalization                                 linalg_vector_norm, then a division
LpPool                                          pow, then avg_pool2d
GlobalLpPool                                    linalg_vector_norm
LRN                                             local_response_norm, which divides by a pow
SoftmaxCrossEntropyLoss                         log_softmax and nll_loss
NegativeLogLikelihoodLoss                       nll_loss
Resize                                          upsample_nearest2d, upsample_bilinear2d, upsample_bicubic2d
Upsample                                        upsample_nearest2d, upsample_bilinear2d
DeformConv                                      torchvision's deform_conv2d, which works in float32
RoiAlign                                        torchvision's roi_align, which works in float32
MaxRoiPool                                      torchvision's roi_pool, which works in float32
NonMaxSuppression                               torchvision's nms, which works in float32
DequantizeLinear                                dequantize, whose result is float32
DynamicQuantizeLinear                           quantize_per_tensor_dynamic, which reads float32
com.microsoft::SkipLayerNormalization           layer_norm of a sum
com.microsoft::SkipSimplifiedLayerNormalization rms_norm of a sum
com.microsoft::EmbedLayerNormalization          layer_norm of a sum of embeddings
com.microsoft::GatedRMSNorm                     rms_norm with a gate
com.microsoft::BranchwiseRMSNorm                rms_norm
com.microsoft::GroupNorm                        group_norm
com.microsoft::SkipGroupNorm                    group_norm of a sum
com.microsoft::BiasSoftmax                      softmax of a sum
com.microsoft::CDist                            cdist
com.microsoft::Inverse                          linalg_inv, which takes no low precision
com.microsoft::CropAndResize                    nearest: upsample_bilinear2d
"""

_PROMOTE = """
GridSample                                      grid_sampler
ScatterND                                       index_put
ScatterElements                                 scatter_add; scatter itself takes one type only
Scatter                                         scatter_add; scatter itself takes one type only
TensorScatter                                   index_put
com.microsoft::GridSample                       grid_sampler
"""

_FALL_THROUGH = """
Add                                             add
Sub                                             sub
Mul                                             mul
Div                                             div
Max                                             maximum
Min                                             minimum
Mod                                             remainder, fmod
Sum                                             add, of any number
Mean                                            add and div
Neg                                             neg
Abs                                             abs
Sign                                            sign
Floor                                           floor
Ceil                                            ceil
Round                                           round
Sqrt                                            sqrt
Erf                                             erf
Sin                                             sin
Cos                                             cos
Atan                                            atan
Asinh                                           asinh
Acosh                                           acosh
Atanh                                           atanh
Tanh                                            tanh
Sigmoid                                         sigmoid
Relu                                            relu
LeakyRelu                                       leaky_relu
ThresholdedRelu                                 threshold
Elu                                             elu
Selu                                            selu
Celu                                            celu
Gelu                                            gelu
Swish                                           silu
SwiGLU                                          silu and mul
HardSwish                                       hardswish
HardSigmoid                                     hardsigmoid
Mish                                            mish
Shrink                                          hardshrink, softshrink
Softsign                                        softsign
Clip                                            clamp
Hardmax                                         argmax and one_hot
Equal                                           eq: native promotion, a bool comes out
Less                                            lt: native promotion, a bool comes out
LessOrEqual                                     le: native promotion, a bool comes out
Greater                                         gt: native promotion, a bool comes out
GreaterOrEqual                                  ge: native promotion, a bool comes out
IsNaN                                           isnan
IsInf                                           isinf
Where                                           where
ReduceMean                                      mean
ReduceMax                                       amax
ReduceMin                                       amin
ArgMax                                          argmax
ArgMin                                          argmin
TopK                                            topk
Unique                                          unique
NonZero                                         nonzero
BatchNormalization                              batch_norm
InstanceNormalization                           instance_norm
MeanVarianceNormalization                       batch_norm without parameters
AveragePool                                     avg_pool2d
MaxPool                                         max_pool2d
GlobalAveragePool                               adaptive_avg_pool2d
GlobalMaxPool                                   adaptive_max_pool2d
MaxUnpool                                       max_unpool2d
Dropout                                         dropout
Concat                                          cat
Split                                           split
Slice                                           slice
Gather                                          index_select, embedding
GatherElements                                  gather
GatherND                                        index
Compress                                        masked_select
Flatten                                         flatten
Reshape                                         reshape
Transpose                                       permute
Squeeze                                         squeeze
Unsqueeze                                       unsqueeze
Expand                                          expand
Tile                                            tile
Pad                                             pad
CenterCropPad                                   slice and pad
Identity                                        alias
DepthToSpace                                    pixel_shuffle
SpaceToDepth                                    pixel_unshuffle
ReverseSequence                                 flip and where
Trilu                                           tril, triu
Col2Im                                          col2im
OneHot                                          where, of the off and the on value
AffineGrid                                      affine_grid_generator
RotaryEmbedding                                 mul and add
Det                                             linalg_det
DFT                                             fft_fft
STFT                                            stft
Cast                                            to: the type asked for
CastLike                                        type_as: the type asked for
BitCast                                         view as another type
Constant                                        a tensor made by the user
ConstantOfShape                                 full
EyeLike                                         eye
Range                                           arange
Bernoulli                                       bernoulli
Multinomial                                     multinomial
RandomNormal                                    randn
RandomNormalLike                                randn_like
RandomUniform                                   rand
RandomUniformLike                               rand_like
BlackmanWindow                                  blackman_window
HammingWindow                                   hamming_window
HannWindow                                      hann_window
MelWeightMatrix                                 torchaudio's melscale_fbanks
TfIdfVectorizer                                 nearest: bincount
QuantizeLinear                                  quantize_per_tensor, fake_quantize_per_tensor_affine
Shape                                           size, which reads no value
Size                                            numel, which reads no value
If                                              Python's own branches: each operator inside for itself
Loop                                            Python's own loops: each operator inside for itself
Scan                                            Python's own loops: each operator inside for itself
SequenceMap                                     Python's own loops: each operator inside for itself
SequenceAt                                      a Python list, which moves values
SequenceConstruct                               a Python list, which moves values
SequenceEmpty                                   a Python list, which moves values
SequenceErase                                   a Python list, which moves values
SequenceInsert                                  a Python list, which moves values
SequenceLength                                  a Python list, which moves values
SplitToSequence                                 split into a Python list
ConcatFromSequence                              cat of a Python list
Optional                                        a Python value or None
OptionalGetElement                              a Python value or None
OptionalHasElement                              a Python value or None
com.microsoft::Gelu                             gelu
com.microsoft::BiasGelu                         add and gelu
com.microsoft::FastGelu                         add and gelu
com.microsoft::QuickGelu                        sigmoid and mul
com.microsoft::BiasSplitGelu                    add, split, gelu and mul
com.microsoft::ScaledSiLU                       silu and mul
com.microsoft::BiasAdd                          add
com.microsoft::GatedAdd                         mul and add
com.microsoft::BiasDropout                      add and dropout
com.microsoft::BitmaskDropout                   dropout
com.microsoft::BitmaskBiasDropout               add and dropout
com.microsoft::MaxpoolWithMask                  max_pool2d
com.microsoft::ExpandDims                       unsqueeze
com.microsoft::Pad                              pad
com.microsoft::GatherND                         index
com.microsoft::TorchEmbedding                   embedding
com.microsoft::Trilu                            tril, triu
com.microsoft::UnfoldTensor                     unfold
com.microsoft::RemovePadding                    index_select
com.microsoft::RestorePadding                   index_select
com.microsoft::RotaryEmbedding                  mul and add
com.microsoft::GemmaRotaryEmbedding             mul and add
com.microsoft::MRotaryEmbedding                 mul and add
com.microsoft::RelativePositionBias             embedding
com.microsoft::Rfft                             fft_rfft
com.microsoft::Irfft                            fft_irfft
com.microsoft::ComplexMul                       mul
com.microsoft::ComplexMulConj                   mul
com.microsoft::IsAllFinite                      isfinite
com.microsoft::Range                            arange
"""


def _rows(found: TorchClass, table: str) -> dict[str, tuple[TorchClass, str]]:
    return {key: (found, reason) for key, reason in table_rows(table).items()}


TORCH_CLASSES: dict[str, tuple[TorchClass, str]] = {
    **_rows(TorchClass.LOWER_PRECISION_FP, _LOWER_PRECISION_FP),
    **_rows(TorchClass.FP32, _FP32),
    **_rows(TorchClass.PROMOTE, _PROMOTE),
    **_rows(TorchClass.FALL_THROUGH, _FALL_THROUGH),
}
"""Operator -> its class and torch's name for it."""
