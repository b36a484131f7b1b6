"""Errors of building and of running name the operands, the lines that made them, what is wrong and the remedy."""

import numpy as np
import pytest

from amp_transpiler import CPUPlace, optimizer, paddle, static
from amp_transpiler.errors import InputError, MisfitError
from amp_transpiler.paddle.nn import functional

HERE = r"\S*test_messages\.py:\d+"


def data(name, *shape, dtype="float32"):
    return static.data(name, list(shape), dtype)


# What is built -> the start, and what must be said.
BUILT = {
    "product": (lambda: paddle.matmul(data("x", 2, 3), data("y", 4, 5)), "MatMul", "'x' has 3 .* 'y' 4.*transpose"),
    "sum": (lambda: data("x", 2, 3) + data("y", 2, 4), "Add", "axis -1 their sizes are 3 and 4"),
    "integers": (lambda: functional.softmax(data("x", 2, dtype="int64")), "Softmax", r"x\.astype\('float32'\)"),
    "joined": (lambda: paddle.concat([data("x", 2, 3), data("y", 3, 4)], 0), "Concat", "axis 1 .*3 and 4"),
    "joined ranks": (lambda: paddle.concat([data("x", 2, 3), data("y", 3)], 0), "Concat", "1 and 2 axes"),
    "reshaped": (lambda: paddle.reshape(data("x", 2, 3), [4, 2]), "Reshape", r"6 numbers .*\[4, 2\], which has 8"),
    "reshaped, a rest": (lambda: paddle.reshape(data("x", 2, 3), [-1, 4]), "Reshape", r"6 numbers .*\[-1, 4\]"),
    "turned": (lambda: paddle.transpose(data("x", 2, 3, 4), [0, 1]), "Transpose", "each of its 3 axes once"),
    "convolution": (lambda: static.nn.conv2d(data("x", 1, 3, 8, 8), 4, 11), "Conv", "window is 11 wide and the data 8"),
    "pooling": (lambda: functional.max_pool2d(data("x", 1, 3, 4, 4), 7), "MaxPool", "window is 7 wide and the data 4"),
    "loss": (lambda: functional.mse_loss(data("x", 4, 3), data("y", 4, 2)), "Sub", "mse_loss"),
}


@pytest.mark.parametrize(("build", "start", "said"), BUILT.values(), ids=BUILT)
def test_an_operator_that_does_not_fit_is_refused_while_building(build, start, said):
    main = static.Program()
    with static.program_guard(main, static.Program()), pytest.raises(MisfitError, match=said) as raised:
        build()
    text = str(raised.value)
    assert text.startswith(f"{start} ")
    assert "InferenceError" not in text
    raised.match(rf"'x' \w+ \[[\d, ]+\] \({HERE}\)")


X, Y = np.ones((2, 3), np.float32), np.ones((4, 4), np.float32)
CLASSES = np.ones((4, 1), np.int64)
RUN = {
    "sum": (lambda: data("x", "a", "b") + data("y", "c", "d"), {"x": X, "y": Y}, "sizes are 2 and 4|sizes are 3 and 4"),
    "product": (
        lambda: paddle.matmul(data("x", "a", "b"), data("y", "c", "d")), {"x": X, "y": Y}, "'x' has 3 .* 'y' 4",
    ),
    "reshaped": (lambda: paddle.reshape(data("x", "a", "b"), [-1, 4]), {"x": X}, "6 numbers cannot"),
    "joined": (
        lambda: paddle.concat([data("x", "a", "b"), data("y", "c", "d")]),
        {"x": X, "y": Y},
        "axis 1 .* 3 and 4 must be",
    ),
    "loss": (
        lambda: functional.cross_entropy(static.nn.fc(data("x", "a", 3), 4), data("y", "b", 1, dtype="int64")),
        {"x": X, "y": CLASSES},
        r"scores of shape \[2, 4\] need labels of shape \[2\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("train", [False, True], ids=["predict", "train"])
@pytest.mark.parametrize(("build", "feed", "said"), RUN.values(), ids=RUN)
def test_sizes_that_do_not_fit_when_they_are_fed(build, feed, said, train):
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        result = build()
        if train:
            result = paddle.mean(static.nn.create_parameter([1], "float32") * result)
            optimizer.SGD(0.1).minimize(result)
    executor = static.Executor(CPUPlace())
    executor.run(startup, scope=scope)
    with pytest.raises(MisfitError, match=said) as raised:
        executor.run(main, feed, [result], scope=scope)
    raised.match(rf"at {HERE}\) does not fit '")
    raised.match(r"That line is `")
    assert "ONNXRuntimeError" not in str(raised.value)


def test_a_window_that_is_larger_than_what_is_fed():
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        result = static.nn.conv2d(data("x", 1, 3, "h", "w"), 2, 5)
    executor = static.Executor(CPUPlace())
    executor.run(startup, scope=scope)
    with pytest.raises(MisfitError, match=rf"conv2d at {HERE}\) does not fit .* 5 wide and the data 4"):
        executor.run(main, {"x": np.ones((1, 3, 4, 4), np.float32)}, [result], scope=scope)


def test_a_name_that_is_taken_and_one_that_is_unknown():
    main = static.Program()
    with static.program_guard(main, static.Program()):
        data("image", 2)
        with pytest.raises(InputError, match=rf"already has a variable 'image' \(made at {HERE}\)"):
            data("image", 2)
    with pytest.raises(InputError, match="did you mean 'image'"):
        main.var("imagee")


def test_an_index_error_names_the_line():
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with static.program_guard(main, startup):
        ids = data("ids", None, dtype="int64")
        loss = paddle.mean(static.nn.embedding(ids, [4, 2]))
        optimizer.SGD(0.1).minimize(loss)
    executor = static.Executor(CPUPlace())
    executor.run(startup, scope=scope)
    with pytest.raises(InputError, match=rf"built by nn.functional.embedding at {HERE}\).* are 0 to 3"):
        executor.run(main, {"ids": np.array([0, 4])}, [loss], scope=scope)


def test_lines_are_not_written_to_files():
    main = static.Program()
    with static.program_guard(main, static.Program()):
        main.outputs.append((data("x", 2) * 2).name)
    assert b"test_messages" not in main.to_onnx().SerializeToString()
