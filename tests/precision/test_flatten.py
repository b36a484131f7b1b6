"""Bodies of control flow may use each other's names: a look at them all together tells them apart."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.precision.training.flatten import flattened

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
CONDITION = "s = ReduceSum<keepdims = 0>(x) c = Greater(s, z)"
LOOP = "z = {0.0}, int64 m = {2}, bool t = {1}"
MODELS = {
    "branches": f"""g (float[2] x) => (float[2] y) <float z = {{0.0}}> {{ {CONDITION}
        y = If(c)<then_branch = a () => (float[2] p) <float[2] k = {{1, 2}}> {{ p = Add(x, k) }},
                  else_branch = b () => (float[2] q) <float[2] k = {{3, 4}}> {{ q = Sub(x, k) }}> }}""",
    "an outer name": f"""g (float[2] x) => (float[2] y) <float z = {{0.0}}, float[2] k = {{5, 6}}> {{ {CONDITION}
        h = Mul(x, k)
        y = If(c)<then_branch = a () => (float[2] p) <float[2] k = {{1, 2}}> {{ p = Add(h, k) }},
                  else_branch = b () => (float[2] q) {{ q = Sub(h, k) }}> }}""",
    "branches in branches": f"""g (float[2] x) => (float[2] y) <float z = {{0.0}}> {{ {CONDITION}
        y = If(c)<then_branch = a () => (float[2] p) <float[2] k = {{1, 2}}> {{
              o = Add(x, k)
              p = If(c)<then_branch = d () => (float[2] i) <float[2] k = {{7, 8}}> {{ i = Mul(o, k) }},
                        else_branch = e () => (float[2] j) <float[2] k = {{9, 9}}> {{ j = Sub(o, k) }}> }},
            else_branch = b () => (float[2] q) <float[2] k = {{3, 4}}> {{ q = Sub(x, k) }}> }}""",
    "two Ifs with the same names": f"""g (float[2] x) => (float[2] y) <float z = {{0.0}}> {{ {CONDITION}
        h = If(c)<then_branch = a () => (float[2] p) <float[2] k = {{1, 2}}> {{ o = Add(x, k) p = Exp(o) }},
                  else_branch = b () => (float[2] p) <float[2] k = {{3, 4}}> {{ o = Sub(x, k) p = Exp(o) }}>
        y = If(c)<then_branch = a () => (float[2] p) <float[2] k = {{5, 6}}> {{ o = Add(h, k) p = Exp(o) }},
                  else_branch = b () => (float[2] p) <float[2] k = {{7, 8}}> {{ o = Sub(h, k) p = Exp(o) }}> }}""",
    "two loops": f"""g (float[2] x) => (float[2] y) <float {LOOP}> {{
        h = Loop(m, t, x)<body = a (int64 i, bool g1, float[2] u) => (bool g2, float[2] v)
            <float[2] k = {{1, 2}}> {{ g2 = Identity(g1) v = Add(u, k) }}>
        y = Loop(m, t, h)<body = b (int64 i, bool g3, float[2] u2) => (bool g4, float[2] v2)
            <float[2] k = {{3, 4}}> {{ g4 = Identity(g3) v2 = Mul(u2, k) }}> }}""",
    "a loop without a condition": f"""g (float[2] x) => (float[2] y) <float {LOOP}, float[2] k = {{3, 4}}> {{
        h = Mul(x, k)
        y = Loop(m, "", h)<body = a (int64 i, bool g1, float[2] u) => (bool g2, float[2] v)
            <float[2] k = {{1, 2}}> {{ g2 = Identity(g1) v = Add(u, k) }}> }}""",
    "a loop that hands a state on": f"""g (float[2] x) => (float[2] y, float[2] w) <float {LOOP}> {{
        y, w = Loop(m, t, x, x)<body = a (int64 i, bool g1, float[2] u, float[2] s) =>
            (bool g1, float[2] v, float[2] s) <float[2] k = {{1, 2}}> {{ v = Add(u, k) }}> }}""",
    "a loop that hands a constant on": f"""g (float[2] x) => (float[2] y, float[2] w)
        <float {LOOP}, float[2] r = {{7, 8}}> {{
        y, w = Loop(m, t, x, r)<body = a (int64 i, bool g1, float[2] u, float[2] s) =>
            (bool g2, float[2] v, float[2] s) <float[2] k = {{1, 2}}> {{ g2 = Identity(g1) v = Add(u, k) }}> }}""",
    "a loop that gives a state out twice": f"""g (float[2] x) => (float[2] y, float[2,2] w) <float {LOOP}> {{
        y, w = Loop(m, t, x)<body = a (int64 i, bool g1, float[2] u) => (bool g1, float[2] v, float[2] u)
            <float[2] k = {{1, 2}}> {{ v = Add(u, k) }}> }}""",
    "a scan": """g (float[2] x, float[3,2] r) => (float[2] y, float[3,2] w) <float[2] k = {3, 4}> {
        h = Mul(x, k)
        y, w = Scan<num_scan_inputs = 1, body = a (float[2] u, float[2] v) => (float[2] p, float[2] q)
            <float[2] k = {1, 2}> { p = Add(u, k) q = Mul(v, p) }>(h, r) }""",
}


@pytest.mark.parametrize("name", MODELS)
def test_initializers_of_one_name_stay_apart(name):
    proto = onnx.parser.parse_model(HEAD + MODELS[name])
    onnx.checker.check_model(proto, full_check=True)
    model = ir.from_proto(proto)
    wanted = sorted(tuple(v.const_value.numpy().ravel()) for v in _initializers(model))
    copy = flattened(model)
    assert sorted(tuple(v.const_value.numpy().ravel()) for v in copy.graph.initializers.values()) == wanted
    assert all(key == value.name for key, value in copy.graph.initializers.items())


@pytest.mark.parametrize("name", MODELS)
def test_they_are_converted(name):
    proto = onnx.parser.parse_model(HEAD + MODELS[name])
    feeds = {"x": np.float32([0.5, 1.0]), "r": np.ones((3, 2), np.float32)}
    report = amp.transpile(proto, inputs={info.name: feeds[info.name] for info in proto.graph.input}, prefer="size")
    assert report.verdict_word == ("plausible" if "never ran" in report.verdict else "verified"), report.verdict


def _initializers(model):
    graphs = [model.graph]
    for graph in graphs:
        yield from graph.initializers.values()
        graphs += [a.as_graph() for n in graph for a in n.attributes.values() if a.type == ir.AttributeType.GRAPH]
