"""The programs of Paddle's own tests of static mixed precision, built again from what those tests say of them."""

import numpy as np
import pytest

from amp_transpiler import paddle
from amp_transpiler.paddle import nn
from amp_transpiler.paddle.static import amp

FIXED = np.random.default_rng(0).random([16, 16], np.float32)


class AddNet(nn.Layer):
    """Adds a fixed parameter."""

    def __init__(self):
        super().__init__()
        start = nn.initializer.Assign(FIXED)
        self.weight = paddle.create_parameter(
            [16, 16], "float32", name="add_w", attr=paddle.ParamAttr(initializer=start)
        )

    def forward(self, x):
        return x + self.weight


class ConvNet(nn.Layer):
    """A convolution, a Relu behind a cast of the user's, a linear layer, a Softmax."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(in_channels=1, out_channels=6, kernel_size=3)
        self.linear = nn.Linear(in_features=96, out_features=4)

    def forward(self, x):
        out = nn.functional.relu(self.conv(x).cast("float32"))
        return nn.functional.softmax(self.linear(out.flatten(start_axis=1, stop_axis=3)))


class EmbeddingNet(nn.Layer):
    """An embedding, scaled by a constant that was an integer, a linear layer, Dropout; one weight for both, or two."""

    def __init__(self, shared=None):
        super().__init__()
        size = (128, 16) if shared is None else (64, 64)
        self.embedding = nn.Embedding(*size, weight_attr=shared)
        self.linear = nn.Linear(size[1], 10 if shared is None else 64, weight_attr=shared)

    def forward(self, x):
        scale = paddle.full(shape=[1], fill_value=2, dtype="int64")
        out = paddle.multiply(self.embedding(x), scale.astype("float32"))
        return nn.functional.dropout(self.linear(out), p=0.2)


class MlpNet(nn.Layer):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        self.linear0 = nn.Linear(16, 10)
        self.linear1 = nn.Linear(10, 32)

    def forward(self, x):
        out = nn.functional.relu(self.linear0(x))
        return nn.functional.dropout(nn.functional.relu(self.linear1(out)), p=0.2)


class WhileNet(nn.Layer):
    """A linear layer in a loop that ends after one turn, counted in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 10)

    def forward(self, x):
        def goes_on(i, turns, x, result):
            return i < turns

        def turn(i, turns, x, result):
            result = self.linear(x)
            paddle.increment(i)
            return [i, turns, x, result]

        i, turns = paddle.zeros([1], "int64"), paddle.ones([1], "int64")
        result = paddle.zeros(x.shape[:-1] + self.linear.weight.shape[-1:], "float32")
        result.stop_gradient = False
        return paddle.static.nn.while_loop(goes_on, turn, [i, turns, x, result])[-1]


def shared_embedding():
    start = nn.initializer.Assign(np.random.default_rng(1).random([64, 64], np.float32))
    return EmbeddingNet(paddle.ParamAttr(initializer=start))


# name -> network, shape and type of its input, operators moved to the white and black lists
NETS = {
    "add": (AddNet, [16, 16], "float32", {"elementwise_add"}, {"reduce_mean"}),
    "conv": (ConvNet, [None, 1, 6, 6], "float32", set(), set()),
    "embedding": (EmbeddingNet, [None, 32], "int64", {"elementwise_mul"}, {"reduce_mean"}),
    "shared": (shared_embedding, [None, 32], "int64", {"elementwise_mul"}, {"reduce_mean"}),
    "mlp": (MlpNet, [None, 16], "float32", set(), {"reduce_mean"}),
    "while": (WhileNet, [32, 16], "float32", set(), set()),
}


def build(net, level="O1", dtype="float16", *, clip=False, **options):
    """Return main and startup program, the optimizer, the input and the loss."""
    make, shape, kind, white, black = NETS[net]
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 1
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        x = paddle.static.data(name="x", shape=shape, dtype=kind)
        loss = paddle.mean(make()(x))
        optimizer = paddle.optimizer.AdamW(
            learning_rate=0.01,
            parameters=None,
            grad_clip=nn.ClipGradByGlobalNorm(clip_norm=1.0) if clip else None,
            beta1=0.78,
            beta2=0.836,
            epsilon=1e-4,
            weight_decay=0.01,
        )
        if level != "O0":
            lists = amp.AutoMixedPrecisionLists(custom_white_list=white, custom_black_list=black, dtype=dtype)
            optimizer = amp.decorate(optimizer, lists, level=level, dtype=dtype, **options)
        optimizer.minimize(loss)
    return main, startup, optimizer, x, loss


def losses(built, batches, level):
    """Return the loss of each step."""
    main, startup, optimizer, x, loss = built
    place = paddle.CPUPlace()
    exe = paddle.static.Executor(place)
    with paddle.static.scope_guard(paddle.static.Scope()):
        exe.run(startup)
        if level == "O2":
            optimizer.amp_init(place)
        return [exe.run(main, feed={x.name: batch}, fetch_list=[loss])[0].item() for batch in batches]


# network, level, format, options of decorate, low calls of operators
COUNTS = (
    (
        "conv",
        "O1",
        "float16",
        {"use_promote": True},
        "conv2d 1, elementwise_add 0, relu 0, matmul_v2 1, softmax 0, reduce_mean 0, adamw 0",
    ),
    (
        "conv",
        "O2",
        "float16",
        {"use_promote": True},
        "conv2d 1, elementwise_add 2, relu 0, matmul_v2 1, softmax 1, reduce_mean 1, adamw 4",
    ),
    (
        "conv",
        "O2",
        "float16",
        {},
        "conv2d 1, elementwise_add 2, relu 1, matmul_v2 1, softmax 1, reduce_mean 1, adamw 4",
    ),
    ("conv", "OD", "float16", {}, "conv2d 1, matmul_v2 1, reduce_mean 0"),
    (
        "embedding",
        "O1",
        "bfloat16",
        {},
        "matmul_v2 1, elementwise_add 1, dropout 1, lookup_table_v2 0, squared_l2_norm 0, adamw 0",
    ),
    ("embedding", "O2", "bfloat16", {}, "matmul_v2 1, elementwise_add 1, dropout 1, lookup_table_v2 1, adamw 3"),
    (
        "embedding",
        "O2",
        "bfloat16",
        {"master_grad": True},
        "matmul_v2 1, elementwise_add 1, dropout 1, lookup_table_v2 1, squared_l2_norm 0, adamw 3",
    ),
)


@pytest.mark.parametrize(("net", "level", "dtype", "options", "expected"), COUNTS)
def test_operators_in_low_precision(net, level, dtype, options, expected):
    main, *_ = build(net, level, dtype, clip=net == "embedding", **options)
    assert main.num_blocks == 1
    stats = amp.debugging._get_op_stats_list(main)[0]
    counts = dict(item.rsplit(" ", 1) for item in expected.split(", "))
    column = "fp16_calls" if dtype == "float16" else "bf16_calls"
    assert {name: getattr(stats[name], column) for name in counts} == {name: int(n) for name, n in counts.items()}


@pytest.mark.parametrize(("level", "masters"), [("O1", 0), ("O2", 3)])
def test_updates_with_master_weights(level, masters):
    main, *_ = build("embedding", level, "bfloat16", clip=True)
    updates = [op for block in main.blocks for op in block.ops if {"Param", "Grad"} <= set(op.input_names)]
    assert len(updates) == 3
    assert sum(op.has_attr("multi_precision") and op.attr("multi_precision") for op in updates) == masters


def test_o1_and_o2_add_alike():
    x = np.random.default_rng(2).random([16, 16], np.float32)
    x = (amp.bf16.convert_float_to_uint16(x).astype(np.uint32) << 16).view(np.float32)
    o1, o2 = (losses(build("add", level, "bfloat16"), [x] * 2, level) for level in ("O1", "O2"))
    assert o1 == o2


@pytest.mark.parametrize("net", ["embedding", "shared"])
def test_embeddings_train_alike_at_both_levels(net):
    ids = np.random.default_rng(3).integers(1, 64, [1, 32])
    losses_of = {level: losses(build(net, level, clip=True), [ids] * 5, level) for level in ("O0", "O1", "O2")}
    assert np.isfinite(losses_of["O2"]).all()
    np.testing.assert_allclose(losses_of["O1"], losses_of["O0"], rtol=0.02, atol=2e-3)
    np.testing.assert_allclose(losses_of["O2"], losses_of["O0"], rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("clip", [False, True])
def test_a_small_network_trains_at_both_levels(dtype, clip):
    x = np.random.default_rng(4).random([4, 16], np.float32)
    losses_of = {level: losses(build("mlp", level, dtype, clip=clip), [x] * 5, level) for level in ("O0", "O1", "O2")}
    for level in ("O1", "O2"):
        np.testing.assert_allclose(
            losses_of[level], losses_of["O0"], rtol=0.03 if dtype == "float16" else 0.1, atol=5e-3
        )


def test_a_loop_is_converted_with_its_body():
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        x = paddle.static.data(name="x", shape=[32, 16], dtype="float32")
        loss = paddle.mean(WhileNet()(x))
    assert main.num_blocks == 2
    before = main.clone()
    amp.cast_model_to_fp16(main, use_fp16_guard=False)
    stats = amp.debugging._get_op_stats_list(main)
    assert stats[1]["matmul_v2"].fp16_calls == 1
    exe = paddle.static.Executor(paddle.CPUPlace())
    fed = {"x": np.random.default_rng(5).random([32, 16], np.float32)}
    with paddle.static.scope_guard(paddle.static.Scope()):
        exe.run(startup)
        expected, low_loss = (exe.run(program, feed=fed, fetch_list=[loss])[0] for program in (before, main))
    np.testing.assert_allclose(low_loss, expected, rtol=5e-3, atol=1e-3)


def test_parameters_of_guarded_layers_alone_become_low():
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        data = paddle.static.data(name="X", shape=[None, 1, 28, 28], dtype="float32")
        with amp.fp16_guard():
            hidden = paddle.static.nn.batch_norm(
                paddle.static.nn.conv2d(input=data, num_filters=6, filter_size=3), act="relu"
            )
        pool = nn.functional.max_pool2d(hidden, kernel_size=2, stride=2)
        loss = paddle.mean(paddle.static.nn.fc(pool, size=10))
        optimizer = amp.decorate(
            paddle.optimizer.Momentum(learning_rate=0.01, multi_precision=True),
            amp.CustomOpLists(custom_black_list=["pool2d"]),
            init_loss_scaling=128.0,
            use_dynamic_loss_scaling=True,
            use_pure_fp16=True,
        )
        optimizer.minimize(loss)
        with paddle.static.scope_guard(paddle.static.Scope()):
            place = paddle.CPUPlace()
            paddle.static.Executor(place).run(startup)
            scope = paddle.static.global_scope()
            optimizer.amp_init(place, scope=scope)
            kinds = {name: scope.find_var(name).get_tensor()._dtype() for name in ("fc_0.b_0", "conv2d_0.w_0")}
    assert kinds == {"fc_0.b_0": "float32", "conv2d_0.w_0": "float16"}
