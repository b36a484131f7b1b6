"""Gradients of elementwise operators."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.graph.verifier import verify
from tests.autodiff.gradient_check import (
    TOLERANCE,
    central_differences,
    check_by_differences,
    check_by_torch,
    gradient_model,
    needs_torch,
    relative_error,
    run_gradients,
)

CONTRIB = "com.microsoft"
WIDE_STEP = 4e-3  # the evaluator rounds its error function to float32
F = np.float32
WIDE = np.array([[-4.2, -2.6, -1.3, -0.7], [0.3, 0.9, 1.6, 4.4]], F)  # no kink of any activation
UNIT = np.array([[-0.9, -0.4, 0.2], [0.5, 0.05, 0.95]], F)
ABOVE = np.array([[0.2, 0.7, 1.3], [2.5, 4.0, 9.0]], F)
PAIR = {"x": np.array([[1.5, -2.1, 0.7]], F), "z": np.array([[0.4], [-3.1]], F)}
THREE = {"x": np.array([1.0, 5.0, -2.0], F), "z": np.array([[2.0], [-4.0]], F), "w": np.array(0.5, F)}

UNARY = [
    ("Neg(x)", WIDE),
    ("Abs(x)", WIDE),
    ("Sqrt(x)", ABOVE),
    ("Reciprocal(x)", WIDE),
    ("Identity(x)", WIDE),
    ("Sum(x)", WIDE),
    ("Mean(x)", WIDE),
    ("Max(x)", WIDE),
    ("Min(x)", WIDE),
    ("Sum(x, x, x)", WIDE),
    ("Exp(x)", WIDE),
    ("Log(x)", ABOVE),
    ("Sin(x)", WIDE),
    ("Cos(x)", WIDE),
    ("Tan(x)", UNIT),
    ("Asin(x)", UNIT),
    ("Acos(x)", UNIT),
    ("Atan(x)", WIDE),
    ("Sinh(x)", WIDE),
    ("Cosh(x)", WIDE),
    ("Asinh(x)", WIDE),
    ("Acosh(x)", ABOVE + F(1)),
    ("Atanh(x)", UNIT),
    ("Tanh(x)", WIDE),
    ("Sigmoid(x)", WIDE),
    ("Relu(x)", WIDE),
    ("LeakyRelu(x)", WIDE),
    ("LeakyRelu<alpha = 0.3>(x)", WIDE),
    ("Elu(x)", WIDE),
    ("Elu<alpha = 1.7>(x)", WIDE),
    ("Selu(x)", WIDE),
    ("Selu<alpha = 0.8, gamma = 1.5>(x)", WIDE),
    ("Celu(x)", WIDE),
    ("Celu<alpha = 2.5>(x)", WIDE),
    ("ThresholdedRelu(x)", WIDE),
    ("ThresholdedRelu<alpha = 0.5>(x)", WIDE),
    ("HardSigmoid(x)", WIDE),
    ("HardSigmoid<alpha = 0.3, beta = 0.4>(x)", WIDE),
    ("HardSigmoid<alpha = -0.3>(x)", WIDE),
    ("HardSwish(x)", WIDE),
    ("Softplus(x)", WIDE),
    ("Softsign(x)", WIDE),
    ('Gelu<approximate = "tanh">(x)', WIDE),
    ("Mish(x)", WIDE),
]
BY_ERF = [("Erf(x)", UNIT), ("Gelu(x)", WIDE)]
BINARY = [
    ("Div(x, z)", PAIR),
    ("Mod<fmod = 1>(x, z)", PAIR),
    ("Pow(x, z)", {"x": np.abs(PAIR["x"]), "z": PAIR["z"]}),
    ("Sum(x, z, w)", THREE),
    ("Mean(x, z, w)", {"x": WIDE, "z": WIDE[0], "w": WIDE[:, :1].copy()}),
    ("Max(x, z, w)", THREE),
    ("Min(x, z, w)", THREE),
    ("PRelu(x, w)", {"x": WIDE, "w": np.array([0.2, -0.3, 1.5, 0.0], F)}),
    ("PRelu(x, w)", {"x": WIDE, "w": np.array([0.25], F)}),
    ("Clip(x, z, w)", {"x": WIDE, "z": np.array(-1.0, F), "w": np.array(1.5, F)}),
    ("Clip(x, , w)", {"x": WIDE, "w": np.array(1.5, F)}),
    ("Clip(x, z)", {"x": WIDE, "z": np.array(-1.0, F)}),
    ("Clip(x)", {"x": WIDE}),
    ("Where(c, x, z)", {"c": np.array([[True], [False]]), **PAIR}),
    ("CastLike(x, z)", PAIR),
]


def declared(name: str, array: np.ndarray, element: str = "float") -> str:
    shape = f"[{','.join(map(str, array.shape))}]" if array.shape else ""
    return f"{'bool' if array.dtype == bool else element}{shape} {name}"


def text(body: str, feeds: dict[str, np.ndarray], opset: int = 21, element: str = "float") -> str:
    """The model of `body`, an expression or statements that make `y`, as ONNX text."""
    body = body if "=" in body.split("(", maxsplit=1)[0].split("<", maxsplit=1)[0] else f"y = {body}"
    inputs = ", ".join(declared(name, array, element) for name, array in feeds.items())
    imports = f'["" : {opset}, "{CONTRIB}" : 1]'
    hidden = f"<{element}[] q>" if CONTRIB in body else ""  # ONNX does not know the types of that domain
    return f"<ir_version: 10, opset_import: {imports}> g ({inputs}) => ({element}[] y) {hidden} {{ {body} }}"


@pytest.mark.parametrize(("body", "x"), UNARY)
def test_unary(body, x):
    check_by_differences(text(body, {"x": x}), {"x": x})


@pytest.mark.parametrize(("body", "x"), BY_ERF)
def test_those_by_the_error_function(body, x):
    model = text(body, {"x": x})
    slopes, seeds = run_gradients(onnx.parser.parse_model(model), {"x": x})
    assert relative_error(slopes["x"], central_differences(model, {"x": x}, seeds, "x", step=WIDE_STEP)) < TOLERANCE


@pytest.mark.parametrize(("body", "feeds"), BINARY)
def test_several_operands(body, feeds):
    slopes = check_by_differences(text(body, feeds), feeds)
    wanted = {name for name in feeds if name != "c" and not (body.startswith("CastLike") and name == "z")}
    assert set(slopes) == wanted


@pytest.mark.parametrize(
    "exponent",
    [f"float c {{{c}}}" for c in (0.0, 0.5, 1.0, 2.0, 3.0, -1.5)]
    + [f"int64 c {{{c}}}" for c in (0, 1, 2, 3)]
    + ["float[1] c {2.0}", "float[3] c {0.0, 1.0, 2.5}", "int64[3] c {0, 2, 3}"],
)
def test_powers_that_are_constant(exponent):
    feeds = {"x": ABOVE}
    check_by_differences(text(f"c = Constant<value = {exponent}>() y = Pow(x, c)", feeds), feeds)


@pytest.mark.parametrize("opset", [13, 15, 17, 24, 26])
@pytest.mark.parametrize(
    "body", ["Clip(x, z, w)", "Max(x, z, w)", "PRelu(x, w)", "Div(x, w)", "Softsign(x)", "Mean(x, z)"]
)
def test_other_opsets(opset, body):
    feeds = {"x": WIDE, "z": np.array(-1.0, F), "w": np.array(1.5, F)}
    feeds = {name: array for name, array in feeds.items() if name in body}
    check_by_differences(text(body, feeds, opset), feeds)


@pytest.mark.parametrize("body", ["Swish(x)", "Swish<alpha = 0.6>(x)"])
def test_swish_of_opset_24(body):
    check_by_differences(text(body, {"x": WIDE}, 24), {"x": WIDE})


def test_range():
    feeds = {"x": np.array(0.5, F), "z": np.array(4.0, F), "w": np.array(0.75, F)}
    slopes = check_by_differences(text("Range(x, z, w)", feeds), feeds)
    assert set(slopes) == {"x", "w"}


TANH = (
    "h = Constant<value = float h {0.5}>() k = Constant<value = float k {0.7978845608}>() "
    "c = Constant<value = float c {0.044715}>() one = Constant<value = float one {1}>() "
    "s = Mul(v, v) cs = Mul(c, s) p = Add(one, cs) vp = Mul(v, p) u = Mul(k, vp) t = Tanh(u) r = Add(one, t) "
    "hv = Mul(h, v) y = Mul(hv, r)"
)
SWISH = "a = Constant<value = float a {%s}>() ax = Mul(a, x) s = Sigmoid(ax) y = Mul(x, s)"
BIASED = {"x": WIDE, "z": np.array([0.3, -0.2, 0.9, 0.1], F)}


def fused(body: str) -> str:
    """The operator and a Reshape to the shape of WIDE, which ONNX does not infer."""
    return f"q = {CONTRIB}.{body} k = Constant<value = int64[2] {{2, 4}}>() y = Reshape(q, k)"


FUSED = [
    ("Gelu(x)", {"x": WIDE}, "y = Gelu(x)"),
    ("BiasGelu(x, z)", BIASED, "v = Add(x, z) y = Gelu(v)"),
    ("FastGelu(x)", {"x": WIDE}, f"v = Identity(x) {TANH}"),
    ("FastGelu(x, z)", BIASED, f"v = Add(x, z) {TANH}"),
    ("QuickGelu(x)", {"x": WIDE}, SWISH % "1.702"),
    ("QuickGelu<alpha = 1.1>(x)", {"x": WIDE}, SWISH % "1.1"),
]


@pytest.mark.parametrize(("body", "feeds", "same"), FUSED)
def test_operators_of_onnx_runtime_against_what_they_fuse(body, feeds, same):
    model = onnx.parser.parse_model(text(fused(body), feeds))
    slopes, seeds = run_gradients(model, feeds)
    assert set(slopes) == set(feeds)
    for name, grad in slopes.items():
        want = central_differences(text(same, feeds), feeds, seeds, name, step=WIDE_STEP)
        assert relative_error(grad, want) < TOLERANCE


# Against torch, at kinks, ties and infinities too.

KINKS = np.array([-3.5, -1.0, -0.0, 0.0, 1.0, 2.0, 40.0, -40.0], F)
CLIP = "a = Squeeze(z) b = Squeeze(w) y = Clip(x, a, b)"


def torch_cases():
    import torch
    from torch.nn import functional as f

    tied = {"x": np.array([1.0, 2.0, -1.0], F), "z": np.array([[1.0], [2.0]], F)}
    bases = {"x": np.array([0.0, 0.0, 2.0, 3.0], F), "z": np.array([0.0, 2.0, 0.0, 1.5], F)}
    return {
        "Relu(x)": ({"x": KINKS}, f.relu),
        "LeakyRelu(x)": ({"x": KINKS}, lambda x: f.leaky_relu(x, 0.01)),
        "PRelu(x, z)": ({"x": KINKS, "z": np.array([0.2], F)}, f.prelu),
        "Elu(x)": ({"x": KINKS}, f.elu),
        "Selu(x)": ({"x": KINKS}, f.selu),
        "Celu<alpha = 2.0>(x)": ({"x": KINKS}, lambda x: f.celu(x, 2.0)),
        "Abs(x)": ({"x": KINKS}, torch.abs),
        "Softplus(x)": ({"x": KINKS}, lambda x: f.softplus(x, threshold=1e9)),
        "Softsign(x)": ({"x": KINKS}, f.softsign),
        "Gelu(x)": ({"x": KINKS}, f.gelu),
        'Gelu<approximate = "tanh">(x)': ({"x": KINKS}, lambda x: f.gelu(x, approximate="tanh")),
        "Mish(x)": ({"x": KINKS}, f.mish),
        "HardSwish(x)": ({"x": KINKS}, f.hardswish),
        "Sigmoid(x)": ({"x": KINKS}, torch.sigmoid),
        "Tanh(x)": ({"x": KINKS}, torch.tanh),
        "Erf(x)": ({"x": KINKS}, torch.erf),
        "Asinh(x)": ({"x": KINKS}, torch.asinh),
        "Atan(x)": ({"x": KINKS}, torch.atan),
        "Max(x, z)": (tied, torch.maximum),
        "Min(x, z)": (tied, torch.minimum),
        "Pow(x, z)": (bases, torch.pow),
        "Div(x, z)": ({"x": np.array([0.0, 1e20, -3.0], F), "z": np.array([2.0, 1e20, 1e-5], F)}, torch.div),
        "Where(c, x, z)": ({"c": np.array([[True], [False]]), **PAIR}, torch.where),
        CLIP: ({"x": KINKS, "z": np.array([-1.5], F), "w": np.array([1.5], F)}, torch.clamp),
        "Mod<fmod = 1>(x, z)": (PAIR, torch.fmod),
    }


TORCH_NAMES = [
    *("Relu(x)", "LeakyRelu(x)", "PRelu(x, z)", "Elu(x)", "Selu(x)", "Celu<alpha = 2.0>(x)", "Abs(x)", "Softplus(x)"),
    *("Softsign(x)", "Gelu(x)", 'Gelu<approximate = "tanh">(x)', "Mish(x)", "HardSwish(x)", "Sigmoid(x)", "Tanh(x)"),
    *("Erf(x)", "Asinh(x)", "Atan(x)", "Max(x, z)", "Min(x, z)", "Pow(x, z)", "Div(x, z)", "Where(c, x, z)"),
    *(CLIP, "Mod<fmod = 1>(x, z)"),
]


@needs_torch
@pytest.mark.parametrize("body", TORCH_NAMES)
def test_kinks_ties_and_large_numbers_as_in_torch(body):
    feeds, function = torch_cases()[body]
    check_by_torch(text(body, feeds), feeds, lambda **tensors: function(*tensors.values()))


def gradients_at(body: str, ones_like: str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients where the cotangent is one everywhere."""
    model = onnx.parser.parse_model(text(body, feeds))
    return run_gradients(model, feeds, seeds={"y": np.ones_like(feeds[ones_like])})[0]


@pytest.mark.parametrize(
    ("body", "feeds", "want"),
    [
        ("Relu(x)", {"x": [0.0, -0.0, 1.0, -1.0]}, {"x": [0, 0, 1, 0]}),
        ("Abs(x)", {"x": [0.0, 2.0, -2.0]}, {"x": [0, 1, -1]}),
        ("Sqrt(x)", {"x": [0.0, 4.0]}, {"x": [np.inf, 0.25]}),
        ("Max(x, z, w)", {"x": [1.0, 1.0, 1.0], "z": [1.0, 1.0, 0.0], "w": [1.0, 0.0, 2.0]},
         {"x": [1 / 3, 0.5, 0], "z": [1 / 3, 0.5, 0], "w": [1 / 3, 0, 1]}),
        ("Min(x, z)", {"x": [1.0, 1.0], "z": [1.0, 0.0]}, {"x": [0.5, 0], "z": [0.5, 1]}),
        ("Pow(x, z)", {"x": [0.0, 0.0, 0.0], "z": [0.0, 1.0, 2.0]}, {"x": [0, 1, 0], "z": [0, 0, 0]}),
        ("Clip(x, z, w)", {"x": [-1.0, 0.5, 2.0], "z": [-1.0] , "w": [2.0]}, {"x": [1, 1, 1], "z": [0], "w": [0]}),
        ("Clip(x, z, w)", {"x": [-1.0, 0.5, 9.0], "z": [3.0] , "w": [2.0]}, {"x": [0, 0, 0], "z": [0], "w": [3]}),
    ],
)  # fmt: skip
def test_special_values(body, feeds, want):
    arrays = {name: np.array(value, F) for name, value in feeds.items()}
    if body.startswith("Clip"):
        arrays |= {name: arrays[name].reshape(()) for name in ("z", "w")}
    slopes = gradients_at(body, "x", arrays)
    for name, value in want.items():
        np.testing.assert_allclose(slopes[name].reshape(-1), value)


# Operators without a gradient.

STEPS = ["Floor(x)", "Ceil(x)", "Round(x)", "Sign(x)", "Hardmax(x)"]


@pytest.mark.parametrize("body", STEPS)
def test_steps_pass_nothing_on(body):
    check_by_differences(text(f"s = {body} y = Mul(s, x)", {"x": WIDE}), {"x": WIDE})
    _, names = gradient_model(onnx.parser.parse_model(text(body, {"x": WIDE})))
    assert names == []


@pytest.mark.parametrize(
    "condition",
    [f"c = {op}(x, z)" for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")]
    + [f"a = Less(x, z) b = IsNaN(x) c = {op}(a, b)" for op in ("And", "Or", "Xor")]
    + ["a = Less(x, z) c = Not(a)", "c = IsInf(x)"],
)
def test_truth_values_pass_nothing_on(condition):
    feeds = {"x": WIDE, "z": WIDE[::-1].copy()}
    check_by_differences(text(f"{condition} s = Mul(x, x) y = Where(c, s, z)", feeds), feeds)


@pytest.mark.parametrize(
    "body",
    [
        "i = ArgMax<axis = 1>(x) f = CastLike(i, x) y = Mul(f, x)",
        "i = ArgMin<axis = 1>(x) f = CastLike(i, x) y = Mul(f, x)",
        "i = Shape(x) s = ConstantOfShape<value = float[1] {2.0}>(i) y = Mul(s, x)",
        "i = Size(x) f = CastLike(i, x) y = Mul(f, x)",
        "n = NonZero(x) f = CastLike(n, x) y = Mul(f, x)",
        "e = EyeLike(x) y = Mul(e, x)",
    ],
)
def test_what_is_no_function_of_the_elements(body):
    x = WIDE if "NonZero" not in body else np.array([[1.5, -2.0]], F)
    check_by_differences(text(body, {"x": x}), {"x": x})


# Dropout.

RATIO = "r = Constant<value = float r {%s}>() "
TRAINING = "t = Constant<value = bool t {%d}>() "


@pytest.mark.parametrize(
    ("body", "scale"),
    [
        (f"{RATIO % 0.25}{TRAINING % 1} y = Dropout(x, r, t)", 4 / 3),
        (f"{RATIO % 0.25}{TRAINING % 1} y, m = Dropout(x, r, t)", 4 / 3),
        (f"{TRAINING % 1} y = Dropout(x, , t)", 2.0),
        (f"{RATIO % 0.25}{TRAINING % 0} y = Dropout(x, r, t)", 1.0),
        (f"{RATIO % 0.25} y = Dropout(x, r)", 1.0),
        ("y = Dropout(x)", 1.0),
        ("y = Dropout(x, r, t)", 4 / 3),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_dropout(body, scale, training):
    feeds = {"x": np.ones((40, 50), F)}
    at_run_time = body.startswith("y = Dropout(x, r, t)")
    if at_run_time:
        feeds |= {"r": np.array(0.25, F), "t": np.array(training)}
        scale = scale if training else 1.0
    backward, names = gradient_model(onnx.parser.parse_model(text(body, feeds)), ["x"])
    assert names == ["x"]
    session = onnxruntime.InferenceSession(backward.SerializeToString(), providers=["CPUExecutionProvider"])
    seed = np.random.default_rng(0).normal(size=(40, 50)).astype(F)
    y, grad = session.run(["y", "grad_x"], {**feeds, "y__seed": seed})
    share_left = np.mean(y != 0)
    assert (share_left == 1) if scale == 1 else abs(share_left - 1 / scale) < 0.05
    np.testing.assert_allclose(y[y != 0], scale, rtol=1e-6)
    np.testing.assert_allclose(grad, seed * (y != 0) * F(scale), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the evaluator divides by zero in the forward pass
@pytest.mark.parametrize("at_run_time", [True, False])
def test_dropout_of_everything(at_run_time):
    feeds = {"x": WIDE}
    body = f"{RATIO % 0.999999999}{TRAINING % 1} y = Dropout(x, r, t)"  # ONNX Runtime takes no 1
    assert np.float32(0.999999999) == 1
    if at_run_time:
        body, feeds = f"{TRAINING % 1} y = Dropout(x, r, t)", {"x": WIDE, "r": np.array(1.0, F)}
    backward, _ = gradient_model(onnx.parser.parse_model(text(body, feeds)), ["x"])
    evaluator = onnx.reference.ReferenceEvaluator(backward)
    grad = evaluator.run(["grad_x"], {**feeds, "y__seed": WIDE})[0]
    assert not np.any(grad)


# Element types.

TYPED = [
    *((body, {"x": x}) for body, x in UNARY + BY_ERF if not body.startswith("Celu")),  # float32 only
    *BINARY,
    *((fused(body), feeds) for body, feeds, _ in FUSED),
    ("c = Constant<value = float c {2.0}>() y = Pow(x, c)", {"x": WIDE}),
    ("c = Constant<value = int64 c {3}>() y = Pow(x, c)", {"x": WIDE}),
    ("Add(x, z)", PAIR),
    ("Sub(x, z)", PAIR),
    ("Mul(x, z)", PAIR),
    ("Swish(x)", {"x": WIDE}),
    (f"{RATIO % 0.1}{TRAINING % 1} y = Dropout(x, r, t)", {"x": WIDE}),
    (f"{RATIO % 0.5}{TRAINING % 1} y = Dropout(x, r, t)", {"x": WIDE}),
    *((f"s = {body} y = Mul(s, x)", {"x": WIDE}) for body in STEPS),
]


@pytest.mark.parametrize("element", ["float16", "bfloat16", "double"])
@pytest.mark.parametrize(("body", "feeds"), TYPED)
def test_gradients_have_the_type_and_shape_of_their_inputs(body, feeds, element):
    backward, names = gradient_model(onnx.parser.parse_model(text(body, feeds, 24, element)))
    model = ir.from_proto(backward)
    verify(model, "differentiation")
    assert names
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    for name in names:
        assert outputs[f"grad_{name}"].dtype == inputs[name].dtype
        assert outputs[f"grad_{name}"].shape == inputs[name].shape


@pytest.mark.parametrize(
    ("body", "x", "want"),
    [
        ("Reciprocal(x)", 0.005, -4e4),
        ("Tan(x)", 1.5, 1 + np.tan(1.5) ** 2),
        ('Gelu<approximate = "tanh">(x)', 300.0, 1.0),
        ("Gelu(x)", 300.0, 1.0),
        ("Gelu(x)", -300.0, 0.0),
        ("Mish(x)", 10.0, 1.0),
        ("Softsign(x)", 400.0, 1 / 401**2),
        ("Div(z, x)", 300.0, -300.0 / 300.0**2),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")  # of what only makes a vanishing factor vanish
def test_large_results_in_float16(body, x, want):
    feeds = {"x": np.array([x], np.float16)}
    feeds |= {"z": np.array([300.0], np.float16)} if "z" in body else {}
    backward, _ = gradient_model(onnx.parser.parse_model(text(body, feeds, 21, "float16")), ["x"])
    grad = onnx.reference.ReferenceEvaluator(backward).run(["grad_x"], {**feeds, "y__seed": np.ones(1, np.float16)})[0]
    assert grad.dtype == np.float16
    np.testing.assert_allclose(grad.astype(np.float64), want, rtol=5e-3, atol=1e-4)
