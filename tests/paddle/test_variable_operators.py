"""Operators of variables: arithmetic with arrays and numbers, comparisons; what needs a value is refused."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import static, tensor
from tests.paddle.nets import CPU

X = np.array([[0.0, 1.0, -2.0], [3.0, 0.5, 1.0]], np.float32)
I = np.array([[0, 1, -2], [3, 4, 1]])  # noqa: E741  # beside X
ROW = np.array([1.0, 2.0, 4.0])


def computed(make):
    """Build `make(x, i)`, a variable, and run it."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        result = make(static.data("x", [2, 3]), static.data("i", [2, 3], "int64"))
    assert isinstance(result, amp.Variable)
    [value] = static.Executor(CPU).run(main, feed={"x": X, "i": I}, fetch_list=[result])
    assert str(value.dtype) == result.dtype
    return value


ARITHMETIC = {
    "x + array": (lambda x, i: x + ROW, X + ROW, "float32"),
    "array + x": (lambda x, i: ROW + x, X + ROW, "float32"),
    "array - x": (lambda x, i: ROW - x, ROW - X, "float32"),
    "x * array of integers": (lambda x, i: x * np.arange(3), X * np.arange(3), "float32"),
    "array / x": (lambda x, i: ROW / (x * x + 1), ROW / (X * X + 1), "float32"),
    "array ** x": (lambda x, i: ROW**x, ROW**X, "float32"),
    "x @ array": (lambda x, i: x @ ROW[:, None], X @ ROW[:, None], "float32"),
    "array @ x": (lambda x, i: np.ones((1, 2)) @ x, np.ones((1, 2)) @ X, "float32"),
    "numpy number * x": (lambda x, i: np.float64(2.5) * x, X * 2.5, "float32"),
    "x + array of no axes": (lambda x, i: x + np.array(2.5), X + 2.5, "float32"),
    "x + array of truth values": (lambda x, i: x + np.array([True, False, True]), X + np.array([1, 0, 1]), "float32"),
    "float16 + float64 array": (lambda x, i: x.astype("float16") + ROW, X + ROW, "float16"),
    "2 ** x": (lambda x, i: 2**x, 2**X, "float32"),
    "integers + array of fractions": (lambda x, i: i + ROW / 8, I + ROW / 8, "float32"),
    "integers + array of integers": (lambda x, i: i + np.arange(3), I + np.arange(3), "int64"),
    "integers * fraction": (lambda x, i: i * 0.5, I * 0.5, "float32"),
    "integers ** fraction": (lambda x, i: (i * i) ** 0.5, np.abs(I), "float32"),
    "integers / integer": (lambda x, i: i / 2, I / 2, "float32"),
    "integer / integers": (lambda x, i: 1 / (i * i + 1), 1 / (I * I + 1), "float32"),
    "integers / integers": (lambda x, i: i / (i * i + 1), I / (I * I + 1), "float32"),
    "tensor.divide of integers": (lambda x, i: tensor.divide(i, 2), I / 2, "float32"),
    "tensor.multiply by a fraction": (lambda x, i: tensor.multiply(i, 0.5), I * 0.5, "float32"),
    "integers + 1": (lambda x, i: i + 1, I + 1, "int64"),
    "int32 + number beyond int32": (lambda x, i: i.astype("int32") + 2**40, I + 2**40, "int64"),
    "truth values + integer": (lambda x, i: (x > 0) + 1, (X > 0) + 1, "int64"),
    "integers + floats": (lambda x, i: i + x, I + X, "float32"),
    "float16 * float32": (lambda x, i: x.astype("float16") * x, X * X, "float32"),
    "float16 * bfloat16": (lambda x, i: x.astype("float16") * x.astype("bfloat16"), X * X, "float32"),
    "int32 + int64": (lambda x, i: i.astype("int32") + i, I + I, "int64"),
    "number beyond float16": (lambda x, i: (x.astype("float16") - x.astype("float16")) * -1e9, X * 0, "float16"),
    "number below float16": (lambda x, i: (x.astype("float16") * 2.0**14) * 2.0**-26, X / 2**12, "float16"),
    "array beyond float16": (lambda x, i: x.astype("float16") / np.array([2e5, 1, 1]), X / [2e5, 1, 1], "float16"),
    "scale beyond float16": (lambda x, i: tensor.scale((x * 0).astype("float16"), 1e5), X * 0, "float16"),
    "scale of integers": (lambda x, i: tensor.scale(i, 2.5, 1), I * 2 + 1, "int64"),
    "scale by a variable": (lambda x, i: tensor.scale(x, tensor.full([1], 2.0)), X * 2, "float32"),
}


@pytest.mark.parametrize("case", ARITHMETIC)
def test_arithmetic_gives_a_variable(case):
    make, expected, dtype = ARITHMETIC[case]
    value = computed(make)
    assert (str(value.dtype), value.shape) == (dtype, expected.shape)
    np.testing.assert_allclose(value.astype(np.float64), expected, rtol=2e-3 if dtype == "float16" else 1e-5)


COMPARISONS = {
    "==": (lambda a, b: a == b),
    "!=": (lambda a, b: a != b),
    "<": (lambda a, b: a < b),
    "<=": (lambda a, b: a <= b),
    ">": (lambda a, b: a > b),
    ">=": (lambda a, b: a >= b),
}
SIDES = {
    "number": (lambda x, i: (x, 1), (X, 1)),
    "number first": (lambda x, i: (1, x), (1, X)),
    "array": (lambda x, i: (x, ROW), (X, ROW)),
    "array first": (lambda x, i: (ROW, x), (ROW, X)),
    "variable": (lambda x, i: (x, x * x), (X, X * X)),
    "integers with a fraction": (lambda x, i: (i, 0.5), (I, 0.5)),
    "float16 with a number beyond it": (lambda x, i: (x.astype("float16"), 1e6), (X, 1e6)),
    "integers with floats": (lambda x, i: (i, x), (I, X)),
    "truth values": (lambda x, i: (x > 0, i > 0), (X > 0, I > 0)),
    "truth values with an integer": (lambda x, i: (x > 0, 1), (X > 0, 1)),
}


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("operator", COMPARISONS)
def test_a_comparison_is_a_variable_of_truth_values(operator, sides):
    compare, (of_variables, of_arrays) = COMPARISONS[operator], SIDES[sides]
    value = computed(lambda x, i: compare(*of_variables(x, i)))
    assert value.dtype == bool
    np.testing.assert_array_equal(value, compare(*of_arrays))


def test_nothing_is_equal_to_not_a_number():
    assert computed(lambda x, i: x * np.nan != x * np.nan).all()
    assert not computed(lambda x, i: x * np.nan == x * np.nan).any()


REFUSED = {
    "if": (lambda x: 1 if x else 2, "truth value.*tensor.where"),
    "if x == 0": (lambda x: 1 if x == 0 else 2, "truth value"),
    "and": (lambda x: x and x, "truth value"),
    "not": (lambda x: not x, "truth value"),
    "assert": (lambda x: bool(x > 0), "truth value"),
    "in": (lambda x: x in [x * 2.0, x], "truth value.*`is` or by `.name`"),
    "chain": (lambda x: 0 < x < 1, "truth value"),
    "len": (len, r"shape\[0\]"),
    "iteration": (list, "tensor.split"),
    "unpacking": (lambda x: [*x], "tensor.split"),
    "element in": (lambda x: 0 in x, "not iterable"),
    "float": (float, "fetch"),
    "int": (int, "fetch"),
    "complex": (complex, "fetch"),
    "index": (lambda x: [1, 2][x], "Python int"),
    "range": (range, "Python int"),
    "shape": (lambda x: np.zeros([x]), "Python int"),
    "numpy array": (np.asarray, "fetch"),
    "numpy function": (np.linalg.norm, "fetch"),
    "name": (lambda x: x == "x", r"\.name"),
    "not name": (lambda x: x != "x", r"\.name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_a_value_says_that_there_is_none_yet(case):
    use, message = REFUSED[case]
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2, 3])
        with pytest.raises(TypeError, match=message):
            use(x)


def test_an_array_function_of_numpy_is_refused():
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2, 3])
        with pytest.raises(TypeError, match="ufunc"):
            np.add(ROW, x)


@pytest.mark.parametrize("other", [None, [1.0, "a"], object(), np.array(["a"])])
def test_other_operands_are_refused_and_equal_to_nothing(other):
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2, 3])
        with pytest.raises(TypeError):
            x + other
        if not isinstance(other, np.ndarray):
            assert (x == other) is False
            assert (x != other) is True


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_a_mean_of_integers_is_refused(dtype):
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2, 3], dtype)
        with pytest.raises(amp.InputError, match="cast it first"):
            tensor.mean(x)


def test_variables_are_keys_by_identity():
    with static.program_guard(static.Program(), static.Program()):
        x, y = static.data("x", [2, 3]), static.data("y", [2, 3])
    assert {x: 1, y: 2}[y] == 2
    assert len({x, y, x}) == 2
    assert x in [x, y]
    assert hash(x) == hash(x)


def test_variables_of_two_programs_do_not_meet():
    with static.program_guard(static.Program(), static.Program()):
        x = static.data("x", [2, 3])
    with static.program_guard(static.Program(), static.Program()):
        y = static.data("y", [2, 3])
        for combine in (lambda: x + y, lambda: x == y):
            with pytest.raises(amp.InputError, match="two programs"):
                combine()
