"""What ONNX Runtime fuses on CUDA computes as the fused kernel does; what it does not fuse stays as written."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.passes.device_arithmetic.simulate import simulated
from amp_transpiler.runtime.probe.arithmetic import Rounding, erf, gelu, normalized, softmax
from amp_transpiler.targets.arithmetic import arithmetic_of
from tests import support
from tests.support import NUMPY, array, parse

H100 = arithmetic_of("H100", "1.31")
ROUNDINGS = {"float16": Rounding(FLOAT16), "bfloat16": Rounding(BFLOAT16)}


def low(values, dtype):
    return np.asarray(values, np.float32).astype(NUMPY[dtype])


WEIGHTS = {
    "half": 0.5,
    "one": 1.0,
    "root": np.sqrt(2.0),
    "factor": 1.702,
    "scale": 0.3,
    "two": 2.0,
    "small": 1e-5,
    "gain": array(16, seed=5, low=0.5),
    "bias": array(16, seed=6),
    "w": array(16, 16, seed=7),
    "mask": np.triu(np.full((1, 8, 16), -30.0)),
}
ERF_GELU = "d = Div (x, root) e = Erf (d) p = Add (e, one) m = Mul (x, p) y = Mul (m, half)"
RMS = (
    "s = Pow (x, two) v = ReduceMean <axes = [-1]> (s) t = Add (v, small) q = Sqrt (t) n = Div (x, q) y = Mul (n, gain)"
)
LAYER = """c = ReduceMean <axes = [-1]> (x) d = Sub (x, c) s = Pow (d, two) v = ReduceMean <axes = [-1]> (s)
    t = Add (v, small) q = Sqrt (t) n = Div (d, q) g = Mul (n, gain) y = Add (g, bias)"""


def wide(dtype):
    return {name: low(value, dtype).astype(np.float64) for name, value in WEIGHTS.items()}


def bias_gelu(r, x, w):
    total = r(x + w["bias"])
    share = r(r(erf(r(total * r.constant(np.sqrt(0.5))))) + 1)
    return r(r(total * 0.5) * share)


def quick_gelu(r, x, w):
    scaled = r(w["factor"] * x)
    with np.errstate(over="ignore"):
        positive = r(1 / r(1 + r(np.exp(-scaled))))
        negative = r(1 - r(1 / r(1 + r(np.exp(scaled)))))
    return r(x * np.where(scaled >= 0, positive, negative))


def rms(r, x, w):
    return r(x / np.sqrt((x * x).mean(-1, keepdims=True) + w["small"]) * w["gain"])


FUSED = {
    # pattern: (nodes, formats, what the fused kernel computes, results that may be a unit off)
    "x * Sigmoid(x)": ("s = Sigmoid (x) y = Mul (x, s)", ("float16", "bfloat16"), lambda r, x, w: r.silu(x), 0),
    "x * Sigmoid(c * x)": (
        "c = Mul (x, factor) s = Sigmoid (c) y = Mul (x, s)",
        ("float16",),
        quick_gelu,
        0,
    ),
    "GELU by erf": (ERF_GELU, ("float16",), lambda r, x, w: r(gelu(x)), 6),
    "a bias and GELU": (f"b = Add (x, bias) {ERF_GELU.replace('(x', '(b')}", ("float16",), bias_gelu, 2),
    "a product and a factor": (
        "p = MatMul (x, w) y = Mul (p, scale)",
        ("float16", "bfloat16"),
        lambda r, x, w: r(x @ w["w"] * w["scale"]),
        1,
    ),
    "a mask and a softmax": (
        "m = Add (x, mask) y = Softmax <axis = -1> (m)",
        ("float16",),
        lambda r, x, w: r(softmax(x + w["mask"])),
        2,
    ),
    "RMS normalisation": (RMS, ("float16", "bfloat16"), rms, 2),
    "layer normalisation": (
        LAYER,
        ("float16", "bfloat16"),
        lambda r, x, w: r(normalized(x, w["small"]) * w["gain"] + w["bias"]),
        2,
    ),
}
ROWS = [(name, dtype) for name, (_, formats, _, _) in FUSED.items() for dtype in formats]


def model_of(nodes, dtype, outputs=""):
    names = [name for name in WEIGHTS if f"{name})" in nodes or f"({name}," in nodes]
    weights = {name: low(WEIGHTS[name], dtype) for name in names}
    return parse(f"({dtype}[2,8,16] x) => ({dtype}[2,8,16] y{outputs}) {{ {nodes} }}", opset=17, **weights)


def on_device(model, x):
    return emulated(simulated(amp.load(model), H100).program, x)


def emulated(program, x):
    session = amp.Session(amp.emulate(program), amp.CPUPlace(), emulate=False)
    return session.run({"x": x}, ["y"])[0].astype(np.float64)


@pytest.mark.parametrize(("name", "dtype"), ROWS)
def test_a_fused_pattern_is_its_kernel(name, dtype):
    nodes, _, kernel, few = FUSED[name]
    x, r = low(array(2, 8, 16, scale=2.0), dtype), ROUNDINGS[dtype]
    result, expected = on_device(model_of(nodes, dtype), x), kernel(r, x.astype(np.float64), wide(dtype))
    differing = (result != expected).sum()
    assert differing <= few
    np.testing.assert_allclose(result, expected, rtol=2.0 ** (1 - r.low.digits), atol=1e-6)
    plain = emulated(model_of(nodes, dtype), x)
    assert (plain != expected).sum() > max(10, differing), "rounded after every node it is another result"


@pytest.mark.parametrize(("name", "dtype"), ROWS)
def test_what_is_read_elsewhere_is_not_fused(name, dtype):
    """The first node's result leaves the program; so ONNX Runtime cannot do without it."""
    nodes = FUSED[name][0]
    first = nodes.split(" ", 1)[0]
    model = model_of(nodes, dtype, outputs=f", {dtype} {first}")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    x = low(array(2, 8, 16, scale=2.0), dtype)
    program = simulated(amp.load(model), H100).program
    assert not [node for node in support.nodes(program) if node.domain == "com.microsoft"]
    assert first in {value.name for value in program.model.graph.outputs}
    results = amp.Session(amp.emulate(program), amp.CPUPlace(), emulate=False).run({"x": x})
    assert results[0].shape == x.shape


NOT_FUSED = {
    # why not: (nodes, format)
    "bfloat16 has no such kernel: GELU by erf": (ERF_GELU, "bfloat16"),
    "bfloat16 has no such kernel: a mask": (FUSED["a mask and a softmax"][0], "bfloat16"),
    "another value is multiplied": ("s = Sigmoid (x) n = Neg (x) y = Mul (n, s)", "float16"),
    "the factor is no number": ("p = MatMul (x, w) y = Mul (p, gain)", "float16"),
    "a softmax of another axis": ("m = Add (x, mask) y = Softmax <axis = 1> (m)", "float16"),
    "both summands have one shape": ("m = Add (x, x) y = Softmax <axis = -1> (m)", "float16"),
}


@pytest.mark.parametrize("name", NOT_FUSED)
def test_other_nodes_round_after_each(name):
    """So they compute what the plain emulation does, but for kernels with rules of their own, of which there is one."""
    nodes, dtype = NOT_FUSED[name]
    model, x = model_of(nodes, dtype), low(array(2, 8, 16, scale=2.0), dtype)
    expected = emulated(model, x)
    result = on_device(model, x)
    assert (result != expected).sum() <= (1 if "Sigmoid" in nodes else 0)
