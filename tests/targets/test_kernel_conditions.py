"""Conditions of kernels at their edges: nodes of ONNX text, with the shapes of a run."""

import hypothesis
import hypothesis.strategies as st
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.targets.kernel_conditions import CONDITIONS, Reduction, blocks_of, holds, reduction_of
from tests.support import parse


def last_node(text, opset=21, dims=None):
    """The last node of a graph, and the shapes of its values; one with a dimension that `dims` lacks is unknown."""
    sizes = dims or {}

    def shape_of(value):
        shape = (
            None
            if value is None or value.shape is None
            else tuple(size if isinstance(size, int) else sizes.get(size.value) for size in value.shape)
        )
        return None if shape is None or None in shape else shape

    model = ir.from_proto(parse(text, opset=opset))
    propagate_types(model)
    return list(model.graph)[-1], shape_of


def reduction(shape, axes):
    """A sum over axes that the node reads."""
    listed = ", ".join(map(str, axes))
    return f"(float16{shape} x) => (float16 y) <int64[{len(axes)}] a = {{{listed}}}> {{ y = ReduceSum (x, a) }}"


# ---- how a reduction lies in memory ----
LAYOUTS = [
    # (shape, axes, place, terms, results); None where nothing is reduced
    ("[6,4]", [0], "leading", 6, 4),
    ("[6,4]", [1], "trailing", 4, 6),
    ("[6,4]", [-1], "trailing", 4, 6),
    ("[6,4]", [-2], "leading", 6, 4),
    ("[6,4]", [0, 1], "trailing", 24, 1),
    ("[6,4]", [1, -2], "trailing", 24, 1),
    ("[6,4,5]", [1], "middle", 4, 30),
    ("[6,4,5]", [0, 2], "middle", 30, 4),
    ("[6,4,5]", [0, 1], "leading", 24, 5),
    ("[6,4,5]", [-2, -1], "trailing", 20, 6),
    ("[1,4,5]", [1], "leading", 4, 5),
    ("[6,4,1]", [1], "trailing", 4, 6),
    ("[1,4,1]", [1], "trailing", 4, 1),
    ("[6,1,5]", [0, 2], "trailing", 30, 1),
    ("[6,4,1]", [2], None, 1, 24),
    ("[6,4,1]", [0, 2], "leading", 6, 4),
    ("[1,512,256]", [1], "leading", 512, 256),
]


@pytest.mark.parametrize(("shape", "axes", "place", "terms", "results"), LAYOUTS)
def test_where_a_reduction_lies(shape, axes, place, terms, results):
    expected = None if place is None else Reduction(place, terms, results)
    assert reduction_of(*last_node(reduction(shape, axes))) == expected
    listed = ", ".join(map(str, axes))
    before = f"(float16{shape} x) => (float16 y) {{ y = ReduceSum <axes = [{listed}]> (x) }}"
    assert reduction_of(*last_node(before, opset=11)) == expected


WITHOUT_AXES = [
    # (graph, opset, the reduction)
    ("(float16[6,4] x) => (float16 y) { y = ReduceSum (x) }", 21, Reduction("trailing", 24, 1)),
    ("(float16[6,4] x) => (float16 y) { y = ReduceMean (x) }", 13, Reduction("trailing", 24, 1)),
    ("(float16[6,4] x) => (float16 y) { y = ReduceSum <noop_with_empty_axes = 1> (x) }", 21, None),
    (
        "(float16[6,4] x) => (float16 y) <int64[0] a = {}> { y = ReduceSum (x, a) }",
        21,
        Reduction("trailing", 24, 1),
    ),
    ("(float16[6,4] x, int64[0] a) => (float16 y) { y = ReduceSum (x, a) }", 21, Reduction("trailing", 24, 1)),
    ("(float16[6,4] x, int64[1] a) => (float16 y) { y = ReduceSum (x, a) }", 21, None),
    ("(float16[N,4] x) => (float16 y) { y = ReduceSum (x) }", 21, None),
    ("(float16 x) => (float16 y) { y = ReduceSum (x) }", 21, None),
]


@pytest.mark.parametrize(("graph", "opset", "expected"), WITHOUT_AXES)
def test_a_reduction_without_known_axes(graph, opset, expected):
    assert reduction_of(*last_node(graph, opset)) == expected


def test_the_shape_of_a_run_counts():
    graph = "(float16[N,4] x) => (float16 y) <int64[1] a = {0}> { y = ReduceSum (x, a) }"
    assert reduction_of(*last_node(graph, dims={"N": 300})) == Reduction("leading", 300, 4)


# ---- blocks of a sum over leading axes ----
BLOCKS = [
    # (rows, columns, height of a block, blocks)
    (127, 64, 16, 1),
    (128, 64, 16, 2),
    (191, 64, 16, 2),
    (192, 64, 16, 3),
    (513, 64, 16, 8),
    (4097, 64, 16, 64),
    (512, 256, 16, 8),
    (100_000, 64, 16, 256),
    (100_000, 16384, 16, 1),
    (100_000, 8192, 16, 2),
    (128, 2, 32, 1),
    (256, 2, 64, 1),
    (1024, 2, 256, 1),
    (2048, 2, 256, 2),
    (1, 1, 1, 1),
    (0, 0, 1, 1),
]


@pytest.mark.parametrize(("rows", "columns", "height", "blocks"), BLOCKS)
def test_how_many_blocks_add_up(rows, columns, height, blocks):
    assert blocks_of(rows, columns) == (height, blocks)


@pytest.mark.slow
@hypothesis.settings(max_examples=200, deadline=None, database=None, derandomize=True)
@hypothesis.given(rows=st.integers(0, 10**7), columns=st.integers(0, 10**6))
def test_blocks_fit_the_threads_and_the_rows(rows, columns):
    height, blocks = blocks_of(rows, columns)
    assert 1 <= height <= 512
    assert height & (height - 1) == 0
    assert 1 <= blocks <= 512
    assert blocks == 1 or blocks * height * 4 <= rows


# ---- conditions ----
GELU = "y = Gelu {} (x)"
TANH = '<approximate = "tanh">'
OPERANDS = "float16[1,2,3,{d}] q, float16[1,2,{n},{d}] k, float16[1,2,{n},{v}] w"
PAST = f"({OPERANDS}, float16[1,2,{{p}},{{d}}] pk, float16[1,2,{{p}},{{v}}] pv)"
FOUR = f"({OPERANDS}, bool[3,{{n}}] m) => (float16 y) {{{{ y = Attention (q, k, w{{mask}}) }}}}"
LINEAR = '(float16[1,1,2,2] x) => (float16 y) <float[4] s = {1, 1, 2, 2}> { y = Resize <mode = "MODE"> (x, , s) }'


def gelu(shape, attributes=TANH):
    return f"(float16{shape} x) => (float16{shape} y) {{ {GELU.format(attributes)} }}"


def four(keys, size, value_size=None, mask=""):
    """Attention of four axes."""
    return FOUR.format(n=keys, d=size, v=size if value_size is None else value_size, mask=mask)


def past(size, value_size, before=6, keys=4):
    """Attention with a past."""
    head = PAST.format(n=keys, d=size, v=value_size, p=before)
    return f"{head} => (float16 y) {{ y, a, b = Attention (q, k, w, , pk, pv) }}"


def three(size, heads):
    """Attention of three axes with a past."""
    width = size * heads
    return f"""(float16[1,3,{width}] q, float16[1,4,{width}] k, float16[1,4,{width}] w, float16[1,{heads},6,{size}] pk,
        float16[1,{heads},6,{size}] pv) => (float16 y) {{
        y, a, b = Attention <q_num_heads = {heads}, kv_num_heads = {heads}> (q, k, w, , pk, pv) }}"""


def product(a, b, op="MatMul", attributes=""):
    return f"(float{a} a, float{b} b) => (float y) {{ y = {op} {attributes} (a, b) }}"


def total(terms):
    return f"(float16{terms} x) => (float16 y) <int64 a = {{-1}}> {{ y = CumSum (x, a) }}"


def biased(attributes="", bias=", c"):
    return f"(float16[2,3] a, float16[3,4] b, float16[4] c) => (float16 y) {{ y = Gemm {attributes} (a, b{bias}) }}"


BLOCKED, ENDS = "leading axes, several blocks", "leading or trailing axes"
MANY, ODD = f"{ENDS}, 65520 terms or more", "tanh, count not known to be even"
RAGGED = "a past, and a head size that is no multiple of 4"
SCATTER = "(float16[4] x, int64[2,1] i, float16[2] u) => (float16[4] y) {{ y = ScatterND {} (x, i, u) }}"

HOLDS = [
    # (condition, graph, does it hold)
    (BLOCKED, reduction("[127,64]", [0]), False),
    (BLOCKED, reduction("[128,64]", [0]), True),
    (BLOCKED, reduction("[1,128,64]", [-2]), True),
    (BLOCKED, reduction("[64,128]", [1]), False),
    (BLOCKED, reduction("[3,128,64]", [1]), False),
    (BLOCKED, reduction("[2,64,64]", [0, 1]), True),
    (BLOCKED, reduction("[N,64]", [0]), False),
    (BLOCKED, reduction("[100000]", [0]), False),
    (ENDS, reduction("[6,4,5]", [1]), False),
    (ENDS, reduction("[6,4,5]", [0]), True),
    (ENDS, reduction("[6,4,5]", [-1]), True),
    (ENDS, reduction("[N,4,5]", [-1]), False),
    (MANY, reduction("[4,65519]", [1]), False),
    (MANY, reduction("[4,65520]", [1]), True),
    (MANY, reduction("[65520,4]", [0]), True),
    (MANY, reduction("[2,65520,2]", [1]), False),
    ("tanh", gelu("[4]"), True),
    ("tanh", gelu("[4]", ""), False),
    ("tanh", gelu("[4]", '<approximate = "none">'), False),
    ("count not known to be even", "(float16[3,5] x) => (float16[3,5] y) { y = com.microsoft.FastGelu (x) }", True),
    ("count not known to be even", "(float16[3,6] x) => (float16[3,6] y) { y = com.microsoft.FastGelu (x) }", False),
    (ODD, gelu("[4]"), False),
    (ODD, gelu("[5]"), True),
    (ODD, gelu("[3,5]"), True),
    (ODD, gelu("[3,2]"), False),
    (ODD, gelu("[]"), True),
    (ODD, gelu("[N,5]"), True),
    (ODD, gelu("[N,2]"), False),
    (ODD, gelu("[5]", ""), False),
    ("more than 2048 terms", total("[2,2048]"), False),
    ("more than 2048 terms", total("[2,2049]"), True),
    ("more than 2048 terms", total("[2,N]"), True),
    ("more than 2048 terms", "(float16[2] x, int64 a) => (float16 y) { y = CumSum (x, a) }", True),
    (RAGGED, past(8, 8), False),
    (RAGGED, past(10, 8), True),
    (RAGGED, past(8, 10), True),
    (RAGGED, past(4, 12), False),
    (RAGGED, four(4, 10), False),
    (RAGGED, three(8, 2), False),
    (RAGGED, three(10, 2), True),
    (RAGGED, three(6, 2), True),
    ("unfused", four(4, 8), False),
    ("unfused", four(5, 8), False),
    ("unfused", four(4, 8, 16), True),
    ("unfused", four(4, 8, mask=", m"), False),
    ("unfused", four(4, 12), True),
    ("unfused", four(5, 8, mask=", m"), True),
    ("unfused", past(8, 8, before=5), False),
    ("several rows", product("[1,8]", "[8,4]"), False),
    ("several rows", product("[2,8]", "[8,4]"), True),
    ("several rows", product("[8]", "[8,4]"), False),
    ("several rows", product("[1,1,8]", "[8,4]"), False),
    ("several rows", product("[2,1,8]", "[8,4]"), True),
    ("several rows", product("[2,1,8]", "[2,8,4]"), False),
    ("several rows", product("[2,3,8]", "[2,8,4]"), True),
    ("several rows", product("[N,8]", "[8,4]"), True),
    ("several rows", product("[8,1]", "[8,4]", "Gemm", "<transA = 1>"), False),
    ("several rows", product("[8,2]", "[8,4]", "Gemm", "<transA = 1>"), True),
    ("several rows", product("[1,8]", "[4,8]", "Gemm", "<transB = 1>"), False),
    ("a bias", biased(), True),
    ("a bias", biased(bias=""), False),
    ("a bias, several results", biased(), True),
    ("a bias, several results", biased().replace("[2,3]", "[1,3]"), True),
    ("a bias, several results", biased().replace("[3,4]", "[3,1]"), True),
    ("a bias, several results", biased().replace("[2,3]", "[1,3]").replace("[3,4]", "[3,1]"), False),
    ("a bias, several results", biased("<transB = 1>").replace("[2,3]", "[1,4]").replace("[3,4]", "[1,4]"), False),
    ("a bias, several results", biased().replace("[3,4]", "[3,N]"), True),
    ("a bias, several results", biased(bias=""), False),
    ("alpha or beta", biased(), False),
    ("alpha or beta", biased("<alpha = 2.0>"), True),
    ("alpha or beta", biased("<beta = 2.0>"), True),
    ("alpha or beta", biased("<beta = 2.0>", bias=""), False),
    ("linear", LINEAR.replace("MODE", "linear"), True),
    ("linear", LINEAR.replace("MODE", "cubic"), False),
    ("linear", LINEAR.replace('<mode = "MODE">', ""), False),
    ("adds", SCATTER.format('<reduction = "add">'), True),
    ("adds", SCATTER.format('<reduction = "mul">'), False),
    ("adds", SCATTER.format(""), False),
    ("more than two inputs", "(float16[2] x) => (float16 y) { y = Sum (x, x) }", False),
    ("more than two inputs", "(float16[2] x) => (float16 y) { y = Sum (x, x, x) }", True),
]


@pytest.mark.parametrize(("name", "graph", "expected"), HOLDS)
def test_conditions(name, graph, expected):
    assert holds(name, *last_node(graph, opset=24 if "Attention" in graph else 21)) is expected


def test_every_condition_has_a_row_that_holds_and_one_that_does_not():
    assert {(name, expected) for name, _, expected in HOLDS} == {(n, e) for n in CONDITIONS for e in (True, False)}
