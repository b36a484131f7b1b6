"""Kernels of training steps by family, and the page that compares them with PyTorch's."""

import onnx_ir as ir
import pytest

from amp_transpiler.cost.shapes import sizes_of
from programs.kernel_families import FAMILIES, family_of_kernel, family_of_node, updates_of
from programs.kernels_page import CASES, REASONS, page, tables

KERNELS = {  # as CUPTI names them: family
    "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x256_64x3_tn_align2>(": "matrix products",
    "nvjet_sm90_hsh_96x64_64x8_1x2_h_bz_NNN": "matrix products",
    "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, c10::Half, float": "loss",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<": "optimizer",
    "void at::native::vectorized_elementwise_kernel<8, at::native::float16_copy_kernel_cuda(": "casts",
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float": "look-ups and scatters",
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::Half": "sums",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float": "normalisation",
    "void cudnn::bn_bw_1C11_kernel_new<__half, float, float2, 512, true, 1>(": "normalisation",
    "sm90_xmma_wgrad_indexed_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc": "convolutions",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop": "attention",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>": "elementwise",
}
STEP = """(float[4,6] w, float16[8,4] x, float16[2,3,5,4] q, float rate) => (float[4,6] new, float16 b, float loss) {
    low = Cast <to = 10> (w) y = MatMul (x, low) e = Exp (y) sum = ReduceSum <keepdims = 0> (e)
    loss = Cast <to = 1> (sum) k = Transpose <perm = [0, 1, 3, 2]> (q) s = MatMul (q, k) a = Softmax <axis = -1> (s)
    b = ReduceSum <keepdims = 0> (a) t = Transpose <perm = [1, 0]> (x) g = MatMul (t, e) wide = Cast <to = 1> (g)
    d = Mul (wide, rate) new = Sub (w, d) }"""


@pytest.mark.parametrize("name", KERNELS)
def test_the_family_of_a_kernel(name):
    assert family_of_kernel(name) == KERNELS[name]


def test_the_family_of_a_node():
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 21]> step {STEP}')
    sizes, updates = sizes_of(model), updates_of(model.graph)
    families = [(node.op_type, family_of_node(node, sizes, is_update=node in updates)) for node in model.graph]
    assert families == [
        ("Cast", "casts"),
        ("MatMul", "matrix products"),
        ("Exp", "elementwise"),
        ("ReduceSum", "sums"),
        ("Cast", "casts"),
        ("Transpose", "movement"),
        ("MatMul", "attention"),
        ("Softmax", "attention"),
        ("ReduceSum", "sums"),
        ("Transpose", "movement"),
        ("MatMul", "matrix products"),
        ("Cast", "optimizer"),
        ("Mul", "optimizer"),
        ("Sub", "optimizer"),
    ]


OURS = [["matrix products", "Gemm", "f16[8,4] to f16[8,6]", 0.5, 2], ["casts", "Cast", "f32[4] to f16[4]", 0.25, 1]]
THEIRS = {
    "stage": "torch_training",
    "name": "raf.float16",
    "busy_ms": 1.0,
    "costliest": [["nvjet_sm90", 3.0, 0.625], ["reduce_kernel<1>", 1.0, 0.125]],
}


def test_the_tables_have_both_and_what_has_no_name():
    case = next(case for case in CASES if case.network == "raf" and case.level == "O2")
    text = tables([(case, OURS)], [THEIRS])
    for row in (
        "| matrix products | 0.500 | 2 | 0.625 |",
        "| casts | 0.250 | 1 |  |",
        "| sums |  |  | 0.125 |",
        "| others, not kept by name |  |  | 0.250 |",
        "| **all** | 0.750 | 3 | 1.000 |",
        "| `nvjet_sm90` | matrix products | 0.625 | 3 |",
    ):
        assert row in text
    assert text in page([(case, OURS)], [THEIRS])
    assert "PyTorch's:" not in tables([(case, OURS)], []), "nothing was measured"


def test_every_family_has_a_reason():
    assert set(REASONS) == set(FAMILIES)
    assert set(KERNELS.values()) <= set(FAMILIES)
