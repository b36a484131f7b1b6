"""Which kernels an operator asks for, and what each goes through: rows of ONNX text."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.cost import DEVICES, traffic
from amp_transpiler.cost.operators import WITHOUT_FLOAT32
from amp_transpiler.cost.work import Work, is_measured, seconds_of
from amp_transpiler.targets import CPU, CUDA
from amp_transpiler.targets.price_list import price_list

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'
H100 = DEVICES["H100"]
MS = "com.microsoft"

# Inputs, constants and one node -> kernels with format, elements, steps and count.
ROWS = {
    "one number": ("(float[4,8] x, float s) => (float[4,8] y) { y = Mul (x, s) }", "One number float32 32 0 1"),
    "alike": ("(float16[4,8] x, float16[4,8] z) => (float16[4,8] y) { y = Add (x, z) }", "Two operands float16 32 0 1"),
    "a column": ("(float[4,8] x, float[4,1] s) => (float[4,8] y) { y = Sub (x, s) }", "A number a row float32 32 0 1"),
    "a row": ("(float[4,8] x, float[8] s) => (float[4,8] y) { y = Mul (x, s) }", "A row for all float32 32 0 1"),
    "a sum of three": (
        "(float[8] a, float[8] b, float[8] c) => (float[8] y) { y = Sum (a, b, c) }",
        "Many operands float32 24 0 1",
    ),
    "a cast down": ("(float[8] x) => (bfloat16[8] y) { y = Cast <to = 16> (x) }", "Cast to 16 bits bfloat16 8 0 1"),
    "a cast up": ("(float16[8] x) => (float[8] y) { y = Cast <to = 1> (x) }", "Cast to 32 bits float16 8 0 1"),
    "few long rows": (
        "(float16[64,4096] x, float16[4096] s) => (float16[64,4096] y) { y = LayerNormalization (x, s) }",
        "LayerNormalization float16 262144 4096 1",
    ),
    "many rows": (
        "(float[2048,8] x, float[8] s) => (float[2048,8] y) { y = LayerNormalization (x, s) }",
        "LayerNormalization of many rows float32 16384 8 1",
    ),
    "a long softmax": (
        "(float[2,30522] x) => (float[2,30522] y) { y = Softmax (x) }",
        "Softmax of long rows float32 61044 30522 1",
    ),
    "statistics in 16 bits": (
        ("(float16[2,8,4,4] x, float16[8] s, float16[8] b, float16[8] m, float16[8] v) => (float16[2,8,4,4] y) "
        "{ y = BatchNormalization (x, s, b, m, v) }"),
        "Cast to 32 bits float16 8 0 4, BatchNormalization float16 256 0 1",
    ),
    "cuDNN reduces 16 bits in float32": (
        "(float16[4,8] x) => (float16[4,1] y) <int64[1] a = {1}> { y = ReduceMax (x, a) }",
        "Workspace in float32 float16 32 0 1, cuDNN reduction float16 32 8 1",
    ),
    "a sum over the middle": (
        "(float[4,8,2] x) => (float[4,1,2] y) <int64[1] a = {1}> { y = ReduceSum (x, a) }",
        "cuDNN reduction float32 64 8 1",
    ),
    "a mean is two passes": (
        "(float[4,8] x) => (float[4,1] y) <int64[1] a = {1}> { y = ReduceMean (x, a) }",
        "Sum of columns float32 32 0 1, One number float32 4 0 1",
    ),
    "a sum of rows": (
        "(float[4,8] x) => (float[1,8] y) <int64[1] a = {0}> { y = ReduceSum (x, a) }",
        "Sum of rows float32 32 0 1",
    ),
    "a scatter walks rows": (
        '(float[9,8] x, int64[4,1] i, float[4,8] u) => (float[9,8] y) { y = ScatterND <reduction = "add"> (x, i, u) }',
        "Copy float32 72 0 1, Scatter float32 32 8 1",
    ),
    "an aligned product": (
        "(float16[64,64] x, float16[64,64] w) => (float16[64,64] y) { y = MatMul (x, w) }",
        "Product float16 0 64 1",
    ),
    "an even leading dimension": (
        "(float16[64,64] x, float16[64,30] w) => (float16[64,30] y) { y = MatMul (x, w) }",
        "Product of unaligned rows float16 0 64 1",
    ),
    "an odd one": (
        "(float[64,64] x, float[64,31] w) => (float[64,31] y) { y = MatMul (x, w) }",
        "Product of odd rows tf32 0 64 1",
    ),
    "rows of a batch are rows of one product": (
        "(float[2,64,64] x, float[64,64] w) => (float[2,64,64] y) { y = MatMul (x, w) }",
        "Product tf32 0 64 1",
    ),
    "stacks of different height": (
        "(float[64,64] x, float[2,64,64] w) => (float[2,64,64] y) { y = MatMul (x, w) }",
        "Pointers to matrices tf32 0 0 3, Batched product tf32 20480 0 1",
    ),
    "a stack of turned matrices by one, which is read once": (
        f"(float16[2,64,64] x, float16[64,32] w) => (float16[2,64,32] y) {{y = {MS}.FusedMatMul <transA = 1> (x, w) }}",
        "Batched product float16 14336 0 1",
    ),
    "a vector": (
        "(float[64,64] x, float[64,1] w) => (float[64,1] y) { y = MatMul (x, w) }",
        "Thin product tf32 4224 0 1",
    ),
    "dots": (
        "(float[256,1,64] x, float[256,64,1] w) => (float[256,1,1] y) { y = MatMul (x, w) }",
        "Batched dot tf32 16384 64 1",
    ),
    "few dots": (
        "(float16[8,1,64] x, float16[8,64,1] w) => (float16[8,1,1] y) { y = MatMul (x, w) }",
        "Few long dots float16 512 64 1",
    ),
    "a bias is spread": (
        "(float[64,64] x, float[64,64] w, float[64] b) => (float[64,64] y) { y = Gemm (x, w, b) }",
        "BroadcastBias float32 4096 0 1, Product tf32 0 64 1",
    ),
    "a convolution": (
        "(float[2,8,16,16] x, float[8,8,3,3] w, float[8] b) => (float[2,8,14,14] y) { y = Conv (x, w, b) }",
        ("To NHWC float32 4096 0 1, To NHWC float32 576 0 1, From NHWC float32 3136 0 1, Convolution tf32 3136 72 1, "
        "Bias of a convolution float32 3136 0 1"),
    ),
    "one of one tap": (
        "(float16[2,8,16,16] x, float16[8,8,1,1] w) => (float16[2,8,16,16] y) { y = Conv (x, w) }",
        "Convolution float16 4096 8 1",
    ),
    "a weight's gradient": (
        "(float16[8,2,40,40] x, float16[8,2,38,38] g) => (float16[8,8,3,3] y) { y = Conv (x, g) }",
        ("To NHWC float16 25600 0 1, To NHWC float16 23104 0 1, From NHWC float16 576 0 1, "
        "Convolution with a huge kernel float16 576 2888 1"),
    ),
    "few rows by few bits": (
        ("(float16[1,2,64] x, uint8[32,2,16] w, float16[64] s) => (float16[1,2,32] y) "
        "{ y = com.microsoft.MatMulNBits <K = 64, N = 32, bits = 4, block_size = 32> (x, w, s) }"),
        "MatMulNBits float16 64 0 1",
    ),
    "many rows by few bits": (
        ("(float[1,17,64] x, uint8[32,2,16] w, float[64] s) => (float[1,17,32] y) "
        "{ y = com.microsoft.MatMulNBits <K = 64, N = 32, bits = 4, block_size = 32> (x, w, s) }"),
        "Dequantize float32 2048 0 1, Product tf32 0 64 1",
    ),
    "attention with a cache": (
        ("(float16[1,2,32] q, float16[1,2,8] k, float16[1,2,8] v, float16[1,1,3,8] p, float16[1,1,3,8] r, int32[1] n, "
        "int32 t) => (float16[1,2,32] y, float16 c, float16 d) "
        "{ y, c, d = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 1> (q, k, v, p, r, n, t) }"),
        "GroupQueryAttention float16 64 0 1, GroupQueryAttention, beside it float16 64 0 3",
    ),
    "attention with an empty cache": (
        ("(float16[1,2,48] q, float16[1,1,0,8] p, float16[1,1,0,8] r, int32[1] n, int32 t) "
        "=> (float16[1,2,32] y, float16 c, float16 d) { y, c, d = com.microsoft.GroupQueryAttention "
        '<num_heads = 4, kv_num_heads = 1> (q, "", "", p, r, n, t) }'),
        "GroupQueryAttention float16 64 0 1, GroupQueryAttention, beside it float16 64 0 2",
    ),
    "attention that the device lacks": (
        ("(float[1,2,32] x, float[1,2,8] k, float[1,2,8] v, float[1,1,3,8] p, float[1,1,3,8] r, int32[1] n, "
        "int32 t) => (float[1,2,32] y, float[1,1,5,8] c, float[1,1,5,8] d) { q = Abs (x) "
        "y, c, d = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 1> (q, k, v, p, r, n, t) }"),
        ("Copy from or to the CPU float32 64 0 1, Copy from or to the CPU float32 64 0 1, "
        "Copy from or to the CPU float32 40 0 1, Copy from or to the CPU float32 40 0 1, "
        "GroupQueryAttention on the CPU float32 64 0 1"),
    ),
    "what no list knows": ("(float[8] x) => (float[8] y) { y = Xyz (x) }", "Xyz float32 8 0 1"),
    "what reshapes": (
        "(float[4,2] x, int64[1] s) => (float[8] y) { v = Reshape (x, s) y = Abs (v) }",
        "Unary float32 8 0 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ROWS.values(), ids=ROWS)
def test_an_operator_s_kernels(text, expected):
    cost = traffic(ir.from_proto(onnx.parser.parse_model(f"{HEAD}g {text}")))[-1]
    kernels = [f"{work.kernel} {work.format} {work.elements} {work.steps} {work.count}" for work in cost.kernels]
    assert ", ".join(kernels) == expected


def test_what_has_no_kernel_in_float32_has_one_in_16_bits():
    """The set is that of the kernel table, as far as the CPU has a kernel; of other operators no float32 runs."""
    for op in WITHOUT_FLOAT32:
        kernels = {
            (target.name, dtype)
            for target in (CUDA, CPU)
            for dtype in ("float16", "float32")
            if target.release.kernels(target.name).has_kernel("com.microsoft", op, 1, {"T": dtype})
        }
        assert ("cuda", "float16") in kernels
        assert ("cpu", "float32") in kernels
        assert ("cuda", "float32") not in kernels


def test_a_body_s_kernels_run_as_often_as_it_does():
    text = """g (float[4] x) => (float[4] y) <int64 n = {3}, bool c = {1}> { y = Loop (n, c, x) <body = b
    (int64 i, bool k, float[4] a) => (bool k2, float[4] a2) { k2 = Identity (k) a2 = Neg (a) }> }"""
    [cost] = [
        each for each in traffic(ir.from_proto(onnx.parser.parse_model(HEAD + text))) if each.node.op_type == "Neg"
    ]
    assert [work.count for work in cost.kernels] == [3]
    assert seconds_of(cost.kernels[0], H100) == pytest.approx(3 * 1.5e-6, rel=0.01)


LAWS = [
    # work -> seconds by hand, from the row
    (Work("Relu", "float32", 10**6), 1.4e-6 + 2.45e-6),
    (Work("LayerNormalization", "float32", 10**6, steps=10**6), 3.8e-6 + 0.6e-3),
    (Work("Product", "float16", 0, steps=1000, flops=72 * 10**9), 2.1e-6 + 1.2e-6 + 1e-4),
    (Work("Product", "float16", 0, flops=1, bytes=26 * 10**8), 2.1e-6 + 1e-3),
    (Work("Relu", "float32", 10**6, count=2), 2 * (1.4e-6 + 2.45e-6)),
    (Work("Xyz", "float32", 1, bytes=15 * 10**8), 1e-3),
    (Work("Xyz", "float16", 1, flops=35 * 10**10), 1e-3),
    (Work("Xyz", "int64", 1), 2.5e-6),
]


@pytest.mark.parametrize(("work", "seconds"), LAWS)
def test_a_kernel_takes_what_its_row_says(work, seconds):
    assert seconds_of(work, H100) == pytest.approx(seconds, rel=1e-3)
    assert is_measured(work) is ((work.kernel, work.format) in price_list().rows)


def test_another_device_is_slower_by_bandwidth_and_rate():
    t4 = DEVICES["T4"]
    moved, multiplied = Work("Relu", "float32", 10**9), Work("Product", "float16", 0, flops=10**13)
    assert seconds_of(moved, t4) == pytest.approx(seconds_of(moved, H100) * 3350 / 320, rel=0.01)
    assert seconds_of(multiplied, t4) == pytest.approx(seconds_of(multiplied, H100) * 989.4 / 65, rel=0.01)
