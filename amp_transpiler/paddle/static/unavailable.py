"""Names of `paddle.static` and `paddle.static.nn` that an ONNX program cannot have: each says why when it is called."""

from amp_transpiler.paddle.framework.refusals import refusal

__all__ = [
    "IpuCompiledProgram",
    "IpuStrategy",
    "ipu_shard_guard",
    "py_func",
    "sequence_conv",
    "sequence_expand",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_pool",
    "sequence_softmax",
    "set_ipu_shard",
    "sparse_embedding",
]

_PYTHON = "a Python function cannot be part of an ONNX program. Write it with Paddle's operators"
_LOD = "ONNX has no nested sequences. Feed padded data and a mask or lengths"
_IPU = "programs run on CPUs and CUDA devices"
_SPARSE = "gradients are dense here, and there is no parameter server. Use static.nn.embedding"

py_func = refusal("static.py_func", _PYTHON)
sequence_conv = refusal("static.nn.sequence_conv", _LOD)
sequence_expand = refusal("static.nn.sequence_expand", _LOD)
sequence_first_step = refusal("static.nn.sequence_first_step", _LOD)
sequence_last_step = refusal("static.nn.sequence_last_step", _LOD)
sequence_pool = refusal("static.nn.sequence_pool", _LOD)
sequence_softmax = refusal("static.nn.sequence_softmax", _LOD)
IpuCompiledProgram = refusal("static.IpuCompiledProgram", _IPU)
IpuStrategy = refusal("static.IpuStrategy", _IPU)
ipu_shard_guard = refusal("static.ipu_shard_guard", _IPU)
set_ipu_shard = refusal("static.set_ipu_shard", _IPU)
sparse_embedding = refusal("static.nn.sparse_embedding", _SPARSE)
