"""Attention in the layouts of torch.nn.MultiheadAttention: length first, samples and heads as one axis, its masks."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.fusion.fuse_attention import FuseAttention
from amp_transpiler.passes.manager import run_pass
from tests.support import array, parse, run

CONSTANTS = {
    "packed": array(8, 24, seed=1, scale=0.5),
    "packed_bias": array(24, seed=2, scale=0.2),
    "wq": array(8, 8, seed=3, scale=0.5),
    "bq": array(8, seed=4, scale=0.2),
    "wkv": array(8, 16, seed=5, scale=0.5),
    "bkv": array(16, seed=6, scale=0.2),
    "wo": array(8, 8, seed=7, scale=0.5),
    "bo": array(8, seed=8, scale=0.2),
    "i0": np.int64(0),
    "i1": np.int64(1),
    "i2": np.int64(2),
    "first": np.array([0]),
    "second": np.array([1]),
    "fourth": np.array([-2]),
    "one": np.array([1]),
    "heads": np.array([2]),
    "size": np.array([4]),
    "three": np.array([0, 0, 3, 8]),
    "pair": np.array([0, 0, 2, 8]),
    "inside": np.array([0, 0, 2, 3, 4]),
    "swapped": np.array([0, 0, 4, 2]),
    "flat": np.array([-1, 8]),
    "out": np.array([0, 0, 8]),
    "copies": np.array([1, 2, 1, 1]),
    "many": np.array([7, 1, 1, 1]),
    "outer": np.array([1, 2]),
    "middle": np.array([1, 3]),
    "last": np.array([2, 3]),
    "root": np.float32(0.5**0.5),
    "half": np.float32(0.5),
    "unit": np.float32(1),
    "zero": np.float32(0),
    "minus": np.float32(-np.inf),
}

SIZES = (
    "n = Shape<start=0, end=1>(x) l = Shape<start=1, end=2>(x) s = Shape<start=1, end=2>(e) nh = Mul(n, heads)"
    " by3 = Concat<axis=0>(l, nh, size) by4 = Concat<axis=0>(n, heads, l, size)"
    " es3 = Concat<axis=0>(s, nh, size) es4 = Concat<axis=0>(n, heads, s, size)"
)
PACKED = "xt = Transpose<perm=[1,0,2]>(x) g0 = MatMul(xt, packed) g = Add(g0, packed_bias)"
PICKED = "g4 = Reshape(g, {}) g5 = Unsqueeze(g4, first) g6 = Transpose<perm=[3,1,2,0,4]>(g5) g7 = Squeeze(g6, fourth)"
SELF = (
    f"{PACKED} {PICKED.format('three')} q3 = Gather<axis=0>(g7, i0) k3 = Gather<axis=0>(g7, i1)"
    " v3 = Gather<axis=0>(g7, i2)"
)
CROSS = (
    "xt = Transpose<perm=[1,0,2]>(x) q0 = MatMul(xt, wq) q3 = Add(q0, bq) et = Transpose<perm=[1,0,2]>(e)"
    f" g0 = MatMul(et, wkv) g = Add(g0, bkv) {PICKED.format('pair')} k3 = Gather<axis=0>(g7, i0)"
    " v3 = Gather<axis=0>(g7, i1)"
)


def as_rows(name, by="by3"):
    return f"{name}2 = Reshape({name}3, {by}) {name}h = Transpose<perm=[1,0,2]>({name}2)"


ROWS = " ".join(as_rows(name) for name in "qkv")
FOUR = f"{ROWS} q = Reshape(qh, by4) ka = Reshape(kh, by4) v = Reshape(vh, by4)"
ROWS_OF_TWO = " ".join([as_rows("q"), as_rows("k", "es3"), as_rows("v", "es3")])
FOUR_OF_TWO = f"{ROWS_OF_TWO} q = Reshape(qh, by4) ka = Reshape(kh, es4) v = Reshape(vh, es4)"

SCORES = (
    "qs = Mul(q, root) kt = Transpose<perm=[0,1,3,2]>(ka) ks = Mul(kt, root) s0 = MatMul(qs, ks) {}"
    " p = Softmax<axis=-1>({}) o4 = MatMul(p, v)"
)
OUT = "ot = Transpose<perm=[2,0,1,3]>(o4) o2 = Reshape(ot, flat) z0 = Gemm<transB=1>(o2, wo, bo)"
FLAT_SCORES = (
    "qs = Mul(qh, half) kt = Transpose<perm=[1,2,0]>(k2) s0 = MatMul(qs, kt) {} p = Softmax<axis=-1>({})"
    " o4 = MatMul(p, vh)"
)
FLAT_OUT = "ot = Transpose<perm=[1,0,2]>(o4) o2 = Reshape(ot, flat) z0 = Gemm<transB=1>(o2, wo, bo)"
END = "back = Concat<axis=0>(l, n, eight) z = Reshape(z0, back) y = Transpose<perm=[1,0,2]>(z)"

CONDITION = "c = Cast<to=9>(m) ms = Shape(c) none = Expand(zero, ms) pad = Where(c, none, minus)"
SPREAD = (
    f"{CONDITION} ml = Shape<start=1, end=2>(m) mb = Concat<axis=0>(n, one, one, ml) m4 = Reshape(pad, mb)"
    " me = Expand(m4, copies)"
)
PADDING = f"{SPREAD} m3s = Concat<axis=0>(nh, one, ml) m3 = Reshape(me, m3s)"
PADDING_4 = f"{PADDING} m4s = Concat<axis=0>(n, heads, one, ml) mask = Reshape(m3, m4s)"
BOTH = f"{PADDING} am = Unsqueeze(a, first) mask3 = Add(am, m3)"
BOTH_4 = f"{BOTH} m4s = Concat<axis=0>(n, heads, l, ml) mask = Reshape(mask3, m4s)"


def with_mask(scores, mask=None):
    return scores.format("", "s0") if mask is None else scores.format(f"s1 = Add(s0, {mask})", "s1")


# name -> body, what it becomes
FORMS = {
    "packed, four axes": (f"{SELF} {FOUR} {with_mask(SCORES)} {OUT} {END}", "Attention"),
    "packed, three axes": (f"{SELF} {ROWS} {with_mask(FLAT_SCORES)} {FLAT_OUT} {END}", "Attention"),
    "four axes, padding": (f"{SELF} {FOUR} {PADDING_4} {with_mask(SCORES, 'mask')} {OUT} {END}", "Attention"),
    "three axes, padding": (f"{SELF} {ROWS} {PADDING} {with_mask(FLAT_SCORES, 'm3')} {FLAT_OUT} {END}", "Attention"),
    "four axes, padding and a summand": (
        f"{SELF} {FOUR} {BOTH_4} {with_mask(SCORES, 'mask')} {OUT} {END}",
        "Attention",
    ),
    "three axes, padding and a summand": (
        f"{SELF} {ROWS} {BOTH} {with_mask(FLAT_SCORES, 'mask3')} {FLAT_OUT} {END}",
        "Attention",
    ),
    "three axes, a summand for all samples": (
        f"{SELF} {ROWS} am = Unsqueeze(a, first) {with_mask(FLAT_SCORES, 'am')} {FLAT_OUT} {END}",
        "Attention",
    ),
    "a mask and scores with their factors": (
        (
            f"{SELF} {ROWS} am = Unsqueeze(a, first) am1 = Mul(am, unit) "
            f"{FLAT_SCORES.format('s2 = Mul(s0, unit) s1 = Add(s2, am1)', 's1')} {FLAT_OUT} {END}"
        ),
        "Attention",
    ),
    "a mask of queries": (
        (
            f"{SELF} {FOUR} {CONDITION} floor = Clip(pad, low) mq = Unsqueeze(floor, middle)"
            f" {with_mask(SCORES, 'mq')} {OUT} {END}"
        ),
        "Attention",
    ),
    "a result that is read as batch first": (
        (
            f"{SELF} {FOUR} {with_mask(SCORES)} ot = Transpose<perm=[0,2,1,3]>(o4) o = Reshape(ot, out)"
            " z0 = MatMul(o, wo) y = Add(z0, bo)"
        ),
        "Attention",
    ),
    "a result that is an output": (
        f"{SELF} {FOUR} {with_mask(SCORES)} ot = Transpose<perm=[0,2,1,3]>(o4) y = Reshape(ot, out)",
        "Attention",
    ),
    "projections that are no constants": (
        (
            "xt = Transpose<perm=[1,0,2]>(x) q3 = Relu(xt) k3 = Tanh(xt) v3 = Sigmoid(xt)"
            f" {FOUR} {PADDING_4} {with_mask(SCORES, 'mask')} {OUT} {END}"
        ),
        "MultiHeadAttention",
    ),
    "cross, four axes": (f"{CROSS} {FOUR_OF_TWO} {with_mask(SCORES)} {OUT} {END}", "MultiHeadAttention"),
    "cross, three axes": (
        f"{CROSS} {ROWS_OF_TWO} {with_mask(FLAT_SCORES)} {FLAT_OUT} {END}",
        "MultiHeadAttention",
    ),
    "cross, a summand": (
        (
            f"{CROSS} {ROWS_OF_TWO} es = Transpose<perm=[0,2,1]>(e) ae = MatMul(x, es)"
            f" wide_e = Gather(ae, first) {with_mask(FLAT_SCORES, 'wide_e')} {FLAT_OUT} {END}"
        ),
        "MultiHeadAttention",
    ),
}

SWAPPED = "w5 = Reshape(xt, swapped) q = Transpose<perm=[1,3,0,2]>(w5)"
IN_HEADS = f"{FOUR} ".replace("q =", "q1 =").replace("ka =", "k1 =").replace("v =", "v1 =") + (
    "q = Tanh(q1) ka = Tanh(k1) v = Relu(v1)"
)
JOINED = (
    f"{FOUR_OF_TWO} ".replace("ka =", "kn =").replace("v =", "vn =") + "ke = Gather<axis=2>(kn, first)"
    " ve = Gather<axis=2>(vn, first) ka = Concat<axis=2>(ke, kn) v = Concat<axis=2>(ve, vn)"
)
FORMS |= {
    "sizes outside heads": (
        f"{SELF} {FOUR.replace('q = Reshape(qh, by4)', '')} {SWAPPED} {with_mask(SCORES)} {OUT} {END}",
        "MultiHeadAttention",
    ),
    "queries, keys and values computed with an axis of heads": (
        f"{SELF} {IN_HEADS} {PADDING_4} {with_mask(SCORES, 'mask')} {OUT} {END}",
        "MultiHeadAttention",
    ),
    "keys and values joined to earlier ones": (
        f"{CROSS} {JOINED} {with_mask(SCORES)} {OUT} {END}",
        "MultiHeadAttention",
    ),
    "keys computed as they are multiplied": (
        f"{SELF} {FOUR} {with_mask(SCORES.replace('Mul(kt, root)', 'Tanh(kt)'))} {OUT} {END}",
        "MultiHeadAttention",
    ),
    "a mask of samples and heads as one axis": (
        f"{SELF} {ROWS} am = Expand(a, wide) {with_mask(FLAT_SCORES, 'am')} {FLAT_OUT} {END}",
        "MultiHeadAttention",
    ),
    "one head that is never split": (
        (
            "q0 = MatMul(x, wq) et = Transpose<perm=[0,2,1]>(x) s0 = MatMul(q0, et) c = Cast<to=9>(m)"
            " c3 = Unsqueeze(c, second) s1 = Where(c3, s0, low) p = Softmax<axis=-1>(s1) o = MatMul(p, x)"
            " y = MatMul(o, wo)"
        ),
        "MultiHeadAttention",
    ),
    "a Dropout outside training": (
        f"{SELF} {ROWS} {with_mask(FLAT_SCORES).replace('p =', 'p1 =')} {FLAT_OUT} {END}".replace(
            "o4 = ", "p = Dropout(p1, half, no) o4 = "
        ),
        "Attention",
    ),
}

INSIDE = (
    f"{PACKED} g5 = Reshape(g, inside) g6 = Transpose<perm=[3,1,0,2,4]>(g5) q = Gather<axis=0>(g6, i0)"
    " ka = Gather<axis=0>(g6, i1) v = Gather<axis=0>(g6, i2)"
)

# what looks like it, and is not, or cannot be proved to be
OTHERS = {
    "parts inside heads": f"{INSIDE} {with_mask(SCORES)} {OUT} {END}",
    "heads outside rows in the result": (
        f"{SELF} {FOUR} {with_mask(SCORES)} ot = Transpose<perm=[1,0,2,3]>(o4) o2 = Reshape(ot, flat)"
        f" z0 = Gemm<transB=1>(o2, wo, bo) {END}"
    ),
    "samples take the place of rows": (
        f"{SELF} {FOUR.replace('q = Reshape(qh, by4)', 'qa = Reshape(q3, turned4) q = Transpose<perm=[0,2,1,3]>(qa)')}"
        f" {with_mask(SCORES)} {OUT} {END}"
    ),
    "weights that are read": (
        f"{SELF} {ROWS} {with_mask(FLAT_SCORES)} {FLAT_OUT} {END.replace('y = ', 'y1 = ')}"
        " seen = ReduceSum(p) y = Add(y1, seen)"
    ),
    "scores that are read": (
        f"{SELF} {ROWS} am = Unsqueeze(a, first) {with_mask(FLAT_SCORES, 'am')} {FLAT_OUT}"
        f" {END.replace('y = ', 'y1 = ')} seen = ReduceSum(s0) y = Add(y1, seen)"
    ),
    "a result that is read before it is whole": (
        f"{SELF} {FOUR} {with_mask(SCORES)} {OUT} {END.replace('y = ', 'y1 = ')} seen = ReduceSum(o4) y = Add(y1, seen)"
    ),
    "values with a factor": (
        f"{SELF} {FOUR.replace('v = Reshape', 'vr = Reshape')} v = Mul(vr, half) {with_mask(SCORES)} {OUT} {END}"
    ),
    "softmax over queries": (f"{SELF} {ROWS} {with_mask(FLAT_SCORES).replace('axis=-1', 'axis=1')} {FLAT_OUT} {END}"),
    "values of other sizes than keys, with heads of their own": (
        f"{SELF} {FOUR.replace('v = Reshape', 'v1 = Reshape')} vt = Tanh(v1) v = Concat<axis=3>(vt, v1)"
        f" {with_mask(SCORES)} {OUT.replace('(o4)', '(o5)')} {END}".replace(
            "(p, v)", "(p, v) o6, o7 = Split<axis=3, num_outputs=2>(o4) o5 = Add(o6, o7)"
        )
    ),
    "a Dropout whose mask is read": (
        f"{SELF} {ROWS} {with_mask(FLAT_SCORES).replace('p =', 'p1 =')} {FLAT_OUT} {END.replace('y = ', 'y1 = ')}"
        " seen = Cast<to=1>(pm) total = ReduceSum(seen) y = Add(y1, total)"
    ).replace("o4 = ", "p, pm = Dropout(p1) o4 = "),
    "a Dropout that may be of training": (
        f"{SELF} {ROWS} {with_mask(FLAT_SCORES).replace('p =', 'p1 =')} {FLAT_OUT} {END}".replace(
            "o4 = ", "tr = Cast<to=9>(zero) tr1 = Not(tr) none = Not(tr1) p = Dropout(p1, half, none) o4 = "
        )
    ),
}


def model(body):
    body = f"{SIZES} wide = Concat<axis=0>(nh, l, l) turned4 = Concat<axis=0>(l, n, heads, size) {body}"
    constants = {**CONSTANTS, "eight": np.array([8]), "low": np.float32(-1e4), "no": np.array(False)}
    header = "(float[b,l,8] x, float[b,l] m, float[l,l] a, float[b,s,8] e) => (float[b,l,8] y)"
    return parse(f"{header} {{ {body} }}", **constants)


def feeds(batch=2, length=5):
    random = np.random.default_rng(5)
    mask = np.ones((batch, length), np.float32)
    mask[0, :2], mask[1, 3] = 0, 0
    shapes = {"x": (batch, length, 8), "a": (length, length), "e": (batch, 7, 8)}
    return {"m": mask, **{name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}}


def fused(proto):
    program = plain_copy(amp.load(proto))
    result = run_pass(FuseAttention(), program.model)
    return program, result, [node.op_type for node in program.model.graph if node.domain == "com.microsoft"]


@pytest.mark.parametrize("form", FORMS)
def test_a_layout_is_one_operator_that_computes_the_same(form):
    body, operator = FORMS[form]
    proto = model(body)
    program, result, operators = fused(proto)
    assert (result.count, operators) == (1, [operator])
    for values in (feeds(), feeds(3, 4)):
        expected, computed = run(proto, values)["y"], run(program, values)["y"]
        assert np.isfinite(expected).all()
        assert np.linalg.norm(expected - computed) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("form", OTHERS)
def test_another_layout_stays(form):
    proto = model(OTHERS[form])
    assert np.isfinite(run(proto, feeds(5, 5))["y"]).all()
    _, result, operators = fused(proto)
    assert (result.count, operators, result.modified) == (0, [], False)


# shapes of a query of two axes -> how it becomes [batch, heads, rows, size]; the memory is [batch, 6, 8]
FLAT_QUERIES = {
    "one sample": (5, "[5,2,4]", "[1,0,2]", 1),
    "samples first": (6, "[2,3,2,4]", "[0,2,1,3]", 2),
    "rows first": (6, "[3,2,2,4]", "[1,2,0,3]", 2),
}


@pytest.mark.parametrize("name", FLAT_QUERIES)
def test_queries_with_samples_and_rows_in_one_axis(name):
    count, split, order, batch = FLAT_QUERIES[name]
    rows = count // batch
    body = f"""(float[{count},8] x, float[{batch},6,8] e) => (float[{batch},{rows},8] y) {{
        qg = Gemm(x, wq, bq) split = Constant<value_ints={split}>() q4 = Reshape(qg, split)
        qt = Transpose<perm={order}>(q4) four = Constant<value_ints=[{batch},2,{rows},4]>() q = Reshape(qt, four)
        eh = Constant<value_ints=[0,0,2,4]>() e4 = Reshape(e, eh) v = Transpose<perm=[0,2,1,3]>(e4)
        k = Transpose<perm=[0,2,3,1]>(e4) s0 = MatMul(q, k) s = Mul(s0, half) p = Softmax<axis=-1>(s)
        o4 = MatMul(p, v) ot = Transpose<perm=[0,2,1,3]>(o4) o = Reshape(ot, out) y = MatMul(o, wo) }}"""
    proto = parse(body, **{name: CONSTANTS[name] for name in ("wq", "bq", "half", "out", "wo")})
    program, _, operators = fused(proto)
    assert operators == ["MultiHeadAttention"]
    values = {"x": array(count, 8, seed=3), "e": array(batch, 6, 8, seed=4)}
    np.testing.assert_allclose(run(program, values)["y"], run(proto, values)["y"], rtol=1e-5, atol=1e-5)


def test_queries_whose_rows_are_no_axis_of_their_own_stay():
    body = """(float[6,8] x, float[2,6,8] e) => (float[2,3,8] y) {
        split = Constant<value_ints=[3,2,2,4]>() q4 = Reshape(x, split) qt = Transpose<perm=[1,2,0,3]>(q4)
        four = Constant<value_ints=[2,2,3,4]>() q = Reshape(qt, four) back = Constant<value_ints=[2,3,8]>()
        eh = Constant<value_ints=[0,0,2,4]>() e4 = Reshape(e, eh) v = Transpose<perm=[0,2,1,3]>(e4)
        k = Transpose<perm=[0,2,3,1]>(e4) s = MatMul(q, k) p = Softmax<axis=-1>(s) o4 = MatMul(p, v)
        ot = Transpose<perm=[0,1,2,3]>(o4) y = Reshape(ot, back) }"""
    assert fused(parse(body))[2] == []


# What stands before a product of attention need not be any of the forms: nodes of old opsets, or with fewer inputs.
UNLIKE = {
    "a constant": "q = Constant <value = float[1,2,3,4] {" + ", ".join(["1.0"] * 24) + "}> ()",
    "a slice of all axes": "starts = Constant <value_ints = [0]> () q = Slice (x, starts, starts)",
    "a random value": "q = RandomNormal <shape = [1,2,3,4]> ()",
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_looks_like_no_form_is_no_error(name):
    program = parse(
        f"""(float[1,2,3,4] x, float[1,2,4,3] k, float[1,2,3,4] v) => (float[1,2,3,4] y) {{
            {UNLIKE[name]} s = MatMul (q, k) p = Softmax <axis = -1> (s) y = MatMul (p, v) }}"""
    )
    assert run_pass(FuseAttention(), plain_copy(amp.load(program)).model).count == 0
