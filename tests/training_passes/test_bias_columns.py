"""Wide biases as a row of the weight, multiplied by a column of ones."""

import numpy as np
import pytest

from amp_transpiler.passes.manager import run_pass
from amp_transpiler.training_passes import BiasColumns
from tests.support import array
from tests.training_passes.training_step import outline, step

BIASED = "p = MatMul (x, w) a = Add (p, b) y = Relu (a)"
WIDE = "Reshape Concat Concat MatMul Relu"

# name: (element type, rows, length of a row, columns, nodes, biases changed, outline afterwards)
LAYERS = {
    "float16": ("float16", 4096, 64, 3072, BIASED, 1, WIDE),
    "float32": ("float", 4096, 64, 3072, BIASED, 1, WIDE),
    "rows that are not aligned": ("float16", 4096, 60, 3072, BIASED, 1, WIDE),
    "the bias is written first": ("float16", 4096, 64, 3072, "p = MatMul (x, w) a = Add (b, p) y = Relu (a)", 1, WIDE),
    "a narrow layer": ("float16", 4096, 768, 768, BIASED, 0, None),
    "few rows": ("float16", 8, 64, 64, BIASED, 0, None),
    "the product is read elsewhere": (
        "float16",
        4096,
        64,
        3072,
        "p = MatMul (x, w) a = Add (p, b) y = Mul (a, p)",
        0,
        None,
    ),
}


def _layer(kind, rows, length, columns, body):
    return step(
        f"""({kind}[{rows},{length}] x, {kind}[{length},{columns}] w, {kind}[{columns}] b)
        => ({kind}[{rows},{columns}] y) {{ {body} }}""",
        "none",
    )


@pytest.mark.parametrize("name", LAYERS)
def test_a_wide_bias_is_multiplied_by_ones(name, run):
    kind, rows, length, columns, body, count, expected = LAYERS[name]
    model = _layer(kind, rows, length, columns, body)
    dtype = np.float16 if kind == "float16" else np.float32
    feeds = {
        "x": array(rows, length, seed=1).astype(dtype),
        "w": array(length, columns, seed=2, scale=0.1).astype(dtype),
        "b": array(columns, seed=3).astype(dtype),
    }
    before = run(model, feeds)[0] if count else None
    assert run_pass(BiasColumns(), model).count == count
    if expected is not None:
        assert outline(model) == expected
        (after,) = run(model, feeds)
        tolerance = 2e-3 if kind == "float16" else 1e-5
        np.testing.assert_allclose(after.astype(np.float32), before.astype(np.float32), rtol=tolerance, atol=tolerance)


def test_equal_columns_of_ones_are_one_constant():
    """They take memory all the time."""
    body = "p = MatMul (x, w) a = Add (p, b) r = Relu (a) q = MatMul (x, w) c = Add (q, b) s = Relu (c) y = Add (r, s)"
    model = _layer("float16", 4096, 64, 3072, body)
    assert run_pass(BiasColumns(), model).count == 2
    assert [list(value.shape) for value in model.graph.initializers.values() if len(value.shape) > 1] == [[4096, 8]]
