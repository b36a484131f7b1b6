"""What may be fed and fetched, and in which forms; and sizes that inputs share or do not share."""

import logging

import ml_dtypes
import numpy as np
import pytest

from amp_transpiler import CPUPlace, optimizer, paddle, static
from amp_transpiler.errors import InputError
from amp_transpiler.paddle.base import DataFeeder
from amp_transpiler.paddle.nn import functional

A = np.arange(6, dtype=np.float32).reshape(2, 3)


class Net:
    """A program of `make()`, started; with `rate` it is trained, too."""

    def __init__(self, make, rate=None):
        self.main, startup, self.scope = static.Program(), static.Program(), static.Scope()
        with static.program_guard(self.main, startup):
            self.result = make()
            if rate is not None:
                optimizer.SGD(rate).minimize(self.result)
        self.executor = static.Executor(CPUPlace())
        self.executor.run(startup, scope=self.scope)

    def run(self, feed, fetch=None):
        return self.executor.run(self.main, feed, self.result if fetch is None else fetch, scope=self.scope)


@pytest.fixture(scope="module")
def total():
    return Net(lambda: paddle.sum(static.data("a", [None, 3])))


FEEDS = [
    {"a": A},
    {"a": A.tolist()},
    {"a": [[0, 1, 2], [3, 4, 5]]},
    {"a": [A[0], A[1]]},
    [{"a": A}],
    ({"a": A},),
]


@pytest.mark.parametrize("feed", FEEDS)
def test_forms_of_feeds(total, feed):
    assert total.run(feed) == [15.0]


def test_a_variable_is_a_key_and_every_form_of_fetch_list():
    net = Net(lambda: paddle.sum(static.data("a", [None, 3])))
    a, name = net.main.var("a"), net.result.name
    for fetch in (net.result, name, [net.result], (name,), [[net.result]], [[name], []]):
        assert net.run({a: A}, fetch) == [15.0]
    both = net.run({a: A}, [[net.result, a], name])
    assert [value.shape for value in both] == [(), (2, 3), ()]


BAD_FEEDS = [
    ({"a": A.astype(np.float64)}, r"input 'a' \(\S+py:\d+\): got float64 \[2, 3\].*a\.astype\('float32'\)"),
    ({"a": A.astype(np.int64)}, r"got int64 \[2, 3\], expected float32 .*astype"),
    ({"a": [[1.0, 2.0], [1.0]]}, "pad the rows"),
    ({"a": None}, "got None"),
    ({"a": "text"}, "astype|numbers"),
    ({"a": A[0, :2]}, r"got shape \[2\], expected \[batch,3\]: add the batch"),
    ({"a": A[0, 0]}, r"got shape \[\], expected \[batch,3\]"),
    ({"a": A[None]}, "leave out the axis"),
    ({"a": A[:, :2]}, r"got shape \[2, 2\], expected \[batch,3\]"),
    ({"b": A}, "missing input 'a'"),
    ({"aa": A}, "did you mean 'a'"),
    ({0: A}, "feed takes variables and names, got int"),
    ([A], "feed must be a dictionary"),
    ([{"a": A}, {"a": A}], "a list of one such dictionary"),
]


@pytest.mark.parametrize(("feed", "said"), BAD_FEEDS)
def test_bad_feeds(total, feed, said):
    with pytest.raises(InputError, match=said):
        total.run(feed)


def test_an_array_without_the_batch_is_one_row(total):
    assert total.run({"a": A[1]}) == total.run({"a": A[1:]})


@pytest.mark.parametrize(("declared", "array"), [([2, 3], A[0]), ([-1, -1], A[0]), ([-1, -1, 3], A), ([-1], A[0, 0])])
def test_one_row_has_the_sizes_that_are_declared_and_a_batch_that_is_not(declared, array):
    net = Net(lambda: paddle.sum(static.data("a", declared)))
    with pytest.raises(InputError, match="got shape"):
        net.run({"a": array})


def test_a_declared_depth_of_sequences_changes_nothing_for_arrays():
    net = Net(lambda: paddle.sum(static.data("a", [-1, 3], lod_level=1)))
    assert net.run({"a": A}) == [15.0]
    with pytest.raises(InputError, match=r"DataFeeder: 'a' was declared with lod_level=1.*pad the samples"):
        DataFeeder(["a"], program=net.main)


def unchecked(name, shape, dtype="float32"):
    variable = static.data(name, shape, dtype)
    variable.desc.set_need_check_feed(False)
    return variable


def test_an_array_decides_where_the_check_is_off():
    """A type and a rank that were not declared are computed with, in one program, one after the other."""
    net = Net(lambda: paddle.reshape(unchecked("a", [-1, 3, 3], "int32") * unchecked("b", [-1, 3, 3], "int32"), [0, 0]))
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    for array in (square, square.astype(np.int64), square.astype(np.float64), square.astype(ml_dtypes.bfloat16)):
        [value] = net.run({"a": array, "b": array})
        assert value.dtype == array.dtype
        np.testing.assert_array_equal(value, array * array)
    bits = square.astype(ml_dtypes.bfloat16).view(np.uint16)
    [value] = net.run({net.main.var("a"): bits, "b": bits})
    np.testing.assert_array_equal(value.astype(np.float32), square * square)
    with pytest.raises(InputError):  # as declared, where 18 numbers do not go into [2, 3]
        net.run({"a": np.ones((2, 3, 3), np.int32), "b": np.ones((2, 3, 3), np.int32)})


def test_an_array_that_no_operator_takes_is_named():
    net = Net(lambda: unchecked("a", [-1, 3], "int32") + unchecked("b", [-1, 3], "int32"))
    with pytest.raises(InputError, match=r"Add.*\ba\b.*\bb\b|'a'.*'b'"):
        net.run({"a": A, "b": A.astype(np.int64)})


def test_a_training_step_is_fed_as_declared():
    net = Net(lambda: paddle.mean(static.nn.fc(unchecked("a", [-1, 3]), 2)), rate=0.1)
    with pytest.raises(InputError, match="got float64"):
        net.run({"a": A.astype(np.float64)})
    assert np.isfinite(net.run({"a": A})[0])


TOKENS = np.arange(12, dtype=np.int64).reshape(4, 3)
STATES = np.linspace(-1, 1, 20, dtype=np.float32).reshape(1, 4, 5)


def reader(declared, level):
    """A recurrent step and its loss; as declared, or with ranks and a type that what is fed will change."""
    tokens, state, label = (
        (
            static.data("tokens", [-1, 3], "int64"),
            static.data("state", [1, -1, 5]),
            static.data("label", [-1, 1], "int64"),
        )
        if declared
        else (unchecked("tokens", [-1, 3], "int64"), unchecked("state", [-1, 1]), unchecked("label", [-1, 1]))
    )
    ids = paddle.cast(tokens, "int32")
    words = paddle.reshape(paddle.nn.Embedding(20, 5)(ids), [-1, 15])
    start = paddle.reshape(paddle.reshape(state, [1, -1, 5]) * 2, [-1, 5])
    scores = static.nn.fc(paddle.concat([words, start], 1), 6)
    loss = paddle.mean(paddle.nn.functional.softmax_with_cross_entropy(scores, label))
    optimizer = paddle.optimizer.Adam(0.05)
    optimizer = optimizer if level == "O0" else static.amp.decorate(optimizer, level=level)
    optimizer.minimize(loss)
    return loss


def trained(declared, feeds, level="O0"):
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 3
    with paddle.utils.unique_name.guard(), static.program_guard(main, startup):
        loss = reader(declared, level)
    exe = static.Executor("cpu")
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        return [exe.run(main, feed=feed, fetch_list=[loss])[0].item() for feed in feeds]


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_an_array_decides_in_a_training_step_where_the_check_is_off(level):
    """Ids and states of further ranks, and labels declared as floats, train as they do where they are declared so."""
    labels = TOKENS[:, :1] % 6
    expected = trained(True, [{"tokens": TOKENS, "state": STATES, "label": labels}] * 3, level)
    fed = {"tokens": TOKENS[..., None], "state": STATES, "label": labels}
    ways = [fed, {**fed, "tokens": TOKENS, "state": STATES[0]}, {**fed, "label": labels.astype(np.float32)}]
    assert trained(False, ways, level) == expected
    assert expected[-1] < expected[0]
    bits = STATES.astype(ml_dtypes.bfloat16)
    rounded = trained(True, [{"tokens": TOKENS, "state": bits.astype(np.float32), "label": labels}], level)
    assert trained(False, [{**fed, "state": bits.view(np.uint16)}], level) == rounded


def test_labels_declared_as_floats_are_whole_numbers():
    fed = {"tokens": TOKENS, "state": STATES, "label": np.array([[0], [1.5], [2], [3]], np.float32)}
    with pytest.raises(InputError, match=r"'label' \(.*: its numbers are labels, and some have fractions"):
        trained(False, [fed])
    with pytest.raises(InputError, match=r"label.*6"):
        trained(False, [{**fed, "label": np.array([[0], [6], [2], [3]])}])


def test_a_training_step_with_a_branch_is_fed_with_the_ranks_that_are_declared():
    def build():
        a = unchecked("a", [-1, 3])
        hidden = static.nn.cond(paddle.sum(a) > 0, lambda: a * 2, lambda: a)
        return paddle.mean(static.nn.fc(hidden, 2))

    net = Net(build, rate=0.1)
    with pytest.raises(InputError, match="got shape"):
        net.run({"a": A[None]})
    assert np.isfinite(net.run({"a": A})[0])


def test_lists_for_integers_must_hold_integers():
    net = Net(lambda: paddle.sum(static.data("i", [None], "int64")))
    assert net.run({"i": [1, 2, 3]}) == [6]
    assert net.run({"i": [1.0, 2.0]}) == [3]
    with pytest.raises(InputError, match="got float64"):
        net.run({"i": [1.5]})


def test_numbers_are_fed_to_scalars_and_bits_of_bfloat16_as_uint16():
    net = Net(lambda: static.data("s", [], "float32") * 2)
    assert net.run({"s": 1.5}) == [3.0]
    low = Net(lambda: static.data("b", [2], "bfloat16").astype("float32"))
    bits = np.array([1.5, -2.0], ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(low.run({"b": bits})[0], [1.5, -2.0])


def test_bad_fetches(total):
    with pytest.raises(InputError, match="fetch_list takes variables, names and lists of them, got int 3"):
        total.run({"a": A}, [3])
    with pytest.raises(InputError, match="did you mean"):
        total.run({"a": A}, [total.result.name + "x"])


def test_the_arguments_of_paddles_run(total):
    values = total.executor.run(
        total.main, {"a": A}, [total.result], "feed", "fetch", total.scope, True, False, True, False
    )
    assert values == [15.0]
    assert total.executor.run(total.main, {"a": A}, [total.result], total.scope) == [15.0]  # ours of before


@pytest.mark.parametrize("shape", [3, "23", [2, 3.0], [2, True], None, [[2]]])
def test_a_shape_is_a_list_of_sizes(shape):
    with static.program_guard(static.Program()), pytest.raises(InputError, match="the shape must be a list of sizes"):
        static.data("x", shape)


def test_data_without_a_type_is_float32_and_must_have_a_name():
    with static.program_guard(static.Program()):
        assert static.data("x", (np.int64(2), -1), None).dtype == "float32"
        with pytest.raises(InputError, match="the name must be a string"):
            static.data(["x"], [2])


def test_lists_of_numbers_are_operands():
    net = Net(lambda: [1.0, 2.0, 3.0] * static.data("a", [None, 3]) + (1, 2, 3) - [[1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(net.run({"a": A})[0], np.float32([1, 2, 3]) * A + [0, 1, 2])
    with static.program_guard(static.Program()):
        for ragged in ([[1.0], [1.0, 2.0]], [], ["1"], [None], [1.0, [2.0]]):
            with pytest.raises(TypeError):
                static.data(f"x{len(repr(ragged))}", [2]) * ragged


def test_a_value_of_a_run_is_fed_as_it_is():
    net = Net(lambda: static.data("a", [None, 3]) * 2)
    (value,) = net.executor.run(net.main, {"a": A}, [net.result], scope=net.scope, return_numpy=False)
    np.testing.assert_array_equal(net.run({"a": value})[0], 4 * A)


# ---- sizes ----

B = np.ones((5, 3), np.float32)


def two_sums():
    return paddle.sum(static.data("a", [-1, 3])) + paddle.sum(static.data("b", [None, 3]))


def test_inputs_that_are_never_combined_may_have_unequal_rows():
    net = Net(two_sums)
    assert net.run({"a": A, "b": B}) == [30.0]
    assert net.run({"a": A, "b": A}) == [30.0]


def test_they_train_as_with_names_of_their_own():
    def build(first, second):
        def make():
            a, b = static.data("a", [first, 3]), static.data("b", [second, 3])
            table = static.nn.create_parameter([3, 2], "float32", name="w")
            both = paddle.concat([paddle.matmul(a, table), paddle.matmul(b, table)], 0)
            scores = paddle.matmul(paddle.matmul(a, table), paddle.matmul(b, table), transpose_y=True)
            return paddle.mean(both * both) + paddle.mean(functional.softmax(scores) * scores)

        return make

    def initial(net):
        net.scope["w"] = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
        return net

    open_, named = (initial(Net(build(*names), 0.1)) for names in ((None, None), ("n", "m")))
    for _ in range(3):
        assert open_.run({"a": A, "b": B}) == named.run({"a": A, "b": B})
    np.testing.assert_array_equal(open_.scope["w"], named.scope["w"])


@pytest.mark.parametrize("rows", [1, 3])
def test_inputs_that_a_step_combines_must_have_equal_rows(rows):
    """One row would be repeated, and its gradient was made without a sum."""
    net = Net(lambda: functional.mse_loss(static.nn.fc(static.data("a", [-1, 3]), 3), static.data("b", [-1, 3])), 0.1)
    with pytest.raises(InputError, match=r"'b' is fed with batch = 5, but 'a' with .* Sub '.*' \(.*\) combines them"):
        net.run({"a": np.ones((rows, 3), np.float32), "b": B})


def test_one_row_is_repeated_where_nothing_is_trained():
    net = Net(lambda: paddle.sum(static.data("a", [-1, 3]) * static.data("b", [-1, 3])))
    assert net.run({"a": A[1:], "b": B}) == [60.0]
    with pytest.raises(InputError, match="'b' is fed with batch = 5"):
        net.run({"a": A, "b": B})


def test_a_dimension_that_the_user_names_is_shared():
    net = Net(lambda: paddle.sum(static.data("a", ["n", 3])) + paddle.sum(static.data("b", ["n", 3])))
    with pytest.raises(InputError, match="'b' is fed with n = 5, but 'a' with 2"):
        net.run({"a": A, "b": B})


# ---- a loss that is not finite ----


def test_parameters_that_are_lost_are_warned_of_once(caplog):
    net = Net(lambda: paddle.mean(static.nn.fc(static.data("a", [None, 3]), 2)), 0.1)
    with caplog.at_level(logging.WARNING):
        net.run({"a": A})
        assert not caplog.text
        for _ in range(2):
            net.run({"a": A * np.nan})
    assert caplog.text.count("is not finite, and now 1 of 2 parameters hold infinity or NaN") == 1
    assert "not_finite='stop'" in caplog.text


def test_initial_values_are_fetched_from_the_startup_program():
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup), static.scope_guard(scope):
        layer = paddle.nn.Linear(2, 3)
        loss = layer(static.data("x", [1, 2])).mean()
        paddle.optimizer.Adam(parameters=layer.parameters()).minimize(loss)
        moment = f"{layer.weight.name}_moment1_0"
        value = static.Executor(paddle.CPUPlace()).run(startup, fetch_list=[layer.weight, moment, layer.bias])
    np.testing.assert_array_equal(value[0], scope[layer.weight.name])
    assert np.abs(value[0]).max() > 0
    assert (value[1].shape, value[2].shape) == ((2, 3), (3,))
    assert not value[1].any()
    with static.scope_guard(scope), pytest.raises(InputError, match="there is no variable 'nothing'"):
        static.Executor(paddle.CPUPlace()).run(startup, fetch_list=["nothing"])
