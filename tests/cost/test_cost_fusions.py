"""What ONNX Runtime makes of nodes before it runs them, as launches of a graph that it is yet to optimize."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.cost import traffic
from amp_transpiler.cost.fusions import plan_of
from amp_transpiler.cost.shapes import sizes_of

HEAD = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
X = "g (float[2, 4, 8] x) => (float[2, 4, 8] z)"
NORM = """m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) p = Pow (d, two) v = ReduceMean <axes = [-1]> (p)
 e = Add (v, eps) r = Sqrt (e) n = Div (d, r)"""
RMS = "p = Pow (x, two) v = ReduceMean <axes = [-1]> (p) e = Add (v, eps) r = Sqrt (e)"
CONSTANTS = "<float two = {2}, float eps = {1e-5}, float one = {1}, float half = {0.5}, float q = {1.4142135}>"
GELU = "s = Div (y, q) t = Erf (s) a = Add (t, one) m = Mul (y, a) z = Mul (m, half)"
# The graph; its launches once ONNX Runtime has optimized it, and the operators that it makes.
ROWS = [
    ("layer normalisation", f"{X} {{ {NORM} s = Mul (n, w) z = Add (s, b) }}", 1, ["LayerNormalization"]),
    ("without scale and shift it stays", f"{X} {{ {NORM} z = Neg (n) }}", 10, []),
    (
        "read elsewhere it stays",
        f"g (float[2, 4, 8] x) => (float[2, 4, 8] z, float[2, 4, 8] n) {{ {NORM} s = Mul (n, w) z = Add (s, b) }}",
        11,
        [],
    ),
    (
        "with what is added before",
        """g (float[2, 4, 8] x, float[2, 4, 8] y) => (float[2, 4, 8] z)
        { t = Add (x, y) z = LayerNormalization (t, w, b) }""",
        1,
        ["SkipLayerNormalization"],
    ),
    (
        "and its bias",
        """g (float[2, 4, 8] x, float[2, 4, 8] y) => (float[2, 4, 8] z)
        { u = Add (x, w) t = Add (u, y) z = LayerNormalization (t, w, b) }""",
        1,
        ["SkipLayerNormalization"],
    ),
    (
        "a sum that is read again is a launch of its own",
        """g (float[2, 4, 8] x, float[2, 4, 8] y) => (float[2, 4, 8] z)
        { t = Add (x, y) u = LayerNormalization (t, w, b) z = Sub (t, u) }""",
        3,
        [],
    ),
    ("root mean square", f"{X} {{ {RMS} n = Div (x, r) z = Mul (n, w) }}", 1, ["SimplifiedLayerNormalization"]),
    (
        "between casts",
        f"""g (float16[2, 4, 8] h) => (float16[2, 4, 8] z)
        {{ x = Cast <to = 1> (h) {RMS} i = Div (one, r) n = Mul (x, i) c = Cast <to = 10> (n) z = Mul (c, lw) }}""",
        1,
        ["SimplifiedLayerNormalization"],
    ),
    ("GELU", f"{X} {{ y = Neg (x) {GELU} }}", 2, ["Gelu"]),
    ("GELU with a bias", f"{X} {{ y = Add (x, b) {GELU} }}", 1, ["BiasGelu"]),
    ("SiLU", f"{X} {{ y = Sigmoid (x) z = Mul (x, y) }}", 1, ["QuickGelu"]),
    (
        "a scaled product",
        "g (float[2, 4, 8] x, float[2, 8, 4] k) => (float[2, 4, 4] z) { y = MatMul (x, k) z = Div (y, q) }",
        1,
        ["FusedMatMul"],
    ),
    (
        "a product with a transposed operand",
        """g (float[2, 4, 8] x, float[2, 4, 8] k) => (float[2, 4, 4] z)
        { t = Transpose <perm = [0, 2, 1]> (k) z = MatMul (x, t) }""",
        1,
        ["FusedMatMul"],
    ),
    (
        "another transposition stays",
        """g (float[2, 4, 8] x, float[8, 2, 4] k) => (float[2, 4, 4] z)
        { t = Transpose <perm = [1, 0, 2]> (k) z = MatMul (x, t) }""",
        2,
        [],
    ),
    (
        "the product of two matrices takes its bias in",
        "g (float[4, 8] x, float[8, 8] k) => (float[4, 8] z) { y = MatMul (x, k) z = Add (y, b) }",
        2,
        ["Gemm"],
    ),
    (
        "a bias of one row is copied",
        "g (float[1, 8] x, float[8, 8] k) => (float[1, 8] z) { y = MatMul (x, k) z = Add (y, b) }",
        1,
        ["Gemm"],
    ),
    (
        "a normalisation after a convolution",
        """g (float[1, 3, 9, 9] x, float[8, 3, 3, 3] k) => (float[1, 8, 7, 7] z)
        { y = Conv (x, k) z = BatchNormalization (y, w, b, w, w) }""",
        2,  # the shift becomes a bias
        ["Conv"],
    ),
    ("equal nodes run once", f"{X} {{ y = Exp (x) t = Exp (x) z = Add (y, t) }}", 2, []),
    (
        "so do those with equal constants",
        f"{X} {{ y = Mul (x, half) t = Mul (x, half2) z = Add (y, t) }}",
        2,
        [],
    ),
    ("constants are folded", f"{X} {{ c = Exp (w) d = Add (c, b) z = Add (x, d) }}", 1, []),
    ("nothing happens", f"{X} {{ y = Mul (x, one) t = Dropout (y) z = Neg (t) }}", 1, []),
    ("random numbers are no constants", f"{X} {{ y = RandomNormalLike (w) z = Add (x, y) }}", 2, []),
]
MORE = (
    "int8 i8 = {0}, int64[3] shape = {2, 4, 8}, int64 i0 = {0}, int64 i1 = {1}, float half2 = {0.5}, "
    "float16[8] lw = {1, 1, 1, 1, 1, 1, 1, 1}"
)


def model_of(text: str) -> ir.Model:
    vectors = "float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] b = {2, 2, 2, 2, 2, 2, 2, 2}"
    head, brace, body = text.partition("{")
    return ir.from_proto(onnx.parser.parse_model(f"{HEAD}{head} {CONSTANTS[:-1]}, {vectors}, {MORE}> {brace}{body}"))


@pytest.mark.parametrize(("text", "launches", "fused"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_launches_after_optimization(text, launches, fused):
    model = model_of(text)
    assert [whole.name for whole in plan_of([model.graph], sizes_of(model)).fused] == fused
    assert sum(cost.launches for cost in traffic(model, fuse=True)) == launches


def test_a_reciprocal_is_fused_in_what_this_package_writes_alone():
    model = model_of(f"{X} {{ {RMS} i = Reciprocal (r) n = Mul (x, i) z = Mul (n, w) }}")
    sizes = sizes_of(model)
    assert plan_of([model.graph], sizes).fused == ()
    (whole,) = plan_of([model.graph], sizes, written=True).fused
    assert (whole.name, whole.nodes) == ("SimplifiedLayerNormalization", frozenset(model.graph))


def test_a_fused_operator_reads_what_comes_from_outside_and_writes_its_result():
    model = model_of(f"{X} {{ y = Add (x, b) {GELU} }}")
    cost = next(cost for cost in traffic(model, fuse=True) if cost.launches)
    numbers = 3 * 4  # q, one and half
    assert (cost.read, cost.written) == (2 * 4 * 8 * 4 + 8 * 4 + numbers, 2 * 4 * 8 * 4)


def test_moves_between_quantized_operators_work_on_quantized_numbers():
    scale = "x0 = QuantizeLinear (x, half, i8) x1 = DequantizeLinear (x0, half, i8)"
    text = f"{X} {{ {scale} t = Transpose <perm = [0, 2, 1]> (x1) u = Reshape (t, shape) z = Neg (u) }}"
    launched = {cost.node.op_type: cost.launches for cost in traffic(model_of(text), fuse=True)}
    # One pair is behind the transposition, another one behind the view.
    assert launched == {"QuantizeLinear": 1, "DequantizeLinear": 1, "Transpose": 1 + 2, "Reshape": 2, "Neg": 1}


def test_sizes_that_a_kernel_takes_from_the_host_do_not_keep_it_there():
    model = model_of("""g (int64[N] x) => (int64[M] z)
    { s = Shape (x) n = Gather (s, i0) t = Add (n, i1) r = Range (i0, t, i1) z = Abs (r) }""")
    launched = [cost.node.op_type for cost in traffic(model, {"N": 4}, fuse=True) if cost.launches]
    assert launched == ["Range", "Abs"]
