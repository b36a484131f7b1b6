"""MXNet 2's operator lists, carried over to ONNX's operators: one row an operator, with its name in MXNet.

Five lists: target (always low), fp32 (as written), widest (low if that needs no new cast), neutral (low if something
low is there already) and conditional (as written where an attribute has one of some values). An operator is on one
of them; `none` in a row says that MXNet has no such operator, and why it stands where it does.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import onnx_ir as ir

from amp_transpiler.graph.dtypes import low_format
from amp_transpiler.graph.operator_class import operator_class
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.table_text import table_rows

__all__ = ["LOSSES", "USE_FP32_PARAMS", "Condition", "MxnetLists", "default_mxnet_lists", "like_mxnet_name"]

Condition = tuple[str, str, tuple[str, ...]]
"""Operator, attribute, values of it (as text) with which a node stays as it is written."""

_TARGET = """
Conv                                            Convolution
ConvTranspose                                   Deconvolution
Gemm                                            FullyConnected, linalg_gemm
MatMul                                          matmul, linalg_gemm2
Einsum                                          einsum
LSTM                                            RNN mode=lstm
GRU                                             RNN mode=gru
RNN                                             RNN
Attention                                       none: matrix products
CausalConvWithState                             none: a convolution
LinearAttention                                 none: matrix products
com.microsoft::FusedConv                        Convolution with its activation
com.microsoft::NhwcFusedConv                    Convolution with its activation
com.microsoft::NhwcConv                         Convolution, channels last
com.microsoft::CausalConvWithState              none: a convolution
com.microsoft::ConvTransposeWithDynamicPads     Deconvolution
com.microsoft::FusedGemm                        FullyConnected with its activation
com.microsoft::GemmFastGelu                     FullyConnected with its activation
com.microsoft::FusedMatMul                      matmul
com.microsoft::FusedMatMulActivation            matmul with its activation
com.microsoft::TransposeMatMul                  matmul
com.microsoft::MatMulNBits                      none: a matrix product, quantised weights
com.microsoft::MatMulBnb4                       none: a matrix product, quantised weights
com.microsoft::MoE                              none: matrix products
com.microsoft::Attention                        none: matrix products
com.microsoft::MultiHeadAttention               none: matrix products
com.microsoft::GroupQueryAttention              none: matrix products
com.microsoft::PackedAttention                  none: matrix products
com.microsoft::PackedMultiHeadAttention         none: matrix products
com.microsoft::PagedAttention                   none: matrix products
com.microsoft::SparseAttention                  none: matrix products
com.microsoft::LongformerAttention              none: matrix products
com.microsoft::DecoderAttention                 none: matrix products
com.microsoft::DecoderMaskedSelfAttention       none: matrix products
com.microsoft::DecoderMaskedMultiHeadAttention  none: matrix products
com.microsoft::LinearAttention                  none: matrix products
"""

_FP32 = """
Acos                                            arccos
Asin                                            arcsin
Atanh                                           arctanh
Cosh                                            cosh
Sinh                                            sinh
Tan                                             tan
Exp                                             exp, expm1
Log                                             log
Pow                                             power, square
Reciprocal                                      reciprocal, rsqrt
ReduceSum                                       sum
ReduceMean                                      mean
ReduceProd                                      prod
ReduceL1                                        norm ord=1
ReduceL2                                        norm
ReduceSumSquare                                 square and sum
ReduceLogSum                                    sum and log
ReduceLogSumExp                                 exp, sum and log
CumSum                                          cumsum
CumProd                                         none: multiplies many values, as prod
Det                                             linalg_det
TopK                                            topk, argsort
Softmax                                         softmax
LogSoftmax                                      log_softmax
Softplus                                        Activation act_type=softrelu, by attribute there
Elu                                             LeakyReLU act_type=elu, by attribute there
Selu                                            LeakyReLU act_type=selu, by attribute there
Celu                                            none: an exponential, as LeakyReLU act_type=elu
InstanceNormalization                           InstanceNorm
LayerNormalization                              LayerNorm
SimplifiedLayerNormalization                    none: LayerNorm without a mean
RMSNormalization                                none: LayerNorm without a mean
GroupNormalization                              GroupNorm
MeanVarianceNormalization                       moments
LpNormalization                                 L2Normalization
LRN                                             LRN
DeformConv                                      DeformableConvolution
SoftmaxCrossEntropyLoss                         SoftmaxOutput, softmax_cross_entropy
NegativeLogLikelihoodLoss                       none: a loss
DFT                                             none: sums many values
STFT                                            none: sums many values
com.microsoft::BiasSoftmax                      softmax
com.microsoft::SkipLayerNormalization           LayerNorm
com.microsoft::EmbedLayerNormalization          LayerNorm
com.microsoft::SkipSimplifiedLayerNormalization none: LayerNorm without a mean
com.microsoft::GatedRMSNorm                     none: LayerNorm without a mean
com.microsoft::BranchwiseRMSNorm                none: LayerNorm without a mean
com.microsoft::GroupNorm                        GroupNorm
com.microsoft::SkipGroupNorm                    GroupNorm
com.microsoft::Inverse                          linalg_inverse
com.microsoft::CDist                            norm of differences
com.microsoft::Rfft                             none: sums many values
com.microsoft::Irfft                            none: sums many values
"""

_WIDEST = """
Add                                             elemwise_add, broadcast_add
Sub                                             elemwise_sub, broadcast_sub
Mul                                             elemwise_mul, broadcast_mul
Div                                             elemwise_div, broadcast_div
Mod                                             mod, broadcast_mod
Max                                             maximum, broadcast_maximum
Min                                             minimum, broadcast_minimum
Sum                                             add_n, ElementWiseSum
Mean                                            add_n, scaled
Equal                                           equal, broadcast_equal
Less                                            lesser, broadcast_lesser
LessOrEqual                                     lesser_equal, broadcast_lesser_equal
Greater                                         greater, broadcast_greater
GreaterOrEqual                                  greater_equal, broadcast_greater_equal
Concat                                          Concat, stack
ConcatFromSequence                              Concat, stack
Where                                           where
RoiAlign                                        ROIAlign
MaxRoiPool                                      ROIPooling, as ROIAlign
NonMaxSuppression                               box_nms
com.microsoft::BiasAdd                          elemwise_add
com.microsoft::GatedAdd                         elemwise_add
com.microsoft::ComplexMul                       elemwise_mul
com.microsoft::ComplexMulConj                   elemwise_mul
com.microsoft::CropAndResize                    none: boxes, as ROIAlign
"""

_NEUTRAL = """
BatchNormalization                              BatchNorm
AveragePool                                     Pooling pool_type=avg
MaxPool                                         Pooling pool_type=max
LpPool                                          Pooling pool_type=lp
GlobalAveragePool                               Pooling global_pool=True
GlobalMaxPool                                   Pooling global_pool=True
GlobalLpPool                                    Pooling global_pool=True
Relu                                            relu, Activation act_type=relu
Sigmoid                                         sigmoid, Activation act_type=sigmoid
Tanh                                            tanh, Activation act_type=tanh
Softsign                                        softsign, Activation act_type=softsign
Mish                                            Activation act_type=mish
LeakyRelu                                       LeakyReLU act_type=leaky
PRelu                                           LeakyReLU act_type=prelu
Gelu                                            LeakyReLU act_type=gelu
HardSigmoid                                     hard_sigmoid
HardSwish                                       none: x times hard_sigmoid
Swish                                           none: x times sigmoid
SwiGLU                                          none: x times sigmoid
ThresholdedRelu                                 none: a comparison
Shrink                                          none: a comparison
Hardmax                                         argmax and one_hot
Clip                                            clip
Erf                                             erf
Abs                                             abs
Neg                                             negative
Sign                                            sign
Sqrt                                            sqrt
Sin                                             sin
Cos                                             cos
Atan                                            arctan
Asinh                                           arcsinh
Acosh                                           arccosh
Ceil                                            ceil
Floor                                           floor
Round                                           rint
IsNaN                                           isnan
IsInf                                           isinf
ReduceMax                                       max
ReduceMin                                       min
ArgMax                                          argmax
ArgMin                                          argmin
NonZero                                         nonzero
Unique                                          unique
OneHot                                          one_hot
Range                                           arange
Reshape                                         Reshape
Flatten                                         Flatten
Squeeze                                         squeeze
Unsqueeze                                       expand_dims
Expand                                          broadcast_to
Tile                                            tile
Transpose                                       transpose
Slice                                           slice
Split                                           SliceChannel, split
Pad                                             Pad
Identity                                        identity
Cast                                            Cast
CastLike                                        Cast
BitCast                                         none: moves values
Gather                                          take
Gather[embedding]                               Embedding
GatherElements                                  pick
GatherND                                        gather_nd
Scatter                                         index_copy
ScatterElements                                 index_copy
ScatterND                                       scatter_nd
TensorScatter                                   index_copy
Compress                                        boolean_mask
DepthToSpace                                    depth_to_space
SpaceToDepth                                    space_to_depth
ReverseSequence                                 SequenceReverse
CenterCropPad                                   Crop, Pad
MaxUnpool                                       none: moves values
Trilu                                           tril, triu
EyeLike                                         eye
Col2Im                                          col2im
Dropout                                         Dropout
Resize                                          UpSampling, BilinearResize2D
Upsample                                        UpSampling, BilinearResize2D
GridSample                                      BilinearSampler
AffineGrid                                      GridGenerator
RotaryEmbedding                                 none: products that move with their input
Bernoulli                                       bernoulli
Multinomial                                     sample_multinomial
RandomNormal                                    random_normal
RandomNormalLike                                random_normal_like
RandomUniform                                   random_uniform
RandomUniformLike                               random_uniform_like
Constant                                        none: no input
ConstantOfShape                                 full
BlackmanWindow                                  blackman
HammingWindow                                   hamming
HannWindow                                      hanning
MelWeightMatrix                                 none: no float input
TfIdfVectorizer                                 none: counts
QuantizeLinear                                  quantize
DequantizeLinear                                dequantize
DynamicQuantizeLinear                           quantize_v2
QLinearConv                                     quantized_conv
QLinearMatMul                                   quantized_fully_connected
Shape                                           shape_array
Size                                            size_array
If                                              cond: a subgraph
Loop                                            while_loop: a subgraph
Scan                                            foreach: a subgraph
SequenceMap                                     foreach: a subgraph
SequenceAt                                      none: moves values
SequenceConstruct                               none: moves values
SequenceEmpty                                   none: moves values
SequenceErase                                   none: moves values
SequenceInsert                                  none: moves values
SequenceLength                                  none: reads no value
SplitToSequence                                 SliceChannel, split
Optional                                        none: moves values
OptionalGetElement                              none: moves values
OptionalHasElement                              none: reads no value
com.microsoft::Gelu                             LeakyReLU act_type=gelu
com.microsoft::BiasGelu                         LeakyReLU act_type=gelu
com.microsoft::FastGelu                         LeakyReLU act_type=gelu
com.microsoft::QuickGelu                        LeakyReLU act_type=gelu
com.microsoft::BiasSplitGelu                    LeakyReLU act_type=gelu
com.microsoft::ScaledSiLU                       none: x times sigmoid
com.microsoft::BiasDropout                      Dropout
com.microsoft::BitmaskDropout                   Dropout
com.microsoft::BitmaskBiasDropout               Dropout
com.microsoft::MaxpoolWithMask                  Pooling pool_type=max
com.microsoft::ExpandDims                       expand_dims
com.microsoft::Pad                              Pad
com.microsoft::GatherND                         gather_nd
com.microsoft::Trilu                            tril, triu
com.microsoft::UnfoldTensor                     none: moves values
com.microsoft::RemovePadding                    none: moves values
com.microsoft::RestorePadding                   none: moves values
com.microsoft::TorchEmbedding                   Embedding
com.microsoft::GridSample                       BilinearSampler
com.microsoft::RotaryEmbedding                  none: products that move with their input
com.microsoft::GemmaRotaryEmbedding             none: products that move with their input
com.microsoft::MRotaryEmbedding                 none: products that move with their input
com.microsoft::RelativePositionBias             none: moves values
com.microsoft::GatedRelativePositionBias        none: products that move with their input
com.microsoft::IsAllFinite                      all_finite
com.microsoft::Range                            arange
"""

# What MXNet lists otherwise for bfloat16, whose range is float32's.
_BFLOAT16_NEUTRAL = """
Exp Elu Celu ReduceSum ReduceMean Softmax LayerNormalization com.microsoft::BiasSoftmax
com.microsoft::SkipLayerNormalization com.microsoft::EmbedLayerNormalization
"""
_BFLOAT16_FP32 = """
LSTM GRU RNN Pad Dropout Gather[embedding] com.microsoft::Pad com.microsoft::TorchEmbedding
com.microsoft::BiasDropout com.microsoft::BitmaskDropout com.microsoft::BitmaskBiasDropout
"""

# MXNet's own entries are attributes of Activation and LeakyReLU; their values are operators of their own in ONNX and
# stand on the fp32 list. No operator whose attribute is there on every node has such a choice, so this one is empty.
_CONDITIONAL: tuple[Condition, ...] = ()

LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
"""Operators whose result is a loss."""

USE_FP32_PARAMS = {"BatchNormalization": {1: "scale", 2: "B", 3: "input_mean", 4: "input_var"}}
"""Operator -> its inputs, by index, that stay float32 in a low node wherever the target has a kernel for that.

TensorRT and training programs have; ONNX Runtime's CUDA provider wants all inputs of one type, so they are rounded.
"""


@functools.cache
def _reasons() -> dict[str, str]:
    """Operator -> its name in MXNet."""
    return table_rows(_TARGET, _FP32, _WIDEST, _NEUTRAL)


@dataclasses.dataclass(frozen=True, slots=True)
class MxnetLists:
    """Which operators are low, as written, follow their inputs, or are as written under a condition.

    Names are ONNX's, with finer classes for some (`Gather[embedding]`).

    Attributes:
        target: low.
        fp32: as the user wrote them.
        widest: low if all float inputs are there in low precision already.
        neutral: low if any float input is; so is every operator on no list.
        conditional: (operator, attribute, values): nodes that stay as written. Others go by the lists above.
    """

    target: frozenset[str]
    fp32: frozenset[str]
    widest: frozenset[str]
    neutral: frozenset[str]
    conditional: tuple[Condition, ...] = ()

    @property
    def operators(self) -> frozenset[str]:
        """Every operator on some list."""
        return self.target | self.fp32 | self.widest | self.neutral | {operator for operator, _, _ in self.conditional}

    def key_of(self, node: ir.Node) -> str:
        """Return the name by which the lists know `node`: its finer class if that has a row, else its operator."""
        finer = operator_class(node)
        known = any(finer in operators for operators in (self.target, self.fp32, self.widest, self.neutral))
        return finer if known else operator_name(node)

    def why(self, key: str) -> str:
        """Return the operator's name in MXNet, in brackets; empty if the tables have none."""
        reason = _reasons().get(key)
        return f" ({reason})" if reason else ""


@functools.cache
def default_mxnet_lists(target_dtype: str = "float16") -> MxnetLists:
    """Return MXNet's lists for `float16` or `bfloat16`.

    Raises:
        OptionError: (a ValueError) `target_dtype` names neither.
    """
    target, fp32, widest, neutral = (frozenset(table_rows(table)) for table in (_TARGET, _FP32, _WIDEST, _NEUTRAL))
    if low_format(target_dtype).name == "bfloat16":
        to_neutral, to_fp32 = frozenset(_BFLOAT16_NEUTRAL.split()), frozenset(_BFLOAT16_FP32.split())
        target, neutral = target - to_fp32, (neutral | to_neutral) - to_fp32
        fp32 = (fp32 | to_fp32) - to_neutral
    return MxnetLists(target, fp32, widest, neutral, _CONDITIONAL)


def like_mxnet_name(name: str) -> list[str]:
    """Return the ONNX operators that stand for MXNet's operator `name`, such as Conv for Convolution."""
    named = {operator: reason.partition(":")[0] for operator, reason in _reasons().items()}
    return [operator for operator, text in named.items() if text != "none" and name in re.findall(r"\w+", text)]
