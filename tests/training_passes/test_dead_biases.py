"""The bias of a convolution in front of BatchNormalization in training: out of the data, in the running mean."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler import paddle
from amp_transpiler.autodiff.driver import differentiate
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.paddle import static
from amp_transpiler.training_passes import LowerBatchNorm, lower_batch_norm
from tests.support import array, parse

NORM = "y, m_out, v_out = BatchNormalization <training_mode = 1> (c, s, s, m, v)"
# the body of a model -> whether the bias leaves it
BODIES = {
    "a convolution": (f"c = Conv (x, w, b) {NORM}", True),
    "a transposed one": (f"c = ConvTranspose (x, w, b) {NORM}", True),
    "a cast between": (
        "c0 = Conv (x, w, b) c1 = Cast <to = 11> (c0) c = Cast <to = 1> (c1) " + NORM,
        True,
    ),
    "no bias": (f"c = Conv (x, w) {NORM}", False),
    "something else reads the data": (f"c = Conv (x, w, b) z = Relu (c) {NORM}", False),
    "given statistics": (f"c = Conv (x, w, b) {NORM}".replace("training_mode = 1", "training_mode = 0"), False),
    "an activation between": (f"c0 = Conv (x, w, b) c = Relu (c0) {NORM}", False),
}


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize(("body", "leaves"), BODIES.values(), ids=BODIES)
def test_a_bias_that_nothing_feels_leaves(run, body, leaves, by_rows):
    if "training_mode = 0" in body:
        body = body.replace("y, m_out, v_out", "y") + " m_out = Identity (m) v_out = Identity (v)"
    declared = "float[2,3,5,4] x, float[3,3,2,2] w, float[3] b, float[3] s, float[3] m, float[3] v, float[2,3,4,3] g"
    outputs = "float[N,3,H,W] y, float[3] m_out, float[3] v_out" + (", float[2,3,4,3] z" if " z = " in body else "")
    model = ir.from_proto(
        onnx.shape_inference.infer_shapes(parse(f"({declared}) => ({outputs}) {{ {body} }}", opset=20))
    )
    propagate_types(model)
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs)}
    builder = GraphBuilder(model)
    seed = builder.mul(values["y"], values["y"])
    wanted = [values[name] for name in ("x", "w", "b") if name in values]
    gradients = differentiate(builder, {values["y"]: seed}, wanted)
    model.graph.outputs.extend(gradients[value] for value in wanted)
    shapes = {"x": (2, 3, 5, 4), "w": (3, 3, 2, 2), "b": (3,), "s": (3,), "m": (3,), "v": (3,), "g": (2, 3, 4, 3)}
    feeds = {name: np.abs(array(*shape, seed=len(name) + index)) for index, (name, shape) in enumerate(shapes.items())}
    before = run(model, feeds)
    LowerBatchNorm(by_rows=by_rows)(model)
    convolution = next(node for node in model.graph if node.op_type in ("Conv", "ConvTranspose"))
    assert (len(convolution.inputs) == 2) == (leaves or body.startswith("c = Conv (x, w) "))
    after = run(model, feeds)
    for value, old, new in zip(model.graph.outputs, before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-4, err_msg=str(value.name))
    if leaves:
        assert not after[-1].any()  # not even a rounding error


def trained(level, dtype, steps=4, **options):
    """Train a convolution with a bias, and BatchNormalization behind it; return the loss of each step and the state."""
    paddle.seed(3)
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 3
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = static.data("x", [4, 3, 6, 6])
        initial = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.75))
        h = static.nn.batch_norm(static.nn.conv2d(x, 5, 3, bias_attr=initial), act="relu")
        loss = (static.nn.batch_norm(static.nn.conv2d(h, 4, 1, bias_attr=initial)) ** 3).mean()
        optimizer = paddle.optimizer.Momentum(0.1, 0.9, multi_precision=level == "O2", **options)
        if level != "O0":
            optimizer = static.amp.decorate(optimizer, level=level, dtype=dtype)
        optimizer.minimize(loss)
    scope, executor = static.Scope(), static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    losses = [executor.run(main, {"x": array(4, 3, 6, 6, seed=i) + 1}, [loss], scope=scope)[0] for i in range(steps)]
    names = [value.name for value in main.list_vars() if value.persistable]
    return losses, {name: np.array(scope.find_var(name).get_tensor(), np.float64) for name in names}


@pytest.mark.parametrize(
    ("level", "dtype"), [("O0", "float32"), ("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16")]
)
def test_a_trained_state_is_that_of_a_step_with_the_bias(monkeypatch, level, dtype):
    losses, state = trained(level, dtype)
    monkeypatch.setattr(lower_batch_norm, "take_dead_bias", lambda *_: None)
    kept_losses, kept_state = trained(level, dtype)
    limit = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 4e-2}[dtype]
    np.testing.assert_allclose(np.asarray(losses, float), np.asarray(kept_losses, float), rtol=limit)
    assert state.keys() == kept_state.keys()
    for name, value in state.items():
        np.testing.assert_allclose(value, kept_state[name], rtol=limit, atol=limit, err_msg=name)


def test_weight_decay_goes_on_where_the_gradient_is_0():
    _, state = trained("O0", "float32", steps=3, weight_decay=0.01)
    bias, velocity = 0.75, 0.0
    for _ in range(3):
        velocity = 0.9 * velocity + 0.01 * bias
        bias -= 0.1 * velocity
    np.testing.assert_allclose(state["conv2d_0.b_0"], bias, rtol=1e-6)
    np.testing.assert_allclose(state["conv2d_1.b_0"], bias, rtol=1e-6)
