"""Layers with parameters: names, shapes, initial values, statistics and dropout, through the executor."""

from __future__ import annotations

import math

import numpy as np
import pytest

import amp_transpiler.paddle.nn.functional as F
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import tensor
from amp_transpiler.paddle.framework.programs import data, default_main_program, default_startup_program, program_guard
from amp_transpiler.paddle.nn.initializer import Assign, Constant
from amp_transpiler.paddle.param_attr import ParamAttr
from amp_transpiler.paddle.static import nn
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope, global_scope

RANDOM = np.random.default_rng(11)
IMAGE, NHWC, ROW = [None, 4, 6, 5], [None, 6, 5, 4], [None, 8]

# Layer, shape of its input, what it makes: name -> (shape, kind), and the shape of its result.
P, S = "parameter", "statistic"
LAYERS = {
    "fc": (lambda x: nn.fc(x, 3), ROW, {"fc_0.w_0": ([8, 3], P), "fc_0.b_0": ([3], P)}, (-1, 3)),
    "fc of images": (lambda x: nn.fc(x, 3), IMAGE, {"fc_0.w_0": ([120, 3], P), "fc_0.b_0": ([3], P)}, (-1, 3)),
    "fc behind 2": (
        lambda x: nn.fc(x, 3, num_flatten_dims=2, bias_attr=False),
        IMAGE,
        {"fc_0.w_0": ([30, 3], P)},
        (-1, 4, 3),
    ),
    "fc behind -1": (
        lambda x: nn.fc(x, 3, num_flatten_dims=-1, name="head"),
        IMAGE,
        {"head.w_0": ([5, 3], P), "head.b_0": ([3], P)},
        (-1, 4, 6, 3),
    ),
    "conv2d": (
        lambda x: nn.conv2d(x, 6, 3),
        IMAGE,
        {"conv2d_0.w_0": ([6, 4, 3, 3], P), "conv2d_0.b_0": ([6], P)},
        (-1, 6, 4, 3),
    ),
    "conv2d groups": (
        lambda x: nn.conv2d(x, 6, [3, 1], groups=2, padding="SAME", bias_attr=False, act="relu"),
        IMAGE,
        {"conv2d_0.w_0": ([6, 2, 3, 1], P)},
        (-1, 6, 6, 5),
    ),
    "conv2d channels last": (
        lambda x: nn.conv2d(x, 6, 3, data_format="NHWC"),
        NHWC,
        {"conv2d_0.w_0": ([6, 4, 3, 3], P), "conv2d_0.b_0": ([6], P)},
        (-1, 4, 3, 6),
    ),
    "conv2d_transpose": (
        lambda x: nn.conv2d_transpose(x, 6, filter_size=3, stride=2),
        IMAGE,
        {"conv2d_transpose_0.w_0": ([4, 6, 3, 3], P), "conv2d_transpose_0.b_0": ([6], P)},
        (-1, 6, 13, 11),
    ),
    "batch_norm": (
        lambda x: nn.batch_norm(x, act="relu"),
        IMAGE,
        {
            "batch_norm_0.w_0": ([4], P),
            "batch_norm_0.b_0": ([4], P),
            "batch_norm_0.w_1": ([4], S),
            "batch_norm_0.w_2": ([4], S),
        },
        (-1, 4, 6, 5),
    ),
    "layer_norm": (
        lambda x: nn.layer_norm(x, begin_norm_axis=2),
        IMAGE,
        {"layer_norm_0.w_0": ([30], P), "layer_norm_0.b_0": ([30], P)},
        (-1, 4, 6, 5),
    ),
    "layer_norm bare": (lambda x: nn.layer_norm(x, scale=False, shift=False), ROW, {}, (-1, 8)),
    "group_norm": (
        lambda x: nn.group_norm(x, 2),
        IMAGE,
        {"group_norm_0.w_0": ([4], P), "group_norm_0.b_0": ([4], P)},
        (-1, 4, 6, 5),
    ),
    "instance_norm": (
        nn.instance_norm,
        IMAGE,
        {"instance_norm_0.w_0": ([4], P), "instance_norm_0.b_0": ([4], P)},
        (-1, 4, 6, 5),
    ),
    "prelu all": (lambda x: nn.prelu(x, "all"), IMAGE, {"prelu_0.w_0": ([1], P)}, (-1, 4, 6, 5)),
    "prelu channel": (lambda x: nn.prelu(x, "channel"), IMAGE, {"prelu_0.w_0": ([1, 4, 1, 1], P)}, (-1, 4, 6, 5)),
    "prelu element": (lambda x: nn.prelu(x, "element"), IMAGE, {"prelu_0.w_0": ([1, 4, 6, 5], P)}, (-1, 4, 6, 5)),
}


@pytest.mark.parametrize(("make", "shape", "made", "result"), LAYERS.values(), ids=LAYERS)
def test_layer_makes_its_parameters_and_runs(run, make, shape, made, result):
    y = make(data("x", shape))
    program = default_main_program()
    shapes_and_kinds = {p.name: (list(program.var(p.name).shape), p.kind) for p in program.persistables.values()}
    assert shapes_and_kinds == made
    assert y.shape == result
    x = RANDOM.normal(size=[2, *shape[1:]]).astype(np.float32)
    (got,) = run([y], x=x)
    assert got.shape == (2, *result[1:])
    assert np.isfinite(got).all()
    assert got.std() > 0


def test_fc_is_a_product_a_sum_and_an_activation(run):
    x = RANDOM.normal(size=(3, 2, 4)).astype(np.float32)
    weight, bias = RANDOM.normal(size=(8, 5)).astype(np.float32), RANDOM.normal(size=5).astype(np.float32)
    y = nn.fc(data("x", [None, 2, 4]), 5, weight_attr=Assign(weight), bias_attr=Assign(bias), activation="tanh")
    (got,) = run([y], x=x)
    np.testing.assert_allclose(got, np.tanh(x.reshape(3, 8) @ weight + bias), rtol=1e-5, atol=1e-6)


def test_fc_of_two_inputs_adds_their_products(run):
    arrays = {"a": RANDOM.normal(size=(3, 4)), "b": RANDOM.normal(size=(3, 2))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    y = nn.fc([data("a", [None, 4]), data("b", [None, 2])], 5)
    (got,) = run([y], **arrays)
    scope = global_scope()
    assert set(scope) == {"fc_0.w_0", "fc_0.w_1", "fc_0.b_0"}
    expected = arrays["a"] @ scope["fc_0.w_0"] + arrays["b"] @ scope["fc_0.w_1"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_fc_takes_the_older_argument_names(run):
    x = np.ones((2, 4), np.float32)
    (got,) = run([nn.fc(input=data("x", [None, 4]), size=3, param_attr=Constant(-1.0), act="relu")], x=x)
    np.testing.assert_array_equal(got, np.zeros((2, 3)))


def test_embedding(run):
    rows = np.array([[1], [4], [0]])
    y = nn.embedding(data("x", [None, 1], "int64"), [5, 3], padding_idx=-1)
    assert y.shape == (-1, 1, 3)
    (got,) = run([y], x=rows)
    expected = global_scope()["embedding_0.w_0"][rows]
    expected[1] = 0
    np.testing.assert_array_equal(got, expected)


def test_layer_norm_scales_and_shifts_over_several_axes(run):
    x = RANDOM.normal(size=(2, 3, 4)).astype(np.float32)
    scale, bias = (RANDOM.normal(size=12).astype(np.float32) for _ in range(2))
    (got,) = run([nn.layer_norm(data("x", [None, 3, 4]), param_attr=Assign(scale), bias_attr=Assign(bias))], x=x)
    flat = x.reshape(2, 12)
    normal = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got.reshape(2, 12), normal * scale + bias, rtol=1e-4, atol=1e-5)


def test_initial_values_are_paddles(run):
    x = data("x", [None, 4, 40, 40])
    y = nn.batch_norm(nn.conv2d(x, 64, 5))
    nn.prelu(nn.fc(y, 16), "all")
    Executor(CPUPlace()).run(default_startup_program())
    scope = global_scope()
    assert scope["conv2d_0.w_0"].std() == pytest.approx(math.sqrt(2 / 100), rel=0.05)
    fan = sum(scope["fc_0.w_0"].shape)
    assert np.abs(scope["fc_0.w_0"]).max() == pytest.approx(math.sqrt(6 / fan), rel=0.01)
    for name, value in (
        ("conv2d_0.b_0", 0),
        ("fc_0.b_0", 0),
        ("batch_norm_0.w_0", 1),
        ("batch_norm_0.b_0", 0),
        ("batch_norm_0.w_1", 0),
        ("batch_norm_0.w_2", 1),
        ("prelu_0.w_0", 0.25),
    ):
        assert (scope[name] == value).all(), name


# ---- batch normalisation ----


def test_batch_norm_trains_on_the_batch_and_keeps_statistics():
    x = RANDOM.normal(2.0, 3.0, size=(4, 3, 5)).astype(np.float32)
    y = nn.batch_norm(data("x", [None, 3, 5]), momentum=0.8)
    main = default_main_program()
    test = main.clone(for_test=True)
    executor = Executor(CPUPlace())
    executor.run(default_startup_program())
    mean, var = x.mean((0, 2)), x.var((0, 2))
    expected_mean, expected_var = np.zeros(3), np.ones(3)
    for _ in range(2):
        (got,) = executor.run(main, {"x": x}, [y])
        expected_mean = 0.8 * expected_mean + 0.2 * mean
        expected_var = 0.8 * expected_var + 0.2 * var
    np.testing.assert_allclose(got, (x - mean[:, None]) / np.sqrt(var + 1e-5)[:, None], rtol=1e-3, atol=1e-4)
    scope = global_scope()
    np.testing.assert_allclose(scope["batch_norm_0.w_1"], expected_mean, rtol=1e-5)
    np.testing.assert_allclose(scope["batch_norm_0.w_2"], expected_var, rtol=1e-5)
    (got,) = executor.run(test, {"x": x}, [y.name])
    normal = (x - expected_mean[:, None]) / np.sqrt(expected_var + 1e-5)[:, None]
    np.testing.assert_allclose(got, normal, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scope["batch_norm_0.w_1"], expected_mean, rtol=1e-5)


@pytest.mark.parametrize("option", ["is_test", "use_global_stats"])
def test_batch_norm_by_kept_statistics_keeps_them(run, option):
    x = RANDOM.normal(size=(4, 3)).astype(np.float32)
    (got,) = run([nn.batch_norm(data("x", [None, 3]), **{option: True})], x=x)
    np.testing.assert_allclose(got, x / np.sqrt(1 + 1e-5), rtol=1e-5)
    assert not default_main_program().updates


def test_batch_norm_without_scale_and_with_names_of_its_own(run):
    x = RANDOM.normal(size=(4, 6, 3)).astype(np.float32)
    y = nn.batch_norm(
        data("x", [None, 6, 3]),
        param_attr=False,
        bias_attr=False,
        data_layout="NLC",
        moving_mean_name="mean",
        moving_variance_name="var",
    )
    (got,) = run([y], x=x)
    np.testing.assert_allclose(got, (x - x.mean((0, 1))) / np.sqrt(x.var((0, 1)) + 1e-5), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(global_scope()["mean"], 0.1 * x.mean((0, 1)), rtol=1e-4)
    assert set(global_scope()) == {"mean", "var"}


# ---- dropout ----


def test_dropout_drops_a_share_anew_each_step_and_scales_the_rest():
    x = np.ones((200, 50), np.float32)
    y = F.dropout(data("x", [None, 50]), 0.3)
    main = default_main_program()
    test = main.clone(for_test=True)
    executor = Executor(CPUPlace())
    executor.run(default_startup_program())
    first, second = (executor.run(main, {"x": x}, [y])[0] for _ in range(2))
    assert set(np.unique(first)) == {0.0, np.float32(1 / 0.7)}
    assert (first == 0).mean() == pytest.approx(0.3, abs=0.02)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(executor.run(test, {"x": x}, [y.name])[0], x)
    assert not test.updates


def test_dropout_starts_again_from_the_same_seed():
    x = np.ones((20, 50), np.float32)
    startup = default_startup_program()
    startup.random_seed = 5
    y = F.dropout(data("x", [None, 50]))
    rows = []
    for _ in range(2):
        scope, executor = Scope(), Executor(CPUPlace())
        executor.run(startup, scope=scope)
        rows.append([executor.run(None, {"x": x}, [y], scope=scope)[0] for _ in range(3)])
    np.testing.assert_array_equal(rows[0], rows[1])


def test_two_dropouts_share_one_step_and_not_a_mask(run):
    x = data("x", [None, 50])
    (a, b) = run([F.dropout(x), F.dropout(x)], x=np.ones((20, 50), np.float32))
    assert not np.array_equal(a, b)
    states = [p.name for p in default_main_program().persistables.values() if p.kind == "state"]
    assert len(states) == 2


def test_dropout_along_an_axis_drops_whole_rows(run):
    x = np.ones((100, 3, 7), np.float32)
    (got,) = run([F.dropout(data("x", [None, 3, 7]), 0.5, axis=0)], x=x)
    rows = got.reshape(100, -1)
    assert (rows == rows[:, :1]).all()
    assert set(np.unique(rows)) == {0.0, 2.0}


def test_dropout_that_scales_when_it_predicts():
    x = np.ones((20, 50), np.float32)
    y = F.dropout(data("x", [None, 50]), 0.2, mode="downscale_in_infer")
    main = default_main_program()
    test = main.clone(for_test=True)
    executor = Executor(CPUPlace())
    executor.run(default_startup_program())
    (got,) = executor.run(main, {"x": x}, [y])
    np.testing.assert_allclose(np.unique(got), [0.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(executor.run(test, {"x": x}, [y.name])[0], 0.8 * x, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "factor"),
    [({"p": 0.0}, 1.0), ({"training": False}, 1.0), ({"training": False, "mode": "downscale_in_infer"}, 0.5)],
    ids=["p=0", "not training", "downscale"],
)
def test_dropout_that_drops_nothing_needs_no_state(run, options, factor):
    x = np.ones((2, 5), np.float32)
    result = F.dropout(data("x", [None, 5]), **options)
    (got,) = run([result], x=x)
    np.testing.assert_array_equal(got, factor * x)
    assert not default_main_program().persistables


def test_dropout_of_everything(run):
    (got,) = run([F.dropout(data("x", [None, 5]), 1.0)], x=np.ones((2, 5), np.float32))
    np.testing.assert_array_equal(got, np.zeros((2, 5)))


# ---- errors ----

REFUSED = {
    "no weight": (lambda x: nn.fc(x, 3, weight_attr=False), OptionError, "needs its weight"),
    "activation": (lambda x: nn.fc(x, 3, activation="step"), OptionError, "unknown activation 'step'"),
    "attribute": (lambda x: nn.fc(x, 3, weight_attr=7), OptionError, "got 7"),
    "nothing in front": (lambda x: nn.fc(x, 3, num_flatten_dims=0), InputError, "num_flatten_dims"),
    "groups": (lambda x: nn.conv2d(x, 6, 3, groups=3), InputError, "cannot be split into 3 groups"),
    "filter size": (lambda x: nn.conv2d_transpose(x, 6), OptionError, "filter_size"),
    "free size": (lambda x: nn.layer_norm(x, begin_norm_axis=0), InputError, "must be known"),
    "mode": (lambda x: nn.prelu(x, "some"), OptionError, "'some'"),
}


@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(make, error, message):
    x = data("x", [None, 4, 6, 5])
    with pytest.raises(error, match=message):
        make(x)


def test_layers_of_an_attribute_with_one_name_share_it(run):
    x = data("x", [None, 4])
    attr = ParamAttr("shared")
    a, b = (nn.fc(x, 3, weight_attr=attr, bias_attr=False) for _ in range(2))
    got = run([a, b], x=RANDOM.normal(size=(2, 4)).astype(np.float32))
    np.testing.assert_array_equal(got[0], got[1])
    assert set(global_scope()) == {"shared"}


def test_a_layer_joins_the_program_of_its_input():
    x = data("x", [None, 4])
    with program_guard(Program(), default_startup_program()):
        nn.fc(x, 3)
        assert not default_main_program().persistables
    assert set(default_main_program().persistables) == {"fc_0.w_0", "fc_0.b_0"}


# ---- functions on tensors ----

A = RANDOM.normal(size=(2, 3, 4)).astype(np.float32)
B = np.abs(RANDOM.normal(size=(2, 3, 4))).astype(np.float32)
TENSORS = {
    "mean": (lambda x, y: tensor.mean(x), lambda x, y: x.mean()),
    "mean axis": (lambda x, y: tensor.mean(x, [0, -1], keepdim=True), lambda x, y: x.mean((0, 2), keepdims=True)),
    "sum": (lambda x, y: tensor.sum(x, 1), lambda x, y: x.sum(1)),
    "max": (lambda x, y: tensor.max(x, -1), lambda x, y: x.max(-1)),
    "min": (lambda x, y: tensor.min(x), lambda x, y: x.min()),
    "argmax": (lambda x, y: tensor.argmax(x, 1, keepdim=True), lambda x, y: x.argmax(1)[:, None]),
    "argmax of all": (lambda x, y: tensor.argmax(x, dtype="int32"), lambda x, y: np.int32(x.argmax())),
    "matmul": (lambda x, y: tensor.matmul(x, y, transpose_y=True), lambda x, y: x @ y.transpose(0, 2, 1)),
    "matmul transposed": (lambda x, y: tensor.matmul(x, y, True), lambda x, y: x.transpose(0, 2, 1) @ y),
    "reshape": (lambda x, y: tensor.reshape(x, [0, -1]), lambda x, y: x.reshape(2, -1)),
    "transpose": (lambda x, y: tensor.transpose(x, [0, 2, 1]), lambda x, y: x.transpose(0, 2, 1)),
    "concat": (lambda x, y: tensor.concat([x, y], -1), lambda x, y: np.concatenate([x, y], -1)),
    "stack": (lambda x, y: tensor.stack([x, y], -1), lambda x, y: np.stack([x, y], -1)),
    "split": (lambda x, y: tensor.split(x, 2, 2)[1], lambda x, y: x[..., 2:]),
    "split sections": (lambda x, y: tensor.split(x, [1, -1], -1)[1], lambda x, y: x[..., 1:]),
    "unsqueeze": (lambda x, y: tensor.unsqueeze(x, [1, -1]), lambda x, y: x[:, None, :, :, None]),
    "squeeze": (lambda x, y: tensor.squeeze(tensor.unsqueeze(x, 1), [1, 2]), lambda x, y: x),
    "flatten": (lambda x, y: tensor.flatten(x, 1), lambda x, y: x.reshape(2, 12)),
    "flatten front": (lambda x, y: tensor.flatten(x, 0, 1), lambda x, y: x.reshape(6, 4)),
    "flatten all": (lambda x, y: tensor.flatten(x), lambda x, y: x.reshape(-1)),
    "cast": (lambda x, y: tensor.cast(x, "int32"), lambda x, y: x.astype(np.int32)),
    "arithmetic": (
        lambda x, y: tensor.divide(tensor.subtract(tensor.add(x, 2), tensor.multiply(x, y)), y),
        lambda x, y: (x + 2 - x * y) / y,
    ),
    "pow": (lambda x, y: tensor.pow(y, 1.5), lambda x, y: y**1.5),
    "scale": (lambda x, y: tensor.scale(x, 2.0, 1.0), lambda x, y: 2 * x + 1),
    "scale before": (lambda x, y: tensor.scale(x, 2.0, 1.0, False, "relu"), lambda x, y: np.maximum(2 * (x + 1), 0)),
    "clip": (lambda x, y: tensor.clip(x, -0.5), lambda x, y: np.maximum(x, -0.5)),
    "clip both": (lambda x, y: tensor.clip(x, -0.5, 0.25), lambda x, y: np.clip(x, -0.5, 0.25)),
    "slice": (lambda x, y: tensor.slice(x, [1, 2], [0, -2], [2, 100]), lambda x, y: x[:, 0:2, -2:]),
    "gather": (lambda x, y: tensor.gather(x, tensor.arange(1, 3), 2), lambda x, y: x[..., 1:3]),
    "where": (lambda x, y: tensor.where(tensor.equal(x, x), x, 0.0), lambda x, y: x),
    "sqrt": (lambda x, y: tensor.sqrt(y), lambda x, y: np.sqrt(y)),
    "exp": (lambda x, y: tensor.exp(x), lambda x, y: np.exp(x)),
    "log": (lambda x, y: tensor.log(y), lambda x, y: np.log(y)),
    "square": (lambda x, y: tensor.square(x), lambda x, y: x * x),
    "abs": (lambda x, y: tensor.abs(x), lambda x, y: np.abs(x)),
    "tanh": (lambda x, y: tensor.tanh(x), lambda x, y: np.tanh(x)),
    "zeros": (lambda x, y: tensor.add(x, tensor.zeros([3, 1])), lambda x, y: x),
    "ones": (lambda x, y: tensor.multiply(x, tensor.ones([1])), lambda x, y: x),
    "full": (lambda x, y: tensor.add(x, tensor.full([4], 2.5)), lambda x, y: x + np.float32(2.5)),
}


@pytest.mark.parametrize(("ours", "theirs"), TENSORS.values(), ids=TENSORS)
def test_tensor_function(run, ours, theirs):
    result = ours(data("x", [None, 3, 4]), data("y", [None, 3, 4]))
    (got,) = run([result], x=A, y=B)
    expected = theirs(A, B)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_constants_have_the_element_type_asked_for(run):
    constants = [tensor.arange(3), tensor.arange(0, 1, 0.5), tensor.full([2], 1, "int32"), tensor.zeros([1], "bool")]
    assert [v.dtype for v in constants] == ["int64", "float32", "int32", "bool"]
    got = run(constants)
    np.testing.assert_array_equal(got[1], np.float32([0, 0.5]))
    np.testing.assert_array_equal(got[2], [1, 1])
