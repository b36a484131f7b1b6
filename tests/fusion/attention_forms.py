"""Attention in the forms of today's exporters, as ONNX text: two heads of four, and what may be around them."""

import collections

import numpy as np

from tests.support import array, parse

LOWEST = float(np.finfo(np.float32).min)

WEIGHTS = {
    **{f"w{name}": array(8, 8, seed=index, scale=0.5) for index, name in enumerate("qkvo")},
    **{f"b{name}": array(8, seed=index + 9, scale=0.2) for index, name in enumerate("qkvo")},
    "packed": np.concatenate([array(8, 8, seed=index, scale=0.5) for index in range(3)], axis=1),
    "packed_bias": np.concatenate([array(8, seed=index + 9, scale=0.2) for index in range(3)]),
    "heads": np.array([0, 0, 2, 4]),
    "whole": np.array([0, 0, 8]),
    "flat": np.array([-1, 8]),
    "minus": np.float32(-np.inf),
    "lowest": np.float32(LOWEST),
    "zero": np.float32(0),
    "five": np.array([0, 0, 3, 2, 4]),
    "half": np.float32(0.5),
    "two": np.float32(2),
    "root": np.float32(0.5**0.5),
    "no": np.int64(0),
    "ones": np.array([1, 2]),
    "first": np.array([0]),
    "eight": np.array([8]),
    "last": np.array([-1]),
    "one": np.array([1]),
    "sixteen": np.array([16]),
    "end": np.array([24]),
    "third": np.array([2]),
    "step": np.int64(1),
    "unit": np.float32(1),
}


def projected(name, source="x"):
    return f"{name}m = MatMul({source}, w{name}) {name}a = Add({name}m, b{name})"


def heads(name, order="0,2,1,3", source=None, shape="heads", to=None):
    source, to = source or f"{name}a", to or name
    return f"{to}4 = Reshape({source}, {shape}) {to} = Transpose<perm=[{order}]>({to}4)"


SEPARATE = " ".join([projected("q"), projected("k"), projected("v")])
TURNED = " ".join([heads("q"), heads("k", "0,2,3,1"), heads("v")])
CONDITION = "c0 = Cast<to=9>(m) c = Unsqueeze(c0, ones)"
ALLOWED = f"{CONDITION} mask = Where(c, zero, lowest)"
SCORES = "s0 = MatMul(q, k) s1 = Div(s0, two) s = Add(s1, mask)"
MIX = "p = Softmax<axis=-1>(s) o4 = MatMul(p, v) ot = Transpose<perm=[0,2,1,3]>(o4) o = Reshape(ot, whole)"
OUT = "y = MatMul(o, wo)"

GUARDED = (
    "p0 = Softmax<axis=-1>(s) bad = IsNaN(p0) p = Where(bad, zero, p0) o4 = MatMul(p, v)"
    " ot = Transpose<perm=[0,2,1,3]>(o4) o = Reshape(ot, whole)"
)
# torch decomposes scaled_dot_product_attention so: whether a row has a score that counts is asked of the scores.
BY_SCORES = GUARDED.replace(
    "bad = IsNaN(p0)",
    "none = Equal(s, minus) some = Not(none) some7 = Cast<to=7>(some) most = ReduceMax<keepdims=1>(some7, last)"
    " any = Cast<to=9>(most) bad = Not(any)",
)
BY_ALL = GUARDED.replace(
    "bad = IsNaN(p0)",
    "none = Equal(minus, s) none7 = Cast<to=7>(none) least = ReduceMin<keepdims=1>(none7, last)"
    " bad = Cast<to=9>(least)",
)
BOTH_SCALED = "qs = Mul(q, root) ks = Mul(root, k) s0 = MatMul(qs, ks) s = Add(s0, mask)"
SIZES = (
    "xs = Shape(x) n0 = Gather(xs, no) n = Unsqueeze(n0, first) l0 = Gather(xs, step) l = Unsqueeze(l0, first)"
    " four = Constant<value_ints=[4]>() by = Concat<axis=0>(n, l, last, four) wholly = Concat<axis=0>(n, l, eight)"
)
FLAT_KEYS = (
    f"{heads('k', to='kh')} ksh = Shape(kh) kl = Slice(ksh, third, three) kd = Slice(ksh, three, fourth)"
    " kb = Slice(ksh, first, third) kf = Concat<axis=0>(last, kl, kd) k3 = Reshape(kh, kf)"
    " kt = Transpose<perm=[0,2,1]>(k3) kback = Concat<axis=0>(kb, kd, kl) k = Reshape(kt, kback)"
)
CAUSAL = (
    "xs = Shape(x) l0 = Gather(xs, step) places = Range(no, l0, step) row = Unsqueeze(places, first)"
    " column = Unsqueeze(places, one) below = LessOrEqual(row, column) c0 = Cast<to=9>(m) c1 = Unsqueeze(c0, ones)"
    " c = And(c1, below) mask = Where(c, zero, lowest)"
)
GEMM = (
    "x2 = Reshape(x, flat) g = Gemm(x2, packed, packed_bias) xs3 = Shape<start=0, end=2>(x)"
    " gs = Concat<axis=0>(xs3, end) g3 = Reshape(g, gs) qa, ka, va = Split<axis=2, num_outputs=3>(g3)"
)
SLICES = (
    "g0 = MatMul(x, packed) g = Add(packed_bias, g0) qa = Slice(g, first, eight, last)"
    " ka = Slice(g, eight, sixteen, last) va = Slice(g, sixteen, end, last)"
)
THREE = (
    "g0 = MatMul(x, packed) g1 = Add(g0, packed_bias) g = Identity(g1) g5 = Reshape(g, five)"
    " g6 = Transpose<perm=[2,0,3,1,4]>(g5)"
)
DROPPED = MIX.replace("(s) ", "(s) pc = Cast<to=1>(p) pi = Identity(pc) ").replace("(p, v)", "(pi, v)")
KEYS_TURNED = "kt = Identity(kh) k = Transpose<perm=[0,1,3,2]>(kt)"
UNLIKE_HEADS = np.array([0, 0, 1, 8])

# name -> body, what it becomes, whether a row without any score that counts gives 0
FORMS = {
    "eager": (f"{ALLOWED} {SEPARATE} {TURNED} {SCORES} {MIX} {OUT}", "Attention"),
    "without a mask": (f"{SEPARATE} {TURNED} s = MatMul(q, k) {MIX} {OUT}", "Attention"),
    "a mask that counts everything": (
        f"every = Expand(truth, ones4) mask = Where(every, zero, minus) {SEPARATE} {TURNED} {SCORES} {GUARDED} {OUT}",
        "Attention",
    ),
    "scaled dot product": (
        f"{CONDITION} mask = Where(c, zero, minus) {SEPARATE} {TURNED} {BOTH_SCALED} {GUARDED} {OUT}",
        "Attention",
    ),
    "rows asked by their scores": (
        f"{CONDITION} mask = Where(c, zero, minus) {SEPARATE} {TURNED} {BOTH_SCALED} {BY_SCORES} {OUT}",
        "Attention",
    ),
    "rows asked by their scores, zeros by a shape": (
        (
            f"{CONDITION} mask = Where(c, zero, minus) {SEPARATE} {TURNED} {BOTH_SCALED} "
            f"zeros = ConstantOfShape(ones4) {BY_SCORES.replace('Where(bad, zero', 'Where(bad, zeros')} {OUT}"
        ),
        "Attention",
    ),
    "rows asked whether all scores are minus infinity": (
        f"{CONDITION} mask = Where(c, zero, minus) {SEPARATE} {TURNED} {BOTH_SCALED} {BY_ALL} {OUT}",
        "Attention",
    ),
    "rows asked by their scores, without a mask": (
        f"{SEPARATE} {TURNED} s = MatMul(q, k) {BY_SCORES} {OUT}",
        "Attention",
    ),
    "guarded, with a finite mask": (f"{ALLOWED} {SEPARATE} {TURNED} {BOTH_SCALED} {GUARDED} {OUT}", "Attention"),
    "keys turned in three dimensions": (
        f"{ALLOWED} {SEPARATE} {heads('q')} {FLAT_KEYS} {heads('v')} {SCORES} {MIX} {OUT}",
        "Attention",
    ),
    "keys turned twice": (
        (
            f"{ALLOWED} {SEPARATE} {heads('q')} {heads('k', to='kh')} k = Transpose<perm=[0,1,3,2]>(kh) {heads('v')}"
            f" {SCORES} {MIX} {OUT}"
        ),
        "Attention",
    ),
    "sizes worked out by operators": (
        (
            f"{SIZES} {ALLOWED} {SEPARATE} {heads('q', shape='by')} {heads('k', '0,2,3,1', shape='by')}"
            f" {heads('v', shape='by')} {SCORES} {MIX.replace('whole', 'wholly')} {OUT}"
        ),
        "Attention",
    ),
    "the mask chooses scores": (
        f"{CONDITION} {SEPARATE} {TURNED} s0 = MatMul(q, k) s = Where(c, s0, lowest) {MIX} {OUT}",
        "MultiHeadAttention",  # so that the query of a row that is all padding can become 0
    ),
    "causal, one product in two dimensions": (f"{CAUSAL} {GEMM} {TURNED} {SCORES} {MIX} {OUT}", "Attention"),
    "slices of one product": (f"{ALLOWED} {SLICES} {TURNED} {SCORES} {MIX} {OUT}", "Attention"),
    "three in five dimensions, gathered": (
        (
            f"{ALLOWED} {THREE} i1 = Cast<to=7>(step) i2 = Add(step, step) q = Gather<axis=0>(g6, no)"
            f" kh = Gather<axis=0>(g6, i1) {KEYS_TURNED} v = Gather<axis=0>(g6, i2) {SCORES} {MIX} {OUT}"
        ),
        "Attention",
    ),
    "three in five dimensions, sliced": (
        (
            f"{ALLOWED} {THREE} q0 = Slice(g6, first, one, first) k0 = Slice(g6, one, third, first)"
            " v0 = Slice(g6, third, three, first) q = Squeeze(q0, first) kh = Squeeze(k0, first)"
            f" v = Squeeze(v0, first) {KEYS_TURNED} {SCORES} {MIX} {OUT}"
        ),
        "Attention",
    ),
    "three in five dimensions, split": (
        (
            f"{ALLOWED} {THREE} q0, k0, v0 = Split<axis=0, num_outputs=3>(g6) q = Squeeze(q0, first)"
            f" kh = Squeeze(k0, first) v = Squeeze(v0, first) {KEYS_TURNED} {SCORES} {MIX} {OUT}"
        ),
        "Attention",
    ),
    "three in another order": (
        (
            f"{ALLOWED} {THREE} k0, q0, v0 = Split<axis=0, num_outputs=3>(g6) q = Squeeze(q0, first)"
            f" kh = Squeeze(k0, first) v = Squeeze(v0, first) {KEYS_TURNED} {SCORES} {MIX} {OUT}"
        ),
        "Attention",
    ),
    "nodes that change nothing": (
        (
            f"{ALLOWED} {SEPARATE} {heads('q', to='qh')} q1 = Identity(qh) q = Add(q1, zero)"
            f" {heads('k', '0,2,3,1')} {heads('v')} s0 = MatMul(q, k) s1 = Div(s0, two) s2 = Cast<to=1>(s1)"
            f" s = Add(s2, mask) {DROPPED} {OUT}"
        ),
        "Attention",
    ),
    "a bias beside the mask": (
        (
            f"{ALLOWED} {SEPARATE} {TURNED} s0 = MatMul(q, k) places = Unsqueeze(m, ones) bias = Mul(places, half)"
            f" s1 = Add(bias, s0) s = Add(s1, mask) {MIX} {OUT}"
        ),
        "Attention",
    ),
    "an output in two dimensions": (
        f"{ALLOWED} {SEPARATE} {TURNED} {SCORES} {MIX.replace('whole', 'flat')} {OUT}",
        "Attention",
    ),
    "keys of another value": (
        (
            f"{ALLOWED} h = Relu(x) {projected('q')} {projected('k', 'h')} {projected('v', 'h')} {TURNED} {SCORES}"
            f" {MIX} {OUT}"
        ),
        "MultiHeadAttention",
    ),
    "projections that are no constants": (
        f"{ALLOWED} qa = Relu(x) ka = Tanh(x) va = Sigmoid(x) {TURNED} {SCORES} {MIX} {OUT}",
        "MultiHeadAttention",
    ),
}

ONE = f"{heads('q')} {heads('k')} {heads('v')} o4 = Attention<{{}}>(q, k, v{{}})"
ONE = f"{ONE} ot = Transpose<perm=[0,2,1,3]>(o4) o = Reshape(ot, whole)"

# The same of ONNX's own operator, since opset 23.
NEWER = {
    "one operator, truths": (f"{CAUSAL} {SEPARATE} {ONE.format('scale=0.5', ', c')} {OUT}", "Attention"),
    "one operator, a summand": (f"{CAUSAL} {SEPARATE} {ONE.format('is_causal=0', ', mask')} {OUT}", "Attention"),
    "one operator, causal": (f"{SEPARATE} {ONE.format('is_causal=1', '')} {OUT}", "Attention"),
}

# What looks like attention and is not, or not one that the operators compute.
OTHERS = {
    "softmax over queries": (
        f"{ALLOWED} {SEPARATE} {TURNED} {SCORES} {MIX.replace('axis=-1', 'axis=2')} {OUT}",
        {},
    ),
    "rows of which one score is minus infinity": (
        (
            f"{CONDITION} mask = Where(c, zero, minus) {SEPARATE} {TURNED} {BOTH_SCALED}"
            f" {BY_ALL.replace('ReduceMin', 'ReduceMax')} {OUT}"
        ),
        {},
    ),
    "rows asked along the queries": (
        (
            f"{CONDITION} mask = Where(c, zero, minus) {SEPARATE} {TURNED} {BOTH_SCALED}"
            f" {BY_SCORES.replace('(some7, last)', '(some7, third)')} {OUT}"
        ),
        {},
    ),
    "a truth of the rows that others read": (
        (
            f"{CONDITION} mask = Where(c, zero, minus) {SEPARATE} {TURNED} {BOTH_SCALED} {BY_SCORES} y0 = MatMul(o, wo)"
            " found = Cast<to=1>(any) found1 = ReduceSum(found) y = Add(y0, found1)"
        ),
        {},
    ),
    "weights that are an output": (
        f"{ALLOWED} {SEPARATE} {TURNED} {SCORES} {MIX} y0 = MatMul(o, wo) pm = ReduceSum(p) y = Add(y0, pm)",
        {},
    ),
    "heads that mix rows": (f"{ALLOWED} {SEPARATE} {TURNED} {SCORES} {MIX} {OUT}", {"heads": np.array([1, -1, 2, 4])}),
    "values in other heads": (
        f"{ALLOWED} {SEPARATE} {heads('q')} {heads('k', '0,2,3,1')} {heads('v', shape='unlike')} {SCORES} {MIX} {OUT}",
        {"unlike": UNLIKE_HEADS},
    ),
    "an operator that caps scores": (
        f"{SEPARATE} {ONE.format('softcap=2.0', '')} {OUT}",
        {"opset": 23},
    ),
    "a factor behind the mask": (
        f"{ALLOWED} {SEPARATE} {TURNED} {SCORES.replace(' s = Add', ' s2 = Add')} s = Mul(s2, half) {MIX} {OUT}",
        {},
    ),
}


def model(body, opset=18, header="", **weights):
    """Return the model of a body, with the constants that it reads."""
    known = {**WEIGHTS, "three": np.array([3]), "fourth": np.array([4]), "truth": np.array(True), **weights}
    known["ones4"] = np.array([1, 1, 1, 1])
    read = {
        name: value for name, value in known.items() if any(sign + name + end in body for sign in "( " for end in ",)")
    }
    result = "float[b,l,8] y" if "flat)" not in body or "x2" in body else "float[t,8] y"
    return parse(f"{header or f'(float[b,l,8] x, float[b,l] m) => ({result})'} {{ {body} }}", opset=opset, **read)


def feeds(batch=2, length=5):
    """Return inputs whose masks have padding on the left, on the right and in the middle, and one row of none."""
    random = np.random.default_rng(3)
    mask = np.ones((batch, length), np.float32)
    mask[0, :2] = 0
    mask[1:, 3] = 0
    return {"x": random.normal(size=(batch, length, 8)).astype(np.float32), "m": mask}


def counted(program):
    """Return how many nodes of each type a program has."""
    return collections.Counter(node.op_type for node in program.model.graph)


def distance(expected, computed):
    """Return the relative error of the norm."""
    return np.linalg.norm(expected - computed) / np.linalg.norm(expected)
