"""Models with a Loop that are trained: what the backward pass keeps of it, and what is left of that for inference."""

import numpy as np
import onnx
import pytest

from amp_transpiler import CPUPlace, optimizer, static, tensor
from amp_transpiler.errors import MisfitError
from amp_transpiler.paddle.static.onnx_import import from_onnx
from tests.support import array


def looping(grows, shape):
    """A Loop of three turns over h = x @ weight: h = tanh(h @ inner), or h with itself behind it."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    turn = (
        [helper.make_node("Concat", ["h", "h"], ["h2"], axis=0)]
        if grows
        else [helper.make_node("MatMul", ["h", "inner"], ["p"]), helper.make_node("Tanh", ["p"], ["h2"])]
    )
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), *turn, helper.make_node("ReduceSum", ["h2"], ["total"])],
        "turn",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", kind, shape),
        ],
        [
            helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("h2", kind, shape),
            helper.make_tensor_value_info("total", kind, [1, 1]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["h0"]),
            helper.make_node("Loop", ["turns", "", "h0"], ["y", "totals"], name="turning", body=body),
        ],
        "main",
        [helper.make_tensor_value_info("x", kind, ["n", 4])],
        [helper.make_tensor_value_info("y", kind, shape), helper.make_tensor_value_info("totals", kind, None)],
        [
            onnx.numpy_helper.from_array(array(4, 4), "weight"),
            onnx.numpy_helper.from_array(array(4, 4), "inner"),
            onnx.numpy_helper.from_array(np.array(3), "turns"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def trained(model):
    startup, scope, exe = static.Program(), static.Scope(), static.Executor(CPUPlace())
    main = from_onnx(model, startup)
    exe.run(startup, scope=scope)
    before = main.clone(for_test=True)
    with static.program_guard(main, startup):
        y = main.var("y")
        loss = tensor.mean(y * y)
        optimizer.SGD(0.0).minimize(loss)
    exe.run(startup, scope=scope)
    return main, before, loss, lambda program, fetched: exe.run(program, {"x": array(2, 4)}, fetched, scope=scope)


def test_inference_stacks_nothing_for_the_backward_pass():
    main, before, loss, run = trained(looping(False, ["n", 4]))
    [trains] = [node for node in main.model.graph if node.op_type == "Loop"]
    tested = main.clone(for_test=True)
    [predicts] = [node for node in tested.model.graph if node.op_type == "Loop"]
    assert len(trains.outputs) > len(predicts.outputs) == 2
    assert [output.name for output in predicts.outputs] == ["y", "totals"]
    for name in ("y", "totals"):
        np.testing.assert_array_equal(run(tested, [name])[0], run(before, [name])[0])
    assert run(main, [loss])[0] == pytest.approx(np.mean(run(before, ["y"])[0] ** 2), rel=1e-5)


def test_a_state_that_grows_cannot_be_trained_through_and_can_be_predicted():
    main, before, loss, run = trained(looping(True, ["m", 4]))
    with pytest.raises(MisfitError, match=r"Loop 'turning'.* changes its shape, while the backward pass stacks it"):
        run(main, [loss])
    result = run(main.clone(for_test=True), ["y"])[0]
    assert result.shape == (16, 4)
    np.testing.assert_array_equal(result, run(before, ["y"])[0])
