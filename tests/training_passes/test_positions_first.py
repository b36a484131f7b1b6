"""Rows of a step in the order of positions, so that attention's products read them as they lie."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.builder import shape_of
from amp_transpiler.passes.manager import PassManager, run_pass
from amp_transpiler.training_passes import FuseProducts, PositionsFirst
from amp_transpiler.training_passes.row_order import Rows, keeps_order
from tests.support import array
from tests.training_passes.training_step import step

ROWS = Rows(samples=2, positions=3)

# name: (inputs, outputs, constants, node, whether it keeps the order of rows)
NODES = {
    "elementwise": ("float[6,4] x, float[6,4] y", "float[6,4] z", "", "z = Add (x, y)", True),
    "a vector for all rows": ("float[6,4] x, float[4] y", "float[6,4] z", "", "z = Mul (x, y)", True),
    "a number a row": ("float[2,3,4] x, float[2,3,1] y", "float[2,3,4] z", "", "z = Sub (x, y)", True),
    "a row for each position": ("float[2,3,4] x, float[3,4] y", "float[2,3,4] z", "", "z = Add (x, y)", False),
    "a row for each sample": ("float[2,3,4] x, float[2,1,4] y", "float[2,3,4] z", "", "z = Add (x, y)", False),
    "columns": ("float[4,6] x, float[1,6] y", "float[4,6] z", "", "z = Mul (x, y)", True),
    "rows by columns": ("float[6,1] x, float[1,6] y", "float[6,6] z", "", "z = Mul (x, y)", False),
    "softmax": ("float[2,3,4] x", "float[2,3,4] z", "", "z = Softmax (x)", True),
    "softmax over positions": ("float[2,3,4] x", "float[2,3,4] z", "", "z = Softmax <axis = 1> (x)", False),
    "layer norm": ("float[6,4] x, float[4] s", "float[6,4] z", "", "z = LayerNormalization (x, s)", True),
    "layer norm over positions": (
        "float[2,3,4] x, float[3,4] s",
        "float[2,3,4] z",
        "",
        "z = LayerNormalization <axis = 1> (x, s)",
        False,
    ),
    "ones beside rows": (
        "float[6,2] x",
        "float[6,3] z",
        "float[6,1] c = {1,1,1,1,1,1}",
        "z = Concat <axis=1> (x, c)",
        True,
    ),
    "a constant vector of all rows": ("float[6] x", "float[6] z", "float[6] c = {1,1,1,1,1,1}", "z = Mul (x, c)", True),
    "numbers beside rows": ("float[6,2] x, float[6,1] y", "float[6,3] z", "", "z = Concat <axis = 1> (y, x)", True),
    "rows behind rows": ("float[3,2] x, float[3,2] y", "float[6,2] z", "", "z = Concat <axis = 0> (x, y)", False),
    "look-up": ("float[9,4] t, int64[2,3] i", "float[2,3,4] z", "", "z = Gather (t, i)", True),
    "look-up of columns": ("float[4,9] t, int64[2,3] i", "float[4,2,3] z", "", "z = Gather <axis = 1> (t, i)", False),
    "an element of each row": (
        "float[6,4] x, int64[6,1] i",
        "float[6,1] z",
        "",
        "z = GatherElements <axis=1> (x, i)",
        True,
    ),
    "written to each row": (
        "float[6,4] x, int64[6,1] i, float[6,1] u",
        "float[6,4] z",
        "",
        "z = ScatterElements <axis = 1> (x, i, u)",
        True,
    ),
    "added to a table": (
        "float[9,4] t, int64[2,3,1] i, float[2,3,4] u",
        "float[9,4] z",
        "",
        'z = ScatterND <reduction = "add"> (t, i, u)',
        True,
    ),
    "the last one written stays": (
        "float[9,4] t, int64[2,3,1] i, float[2,3,4] u",
        "float[9,4] z",
        "",
        "z = ScatterND (t, i, u)",
        False,
    ),
    "linear": ("float[6,4] x, float[4,5] w", "float[6,5] z", "", "z = MatMul (x, w)", True),
    "linear of samples": ("float[2,3,4] x, float[4,5] w", "float[2,3,5] z", "", "z = MatMul (x, w)", True),
    "gradient of a weight": ("float[4,6] x, float[6,5] g", "float[4,5] z", "", "z = MatMul (x, g)", True),
    "gradient by Gemm": ("float[6,4] x, float[6,5] g", "float[4,5] z", "", "z = Gemm <transA = 1> (x, g)", True),
    "sum of rows": ("float[6,5] g", "float[1,5] z", "float[1,6] c = {1,1,1,1,1,1}", "z = MatMul (c, g)", True),
    "weighted sum": ("float[6,5] g, float[1,6] f", "float[1,5] z", "", "z = MatMul (f, g)", True),
    "dots": ("float[2,3,4,1,5] x, float[2,3,4,5,1] y", "float[2,3,4,1,1] z", "", "z = MatMul (x, y)", True),
    "products of samples": ("float[2,3,4] x, float[2,4,3] y", "float[2,3,3] z", "", "z = MatMul (x, y)", False),
    "sum over features": ("float[2,3,4] x", "float[2,3,1] z", "int64[1] a = {2}", "z = ReduceSum (x, a)", True),
    "sum over all rows": (
        "float[2,3,4] x",
        "float[4] z",
        "int64[2] a = {0, 1}",
        "z = ReduceSum <keepdims=0> (x, a)",
        True,
    ),
    "sum over samples": (
        "float[2,3,4] x",
        "float[3,4] z",
        "int64[1] a = {0}",
        "z = ReduceSum <keepdims = 0> (x, a)",
        False,
    ),
    "features of all rows": (
        "float[6,4] x",
        "float[6,2] z",
        "int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {1}",
        "z = Slice (x, s, e, a)",
        True,
    ),
    "the first row": (
        "float[6,4] x",
        "float[1,4] z",
        "int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {0}",
        "z = Slice (x, s, e, a)",
        True,
    ),
    "the second row": (
        "float[6,4] x",
        "float[1,4] z",
        "int64[1] s = {1}, int64[1] e = {2}, int64[1] a = {0}",
        "z = Slice (x, s, e, a)",
        False,
    ),
    "rows to a matrix": ("float[2,3,2,2] x", "float[6,4] z", "int64[2] s = {6, 4}", "z = Reshape (x, s)", True),
    "rows to columns": ("float[6,1] x", "float[1,6] z", "int64[2] s = {1, 6}", "z = Reshape (x, s)", True),
    "rows cut up": ("float[6,4] x", "float[4,6] z", "int64[2] s = {4, 6}", "z = Reshape (x, s)", False),
    "one axis more": ("float[6] x", "float[6,1] z", "int64[1] a = {1}", "z = Unsqueeze (x, a)", True),
    "turned": ("float[6,4] x", "float[4,6] z", "", "z = Transpose <perm = [1, 0]> (x)", True),
    "features turned": ("float[2,3,4,5] x", "float[2,3,5,4] z", "", "z = Transpose <perm = [0, 1, 3, 2]> (x)", True),
    "no rule": ("float[6,4] x", "float[6,4] z", "", "z = CumSum (x, a)", False),
}


def swapped(value, name, values):
    """The rows of an array in the order by positions."""
    layout = ROWS.layout(values[name])
    if layout is None:
        return value
    if layout == "pair":
        return value.swapaxes(0, 1)
    order = np.arange(6).reshape(2, 3).T.reshape(-1)
    return value[order] if layout == "flat" else value[:, order]


@pytest.mark.parametrize("case", NODES.values(), ids=NODES)
def test_a_node_that_keeps_the_order_computes_the_same_of_other_rows(case, run):
    inputs, outputs, constants, body, keeps = case
    if "CumSum" in body:
        constants = "int64 a = {0}"
    model = step(f"({inputs}) => ({outputs}) <{constants}> {{ {body} }}".replace("<>", ""), "")
    (node,) = model.graph
    assert keeps_order(node, ROWS) == keeps
    if not keeps:
        return
    values = {value.name: value for value in (*model.graph.inputs, *model.graph.outputs)}
    sizes = {value.name: (value.dtype, shape_of(value)) for value in model.graph.inputs}
    feeds = {
        name: np.arange(np.prod(size)).reshape(size) % 4 if dtype == ir.DataType.INT64 else array(*size, seed=index)
        for index, (name, (dtype, size)) in enumerate(sizes.items())
    }
    expected = swapped(run(model, feeds)[0], "z", values)
    others = {name: swapped(value, name, values) for name, value in feeds.items()}
    for value in values.values():
        if ROWS.layout(value) == "pair":
            first, second, *rest = shape_of(value)
            value.shape = ir.Shape([second, first, *rest])
    np.testing.assert_allclose(run(model, others)[0], expected, rtol=1e-5, atol=1e-6)


HEADS = """p{0} = MatMul (x, {0}) r{0} = Reshape (p{0}, heads) """
FORWARD = (
    "".join(HEADS.format(name) for name in "qkv")
    + """tq = Transpose <perm = [0, 2, 1, 3]> (rq) tk = Transpose <perm = [0, 2, 3, 1]> (rk)
    tv = Transpose <perm = [0, 2, 1, 3]> (rv) sq = Mul (tq, f) n = MatMul (sq, tk) y = Softmax (n)
    c = MatMul (y, tv) tc = Transpose <perm = [0, 2, 1, 3]> (c) o = Reshape (tc, flat) """
)
BACKWARD = """gr = Reshape (g, heads) tg = Transpose <perm = [0, 2, 1, 3]> (gr)
    uy = Transpose <perm = [0, 1, 3, 2]> (y) dv = MatMul (uy, tg) uv = Transpose <perm = [0, 1, 3, 2]> (tv)
    dy = MatMul (tg, uv) m = Mul (y, dy) d = ReduceSum (m, last) e = Sub (dy, d) ds = Mul (y, e)
    uk = Transpose <perm = [0, 1, 3, 2]> (tk) dn = MatMul (ds, uk) dq = Mul (dn, f)
    tdv = Transpose <perm = [0, 2, 1, 3]> (dv) rdv = Reshape (tdv, flat)
    tdq = Transpose <perm = [0, 2, 1, 3]> (dq) rdq = Reshape (tdq, flat)
    ux = Transpose <perm = [1, 0]> (x) gv = MatMul (ux, rdv) gq = MatMul (ux, rdq)
    wv = Identity (gv) wq = Identity (gq) l0 = Mul (o, o) l = ReduceSum <keepdims = 0> (l0) """
CONSTANTS = """int64[4] heads = {B, S, 2, 4}, int64[2] flat = {R, 8}, int64[1] last = {3}, float f = {0.5}"""
STEP = (
    "(float[R,8] x, float[8,8] q, float[8,8] k, float[8,8] v, float[R,8] g) => (float l, float[8,8] wv, float[8,8] wq)"
)


def attention(samples, positions, more=""):
    text = f"{STEP} <{CONSTANTS}> {{ {FORWARD} {BACKWARD} {more} }}"
    for word, number in (("B,", samples), ("S,", positions), ("R,", samples * positions)):
        text = text.replace(word, f"{number},")
    return step(text, "gr")


# name: (samples, positions, Transposes of four axes that are left, whether nodes moved)
STEPS = {
    "more positions": (2, 5, 4, True),
    "more samples": (5, 3, 4, True),
    "as many positions as samples": (4, 4, 7, False),
    "one sample": (1, 5, 7, False),
}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_products_of_attention_read_rows_as_they_lie(case, run):
    samples, positions, left, moves = case
    model = attention(samples, positions)
    rows = samples * positions
    sizes = {"x": (rows, 8), "q": (8, 8), "k": (8, 8), "v": (8, 8), "g": (rows, 8)}
    feeds = {name: array(*size, seed=index) for index, (name, size) in enumerate(sizes.items())}
    before = run(model, feeds)
    assert run_pass(PositionsFirst(), model).modified == moves
    PassManager([FuseProducts()])(model)
    wide = [node for node in model.graph if node.op_type == "Transpose" and len(node.outputs[0].shape) == 4]
    assert len(wide) == left
    for old, new in zip(before, run(model, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)


def test_what_is_handed_out_keeps_the_order_of_its_rows(run):
    model = attention(2, 5)
    model.graph.outputs.append(next(value for node in model.graph for value in node.outputs if value.name == "o"))
    sizes = {"x": (10, 8), "q": (8, 8), "k": (8, 8), "v": (8, 8), "g": (10, 8)}
    feeds = {name: array(*size, seed=index) for index, (name, size) in enumerate(sizes.items())}
    before = run(model, feeds)
    assert run_pass(PositionsFirst(), model).modified
    for old, new in zip(before, run(model, feeds), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)
