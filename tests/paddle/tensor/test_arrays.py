"""Arrays of variables: what is written is read, with gradients; what only a run knows is refused."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.errors import InputError
from amp_transpiler.paddle import static
from amp_transpiler.paddle.tensor import array_length, array_read, array_write, create_array

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def program():
    main = static.Program()
    with static.program_guard(main, static.Program()), static.scope_guard(static.Scope()):
        yield main


def run(program, *fetched, **feed):
    return static.Executor("cpu").run(program, {"x": X, **feed}, list(fetched))


def data():
    return static.data("x", [2, 3])


PLACES = {
    "number": lambda k: k,
    "full": lambda k: paddle.full([1], k, "int64"),
    "int32": lambda k: paddle.full([1], k, "int32"),
    "sum": lambda k: paddle.zeros([1], "int64") + k,
    "increment": lambda k: paddle.increment(paddle.full([1], k - 1, "int64")),
    "cast": lambda k: paddle.cast(paddle.full([1], k, "int32"), "int64"),
    "no axis": lambda k: paddle.full([], k, "int64"),
    "assign": lambda k: paddle.assign(np.array([k])),
    "length": None,
}


@pytest.mark.parametrize("kind", PLACES)
def test_what_is_written_is_read(program, kind):
    x, array = data(), create_array("float32")
    place = PLACES[kind] or (lambda _: array_length(array))
    for k in range(3):
        assert array_write(x * (k + 1), place(k), array) is array
    array_write(x - 1, PLACES["full"](1), array)
    read = [array_read(array, (PLACES[kind] or PLACES["full"])(k)) for k in range(3)]
    *elements, length, joined = run(program, *read, array_length(array), paddle.concat(array, 0))
    for value, expected in zip(elements, (X, X - 1, 3 * X), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert (length.dtype, length.shape, length.item()) == (np.int64, (), 3)
    np.testing.assert_array_equal(joined, np.concatenate([X, X - 1, 3 * X]))


def test_gradients_pass_and_a_place_may_be_fed(program):
    x, i = data(), static.data("i", [1], "int64")
    x.stop_gradient = False
    array = create_array("float32", [x, x * x])
    [gradient] = static.gradients([array_read(array, i)], [x])
    for k, expected in enumerate((np.ones_like(X), 2 * X)):
        [slope] = run(program, gradient, i=np.array([k]))
        np.testing.assert_array_equal(slope, expected)


def test_a_loop_reads_an_array_by_its_counter(program):
    x = data()
    array = create_array("float32", [x, x + 1, x * 2])
    _, total = static.nn.while_loop(
        lambda i, _: i < array_length(array),
        lambda i, total: [i + 1, total + array_read(array, i)],
        [paddle.zeros([1], "int64"), paddle.zeros([2, 3])],
    )
    np.testing.assert_array_equal(run(program, total)[0], 4 * X + 1)


def loop_writes(x):
    array = create_array("float32")

    def body(i, state):
        array_write(state, i, array)
        return [i + 1, state]

    static.nn.while_loop(lambda i, _: i < 3, body, [paddle.zeros([1], "int64"), x])


def branch_writes(x):
    array = create_array("float32", [x])
    static.nn.cond(x.sum() > 0, lambda: array_write(x + 1, 1, array)[1], lambda: x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (loop_writes, "is only known in a run"),
        (branch_writes, "inside of a branch or loop"),
        (lambda x: array_write(x, 1), "place 1 of an array of 0"),
        (lambda x: array_write(x, paddle.full([1], -1, "int64")), "place -1 of an array of 0"),
        (lambda x: array_read(create_array("float32", [x]), 1), "nothing at place 1 of an array of 1"),
        (lambda _: array_read(create_array("float32"), 0), "nothing at place 0 of an array of 0"),
        (lambda x: array_write(x, 0, create_array("int64")), "takes no 'x' of FLOAT"),
        (lambda _: create_array("float32", [3]), "an array takes variables, got 3"),
        (
            lambda x: array_read(create_array("float32", [x, x[0]]), static.data("i", [1], "int64")),
            "the sizes differ",
        ),
    ],
)
def test_refused(make, message):
    with pytest.raises(InputError, match=message):
        make(data())
