"""Gradients of ONNX Runtime's fused operators, against differences of its own kernels along random directions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.verifier import faults
from tests.autodiff.gradient_check import gradient_model, run_gradients

RANDOM = np.random.default_rng(11)
STEP = 1e-2


def draw(*shape):
    return (RANDOM.normal(size=shape) * 0.5).astype("f")


def ids(*shape, most=6):
    return RANDOM.integers(0, most, shape).astype(np.int32)


ANGLES = np.arange(8)[:, None] / 3.0 ** np.arange(8)[None]
COSINES, SINES = np.cos(ANGLES).astype("f"), np.sin(ANGLES).astype("f")
COSINE, SINE = COSINES[:, :4], SINES[:, :4]
LAST = np.array([4, 4], np.int32)
TOTAL = np.array(5, np.int32)

# name: (call, feeds); `x` and the like are floats to differentiate by, ids and masks are not
CASES = {
    "SkipLayerNormalization": (
        "SkipLayerNormalization(x, s, g, b)",
        {"x": (2, 3, 8), "s": (2, 3, 8), "g": (8,), "b": (8,)},
    ),
    "with a bias": (
        "SkipLayerNormalization(x, s, g, b, c)",
        {"x": (2, 3, 8), "s": (2, 3, 8), "g": (8,), "b": (8,), "c": (8,)},
    ),
    "simplified": ("SkipSimplifiedLayerNormalization(x, s, g)", {"x": (2, 3, 8), "s": (2, 3, 8), "g": (8,)}),
    "EmbedLayerNormalization": (
        "EmbedLayerNormalization(i, j, w, p, t, g, b)",
        {"i": ids(2, 3), "j": ids(2, 3, most=2), "w": (6, 8), "p": (5, 8), "t": (2, 8), "g": (8,), "b": (8,)},
    ),
    "Trilu": ("Trilu<upper = 0>(x)", {"x": (4, 5)}),
    "FusedConv": (
        'FusedConv<activation = "Tanh", pads = [1, 1, 1, 1]>(x, w, b)',
        {"x": (2, 2, 4, 4), "w": (3, 2, 3, 3), "b": (3,)},
    ),
    "FusedGemm": (
        'FusedGemm<activation = "Tanh", transB = 1, alpha = 0.5>(x, w, b)',
        {"x": (3, 4), "w": (5, 4), "b": (5,)},
    ),
    "Attention": ("Attention<num_heads = 2>(x, w, b)", {"x": (2, 4, 8), "w": (8, 24), "b": (24,)}),
    "Attention, masked": (
        "Attention<num_heads = 2, scale = 0.4>(x, w, b, m)",
        {"x": (2, 4, 8), "w": (8, 24), "b": (24,), "m": np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)},
    ),
    "Attention, lengths": (
        "Attention<num_heads = 2>(x, w, b, m)",
        {"x": (2, 4, 8), "w": (8, 24), "b": (24,), "m": np.array([3, 4], np.int32)},
    ),
    "Attention, causal": (
        "Attention<num_heads = 2, unidirectional = 1>(x, w, b)",
        {"x": (2, 4, 8), "w": (8, 24), "b": (24,)},
    ),
    "Attention, of other widths": (
        "Attention<num_heads = 2, qkv_hidden_sizes = [8, 8, 4]>(x, w, b)",
        {"x": (2, 4, 8), "w": (8, 20), "b": (20,)},
    ),
    "MultiHeadAttention": (
        "MultiHeadAttention<num_heads = 2>(q, k, v, b)",
        {"q": (2, 3, 8), "k": (2, 5, 8), "v": (2, 5, 8), "b": (24,)},
    ),
    "MultiHeadAttention, masked": (
        'MultiHeadAttention<num_heads = 2>(q, k, v, "", m, r)',
        {
            "q": (2, 3, 8),
            "k": (2, 5, 8),
            "v": (2, 5, 8),
            "m": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32),
            "r": (1, 2, 3, 5),
        },
    ),
    "GroupQueryAttention": (
        'GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(q, k, v, "", "", l, t)',
        {"q": (2, 5, 64), "k": (2, 5, 32), "v": (2, 5, 32), "l": LAST, "t": TOTAL},
    ),
    "GroupQueryAttention, rotated": (
        'GroupQueryAttention<num_heads = 4, kv_num_heads = 2, do_rotary = 1>(q, k, v, "", "", l, t, cosine, sine)',
        {"q": (2, 5, 64), "k": (2, 5, 32), "v": (2, 5, 32), "l": LAST, "t": TOTAL, "cosine": COSINES, "sine": SINES},
    ),
    "GroupQueryAttention, packed, in a window": (
        'GroupQueryAttention<num_heads = 4, kv_num_heads = 2, local_window_size = 2>(q, "", "", "", "", l, t)',
        {"q": (2, 5, 128), "l": LAST, "t": TOTAL},
    ),
    "RotaryEmbedding": (
        "RotaryEmbedding(x, p, cosine, sine)",
        {"x": (2, 3, 8), "p": np.array([[0, 1, 2], [3, 4, 5]]), "cosine": COSINE, "sine": SINE},
    ),
    "RotaryEmbedding, interleaved, by heads": (
        "RotaryEmbedding<interleaved = 1>(x, p, cosine, sine)",
        {"x": (2, 2, 3, 8), "p": np.array([1]), "cosine": COSINE, "sine": SINE},
    ),
    "RotaryEmbedding, in part": (
        "RotaryEmbedding<num_heads = 2, rotary_embedding_dim = 8>(x, p, cosine, sine)",
        {"x": (2, 3, 32), "p": np.array([0]), "cosine": COSINE, "sine": SINE},
    ),
}


SHAPES = {}  # case -> shape of its result


def built(name, element="float"):
    """Return the case as ONNX text, and its feeds."""
    call, inputs = CASES[name]
    feeds = {key: value if isinstance(value, np.ndarray) else draw(*value) for key, value in inputs.items()}
    types = []
    for key, value in feeds.items():
        kind = element if value.dtype.kind == "f" else f"int{8 * value.dtype.itemsize}"
        sizes = f"[{','.join(map(str, value.shape))}]" if value.ndim else ""
        types.append(f"{kind}{sizes} {key}")
    head = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
    more = ", n" if name == "EmbedLayerNormalization" else ""  # its second output must be there
    text = f"{head} g ({', '.join(types)}) => ({element}[] y) DECLARED {{ BODY }}"
    if element == "float":
        session = opened(text.replace("DECLARED", "").replace("BODY", f"y{more} = com.microsoft.{call}"))
        SHAPES[name] = session.run(["y"], feeds)[0].shape
    declared = f"<{element}[{','.join(map(str, SHAPES[name]))}] h>"  # ONNX infers no shape of these operators
    return text.replace("DECLARED", declared).replace("BODY", f"h{more} = com.microsoft.{call} y = Identity(h)"), feeds


def opened(text):
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    text, feeds = built(name)
    model = onnx.parser.parse_model(text)
    wrt = [key for key, value in feeds.items() if value.dtype.kind == "f" and key not in ("cosine", "sine")]
    slopes, seeds = run_gradients(model, feeds, wrt)
    assert set(slopes) == set(wrt)
    session = opened(text)

    def value(key, moved):
        [y] = session.run(["y"], {**feeds, key: feeds[key] + moved.astype("f")})
        return float((y.astype(np.float64) * seeds["y"]).sum())

    for key, grad in slopes.items():
        assert grad.shape == feeds[key].shape
        along = RANDOM.normal(size=grad.shape)
        along *= np.sign(along * grad)  # no cancellation between elements, which would leave rounding alone
        near, far = (value(key, STEP * k * along) - value(key, -STEP * k * along) for k in (1, 2))
        want = (8 * near - far) / (12 * STEP)
        assert abs((grad * along).sum() - want) < 5e-3 * max(abs(want), 1e-2), key


@pytest.mark.parametrize("name", ["SkipLayerNormalization", "Attention, masked", "FusedGemm", "RotaryEmbedding"])
def test_low_gradients_have_the_type_of_their_input(name):
    built(name)
    backward, names = gradient_model(onnx.parser.parse_model(built(name, "float16")[0]))
    assert not list(faults(ir.from_proto(backward)))
    types = {v.name: v.type.tensor_type.elem_type for v in [*backward.graph.input, *backward.graph.output]}
    assert names
    assert all(types[f"grad_{name}"] == types[name] for name in names)


@pytest.mark.parametrize(
    ("call", "types", "problem"),
    [
        (
            'MultiHeadAttention<num_heads = 2>(q, k, k, "", "", "", p, p)',
            "float[2,3,8] q, float[2,3,8] k, float[2,2,4,4] p",
            "cache",
        ),
        ("MultiHeadAttention<num_heads = 2>(q)", "float[2,3,2,3,4] q", "packed in one tensor"),
        ('FusedGemm<activation = "Celu">(q, k)', "float[2,3] q, float[3,4] k", "'Celu' is not supported"),
    ],
)
def test_refusals(call, types, problem):
    head = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
    with pytest.raises(ModelError, match=problem):
        gradient_model(onnx.parser.parse_model(f"{head} g ({types}) => (float y) {{ y = com.microsoft.{call} }}"))
