"""The log of a counted run: which launches, of what kind, which copies, and which nodes ran where."""

from __future__ import annotations

import collections
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["CPU", "CUDA", "counts_of", "kind_of", "nodes_of"]

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
DIRECTIONS = ("HtoD", "DtoH", "DtoD", "HtoH")

# The numbers of a product in the log, in their order; matrices are stored by columns, as cuBLAS has them.
PRODUCT = tuple("transa transb m n k lda ldb ldc batch step_a step_b step_c type_a type_b type_c".split())
CUDA_TYPES = {0: "float32", 1: "float64", 2: "float16", 3: "int8", 10: "int32", 14: "bfloat16"}
CUDNN_TYPES = {0: "float32", 1: "float64", 2: "float16", 3: "int8", 4: "int32", 9: "bfloat16"}
REDUCTIONS = ("sum", "product", "minimum", "maximum", "largest size", "mean", "L1", "L2", "product without zeros")

# What a launch does, by the first pattern that its demangled name matches.
KINDS = {
    "cast": "OP_Cast|CastKernel|CudaCast|cast_kernel",
    "quantization": "QuantizeLinear|Dequantize|quantize",
    "attention": "attention|fmha|flash|MaskIndex|TransposeQKV|TransposeCtx|RotaryEmb|PresentKV|ConcatPast|"
    "ConcatNewToPast|UnpackQKV",
    "normalization": "LayerNorm|GroupNorm|RMSNorm|InstanceNorm|BatchNorm|[Ss]oftmax|LRN",
    "convolution": "cudnnBackendExecute|cudnnConvolution|[Cc]onv(olution|Transpose|Kernel|Nd|2D)",
    "pooling": "[Pp]ool",
    "rnn": "cudnnRNN|Lstm|Gru|rnn",
    "gemm": "^gemm|[Gg]emm|GEMM|MatMul|cutlass",
    "reduction": "reduce|Reduce|ArgMax|ArgMin|[Cc]um[Ss]um|TopK|RadixSort|NonZero",
    "movement": "[Tt]ranspose|Concat|Split|Slice|Gather|Scatter|Expand|Tile|Pad|Fill|Range|Resize|Upsample|"
    "DepthToSpace|SpaceToDepth|EyeLike|Trilu|OneHot|geam|Scopy|MatrixTransform",
    "elementwise": "ElementWise|Elementwise|BroadcastBias|Gelu|Swish|Clip|cudnnAddTensor|cudnnActivation|Dropout|"
    "BiasAdd|Where|Isinf|IsNan|Sscal",
}
_KINDS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}

# Operators that ONNX Runtime's optimizer makes of several (models may also have a few of them already).
FUSED = frozenset(
    """
    Attention BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu EmbedLayerNormalization FastGelu FusedConv
    FusedGemm FusedMatMul Gelu GemmFastGelu GroupNorm GroupQueryAttention LayerNormalization MatMulNBits
    MultiHeadAttention NhwcConv NhwcMaxPool PackedAttention PackedMultiHeadAttention QAttention QuickGelu
    RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization
    TransposeMatMul
    """.split()
)


def counts_of(events: Sequence[tuple[str, int]], detail: Callable[[int], int]) -> dict[str, Any]:
    """Return what the events of the log amount to.

    Args:
        events: names with numbers.
        detail: the list of the numbers of events that have several; such an event's number is where its own begin.
    """
    names = collections.Counter(name for name, _ in events)
    launched = {name: number for name, number in names.items() if not name.startswith("api ")}
    shown = dict(zip(launched, _demangled(list(launched)), strict=True))
    kinds: collections.Counter[str] = collections.Counter()
    kernels: collections.Counter[str] = collections.Counter()
    for name, number in launched.items():
        kinds[kind_of(shown[name])] += number
        kernels[shown[name]] += number
    of = {name: [size for event, size in events if event == name] for name in names if name.startswith("api mem")}
    waits = ("api cudaStreamSynchronize", "api cudaDeviceSynchronize", "api cudaEventSynchronize")
    return {
        "launches": sum(launched.values()),
        "kinds": dict(kinds.most_common()),
        "gemm_types": {name.split()[1]: n for name, n in launched.items() if name.startswith("gemm ")},
        "memcpy": {
            way: {"count": len(of[f"api memcpy {way}"]), "bytes": sum(of[f"api memcpy {way}"])}
            for way in DIRECTIONS
            if f"api memcpy {way}" in of
        },
        "memset": {"count": names["api memset"], "bytes": sum(of.get("api memset", ()))},
        "syncs": sum(names[name] for name in waits),
        "api": {n[4:]: k for n, k in names.items() if n.startswith("api ") and n not in waits and n not in of},
        "kernels": dict(kernels.most_common()),
        "products": _counted(_product(detail, at) for name, at in events if name.startswith("gemm ")),
        "reductions": _counted(_reduction(detail, at) for name, at in events if name == "cudnn cudnnReduceTensor"),
        "copies": _counted(_copies(events, shown)),
    }


def _product(detail: Callable[[int], int], at: int) -> dict[str, Any]:
    """Return the sizes and types of a product of the log."""
    numbers = {name: detail(at + i) for i, name in enumerate(PRODUCT)}
    return {k: CUDA_TYPES.get(n, f"type {n}") if k.startswith("type") else n for k, n in numbers.items()}


def _reduction(detail: Callable[[int], int], at: int) -> dict[str, Any]:
    """Return what a reduction of the log computes, and the shapes before and after."""
    operator, kind, rank = (detail(at + i) for i in range(3))
    shape = [detail(at + 3 + i) for i in range(2 * rank)]
    of = CUDNN_TYPES.get(kind, f"type {kind}")
    return {"operator": REDUCTIONS[operator], "type": of, "from": shape[:rank], "to": shape[rank:]}


def _copies(events: Sequence[tuple[str, int]], shown: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the copies between host and device, each with the launch that follows it."""
    before = ""
    backwards = []
    for name, number in reversed(events):
        if name in ("api memcpy HtoD", "api memcpy DtoH"):
            backwards.append({"way": name.split()[-1], "bytes": number, "before": before})
        before = shown.get(name, before)
    yield from reversed(backwards)


def _counted(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each row once, in the order of their first, with how often it came as `count`."""
    unique: dict[str, dict[str, Any]] = {}
    for row in rows:
        unique.setdefault(repr(row), {**row, "count": 0})["count"] += 1
    return list(unique.values())


def kind_of(name: str) -> str:
    """Return the kind of a launch, by its demangled name (see `KINDS`)."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), "other")


def _demangled(names: Sequence[str]) -> list[str]:
    """Return kernels' names as C++ has them, without their parameters."""
    if not names:
        return []
    plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    said = subprocess.run(
        ["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True, env=plain
    )
    return [line.replace("(anonymous namespace)::", "") for line in said.stdout.splitlines()]


def nodes_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return which operators the last profiled run ran, and where."""
    starts = [i for i, event in enumerate(events) if event.get("name") == "model_run"]
    ends = [event["ts"] + event["dur"] for event in events if event.get("name") == "model_run"]
    begin = sorted(ends)[-2] if len(starts) > 1 else 0
    ran: dict[str, collections.Counter[str]] = {CUDA: collections.Counter(), CPU: collections.Counter()}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= begin:
            ran[event["args"]["provider"]][event["args"]["op_name"]] += 1
    both = ran[CUDA] + ran[CPU]
    return {
        "cuda_nodes": sum(ran[CUDA].values()),
        "cpu_nodes": sum(ran[CPU].values()),
        "cpu_ops": dict(ran[CPU].most_common()),
        "casts": both["Cast"],
        "fused": {op: n for op, n in sorted(both.items()) if op in FUSED},
        "ops": dict(both.most_common()),
    }
