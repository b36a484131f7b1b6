"""`from_onnx(input_shapes=)`: free sizes are settled, everywhere where they have the same name."""

import numpy as np
import pytest

from amp_transpiler import CPUPlace, optimizer, static, tensor
from amp_transpiler.errors import InputError, ModelError
from amp_transpiler.graph.deferred_nodes import waiting_nodes
from amp_transpiler.paddle.static.onnx_import import from_onnx
from tests import support

W = support.array


def images():
    return support.parse(
        """(float[n,2,h,w] x, float[n,4] scale) => (float[n,4,h2,w2] y) {
            c = Conv<pads=[1,1,1,1]>(x, conv_w)
            p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)
            s = Unsqueeze(scale, axes)
            y = Mul(p, s)
        }""",
        conv_w=W(4, 2, 3, 3),
        axes=np.array([2, 3]),
    )


def step(main, startup):
    with static.program_guard(main, startup):
        y = main.var("y")
        loss = tensor.mean(y * y)
        optimizer.SGD(0.1).minimize(loss)
    main.outputs = [loss.name]
    return loss


def test_sizes_are_settled_by_name():
    startup = static.Program()
    main = from_onnx(images(), startup, input_shapes={"x": [3, 2, 8, -1]})
    assert main.var("x").shape == (3, 2, 8, -1)
    assert main.var("scale").shape == (3, 4)
    assert main.var("p").shape == (3, 4, 4, -1)


def test_nothing_waits_where_all_sizes_are_given():
    startup = static.Program()
    main = from_onnx(images(), startup, input_shapes={"x": (3, 2, 8, 6)})
    loss = step(main, startup)
    assert not waiting_nodes(main.model)
    written = main.to_onnx()
    assert {node.domain for node in written.graph.node} == {""}
    exe, scope = static.Executor(CPUPlace()), static.Scope()
    exe.run(startup, scope=scope)
    feed = {"x": W(3, 2, 8, 6, seed=5), "scale": W(3, 4, seed=6)}
    free_startup, free_scope = static.Program(), static.Scope()
    free = from_onnx(images(), free_startup)
    free_loss = step(free, free_startup)
    exe.run(free_startup, scope=free_scope)
    for _ in range(2):
        [got] = exe.run(main, feed=feed, fetch_list=[loss], scope=scope)
        [want] = exe.run(free, feed=feed, fetch_list=[free_loss], scope=free_scope)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_step_that_waits_for_sizes_is_not_written():
    startup = static.Program()
    main = from_onnx(images(), startup)
    loss = step(main, startup)
    with pytest.raises(ModelError, match=r"wait for sizes .*save_training_program.*input_shapes"):
        main.to_onnx()
    scope = static.Scope()
    static.Executor(CPUPlace()).run(startup, scope=scope)
    assert main.to_onnx(scope).graph.output[0].name == loss.name  # what is fetched needs no gradient


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"images": [1, 2, 8, 8]}, "names 'images'; the inputs are x, scale"),
        ({"X": [1, 2, 8, 8]}, "names 'X'"),
        ({"x": [1, 2, 8]}, "give 4 sizes"),
        ({"x": [1, 3, 8, 8]}, "size 1 is fixed to 2"),
        ({"x": [0, 2, 8, 8]}, "must be a number from 1"),
        ({"x": [1.5, 2, 8, 8]}, "must be a number from 1"),
        ({"x": [3, 2, 8, 8], "scale": [4, 4]}, "'n' is 3 already"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shapes, problem):
    with pytest.raises(InputError, match=problem):
        from_onnx(images(), static.Program(), input_shapes=shapes)


def test_a_declared_rank_that_sizes_at_run_time_contradict_is_named_and_overridden(caplog):
    model = support.parse(
        """(float[2,6] x, int64[3] sizes) => (float[2,n] y) {
            h = MatMul(x, weight)
            y = Reshape(h, sizes)
        }""",
        opset=12,  # in which ONNX's checker does not look at the number of sizes
        weight=W(6, 4),
    )
    startup, scope, exe = static.Program(), static.Scope(), static.Executor(CPUPlace())
    main = from_onnx(model, startup)
    assert "'y' is declared as [2, n], but Reshape " in caplog.text
    assert "makes 3 axes" in caplog.text
    assert main.var("y").shape == (-1, -1, -1)
    with static.program_guard(main, startup):
        difference = main.var("y") - static.data("wanted", [-1, -1, -1])
        loss = tensor.mean(difference * difference)
        optimizer.SGD(0.1).minimize(loss)
    exe.run(startup, scope=scope)
    feed = {"x": W(2, 6), "sizes": np.array([2, 2, 2]), "wanted": np.zeros((2, 2, 2), np.float32)}
    losses = [exe.run(main, feed, [loss], scope=scope)[0].item() for _ in range(2)]
    assert losses[1] < losses[0]


@pytest.mark.parametrize(
    "graph",
    [
        "(float[2,3] x) => (float[7,2] y) { y = Transpose <perm = [1, 0]> (x) }",
        "(float[2,3] x) => (float[6] y) { y = Transpose <perm = [1, 0]> (x) }",
    ],
)
def test_a_declared_shape_that_the_operator_contradicts_is_named(graph, caplog):
    main = from_onnx(support.parse(graph), static.Program())
    assert "of an output was wrong" in caplog.text
    assert len(main.var("y").shape) == 2
