"""Master weights and master gradients, as in Paddle."""

import logging

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.program.program import Persistable
from tests.paddle import nets, text_nets
from tests.paddle.text_nets import image_batches, losses, trainer
from tests.support import array


def test_rewritten_masters_train_like_weights_that_were_rounded_before():
    """Four steps of AdamW; Paddle compares its three front ends, ONNX has one, so we compare two starts."""
    rounded = {k: v.astype(np.float16).astype(np.float32) for k, v in text_nets.convolution_weights().items()}
    by_name = {}
    for name, weights, rewrite in (("rewritten", None, True), ("rounded before", rounded, False), ("not", None, False)):
        net = trainer(optimizer.AdamW(0.001), weights=weights, level="O2")
        net.start(rewrite_master_weight=rewrite)
        losses(net, image_batches(4))
        by_name[name] = {parameter: net.scope[master] for parameter, master in net.optimizer.master_weights.items()}
    assert by_name["rewritten"]
    for parameter, master in by_name["rewritten"].items():
        np.testing.assert_array_equal(master, by_name["rounded before"][parameter])
    assert any((master != by_name["not"][parameter]).any() for parameter, master in by_name["rewritten"].items())


@pytest.mark.parametrize("made", [optimizer.SGD, optimizer.Momentum, optimizer.Adam, optimizer.AdamW, optimizer.Lamb])
def test_masters_and_accumulators_are_fp32_and_parameters_are_rounded_masters(made):
    """A parameter is its master rounded after every update; state is fp32 and keyed to the master."""
    net = nets.one_layer(made(0.01, multi_precision=True), use_pure_fp16=True, init_loss_scaling=128.0)
    for _ in range(2):
        net.run(1.0)
        state = net.state()
        assert net.master.startswith("w_fp32_master")
        assert state["w"].dtype == np.float16
        assert state[net.master].dtype == np.float32
        np.testing.assert_array_equal(state["w"], state[net.master].astype(np.float16))
    accumulators = [name for name in state if "moment" in name or "velocity" in name]
    assert all(name.startswith(net.master) and state[name].dtype == np.float32 for name in accumulators)


def test_small_updates_are_lost_without_masters():
    """2**-12 is less than half a step of float16 at 0.5, so only a master moves."""
    moved = {}
    for precise in (False, True):
        sgd = optimizer.SGD(2.0**-15, multi_precision=precise)
        net = nets.one_layer(sgd, use_pure_fp16=True, init_loss_scaling=8.0, use_dynamic_loss_scaling=False)
        before = net.state()["w"]
        for _ in range(64):
            net.run(1.0)
        moved[precise] = (net.state()["w"] != before).any()
    assert moved == {False: False, True: True}


def test_fp16_parameters_without_masters_are_warned_of(caplog):
    """The warning about accumulating in fp16."""
    with caplog.at_level(logging.WARNING):
        nets.one_layer(optimizer.SGD(0.1), use_pure_fp16=True)
    assert "poor accuracy or slow convergence" in caplog.text


def test_parameters_left_fp32_get_no_master():
    """Those of BatchNormalization, and those outside the guard."""
    net = trainer(optimizer.Adam(multi_precision=True), guard="^(norm|conv2)$", use_pure_fp16=True)
    assert set(net.optimizer.master_weights) == {"w2", "b2"}


@pytest.mark.parametrize("master_grad", [False, True])
def test_clipping_by_global_norm_is_fp32(master_grad):
    """No low clipping with master_grad; here there is none without it either."""
    clip = amp.nn.ClipGradByGlobalNorm(1.0)
    net = trainer(optimizer.AdamW(0.001, grad_clip=clip), level="O2", master_grad=master_grad)
    updating = nets.nodes(net.main, role="optimize")
    check = {
        maker for node in nets.nodes(net.main, "Sum") for maker in node.predecessors() if nets.works_in(node) != "FLOAT"
    }
    inner = [n for n in updating if n.op_type in ("ReduceSumSquare", "Sqrt", "ReduceSum") and n not in check]
    assert len(inner) > 6, "one for each gradient, and the norm"
    assert {nets.works_in(node) for node in inner} == {"FLOAT"}
    assert np.isfinite(losses(net, image_batches(2))).all()


def one_product(**decorated):
    black = amp.AutoMixedPrecisionLists(custom_black_list=["Sub", "Mul", "ReduceMean"])
    return nets.one_layer(optimizer.SGD(0.125, multi_precision=True), amp_lists=black, **decorated)


def test_o1_is_o2_with_master_grad():
    """Equal losses over 40 steps, in contrast to Paddle's without master_grad, too.

    The factor makes gradients small: scaled they fit float16, unscaled they are subnormal in it, and stay float32.
    """
    by_name = {}
    for name, keywords in {
        "O1": {"level": "O1"},
        "O2, master_grad": {"level": "O2", "master_grad": True, "use_amp_guard": True},
        "O2": {"level": "O2", "use_amp_guard": True},
    }.items():
        net = one_product(init_loss_scaling=2.0**12, **keywords)
        masters = []
        for step in range(40):
            net.run(1.0 + step / 64, factor=3e-7)
            masters.append(net.state()[net.optimizer.master_weights.get("w", "w")])
        by_name[name] = np.stack(masters)
    np.testing.assert_array_equal(by_name["O1"], by_name["O2, master_grad"])
    np.testing.assert_array_equal(by_name["O1"], by_name["O2"])


@pytest.mark.parametrize("master_grad", [False, True])
def test_gradients_are_cast_once_each_under_master_grad(master_grad):
    """Gradients are fp32; one cast for every low one before unscaling, behind the choice of zeros for bad ones."""
    net = trainer(optimizer.AdamW(0.001), level="O2", master_grad=master_grad)
    low = [name for name in ("w1", "b1", "w2", "b2", "w3", "b3") if nets.makes(_gradient(net, name)) == ["FLOAT16"]]
    assert low == ["w1", "b1", "w2", "b2", "w3", "b3"]
    narrowed = [n for n in nets.nodes(net.main, "Cast", "optimize") if nets.makes(n) == ["FLOAT16"]]
    weights = len(low)  # a parameter is its master, narrowed
    assert len(narrowed) == weights
    chosen = [user for name in low for user in _gradient(net, name).outputs[0].consumers() if user.op_type == "Where"]
    widened = [user for node in chosen for user in node.outputs[0].consumers()]
    assert {node.op_type for node in widened} == {"Cast"}
    assert len(chosen) == len(widened) == len(low)
    assert {kind for node in widened for kind in nets.makes(node)} == {"FLOAT"}


def _gradient(net, name):
    return net.main.value(f"{name}@GRAD").producer()


NORMS = {
    "BatchNormalization": ("BatchNormalization (h, s, b, mean, var)", "mean var"),
    "LayerNormalization": ("LayerNormalization <axis = 1> (h, s, b)", ""),
    "InstanceNormalization": ("InstanceNormalization (h, s, b)", ""),
}


@pytest.mark.parametrize("name", NORMS)
def test_parameters_of_normalisations_stay_fp32_at_o2(name):
    """LayerNormalization's and BatchNormalization's parameters are stored in fp32 by default."""
    call, statistics = NORMS[name]
    layer = "LayerNormalization" in call
    text = f"(float[n,4,6] x) => (float[n,4,6] y) {{ h = MatMul (x, w) k = {call} y = MatMul (k, v) }}"
    shape = (4, 6) if layer else (4,)
    weights = {"w": array(6, 6, scale=0.3), "v": array(6, 6, scale=0.3), "s": np.ones(shape, np.float32)}
    weights["b"] = np.zeros(shape, np.float32)
    weights |= {n: np.full(4, n == "var", np.float32) for n in statistics.split()}
    net = trainer(optimizer.AdamW(0.01), text, weights, level="O2", target=[None, 4, 6])
    state = net.state()
    assert {state[n].dtype.name for n in ("s", "b")} == {"float32"}
    assert {state[n].dtype.name for n in ("w", "v")} == {"float16"}
    feed = {"x": array(8, 4, 6), "target": array(8, 4, 6, seed=1, scale=0.1)}
    trained = losses(net, [feed] * 4)
    assert trained[-1] < trained[0]


def test_an_excluded_layer_keeps_fp32_weights():
    """disable_amp excludes a layer of an ONNX program."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        wide, low = (create_persistable(_parameter(name), (4, 4), 0.25) for name in ("kept", "low"))
        with amp.disable_amp():
            inner = x @ wide
        loss = text_nets.squared_error(main, inner @ low, static.data("target", [None, 4]))
        wrapped = static.amp.decorate(optimizer.AdamW(0.01), level="O2")
        wrapped.minimize(loss, startup)
    net = nets.Net(main, startup, loss, wrapped).start()
    assert (net.scope["kept"].dtype, net.scope["low"].dtype) == (np.float32, np.float16)
    assert list(wrapped.master_weights) == ["low"]
    assert np.isfinite(net.step({"x": array(2, 4), "target": array(2, 4)})[0])


def _parameter(name):
    return Persistable(name, "parameter")
