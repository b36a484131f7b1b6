"""Sizes that are known stay known beside sizes that a program computes, and what runs has them."""

import numpy as np
import pytest

from amp_transpiler import paddle, static

pytestmark = pytest.mark.usefixtures("fresh_programs")

# What is made of x [batch, steps, 8] and of the sizes b and t of its first axes -> its shape, -1 where it is not known.
CASES = {
    "reshape": (lambda x, b, t: paddle.reshape(x, [b, -1, 4]), (-1, -1, 4)),
    "reshape that keeps": (lambda x, b, t: paddle.reshape(x[:, :, :6], [0, t, 2, 3]), (-1, -1, 2, 3)),
    "expand": (lambda x, b, t: paddle.expand(paddle.zeros([1, 1, 8]), [b, t, -1]), (-1, -1, 8)),
    "expand of one": (lambda x, b, t: paddle.expand(paddle.mean(x).reshape([1, 1]), [t, b, 5]), (-1, -1, 5)),
    "expand of what has the size": (lambda x, b, t: paddle.expand(x[:, :, :1], [b, t, t]), (-1, -1, -1)),
    "slice": (lambda x, b, t: paddle.slice(x, [1], [0], [t - 1]), (-1, -1, 8)),
    "slice of two axes": (lambda x, b, t: paddle.slice(x, [0, 1], [b - 1, 0], [b, t]), (-1, -1, 8)),
    "strided slice": (lambda x, _, t: paddle.strided_slice(x, [1], [0], [t], [2]), (-1, -1, 8)),
    "subscript": (lambda x, b, t: x[:, : t - 1], (-1, -1, 8)),
    "one of an axis": (lambda x, b, t: x[:, t - 1], (-1, 8)),
    "topk": (lambda x, b, t: paddle.topk(x, 2, axis=1)[0], (-1, 2, 8)),
    "positions of topk": (lambda x, b, t: paddle.topk(paddle.mean(x, -1), 3)[1], (-1, 3)),
    "topk of what is computed": (lambda x, b, t: paddle.topk(x, t - 1, axis=1)[0], (-1, -1, 8)),
}


@pytest.mark.parametrize(("make", "shape"), CASES.values(), ids=CASES)
def test_what_is_known_is_said_and_true(make, shape):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, None, 8])
        sizes = paddle.shape(x)
        result = make(x, sizes[0], sizes[1])
    assert result.shape == shape
    (value,) = static.Executor("cpu").run(main, feed={"x": np.ones((3, 5, 8), np.float32)}, fetch_list=[result])
    assert len(value.shape) == len(shape)
    assert all(size in (-1, real) for size, real in zip(shape, value.shape, strict=True))
