"""Models that ONNX Runtime's optimizer or its transformers optimizer has written."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import amp_transpiler as amp
from tests.support import array, parse, run, run_emulated

BOTH = ("float16", "bfloat16")
MICROSOFT = ', "com.microsoft": 1'
LEVELS = {"extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL}

CONVOLUTIONS = parse(
    """(float[1,16,12,12] x) => (float[1,10] y) { a = Conv<pads=[1,1,1,1]>(x, k) b = Relu(a)
    c = Conv(b, k) d = Relu(c) e = GlobalAveragePool(d) f = Flatten(e) y = Gemm(f, w) }""",
    k=array(16, 16, 3, 3, scale=0.1),
    w=array(16, 10, scale=0.3),
)
PRODUCTS = parse(
    """(float[b,16] x) => (float[b,16] y) { a = Gemm(x, w, s) b = Relu(a) c = Transpose(v) d = MatMul(b, c)
    e = Mul(d, q) g = Sigmoid(e) h = Mul(e, g) i = MatMul(h, v) y = Add(i, s) }""",
    w=array(16, 16, scale=0.3),
    v=array(16, 16, seed=1, scale=0.3),
    s=array(16, seed=2),
    q=np.float32(0.5),
)
GELUS = parse(
    """(float[2,5,16] x) => (float[2,5,16] y) { a = MatMul(x, w) b = Add(a, s) c = Div(b, root) d = Erf(c)
    e = Add(d, one) f = Mul(b, e) g = Mul(f, half) h = Add(g, x) i = LayerNormalization(h, s, s) y = MatMul(i, w) }""",
    w=array(16, 16, scale=0.3),
    s=array(16, seed=2),
    root=np.float32(2**0.5),
    one=np.float32(1),
    half=np.float32(0.5),
)
ENCODER = parse(
    """(int32[b,5] ids, int32[b,5] mask) => (float[b,5,16] y) {
    [e] e, m = com.microsoft.EmbedLayerNormalization(ids, , words, places, , s, t, mask)
    [q] q = com.microsoft.Attention<num_heads=2>(e, w3, s3, m) a = MatMul(q, w)
    [l] l, , , sum = com.microsoft.SkipLayerNormalization(a, e, s, t, t) f = MatMul(l, w)
    [g] g = com.microsoft.BiasGelu(f, t) h = MatMul(g, w) [p] p = com.microsoft.FastGelu(h, t)
    [z] y = com.microsoft.SkipLayerNormalization(p, sum, s, t) }""",
    imports=MICROSOFT,
    words=array(30, 16),
    places=array(8, 16, seed=1),
    s=array(16, seed=2, low=0.5),
    t=array(16, seed=3, scale=0.1),
    w=array(16, 16, scale=0.3),
    w3=array(16, 48, scale=0.3),
    s3=array(48, scale=0.1),
)
HEADS = parse(
    """(float[b,5,16] x) => (float[b,5,16] y) { q = MatMul(x, w) k = MatMul(x, v)
    [a] a = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, x) [n] n = com.microsoft.QuickGelu<alpha=1.702>(a)
    [p] y = com.microsoft.FusedMatMul<alpha=0.5, transB=1>(n, v) }""",
    imports=MICROSOFT,
    w=array(16, 16, scale=0.3),
    v=array(16, 16, seed=1, scale=0.3),
)

# name -> model, optimization level (None: it is already fused), some of its operators, dtypes with advice in the report
MODELS = {
    "convolutions, extended": (CONVOLUTIONS, "extended", {"FusedConv"}, BOTH),
    "convolutions, all": (CONVOLUTIONS, "all", {"Conv", "ReorderOutput"}, BOTH),
    "products, extended": (PRODUCTS, "extended", {"FusedGemm", "FusedMatMul", "QuickGelu"}, BOTH),
    "gelu and layer normalization, extended": (GELUS, "extended", {"Gelu", "SkipLayerNormalization"}, ()),
    "encoder of the transformers optimizer": (ENCODER, None, {"Attention", "EmbedLayerNormalization"}, ("bfloat16",)),
    "heads of the transformers optimizer": (HEADS, None, {"MultiHeadAttention", "QuickGelu", "FusedMatMul"}, ()),
}


def optimized(model, level, folder):
    if level is None:
        return model
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def feeds_of(model):
    random = np.random.default_rng(5)
    feeds = {}
    for info in model.graph.input:
        sizes = [dim.dim_value or 2 for dim in info.type.tensor_type.shape.dim]
        is_float = info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        feeds[info.name] = random.normal(size=sizes).astype(np.float32) if is_float else np.ones(sizes, np.int32)
    return feeds


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["auto", "O1", "O2"])
@pytest.mark.parametrize("name", MODELS)
def test_a_fused_model_is_converted(tmp_path, name, level, dtype):
    model, optimization, operators, advised = MODELS[name]
    model = optimized(model, optimization, tmp_path)
    assert operators <= {node.op_type for node in model.graph.node if node.domain.startswith("com.microsoft")}
    report = amp.transpile(model, level=level, dtype=dtype, prefer="size")
    feeds = feeds_of(model)
    expected, result = run(model, feeds), run_emulated(report.program, feeds)
    for output, values in expected.items():
        assert np.linalg.norm(result[output] - values) <= 0.02 * np.linalg.norm(values)
    assert report.verdict_word == ("plausible" if level == "auto" else "compared"), report.verdict
    assert report.low_nodes
    assert any("convert the model it was given" in note for note in report.notes) is (dtype in advised)


def test_what_has_no_low_kernel_stays_float32(tmp_path):
    report = amp.transpile(optimized(CONVOLUTIONS, "extended", tmp_path), level="O2")
    assert {row.precision for row in report.decisions if row.op == "com.microsoft::FusedConv"} == {"float32"}
    assert "2 com.microsoft::FusedConv" in " ".join(report.notes)
