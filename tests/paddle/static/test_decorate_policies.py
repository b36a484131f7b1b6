"""`decorate(policy=...)`: training by the rules of PyTorch, RAF and MXNet, with and without loss scaling."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.errors import OptionError
from tests.paddle import nets, text_nets
from tests.support import array

TEXT = (
    "(float[n,6] x) => (float[n,6] y) { h = MatMul (x, w) a = Add (h, b) r = Relu (a) e = Exp (r) y = MatMul (e, v) }"
)
WEIGHTS = {
    "w": array(6, 6, seed=1, scale=0.3),
    "b": array(6, seed=2, scale=0.1),
    "v": array(6, 6, seed=3, scale=0.3),
}
FEED = {"x": array(4, 6), "target": array(4, 6, seed=5, scale=0.3)}

# policy -> what the forward operators make
FORWARD = {
    "torch": {"MatMul": "LOW", "Add": "LOW", "Relu": "LOW", "Exp": "FLOAT"},
    "raf": {"MatMul": "LOW", "Add": "LOW", "Relu": "LOW", "Exp": "FLOAT"},
    "mxnet": {"MatMul": "LOW", "Add": "LOW", "Relu": "LOW", "Exp": "FLOAT"},
}


def trained(steps=4, **decorated):
    net = text_nets.trainer(optimizer.SGD(0.1), TEXT, WEIGHTS, target=(None, 6), **decorated)
    return net, [net.step(FEED)[0].item() for _ in range(steps)]


@pytest.mark.parametrize("policy", FORWARD)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_policy_decides_about_the_forward_pass(policy, dtype):
    scale = {"init_loss_scaling": 1024.0} if dtype == "float16" else {}  # 2**16 would overflow at the first step
    net, losses = trained(policy=policy, dtype=dtype, **scale)
    low = {"float16": "FLOAT16", "bfloat16": "BFLOAT16"}[dtype]
    expected = {key: low if precision == "LOW" else precision for key, precision in FORWARD[policy].items()}
    if (policy, dtype) == ("mxnet", "bfloat16"):
        expected["Exp"] = low  # its bfloat16 list has exp among the neutral operators
    types = {key: nets.makes(nets.nodes(net.main, key, "forward")[0])[0] for key in expected}
    assert types == expected
    assert all(net.scope[name].dtype == np.float32 for name in WEIGHTS), "parameters stay float32"
    _, exact = trained(level="O0")
    np.testing.assert_allclose(losses, exact, rtol=2e-2)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("policy", FORWARD)
def test_bfloat16_trains_without_scaling(policy):
    net, _ = trained(policy=policy, dtype="bfloat16", scaler="torch" if policy == "torch" else "paddle")
    assert net.scope[net.optimizer.get_loss_scaling().name] == 1.0
    assert not nets.nodes(net.main, "IsNaN", "optimize")


def test_a_policy_with_its_own_scaler():
    net, losses = trained(policy="torch", scaler="torch")
    assert net.optimizer.state_dict(net.scope)["scale"] == 2.0**15, "one step too big, halved at once"
    assert np.isfinite(losses).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "jax"}, "unknown policy"),
        ({"policy": "torch", "level": "O2"}, "level O2 is Paddle's"),
        ({"policy": "raf", "use_pure_fp16": True}, "level O2 is Paddle's"),
        ({"policy": "mxnet", "use_promote": True}, "use_promote is Paddle's"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(options, words):
    with pytest.raises(OptionError, match=words):
        amp.decorate(optimizer.SGD(0.1), **options)


def test_both_overloads_take_a_policy():
    for options in ({"use_bf16": True}, {"dtype": "bfloat16"}):
        wrapped = static.amp.decorate(optimizer.SGD(0.1), policy="torch", **options)
        assert (wrapped.options.request.policy, wrapped.options.request.dtype) == ("torch", "bfloat16")
