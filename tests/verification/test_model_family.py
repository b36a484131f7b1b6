"""The family of a transformer is told by its graph."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.verification.transformers import model_family
from tests.fusion.attention_forms import (
    ALLOWED,
    CAUSAL,
    FORMS,
    MIX,
    OUT,
    SCORES,
    SEPARATE,
    TURNED,
    WEIGHTS,
    model,
    projected,
)
from tests.support import array, parse

ENCODER = "e = Gather(words, ids) n = LayerNormalization(e, scale, shift) x = Relu(n)"
NORMS = {"words": array(9, 8), "scale": array(8), "shift": array(8, seed=1)}
PATCHES = (
    "p0 = Conv<strides=[2,2]>(image, kernel) p1 = Reshape(p0, rows) t0 = Transpose<perm=[0,2,1]>(p1)"
    " x = LayerNormalization(t0, scale, shift)"
)


def text(body, header, **weights):
    return parse(f"({header}) => (float[b,l,8] y) {{ {body} }}", **{**WEIGHTS, **NORMS, **weights})


CASES = {
    "bert": text(f"{ENCODER} {ALLOWED} {SEPARATE} {TURNED} {SCORES} {MIX} {OUT}", "int64[b,l] ids, float[b,l] m"),
    "gpt2": text(f"{ENCODER} {CAUSAL} {SEPARATE} {TURNED} {SCORES} {MIX} {OUT}", "int64[b,l] ids, float[b,l] m"),
    "bart": text(
        f"{ENCODER} {ALLOWED} {projected('q')} {projected('k', 'memory')} {projected('v', 'memory')} {TURNED} {SCORES}"
        f" {MIX} {OUT}",
        "int64[b,l] ids, float[b,l] m, float[b,l,8] memory",
    ),
    "vit": text(
        f"{PATCHES} {SEPARATE} {TURNED} s = MatMul(q, k) {MIX} {OUT}",
        "float[b,3,4,4] image",
        kernel=array(8, 3, 2, 2),
        rows=np.array([0, 8, 4]),
    ),
    "speech": text(
        f"w0 = Conv(wave, kernel) t0 = Transpose<perm=[0,2,1]>(w0) x = LayerNormalization(t0, scale, shift)"
        f" {SEPARATE} {TURNED} s = MatMul(q, k) {MIX} {OUT}",
        "float[b,1,30] wave",
        kernel=array(8, 1, 3),
    ),
}

ROTATED = "cq = Cos(q) sq = Sin(q) m1 = Mul(q, cq) m2 = Mul(q, sq) qr = Add(m1, m2)"
CASES["llama"] = text(
    f"x = Gather(words, ids) {ALLOWED} {SEPARATE} {TURNED} {ROTATED} {SCORES.replace('MatMul(q, k)', 'MatMul(qr, k)')}"
    f" {MIX} {OUT}",
    "int64[b,l] ids, float[b,l] m",
)


@pytest.mark.parametrize("family", CASES)
def test_the_family(family):
    recognised = model_family(plain_copy(amp.load(CASES[family])))
    assert (recognised.name, recognised.heads, recognised.width, recognised.layers) == (family, 2, 8, 1)


def test_a_model_without_attention_has_none():
    assert model_family(plain_copy(amp.load(parse("(float[2] x) => (float[2] y) { y = Relu(x) }")))) is None


def test_a_form_with_attention_has_one():
    assert model_family(plain_copy(amp.load(model(FORMS["eager"][0])))) is not None
