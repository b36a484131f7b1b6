"""Unusual training steps, and what looks like one: rows of ONNX text, with the states that must be found."""

import dataclasses

import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import fitted, prepare
from amp_transpiler.files.loading import load
from amp_transpiler.graph.roles import role_of
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.systems.choice import Request, choose_policy


@dataclasses.dataclass(frozen=True)
class Row:
    """A step: its signature and body, the role of each state, and what the optimizer computes."""

    name: str
    inputs: str
    outputs: str
    body: str
    roles: dict[str, str]
    optimizer: str = ""
    constants: str = (
        "float rate = {0.01}, float zero = {0.0}, float one = {1.0}, int64[1] first = {0}, int64[1] second = {1}"
    )

    @property
    def model(self) -> onnx.ModelProto:
        head = f'<ir_version: 9, opset_import: ["" : 18]> step ({self.inputs}) => ({self.outputs}) <{self.constants}>'
        return onnx.parser.parse_model(f"{head} {{ {self.body} }}")


UNBATCHED = Row(
    "one sample, gradients by outer products",
    "float[4] x, float[2] y, float[4, 3] w, float[3] b, float[3, 2] v, float[2] c",
    "float[4, 3] w_new, float[3] b_new, float[3, 2] v_new, float[2] c_new",
    """h = MatMul(x, w) hb = Add(h, b) r = Relu(hb) o = MatMul(r, v) p = Add(o, c) d = Sub(p, y)
    rc = Unsqueeze(r, second) dr = Unsqueeze(d, first) gv = MatMul(rc, dr)
    vt = Transpose(v) dh = MatMul(d, vt) on = Greater(hb, zero) dz = Where(on, dh, zero)
    xc = Unsqueeze(x, second) dzr = Unsqueeze(dz, first) gw = Mul(xc, dzr)
    uw = Mul(gw, rate) ub = Mul(dz, rate) uv = Mul(gv, rate) uc = Mul(d, rate)
    w_new = Sub(w, uw) b_new = Sub(b, ub) v_new = Sub(v, uv) c_new = Sub(c, uc)""",
    dict.fromkeys("wbvc", "parameter"),
    "uw ub uv uc w_new b_new v_new c_new",
)
TRUNCATED = Row(
    "a recurrent network whose hidden state goes on, too",
    "float[2, 4] x, float[2, 3] y, float[2, 3] h, float[4, 3] w, float[3, 3] u, float[3] b",
    "float[2, 3] h_new, float[4, 3] w_new, float[3, 3] u_new, float[3] b_new",
    """xw = MatMul(x, w) hu = MatMul(h, u) s = Add(xw, hu) a = Add(s, b) n = Tanh(a) z = Sigmoid(a)
    k = Sub(one, z) kn = Mul(k, n) zh = Mul(z, h) h_new = Add(kn, zh)
    d = Sub(h_new, y) nn = Mul(n, n) dn = Sub(one, nn) ds = Mul(d, dn)
    xt = Transpose(x) gw = MatMul(xt, ds) ht = Transpose(h) gu = MatMul(ht, ds)
    gb = ReduceSum <keepdims = 0> (ds, first)
    uw = Mul(gw, rate) uu = Mul(gu, rate) ub = Mul(gb, rate)
    w_new = Sub(w, uw) u_new = Sub(u, uu) b_new = Sub(b, ub)""",
    dict.fromkeys("wub", "parameter"),
    "uw uu ub w_new u_new b_new",
)
TWICE = Row(
    "two updates in one step",
    "float[N, 4] x, float[N, 3] y, float[4, 3] w",
    "float[4, 3] w_new",
    """p = MatMul(x, w) d = Sub(p, y) xt = Transpose(x) g = MatMul(xt, d) u = Mul(g, rate) w1 = Sub(w, u)
    p1 = MatMul(x, w1) d1 = Sub(p1, y) g1 = MatMul(xt, d1) u1 = Mul(g1, rate) w_new = Sub(w1, u1)""",
    {"w": "parameter"},
    "u w1 u1 w_new",
)
AHEAD = Row(
    "a gradient at the point that momentum leads to",
    "float[N, 4] x, float[N, 3] y, float[4, 3] w, float[4, 3] m",
    "float[4, 3] w_new, float[4, 3] m_new",
    """bm = Mul(m, rate) ahead = Add(w, bm) p = MatMul(x, ahead) d = Sub(p, y) xt = Transpose(x) g = MatMul(xt, d)
    u = Mul(g, rate) m_new = Sub(bm, u) w_new = Add(w, m_new)""",
    {"w": "parameter", "m": "moment"},
    "u m_new w_new",
)
TABLES = Row(
    "a factorization: tables alone",
    "int64[N] i, int64[N] j, float[N, 1] y, float[9, 4] u, float[7, 4] v",
    "float[9, 4] u_new, float[7, 4] v_new",
    """a = Gather(u, i) b = Gather(v, j) ab = Mul(a, b) p = ReduceSum <keepdims = 1> (ab, second) d = Sub(p, y)
    da = Mul(d, b) db = Mul(d, a) ic = Unsqueeze(i, second) jc = Unsqueeze(j, second)
    ua = Mul(da, rate) ub = Mul(db, rate) na = Neg(ua) nb = Neg(ub)
    u_new = ScatterND <reduction = "add"> (u, ic, na) v_new = ScatterND <reduction = "add"> (v, jc, nb)""",
    {"u": "parameter", "v": "parameter"},
)
CRITIC = Row(
    "a loss that is linear in the last layer, and weights that are kept small",
    "float[6, 4] x, float[4, 3] w, float[3, 1] v",
    "float[4, 3] w_new, float[3, 1] v_new",
    """h = MatMul(x, w) r = Relu(h) s = MatMul(r, v) d = Expand(one, rows)
    rt = Transpose(r) gv = MatMul(rt, d) vt = Transpose(v) dr = MatMul(d, vt) on = Greater(h, zero)
    dh = Where(on, dr, zero) xt = Transpose(x) gw = MatMul(xt, dh)
    uw = Mul(gw, rate) uv = Mul(gv, rate) w1 = Sub(w, uw) v1 = Sub(v, uv)
    low = Neg(one) w_new = Clip(w1, low, one) v_new = Clip(v1, low, one)""",
    {"w": "parameter", "v": "parameter"},
    constants="float rate = {0.01}, float zero = {0.0}, float one = {1.0}, int64[2] rows = {6, 1}",
)
FILTER = Row(
    "an adaptive filter: a scalar product, and no sum in its gradient",
    "float[8] x, float[1] y, float[8] w",
    "float[8] w_new",
    """xw = Mul(x, w) p = ReduceSum <keepdims = 1> (xw, first) e = Sub(y, p) g = Mul(e, x) u = Mul(g, rate)
    w_new = Add(w, u)""",
    {"w": "parameter"},
    "u w_new",
)
EINSUM = Row(
    "products by Einsum, heads apart",
    "float[N, 4] x, float[N, 2, 3] y, float[2, 3, 4] w",
    "float[2, 3, 4] w_new",
    """p = Einsum <equation = "nd,hkd->nhk"> (x, w) d = Sub(p, y) g = Einsum <equation = "nhk,nd->hkd"> (d, x)
    u = Mul(g, rate) w_new = Sub(w, u)""",
    {"w": "parameter"},
    "u w_new",
)
SCALED = Row(
    "a loss scale of its own",
    "float[N, 4] x, float[N, 3] y, float[4, 3] w, float scale, int64 good",
    "float[4, 3] w_new, float scale_new, int64 good_new",
    """p = MatMul(x, w) e = Sub(p, y) d = Mul(e, scale) xt = Transpose(x) g = MatMul(xt, d) gu = Div(g, scale)
    s = ReduceSum <keepdims = 0> (g) nan = IsNaN(s) inf = IsInf(s) bad = Or(nan, inf)
    u = Mul(gu, rate) w1 = Sub(w, u) w_new = Where(bad, w, w1)
    half = Mul(scale, rate) scale_new = Where(bad, half, scale)
    more = Add(good, unit) good_new = Where(bad, none, more)""",
    {"w": "parameter", "scale": "counter", "good": "counter"},
    constants="float rate = {0.5}, int64 unit = {1}, int64 none = {0}",
)
AVERAGED = Row(
    "an average of the weights beside them",
    "float[N, 4] x, float[N, 3] y, float[4, 3] w, float[4, 3] e",
    "float[4, 3] e_new, float[4, 3] w_new",
    """p = MatMul(x, w) d = Sub(p, y) xt = Transpose(x) g = MatMul(xt, d) u = Mul(g, rate) w_new = Sub(w, u)
    gap = Sub(w_new, e) part = Mul(gap, rate) e_new = Add(e, part)""",
    {"w": "parameter", "e": "moment"},
    "u w_new gap part e_new",
)
NORMALIZED = Row(
    "running statistics, updated by the operator",
    "float[N, 4] x, float[N, 3] y, float[4, 3] w, float[3] s, float[3] b, float[3] m, float[3] v",
    "float[4, 3] w_new, float[3] s_new, float[3] b_new, float[3] m_new, float[3] v_new",
    """h = MatMul(x, w) o, m_new, v_new = BatchNormalization <training_mode = 1> (h, s, b, m, v) d = Sub(o, y)
    mean = ReduceMean(h, first) c = Sub(h, mean) cc = Mul(c, c) var = ReduceMean(cc, first) e = Add(var, rate)
    root = Sqrt(e) n = Div(c, root) dn = Mul(d, n) gs = ReduceSum <keepdims = 0> (dn, first)
    gb = ReduceSum <keepdims = 0> (d, first) ds = Mul(d, s) dm = ReduceMean(ds, first) f = Sub(ds, dm)
    xt = Transpose(x) gw = MatMul(xt, f) uw = Mul(gw, rate) us = Mul(gs, rate) ub = Mul(gb, rate)
    w_new = Sub(w, uw) s_new = Sub(s, us) b_new = Sub(b, ub)""",
    dict.fromkeys("wsb", "parameter") | dict.fromkeys("mv", "statistic"),
    "o uw us ub w_new s_new b_new",
)
GUARDED = Row(
    "an update inside a branch",
    "float[N, 4] x, float[N, 3] y, float[4, 3] w",
    "float[4, 3] w_new",
    """p = MatMul(x, w) d = Sub(p, y) xt = Transpose(x) g = MatMul(xt, d) s = ReduceSum <keepdims = 0> (g)
    bad = IsNaN(s) w_new = If (bad) <
        then_branch = keep () => (float[4, 3] old) { old = Identity(w) },
        else_branch = move () => (float[4, 3] new) { u = Mul(g, rate) new = Sub(w, u) }
    >""",
    {"w": "parameter"},
)
TURNS = Row(
    "a step for each part of the data, in a Scan",
    "float[5, N, 4] x, float[5, N, 3] y, float[4, 3] w",
    "float[4, 3] w_new",
    """w_new = Scan <num_scan_inputs = 2, body = turn (float[4, 3] v, float[N, 4] a, float[N, 3] t) => (float[4, 3] v1)
    {
        p = MatMul(a, v) d = Sub(p, t) at = Transpose(a) g = MatMul(at, d) u = Mul(g, rate) v1 = Sub(v, u)
    }> (w, x, y)""",
    {"w": "parameter"},
)
SUMMED = Row(
    "gradients summed in a Loop, and one update",
    "float[N, 4] x, float[N, 3] y, float[4, 3] w, int64 turns",
    "float[4, 3] w_new",
    """g = Loop <body = turn (int64 i, bool c, float[4, 3] s) => (bool c1, float[4, 3] s1) {
        c1 = Identity(c) p = MatMul(x, w) d = Sub(p, y) at = Transpose(x) h = MatMul(at, d) s1 = Add(s, h)
    }> (turns, go, none) u = Mul(g, rate) w_new = Sub(w, u)""",
    {"w": "parameter"},
    constants="float rate = {0.01}, bool go = {1}, float[4, 3] none = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}",
)
RESIDUAL = Row(
    "a network that adds to its input, which is the target, too",
    "float[6, 4] x, float[4, 4] w, float[4] b",
    "float[6, 4] p, float[4, 4] w_new, float[4] b_new",
    """h = MatMul(x, w) s = Add(h, b) t = Tanh(s) p = Add(x, t) d = Sub(p, x) tt = Mul(t, t) e = Sub(one, tt)
    g = Mul(d, e) xt = Transpose(x) gw = MatMul(xt, g) gb = ReduceSum <keepdims = 0> (g, first)
    uw = Mul(gw, rate) ub = Mul(gb, rate) w_new = Sub(w, uw) b_new = Sub(b, ub)""",
    {"w": "parameter", "b": "parameter"},
    "uw ub w_new b_new",
)
TOKEN = Row(
    "a learned token in front of the others",
    "float[5, 3, 4] x, float[5, 4, 2] y, float[4, 2] w, float[1, 1, 4] token",
    "float[4, 2] w_new, float[1, 1, 4] token_new",
    """t = Expand(token, size) h = Concat <axis = 1> (t, x) p = MatMul(h, w) d = Sub(p, y)
    ht = Transpose <perm = [0, 2, 1]> (h) gws = MatMul(ht, d) gw = ReduceSum <keepdims = 0> (gws, first)
    wt = Transpose(w) dh = MatMul(d, wt) dt, dx = Split <axis = 1> (dh, parts) gt = ReduceSum(dt, first)
    uw = Mul(gw, rate) ut = Mul(gt, rate) w_new = Sub(w, uw) token_new = Sub(token, ut)""",
    {"w": "parameter", "token": "parameter"},
    "uw ut w_new token_new",
    "float rate = {0.01}, int64[1] first = {0}, int64[3] size = {5, 1, 1}, int64[2] parts = {1, 3}",
)
SPARSE = Row(
    "rows of a table are added in place, scaled by a number whose shape is not declared",
    "int64[8, 3] ids, float[8, 1] t, float[20, 5] e, float[5, 1] w",
    "float[20, 5] e_new, float[5, 1] w_new",
    """rows = Gather(e, ids) m = ReduceMean <keepdims = 0> (rows, second) y = MatMul(m, w) d = Sub(y, t)
    mt = Transpose(m) g = MatMul(mt, d) s = Mul(rate, g) w_new = Sub(w, s)
    wt = Transpose(w) dm = MatMul(d, wt) dr = Unsqueeze(dm, second) shape = Shape(rows) drows = Expand(dr, shape)
    last = Constant <value_ints = [2]> () places = Unsqueeze(ids, last) down = Neg(rate) change = Mul(down, drows)
    e_new = ScatterND <reduction = "add"> (e, places, change)""",
    {"e": "parameter", "w": "parameter"},
    "s w_new down change e_new places last",
)

STEPS = [
    SPARSE,
    TOKEN,
    RESIDUAL,
    UNBATCHED,
    TRUNCATED,
    TWICE,
    AHEAD,
    TABLES,
    CRITIC,
    FILTER,
    EINSUM,
    SCALED,
    AVERAGED,
    NORMALIZED,
    GUARDED,
    TURNS,
    SUMMED,
]

LOOKALIKES = [
    Row(
        "a gated recurrence whose weights are inputs",
        "float[3, 2, 3] x, float[2, 3] h, float[3, 3] w, float[3, 3] u",
        "float[2, 3] h_new",
        """x0 = Gather(x, i0) x1 = Gather(x, i1) a0 = MatMul(x0, w) b0 = MatMul(h, u) s0 = Add(a0, b0) z0 = Sigmoid(s0)
        c0 = Mul(z0, h) h1 = Add(c0, a0) a1 = MatMul(x1, w) b1 = MatMul(h1, u) s1 = Add(a1, b1) z1 = Sigmoid(s1)
        c1 = Mul(z1, h1) h_new = Add(c1, a1)""",
        {},
        constants="int64 i0 = {0}, int64 i1 = {1}",
    ),
    Row(
        "messages along the edges of a graph",
        "int64[E] from, int64[E] to, float[9, 4] h",
        "float[9, 4] h_new",
        """a = Gather(h, from) b = Gather(h, to) ab = Sub(a, b) m = Tanh(ab) c = Unsqueeze(to, second)
        h_new = ScatterND <reduction = "add"> (h, c, m)""",
        {},
    ),
    Row(
        "a residual block whose weights are inputs",
        "float[6, 6] x, float[6, 6] w, float[6, 6] v, float[6] b",
        "float[6, 6] x_new",
        "a = MatMul(x, w) ab = Add(a, b) r = Relu(ab) o = MatMul(r, v) x_new = Add(x, o)",
        {},
    ),
    Row(
        "a retention state that decays, and is read by a query",
        "float[4, 4] s, float[3, 4] q, float[3, 4] k, float[3, 4] v, float[1] decay",
        "float[4, 4] s_new, float[3, 4] o",
        "kept = Mul(s, decay) kt = Transpose(k) kv = MatMul(kt, v) s_new = Add(kept, kv) o = MatMul(q, s_new)",
        {},
    ),
    Row(
        "a recurrent network in a Scan",
        "float[5, 2, 3] x, float[2, 3] h, float[3, 3] w, float[3, 3] u",
        "float[2, 3] h_new",
        """h_new = Scan <num_scan_inputs = 1, body = turn (float[2, 3] k, float[2, 3] a) => (float[2, 3] k1) {
            p = MatMul(a, w) q = MatMul(k, u) s = Add(p, q) z = Sigmoid(s) c = Mul(z, k) k1 = Add(c, p)
        }> (h, x)""",
        {},
    ),
    Row(
        "scaling of rows and columns in turn",
        "float[5, 1] u, float[5, 5] k, float[5, 1] a, float[5, 1] b",
        "float[5, 1] u_new",
        "kt = Transpose(k) ku = MatMul(kt, u) v = Div(b, ku) kv = MatMul(k, v) r = Div(a, kv) u_new = Mul(u, r)",
        {},
    ),
]


def prepared(model):
    program = load(model)
    policy = fitted(choose_policy(Request()), program)
    prepare(program, policy, RangeFaults(policy.low, strict=False))
    return program


@pytest.mark.parametrize("row", STEPS, ids=lambda row: row.name)
def test_states_of_unusual_steps(row):
    program = prepared(row.model)
    assert {state.input: state.role for state in program.step.states} == row.roles
    assert all(state.output == f"{state.input}_new" for state in program.step.states)
    if row.optimizer:
        marked = {node.outputs[0].name for node in program.model.graph if role_of(node) == "optimize"}
        assert marked == set(row.optimizer.split())


@pytest.mark.parametrize("row", LOOKALIKES, ids=lambda row: row.name)
def test_what_looks_like_a_step(row):
    assert prepared(row.model).step is None


def test_a_gradient_is_handed_over_once():
    assert prepared(UNBATCHED.model).step.gradients == {"w": ("gw",), "b": ("dz",), "v": ("gv",), "c": ("d",)}
    assert prepared(TRUNCATED.model).step.gradients == {"w": ("gw",), "u": ("gu",), "b": ("gb",)}


def test_outputs_need_no_declared_shape():
    model = EINSUM.model
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert [state.input for state in prepared(model).step.states] == ["w"]


def test_an_update_inside_a_branch_stays_float32():
    report = amp.transpile(GUARDED.model, level="O2", verify=False)
    inside = [row for row in report.decisions if row.scope]
    assert {row.op: row.precision for row in inside} == {"Identity": "high", "Mul": "high", "Sub": "high"}


@pytest.mark.parametrize("row", [TURNS, SUMMED], ids=lambda row: row.name)
def test_an_update_inside_a_loop_stays_float32(row):
    report = amp.transpile(row.model, level="O2")
    precisions = {line.name: line.precision for line in report.decisions}
    assert {precisions[name] for name in precisions if name.startswith("MatMul")} == {"float16"}
    assert {precisions[name] for name in precisions if name.startswith(("Mul_u", "Sub_v1", "Sub_w_new"))} == {"float32"}


def test_a_state_that_is_named_does_not_keep_the_whole_model_float32():
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    step (float[N, 4] x, float[N, 3] y, float[4, 3] w) => (float[4, 3] w_new) <float rate = {0.01}, int64 i = {0}> {
        p = MatMul(x, w) d = Sub(p, y) xt = Transpose(x) c = CumSum(d, i) g = MatMul(xt, c) u = Mul(g, rate)
        h = CumSum(u, i) w_new = Sub(w, h)
    }
    """
    report = amp.transpile(onnx.parser.parse_model(text), level="O2", verify=False, state={"w": "w_new"})
    assert [(state.role, state.reason) for state in report.states] == [("parameter", "named with --state")]
    assert {row.name: row.precision for row in report.decisions}["MatMul_p"] == "low"
    assert {row.name: row.precision for row in report.decisions}["Sub_w_new"] == "high"


def test_initial_values_of_states_stay_inputs_where_the_format_lists_every_initializer():
    text = """
    <ir_version: 3, opset_import: ["" : 12]>
    step (float[2, 4] x, float[2, 3] y, float[4, 3] w, float[3] b) => (float[4, 3] w_new, float[3] o)
    <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, float[3] b = {1, 2, 3}, float[1] rate = {0.01}> {
        p = MatMul(x, w) pb = Add(p, b) d = Sub(pb, y) xt = Transpose(x) g = MatMul(xt, d) u = Mul(g, rate)
        w_new = Sub(w, u) o = ReduceSum <axes = [0], keepdims = 0> (d)
    }
    """
    model = onnx.parser.parse_model(text)
    program = prepared(model)
    assert [state.input for state in program.step.states] == ["w"]
    assert [value.name for value in program.model.graph.inputs] == ["x", "y", "w"]


WITHOUT_STATE = {
    "gradients of inputs go out": ("float[4, 3] w", "float[4, 3] g", ""),
    "gradients of weights go out": ("", "float[4, 3] g", "float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, "),
    "weights inside the model": ("", "float[4, 3] n", "float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, "),
}


@pytest.mark.parametrize("case", WITHOUT_STATE)
def test_gradients_without_a_state_are_warned_of(case):
    weight, output, constant = WITHOUT_STATE[case]
    inputs = ", ".join(filter(None, ["float[N, 4] x", "float[N, 3] y", weight]))
    text = f"""
    <ir_version: 9, opset_import: ["" : 18]> step ({inputs}) => ({output}) <{constant}float rate = {{0.01}}> {{
        p = MatMul(x, w) d = Sub(p, y) xt = Transpose(x) g = MatMul(xt, d) u = Mul(g, rate) n = Sub(w, u)
    }}
    """
    report = amp.transpile(onnx.parser.parse_model(text), verify=False, prefer="size")
    assert report.states == ()
    assert any("--state IN=OUT" in warning for warning in report.warnings)


def test_a_model_without_gradients_is_not_warned_of():
    report = amp.transpile(LOOKALIKES[2].model, verify=False, prefer="size")
    assert report.warnings == ()
