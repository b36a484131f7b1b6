"""Follows ONNX Runtime's calls of cuBLAS in numpy, for attention's products that read rows as they lie."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.support import array, parse, run

BATCH, HEADS, QUERIES, KEYS, SIZE, WIDTH = 2, 3, 5, 7, 4, 9

# product -> FusedMatMul's attributes, the shapes of its operands and result: those that `attention_products.py` writes
PRODUCTS = {
    "scores": (
        "transBatchA = 1, transBatchB = 1, transB = 1",
        (QUERIES, BATCH, HEADS, SIZE),
        (KEYS, BATCH, HEADS, SIZE),
        (BATCH, HEADS, QUERIES, KEYS),
    ),
    "rows of the result": (
        "transBatchB = 1",
        (BATCH, HEADS, QUERIES, KEYS),
        (KEYS, BATCH, HEADS, SIZE),
        (BATCH, HEADS, QUERIES, SIZE),
    ),
    "columns of the result": (
        "transBatchA = 1, transA = 1, transB = 1",
        (KEYS, BATCH, HEADS, SIZE),
        (BATCH, HEADS, QUERIES, KEYS),
        (BATCH, HEADS, SIZE, QUERIES),
    ),
    "output from columns": (
        "transA = 1",
        (BATCH, HEADS * SIZE, QUERIES),
        (HEADS * SIZE, WIDTH),
        (BATCH, QUERIES, WIDTH),
    ),
}


def as_cublas_computes(asked: dict[str, int], first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Return the numbers of a result, of which each matrix is stored by columns."""
    m, n, k, item = asked["m"], asked["n"], asked["k"], first.itemsize
    result = np.full(count, np.nan, first.dtype)

    def matrices(numbers: np.ndarray, rows: int, columns: int, side: str) -> np.ndarray:
        strides = (asked[f"step_{side}"] * item, item, asked[f"ld{side}"] * item)
        return np.lib.stride_tricks.as_strided(numbers.reshape(-1), (asked["batch"], rows, columns), strides)

    a = matrices(first, *((k, m) if asked["transa"] else (m, k)), "a")
    b = matrices(second, *((n, k) if asked["transb"] else (k, n)), "b")
    a, b = (a.swapaxes(1, 2) if asked["transa"] else a), (b.swapaxes(1, 2) if asked["transb"] else b)
    matrices(result, m, n, "c")[:] = a @ b
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_cublas_is_asked_for_the_product(name, element, counted, tmp_path):
    """The addresses, steps and leading dimensions are those of the operands as they lie."""
    flags, *shapes = PRODUCTS[name]
    sides = [",".join(map(str, shape)) for shape in shapes]

    def product(kind: str) -> onnx.ModelProto:
        types = [f"{kind}[{side}]" for side in sides]
        body = f"{{ z = com.microsoft.FusedMatMul <{flags}> (x, y) }}"
        return parse(f"({types[0]} x, {types[1]} y) => ({types[2]} z) {body}")

    path = tmp_path / "model.onnx"
    onnx.save(product(element), path)
    (asked,) = counted.model(path)["products"]
    x, y = (array(*shape, seed=index) for index, shape in enumerate(shapes[:2]))
    expected = run(product("float"), {"x": x, "y": y})["z"]
    # By columns, cuBLAS's first operand is the second one of a product by rows.
    computed = as_cublas_computes(asked, y, x, expected.size).reshape(expected.shape)
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-6)
