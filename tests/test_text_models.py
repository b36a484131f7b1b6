"""Text tensors anywhere in a model: constants, inputs, sequences, maps, bodies, at every level and in every report."""

import math

import numpy as np
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.report.as_html import page
from amp_transpiler.report.as_json import dump, report_as_dict

HEAD = '<ir_version: 10, opset_import: ["": 20, "ai.onnx.ml": 3]>\n'
SQUARE = "float[4,4] w = {1,2,3,4,5,6,7,8,9,1,3,2,1,1,1,1}"
NARROW = "float[4,3] w = {1,2,3,4,5,6,7,8,9,1,3,2}"
LABELLED = "s = MatMul(x, w) i = ArgMax<axis=1, keepdims=0>(s)"

MODELS = {
    "labels in a constant": f"""g (float[2,4] x) => (float[2,3] s, string[2] y) <{NARROW}> {{
        n = Constant<value = string[3] {{"a","bb",""}}>() {LABELLED} y = Gather(n, i) }}""",
    "labels in an initializer": f"""g (float[2,4] x) => (float[2,3] s, string[2] y)
        <{NARROW}, string[3] n = {{"a","bb","c"}}> {{ {LABELLED} y = Gather(n, i) }}""",
    "labels as a list": f"""g (float[2,4] x) => (float[2,3] s, string[2] y) <{NARROW}> {{
        n = Constant<value_strings = ["a","bb","c"]>() {LABELLED} y = Gather(n, i) }}""",
    "labels of an encoder": f"""g (float[2,4] x) => (float[2,3] s, string[2] y) <{NARROW}> {{ {LABELLED}
        y = ai.onnx.ml.LabelEncoder<keys_int64s=[0,1,2], values_strings=["a","b","c"]>(i) }}""",
    "maps with keys of text": f"""g (float[2,4] x) => (seq(map(string, float)) y) <{NARROW}> {{
        s = MatMul(x, w) p = Softmax(s) y = ai.onnx.ml.ZipMap<classlabels_strings=["a","b","c"]>(p) }}""",
    "a sequence": f"""g (float[2,4] x, string[1] t) => (float[2,4] s, string[1] u, seq(string[1]) q)
        <{SQUARE}, int64 n = {{0}}> {{ s = MatMul(x, w) q = SequenceConstruct(t, t) u = SequenceAt(q, n) }}""",
    "branches": f"""g (float[2,4] x) => (float[2,4] s, string[1] u) <{SQUARE}, float z = {{0}}> {{
        s = MatMul(x, w) m = ReduceSum<keepdims=0>(s) c = Greater(m, z)
        u = If(c)<then_branch = a () => (string[1] p) {{ p = Constant<value = string[1] {{"yes"}}>() }},
                  else_branch = b () => (string[1] q) {{ q = Constant<value = string[1] {{"no"}}>() }}> }}""",
    "an input, split": f"""g (float[2,4] x, string[2] t) => (float[2,4] s, string[2] u, int64[k] c) <{SQUARE}> {{
        s = MatMul(x, w) p = Constant<value_string = " x">() u = StringConcat(t, p)
        v, c = StringSplit<delimiter=" ">(u) }}""",
    "a comparison": """g (float[2] x, string[2] t) => (float[2] y)
        <string[2] a = {"a b","b"}, float z = {0.0}, float k = {3.0}> {
        m = Mul(x, k) c = Equal(t, a) y = Where(c, m, z) }""",
    "numbers read from text": """g (float[2] x) => (float[2] y) <string[2] t = {"1.5","2"}, float k = {3.0}> {
        v = Cast<to=1>(t) m = Mul(x, v) y = Mul(m, k) }""",
    "numbers written as text": """g (float[2] x) => (float[2] y, string[2] u) <float k = {3.0}> {
        y = Mul(x, k) u = Cast<to=8>(y) }""",
    "an update beside text": """g (float[4,4] w, float[2,4] x, string[4] t) => (float[4,4] w2, string[4] t2)
        <float lr = {0.01}> { h = MatMul(x, w) a = Transpose<perm=[1,0]>(x) g = MatMul(a, h) d = Mul(g, lr)
        w2 = Sub(w, d) t2 = Identity(t) }""",
}

WAYS = [
    {"frontier": True},
    {"tolerance": 1e-6},
    {"level": "O2", "dtype": "bfloat16"},
    {"level": "OD"},
    {"prefer": "time"},
    {"policy": "torch"},
    {"policy": "mxnet", "data_max": 3.0},
    {"verify": False, "keep_io_types": False},
]
CASES = [
    *(pytest.param(name, {"tolerance": 1e-6}, id=name) for name in MODELS),
    *(pytest.param("labels in an initializer", way, id=str(way)) for way in WAYS),
]


def _feeds(model):
    for info in model.graph.input:
        tensor = info.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        texts = tensor.elem_type == onnx.TensorProto.STRING
        numbers = np.linspace(-1.0, 1.0, math.prod(dims), dtype=np.float32)
        yield info.name, np.full(dims, "a b", object) if texts else numbers.reshape(dims)


@pytest.mark.parametrize(("name", "way"), CASES)
def test_text_is_kept(name, way, tmp_path):
    model = onnx.parser.parse_model(HEAD + MODELS[name])
    report = amp.transpile(model, inputs=dict(_feeds(model)) if way.get("verify", True) else None, **way)
    texts = [tensor for tensor in model.graph.output if tensor.type.tensor_type.elem_type == onnx.TensorProto.STRING]
    for tensor in texts:
        row = report.outputs.get(tensor.name)
        assert row is None or (row.dtype == "string" and not row.mismatched) or name == "numbers written as text"
    report.save_recipe(tmp_path / "recipe.json")
    assert all((str(report), page([(report, None)]), dump(report_as_dict(report))))


def test_the_cache_tells_texts_apart():
    texts = [MODELS["labels in an initializer"].replace('"c"', f'"{label}"') for label in ("c", "d")]
    programs = [amp.transpile(onnx.parser.parse_model(HEAD + text)).program for text in texts]
    x = np.ones((2, 4), np.float32)
    assert [amp.Session(program).run({"x": x})[1].tolist() for program in programs] == [["c", "c"], ["d", "d"]]
