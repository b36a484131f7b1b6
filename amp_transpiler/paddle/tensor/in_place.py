"""Names the functions that end in `_`.

In static mode they compute what those without it do, as in Paddle: nothing is overwritten.
"""

from __future__ import annotations

from amp_transpiler.paddle.tensor import creation, elementwise, indexing, linalg, logic, reduction, shaping, special

__all__ = [
    "abs_",
    "acos_",
    "acosh_",
    "add_",
    "addmm_",
    "asin_",
    "asinh_",
    "atan_",
    "atanh_",
    "baddbmm_",
    "bitwise_and_",
    "bitwise_invert_",
    "bitwise_left_shift_",
    "bitwise_not_",
    "bitwise_or_",
    "bitwise_right_shift_",
    "bitwise_xor_",
    "cast_",
    "ceil_",
    "clamp_",
    "clip_",
    "copysign_",
    "cos_",
    "cosh_",
    "cumprod_",
    "cumsum_",
    "digamma_",
    "div_",
    "divide_",
    "equal_",
    "erf_",
    "erfinv_",
    "exp_",
    "expm1_",
    "flatten_",
    "floor_",
    "floor_divide_",
    "floor_mod_",
    "frac_",
    "gammainc_",
    "gammaincc_",
    "gammaln_",
    "gcd_",
    "greater_equal_",
    "greater_than_",
    "hypot_",
    "i0_",
    "index_add_",
    "index_fill_",
    "index_put_",
    "lcm_",
    "ldexp_",
    "lerp_",
    "less_",
    "less_equal_",
    "less_than_",
    "lgamma_",
    "log1p_",
    "log2_",
    "log10_",
    "log_",
    "logical_and_",
    "logical_not_",
    "logical_or_",
    "logical_xor_",
    "logit_",
    "masked_fill_",
    "masked_scatter_",
    "mod_",
    "mul_",
    "multigammaln_",
    "multiply_",
    "nan_to_num_",
    "neg_",
    "not_equal_",
    "polygamma_",
    "pow_",
    "put_along_axis_",
    "reciprocal_",
    "remainder_",
    "renorm_",
    "reshape_",
    "round_",
    "rsqrt_",
    "scale_",
    "scatter_",
    "scatter_add_",
    "sigmoid_",
    "sin_",
    "sinc_",
    "sinh_",
    "sqrt_",
    "square_",
    "squeeze_",
    "sub_",
    "subtract_",
    "t_",
    "tan_",
    "tanh_",
    "transpose_",
    "tril_",
    "triu_",
    "trunc_",
    "unsqueeze_",
    "where_",
]

abs_ = elementwise.abs
acos_ = elementwise.acos
acosh_ = elementwise.acosh
add_ = elementwise.add
addmm_ = linalg.addmm
asin_ = elementwise.asin
asinh_ = elementwise.asinh
atan_ = elementwise.atan
atanh_ = elementwise.atanh
baddbmm_ = linalg.baddbmm
bitwise_and_ = logic.bitwise_and
bitwise_invert_ = logic.bitwise_invert
bitwise_left_shift_ = logic.bitwise_left_shift
bitwise_not_ = logic.bitwise_not
bitwise_or_ = logic.bitwise_or
bitwise_right_shift_ = logic.bitwise_right_shift
bitwise_xor_ = logic.bitwise_xor
cast_ = elementwise.cast
ceil_ = elementwise.ceil
clamp_ = elementwise.clamp
clip_ = elementwise.clip
copysign_ = elementwise.copysign
cos_ = elementwise.cos
cosh_ = elementwise.cosh
cumprod_ = reduction.cumprod
cumsum_ = reduction.cumsum
div_ = elementwise.div
divide_ = elementwise.divide
equal_ = logic.equal
erf_ = elementwise.erf
exp_ = elementwise.exp
expm1_ = elementwise.expm1
flatten_ = shaping.flatten
floor_ = elementwise.floor
floor_divide_ = elementwise.floor_divide
floor_mod_ = elementwise.floor_mod
frac_ = elementwise.frac
greater_equal_ = logic.greater_equal
greater_than_ = logic.greater_than
hypot_ = elementwise.hypot
index_add_ = indexing.index_add
index_fill_ = indexing.index_fill
index_put_ = indexing.index_put
ldexp_ = elementwise.ldexp
lerp_ = elementwise.lerp
less_ = logic.less
less_equal_ = logic.less_equal
less_than_ = logic.less_than
log10_ = elementwise.log10
log1p_ = elementwise.log1p
log2_ = elementwise.log2
log_ = elementwise.log
logical_and_ = logic.logical_and
logical_not_ = logic.logical_not
logical_or_ = logic.logical_or
logical_xor_ = logic.logical_xor
logit_ = elementwise.logit
masked_fill_ = logic.masked_fill
masked_scatter_ = indexing.masked_scatter
mod_ = elementwise.mod
mul_ = elementwise.mul
multiply_ = elementwise.multiply
nan_to_num_ = elementwise.nan_to_num
neg_ = elementwise.neg
not_equal_ = logic.not_equal
pow_ = elementwise.pow
put_along_axis_ = indexing.put_along_axis
reciprocal_ = elementwise.reciprocal
remainder_ = elementwise.remainder
renorm_ = reduction.renorm
reshape_ = shaping.reshape
round_ = elementwise.round
rsqrt_ = elementwise.rsqrt
scale_ = elementwise.scale
scatter_ = indexing.scatter
scatter_add_ = indexing.scatter_add
sigmoid_ = elementwise.sigmoid
sin_ = elementwise.sin
sinc_ = elementwise.sinc
sinh_ = elementwise.sinh
sqrt_ = elementwise.sqrt
square_ = elementwise.square
squeeze_ = shaping.squeeze
sub_ = elementwise.sub
subtract_ = elementwise.subtract
t_ = shaping.t
tan_ = elementwise.tan
tanh_ = elementwise.tanh
transpose_ = shaping.transpose
tril_ = creation.tril
triu_ = creation.triu
trunc_ = elementwise.trunc
unsqueeze_ = shaping.unsqueeze
where_ = logic.where
digamma_ = special.digamma
gammainc_ = special.gammainc
gammaincc_ = special.gammaincc
gammaln_ = special.gammaln
gcd_ = special.gcd
i0_ = special.i0
lcm_ = special.lcm
lgamma_ = special.lgamma
multigammaln_ = special.multigammaln
polygamma_ = special.polygamma
erfinv_ = special.erfinv
