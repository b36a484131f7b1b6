"""Cheap activations computed again in the backward pass: what is, what is kept, and that no value changes."""

import numpy as np
import pytest

from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import reads_of
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import Recompute
from tests.support import array
from tests.training_passes.training_step import outline, same_after, step

# name: (nodes, first value of the backward pass, copies, outline afterwards). w is a square matrix that is fed.
ROWS = {
    "an activation whose input is kept": (
        "h = MatMul (x, w) r = Relu (h) y = MatMul (r, w) g = Greater (h, zero) f = Cast <to = 1> (g) z = Mul (f, r)",
        "g",
        1,
        "MatMul Relu MatMul | Greater FLOAT Relu Mul",
    ),
    "not one whose input is not": (
        "h = MatMul (x, w) r = Relu (h) y = MatMul (r, w) z = Mul (r, r)",
        "z",
        0,
        None,
    ),
    "from a feed": ("r = Exp (x) y = MatMul (r, w) z = Mul (r, r)", "z", 1, "Exp MatMul | Exp Mul"),
    "several in a row": (
        "a = Exp (x) b = Sigmoid (a) y = MatMul (b, w) z = Mul (b, b)",
        "z",
        2,
        "Exp Sigmoid MatMul | Exp Sigmoid Mul",
    ),
    "one copy for all readers": (
        "a = Exp (x) y = MatMul (a, w) c = MatMul (a, a) z = Mul (a, c)",
        "c",
        1,
        "Exp MatMul | Exp MatMul Mul",
    ),
    "not more than two in a row": (
        "a = Exp (x) b = Sigmoid (a) c = Tanh (b) y = MatMul (c, w) z = Mul (c, c)",
        "z",
        0,
        None,
    ),
    "from what the third in a row left": (
        "a = Exp (x) b = Sigmoid (a) c = Tanh (b) d = Neg (c) y = MatMul (d, w) z = Mul (d, c)",
        "z",
        1,
        "Exp Sigmoid Tanh Neg MatMul | Neg Mul",
    ),
    "products are kept": ("h = MatMul (x, w) y = MatMul (h, w) z = Mul (h, h)", "z", 0, None),
    "what is small is kept": (
        "a = Exp (x) m = ReduceMean (x, axes) s = Sqrt (m) y = MatMul (a, w) z = Mul (s, x)",
        "z",
        0,
        None,
    ),
    "normalisation from small statistics": (
        """m = ReduceMean (x, axes) e = Sub (x, m) y = MatMul (e, w) z = Mul (e, e)""",
        "z",
        1,
        "ReduceMean Sub MatMul | Sub Mul",
    ),
    "a layer's normalisation": (
        """n, mean, inverse = LayerNormalization (x, scale) y = MatMul (n, w) z = Mul (n, inverse)""",
        "z",
        1,
        "LayerNormalization MatMul | LayerNormalization Mul",
    ),
    "an output is there anyway": ("y = Exp (x) z = Mul (y, y)", "z", 0, None),
    "random numbers are kept": ("a = RandomUniformLike <seed = 1.0> (x) y = Neg (a) z = Mul (a, a)", "z", 0, None),
    "no backward pass": ("a = Exp (x) y = Neg (a) z = Mul (a, a)", None, 0, None),
}


@pytest.mark.parametrize("case", ROWS.values(), ids=ROWS)
def test_what_is_computed_again(case, run):
    nodes, border, count, left = case
    constants = {"zero": np.float32(0), "axes": np.array([1]), "scale": np.ones(8, np.float32)}
    constants_read = {name: value for name, value in constants.items() if f"{name})" in nodes}
    model = step(
        f"(float[8,8] x, float[8,8] w) => (float[a,b] y, float[c,d] z) {{ {nodes} }}", border, **constants_read
    )
    before = outline(model)
    pass_ = Recompute(share=4, depth=2)
    if "Random" in nodes:
        assert run_pass(pass_, model).count == count
    else:
        same_after(pass_, model, run, {"x": array(8, 8), "w": array(8, 8, seed=1)}, count)
    assert outline(model) == (left or before)


def test_nothing_in_the_forward_pass_reads_a_copy():
    nodes = "a = Exp (x) y = MatMul (a, w) c = MatMul (a, a) z = Mul (a, c)"
    model = step(f"(float[8,8] x, float[8,8] w) => (float[a,b] y, float[c,d] z) {{ {nodes} }}", "c")
    run_pass(Recompute(share=4), model)
    read = {value.name for node in model.graph if role_of(node) == "forward" for value in reads_of(node)}
    assert read == {"x", "a", "w"}
    backward_values = {value.name for node in model.graph if role_of(node) == "backward" for value in node.outputs}
    assert {"a__again", "c", "z"} == backward_values
