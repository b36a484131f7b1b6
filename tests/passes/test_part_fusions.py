"""Views keep ONNX Runtime from fusing 16-bit nodes into kernels that compute worse."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.proto import to_proto
from tests import support

SILU = "x = MatMul(a, w) s = Sigmoid(x) {product} y = MatMul(m, w)"
NORM = "x = MatMul(a, w) t = Add(x, a) l = LayerNormalization(t, b) y = MatMul(l, w)"
RMS = """x = MatMul(a, w) t = Add(x, a) p = Pow(t, two) r = ReduceMean(p, last) e = Add(r, eps) q = Sqrt(e)
         d = Div(t, q) l = Mul(d, b) y = MatMul(l, w)"""
# body, options -> whether a view is put in
CASES = {
    "x * Sigmoid(x)": (SILU.format(product="m = Mul(x, s)"), {}, True),
    "Sigmoid(x) * x": (SILU.format(product="m = Mul(s, x)"), {}, True),
    "x * Sigmoid(c * x)": ("x = MatMul(a, w) k = Mul(x, c) s = Sigmoid(k) m = Mul(x, s) y = MatMul(m, w)", {}, True),
    "at level auto": (SILU.format(product="m = Mul(x, s)"), {"level": "auto"}, True),
    "in an older release": (SILU.format(product="m = Mul(x, s)"), {"ort": "1.20"}, True),
    "a gate of another value": (SILU.format(product="m = Mul(a, s)"), {}, False),
    "a gate that is read twice": (SILU.format(product="n = Mul(x, s) m = Add(n, s)"), {}, False),
    "time before accuracy": (SILU.format(product="m = Mul(x, s)"), {"level": "auto", "prefer": "time"}, False),
    "bfloat16": (SILU.format(product="m = Mul(x, s)"), {"dtype": "bfloat16"}, False),
    "for a CPU": (SILU.format(product="m = Mul(x, s)"), {"target": "cpu"}, False),
    "a sum that is normalised": (NORM, {}, False),
    "a sum that is normalised, in 1.26": (NORM, {"ort": "1.26"}, True),
    "the same, in bfloat16": (NORM, {"ort": "1.26", "dtype": "bfloat16"}, True),
    "the same, in 1.27": (NORM, {"ort": "1.27"}, False),
    "a written-out norm, in 1.26": (RMS, {"ort": "1.26", "level": "auto"}, True),
    "a sum that is read elsewhere, in 1.26": (NORM.replace("MatMul(l, w)", "Mul(l, t)"), {"ort": "1.26"}, False),
}


def model(body, batch="N", opset=18):
    numbers = ",".join(map(str, np.linspace(0.5, 1.5, 16).round(3)))
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[{batch},8,16] a, float[16,16] w)
        => (float[{batch},8,16] y) <float[16] b = {{{numbers}}}, float c = {{1.702}}, float two = {{2}},
        int64[1] last = {{-1}}, float eps = {{0.00001}}> {{ {body} }}"""
    return onnx.parser.parse_model(text)


def converted(body, **options):
    report = amp.transpile(model(body), verify=False, fuse="none", **{"level": "O2", "prefer": "size", **options})
    proto = to_proto(report.program.model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


@pytest.mark.parametrize(("body", "options", "expected"), CASES.values(), ids=CASES)
def test_where_a_view_is_put_in(body, options, expected):
    kinds = [node.op_type for node in converted(body, **options).graph.node]
    assert kinds.count("Reshape") == int(expected)


def without_views(proto):
    """A copy in which the readers of a view read the value itself."""
    views = {node.output[0]: node.input[0] for node in proto.graph.node if node.op_type == "Reshape"}
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    del plain.graph.node[:]
    for node in proto.graph.node:
        if node.op_type != "Reshape":
            plain.graph.node.add().CopyFrom(node)
            plain.graph.node[-1].input[:] = [views.get(name, name) for name in node.input]
    return plain


def test_a_view_changes_no_number():
    feeds = {"a": support.array(2, 8, 16), "w": support.array(16, 16, seed=1)}
    proto = converted(CASES["x * Sigmoid(x)"][0])
    expected = support.run(without_views(proto), feeds)["y"]
    np.testing.assert_array_equal(support.run(proto, feeds)["y"], expected)


def test_a_branch_of_control_flow_gets_views_too():
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[4,8] a, bool c) => (float[4,8] y) {
        y = If(c) <then_branch = t () => (float[4,8] t0) { q = Relu(a) s = Sigmoid(q) t0 = Mul(q, s) },
                   else_branch = e () => (float[4,8] e0) { e0 = Neg(a) }> }"""
    report = amp.transpile(onnx.parser.parse_model(text), verify=False, level="O2", fuse="none")
    proto = to_proto(report.program.model)
    onnx.checker.check_model(proto, full_check=True)
    (branching,) = (node for node in proto.graph.node if node.op_type == "If")
    inside = [node.op_type for attribute in branching.attribute for node in attribute.g.node]
    assert inside.count("Reshape") == 1


# ---- what the CUDA provider's own optimizer makes of it ----
ASK = """
    import json, sys, tempfile, onnx, onnxruntime as ort
    found = []
    for path in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            options = ort.SessionOptions()
            options.log_severity_level, options.optimized_model_filepath = 4, folder + "/o.onnx"
            ort.InferenceSession(path, options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
            found.append([node.op_type for node in onnx.load(folder + "/o.onnx").graph.node])
    print(json.dumps(found))
"""


def test_the_cuda_provider_keeps_the_nodes_apart(tmp_path):
    standin = pytest.importorskip("standin")
    try:
        environment = standin.stand_in_environment(standin.capi_folder())
    except standin.CannotTell as error:
        pytest.skip(str(error))
    paths = []
    for name in ("x * Sigmoid(x)", "x * Sigmoid(c * x)", "bfloat16"):
        body, options, _ = CASES[name]
        proto = converted(body, **options)
        for form in (proto, without_views(proto)):
            paths.append(str(tmp_path / f"{len(paths)}.onnx"))
            onnx.save(form, paths[-1])
    ask = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ASK), *paths],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    kinds = [set(operators) & {"QuickGelu", "Sigmoid"} for operators in json.loads(ask.stdout.splitlines()[-1])]
    apart, fused = {"Sigmoid"}, {"QuickGelu"}
    assert kinds == [apart, fused, apart, fused, fused, fused]
