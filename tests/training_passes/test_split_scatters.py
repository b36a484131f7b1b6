"""Large sums by rows are divided for a CPU, where several threads would lose some."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.graph.shape_inference import infer_shapes
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime import compile as compiling
from amp_transpiler.training_passes import SplitScatters
from tests.support import array, parse, run

# data, indices, updates, reduction, most -> pieces (0: it stays)
ROWS = [
    ((5, 8), (6, 1), (6, 8), "add", 48, 0),
    ((5, 8), (6, 1), (6, 8), "add", 47, 2),
    ((5, 8), (6, 1), (6, 8), "add", 12, 4),
    ((5, 8), (6, 1), (6, 8), "add", 5, 16),
    ((5, 8), (6, 1), (6, 8), "mul", 12, 4),
    ((5, 8), (5, 1), (5, 8), "none", 12, 0),
    ((5, 8), (1, 1), (1, 8), "add", 4, 0),
    ((5, 8), (2, 3, 1), (2, 3, 8), "add", 12, 4),
    ((5, 2, 4), (6, 1), (6, 2, 4), "add", 12, 4),
    ((5, 2, 4), (6, 2), (6, 4), "add", 12, 2),
    ((5,), (6, 1), (6,), "add", 4, 2),
]


def scatter(data, indices, updates, kind):
    shapes = [",".join(map(str, shape)) for shape in (data, indices, updates)]
    return parse(
        "(float[{0}] x, int64[{1}] i, float[{2}] u) => (float[{0}] y)".format(*shapes)
        + f' {{ [s] y = ScatterND <reduction = "{kind}"> (x, i, u) }}'
    )


@pytest.mark.parametrize(("data", "indices", "updates", "kind", "most", "pieces"), ROWS)
def test_pieces_add_what_the_whole_adds(data, indices, updates, kind, most, pieces):
    proto = scatter(data, indices, updates, kind)
    model = ir.from_proto(proto)
    propagate_types(model)
    infer_shapes(model)
    assert SplitScatters(most)(model).count == bool(pieces)
    changed = ir.to_proto(model)
    scatters = [node for node in model.graph if node.op_type == "ScatterND"]
    assert len(scatters) == (pieces or 1)
    if pieces:
        assert all(np.prod(node.inputs[2].shape.numpy()) <= most for node in scatters)
    where = np.random.default_rng(0).integers(0, 2, indices)
    if kind == "none":
        where = np.arange(5)[:, None]
    feeds = {"x": array(*data), "i": where, "u": array(*updates, seed=1)}
    assert np.array_equal(run(proto, feeds)["y"], run(changed, feeds)["y"])


def test_a_step_on_a_cpu_has_small_scatters_alone(monkeypatch):
    main, startup, sizes = static.Program(), static.Program(), []
    with amp.utils.unique_name.guard(), static.program_guard(main, startup):
        ids = static.data("ids", [300, 8], "int64")
        loss = functional.mse_loss(static.nn.embedding(ids, [10, 64]), static.data("y", [300, 8, 64]))
        optimizer.SGD(0.1).minimize(loss, startup)
    original = compiling.to_proto

    def noted(model):
        sizes.extend(node for node in model.graph if node.op_type == "ScatterND")
        return original(model)

    monkeypatch.setattr(compiling, "to_proto", noted)
    scope, feed = static.Scope(), {"ids": np.arange(2400).reshape(300, 8) % 10, "y": array(300, 8, 64)}
    with static.Executor(amp.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        weight = next(name for name in scope)
        before = scope[weight]
        executor.run(main, feed, [loss], scope=scope)
    assert len(sizes) == 2
    gradient = np.zeros_like(before)
    wrong = before[feed["ids"]] - feed["y"]
    np.add.at(gradient, feed["ids"], wrong * np.float32(2 / feed["y"].size))
    assert np.allclose(scope[weight], before - 0.1 * gradient, rtol=0, atol=1e-6)
