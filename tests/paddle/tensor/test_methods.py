"""Methods, operators and square brackets of variables, against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError
from tests.paddle.tensor.family import case, family_test

torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7 - 1
M = np.arange(12, dtype=np.float32).reshape(4, 3) / 5
I = np.array([[0, 7, -2], [3, -4, 1]])  # noqa: E741  # beside X
ROWS = np.array([1, 0, 1])
MASK = np.array([[True, False, True], [False, False, True]])

KEYS = {
    "number": 1,
    "last": -1,
    "numbers": (0, 2, -1),
    "slice": slice(1, None),
    "slices": (slice(None), slice(-2, None), slice(1, 3)),
    "steps": (slice(None), slice(None, None, 2)),
    "new axis": (None, 1),
    "new axes": (slice(None), None, 2, None),
    "ellipsis": (Ellipsis, 1),
    "ellipsis between": (0, Ellipsis, slice(1, 2)),
    "list": [1, 0, 1],
    "list behind": (slice(None), [2, 0]),
    "two lists": ([1, 0], [2, 1]),
    "two lists behind": (slice(None), [2, 1], [3, 0]),
    "two lists apart": ([1, 0], slice(None), [3, 0]),
    "lists that broadcast": (np.array([[0], [1]]), np.array([2, 0])),
    "number and list": (1, slice(None), [0, 2]),
}
CASES = {f"[{name}]": case(lambda x, k=key: x[k], lambda x, k=key: x[k], X) for name, key in KEYS.items()}
CASES |= {
    "[backwards]": case(lambda x: x[:, ::-1], lambda x: x.flip([1]), X),
    "[variable]": case(lambda x, i: x[i], lambda x, i: x[i], X, ROWS),
    "[variable behind]": case(lambda x, i: x[:, i], lambda x, i: x[:, i], X, ROWS),
    "[variables]": case(lambda x, i: x[i, i + 1], lambda x, i: x[i, i + 1], X, ROWS),
    "[one variable]": case(lambda x, i: x[i[0], 1], lambda x, i: x[i[0], 1], X, ROWS),
    "[mask]": case(lambda x, m: x[m], lambda x, m: x[m], X, MASK),
    "[comparison]": case(lambda x: x[x > 0], lambda x: x[x > 0], X),
    "[array of truth values]": case(lambda x: x[MASK], lambda x: x[MASK], X),
    "[: variable]": case(lambda x: x[:, : paddle.shape(x)[0]], lambda x: x[:, :2], X),
    "x.shape": case(lambda x: paddle.shape(x)[1:], lambda x: torch.tensor(x.shape[1:]), X),
    "setitem": case(
        lambda x: paddle.static.setitem(x, (0, slice(1, 3)), 5.0),
        lambda x: torch.cat([torch.cat([x[:1, :1], torch.full((1, 2, 4), 5.0)], 1), x[1:]]),
        X,
    ),
    "setitem of a variable": case(
        lambda x, m: paddle.static.setitem(x, 1, m),
        lambda x, m: torch.stack([x[0], m]),
        X,
        M[:3, :1] + np.zeros(4, np.float32),
    ),
    "%": case(lambda i: i % 3, lambda i: i % 3, I),
    "r%": case(lambda i: 7 % (i * 0 + 4), lambda i: 7 % (i * 0 + 4), I),
    "//": case(lambda i: i // 3, lambda i: i // 3, I),
    "r//": case(lambda i: 7 // (i * 0 + 4), lambda i: 7 // (i * 0 + 4), I),
    "abs()": case(abs, abs, I),
    "~": case(lambda m: ~m, lambda m: ~m, MASK),
    "& |": case(lambda i: (i > 0) & (i < 4) | (i == -2), lambda i: (i > 0) & (i < 4) | (i == -2), I),
    "^": case(lambda i, j: i ^ j, lambda i, j: i ^ j, I, I + 2),
    ".mean": case(lambda x: x.mean(1), lambda x: x.mean(1), X),
    ".sum": case(lambda x: x.sum(axis=-1, keepdim=True), lambda x: x.sum(-1, True), X),
    ".max": case(lambda x: x.max(), lambda x: x.max(), X),
    ".reshape": case(lambda x: x.reshape([0, -1]), lambda x: x.reshape(2, -1), X),
    ".transpose": case(lambda x: x.transpose([1, 0, 2]), lambda x: x.permute(1, 0, 2), X),
    ".flatten": case(lambda x: x.flatten(start_axis=1, stop_axis=2), lambda x: x.flatten(1), X),
    ".T": case(lambda x: x.T, lambda x: x.T, M),
    ".mT": case(lambda x: x.mT, lambda x: x.mT, X),
    ".cast": case(lambda x: x.cast("int32"), lambda x: x.int(), X),
    ".astype": case(lambda x: x.astype(paddle.float64), lambda x: x.double(), X),
    ".to": case(lambda x: x.to("cpu", paddle.int64), lambda x: x.long(), X),
    ".detach": case(lambda x: x.detach() * x, lambda x: x.detach() * x, X),
    ".exp .tanh": case(lambda x: x.exp().tanh(), lambda x: x.exp().tanh(), X),
    ".unsqueeze .expand": case(lambda x: x.unsqueeze(0).expand([2, -1, -1]), lambda x: x[None].expand(2, -1, -1), M),
    ".matmul": case(lambda x, y: x.matmul(y, transpose_y=True), lambda x, y: x @ y.mT, M, M + 1),
    ".softmax": case(lambda x: x.softmax(1), lambda x: x.softmax(1), X),
    ".argmax": case(lambda x: x.argmax(-1), lambda x: x.argmax(-1), X, differentiable=False),
    ".numel": case(lambda x: x.numel(), lambda x: torch.tensor(x.numel()), X),
    ".split": case(lambda x: x.split(3, 1), lambda x: x.split(1, 1), X, fixed=True),
    ".norm .clip": case(lambda x: x.norm(axis=1).clip(0.1, 2.0), lambda x: x.norm(dim=1).clip(0.1, 2.0), X),
}


test_value_and_gradient = family_test(CASES)


@pytest.fixture
def x():
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        yield paddle.static.data("x", [2, 3])


REFUSED = {
    "too many": (lambda x: x[0, 0, 0], "no 3 axes"),
    "outside": (lambda x: x[2], "index 2 is outside of axis 0"),
    "outside behind": (lambda x: x[:, -4], "index -4 is outside of axis 1"),
    "text": (lambda x: x["a"], "indexed with 'a'"),
    "fraction": (lambda x: x[1.5], "indexed with 1.5"),
    "two ellipses": (lambda x: x[..., ...], "one '...' at most"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_that_means_nothing(x, name):
    use, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        use(x)


@pytest.mark.parametrize("use", [lambda x: x.numpy(), lambda x: x.item(), lambda x: x.backward(), lambda x: x.tolist()])
def test_what_needs_a_value_says_where_values_come_from(x, use):
    with pytest.raises(TypeError, match=r"Executor\.run"):
        use(x)


def test_writing_in_place_says_what_to_use(x):
    with pytest.raises(TypeError, match=r"static\.setitem"):
        x[0] = 1.0


def test_an_attribute_that_is_none(x):
    assert not hasattr(x, "nonsense")
    assert not hasattr(x, "_repr_png_")
    assert {"mean", "T", "reshape", "name"} <= set(dir(x))
    assert (x.size, x.dim(), x.element_size()) == (6, 2, 4)


def test_what_paddle_calls_a_variables_description():
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        x = paddle.static.data("x", [None, 3])
        assert (x.desc.name(), x.desc.shape(), x.desc.dtype()) == ("x", [-1, 3], x.value.dtype)
        y, exe = x + 1, paddle.static.Executor(paddle.CPUPlace())
        for is_checked in (True, False, True):
            x.desc.set_need_check_feed(is_checked)
            if is_checked:
                with pytest.raises(InputError, match="expected"):
                    exe.run(x.program, {"x": np.ones((1, 1, 3), np.float32)}, [y])
            else:
                assert exe.run(x.program, {"x": np.ones((1, 1, 3), np.float32)}, [y])[0].shape == (1, 1, 3)
