"""Mistakes as users make them: each ends in an error of this package that names the argument and the line."""

import numpy as np
import onnx.parser
import pytest

from amp_transpiler import Session, paddle
from amp_transpiler.errors import InputError, ModelError, OptionError
from amp_transpiler.measuring.node_times import node_times
from amp_transpiler.paddle import io, metric, nn, optimizer, static
from amp_transpiler.paddle.argument_checks import checked
from amp_transpiler.paddle.building import program_of
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.runtime.places import CPUPlace

HERE = r"\(at \S*test_argument_checks\.py:\d+\)"
ARRAY = np.ones((2, 4), np.float32)


pytestmark = pytest.mark.usefixtures("fresh_programs")


def model_of(body):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {body}')


def X(dtype="float32"):  # noqa: N802  # as in scripts
    return static.data("x", [None, 4], dtype)


# What is called -> what must be said of it.
ARGUMENTS = {
    "a number for a shape": (lambda: paddle.reshape(X(), 6), f"reshape {HERE}: shape must be .*, got 6"),
    "a string for a shape": (lambda: paddle.reshape(X(), "4"), "shape must be .*, got '4'"),
    "floats in a shape": (lambda: paddle.reshape(X(), [2.0, 2]), r"a list of whole numbers or .*, got \[2.0, 2\]"),
    "None in a shape": (lambda: paddle.reshape(X(), [None, 4]), r"got \[None, 4\]"),
    "one variable for a list": (lambda: paddle.concat(X()), "concat .*: x must be a list of variables of a program"),
    "nothing to stack": (lambda: paddle.stack([]), r"stack .*: x must be a list of .*, got \[\]"),
    "an array for a variable": (lambda: F.relu(ARRAY), "relu .*: x must be a variable .*: paddle.assign makes a"),
    "None for a variable": (lambda: F.relu(None), "x must be a variable of a program, got None"),
    "no labels": (lambda: F.ctc_loss(X(), X, None, None), "ctc_loss .*: labels must be a variable"),
    "another name of an argument": (
        lambda: paddle.mean(X(), axes=1), f"mean {HERE}: got an unexpected .* 'axes' .did you mean 'axis'",
    ),
    "an argument that there is not": (lambda: paddle.concat([X()], dim=1), "'dim'; it takes x, axis"),
    "an argument left out": (F.relu, f"relu {HERE}: missing a required argument: 'x'; it takes x"),
    "the plain optimizer's name": (
        lambda: static.amp.decorate(optimizer.SGD(0.1)).minimize(paddle.mean(X()), parameters=[]),
        "minimize .*'parameters' .did you mean 'parameter_list'",
    ),
    "a loss of None, decorated": (
        lambda: static.amp.decorate(optimizer.SGD(0.1)).minimize(None), "minimize .*: loss must be a variable of a",
    ),
    "a string for an axis": (lambda: F.softmax(X(), axis="1"), "softmax .*: axis must be a whole number, got '1'"),
    "a float for an axis": (lambda: paddle.mean(X(), axis=1.0), "axis must be a whole number, a list of .*, got 1.0"),
    "axes one by one": (lambda: X().transpose(0, 1), "transpose .*: perm must be a list of whole numbers, got 0"),
    "a string for a number": (lambda: F.dropout(X(), p="0.5"), "dropout .*: p must be a number, got '0.5'"),
    "a string for a bound": (lambda: paddle.clip(X(), "a"), "clip .*: min must be .*, got 'a'"),
    "a size as a string": (lambda: static.nn.fc(X(), "10"), "fc .*: size must be a whole number, got '10'"),
    "a size with a fraction": (lambda: static.nn.fc(X(), 10.5), "size must be a whole number, got 10.5"),
    "data for a layer": (lambda: static.nn.fc(ARRAY, 10), "fc .*: x must be a variable of a program, a list of"),
    "a window as a string": (lambda: F.max_pool2d(X(), "2"), "kernel_size must be a whole number or a list of whole"),
    "an embedding's size": (lambda: static.nn.embedding(X(), 10), "size must be a list of whole numbers, got 10"),
    "a layer's size": (lambda: nn.Linear("5", 3), f"Linear {HERE}: in_features must be a whole number, got '5'"),
    "an array for an initializer": (
        lambda: paddle.ParamAttr(initializer=ARRAY), "ParamAttr .*: initializer must be an Initializer or None",
    ),
    "a number for a clip": (lambda: optimizer.SGD(0.1, grad_clip=1.0), "SGD .*: grad_clip must be a ClipGradBase or"),
    "a string for a rate": (lambda: optimizer.Adam("0.1"), "Adam .*: learning_rate must be a number"),
    "a string for steps": (lambda: optimizer.lr.StepDecay(0.1, "3"), "StepDecay .*: step_size must be a whole number"),
    "a loss of None": (lambda: optimizer.SGD(0.1).minimize(None), "minimize .*: loss must be a variable of a program"),
    "a rate to set": (lambda: optimizer.SGD(0.1).set_lr("a"), "set_lr .*: value must be a number, got 'a'"),
    "a name for a program": (lambda: static.save("prog", "x"), "save .*: program must be a Program, got 'prog'"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "said"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_argument_of_another_type_is_named(call, said):
    with pytest.raises(OptionError, match=said) as error:
        call()
    assert isinstance(error.value, TypeError)  # as in Paddle


VALUES = {
    "integers into a layer": (lambda: static.nn.fc(X("int64"), 3), r"layer 'fc_0': its input is INT64: cast it"),
    "features of a sequence": (lambda: nn.LSTM(4, 8)(static.data("s", [2, 3, 5])), "LSTMCell was made for 4 features"),
    "a dimension below -1": (lambda: static.data("x", [-2, 3]), "shape must be a list of sizes, None, -1 or names"),
    "a step of 0": (lambda: paddle.arange(0, 5, 0), "arange: step must not be 0"),
    "rows of several lengths": (lambda: paddle.to_tensor([[1, 2], [3]]), "to_tensor: the rows .* differ in length"),
    "a string for data": (lambda: paddle.to_tensor("a"), "to_tensor takes numbers, got 'a'"),
    "a seed": (lambda: paddle.seed("a"), "seed must be a whole number, got 'a'"),
    "axes of indices": (
        lambda: paddle.take_along_axis(X(), static.data("i", [2], "int64"), 1), "must have the same number of axes",
    ),
    "rows to write": (
        lambda: paddle.scatter(X(), static.data("i", [2], "int64"), static.data("u", [2, 5])),
        "scatter: the rows of .*'u'.* must have the shape of those of .*'x'",
    ),
    "an equation": (lambda: paddle.einsum("i..j->ij", X()), r"einsum: the equation 'i\.\.j->ij' is no list of terms"),
    "batches of none": (lambda: io.DataLoader([(1, 2)], batch_size=0), "batch_size must be 1 or more, or None"),
    "a data set": (lambda: io.DataLoader(5), "dataset must be a Dataset, or have len and indices, got 5"),
    "a metric's values": (lambda: metric.Accuracy().update("a"), "Accuracy.update takes what compute returned"),
    "lists of operators": (
        lambda: static.amp.decorate(optimizer.SGD(0.1), amp_lists=["relu"]), "amp_lists must be AutoMixedPrecision",
    ),
    "dynamic mode": (lambda: optimizer.SGD(0.1).step(), r"SGD has no step\(\): there is no dynamic mode"),
    "gradients of dynamic mode": (lambda: optimizer.Adam().clear_grad(), r"Adam has no step\(\)"),
    "a place": (lambda: static.Executor(0), "place must be CPUPlace"),
    "a place's name": (lambda: static.Executor("gpu9"), "unknown place 'cuda9'"),
    "a program": (lambda: static.Executor("cpu").run("main"), "Executor.run takes a program, got 'main'"),
    "nothing to fetch": (lambda: static.Executor("cpu").run(fetch_list=[None]), "fetch_list takes variables, names"),
    "no variable": (lambda: program_of(3), "expected a variable of a program, got int 3"),
    "a weight's axis": (
        lambda: static.nn.fc(X(), 3, weight_attr=static.WeightNormParamAttr(dim=2)), "dim must be from -2 to 1, got 2",
    ),
    "a weight of a layer object": (
        lambda: nn.Linear(2, 2, static.WeightNormParamAttr()), "is for the weights of layers of static.nn",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "said"), VALUES.values(), ids=VALUES)
def test_a_value_without_a_meaning_is_named(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_a_variable_cannot_be_fed():
    x = X()
    with pytest.raises(InputError, match=r"input 'x' .*: got Variable\('x'.*expected an array of shape"):
        static.Executor("cpu").run(feed={"x": x}, fetch_list=[x + 1])


def test_a_name_is_a_place():
    x = X()
    assert static.Executor("cpu").run(feed={"x": ARRAY}, fetch_list=[x + 1])[0].sum() == 16
    with pytest.raises(OptionError, match="expected 'cpu' or"):
        paddle.set_device("tpu")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.ones((4, 3), complex), "'fc_0.w_0' is set to .*complex128 values: expected real numbers"),
        ("abc", "'fc_0.w_0' is set to 'abc', str"),
        (None, "'fc_0.w_0' is set to None, object values"),
        ([[1, 2], [3]], "'fc_0.w_0' is set to .*which is no array of numbers"),
    ],
)
def test_a_scope_holds_arrays_of_numbers(value, said):
    static.nn.fc(X(), 3)
    scope = static.global_scope()
    static.Executor("cpu").run(static.default_startup_program())
    with pytest.raises(InputError, match=said):
        scope["fc_0.w_0"] = value
    with pytest.raises(InputError, match=said):
        scope.find_var("fc_0.w_0").get_tensor().set(value, CPUPlace())
    assert scope["fc_0.w_0"].shape == (4, 3)


@pytest.mark.parametrize("shape", [(5, 3), (12,)])
def test_a_value_of_another_shape_in_the_scope_is_named(shape):
    layer = static.nn.fc(X(), 3)
    executor = static.Executor("cpu")
    executor.run(static.default_startup_program())
    static.global_scope()["fc_0.w_0"] = np.ones(shape, np.float32)
    with pytest.raises(InputError, match=r"'fc_0\.w_0' is of shape \[.*\] in the scope, but of \[4,3\] in the program"):
        executor.run(feed={"x": ARRAY}, fetch_list=[layer])


def test_types_that_only_checkers_know_are_left_to_the_function():
    def function(x: "Nowhere", *rest: int, y: int = 3) -> object:  # noqa: F821
        return x, rest, y

    assert checked(function)("a", "b") == ("a", ("b",), 3)
    with pytest.raises(OptionError, match="y must be a whole number, got 'c'"):
        checked(function)("a", y="c")


def test_errors_of_bound_runs_and_profiles_are_words():
    model = model_of("g (float[n] x, int64[m] i) => (float[m] y) { y = Gather(x, i) }")
    feeds = {"x": np.ones(3, np.float32), "i": np.array([7])}
    run = Session(model, CPUPlace()).bind(feeds)
    with pytest.raises(InputError, match="cannot run these inputs"):
        run()
    with pytest.raises(InputError, match="cannot run these inputs"):
        node_times(model, feeds, CPUPlace())
    without_kernel = model_of("g (int16[2] x) => (int16[2] y) { y = Relu(x) }")
    with pytest.raises(InputError, match="the program cannot be opened on CPU"):
        node_times(without_kernel, {"x": np.ones(2, np.int16)}, CPUPlace())


def test_an_equation_that_onnx_never_ends_on_is_refused():
    with pytest.raises(ModelError, match=r"Einsum .*: the equation 'i\.\.j->q' is no list of terms"):
        paddle.static.from_onnx(model_of('g (float[2,3] x) => (float[q] y) { y = Einsum<equation = "i..j->q">(x) }'))
