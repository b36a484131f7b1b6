"""Products of 16-bit values with constants between two casts: the same numbers, computed in 16 bits."""

import numpy as np
import pytest

from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import ScaleInLow
from tests.support import array
from tests.training_passes.training_step import outline, step

LOW = {"float16": 10, "bfloat16": 16}
PLAIN, TURNED = "float[4,6] z", "float[24] z"
READERS = {
    PLAIN: "c = Cast <to = {to}> (m) y = Relu (c) z = Cast <to = 1> (y)",
    TURNED: "t = Transpose <perm = [1, 0]> (m) v = Reshape (t, flat) c = Cast <to = {to}> (v) y = Relu (c) "
    "z = Cast <to = 1> (y)",
}
SUM, TOTAL = " s = ReduceSum <keepdims = 0> (m, rows)", ", float[6] s"


def scaled(readers, factor=0.125, dtype="float16", *, outputs=PLAIN, product="Mul (f, k)"):
    """A product in float32 of what is cast from 16 bits, read as `readers` says."""
    to = LOW[dtype]
    text = f"""(float[4,6] x) => ({outputs})
        <int64[1] flat = {{-1}}, int64[1] rows = {{0}}, float k = {{{factor}}}> {{
        h = Cast <to = {to}> (x) f = Cast <to = 1> (h) m = {product} {readers.format(to=to)} }}"""
    return step(text, "y")


EDITED = {  # what reads the product, the factor, what is left
    "a power of two": (PLAIN, "", 0.125, "Mul Relu FLOAT"),
    "another number that 16 bits have": (PLAIN, "", 1.5, "Mul Relu FLOAT"),
    "a negative one": (PLAIN, "", -3.0, "Mul Relu FLOAT"),
    "a cast behind a view of a transpose": (TURNED, "", 0.125, "Mul Transpose Reshape Relu FLOAT"),
    "a sum beside it": (PLAIN, SUM, 0.125, "Mul FLOAT ReduceSum Relu FLOAT"),
}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", EDITED)
def test_the_product_is_computed_in_16_bits_with_the_same_results(name, dtype, run):
    output, more, factor, expected = EDITED[name]
    model = scaled(READERS[output] + more, factor, dtype, outputs=output + (TOTAL if more else ""))
    feeds = {"x": 1e3 * array(4, 6, seed=1) ** 9}  # overflows among them, and numbers near the least
    with np.errstate(over="ignore"):
        before = run(emulate(model.clone()).model, feeds)
        assert run_pass(ScaleInLow(), model).count == 1
        after = run(emulate(model).model, feeds)
    assert sorted(outline(model).replace("| ", "").split()) == sorted(f"{dtype.upper()} {expected}".split())
    np.testing.assert_array_equal(after[0], before[0])
    for total, share in zip(after[1:], before[1:], strict=True):
        np.testing.assert_allclose(total, share, atol=1e-6)


KEPT = {
    "a number that 16 bits do not have": {"readers": READERS[PLAIN], "factor": 0.1},
    "a number beyond them": {"readers": READERS[PLAIN], "factor": 1e6},
    "a float32 reader": {"readers": READERS[PLAIN] + " s = Abs (m)", "outputs": "float[4,6] z, float[4,6] s"},
    "an output": {"readers": READERS[PLAIN], "outputs": "float[4,6] z, float[4,6] m"},
    "a sum of another factor": {"readers": READERS[PLAIN] + SUM, "factor": 1.5, "outputs": PLAIN + TOTAL},
    "only a sum": {"readers": "y = ReduceSum <keepdims = 0> (m, rows)", "outputs": "float[6] y"},
    "no constant": {"readers": READERS[PLAIN], "product": "Mul (f, f)"},
    "a sum with the number": {"readers": READERS[PLAIN], "product": "Add (f, k)"},
}


@pytest.mark.parametrize("name", KEPT)
def test_what_may_differ_stays(name):
    assert not run_pass(ScaleInLow(), scaled(**KEPT[name])).modified


def test_updates_stay():
    model = scaled(READERS[PLAIN])
    for node in model.graph:
        node.metadata_props[ROLE_KEY] = "optimize"
    assert not run_pass(ScaleInLow(), model).modified
