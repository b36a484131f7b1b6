"""Names of `paddle.static` beside building and running: measures, global variables, printing, settings, places."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.paddle import nn, static
from amp_transpiler.paddle.framework.programs import data, default_main_program, default_startup_program, program_guard
from amp_transpiler.paddle.optimizer import SGD
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace
from amp_transpiler.runtime.scope import Scope, global_scope, scope_guard

RANDOM = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def _fresh():
    with program_guard(Program(), Program()), unique_name.guard(), scope_guard(Scope()):
        yield


@pytest.fixture
def run():
    executor = Executor(CPUPlace())
    started = []

    def compute(fetch, **feeds):
        if not started:
            started.append(executor.run(default_startup_program()))
        return executor.run(default_main_program(), feeds, fetch)

    return compute


def test_accuracy_counts_labels_among_the_best(run):
    scores, labels = RANDOM.normal(size=(50, 6)).astype("f"), RANDOM.integers(0, 6, (50, 1))
    x, y = data("x", [None, 6]), data("y", [None, 1], "int64")
    got = run([static.accuracy(x, y), static.accuracy(input=x, label=y, k=3)], x=scores, y=labels)
    order = np.argsort(-scores, axis=1)
    wanted = [(order[:, :k] == labels).any(1).mean() for k in (1, 3)]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    with pytest.raises(InputError, match="7 classes or more"):
        static.accuracy(x, y, k=7)


def _area(scores, labels):
    """Pairs of a positive and a negative in order, ties half."""
    positive, negative = scores[labels == 1][:, None], scores[labels == 0][None]
    return ((positive > negative) + 0.5 * (positive == negative)).mean()


def test_auc_of_this_batch_and_of_all(run):
    x, y = data("x", [None, 2]), data("y", [None, 1], "int64")
    total, batch, counts = static.auc(x, y, num_thresholds=63)
    assert len(counts) == 4
    seen_scores, seen_labels = [], []
    for _ in range(3):
        scores = RANDOM.uniform(size=40).astype("f")
        labels = (RANDOM.uniform(size=40) < scores).astype(np.int64)
        seen_scores.append((scores * 63).astype(np.int64))
        seen_labels.append(labels)
        got = run([total, batch], x=np.stack([1 - scores, scores], 1), y=labels[:, None])
        np.testing.assert_allclose(got[1], _area(seen_scores[-1], labels), rtol=1e-5)
        np.testing.assert_allclose(got[0], _area(np.concatenate(seen_scores), np.concatenate(seen_labels)), rtol=1e-5)


@pytest.mark.parametrize("steps", [0, 3])
def test_auc_of_the_last_batches(run, steps):
    x, y = data("x", [None, 2]), data("y", [None, 1], "int64")
    areas = static.auc(x, y, num_thresholds=63, slide_steps=steps)[:2]
    seen_scores, seen_labels = [], []
    for _ in range(5):
        scores = RANDOM.uniform(size=20).astype("f")
        seen_scores.append((scores * 63).astype(np.int64))
        seen_labels.append((RANDOM.uniform(size=20) < scores).astype(np.int64))
        got = run(list(areas), x=np.stack([1 - scores, scores], 1), y=seen_labels[-1][:, None])
        want = _area(np.concatenate(seen_scores[-steps:]), np.concatenate(seen_labels[-steps:]))
        np.testing.assert_allclose(got[1], want, rtol=1e-5)


def test_a_global_variable_persists_and_is_not_trained(run):
    held = static.create_global_var([2], 3.0, "float32", persistable=True, name="held")
    parameter = static.create_parameter([2], "float32")
    assert (held.persistable, held.trainable, parameter.trainable) == (True, False, True)
    x = data("x", [2])
    default_main_program().updates["held"] = (held + x).name
    for number in (1, 2):
        run([], x=np.ones(2, "f"))
        np.testing.assert_array_equal(global_scope()["held"], np.full(2, 3.0 + number))
    with pytest.raises(InputError, match="shape must be known"):
        static.create_global_var([-1], 0.0, "float32")


def test_print_writes_a_value_after_each_run(run, capsys):
    x = data("x", [None, 2])
    shown = static.Print(x * 2.0, first_n=2, message="twice", summarize=3)
    values = np.arange(4, dtype="f").reshape(2, 2)
    for _ in range(3):
        np.testing.assert_array_equal(run([shown], x=values)[0], values * 2)
    assert capsys.readouterr().out == "twice name: Mul_out0 type: float32 shape: [2, 2] data: [0.0, 2.0, 4.0]\n" * 2


def test_settings_of_the_compiler_are_accepted(run):
    strategy = static.BuildStrategy()
    strategy.fuse_all_reduce_ops = True
    strategy.reduce_strategy = static.BuildStrategy.ReduceStrategy.AllReduce
    assert strategy.fuse_all_reduce_ops is True
    assert strategy.enable_inplace is False
    x = data("x", [2])
    with static.device_guard("gpu:0"), static.name_scope("part"):
        y = x + 1.0
    run([y], x=np.zeros(2, "f"))
    compiled = static.CompiledProgram(default_main_program(), build_strategy=strategy)
    got = Executor(CPUPlace()).run(compiled, {"x": np.ones(2, "f")}, [y])
    np.testing.assert_array_equal(got, [[2.0, 2.0]])
    with pytest.raises(OptionError, match="device must be"), static.device_guard("tpu"):
        pass
    with pytest.raises(InputError, match="program_or_graph must be a Program"):
        static.CompiledProgram(3)


def test_places():
    assert [type(place) for place in static.cpu_places(2)] == [CPUPlace, CPUPlace]
    assert static.cuda_places([0, 1]) == [CUDAPlace(0), CUDAPlace(1)]
    with pytest.raises(EnvironmentProblem, match="cuda_places"):
        static.xpu_places()


def test_a_specification_of_an_input():
    spec = static.InputSpec([None, 4], "int64", "ids")
    assert spec.batch(8).shape == [8, None, 4]
    assert spec.unbatch().shape == [None, 4]
    assert static.InputSpec.from_tensor(data("x", [None, 2])) == static.InputSpec([-1, 2], "float32", "x")
    assert static.InputSpec.from_numpy(np.zeros((3, 1), "int32"), "y") == static.InputSpec([3, 1], "int32", "y")


def test_further_layers_that_make_their_parameters(run):
    x, y = data("x", [None, 3]), data("y", [None, 2])
    product = static.nn.bilinear_tensor_product(x, y, 4)
    sequence = data("s", [None, 5, 3])
    ahead = static.nn.row_conv(sequence, 2)
    a, b, s = (RANDOM.normal(size=shape).astype("f") for shape in ((6, 3), (6, 2), (6, 5, 3)))
    got, rows = run([product, ahead], x=a, y=b, s=s)
    scope = global_scope()
    weight = scope["bilinear_tensor_product_0.w_0"]
    np.testing.assert_allclose(got, np.einsum("bi,oij,bj->bo", a, weight, b), rtol=1e-4, atol=1e-5)
    filters, padded = scope["row_conv_0.w_0"], np.pad(s, ((0, 0), (0, 2), (0, 0)))
    wanted = sum(padded[:, step : step + 5] * filters[step] for step in range(3))
    np.testing.assert_allclose(rows, wanted, rtol=1e-4, atol=1e-5)
    assert nn.Linear(2, 2).weight.name == "linear_0.w_0"


@pytest.mark.parametrize(("level", "dtype"), [("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16")])
def test_measures_are_counted_in_float32_at_every_level(level, dtype):
    """As Paddle's operators do: counts beyond 2048 are no float16 numbers, and shares of 256 rows no bfloat16 ones."""
    x, y = data("x", [None, 6]), data("y", [None, 1], "int64")
    chances = nn.functional.softmax(static.nn.fc(x, 2))
    accuracy, (area, _, counts) = static.accuracy(chances, y), static.auc(chances, y)
    sums = static.ctr_metric_bundle(chances[:, 1:], y)
    optimizer = static.amp.decorate(SGD(0.0), level=level, dtype=dtype)
    optimizer.minimize(nn.functional.cross_entropy(chances, y))
    executor = Executor(CPUPlace())
    executor.run(default_startup_program())
    optimizer.amp_init(CPUPlace())
    scores, labels = RANDOM.normal(size=(3001, 6)).astype("f"), RANDOM.integers(0, 2, (3001, 1))
    fetch = [chances, accuracy, area, counts[0], sums[-1]]
    share_right, share, measured, positive, rows = executor.run(feed={"x": scores, "y": labels}, fetch_list=fetch)
    assert [v.dtype for v in (share, measured, positive, rows)] == ["float32"] * 4
    said = share_right.astype(np.float32)
    assert share == pytest.approx((said.argmax(1) == labels[:, 0]).mean(), abs=2e-3)  # halves that are equal
    assert measured == pytest.approx(_area(np.floor(said[:, 1] * 4095), labels[:, 0]), abs=1e-5)
    assert positive.sum() == labels.sum()
    assert rows == 3001
