"""Special functions, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from tests.paddle.tensor.family import case, compute, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

RANDOM = np.random.default_rng(3)
X = (RANDOM.normal(size=(3, 5)) * 4).astype(np.float32)
ABOVE = np.abs(X) + 0.1
INSIDE = np.tanh(X / 4)
WIDE = np.array([[0.0, 1.0, 2.0, 1e-30], [3e38, -0.75, -1e-3, 123.0]], np.float32)
A = np.array([0.5, 3.0, 6.0, 1.0, 20.0], np.float32)
Y = np.array([0.3, 2.0, 7.5, 1.0, 12.0], np.float32)
LARGE = np.array([[50, 200], [120, 80.5]], np.float32)
ENDS = np.array([1, 2, 2, -1, 2, 3], np.float32), np.array([0, np.inf, -1, 1, np.nan, 1e-20], np.float32)
_FROM = [0, 1, 1, -1, 2, 2**-126, 1e-45, 3.4e38, np.inf, -np.inf, np.nan, 5, 1.1754945e-38, 7]
_TO = [1, 2, 0, 0, 2, 0, -1, np.inf, 0, 5, 1, np.nan, 1, -np.inf]
NEIGHBOURS = np.array(_FROM, np.float32), np.array(_TO, np.float32)
I = np.array([[0, 12, -18], [7, 0, 100]])  # noqa: E741  # beside J
J = np.array([0, 8, 27])


def scale_of(x):
    part, power = torch.frexp(x)
    return part, power.float()


CASES = {
    "lgamma": case(paddle.lgamma, torch.lgamma, X),
    "lgamma of integers": case(paddle.lgamma, torch.lgamma, np.abs(I) + 1),
    "gammaln": case(paddle.gammaln, torch.lgamma, ABOVE),
    "digamma": case(paddle.digamma, torch.digamma, X, tolerance=1e-4),
    "polygamma 0": case(lambda x: paddle.polygamma(x, 0), torch.digamma, ABOVE, tolerance=1e-4),
    "polygamma 1": case(lambda x: paddle.polygamma(x, 1), lambda x: torch.polygamma(1, x), ABOVE, tolerance=1e-4),
    "polygamma 2": case(lambda x: paddle.polygamma(x, 2), lambda x: torch.polygamma(2, x), ABOVE + 0.5, tolerance=1e-4),
    "multigammaln": case(lambda x: paddle.multigammaln(x, 3), lambda x: torch.special.multigammaln(x, 3), ABOVE + 2),
    "erfinv": case(paddle.erfinv, torch.erfinv, INSIDE),
    "erfinv at the ends": case(
        paddle.erfinv, torch.erfinv, np.array([-1, 1, 1.5, 0], np.float32), differentiable=False
    ),
    "i0": case(paddle.i0, torch.special.i0, X),
    "i0e": case(paddle.i0e, torch.special.i0e, X * 3),
    "i1": case(paddle.i1, torch.special.i1, X),
    "i1e": case(paddle.i1e, torch.special.i1e, X * 3),
    "gammainc": case(
        lambda y: paddle.gammainc(paddle.to_tensor(A), y), lambda y: torch.special.gammainc(torch.tensor(A), y), Y
    ),
    "gammaincc": case(
        lambda y: paddle.gammaincc(paddle.to_tensor(A), y), lambda y: torch.special.gammaincc(torch.tensor(A), y), Y
    ),
    "gammainc of large ones": case(
        paddle.gammainc, torch.special.gammainc, LARGE, LARGE.T.copy(), differentiable=False, tolerance=5e-5
    ),
    "gammaincc at the ends": case(paddle.gammaincc, torch.special.gammaincc, *ENDS, differentiable=False),
    "gammainc at the ends": case(paddle.gammainc, torch.special.gammainc, *ENDS, differentiable=False),
    "nextafter": case(paddle.nextafter, torch.nextafter, *NEIGHBOURS, differentiable=False, tolerance=0.0),
    "gcd": case(paddle.gcd, torch.gcd, I, J),
    "lcm": case(paddle.lcm, torch.lcm, I, J),
    "frexp": case(paddle.frexp, scale_of, WIDE, differentiable=False),
    "frexp of normal numbers": case(paddle.frexp, scale_of, WIDE[np.abs(WIDE) > 1e-30]),
}


test_value_and_gradient = family_test(CASES)


def test_the_next_number_is_known_of_float32():
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        x = paddle.static.data("x", [2], "float16")
        with pytest.raises(InputError, match="nextafter takes float32, got"):
            paddle.nextafter(x, x)


def test_special_functions_of_low_numbers_are_computed_in_float32():
    rows = {"lgamma": CASES["lgamma"], "i0": CASES["i0"]}
    for name, result in compute(rows, free=False, dtype="float16").items():
        assert result.dtypes == ["float16"]
        low = X.astype(np.float16).astype(np.float32)
        want = rows[name].theirs(torch.from_numpy(low)).numpy()
        np.testing.assert_allclose(result.values[0].astype(np.float32), want, rtol=1e-3)


def test_a_derivative_of_negative_order_is_refused():
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()), pytest.raises(OptionError, match="n must be 0"):
        paddle.polygamma(paddle.static.data("x", [2]), -1)
