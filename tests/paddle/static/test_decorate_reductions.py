"""SambaNova's `--fp32-params` and `--weight-grad-reduce`, as arguments of `decorate`."""

import numpy as np
import onnx
import pytest

from amp_transpiler import optimizer, static
from amp_transpiler.errors import OptionError
from tests.paddle import nets, text_nets
from tests.support import array

# ---- fp32_params ----


def third(**decorated):
    """A started `OneLayer` whose weight starts at 1/3, which no low format holds."""
    net = nets.one_layer(optimizer.Momentum(0.125), start=False, **decorated)
    net.executor.run(net.startup, scope=net.scope)
    net.scope["w"] = np.full((4, 4), 1 / 3, np.float32)
    masters = net.optimizer.master_weights.values()
    net.scope.update(dict.fromkeys(masters, net.scope["w"]))
    net.optimizer.amp_init(nets.CPU, net.scope)
    return net


OVERLOADS = {
    "first": {"use_pure_fp16": True},
    "second": {"level": "O2"},
    "bfloat16": {"level": "O2", "dtype": "bfloat16"},
}


@pytest.mark.parametrize("name", OVERLOADS)
def test_fp32_params_makes_masters_from_the_rounded_parameters(name):
    """A low copy for the next op, an fp32 copy for the update, starting from low parameters."""
    net = third(fp32_params=True, **OVERLOADS[name])
    low = net.scope["w"]
    assert low.dtype.name == OVERLOADS[name].get("dtype", "float16")
    master = net.scope[net.master]
    assert master.dtype == np.float32
    np.testing.assert_array_equal(master, low.astype(np.float32))
    assert (master != np.float32(1 / 3)).all()
    loss = [net.run(1.0)[0].item() for _ in range(4)]
    assert loss[-1] < loss[0]
    assert (net.scope[net.master] != master).any()
    np.testing.assert_array_equal(net.scope["w"], net.scope[net.master].astype(low.dtype))


def test_without_it_masters_are_not_rounded():
    net = third(level="O2")
    np.testing.assert_array_equal(net.scope[net.master], np.float32(1 / 3))


def test_fp32_params_has_no_effect_without_low_parameters():
    net = third(level="O1", fp32_params=True)
    assert not net.optimizer.master_weights
    np.testing.assert_array_equal(net.scope["w"], np.float32(1 / 3))


def test_fp32_params_without_masters_is_refused():
    with pytest.raises(OptionError, match="master_weight=False"):
        static.amp.decorate(optimizer.SGD(0.1), fp32_params=True, master_weight=False)


# ---- weight_grad_reduce ----

WEIGHTS = {"w": array(6, 6, seed=1, scale=0.3), "b": array(6, seed=2, scale=0.1)}
STACK = "(float[n,3,6] x) => (float[n,3,6] y)"
NETS = {
    # name: (text, target, shape of x, how many sums go over batch dimensions: in fp32, where a product sums, and low)
    "MatMul, bias, stacked": (f"{STACK} {{ h = MatMul (x, w) y = Add (h, b) }}", (None, 3, 6), (4, 3, 6), (1, 2)),
    "bias in front": (f"{STACK} {{ h = MatMul (x, w) y = Add (b, h) }}", (None, 3, 6), (4, 3, 6), (1, 2)),
    "a transposed weight": (
        f"{STACK} {{ t = Transpose <perm = [1, 0]> (w) h = MatMul (x, t) y = Add (h, b) }}",
        (None, 3, 6),
        (4, 3, 6),
        (1, 2),
    ),
    "Gemm, whose weight needs no sum": (
        "(float[n,6] x) => (float[n,6] y) { y = Gemm (x, w, b) }",
        (None, 6),
        (4, 6),
        (1, 1),
    ),
    "a bias behind a Reshape": (
        f"{STACK} {{ h = MatMul (x, w) s = Shape (h) r = Reshape (h, s) y = Add (r, b) }}",
        (None, 3, 6),
        (4, 3, 6),
        (1, 2),
    ),
}


def linear(name, **decorated):
    text, target, shape, sums = NETS[name]
    sgd = optimizer.SGD(0.1, multi_precision=True)
    net = text_nets.trainer(sgd, text, WEIGHTS, target=target, **{"level": "O2", **decorated})
    return net, {"x": array(*shape), "target": array(*shape, seed=5, scale=0.3)}, sums


def summed(one, names):
    """(element types read, made) of the sum that the gradient of each parameter is, None where it is none."""
    return [_summed(one.main.value(f"{name}@GRAD")) for name in names]


def _summed(value):
    node = value.producer()
    while node.op_type in ("Identity", "Cast", "Reshape", "Squeeze", "Transpose", "Mul"):
        node = node.inputs[0].producer()
    return (nets.works_in(node), *nets.makes(node)) if node.op_type == "ReduceSum" else None


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize(("dtype", "low"), [("float16", "FLOAT16"), ("bfloat16", "BFLOAT16")])
@pytest.mark.parametrize("name", NETS)
def test_sums_of_linear_weights_and_biases_are_in_the_format_asked_for(name, dtype, low, level):
    """It is fp32 unless told otherwise; low where the gradient is low, without a cast around it.

    In fp32 a stack's sum is part of the product that makes the gradient of the weight: it accumulates in fp32.
    """
    for asked, expected in (
        ({}, "FLOAT"),
        ({"weight_grad_reduce": "fp32"}, "FLOAT"),
        ({"weight_grad_reduce": "low"}, low),
    ):
        net, feed, counts = linear(name, dtype=dtype, level=level, **asked)
        sums = [type_of_sum for type_of_sum in summed(net, ("w", "b")) if type_of_sum]
        assert sums == [(expected, expected)] * counts[expected == low]
        first = net.step(feed)[0].item()
        for _ in range(4):
            last = net.step(feed)[0].item()
        assert last < first


@pytest.mark.parametrize("name", NETS)
def test_low_sums_need_fewer_casts(name):
    def casts(reduce):
        return len(nets.nodes(linear(name, weight_grad_reduce=reduce)[0].main, "Cast", "backward"))

    assert casts("low") < casts("fp32")


def test_other_sums_stay_fp32():
    """Linear weights only: not the bias of a convolution, a scale, or an Add that follows no product."""
    text = """(float[n,3,8,8] x) => (float[n,2] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) r = Relu (c) s = Mul (r, k) t = Add (s, k) f = Flatten (t)
        y = Gemm (f, w3, b3)
    }"""
    weights = {key: text_nets.convolution_weights()[key] for key in ("w1", "b1", "w3", "b3")}
    weights["w3"] = array(256, 2, scale=0.2)
    weights["k"] = np.ones((4, 1, 1), np.float32)
    sums_of = {}
    for reduce in ("fp32", "low"):
        sgd = optimizer.SGD(0.01, multi_precision=True)
        main, startup = static.Program(), static.Program()
        model = text_nets.parse(text, **weights)
        main = static.from_onnx(model, startup_program=startup, trainable=[*weights])
        with static.program_guard(main, startup):
            loss = text_nets.squared_error(main, main.var("y"), static.data("target", [None, 2]))
            wrapped = static.amp.decorate(sgd, level="O2", weight_grad_reduce=reduce)
            wrapped.minimize(loss, startup)
        net = nets.Net(main, startup, loss, wrapped).start()
        sums_of[reduce] = summed(net, ["w3", "b3", "b1", "k"])
        assert np.isfinite(text_nets.losses(net, text_nets.image_batches(2))).all()
    high = ("FLOAT", "FLOAT")
    assert sums_of["fp32"] == [None, high, high, None]
    assert sums_of["low"] == [None, ("FLOAT16", "FLOAT16"), high, None]


def test_a_low_sum_can_overflow_where_an_fp32_one_does_not():
    """The trade of the option: 64 gradients of 2048 sum to 2**17, beyond float16; beta makes it 2**13."""
    text = "(float[n,6] x) => (float[n,6] y) { y = Gemm <beta = 0.0625> (x, w, b) }"
    moved = {}
    for reduce in ("fp32", "low"):
        sgd = optimizer.SGD(1.0)
        options = {
            "level": "O1",
            "scaler": "torch",
            "init_loss_scaling": 2.0**20 * 6 * 64 / 512,
            "weight_grad_reduce": reduce,
        }
        zeros = {"w": np.zeros((6, 6), np.float32), "b": np.zeros(6, np.float32)}
        net = text_nets.trainer(sgd, text, zeros, target=(None, 6), **options)
        # The gradient of the mean square is -2 * target / (6 * 64), which the scale makes -2048 each.
        net.step({"x": np.zeros((64, 6), np.float32), "target": np.full((64, 6), 0.5, np.float32)})
        bias = net.scope["b"]
        moved[reduce] = bool(bias.any())
        if reduce == "fp32":
            np.testing.assert_allclose(bias, 0.0625 * 0.5 * 2 / 6, rtol=1e-3)
    assert moved == {"fp32": True, "low": False}


def test_fp32_and_low_agree_where_nothing_overflows():
    results = []
    for reduce in ("fp32", "low"):
        net, feed, _ = linear("MatMul, bias, stacked", weight_grad_reduce=reduce, init_loss_scaling=128.0)
        for _ in range(3):
            net.step(feed)
        results.append({name: net.scope[master] for name, master in net.optimizer.master_weights.items()})
    assert set(results[0]) == {"w", "b"}
    for name, value in results[0].items():
        np.testing.assert_allclose(value, results[1][name], atol=1e-3)


def test_low_sums_do_not_outlast_minimize():
    """Another program, decorated for fp32 or not at all, is as it was."""
    linear("MatMul, bias, stacked", weight_grad_reduce="low")
    net, _, _ = linear("MatMul, bias, stacked")
    assert summed(net, ("w", "b")) == [None, ("FLOAT", "FLOAT")]


def test_a_weight_read_in_a_branch_is_summed_low_too():
    """A body's sums follow its program's option."""
    graph = onnx.parser.parse_graph("body () => (float[n,3,6] z) { z = MatMul (x, w) }")
    text = f"""{STACK} {{ m = ReduceMax <keepdims = 0> (x) zero = Constant <value = float {{0.0}}> ()
        c = Greater (m, zero) h = Relu (x) y = Identity (h) }}"""
    model = text_nets.parse(text, w=WEIGHTS["w"])
    node = next(node for node in model.graph.node if node.op_type == "Identity")
    node.op_type, node.input[:] = "If", ["c"]
    node.attribute.extend(onnx.helper.make_attribute(name, graph) for name in ("then_branch", "else_branch"))
    for branch, attribute in zip(("a", "b"), node.attribute, strict=True):
        attribute.g.name, attribute.g.output[0].name, attribute.g.node[0].output[0] = branch, f"z{branch}", f"z{branch}"
    sums_of = {}
    for reduce in ("fp32", "low"):
        startup = static.Program()
        main = static.from_onnx(onnx.ModelProto.FromString(model.SerializeToString()), startup, trainable=["w"])
        with static.program_guard(main, startup):
            loss = text_nets.squared_error(main, main.var("y"), static.data("target", [None, 3, 6]))
            wrapped = static.amp.decorate(optimizer.SGD(0.1), level="O2", weight_grad_reduce=reduce)
            wrapped.minimize(loss, startup)
        net = nets.Net(main, startup, loss, wrapped).start()
        assert np.isfinite(net.step({"x": array(4, 3, 6), "target": array(4, 3, 6, seed=1)})[0])
        inner = [node for node in nets.nodes(main, "ReduceSum", "backward") if node.graph is not main.model.graph]
        sums_of[reduce] = [nets.makes(node) for node in inner]
    assert sums_of == {"fp32": [], "low": [["FLOAT16"]] * 2}  # in fp32 the product takes the sum


@pytest.mark.parametrize("given", ["bf16sr", "FP32", None, 16])
def test_a_format_that_there_is_not_is_refused(given):
    with pytest.raises(OptionError, match="'fp32' or 'low'"):
        static.amp.decorate(optimizer.SGD(0.1), weight_grad_reduce=given)
