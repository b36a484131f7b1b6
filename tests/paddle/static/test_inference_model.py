"""A trained program, saved to predict with."""

import numpy as np
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import static
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.passes.bake_casts import BakeCasts
from tests import support
from tests.support import array, parse


@pytest.mark.parametrize(("policy", "level"), [("paddle", "O1"), ("paddle", "O2"), ("torch", "O1")])
def test_a_trained_network_is_saved_as_it_predicts(level, policy, tmp_path):
    """Casts of weights are done in the file, and no BatchNormalization is left between casts: 2 casts in all."""
    main, startup, scope = static.Program(), static.Program(), static.Scope()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [4, 3, 8, 8])
        hidden = static.nn.batch_norm(static.nn.conv2d(x, 8, 3), act="relu")
        out = static.nn.conv2d(hidden, 2, 1)
        loss = F.mse_loss(out, static.data("target", [4, 2, 6, 6]))
        test = main.clone(for_test=True)
        wrapped = amp.decorate(amp.optimizer.SGD(0.1), level=level, policy=policy)
        wrapped.minimize(loss, startup)
    executor = static.Executor(amp.CPUPlace())
    amp.seed(0)
    executor.run(startup, scope=scope)
    wrapped.amp_init(amp.CPUPlace(), scope, test_program=test, use_fp16_test=True)
    feed = {"x": array(4, 3, 8, 8), "target": array(4, 2, 6, 6, seed=1)}
    for _ in range(3):
        executor.run(main, feed, [loss], scope=scope)
    (expected,) = executor.run(test, {"x": feed["x"]}, [out.name], scope=scope)
    static.save_inference_model(tmp_path / "net", [test.var("x")], [test.var(out.name)], executor, test, scope)
    saved = amp.load(tmp_path / "net.onnx")
    operators = [node.op_type for node in support.nodes(saved)]
    assert operators.count("Conv") == 2
    assert "BatchNormalization" not in operators
    assert [name for name, *_ in support.casts(saved)][:1] == ["x"]
    assert operators.count("Cast") <= 2
    assert {value.dtype.name for value in saved.model.graph.initializers.values()} == {"FLOAT16"}
    (predicted,) = amp.Session(saved, amp.CPUPlace()).run({"x": feed["x"]})
    np.testing.assert_allclose(predicted.astype(np.float32), expected.astype(np.float32), atol=5e-3)


@pytest.mark.parametrize(
    ("body", "baked", "initializers"),
    [
        ("c = Cast <to = 10> (w) y = MatMul (x, c)", 1, {"w": "FLOAT16"}),
        ("c = Cast <to = 10> (w) d = Cast <to = 10> (w) e = MatMul (x, c) y = MatMul (e, d)", 2, {"w": "FLOAT16"}),
        (
            "c = Cast <to = 10> (w) f = Cast <to = 1> (c) e = MatMul (x, c) g = ReduceSum (w) y = Mul (e, c)",
            1,
            {"w": "FLOAT", "w__amp_fp16": "FLOAT16"},
        ),
        ("c = Cast <to = 11> (w) d = Cast <to = 10> (c) y = MatMul (x, d)", 0, {"w": "FLOAT"}),
    ],
)
def test_casts_of_weights_are_done_in_the_file(body, baked, initializers):
    graph = f"(float16[4,4] x) => (float16[4,4] y) {{ {body} }}"
    model = parse(graph, w=array(4, 4))
    program = amp.load(model).clone()
    propagate_types(program.model)
    assert BakeCasts()(program.model).count == baked
    dtypes = {name: value.dtype.name for name, value in program.model.graph.initializers.items()}
    assert dtypes == initializers
    feed = {"x": array(4, 4).astype(np.float16)}
    dtypes, expected = (support.run_emulated(p, feed)["y"] for p in (program, amp.load(model)))
    np.testing.assert_array_equal(dtypes, expected)


def saved(tmp_path, graph, feed, dtype="float16", **weights):
    """The results of the test program and of the saved file of a model cast at O1, and the file."""
    startup, scope = static.Program(), static.Scope()
    with unique_name.guard():
        main = static.from_onnx(parse(graph, **weights), startup_program=startup)
    amp.cast_model_to_fp16(main, level="O1", dest_type=dtype)
    executor = static.Executor(amp.CPUPlace())
    executor.run(startup, scope=scope)
    (expected,) = executor.run(main.clone(for_test=True), feed, ["y"], scope=scope)
    static.save_inference_model(tmp_path / "m", [main.var("x")], [main.var("y")], executor, main, scope)
    program = amp.load(tmp_path / "m.onnx")
    return expected, amp.Session(program, amp.CPUPlace()).run(feed)[0], program


def test_a_normalization_that_low_weights_cannot_bear_is_not_folded(tmp_path):
    graph = """(float[1,2,4,4] x) => (float[1,2,4,4] y) {
        c = Conv (x, w) n = BatchNormalization (c, s, b, m, v) y = Relu (n)
    }"""
    statistics = {"s": np.ones(2, np.float32), "b": np.zeros(2, np.float32), "m": np.zeros(2, np.float32)}
    tiny = np.full(2, 1e-7, np.float32)
    feed = {"x": np.full((1, 2, 4, 4), 1e-6, np.float32)}
    expected, result, _ = saved(tmp_path, graph, feed, w=np.full((2, 2, 1, 1), 300, np.float32), v=tiny, **statistics)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(result, expected, rtol=2e-2)


@pytest.mark.parametrize("weight", [7e4, 1e-9])
def test_a_weight_is_stored_as_its_cast_makes_it_or_not_at_all(weight, tmp_path):
    graph = "(float[1,1] x) => (float[1,1] y) { y = MatMul (x, w) }"
    expected, result, _ = saved(
        tmp_path, graph, {"x": np.ones((1, 1), np.float32)}, w=np.full((1, 1), weight, np.float32)
    )
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    "body",
    ["m = MatMul (x, w) y = Relu (m)", "z = Identity (w) m = MatMul (x, z) y = Relu (m)"],
    ids=["plain", "behind Identity"],
)
def test_a_weight_is_stored_once_and_low(body, tmp_path):
    graph = f"(float[4,4] x) => (float[4,4] y) {{ {body} }}"
    expected, result, program = saved(tmp_path, graph, {"x": array(4, 4)}, w=array(4, 4, seed=1))
    assert [v.dtype.name for v in program.model.graph.initializers.values()] == ["FLOAT16"]
    np.testing.assert_allclose(result, expected, atol=5e-3)
