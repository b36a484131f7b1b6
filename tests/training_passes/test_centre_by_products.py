"""Rows times a vector, less their mean, as a product with a matrix."""

import ml_dtypes
import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import CentreByProducts
from tests.training_passes.training_step import outline, step

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32}
COLUMN = "c = Reshape (w, column) s = Mul (c, share)"
CENTRED = f"{COLUMN} v = Mul (g, w) m = MatMul (g, s) d = Sub (v, m) y = Neg (d)"
PRODUCT = "IsNaN Where Equal Where Reshape Mul MatMul Neg"

# name: (nodes behind g [rows,64] and w [64], factor of the column, element type, rows, differences changed, outline)
ROWS = {
    "many rows": (CENTRED, 1 / 64, "float16", 8192, 1, PRODUCT),
    "bfloat16": (CENTRED, 1 / 64, "bfloat16", 8192, 1, PRODUCT),
    "the column is read elsewhere": (
        f"{CENTRED} t = MatMul (g, s) z = Add (y, t)",
        1 / 64,
        "float16",
        8192,
        1,
        f"Reshape Mul {PRODUCT} MatMul Add",
    ),
    "the mean is read elsewhere": (f"{CENTRED} z = Add (y, m)", 1 / 64, "float16", 8192, 0, None),
    "no mean": (CENTRED, 1 / 32, "float16", 8192, 0, None),
    "float32, which tensor cores would round": (CENTRED, 1 / 64, "float", 8192, 0, None),
}


@pytest.mark.parametrize("name", ROWS)
def test_weighted_rows_are_centred_by_a_product(name):
    body, share, kind, rows, count, expected = ROWS[name]
    model = _step(body, share, kind, rows)
    assert run_pass(CentreByProducts(), model).count == count
    if expected is not None:
        assert outline(model).replace("| ", "") == expected


def test_the_results_are_as_near(run):
    model = _step(CENTRED, 1 / 64, "float16", 8192)
    random = np.random.default_rng(0)
    rows = random.standard_normal((8192, 64)).astype(np.float16)
    weights = (1 + 0.1 * random.standard_normal(64)).astype(np.float16)
    weighted = rows.astype(np.float64) * weights
    exact = -(weighted - weighted.mean(1, keepdims=True))
    errors = []
    for passes in ([], [CentreByProducts()]):
        for each in passes:
            assert run_pass(each, model).count == 1
        (result,) = run(model, {"g": rows, "w": weights})
        errors.append(np.sqrt(np.mean((result - exact) ** 2)))
    assert errors[1] < 1.5 * errors[0]


def _step(body, share, kind, rows):
    result = "z" if " z = " in body else "y"
    return step(
        f"""({kind}[{rows},64] g, {kind}[64] w) => ({kind}[{rows},64] {result})
        <int64[2] column = {{64, 1}}> {{ {body} }}""",
        "m",
        share=np.asarray(share, NUMPY[kind]),
    )
