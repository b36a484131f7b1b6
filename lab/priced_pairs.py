"""Pairs of forms of one computation, of which an H100 runs the first faster: the cost model must say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from amp_transpiler.cost import Device, predict

__all__ = ["Pair", "pairs"]

_HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """Two forms.

    Attributes:
        faster, slower: in words.
        evidence: where the order comes from.
        times: predicted microseconds of both.
    """

    faster: str
    slower: str
    evidence: str
    times: tuple[float, float] = (0.0, 0.0)

    @property
    def holds(self) -> bool:
        """Whether the faster form is predicted to be faster."""
        return self.times[0] < self.times[1]


# Words and ONNX text of the faster form, of the slower one, and the evidence; times in microseconds.
_ROWS: Sequence[tuple[tuple[str, str], tuple[str, str], str]] = (
    (
        ("LogSoftmax of [4096, 30522] in float16",
         "(float16[4096,30522] x) => (float16[4096,30522] y) { y = LogSoftmax (x) }"),
        ("ReduceMax of it",
         "(float16[4096,30522] x) => (float16[4096,1] y) <int64[1] a = {1}> { y = ReduceMax (x, a) }"),
        "measured: 253 (Softmax), 3268 and 364 of its workspace",
    ),
    (
        ("ReduceMax in two stages, of 64 and of 477",
         ("(float16[4096,477,64] x) => (float16[4096,1,1] y) <int64[1] a = {2}, int64[1] b = {1}> "
          "{ m = ReduceMax (x, a) y = ReduceMax (m, b) }")),
        ("ReduceMax of rows of 30528",
         "(float16[4096,30528] x) => (float16[4096,1] y) <int64[1] a = {1}> { y = ReduceMax (x, a) }"),
        "measured: 3632 for one stage; two estimated at 1000",
    ),
    (
        ("weight gradient of a 3x3 convolution of 56x56: Gather, batched product, sum",
         ("(float16[32,64,56,56] x, float16[32,64,3136] g, int64[28224] i) => (float16[64,576] w) "
          "<int64[8] p = {0,0,1,1,0,0,1,1}, int64[2] s = {2048,3364}, int64[3] t = {32,576,3136}, int64[1] z = {0}> "
          "{ q = Pad (x, p) r = Reshape (q, s) u = Gather <axis = 1> (r, i) v = Reshape (u, t) "
          "m = com.microsoft.FusedMatMul <transB = 1> (g, v) w = ReduceSum <keepdims = 0> (m, z) }")),
        ("as a convolution with a kernel of 56x56",
         ("(float16[64,32,56,56] x, float16[64,32,56,56] g) => (float16[64,64,3,3] w) "
          "{ w = Conv <pads = [1,1,1,1]> (x, g) }")),
        "measured: 2458 for the convolution and its like; the other from measured kernels",
    ),
    (
        ("LayerNormalization of 8192 rows of 784 in float16",
         "(float16[8192,784] x, float16[784] s) => (float16[8192,784] y) { y = LayerNormalization (x, s) }"),
        ("of 64 rows of 100352",
         "(float16[64,100352] x, float16[100352] s) => (float16[64,100352] y) { y = LayerNormalization (x, s) }"),
        "measured: 5.3 ps an element of 4096 rows, 10 of 64",
    ),
    (
        ("SkipLayerNormalization of [1024, 768] in float16",
         ("(float16[8,128,768] x, float16[8,128,768] z, float16[768] s, float16[768] b) => (float16[8,128,768] y) "
          "{ y = com.microsoft.SkipLayerNormalization (x, z, s, b) }")),
        ("Add and LayerNormalization",
         ("(float16[8,128,768] x, float16[8,128,768] z, float16[768] s, float16[768] b) => (float16[8,128,768] y) "
          "{ a = Add (x, z) y = LayerNormalization (a, s, b) }")),
        "measured: 2.7 against 9.4 for the normalization alone",
    ),
    (
        ("MatMul and BiasGelu of [4096, 768] and 3072 columns",
         ("(float16[4096,768] x, float16[768,3072] w, float16[3072] b) => (float16[4096,3072] y) "
          "{ m = MatMul (x, w) y = com.microsoft.BiasGelu (m, b) }")),
        ("Gemm with the bias, and Gelu",
         ("(float16[4096,768] x, float16[768,3072] w, float16[3072] b) => (float16[4096,3072] y) "
          "{ m = Gemm (x, w, b) y = Gelu (m) }")),
        "measured: BroadcastBias 32 besides; BiasGelu as Gelu",
    ),
    (
        ("ScatterND of 1024 rows of 768 in pieces of 4",
         ("(float[5860224,4] x, int64[196608,1] i, float[196608,4] u) => (float[5860224,4] z) "
          '{ y = Neg (x) z = ScatterND <reduction = "add"> (y, i, u) }')),
        ("whole rows",
         ("(float[30522,768] x, int64[1024,1] i, float[1024,768] u) => (float[30522,768] z) "
          '{ y = Neg (x) z = ScatterND <reduction = "add"> (y, i, u) }')),
        "measured: 290 for whole rows, whether 1024 or 4096; pieces from the same kernel",
    ),
    (
        ("logits of a vocabulary padded to 30528, in float16",
         "(float16[4096,768] x, float16[768,30528] w) => (float16[4096,30528] y) { y = MatMul (x, w) }"),
        ("of 30522",
         "(float16[4096,768] x, float16[768,30522] w) => (float16[4096,30522] y) { y = MatMul (x, w) }"),
        "measured: 785 to 924 for 30522; aligned products at their measured rate",
    ),
    (
        ("Mul and Add of [256, 262144] in float16",
         ("(float16[256,262144] x, float16[256,262144] z, float16[256,1] a) => (float16[256,262144] y) "
          "{ m = Mul (z, a) y = Add (x, m) }")),
        ("HyperConnectionPostMix",
         ("(float16[256,1,262144] x, float16[256,262144] z, float16[256,1] a, float16[256,1,1] b) "
          "=> (float16[256,1,262144] y) { y = com.microsoft.HyperConnectionPostMix (x, z, a, b) }")),
        "measured: 3.6 ps an element against 7.9",
    ),
    (
        ("dots of [256, 262144] split into rows of 4096",
         "(float[16384,1,4096] x, float[16384,4096,1] z) => (float[16384,1,1] y) { y = MatMul (x, z) }"),
        ("of whole rows",
         "(float[256,1,262144] x, float[256,262144,1] z) => (float[256,1,1] y) { y = MatMul (x, z) }"),
        "measured: 842 for whole rows; 4 ps an element where there are many",
    ),
    (
        ("3-D x 3-D MatMul",
         "(float16[32,64,256] x, float16[32,256,784] z) => (float16[32,64,784] y) { y = MatMul (x, z) }"),
        ("2-D x 3-D MatMul",
         "(float16[64,256] x, float16[32,256,784] z) => (float16[32,64,784] y) { y = MatMul (x, z) }"),
        "counted: three copies of pointers in every run; 4 each",
    ),
    (
        ("1x1 weight gradient as a batched product and a sum",
         ("(float16[32,256,3136] g, float16[32,64,3136] x) => (float16[256,64] w) <int64[1] z = {0}> "
          "{ m = com.microsoft.FusedMatMul <transB = 1> (g, x) w = ReduceSum <keepdims = 0> (m, z) }")),
        ("two transpositions and one product",
         ("(float16[32,256,3136] g, float16[32,64,3136] x) => (float16[256,64] w) "
          "<int64[2] s = {256,100352}, int64[2] t = {64,100352}> "
          "{ a = Transpose <perm = [1,0,2]> (g) b = Transpose <perm = [1,0,2]> (x) c = Reshape (a, s) "
          "d = Reshape (b, t) w = com.microsoft.FusedMatMul <transB = 1> (c, d) }")),
        "measured: 1.8 ps an element of a transposition",
    ),
    (
        ("1x1 convolution of [1, 256, 512, 512] without a bias",
         "(float16[1,256,512,512] x, float16[256,256,1,1] w) => (float16[1,256,512,512] y) { y = Conv (x, w) }"),
        ("with one, which normalization takes away again",
         ("(float16[1,256,512,512] x, float16[256,256,1,1] w, float16[256] b) => (float16[1,256,512,512] y) "
          "{ y = Conv (x, w, b) }")),
        "measured: 234 for the bias, in either format",
    ),
)  # fmt: skip


def pairs(device: Device) -> list[Pair]:
    """Return the pairs with the busy time that is predicted of both forms on a device."""
    return [
        Pair(fast[0], slow[0], evidence, (_microseconds(fast[1], device), _microseconds(slow[1], device)))
        for fast, slow, evidence in _ROWS
    ]


def _microseconds(text: str, device: Device) -> float:
    model = ir.from_proto(onnx.parser.parse_model(f"{_HEAD}g {text}"))
    return 1e3 * predict(model, device).busy_milliseconds
