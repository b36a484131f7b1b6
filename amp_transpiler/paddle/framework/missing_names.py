"""Lists names of Paddle that are not here, with the reason that an AttributeError and docs/paddle_names.md give."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["APART", "REASONS", "why_not"]

_DYNAMIC = "there is no dynamic mode: a variable has a value only while a program runs"
_COMPLEX = "ONNX has no operators on complex numbers"
_DRAWS = "its draws are not described well enough to follow them"
_KERNEL = "a CUDA kernel of Paddle's own"
_TYPES = "an element type, a place or a class of tensors that ONNX programs do not have"
_ARANGE = "Paddle has given this name two meanings: use arange"
_FIT = "write the loop, or call Executor.train; a layer's parameters are counted by hand"
_EMPTY = "a variable without a value cannot be in an ONNX program: use create_parameter or static.create_global_var"
_LIST = "a function of a list, or of no variable, is no method"

_CLASSES = "distributions are functions here: uniform, normal, poisson, binomial, standard_gamma and others"
_DATA = "data sets and networks of Paddle's are not part of it: write a Dataset and a Layer"

# why not -> names, without the `_` at the end
REASONS: Mapping[str, str] = {
    _DYNAMIC: "DataParallel LazyGuard Size Generator disable_compat enable_compat from_dlpack raw set to_dlpack tolist "
    "resize MmapStorage",
    _FIT: "Model flops summary",
    _EMPTY: "create_tensor",
    _COMPLEX: "as_complex as_real cdouble cfloat complex complex128 complex64 imag polar real "
    "view_as_complex view_as_real stft istft eig eigvals",
    _DRAWS: "log_normal normal uniform bernoulli",
    _KERNEL: "flash_attention_v3_varlen fp8_fp8_half_gemm_fused moe_permute moe_unpermute",
    _TYPES: "BFloat16Tensor BoolTensor ByteTensor CUDAPinnedPlace CharTensor DoubleTensor FloatTensor HalfTensor "
    "IntTensor LongTensor ShortTensor XPUPinnedPlace float8_e4m3fn float8_e5m2 pstring",
    _ARANGE: "range",
    _LIST: "block_diag broadcast_shapes broadcast_tensors create_parameter",
}

APART = frozenset({_DYNAMIC, _TYPES})
"""The reasons of names that no static graph has: they count apart."""

_MODULES = {
    "audio": "features of sounds are computed before a program: use a data set's transform",
    "callbacks": "`Executor.train(callbacks=...)` takes functions of a step's record",
    "distribution": _CLASSES,
    "fft": _COMPLEX,
    "geometric": "write it with scatter and gather",
    "hapi": _DYNAMIC,
    "hub": "nothing is downloaded",
    "inference": "`amp_transpiler.Session` runs a model",
    "jit": "a program is static already: build it under static.program_guard",
    "onnx": "`static.save_inference_model` writes ONNX",
    "quantization": "nothing is quantized",
    "signal": _COMPLEX,
    "sparse": "tensors are dense",
    "text": _DATA,
    "vision": _DATA,
}


def why_not(name: str) -> str | None:
    """Return the reason why the package lacks a name of Paddle's, or None."""
    if name in _MODULES:
        return _MODULES[name]
    bare = name.removesuffix("_")
    return next((reason for reason, names in REASONS.items() if bare in names.split()), None)
