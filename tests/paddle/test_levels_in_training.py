"""Levels, lists, guard and test programs in training."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from tests.paddle import nets, text_nets
from tests.paddle.text_nets import image_batches, losses, trainer
from tests.support import array, parse, run

BATCHES = 5


def lists(**given):
    return amp.AutoMixedPrecisionLists(**given)


def test_black_varnames_keep_the_convolution_that_reads_them():
    """Black names {loss, first weight}: that Conv is fp32, the other fp16, O1 training stays finite."""
    net = trainer(optimizer.Momentum(0.01), level="O1", amp_lists=lists(custom_black_varnames=["w1", "y"]), guard=None)
    assert (text_nets.kind(net, "conv1"), text_nets.kind(net, "conv2")) == ("FLOAT", "FLOAT16")
    assert text_nets.kind(net, "gemm") == "FLOAT"
    assert np.isfinite(losses(net, image_batches(BATCHES))).all()


OPTIMIZERS = {
    "Momentum": lambda **o: optimizer.Momentum(0.01, 0.9, **o),
    "Nesterov": lambda **o: optimizer.Momentum(0.01, 0.9, use_nesterov=True, **o),
    "AdamW": lambda **o: optimizer.AdamW(0.001, **o),
    "Lamb, which is layer-wise as LARS": lambda **o: optimizer.Lamb(0.001, **o),
}
GUARDED = "^(?!conv1$)"  # everything but the first convolution


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pure_fp16_trains_like_fp32(name):
    """Losses of five batches within rtol 1e-2, atol 1e-5 of fp32."""
    chosen = OPTIMIZERS[name]
    expected = losses(trainer(chosen()), image_batches(BATCHES))
    net = trainer(chosen(multi_precision=True), guard=GUARDED, use_pure_fp16=True, init_loss_scaling=128.0)
    assert (text_nets.kind(net, "conv1"), text_nets.kind(net, "conv2")) == ("FLOAT", "FLOAT16")
    np.testing.assert_allclose(losses(net, image_batches(BATCHES)), expected, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rewritten_test_program_gives_the_same(dtype):
    """The test program that amp_init rewrites gives what the fp32 one gives, within rtol 1e-2."""
    losses_of = {}
    for low in (False, True):
        main, startup = text_nets.loaded(text_nets.CONVOLUTIONS, text_nets.convolution_weights())
        test = main.clone(for_test=True)
        with static.program_guard(main, startup):
            loss = text_nets.squared_error(main, main.var("y"), static.data("target", [None, 2]))
            momentum = optimizer.Momentum(0.01, multi_precision=low)
            if low:
                # A start of 65536 overflows here, and the first step would be skipped.
                momentum = static.amp.decorate(momentum, level="O2", dtype=dtype, init_loss_scaling=128.0)
            momentum.minimize(loss, startup)
        net = nets.Net(main, startup, loss, momentum).start(**({"test_program": test} if low else {}))
        losses(net, image_batches(BATCHES))
        [batch] = image_batches(1)
        (losses_of[low],) = net.executor.run(test, feed={"x": batch["x"]}, fetch_list=["y"], scope=net.scope)
        assert nets.makes(nets.nodes(test, "Gemm")[0]) == [
            {"float16": "FLOAT16", "bfloat16": "BFLOAT16"}[dtype] if low else "FLOAT"
        ]
    limit = {"float16": 1e-2, "bfloat16": 5e-2}[dtype]
    np.testing.assert_allclose(losses_of[True].astype(np.float32), losses_of[False], rtol=limit, atol=limit)


def test_control_flow_integers_and_dtype_attributes():
    """If, an int64 path and nodes with a dtype attribute, guard off; integers stay integers."""
    then = "then () => (float[2,4] t) { t = Exp (h) }"
    other = "other () => (float[2,4] e) { e = Add (h, r) }"
    body = f"""
        [h] h = MatMul (x, w) [shape] s = Shape (h) [r] r = RandomNormalLike <dtype = 1, seed = 1.0> (h)
        [if] k = If (c) <then_branch = {then}, else_branch = {other}> [label] l = Cast <to = 7> (n) [l1] m = Add (l, l)
        [y] y = Reshape (k, s) [out] z = Identity (m)
    """
    head = "(float[2,4] x, bool c, int32[2] n) => (float[2,4] y, int64[2] z)"
    program = amp.load(parse(f"{head} {{ {body} }}", w=array(4, 4)))
    amp.cast_model_to_fp16(program, use_fp16_guard=False)
    by_name = {node.name: node for node in nets.nodes(program)}
    assert nets.makes(by_name["h"]) == ["FLOAT16"]
    assert nets.makes(by_name["shape"]) == nets.makes(by_name["label"]) == nets.makes(by_name["l1"]) == ["INT64"]
    feeds = {"x": array(2, 4), "c": np.array(True), "n": np.array([1, 2], np.int32)}
    y, z = run(amp.emulate(program), feeds).values()
    np.testing.assert_allclose(y, np.exp(feeds["x"] @ array(4, 4)), rtol=2e-2)
    np.testing.assert_array_equal(z, [2, 4])


def test_only_parameters_inside_the_guard_are_low():
    """Guard around Conv and BatchNormalization: their weight and bias fp16, the later Gemm's fp32."""
    net = trainer(optimizer.Adam(multi_precision=True), guard="^(conv1|norm)$", use_pure_fp16=True)
    state = net.state()
    assert {n: state[n].dtype.name for n in ("w1", "b1", "w2", "b2", "w3", "b3")} == {
        "w1": "float16",
        "b1": "float16",
        "w2": "float32",
        "b2": "float32",
        "w3": "float32",
        "b3": "float32",
    }
    assert {state[n].dtype.name for n in ("scale", "shift", "mean", "var")} == {"float32"}
    assert set(net.optimizer.master_weights) == {"w1", "b1"}


def test_a_blacklisted_pool_stays_fp32_in_pure_mode():
    """A pool in the custom black list, in its Paddle name."""
    net = trainer(
        optimizer.Adam(multi_precision=True), amp_lists=lists(custom_black_list=["pool2d"]), use_pure_fp16=True
    )
    assert (text_nets.kind(net, "pool"), text_nets.kind(net, "relu2")) == ("FLOAT", "FLOAT16")
    assert np.isfinite(losses(net, image_batches(1))).all()


PROMOTED = """(float[n,1,4,4] x) => (float y) {
    [conv] c = Conv (x, wc) [bias] a = Add (c, bc) [cast] u = Cast <to = 1> (a) [relu] r = Relu (u)
    [flat] f = Flatten (r) [matmul] m = MatMul (f, wm) [bias2] b = Add (m, bm)
    [softmax] s = Softmax (b) [mean] y = ReduceMean <keepdims = 0> (s)
}"""
PROMOTED_WEIGHTS = {
    "wc": array(2, 1, 3, 3, scale=0.3),
    "bc": array(2, 1, 1, scale=0.3),
    "wm": array(8, 4, scale=0.3),
    "bm": array(4, scale=0.3),
}
LEVELS = {
    # name: (decorate's keywords, forward nodes that are low, parameters that are low)
    "OD": ({"level": "OD"}, {"conv", "matmul"}, set()),
    "O1 with promotion": ({"level": "O1", "use_promote": True}, {"conv", "matmul"}, set()),
    "O2 with promotion": (
        {"level": "O2", "use_promote": True},
        {"conv", "bias", "matmul", "bias2", "softmax", "mean"},
        {"wc", "bc", "wm", "bm"},
    ),
    "O2 without": (
        {"level": "O2"},
        {"conv", "bias", "relu", "matmul", "bias2", "softmax", "mean"},
        {"wc", "bc", "wm", "bm"},
    ),
}


@pytest.mark.parametrize("name", LEVELS)
def test_what_is_low_and_what_is_updated_with_masters(name):
    """Counts of low nodes, AdamW's among them (a low update has a master); the cast holds."""
    keywords, low, parameters = LEVELS[name]
    main, startup = text_nets.loaded(PROMOTED, PROMOTED_WEIGHTS)
    with static.program_guard(main, startup):
        wrapped = static.amp.decorate(optimizer.AdamW(0.01, multi_precision=True), **keywords)
        wrapped.minimize(main.var("y"), startup)
    net = nets.Net(main, startup, main.var("y"), wrapped).start()
    named = ("conv", "bias", "relu", "matmul", "bias2", "softmax", "mean")
    assert {node for node in named if text_nets.kind(net, node) == "FLOAT16"} == low
    assert set(wrapped.master_weights) == parameters
    assert np.isfinite(net.step({"x": array(2, 1, 4, 4)})[0])


EMBEDDING = """(int64[n] x) => (float[n,4] y) {
    [gather] e = Gather (table, x) [matmul] m = MatMul (e, w) [add] a = Add (m, b) [tanh] y = Tanh (a)
}"""
EMBEDDING_WEIGHTS = {"table": array(10, 4, scale=0.3), "w": array(4, 4, scale=0.3), "b": array(4, scale=0.1)}
EMBEDDED = {
    # name: (level, type of what is looked up, parameters that are low)
    "O1": ("O1", "FLOAT", set()),
    "O2": ("O2", "BFLOAT16", {"table", "w", "b"}),
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedding_in_bfloat16(name):
    """MatMul, Add and what follows low; updates with masters at O2 only, the table's among them.

    Paddle looks rows of the low table up in fp32; here they stay low, which gives the same numbers with less copying.
    """
    level, looked_up, parameters = EMBEDDED[name]
    net = trainer(optimizer.AdamW(0.01), EMBEDDING, EMBEDDING_WEIGHTS, level=level, dtype="bfloat16", target=[None, 4])
    assert [text_nets.kind(net, node) for node in ("matmul", "add", "tanh")] == ["BFLOAT16"] * 3
    assert text_nets.kind(net, "gather") == looked_up
    assert set(net.optimizer.master_weights) == parameters
    feed = {"x": np.array([1, 2, 2]), "target": array(3, 4, scale=0.1)}
    losses_of = losses(net, [feed] * 4)
    assert losses_of[-1] < losses_of[0]


def test_levels_agree_in_bfloat16_where_all_is_additions():
    """O1 and O2 give identical bfloat16 losses on a model of additions, over two steps."""
    text = "(float[n,4] x) => (float y) { [a] a = Add (x, v) [b] b = Add (a, u) [m] y = ReduceMean <keepdims = 0> (b) }"
    weights = {"v": array(4, seed=1), "u": array(4, seed=2)}
    losses_of = {}
    for level in ("O1", "O2"):
        main, startup = text_nets.loaded(text, weights)
        with static.program_guard(main, startup):
            white = lists(custom_white_list=["Add"], custom_black_list=["ReduceMean"], dtype="bfloat16")
            wrapped = static.amp.decorate(optimizer.SGD(0.5), white, level=level, dtype="bfloat16")
            wrapped.minimize(main.var("y"), startup)
        net = nets.Net(main, startup, main.var("y"), wrapped).start()
        assert {text_nets.kind(net, name) for name in "ab"} == {"BFLOAT16"}
        losses_of[level] = losses(net, [{"x": array(8, 4)}] * 2)
    assert losses_of["O1"] == losses_of["O2"]
    assert losses_of["O1"][0] != losses_of["O1"][1]


REGIONS = {
    # name: (guard, lists, nodes that are low)
    "all": (None, {}, {"conv1", "norm", "relu", "pool", "conv2", "relu2", "gemm"}),
    "a region": ("^(conv2|relu2)$", {}, {"conv2", "relu2"}),
    "a name": (None, {"custom_black_varnames": ["w2"]}, {"conv1", "norm", "relu", "pool", "relu2", "gemm"}),
    "an operator": (None, {"custom_black_list": ["conv2d"]}, {"norm", "relu", "pool", "relu2", "gemm"}),
}


GUARD_COUNTS = {
    # name: (arguments of decorate, nodes that are low)
    "O2": ({"level": "O2", "use_amp_guard": True}, {"conv1"}),
    "O1": ({"level": "O1", "use_amp_guard": True}, {"conv1", "conv2", "gemm"}),
    "OD": ({"level": "OD", "use_amp_guard": True}, {"conv1", "conv2", "gemm"}),
}


@pytest.mark.parametrize("name", GUARD_COUNTS)
def test_the_guard_counts_at_o2_alone(name):
    """At the other levels of training the lists alone decide."""
    decorated, low = GUARD_COUNTS[name]
    net = trainer(optimizer.SGD(0.01), guard="^conv1$", **decorated)
    assert {node for node in ("conv1", "conv2", "gemm") if text_nets.kind(net, node) != "FLOAT"} == low


@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_regions_and_lists_give_what_fp32_gives(name, dtype):
    """Guard, lists and black names, each within rtol 1e-2 (bfloat16: 3e-2) of the plain result."""
    guard, moved, low = REGIONS[name]
    (expected,) = losses(trainer(optimizer.SGD(0.01)), image_batches(1))
    options = {"level": "O2", "dtype": dtype, "use_amp_guard": guard is not None}
    net = trainer(optimizer.SGD(0.01), guard=guard, amp_lists=lists(dtype=dtype, **moved), **options)
    named = ("conv1", "norm", "relu", "pool", "conv2", "relu2", "gemm")
    if (name, dtype) == ("an operator", "bfloat16"):
        low = low - {"pool"}  # the opset is not raised for a pool alone, and below 22 it has no bfloat16 kernel
    assert {node for node in named if text_nets.kind(net, node) != "FLOAT"} == low
    (loss_low,) = losses(net, image_batches(1))
    assert loss_low == pytest.approx(expected, rel={"float16": 1e-2, "bfloat16": 3e-2}[dtype])


TIED = """(int64[n] x) => (float[n,10] y) {
    [g] e = Gather (table, x) [t] t = Transpose (table) [m] y = MatMul (e, t)
}"""


def test_one_reader_that_wants_fp32_keeps_a_tied_table_in_fp32():
    """One reader that demands fp32 keeps a shared parameter fp32, and nothing conflicts."""
    black = lists(custom_black_list=["Gather"])
    tied = trainer(
        optimizer.AdamW(0.01), TIED, {"table": array(10, 4, scale=0.5)}, amp_lists=black, level="O2", target=[None, 10]
    )
    assert (text_nets.kind(tied, "g"), text_nets.kind(tied, "m")) == ("FLOAT", "FLOAT16")
    assert tied.scope["table"].dtype == np.float32
    assert np.isfinite(losses(tied, [{"x": np.array([1, 2]), "target": array(2, 10)}])).all()


def test_a_tied_embedding_trains_at_o2():
    """One table read by the embedding and by the last product, O2."""
    net = trainer(optimizer.AdamW(0.01), TIED, {"table": array(10, 4, scale=0.5)}, level="O2", target=[None, 10])
    assert (text_nets.kind(net, "g"), text_nets.kind(net, "m")) == ("FLOAT16", "FLOAT16")
    assert net.scope["table"].dtype == np.float16
    assert list(net.optimizer.master_weights) == ["table"]
    feed = {"x": np.array([1, 2, 3]), "target": array(3, 10, scale=0.1)}
    losses_of = losses(net, [feed] * 4)
    assert losses_of[-1] < losses_of[0]
