"""BatchNormalization that a program uses several times: each use updates what the uses before it left, as in Paddle."""

import json

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession
from safetensors.numpy import load_file

from amp_transpiler import paddle
from amp_transpiler.paddle import static
from tests.support import array

nn = paddle.nn
LEVELS = [("O0", "float32"), ("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16")]
ROWS = [array(4, 3, 2, 2, seed=seed) + seed for seed in range(3)]  # other statistics each


def by_layer(momentum):
    return nn.BatchNorm2D(3, momentum=momentum, name="norm")


def by_names(momentum):
    names = {"param_attr": "w", "bias_attr": "b", "moving_mean_name": "mean", "moving_variance_name": "var"}
    return lambda x: static.nn.batch_norm(x, momentum=momentum, **names)


def of_vectors(momentum):
    layer = nn.BatchNorm1D(3, momentum=momentum)
    return lambda x: layer(paddle.mean(x, [2, 3]))


def of_signals(momentum):
    layer = nn.BatchNorm1D(3, momentum=momentum)
    return lambda x: layer(paddle.flatten(x, 2))


def among_layers(momentum):
    return nn.Sequential(nn.Identity(), nn.BatchNorm2D(3, momentum=momentum), nn.ReLU())


MAKERS = {maker.__name__: maker for maker in (by_layer, by_names, of_vectors, of_signals, among_layers)}


def build(maker, uses, level, dtype, momentum=0.75):
    """A program that normalises inputs; `uses` says which, in order."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        layer = MAKERS[maker](momentum)
        inputs = [static.data(f"x{index}", [None, 3, 2, 2]) for index in range(len(ROWS))]
        loss = sum(((layer(inputs[index]) - 0.5) ** 2).mean() for index in uses)
        optimizer = paddle.optimizer.SGD(0.1, multi_precision=True)
        if level != "O0":
            optimizer = static.amp.decorate(optimizer, level=level, dtype=dtype)
        test = main.clone(for_test=True)
        optimizer.minimize(loss)
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    if level != "O0":
        optimizer.amp_init(paddle.CPUPlace(), scope)
    return main, test, loss, scope, executor


def statistics(main, scope):
    """The running mean and variance."""
    names = [name for name, kind in main.persistables.items() if kind.kind == "statistic"]
    values = [scope[name] for name in names if len(scope[name].shape) == 1]
    assert len(values) == 2
    return values


def updated(maker, uses, steps, momentum=0.75):
    mean, var = np.zeros(3), np.ones(3)
    for _ in range(steps):
        for index in uses:
            x = ROWS[index].mean((2, 3)) if maker == "of_vectors" else ROWS[index]
            axes = tuple(axis for axis in range(x.ndim) if axis != 1)
            mean = momentum * mean + (1 - momentum) * x.mean(axes)
            var = momentum * var + (1 - momentum) * x.var(axes)
    return mean, var


FEED = {f"x{index}": rows for index, rows in enumerate(ROWS)}


def needed(uses):
    return {name: rows for name, rows in FEED.items() if int(name[1]) in uses}


@pytest.mark.parametrize("level", LEVELS, ids="-".join)
@pytest.mark.parametrize("maker", MAKERS)
def test_each_use_updates(maker, level):
    uses = (0, 1)
    main, test, loss, scope, executor = build(maker, uses, *level)
    for _ in range(2):
        executor.run(main, needed(uses), [loss], scope=scope)
    tolerance = {"O0": 1e-5, "O1": 1e-2, "O2": 3e-2}[level[0]]
    for statistic, expected in zip(statistics(main, scope), updated(maker, uses, 2), strict=True):
        np.testing.assert_allclose(statistic, expected, rtol=tolerance, atol=tolerance)
    before = statistics(main, scope)
    executor.run(test, needed(uses), [loss.name], scope=scope)
    for statistic, expected in zip(statistics(main, scope), before, strict=True):
        np.testing.assert_array_equal(statistic, expected)


@pytest.mark.parametrize("uses", [(1, 0), (0, 0), (0, 1, 2), (2, 2, 1, 0)])
def test_order_and_number_of_uses(uses):
    main, _, loss, scope, executor = build("by_layer", uses, "O0", "float32")
    executor.run(main, needed(uses), [loss], scope=scope)
    for statistic, expected in zip(statistics(main, scope), updated("by_layer", uses, 1), strict=True):
        np.testing.assert_allclose(statistic, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("free", [False, True])
def test_saved(free, tmp_path):
    """The test program of a layer used twice reads one pair of statistics; a saved step updates them twice."""
    uses = (0, 1)
    main, test, loss, scope, executor = build("by_layer", uses, "O0", "float32")
    shapes = None if free else {name: rows.shape for name, rows in needed(uses).items()}
    static.save_training_program(main, tmp_path / "step.onnx", shapes, [loss], scope)
    names = {each.key: each.value for each in onnx.load(tmp_path / "step.onnx").metadata_props}
    updates = json.loads(names["amp_transpiler.updates"])
    session = InferenceSession(str(tmp_path / "step.onnx"), providers=["CPUExecutionProvider"])
    results = session.run(list(updates.values()), {**load_file(tmp_path / "step.state.safetensors"), **needed(uses)})
    new = dict(zip(updates, results, strict=True))
    wanted = [name for name, kind in main.persistables.items() if kind.kind == "statistic"]
    for name, expected in zip(wanted, updated("by_layer", uses, 1), strict=True):
        np.testing.assert_allclose(new[name], expected, rtol=1e-5, atol=1e-6)
    static.save_inference_model(
        tmp_path / "net", [test.var(name) for name in needed(uses)], [test.var(loss.name)], scope
    )
    program, _, fetches = static.load_inference_model(tmp_path / "net", executor)
    (predicted,) = executor.run(program, needed(uses), fetches)
    plain = [((ROWS[index] / np.sqrt(1 + 1e-5) - 0.5) ** 2).mean() for index in uses]
    np.testing.assert_allclose(predicted, sum(plain), rtol=1e-5)


def test_global_statistics_are_those_of_the_uses_before():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = static.data("x0", [None, 3, 2, 2])
        names = {"moving_mean_name": "mean", "moving_variance_name": "var", "momentum": 0.75}
        static.nn.batch_norm(x, **names)
        y = static.nn.batch_norm(x, use_global_stats=True, **names)
        test = main.clone(for_test=True)
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    mean, var = updated("by_names", (0,), 1)
    for program in (main, test):  # the test program has what the run of the other left
        (predicted,) = executor.run(program, {"x0": ROWS[0]}, [y.name], scope=scope)
        expected = (ROWS[0] - mean[:, None, None]) / np.sqrt(var[:, None, None] + 1e-5)
        np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
