"""Gradients of arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.gradient_check import check_by_differences

RANDOM = np.random.default_rng(0)
SHAPES = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1, 3), (4, 1)), ((), (2, 2)), ((1, 3), (2, 1))]


def tensor(shape: tuple[int, ...]) -> str:
    return f"float[{','.join(map(str, shape))}]" if shape else "float"


def text(operator: str, a: tuple[int, ...], b: tuple[int, ...]) -> str:
    return f"""<ir_version: 10, opset_import: ["" : 21]>
        g ({tensor(a)} a, {tensor(b)} b) => (float y) {{ y = {operator}(a, b) }}"""


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_two_operands_that_broadcast(operator, a, b):
    feeds = {"a": RANDOM.normal(size=a).astype("f"), "b": RANDOM.normal(size=b).astype("f")}
    check_by_differences(text(operator, a, b), feeds)


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (1, 3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,))],
)
def test_matrix_products(a, b):
    feeds = {"a": RANDOM.normal(size=a).astype("f"), "b": RANDOM.normal(size=b).astype("f")}
    check_by_differences(text("MatMul", a, b), feeds)
