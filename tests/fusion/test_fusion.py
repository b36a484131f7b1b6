"""Several nodes become one operator that computes the same: each fusion in its forms, and only where it holds."""

import collections
import re

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.cost import find_device, predicted, traffic
from amp_transpiler.fusion import fuse as fuse_module
from amp_transpiler.fusion.fuse import Fuse
from amp_transpiler.graph.sizes import Sizes
from amp_transpiler.graph.verifier import faults
from amp_transpiler.ops.fusions import FUSIONS, checked_fusions, fusions_of
from amp_transpiler.ops.names import operator_name
from amp_transpiler.ops.table import operator_table
from amp_transpiler.passes.manager import run_pass
from tests.support import array, parse, run

NUMBERS = {
    "one": np.float32(1),
    "half": np.float32(0.5),
    "two": np.float32(2),
    "three": np.float32(3),
    "root2": np.float32(2**0.5),
    "inverse": np.float32(0.5**0.5),
    "linear": np.float32((2 / np.pi) ** 0.5),
    "cubic": np.float32(0.044715),
    "epsilon": np.float32(1e-5),
    "last": np.array([-1]),
    "middle": np.array([1]),
    "first": np.array([0]),
    "both": np.array([0, 1]),
    "flat": np.array([-1, 8]),
}
VECTORS = {name: array(8, seed=index, scale=0.5) for index, name in enumerate(("scale", "shift", "bias", "other"))}
WEIGHTS = {
    **NUMBERS,
    **VECTORS,
    "w": array(8, 8, scale=0.4),
    "wide": array(3, 8),
    "one3": np.ones((1, 1, 1), np.float32),
    "one4": np.ones((1, 1, 1, 1), np.float32),
}

MEAN = "m = ReduceMean (x, last) d = Sub (x, m)"
LAYER_NORM = f"{MEAN} p = Pow (d, two) v = ReduceMean (p, last) e = Add (v, epsilon) s = Sqrt (e) q = Div (d, s)"
AFFINE = "a = Mul (q, scale) y = Add (a, shift)"
RMS = "p = Pow (x, two) v = ReduceMean (p, last) e = Add (v, epsilon) s = Sqrt (e)"
ERF = "a = Div (x, root2) b = Erf (a) c = Add (b, one)"
TANH = "a = Pow (x, three) b = Mul (a, cubic) c = Add (x, b) d = Mul (c, linear) e = Tanh (d) f = Add (e, one)"
JAX = (
    "a = Mul (cubic, x) a1 = Mul (x, a) b = Mul (x, a1) c = Add (x, b) d = Mul (linear, c) e = Tanh (d)"
    " f = Add (one, e)"
)
NORM = "LayerNormalization (s, scale, shift)"
LAYERS = "LayerNormalization"
SKIP, SIMPLE = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
PRODUCT = "f = Reshape (x, flat) g = Gemm (f, w, bias) k = Shape (x) b = Reshape (g, k)"

# name: (opset, body, operators of the result that fusions write, in order of their names)
FUSED = {
    "layer norm": (18, f"{LAYER_NORM} {AFFINE}", "LayerNormalization"),
    "layer norm of a product": (
        18,
        f"{MEAN} p = Mul (d, d) v = ReduceMean (p, last) e = Add (v, epsilon) s = Sqrt (e) q = Div (d, s) {AFFINE}",
        "LayerNormalization",
    ),
    "layer norm whose centred input is read again": (
        18,
        f"{LAYER_NORM} a = Mul (q, scale) n = Add (a, shift) y = Sub (n, d)",
        "LayerNormalization",
    ),
    "layer norm without a shift": (18, f"{LAYER_NORM} y = Mul (scale, q)", "LayerNormalization"),
    "layer norm without scale and shift": (18, LAYER_NORM.replace("q =", "y ="), "LayerNormalization"),
    "layer norm by a reciprocal": (
        18,
        f"{LAYER_NORM.replace('q = Div (d, s)', 'r = Reciprocal (s) q = Mul (r, d)')} {AFFINE}",
        "LayerNormalization",
    ),
    "layer norm by one divided, without a shift": (
        18,
        f"{LAYER_NORM.replace('q = Div (d, s)', 'r = Div (one, s) q = Mul (d, r)')} y = Mul (q, scale)",
        "LayerNormalization",
    ),
    "layer norm with a scale of the whole": (
        18,
        f"{LAYER_NORM} a = Mul (q, wide) y = Add (a, shift)",
        "LayerNormalization",
    ),
    "layer norm with a computed scale": (
        18,
        f"{LAYER_NORM} h = ReduceMean (z, middle) a = Mul (q, h) y = Add (a, shift)",
        "LayerNormalization",
    ),
    "layer norm of a sum without scale": (
        18,
        f"x1 = Add (x, z) {LAYER_NORM} y = Add (q, x1)".replace("(x, ", "(x1, ").replace("Add (x1, z)", "Add (x, z)"),
        SKIP,
    ),
    "RMS norm": (18, f"{RMS} q = Div (x, s) y = Mul (q, scale)", "SimplifiedLayerNormalization"),
    "RMS norm by a reciprocal": (
        18,
        f"{RMS} r = Reciprocal (s) q = Mul (x, r) y = Mul (scale, q)",
        "SimplifiedLayerNormalization",
    ),
    "RMS norm by one divided": (
        18,
        f"{RMS} r = Div (one, s) q = Mul (x, r) y = Mul (q, scale)",
        "SimplifiedLayerNormalization",
    ),
    "RMS norm without a scale": (18, f"{RMS} y = Div (x, s)", "SimplifiedLayerNormalization"),
    "RMS norm by a reciprocal, without a scale": (23, f"{RMS} r = Reciprocal (s) y = Mul (x, r)", "RMSNormalization"),
    "RMS norm of a new opset": (23, f"{RMS} q = Div (x, s) y = Mul (q, scale)", "RMSNormalization"),
    "RMS norm of what is centred over another axis": (
        18,
        f"{LAYER_NORM} {AFFINE}".replace("ReduceMean (x, last)", "ReduceMean (x, middle)"),
        "SimplifiedLayerNormalization",
    ),
    "GELU": (18, f"{ERF} d = Mul (x, c) y = Mul (d, half)", "com.microsoft::Gelu"),
    "GELU, halved before": (18, f"{ERF} d = Mul (half, c) y = Mul (x, d)", "com.microsoft::Gelu"),
    "GELU by tanh, halved before": (18, f"{TANH} h = Mul (half, f) y = Mul (x, h)", "com.microsoft::FastGelu"),
    "GELU by a factor": (
        18,
        "h = Mul (half, x) a = Mul (x, inverse) b = Erf (a) c = Add (one, b) y = Mul (h, c)",
        "com.microsoft::Gelu",
    ),
    "GELU of a new opset": (20, f"{ERF} d = Mul (x, c) y = Mul (d, half)", "Gelu"),
    "GELU by tanh": (18, f"{TANH} h = Mul (x, half) y = Mul (h, f)", "com.microsoft::FastGelu"),
    "GELU by tanh, new opset": (20, f"{TANH} h = Mul (x, half) y = Mul (h, f)", "Gelu"),
    "GELU by tanh, as JAX writes it": (18, f"{JAX} h = Mul (half, f) y = Mul (x, h)", "com.microsoft::FastGelu"),
    "GELU by tanh from inside, halved last": (20, f"{JAX} h = Mul (x, f) y = Mul (half, h)", "Gelu"),
    "GELU with numbers of its rank": (
        20,
        f"{JAX} h = Mul (half, f) y = Mul (x, h)".replace("(one,", "(one3,"),
        "Gelu",
    ),
    "GELU with a bias": (
        18,
        f"l = MatMul (z, w) x1 = Add (l, bias) {ERF} d = Mul (x, c) y = Mul (d, half)".replace("(x, ", "(x1, "),
        "com.microsoft::BiasGelu",
    ),
    "Gelu with a bias": (20, "l = MatMul (x, w) a = Add (bias, l) y = Gelu (a)", "com.microsoft::BiasGelu"),
    "Gelu by tanh with a bias": (
        20,
        'l = MatMul (x, w) a = Add (l, bias) y = Gelu <approximate = "tanh"> (a)',
        "com.microsoft::FastGelu",
    ),
    "Gelu of a Gemm": (20, f"{PRODUCT} y = Gelu (b)", "com.microsoft::BiasGelu"),
    "a sum": (18, f"s = Add (x, z) y = {NORM}", SKIP),
    "a sum without a shift": (18, "s = Add (x, z) y = LayerNormalization (s, scale)", SKIP),
    "a sum that is read again": (18, f"s = Add (x, z) n = {NORM} y = Add (n, s)", SKIP),
    "a sum that is normalised twice": (
        18,
        f"s = Add (x, z) n = {NORM} m = LayerNormalization (s, other, shift) y = Add (n, m)",
        f"{LAYERS} {SKIP}",
    ),
    "a sum with a bias": (18, f"l = MatMul (x, w) b = Add (l, bias) s = Add (b, z) y = {NORM}", SKIP),
    "a bias on the other side": (18, f"l = MatMul (x, w) b = Add (bias, l) s = Add (z, b) y = {NORM}", SKIP),
    "two biases": (
        18,
        f"l = MatMul (x, w) b = Add (bias, l) c = Add (z, other) s = Add (c, b) y = {NORM}",
        SKIP,
    ),
    "the bias of a Gemm": (18, f"{PRODUCT} s = Add (b, z) n = {NORM} y = Add (n, s)", SKIP),
    "positions": (18, f"r = ReduceMean (z, first) s = Add (x, r) y = {NORM}", SKIP),
    "positions without a batch": (18, f"r = ReduceMean <keepdims = 0> (z, first) s = Add (r, x) y = {NORM}", SKIP),
    "a chain of sums": (
        18,
        f"s = Add (x, z) n = {NORM} t = Add (n, s) m = LayerNormalization (t, other, bias) y = Add (m, t)",
        f"{SKIP} {SKIP}",
    ),
    "an RMS norm of a sum": (
        18,
        f"x1 = Add (x, z) {RMS} q = Div (x, s) n = Mul (q, scale) y = Add (n, x1)".replace("(x, ", "(x1, ").replace(
            "x1 = Add (x1, z)", "x1 = Add (x, z)"
        ),
        SIMPLE,
    ),
    "an RMSNormalization of a sum": (23, "s = Add (x, z) n = RMSNormalization (s, scale) y = Add (n, s)", SIMPLE),
}
LEFT = {
    "an axis in the middle": (18, f"{LAYER_NORM} {AFFINE}".replace("last", "middle"), ""),
    "a cube": (18, f"{LAYER_NORM} {AFFINE}".replace("two", "three"), ""),
    "a product with the root": (18, LAYER_NORM.replace("q = Div (d, s)", "y = Mul (d, s)"), ""),
    "centred by another value's mean": (18, LAYER_NORM.replace("(d, s)", "(x, s)").replace("q =", "y ="), ""),
    "a sum of squares": (18, f"{RMS} y = Div (x, s)".replace("v = ReduceMean", "v = ReduceSum"), ""),
    "a mean that drops its axis": (
        18,
        f"{RMS} r = Unsqueeze (s, last) y = Div (x, r)".replace("ReduceMean", "ReduceMean <keepdims = 0>"),
        "",
    ),
    "a square once more": (20, f"{JAX} h = Mul (half, f) y = Mul (x, h)".replace("(x, a1)", "(a, a1)"), ""),
    "twice the root": (18, f"{RMS} r = Div (two, s) q = Mul (x, r) y = Mul (q, scale)", ""),
    "another root in GELU": (18, f"{ERF} d = Mul (x, c) y = Mul (d, half)".replace("root2", "two"), ""),
    "another half": (18, f"{ERF} d = Mul (x, c) y = Mul (d, one)", ""),
    "another cubic": (18, f"{TANH} h = Mul (x, half) y = Mul (h, f)".replace("cubic", "half"), ""),
    "a sum over another axis": (18, "s = Add (x, z) y = LayerNormalization <axis = 1> (s, wide, wide)", LAYERS),
    "a sum with a vector": (18, f"s = Add (x, bias) y = {NORM}", LAYERS),
    "a sum that a GELU reads whole": (20, "s = Add (x, z) y = Gelu (s)", "Gelu"),
    "a bias that is read again": (
        20,
        "l = MatMul (x, w) a = Add (l, bias) g = Gelu (a) y = Add (g, a)",
        "Gelu",
    ),
    "a bias over other axes": (20, "a = Add (x, wide) y = Gelu (a)", "Gelu"),
    "a Gemm that is read again": (20, f"{PRODUCT} h = Gelu (b) o = Reshape (g, k) y = Add (h, o)", "Gelu"),
    "a scaled bias": (20, f"{PRODUCT} y = Gelu (b)".replace("Gemm", "Gemm <beta = 0.5>"), "Gelu"),
    "a scale that depends on the sum": (
        18,
        "s = Add (x, z) h = ReduceMean <keepdims = 0> (s, both) y = LayerNormalization (s, h)",
        LAYERS,
    ),
}
SHAPES = {"static": "[2,3,8]", "open": "[batch,length,8]"}


def model(opset, body, shape, outputs="y"):
    inputs = ", ".join(f"float{shape} {name}" for name in ("x", "z"))
    results = ", ".join(f"float{shape} {name}" for name in outputs.split())
    words = set(re.findall(r"\w+", body))
    used = {name: value for name, value in WEIGHTS.items() if name in words}
    return parse(f"({inputs}) => ({results}) {{ {body} }}", opset=opset, **used)


def fused(proto, choice="contrib"):
    program = plain_copy(amp.load(proto))
    opset = proto.opset_import[0].version
    result = run_pass(Fuse([fusion.name for fusion in fusions_of(choice) if fusion.opset <= opset]), program.model)
    assert next(faults(program.model), None) is None
    return program, result


def operators(program):
    known = {operator for fusion in FUSIONS for operator in fusion.operators}
    names = (operator_name(node) for node in program.model.graph)
    return sorted(name.removeprefix("com.microsoft::") for name in names if name in known)


def feeds():
    return {"x": array(2, 3, 8, seed=1), "z": array(2, 3, 8, seed=2, scale=0.7)}


def check(opset, body, shape, left):
    proto = model(opset, body, SHAPES[shape])
    program, result = fused(proto)
    wanted = sorted(name.removeprefix("com.microsoft::") for name in left.split())
    assert operators(program) == wanted
    np.testing.assert_allclose(run(program, feeds())["y"], run(proto, feeds())["y"], rtol=1e-5, atol=1e-5)
    return result


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUSED)
def test_nodes_become_one_that_computes_the_same(name, shape):
    opset, body, left = FUSED[name]
    assert check(opset, body, shape, left).modified == bool(left)


@pytest.mark.parametrize("name", LEFT)
def test_what_computes_something_else_stays(name):
    opset, body, left = LEFT[name]
    assert not check(opset, body, "static", left).modified


def test_numbers_that_add_an_axis_stay():
    body = f"{JAX} h = Mul (half, f) y = Mul (x, h)".replace("(one,", "(one4,")
    proto = parse(f"(float[2,3,8] x) => (float[1,2,3,8] y) {{ {body} }}", opset=20, one4=WEIGHTS["one4"], **NUMBERS)
    assert operators(fused(proto)[0]) == []


def test_a_long_axis_gets_no_scale_of_ones():
    numbers = {name: NUMBERS[name] for name in ("two", "last", "epsilon")}
    body = LAYER_NORM.replace("q =", "y =")
    for width, left in ((1 << 14, [LAYERS]), ((1 << 14) + 1, [])):
        proto = parse(f"(float[2,{width}] x) => (float[2,{width}] y) {{ {body} }}", opset=18, **numbers)
        assert operators(fused(proto)[0]) == left


def test_a_sum_that_is_an_output_stays():
    proto = model(18, f"s = Add (x, z) y = {NORM}", "[2,3,8]", "y s")
    assert operators(fused(proto)[0]) == [LAYERS]


def test_shapes_that_may_differ_stay():
    proto = parse(f"(float[a,b,8] x, float[c,b,8] z) => (float[d,b,8] y) {{ s = Add (x, z) y = {NORM} }}", **VECTORS)
    assert operators(fused(proto)[0]) == [LAYERS]


def test_a_sum_is_handed_out_only_if_it_is_read():
    for name, outputs in (("a sum", 1), ("a sum that is read again", 4)):
        opset, body, _ = FUSED[name]
        program, _ = fused(model(opset, body, "[2,3,8]"))
        (node,) = (node for node in program.model.graph if node.op_type == SKIP)
        assert len(node.outputs) == outputs


def test_a_gemm_keeps_all_but_its_bias():
    program, _ = fused(model(20, f"{PRODUCT} y = Gelu (b)", "[2,3,8]"))
    (node,) = (node for node in program.model.graph if node.op_type == "Gemm")
    assert [value.name for value in node.inputs] == ["f", "w"]


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ("standard", ["Gelu", LAYERS, LAYERS]),
        ("contrib", ["BiasGelu", SKIP, SKIP]),
        ("contrib,-BiasGelu", ["Gelu", SKIP, SKIP]),
        (f"contrib, -{SKIP}", ["BiasGelu", LAYERS, LAYERS]),
        (f"contrib,-Gelu,-{LAYERS}", ["BiasGelu", "SimplifiedLayerNormalization", SKIP]),
    ],
)
def test_fusions_are_chosen_by_name(choice, left):
    body = (
        f"x1 = Add (x, z) {LAYER_NORM.replace('(x, ', '(x1, ')} a1 = Mul (q, scale) n = Add (a1, shift)"
        f" l = MatMul (n, w) b1 = Add (l, bias) {ERF.replace('(x, ', '(b1, ')} g1 = Mul (b1, c) g = Mul (g1, half)"
        " r = Add (g, x1) y = LayerNormalization (r, scale, shift)"
    )
    body = body.replace("b = Erf", "b2 = Erf").replace("Add (b, one)", "Add (b2, one)")
    program, _ = fused(model(20, body, "[batch,length,8]"), choice)
    assert operators(program) == left


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("all", "'all' is none of contrib, standard and none"),
        ("contrib,BiasGelu", "'BiasGelu' leaves out no fusion; expected a minus sign and one of Attention, "),
        ("standard,-QuickGelu", "'-QuickGelu' leaves out no fusion"),
        ("none,-Gelu", "where nothing is fused, no fusion can be left out"),
    ],
)
def test_a_choice_that_is_none(choice, message):
    with pytest.raises(amp.OptionError, match="fuse: ") as caught:
        fusions_of(choice)
    assert message in str(caught.value)


def test_a_choice_is_held_as_it_is_written_in_recipes():
    assert checked_fusions("contrib, -Gelu") == "contrib,-Gelu"


def test_the_table_of_operators_has_every_fused_one():
    table = operator_table()
    assert [name for fusion in FUSIONS for name in fusion.operators if name not in table] == []
    assert max(collections.Counter(fusion.name for fusion in FUSIONS).values()) == 1


def transpiled(body, choice, opset=20, **options):
    settings = {"verify": False, "prefer": "size", "cache": False, **options}
    return amp.transpile(model(opset, body, "[batch,length,8]"), fuse=choice, **settings)


BLOCK = f"{PRODUCT} s = Add (b, z) n = {NORM} l = MatMul (n, w) a = Add (l, other) h = Gelu (a) y = Add (h, s)"


def test_the_report_counts_what_was_fused():
    report = transpiled(BLOCK, "contrib")
    assert report.fused == {"com.microsoft::BiasGelu": 1, "com.microsoft::SkipLayerNormalization": 1}
    (note,) = (note for note in report.notes if note.startswith("fused"))
    assert note == (
        "fused before the decision: 1 BiasGelu, 1 SkipLayerNormalization; the result needs ONNX Runtime, whose own "
        "operators are among them"
    )
    decided = {row.op: row.precision for row in report.decisions}
    assert decided["com.microsoft::BiasGelu"] == decided["com.microsoft::SkipLayerNormalization"] == "float16"


def test_the_result_is_compared_with_the_source():
    report = transpiled(BLOCK, "contrib", verify=True, inputs=feeds())
    assert report.fused
    assert report.outputs["y"].of_all < 0.01
    assert report.verdict_word == "verified"


def test_standard_operators_need_no_onnx_runtime():
    report = transpiled(f"{LAYER_NORM} {AFFINE}", "standard")
    assert report.fused == {"LayerNormalization": 1}
    assert "fused before the decision: 1 LayerNormalization" in report.notes
    assert transpiled(f"{LAYER_NORM} {AFFINE}", "standard", target="tensorrt").fused == {"LayerNormalization": 1}


def test_sizes_are_worked_out_once_for_all_passes(monkeypatch):
    graphs = []
    monkeypatch.setattr(fuse_module, "Sizes", lambda graph: graphs.append(graph) or Sizes(graph))
    _, result = fused(model(20, BLOCK, "[batch,length,8]"))
    assert (result.count, len(graphs)) == (2, 1)


def test_a_model_without_operators_to_fuse_is_left_at_once(monkeypatch):
    monkeypatch.setattr(fuse_module, "reason_against_fusions", None)  # to ask would be an error
    assert transpiled("y = MatMul (x, w)", "contrib").fused == {}


@pytest.mark.parametrize("target", ["tensorrt", "any"])
def test_contrib_operators_are_refused_where_they_may_be_missing(target):
    with pytest.raises(amp.OptionError, match=f"contrib operators .* which target {target} may not have"):
        transpiled(BLOCK, "contrib", target=target)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "O0"}, "fuse has no meaning where nothing is changed"),
        ({"optimize": True}, "optimize and fuse exclude each other"),
    ],
)
def test_options_that_contradict_it(options, message):
    with pytest.raises(amp.OptionError, match=message):
        transpiled(BLOCK, "contrib", **options)


def test_a_kernel_that_errs_in_a_release_is_not_written():
    report = transpiled(BLOCK, "contrib", ort="1.26")  # its sums before a normalisation are 16-bit
    assert report.fused == {"com.microsoft::BiasGelu": 1}
    assert (
        "not fused, since ONNX Runtime 1.26 has no sound float16 kernel for it: SkipLayerNormalization" in report.notes
    )


@pytest.mark.parametrize(
    "name", ["layer norm", "RMS norm", "GELU", "Gelu with a bias", "a sum", "a sum with a bias", "an RMS norm of a sum"]
)
def test_a_fused_operator_costs_what_it_costs_where_onnx_runtime_fuses_it(name):
    opset, body, _ = FUSED[name]
    if name == "an RMS norm of a sum":
        body = body.replace(" y = Add (n, x1)", "").replace("n = Mul (q, scale)", "y = Mul (q, scale)")
    source = plain_copy(amp.load(model(opset, body, SHAPES["static"]))).model
    result = fused(model(opset, body, SHAPES["static"]))[0].model
    device = find_device("H100")
    before, after = (predicted(traffic(each, fuse=True, written=True), device) for each in (source, result))
    assert (after.launches, after.busy_milliseconds) == (before.launches, pytest.approx(before.busy_milliseconds))
