"""Sizes of all values, in numbers, where shapes are computed, operators unknown and bodies repeated."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.cost.shapes import open_dims, sizes_of

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'

# The graph, sizes of open dimensions, a value and its shape.
ROWS = [
    (
        "a shape that is computed",
        """g (float[N, 6] x) => (float[?, ?, 2] z) <int64[1] first = {0}, int64[2] rest = {3, 2}>
        { s = Shape (x) n = Gather (s, first) t = Concat <axis = 0> (n, rest) y = Reshape (x, t) z = Neg (y) }""",
        {"N": 5},
        (5, 3, 2),
    ),
    (
        "a shape chosen by a comparison",
        """g (float[N, 1] x) => (float[?, ?] z) <int64[2] wanted = {-1, 4}, int64[2] ones = {1, 1}, int64 minus = {-1}>
        { e = Equal (wanted, minus) s = Where (e, ones, wanted) y = Expand (x, s) z = Neg (y) }""",
        {"N": 3},
        (3, 4),
    ),
    (
        "a range of positions",
        """g (int64[N, L] x) => (float[?] z) <int64 one = {1}, int64 zero = {0}>
        { s = Shape (x) l = Gather (s, one) r = Range (zero, l, one) z = Cast <to = 1> (r) }""",
        {"N": 2, "L": 7},
        (7,),
    ),
    (
        "a range that is too long to be kept",
        """g (float[N] x) => (int64[M] z) <int64 one = {1}, int64 zero = {0}>
        { s = Shape (x) l = Squeeze (s) r = Range (zero, l, one) z = Neg (r) }""",
        {"N": 8000},
        (8000,),
    ),
    (
        "half of the frequencies unless told otherwise",
        """g (float[N, 160, 1] x) => (float[?, ?, ?, ?] z) <int64 step = {20}, float[4] window = {1, 1, 1, 1}>
        { y = STFT (x, step, window) z = Neg (y) }""",
        {"N": 2},
        (2, 8, 3, 2),
    ),
    (
        "recurrent steps in 8 bits",
        """g (float[S, B, 4] x, int8[2, 4, 12] w, int8[2, 3, 12] r) => (float[?, ?, ?, ?] z)
        { y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 3> (x, w, r) z = Neg (y) }""",
        {"S": 7, "B": 5},
        (7, 2, 5, 3),
    ),
    (
        "an operator that ONNX does not know",
        "g (float[N, 8] x, float[8, 3] w) => (float[?, ?] z) { y = com.microsoft.FusedMatMul (x, w) z = Relu (y) }",
        {"N": 4},
        (4, 3),
    ),
    (
        "an operator that nobody knows",
        "g (float[N, 8] x) => (float[?, ?] z) { y = com.microsoft.NoSuch (x) z = Relu (y) }",
        {"N": 4},
        (4, 8),
    ),
    (
        "fused attention",
        """g (float[B, S, 8] x, float[8, 24] w, float[24] b) => (float[?, ?, ?] z)
        { y = com.microsoft.Attention <num_heads = 2> (x, w, b) z = Relu (y) }""",
        {"B": 2, "S": 5},
        (2, 5, 8),
    ),
    (
        "what depends on numbers is as large as it can be along one dimension",
        "g (float[N, 8] x) => (int64[2, M] z) { y = NonZero (x) z = Neg (y) }",
        {"N": 40},
        (2, 40),
    ),
    (
        "a branch",
        """g (bool c, float[N, 4] x) => (float[?, ?] z)
        { y = If (c) <then_branch = a () => (float[N, 4] p) { p = Neg (x) },
                      else_branch = b () => (float[N, 4] q) { q = Abs (x) }> z = Neg (y) }""",
        {"N": 3},
        (3, 4),
    ),
]


def model_of(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


@pytest.mark.parametrize(("text", "dims", "shape"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_every_value_has_a_size(text, dims, shape):
    model = model_of(text)
    sizes = sizes_of(model, dims)
    assert sizes.shape(model.graph.outputs[0]) == shape
    assert all(sizes.shape(value) is not None for node in model.graph for value in node.outputs)


LOOP = """g (float[N, 4] x) => (float[?, ?] z, float[?, ?, ?] all) <int64 five = {5}, bool yes = {1}>
{ z, all = Loop (five, yes, x) <body = b (int64 i, bool c, float[?, ?] s) => (bool d, float[?, ?] t, float[?, ?] u)
    { d = Identity (c) t = Neg (s) u = Abs (t) }> }"""


def test_a_loop_counts_its_trips():
    model = model_of(LOOP)
    sizes = sizes_of(model, {"N": 3})
    body = next(iter(model.graph)).attributes["body"].as_graph()
    assert sizes.runs(body) == 5
    assert sizes.shape(body.outputs[1]) == (3, 4)
    assert [sizes.shape(value) for value in model.graph.outputs] == [(3, 4), (5, 3, 4)]


SCAN = """g (float[N, T, 4] x) => (float[?, ?, ?] z)
{ z = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = b (float[?, 4] s) => (float[?, 4] t) { t = Neg (s) }> (x) }"""


def test_a_scan_runs_along_its_axis():
    model = model_of(SCAN)
    sizes = sizes_of(model, {"N": 3, "T": 6})
    body = next(iter(model.graph)).attributes["body"].as_graph()
    assert sizes.runs(body) == 6
    assert [sizes.shape(value) for value in (*body.outputs, *model.graph.outputs)] == [(3, 4), (3, 6, 4)]


def test_a_branch_that_is_not_taken_does_not_run():
    model = model_of("""g (float[N, 4] x) => (float[N, 4] z) <int64 one = {1}, int64 zero = {0}>
    { s = Shape (x) n = Gather (s, zero) c = Greater (n, one)
      z = If (c) <then_branch = a () => (float[N, 4] p) { p = Neg (x) },
                  else_branch = b () => (float[N, 4] q) { q = Abs (x) }> }""")
    node = list(model.graph)[-1]
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    assert [sizes_of(model, {"N": 3}).runs(graph) for graph in branches] == [1, 0]
    assert [sizes_of(model, {"N": 1}).runs(graph) for graph in branches] == [0, 1]


def test_open_dimensions_have_the_sizes_of_made_up_inputs():
    inputs = "float[batch, 3, height, width] image, int64[batch, sequence] ids, float[k, 7] y"
    model = model_of(f"""g ({inputs}) => (float[k, 7] z)
    {{ z = Neg (y) }}""")
    assert open_dims(model) == {"batch": 1, "height": 224, "width": 224, "sequence": 32, "k": 1}


def test_low_sizes_are_those_of_float32_values_alone():
    model = model_of("g (float[4] x, int64[4] i) => (float[4] z) { z = Neg (x) }")
    x, i = model.graph.inputs
    low = sizes_of(model).lowered(ir.DataType.FLOAT16)
    assert (low.bytes(x), low.bytes(i)) == (8, 32)


CONTRADICTIONS = {
    "a product of other batches": "y = com.microsoft.FusedMatMul (x, r)",
    "parts of other ranks": "y = com.microsoft.QLinearConcat <axis = 2> (s, z, x, s, z, v, s, z)",
    "sums of other sizes": "y = com.microsoft.QLinearAdd (x, s, z, r, s, z, s, z)",
    "weights of one axis": "y = com.microsoft.DynamicQuantizeLSTM (x, x, v)",
    "more axes than an array has": "y = com.microsoft.FusedMatMul (a, b)",
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_of_shapes_that_contradict_each_other_the_declared_one_is_taken(case):
    many = ", ".join(["1"] * 71)
    inputs = f"float[2, 3, 4] x, float[5, 4, 3] r, float[3] v, float s, uint8 z, float[{many}] a, float[{many}] b"
    model = model_of(f"g ({inputs}) => (float[7] y) {{ {CONTRADICTIONS[case]} }}")
    assert sizes_of(model).shape(model.graph.outputs[0]) == (7,)
    model.graph.outputs[0].shape = None
    assert sizes_of(model).shape(model.graph.outputs[0]) is None
