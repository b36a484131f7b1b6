"""Paddle's operator names, and the ONNX operators or finer classes that each stands for."""

from __future__ import annotations

__all__ = ["PADDLE_NAMES"]

# One line a name. A name with nothing behind it is an operator of Paddle that no ONNX operator corresponds to.
_TABLE = """
conv2d                                  Conv
depthwise_conv2d                        Conv[depthwise]
conv3d                                  Conv[3d]
conv2d_transpose                        ConvTranspose
conv3d_transpose                        ConvTranspose
depthwise_conv2d_transpose              ConvTranspose
deformable_conv                         DeformConv
matmul                                  MatMul Gemm
matmul_v2                               MatMul Gemm
mul                                     MatMul Gemm
fc                                      MatMul Gemm
bmm                                     MatMul
einsum                                  Einsum
fused_gemm_epilogue                     Gemm com.microsoft::FusedGemm com.microsoft::FusedMatMul
fused_attention                         Attention com.microsoft::Attention com.microsoft::MultiHeadAttention
fused_feedforward                       com.microsoft::GemmFastGelu com.microsoft::MoE
fused_multi_transformer
resnet_unit
fused_bn_add_activation                 BatchNormalization
max_pool2d_with_index                   MaxPool[indices]
fake_quantize_dequantize_abs_max        QuantizeLinear DequantizeLinear
fake_quantize_dequantize_moving_average_abs_max  QuantizeLinear DequantizeLinear
tan                                     Tan
acos                                    Acos
asin                                    Asin
sinh                                    Sinh
cosh                                    Cosh
atanh                                   Atanh
tanh_shrink
cos_sim
erfinv
exp                                     Exp
expm1                                   Exp
log                                     Log
log10                                   Log
log2                                    Log
log1p                                   Log
reciprocal                              Reciprocal
rsqrt                                   Reciprocal
pow                                     Pow[scalar]
square                                  Pow[scalar] ReduceSumSquare
sum                                     Sum
mean                                    ReduceMean
reduce_sum                              ReduceSum
reduce_mean                             ReduceMean
reduce_prod                             ReduceProd
reduce_max                              ReduceMax
reduce_min                              ReduceMin
logsumexp                               ReduceLogSumExp
cumsum                                  CumSum
cumprod                                 CumProd
dist                                    com.microsoft::CDist
p_norm                                  ReduceL1 ReduceL2 LpNormalization
pnorm                                   ReduceL1 ReduceL2 LpNormalization
frobenius_norm                          ReduceL2
renorm
group_norm                              GroupNormalization com.microsoft::GroupNorm com.microsoft::SkipGroupNorm
layer_norm                              LayerNormalization com.microsoft::SkipLayerNormalization
rms_norm                                RMSNormalization SimplifiedLayerNormalization
instance_norm                           InstanceNormalization
batch_norm                              BatchNormalization
softmax                                 Softmax com.microsoft::BiasSoftmax
softmin                                 Softmax
log_softmax                             LogSoftmax
softplus                                Softplus
softmax_with_cross_entropy              SoftmaxCrossEntropyLoss
c_softmax_with_cross_entropy            SoftmaxCrossEntropyLoss
cross_entropy                           SoftmaxCrossEntropyLoss
cross_entropy2                          SoftmaxCrossEntropyLoss
margin_cross_entropy                    SoftmaxCrossEntropyLoss
nll_loss                                NegativeLogLikelihoodLoss
sigmoid_cross_entropy_with_logits
huber_loss
triplet_margin_loss
log_loss
hsigmoid_loss
lookup_table                            Gather[embedding]
lookup_table_v2                         Gather[embedding]
embedding                               Gather[embedding]
scatter                                 ScatterElements ScatterND Scatter
scatter_nd_add                          ScatterND
set_value                               ScatterND
linear_interp_v2                        Resize Upsample
nearest_interp_v2                       Resize Upsample
bilinear_interp_v2                      Resize Upsample
bicubic_interp_v2                       Resize Upsample
trilinear_interp_v2                     Resize Upsample
linear_interp                           Resize Upsample
nearest_interp                          Resize Upsample
bilinear_interp                         Resize Upsample
bicubic_interp                          Resize Upsample
trilinear_interp                        Resize Upsample
elementwise_add                         Add
elementwise_sub                         Sub
elementwise_mul                         Mul
elementwise_div                         Div
elementwise_max                         Max
elementwise_min                         Min
elementwise_pow                         Pow
elementwise_mod                         Mod
elementwise_floordiv                    Floor
scale                                   Mul Add
tanh                                    Tanh
sigmoid                                 Sigmoid
relu                                    Relu
relu6                                   Clip
clip                                    Clip
leaky_relu                              LeakyRelu
sign                                    Sign
top_k                                   TopK
top_k_v2                                TopK
pool2d                                  MaxPool AveragePool GlobalMaxPool GlobalAveragePool
pool3d                                  MaxPool AveragePool GlobalMaxPool GlobalAveragePool
dropout                                 Dropout
flatten2                                Flatten
flatten_contiguous_range                Flatten Reshape
stack                                   Unsqueeze Concat
unstack                                 Split Squeeze
uniform_random                          RandomUniform RandomUniformLike
uniform_random_batch_size_like          RandomUniformLike
gaussian_random                         RandomNormal RandomNormalLike
gaussian_random_batch_size_like         RandomNormalLike
slice                                   Slice
strided_slice                           Slice
transpose                               Transpose
transpose2                              Transpose
reshape                                 Reshape
reshape2                                Reshape
gather                                  Gather
gather_nd                               GatherND
fill_constant                           ConstantOfShape
assign                                  Identity
cast                                    Cast
concat                                  Concat
split                                   Split
rank                                    Shape
shape                                   Shape
squeeze                                 Squeeze
squeeze2                                Squeeze
unsqueeze                               Unsqueeze
unsqueeze2                              Unsqueeze
expand                                  Expand Tile
expand_v2                               Expand
tile                                    Tile
where                                   Where
pad                                     Pad
pad2d                                   Pad
pad3d                                   Pad
one_hot                                 OneHot
one_hot_v2                              OneHot
arg_max                                 ArgMax
arg_min                                 ArgMin
gelu                                    Gelu com.microsoft::Gelu com.microsoft::BiasGelu com.microsoft::FastGelu
erf                                     Erf
swish                                   Swish com.microsoft::QuickGelu
hard_swish                              HardSwish
hard_sigmoid                            HardSigmoid
mish                                    Mish
elu                                     Elu
selu                                    Selu
prelu                                   PRelu
abs                                     Abs
sqrt                                    Sqrt
sin                                     Sin
cos                                     Cos
floor                                   Floor
ceil                                    Ceil
round                                   Round
equal                                   Equal
less_than                               Less
less_equal                              LessOrEqual
greater_than                            Greater
greater_equal                           GreaterOrEqual
lrn                                     LRN
lstm                                    LSTM
cudnn_lstm                              LSTM
gru                                     GRU
rnn                                     RNN LSTM GRU
grid_sampler                            GridSample
roi_align                               RoiAlign
roi_pool                                MaxRoiPool
pixel_shuffle                           DepthToSpace
space_to_depth                          SpaceToDepth
while                                   Loop
conditional_block                       If
"""

PADDLE_NAMES: dict[str, tuple[str, ...]] = {
    name: tuple(operators) for name, *operators in (line.split() for line in _TABLE.strip().splitlines())
}
"""Paddle's name -> ONNX operators or finer classes (`Conv[depthwise]`); empty where ONNX has none."""
