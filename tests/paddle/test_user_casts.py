"""The casts of the user stay: every variable outlives minimize and cast_model_to_fp16, in the type it was given."""

import numpy as np
import pytest
from amp_transpiler.nn import functional
from amp_transpiler.utils import unique_name

import amp_transpiler as amp
from amp_transpiler import static, tensor
from tests.paddle.nets import CPU, makes, nodes

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
LOW = {"float16": np.float16, "bfloat16": "bfloat16"}
LEVELS = ["O1", "O2", "OD"]


class Built:
    """A program built by `layers(x)`, which returns variables by name, among them the loss."""

    def __init__(self, layers, dtype="float32", shape=(4, 3)):
        self.main, self.startup, self.scope = static.Program(), static.Program(), static.Scope()
        self.main.random_seed = self.startup.random_seed = 5
        self.optimizer = None
        with static.program_guard(self.main, self.startup), unique_name.guard():
            self.x = static.data("x", shape, dtype)
            self.made = layers(self.x)

    def minimize(self, rate=0.0, **decorate):
        with static.program_guard(self.main, self.startup), unique_name.guard("optimizer_"):
            optimizer = amp.optimizer.SGD(rate)
            self.optimizer = static.amp.decorate(optimizer, **decorate) if decorate else optimizer
            self.optimizer.minimize(self.made["loss"])
        return self

    def fetch(self, *names, program=None):
        executor = static.Executor(CPU)
        executor.run(self.startup, scope=self.scope)
        if hasattr(self.optimizer, "amp_init"):
            self.optimizer.amp_init(CPU, self.scope)
        feed = {"x": X.reshape(self.x.shape).astype(self.x.value.dtype.numpy())}
        wanted = [self.made[name] for name in names]
        return executor.run(program or self.main, feed=feed, fetch_list=wanted, scope=self.scope)


def cast_down_and_up(x):
    low = static.nn.fc(x, 3).astype("float16")
    other = low.astype("bfloat16")
    wide = other.astype("float32")
    return {"low": low, "other": other, "wide": wide, "loss": tensor.mean(functional.relu(wide))}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("level", LEVELS)
def test_a_cast_is_fetched_after_minimize_with_its_own_value_and_type(level, dtype):
    plain = Built(cast_down_and_up).fetch("low", "other", "wide", "loss")
    rewritten = Built(cast_down_and_up).minimize(level=level, dtype=dtype).fetch("low", "other", "wide", "loss")
    assert [str(value.dtype) for value in rewritten[:3]] == ["float16", "bfloat16", "float32"]
    for before, after in zip(plain, rewritten, strict=True):
        np.testing.assert_allclose(after.astype(np.float64), before.astype(np.float64), rtol=2e-2, atol=2e-2)


def of_low_data(loss):
    def layers(x):
        target = tensor.scale(tensor.slice(x, [1], [0], [1]), 0.5)
        return {"loss": getattr(functional, loss)(static.nn.fc(x, 1), target)}

    return layers


@pytest.mark.parametrize("level", [*LEVELS, None])
@pytest.mark.parametrize("loss", ["mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"])
def test_losses_of_float16_data_and_parameters_are_trained_and_fetched(loss, level):
    [before] = Built(of_low_data(loss), "float16").fetch("loss")
    [after] = Built(of_low_data(loss), "float16").minimize(**({"level": level} if level else {})).fetch("loss")
    assert before.dtype == after.dtype == np.float16
    np.testing.assert_allclose(after, before, rtol=5e-3)


@pytest.mark.parametrize("level", LEVELS)
def test_the_loss_is_fetched_after_cast_model_to_fp16(level):
    built = Built(of_low_data("mse_loss"), "float16")
    [before] = built.fetch("loss")
    amp.cast_model_to_fp16(built.main, level=level, use_fp16_guard=False)
    [after] = built.fetch("loss")
    assert (after.dtype, after.tobytes()) == (before.dtype, before.tobytes())


def test_a_program_without_parameters_keeps_its_variables_too():
    def layers(x):
        again = tensor.cast(tensor.cast(x, "float16"), "float16")
        return {"again": again, "loss": tensor.matmul(x, tensor.transpose(x, [1, 0]))}

    built = Built(layers)
    amp.cast_model_to_fp16(built.main, use_fp16_guard=False)
    again, product = built.fetch("again", "loss")
    assert again.dtype == np.float16
    np.testing.assert_allclose(again, X.astype(np.float16))
    np.testing.assert_allclose(product.astype(np.float32), X @ X.T, rtol=1e-2, atol=1e-2)


# ---- a cast to the type that the value has already ----


def cast_to_its_type(x):
    # convolution, cast to float32, relu
    convolved = static.nn.conv2d(x, 2, 1)
    relu = functional.relu(convolved.astype("float32"))
    return {"conv": convolved, "relu": relu, "loss": tensor.mean(relu)}


@pytest.mark.parametrize(
    ("options", "conv", "relu"),
    [
        ({"level": "O1"}, "float16", "float32"),
        ({"level": "O1", "use_promote": True}, "float32", "float32"),  # its bias is added in float32
        ({"level": "O2", "use_promote": True}, "float16", "float32"),
        ({"level": "O2"}, "float16", "float16"),  # pure: promotion off makes it low, as in Paddle
    ],
)
def test_a_cast_to_float32_of_a_float32_value_keeps_what_reads_it_in_float32(options, conv, relu):
    built = Built(cast_to_its_type, shape=(1, 3, 2, 2)).minimize(**options)
    assert (built.made["conv"].dtype, built.made["relu"].dtype) == (conv, relu)
    [cast] = [node for node in nodes(built.main, "Cast") if node.inputs[0].name == built.made["conv"].name]
    assert makes(cast) == ["FLOAT"]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.astype("float32"),
        lambda x: tensor.cast(x, "float32"),
        lambda x: functional.softmax(x, dtype="float32").program.var("Cast_out0"),
        lambda x: functional.log_softmax(x, dtype="float32").program.var("Cast_out0"),
    ],
)
def test_what_the_user_casts_is_a_node(make):
    built = Built(lambda x: {"cast": make(x)})
    assert built.made["cast"].value.producer().op_type == "Cast"


def test_layers_cast_nothing_that_has_the_type_already():
    built = Built(lambda x: {"loss": functional.mse_loss(tensor.mean(x), tensor.sum(x, dtype="float32"))})
    assert nodes(built.main, "Cast") == []


# ---- gradients at casts ----


def stopped_cast(x):
    hidden = static.nn.fc(x, 3, name="behind")
    stopped = hidden.astype("float16").astype("float32")
    stopped.stop_gradient = True
    free = hidden.astype("float16").astype("float32")
    return {"hidden": hidden, "stopped": stopped, "free": free, "loss": tensor.mean(static.nn.fc(stopped, 2) * 3.0)}


@pytest.mark.parametrize("level", LEVELS)
def test_a_gradient_stops_at_a_stopped_cast_though_another_of_the_same_value_lets_it_pass(level):
    built = Built(stopped_cast)
    amp.cast_model_to_fp16(built.main, level=level, use_fp16_guard=False)
    values = built.made
    with static.program_guard(built.main, built.startup):
        both = tensor.mean(values["stopped"].astype("float32")) + tensor.mean(values["free"] * 2.0)
        [slope] = static.gradients([both], [values["hidden"]])
    built.made["found"] = slope
    [gradient] = built.fetch("found")
    np.testing.assert_allclose(gradient.astype(np.float64), np.full((4, 3), 2 / 12), rtol=1e-3)  # 3 / 12 unless stopped


@pytest.mark.parametrize("level", LEVELS)
def test_the_gradient_of_a_cast_is_known_after_rewriting(level):
    built = Built(stopped_cast)
    amp.cast_model_to_fp16(built.main, level=level, use_fp16_guard=False)
    with static.program_guard(built.main, built.startup):
        [slope] = static.gradients([built.made["loss"]], [built.made["stopped"]])
    assert slope is not None


# ---- names ----


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_clone_for_test_uses_no_name_of_the_training_program_again(rewritten):
    built = Built(cast_down_and_up).minimize(level="O2")
    if rewritten:
        amp.cast_model_to_fp16(built.main, level="O1", use_fp16_guard=False)
    trained = {str(value.name) for node in nodes(built.main) for value in node.outputs}
    test = built.main.clone(for_test=True)
    left = {str(value.name) for node in nodes(test) for value in node.outputs}
    with static.program_guard(test):
        more = [test.var("x") * factor for factor in range(9)]
    assert trained - left, "the clone has lost no node: the test shows nothing"
    assert not {variable.name for variable in more} & trained


@pytest.mark.parametrize("level", LEVELS)
def test_rewriting_keeps_the_name_of_every_variable_and_gives_none_away(level):
    built = Built(cast_down_and_up)
    before = {variable.name: variable.dtype for variable in built.main.list_vars()}
    built.minimize(level=level)
    with static.program_guard(built.main, built.startup):
        more = [tensor.mean(built.x * factor).name for factor in range(3)]
    assert before.keys() <= {variable.name for variable in built.main.list_vars()}
    assert not before.keys() & set(more)


@pytest.mark.parametrize("of_test", [True, False])
def test_a_variable_is_not_fetched_from_a_clone_that_gave_its_name_to_something_else(of_test):
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [2, 3])
        shared = functional.relu(x)
    clone = main.clone(for_test=of_test)
    with static.program_guard(main):
        late = functional.sigmoid(shared)
    feed, executor = {"x": np.ones((2, 3), np.float32)}, static.Executor(CPU)
    with pytest.raises(amp.InputError, match="no variable"):
        executor.run(clone, feed=feed, fetch_list=[late])
    with static.program_guard(clone):
        other = functional.sigmoid(clone.var("x") * 9.0)
    assert other.name == late.name
    with pytest.raises(amp.InputError, match="built independently"):
        executor.run(clone, feed=feed, fetch_list=[late])
    with pytest.raises(amp.InputError, match="built independently"):
        static.save_inference_model("unused", [x], [late], executor, program=clone)
    fetched = [executor.run(clone, feed=feed, fetch_list=fetch)[0] for fetch in ([shared], other, [other.name], "x")]
    np.testing.assert_allclose([value[0, 0] for value in fetched], [1, 0.9998766, 0.9998766, 1], rtol=1e-6)


def test_programs_that_are_built_alike_share_names():
    losses = []
    for _ in range(2):
        with static.program_guard(main := static.Program(), static.Program()), unique_name.guard():
            losses.append(functional.relu(static.data("x", [2, 3])))
    [value] = static.Executor(CPU).run(main, feed={"x": -np.ones((2, 3), np.float32)}, fetch_list=[losses[0]])
    np.testing.assert_array_equal(value, np.zeros((2, 3)))


@pytest.mark.parametrize(("casts", "dtype"), [(True, "float32"), (False, "float16")])
def test_a_cast_of_a_constant_counts_in_promotion_as_any_cast_does(casts, dtype):
    def layers(x):
        two = tensor.full([3], 2.0)
        total = static.nn.fc(x, 3) + (two.astype("float32") if casts else two)
        return {"total": total, "loss": tensor.mean(total)}

    built = Built(layers).minimize(level="O2", use_promote=True)
    assert built.made["total"].dtype == dtype
