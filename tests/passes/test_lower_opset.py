"""Lowering the opset: a model that only says a newer one, and uses nothing of it, is read by an older runtime."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from amp_transpiler.passes.convert_opset import OpsetConversionError
from amp_transpiler.passes.limit_opset import LimitOpset
from amp_transpiler.passes.lower_opset import LowerOpset
from amp_transpiler.passes.name_nodes import NameNodes
from tests.support import needs_onnx


def parse(text, opset):
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}'))


def is_lowered(model):
    try:
        LowerOpset(26)(model)
    except OpsetConversionError:
        return False
    return True


LOWERED = [  # text, whether 26 will do for a model that says 28
    ("agraph (float[N] x) => (float[N] y) { y = Relu (x) }", True),
    ("agraph (float[N] x) => (int64[N] y) { y = Cast <to=7> (x) }", True),
    ("agraph (float[N,4,H,W] x) => (float[A,B,C,D] y) { y = DepthToSpace <blocksize=2> (x) }", True),
    ("agraph (float[N] x) => (float[N] y) { y = Celu (x) }", True),
    ("agraph (float16[N] x) => (float16[N] y) { y = Celu (x) }", False),
    ("agraph (int64 a, int64 b) => (int64[N] y) { y = Range (a, b, b) }", True),
    ("agraph (float16 a, float16 b) => (float16[N] y) { y = Range (a, b, b) }", False),
    ("agraph (float a, float b) => (float[N] y) { y = Range <stash_type=1> (a, b, b) }", False),
    ("agraph (float[N] x) => (float[N] y) { y = Mod <fmod=0> (x, x) }", False),
]


KNOWS_28 = needs_onnx("1.23", "it ends at opset 27")


@KNOWS_28
@pytest.mark.parametrize(("text", "possible"), LOWERED)
def test_lower(text, possible):
    model = parse(text, 28)
    onnx.checker.check_model(ir.to_proto(model))
    before = ir.to_proto(model)
    assert is_lowered(model) is possible
    if possible:
        assert model.graph.opset_imports[""] == 26
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
    else:
        assert ir.to_proto(model) == before


@KNOWS_28
def test_lower_looks_into_bodies_and_leaves_lower_models_alone():
    text = """agraph (bool c, float16[N] x) => (float16[N] y) {
        y = If (c) <
            then_branch = a () => (float16[N] p) { p = Celu (x) },
            else_branch = b () => (float16[N] q) { q = Identity (x) }
        >
    }"""
    assert not is_lowered(parse(text, 28))
    model = parse("agraph (float[N] x) => (float[N] y) { y = Relu (x) }", 13)
    assert is_lowered(model)
    assert model.graph.opset_imports[""] == 13


def test_an_opset_that_the_installed_onnx_does_not_know_is_not_lowered():
    unknown = onnx.defs.onnx_opset_version() + 1
    with pytest.raises(OpsetConversionError, match=f"opset {unknown} is not known to the installed onnx"):
        LowerOpset(26)(parse("agraph (float[N] x) => (float[N] y) { y = Relu (x) }", unknown))


@pytest.mark.parametrize(
    ("node", "named"),
    [
        ("y = RMSNormalization(x, g)", "RMSNormalization 'RMSNormalization_y'"),
        ("r = RMSNormalization(x, g) y = Relu(r)", "RMSNormalization 'RMSNormalization_r'"),
        ("r = RMSNormalization(x, g) y = RMSNormalization(x, g)", "RMSNormalization 'RMSNormalization_r', RMSNorm"),
    ],
)
def test_the_operator_is_named_whose_definition_is_newer(node, named):
    model = parse(f"a (float[n,8] x) => (float[n,8] y) <float[8] g = {{1,1,1,1,1,1,1,1}}> {{ {node} }}", 23)
    NameNodes()(model)
    with pytest.raises(OpsetConversionError, match="opset 23 is needed by") as caught:
        LimitOpset(17)(model)
    assert named in str(caught.value)
    assert "'node'" not in str(caught.value)


GAIN = "<float[8] g = {1,2,3,4,5,6,7,8}>"
HEADS = "float[n,2,s,8] q, float[n,2,t,8] k, float[n,2,t,8] v"


@pytest.mark.parametrize(
    ("text", "opset", "older", "shapes"),
    [
        (f"a (float[n,8] x) => (float[n,8] y) {GAIN} {{ y = RMSNormalization(x, g) }}", 23, 21, [(3, 8)]),
        (f"a (float[n,8] x) => (float[n,8] y) {GAIN} {{ y = RMSNormalization<epsilon=0.1>(x, g) }}", 24, 19, [(3, 8)]),
        ("a (float[n,8] x) => (float[n,8] y) { y = Swish<alpha=1.5>(x) }", 24, 21, [(3, 8)]),
        ("a (float[n,8] x) => (float[n,8] y) { h = Gelu(x) y = Relu(h) }", 20, 17, [(3, 8)]),
        (
            "a (float[n,2,s,8] x, float[n,s,4] c, float[n,s,4] d) => (float[n,2,s,8] y) { y = RotaryEmbedding(x,c,d) }",
            *(23, 21, [(1, 2, 3, 8), (1, 3, 4), (1, 3, 4)]),
        ),
        (f"a ({HEADS}) => (float[n,2,s,8] y) {{ y = Attention(q, k, v) }}", 23, 21, [(1, 2, 3, 8)] * 3),
        (f"a ({HEADS}) => (float[n,2,s,8] y) {{ y = Attention<is_causal=1>(q, k, v) }}", 23, 20, [(1, 2, 3, 8)] * 3),
    ],
)
def test_a_newer_operator_is_written_out_and_the_opset_lowered(text, opset, older, shapes):
    model = parse(text, opset)
    NameNodes()(model)
    source = ir.to_proto(model)
    LimitOpset(older)(model)
    assert model.graph.opset_imports[""] == older
    lowered = ir.to_proto(model)
    onnx.checker.check_model(lowered, full_check=True)
    random = np.random.default_rng(0)
    names = [value.name for value in source.graph.input]
    feeds = {name: random.standard_normal(s).astype(np.float32) for name, s in zip(names, shapes, strict=True)}
    [wanted] = ReferenceEvaluator(source).run(None, feeds)
    [got] = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
