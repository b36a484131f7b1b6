"""Operators as exporters write them out, which ONNX Runtime's optimizer makes one of again: one row a form.

Each form takes `h`, the result of a matrix product, and makes `r`, which another one reads.
"""

import dataclasses

import numpy as np

from tests.support import array, parse


@dataclasses.dataclass(frozen=True)
class Fusion:
    """A form, the operators that ONNX Runtime's CUDA provider makes of it, and nodes that are float32 at level auto."""

    body: str
    fused: tuple[str, ...]
    high: tuple[str, ...] = ()


_NORM = (
    "[mu] mu = ReduceMean (h, last) [d] d = Sub (h, mu) {square} [v] v = ReduceMean (p, last) [ve] ve = Add (v, eps)"
)
_NORM_END = " [sd] sd = Sqrt (ve) [n] n = Div (d, sd) [ng] ng = Mul (n, g) [r] r = Add (ng, b)"
_ROOT = "[p] p = Pow (h, two) [v] v = ReduceMean (p, last) [ve] ve = Add (v, eps) [sd] sd = Sqrt (ve)"
_TANH = "[t] t = Tanh (u) [t1] t1 = Add (t, one) [m] m = Mul (h, half) [r] r = Mul (m, t1)"
_SCORES = "kt = Transpose <perm = [0, 2, 1]> (h) s0 = MatMul (h, kt) s1 = Mul (s0, scale)"
_WEIGHTED = "[pr] pr = Softmax (sm) r = MatMul (pr, h)"
_POW_TO_DIV = ("p", "v", "ve", "sd", "n")

FUSIONS = {
    "GELU by erf, halved last": Fusion(
        "[d] d = Div (h, root2) [e] e = Erf (d) [a] a = Add (e, one) [m] m = Mul (h, a) [r] r = Mul (m, half)",
        ("Gelu",),
    ),
    "GELU by erf, halved first": Fusion(
        "[d] d = Div (h, root2) [e] e = Erf (d) [a] a = Add (e, one) [m] m = Mul (h, half) [r] r = Mul (m, a)",
        ("Gelu",),
    ),
    "GELU by tanh and a power": Fusion(
        f"[p] p = Pow (h, three) [q] q = Mul (p, k) [x3] x3 = Add (h, q) [u] u = Mul (x3, s) {_TANH}", ("FastGelu",)
    ),
    "GELU by tanh, factored": Fusion(
        f"hs = Mul (h, s) hk = Mul (h, k) hh = Mul (hk, h) w0 = Add (hh, one) [u] u = Mul (hs, w0) {_TANH}",
        ("FastGelu",),
    ),
    "GELU by tanh and products": Fusion(
        f"[hh] hh = Mul (h, h) [p] p = Mul (hh, h) [q] q = Mul (p, k) x3 = Add (h, q) [u] u = Mul (x3, s) {_TANH}", ()
    ),
    "SiLU": Fusion("[e] e = Sigmoid (h) [r] r = Mul (h, e)", ("QuickGelu",)),
    "QuickGelu": Fusion("[q] q = Mul (h, k) [e] e = Sigmoid (q) [r] r = Mul (h, e)", ("QuickGelu",)),
    "LayerNormalization": Fusion(
        _NORM.format(square="[p] p = Pow (d, two)") + _NORM_END, ("LayerNormalization",), _POW_TO_DIV
    ),
    "LayerNormalization of a sum": Fusion(
        "[hx] hx = Add (h, x) " + _NORM.replace("(h,", "(hx,").format(square="[p] p = Pow (d, two)") + _NORM_END,
        ("SkipLayerNormalization",),
        _POW_TO_DIV,
    ),
    "RMSNormalization by a division": Fusion(
        f"{_ROOT} [n] n = Div (h, sd) [r] r = Mul (g, n)", ("SimplifiedLayerNormalization",), _POW_TO_DIV
    ),
    "RMSNormalization by one over the root": Fusion(
        f"{_ROOT} [i] i = Div (one, sd) [n] n = Mul (h, i) [r] r = Mul (g, n)",
        ("SimplifiedLayerNormalization",),
        (*_POW_TO_DIV, "i"),
    ),
    "RMSNormalization by a reciprocal": Fusion(
        f"{_ROOT} [i] i = Reciprocal (sd) [n] n = Mul (h, i) [r] r = Mul (g, n)",
        ("SimplifiedLayerNormalization",),
        (*_POW_TO_DIV, "i"),
    ),
    "a mask that is added": Fusion(
        f"{_SCORES} [mk] mk = Where (c, zero, off) [sm] sm = Add (s1, mk) {_WEIGHTED}", ("BiasSoftmax", "FusedMatMul")
    ),
    "a mask by a product": Fusion(
        f"{_SCORES} f = Cast <to = 1> (c) [i] i = Sub (one, f) [mk] mk = Mul (i, off) [sm] sm = Add (s1, mk) "
        + _WEIGHTED,
        ("BiasSoftmax", "FusedMatMul"),
    ),
    "a mask that replaces": Fusion(f"{_SCORES} [sm] sm = Where (c, s1, off) {_WEIGHTED}", ("FusedMatMul",)),
}


def model(name):
    """Return the model with the form between two matrix products."""
    body = f"h = MatMul (x, w) {FUSIONS[name].body} y = MatMul (r, w2)"
    return parse(
        f"(float[2,8,64] x, bool[2,8,8] c) => (float[2,8,64] y) {{ {body} }}",
        opset=20,
        w=array(64, 64, seed=1, scale=0.1),
        w2=array(64, 64, seed=2, scale=0.1),
        b=array(64, seed=3),
        g=np.abs(array(64, seed=4)),
        last=np.array([-1]),
        **{
            key: np.float32(value)
            for key, value in {
                "zero": 0.0,
                "half": 0.5,
                "one": 1.0,
                "two": 2.0,
                "three": 3.0,
                "root2": 2**0.5,
                "k": 0.044715,
                "s": (2 / np.pi) ** 0.5,
                "eps": 1e-5,
                "scale": 0.125,
                "off": -3.4e38,
            }.items()
        },
    )
