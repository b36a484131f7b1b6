"""Models that onnx.checker refuses and ONNX Runtime loads: its own operators, and what it does not insist on."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.checker import checker_fault, runtime_operators
from amp_transpiler.ops.schema import only_in_runtime, signature
from tests.support import array, open_ort, parse, run, run_emulated

MICROSOFT = ', "com.microsoft": 1'
WEIGHTS = {"w": array(16, 16, scale=0.5), "s": array(16, seed=1), "k": array(4, 3, 3, 3)}

# name -> graph, opset, further imports, what the report says
MODELS = {
    "simplified layer norm": (
        """(float[b,8,16] x) => (float[b,8,16] y, float[b,8,16] z) { a = MatMul(x, w)
        [n] n = SimplifiedLayerNormalization<axis=-1, epsilon=1e-5, stash_type=1>(a, s)
        [p] p, , , q = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=1e-5>(n, a, s)
        y = MatMul(p, w) z = MatMul(q, w) }""",
        (14, MICROSOFT, "not portable: SimplifiedLayerNormalization"),
    ),
    "layer norm before opset 17": (
        """(float[b,8,16] x) => (float[b,8,16] y) { a = MatMul(x, w) n = LayerNormalization<axis=-1>(a, s, s)
        y = MatMul(n, w) }""",
        (14, "", "not portable: LayerNormalization"),
    ),
    "operators that ONNX never had": (
        """(float[1,3,8,8] x) => (float[1,4,4,4] y) { a = ImageScaler<scale=2.0, bias=[1.0, 2.0, 3.0]>(x)
        b = Crop<border=[1, 1, 1, 1]>(a) c = Conv(b, k) y = ThresholdedRelu<alpha=0.5>(c) }""",
        (9, "", "not portable: Crop, ImageScaler, ThresholdedRelu"),
    ),
    "a domain that is not imported": (
        "(float[b,8,16] x) => (float[b,8,16] y) { a = MatMul(x, w) y = com.microsoft.FastGelu(a) }",
        (14, "", "uses com.microsoft without importing it"),
    ),
    "a body whose results have no types": (
        """(float[2,16] x, bool c) => (y) { y = If(c) <then_branch = t () => (p) {
        m = SimplifiedLayerNormalization<axis=-1>(x, s) p = MatMul(m, w) },
        else_branch = e () => (q) { q = MatMul(x, w) }> }""",
        (14, "", "not portable: SimplifiedLayerNormalization"),
    ),
    "an output without type and shape": (
        "(float[b,8,16] x) => (y) { a = MatMul(x, w) y = Relu(a) }",
        (14, "", ""),
    ),
}


def build(name):
    graph, (opset, imports, _) = MODELS[name]
    named = {name: values for name, values in WEIGHTS.items() if f"{name})" in graph or f", {name}," in graph}
    return parse(graph, opset=opset, imports=imports, ir_version=8, **named)


def feeds_of(model):
    sizes = [dim.dim_value or 2 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": array(*sizes, seed=3)} | ({"c": np.array(True)} if len(model.graph.input) > 1 else {})


def assert_close(expected, found, limit=0.02):
    for name, values in expected.items():
        assert np.linalg.norm(found[name] - values) <= limit * np.linalg.norm(values), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_checker_refuses_and_it_is_converted(name, dtype):
    model = build(name)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    open_ort(model)
    feeds, said = feeds_of(model), MODELS[name][1][2]
    for level in ("auto", "O1", "O2"):
        report = amp.transpile(model, level=level, dtype=dtype, prefer="size")
        assert said in " ".join(report.notes)
        assert report.verdict_word == ("plausible" if level == "auto" else "compared"), report.verdict
        assert report.low_nodes or (dtype == "bfloat16" and MODELS[name][1][0] == 9)
        assert_close(run(model, feeds), run_emulated(report.program, feeds))


def test_what_the_runtime_refuses_too_stays_refused():
    model = parse("(float[2,4] x) => (float[2,4] y) { y = NoSuchOperator(x) }")
    with pytest.raises(amp.ModelError, match="NoSuchOperator"):
        amp.transpile(model, prefer="size")


SIGNATURES = [
    ("", "SimplifiedLayerNormalization", 14, 1, True),
    ("", "SimplifiedLayerNormalization", 26, 1, True),
    ("ai.onnx", "LayerNormalization", 16, 1, True),
    ("", "LayerNormalization", 17, 17, False),
    ("", "ThresholdedRelu", 9, 1, True),
    ("", "ThresholdedRelu", 10, 10, False),
    ("", "Affine", 9, 1, True),
    ("com.microsoft", "FastGelu", 1, 1, False),
]


@pytest.mark.parametrize(("domain", "op_type", "opset", "version", "only_runtime"), SIGNATURES)
def test_signatures_of_the_runtimes_own_operators(domain, op_type, opset, version, only_runtime):
    types = signature(domain, op_type, opset)
    assert types.since_version == version
    assert only_in_runtime(domain, op_type, opset) is only_runtime


@pytest.mark.parametrize(("op_type", "opset"), [("Affine", 10), ("NoSuchOperator", 14), ("MatMul", 0)])
def test_what_is_deprecated_or_unknown_has_no_signature(op_type, opset):
    assert signature("", op_type, opset) is None
    assert not only_in_runtime("", op_type, opset)


def test_the_checker_still_looks_at_the_other_nodes():
    """A node that only ONNX Runtime knows hides no fault of another."""
    model = parse(
        "(float[2,8] x) => (float[2,8] y) { n = SimplifiedLayerNormalization<axis=-1>(x, s) y = Relu<bad=1>(n) }",
        opset=14,
        ir_version=8,
        s=array(8),
    )
    program = amp.load(model)
    assert runtime_operators(program.model) == ["SimplifiedLayerNormalization"]
    assert "Unrecognized attribute: bad" in checker_fault(program.model)


def test_an_own_operator_does_not_keep_the_opset_down():
    """bfloat16 came to Conv at opset 22; ONNX's LayerNormalization is what ONNX Runtime's was."""
    graph = (
        "(float[1,3,8,8] x) => (float[1,4,6,6] y) { a = Conv(x, k) b = LayerNormalization<axis=-1>(a, s6) "
        "y = SimplifiedLayerNormalization<axis=-1>(b, s6) }"
    )
    model = parse(graph, opset=14, ir_version=8, k=WEIGHTS["k"], s6=array(6))
    report = amp.transpile(model, dtype="bfloat16", prefer="size")
    assert report.opset == (14, 22)
    assert [row.precision for row in report.decisions] == ["low"] * 3


def test_tensorrt_has_no_operators_of_the_runtime():
    report = amp.transpile(build("simplified layer norm"), target="tensorrt", level="O2")
    assert {row.op: row.precision for row in report.decisions}["SimplifiedLayerNormalization"] == "high"
