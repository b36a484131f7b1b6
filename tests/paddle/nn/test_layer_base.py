"""`nn.Layer`: what its attributes are, walks, hooks, states, and training through it."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import nn
from amp_transpiler.paddle.framework.parameters import create_parameter
from amp_transpiler.paddle.framework.programs import data, default_main_program, default_startup_program
from amp_transpiler.paddle.optimizer import SGD
from amp_transpiler.paddle.param_attr import ParamAttr
from amp_transpiler.paddle.static.executor import Executor
from amp_transpiler.paddle.tensor import ones
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.scope import Scope


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1D(3), nn.Dropout(0.5))
        self.scale = create_parameter([3], name="scale")
        self.heads = nn.LayerList([nn.Linear(3, 2) for _ in range(2)])
        self.note = "plain"

    def forward(self, x):
        x = self.body(x) * self.scale
        return self.heads[0](x) + self.heads[1](x)


def test_attributes_are_found_by_name():
    net = Net()
    assert [name for name, _ in net.named_sublayers()] == [
        *("body", "body.0", "body.1", "body.2"),
        *("heads", "heads.0", "heads.1"),
    ]
    assert [name for name, _ in net.named_parameters()] == [
        *("scale", "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"),
        *("heads.0.weight", "heads.0.bias", "heads.1.weight", "heads.1.bias"),
    ]
    assert [name for name, _ in net.named_buffers()] == ["body.1._mean", "body.1._variance"]
    assert set(net.state_dict()) == {name for name, _ in [*net.named_parameters(), *net.named_buffers()]}
    assert net.heads[1].weight.name == "linear_2.w_0"
    assert net.full_name() == "net_0"
    assert "(heads): LayerList(\n" in repr(net)
    net.note = None
    net.scale = None
    assert net.note is None
    assert "scale" not in net.state_dict()
    with pytest.raises(AttributeError, match="Net has no attribute 'nonsense'"):
        net.nonsense  # noqa: B018  # the access is the test


def test_a_layer_is_built_for_training_or_for_inference():
    net = Net()
    assert all(layer.training for layer in net.sublayers(include_self=True))
    net.eval()
    net(data("x", [None, 4]))
    operators = [node.op_type for node in default_main_program().model.graph]
    assert "Dropout" not in operators
    assert not default_main_program().updates
    net.train()(data("y", [None, 4]))
    assert "Dropout" in [node.op_type for node in default_main_program().model.graph]
    assert set(default_main_program().updates) >= {"batch_norm1d_0.w_1", "batch_norm1d_0.w_2"}


def test_hooks_see_and_change_what_passes():
    layer, seen = nn.Linear(4, 4), []
    first = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].name))
    layer.register_forward_post_hook(lambda _, __, output: output + 1.0)
    result = layer(data("x", [2, 4]))
    assert seen == ["x"]
    assert result.value.producer().op_type == "Add"
    first.remove()
    layer(data("y", [2, 4]))
    assert seen == ["x"]


def test_apply_visits_every_layer():
    seen = []
    net = Net()
    assert net.apply(lambda layer: seen.append(type(layer).__name__)) is net
    assert seen[-1] == "Net"
    assert seen.count("Linear") == 3


def test_one_attribute_for_two_layers_makes_two_parameters_and_one_name_makes_one():
    attr = ParamAttr(initializer=nn.initializer.Constant(2.0))
    a, b = nn.Linear(2, 2, attr), nn.Linear(2, 2, attr)
    assert a.weight.name != b.weight.name
    c, d = nn.Linear(2, 2, "shared", False), nn.Linear(2, 2, "shared", False)
    assert c.weight.name == d.weight.name == "shared"
    assert len(nn.LayerList([c, d]).parameters()) == 1
    assert c.bias is None
    with pytest.raises(OptionError, match="Linear needs its weight"):
        nn.Linear(2, 2, weight_attr=False)


def test_a_net_trains_and_its_state_goes_to_another_scope():
    net = Net()
    x = data("x", [None, 4])
    loss = nn.MSELoss()(net(x), data("y", [None, 2]))
    test = default_main_program().clone(for_test=True)
    SGD(0.05, parameters=net.parameters()).minimize(loss)
    random = np.random.default_rng(0)
    feed = {"x": random.normal(size=(8, 4)).astype("float32"), "y": random.normal(size=(8, 2)).astype("float32")}
    executor, scope, other = Executor(CPUPlace()), Scope(), Scope()
    executor.run(default_startup_program(), scope=scope)
    executor.run(default_startup_program(), scope=other)
    before = net.state_values(scope)
    for _ in range(3):
        executor.run(feed=feed, scope=scope)
    after = net.state_values(scope)
    assert all(not np.array_equal(before[name], after[name]) for name in before)
    wanted = executor.run(test, feed, [loss], scope=scope)
    assert executor.run(test, feed, [loss], scope=other) != wanted
    missing, unknown = net.set_state_dict({**after, "more": np.zeros(1)}, scope=other)
    assert (missing, unknown) == ([], ["more"])
    assert executor.run(test, feed, [loss], scope=other) == wanted
    by_name = {variable.name: after[name] for name, variable in net.state_dict().items()}
    assert net.set_state_dict(by_name, use_structured_name=False, scope=other) == ([], [])


def test_a_state_that_does_not_fit_changes_nothing():
    layer, scope = nn.Linear(2, 3), Scope()
    with pytest.raises(InputError, match="run the startup program"):
        layer.set_state_dict({"weight": np.ones((2, 3))}, scope=scope)
    Executor(CPUPlace()).run(default_startup_program(), scope=scope)
    before = layer.state_values(scope)
    with pytest.raises(InputError, match=r"'bias' has shape \[2\], the layer wants \[3\]"):
        layer.set_state_dict({"weight": np.ones((2, 3)), "bias": np.ones(2)}, scope=scope)
    assert np.array_equal(before["weight"], layer.state_values(scope)["weight"])


class Bare(nn.Layer):
    def __init__(self):
        self.inner = nn.Linear(2, 2)


def used_linear():
    layer = nn.Linear(2, 2)
    layer(data("read", [None, 2]))
    return layer


MISTAKES = {
    "no super().__init__()": (Bare, RuntimeError, "call super"),
    "no forward": (lambda: nn.Layer()(1), NotImplementedError, "Layer has no forward"),
    "backward": (lambda: nn.Linear(2, 2).backward(), RuntimeError, "no eager mode"),
    "a layer that is none": (lambda: nn.LayerList([3]), InputError, "must be a Layer, got 3"),
    "a name with a dot": (lambda: nn.Layer().add_sublayer("a.b", nn.ReLU()), InputError, "without a dot"),
    "a taken name": (lambda: nn.Layer().add_sublayer("forward", nn.ReLU()), InputError, "has an attribute 'forward'"),
    "another type": (lambda: used_linear().to(dtype="float16"), OptionError, "static.amp.decorate"),
    "no class": (
        lambda: nn.Linear(2, 2).float16(excluded_layers=111),
        TypeError,
        "must be a class of layers or a list",
    ),
    "an unknown setting": (lambda: nn.ReLU(slope=3), OptionError, "ReLU: unknown or repeated slope; it takes none"),
    "too many settings": (lambda: nn.ReLU(3), OptionError, "ReLU takes no settings; got 1 by position"),
    "no kernel size": (nn.MaxPool2D, OptionError, "MaxPool2D needs kernel_size"),
    "groups": (lambda: nn.Conv2D(4, 6, 3, groups=4), OptionError, "4 channels and 6 filters"),
    "heads": (lambda: nn.MultiHeadAttention(8, 3), OptionError, "8 features cannot be split into 3 heads"),
    "a direction": (lambda: nn.LSTM(2, 2, direction="back"), OptionError, "direction must be"),
    "ranks": (lambda: nn.BatchNorm2D(4)(data("x", [2, 4])), InputError, "BatchNorm2D takes 4 dimensions"),
}


@pytest.mark.parametrize(("make", "kind", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def test_containers_are_what_python_has():
    layers = [nn.Linear(2, 2) for _ in range(3)]
    listed = nn.LayerList(layers)
    assert listed[-1] is layers[2]
    assert list(listed[:2]) == layers[:2]
    listed.insert(1, last := nn.ReLU())
    assert [type(layer).__name__ for layer in listed] == ["Linear", "ReLU", "Linear", "Linear"]
    del listed[1]
    listed[0] = last
    assert listed[0] is last
    assert len(listed) == 3
    named = nn.LayerDict({"a": layers[0]})
    named["b"] = layers[1]
    assert ("a" in named, list(named), named.pop("a"), len(named)) == (True, ["a", "b"], layers[0], 1)
    ordered = nn.Sequential(("first", layers[0]), ("second", nn.ReLU()))
    assert ordered["first"] is ordered[0] is layers[0]
    assert len(nn.Sequential(*layers)[1:]) == 2
    weights = nn.ParameterList([layer.weight for layer in layers])
    assert [w.name for w in weights] == [layer.weight.name for layer in layers]
    assert nn.ParameterDict({"w": layers[0].weight})["w"].name == layers[0].weight.name


class Accumulator(nn.RNNCellBase):
    """A cell of one's own: the sum of what came before, half of it forgotten at each step."""

    @property
    def state_shape(self):
        return [3]

    def forward(self, inputs, states):
        new = states * 0.5 + inputs
        return new, new


@pytest.mark.parametrize("reverse", [False, True])
def test_a_cell_of_ones_own_is_unrolled(run, reverse):
    x = np.random.default_rng(1).normal(size=(2, 4, 3)).astype(np.float32)
    lengths = np.array([4, 2])
    outputs, final = nn.RNN(Accumulator(), is_reverse=reverse)(
        data("x", [None, 4, 3]), None, data("n", [None], "int64")
    )
    got, last = run([outputs, final], x=x, n=lengths)
    wanted, state = np.zeros_like(x), np.zeros((2, 3), np.float32)
    for step in reversed(range(4)) if reverse else range(4):
        new = state * 0.5 + x[:, step]
        running = (step < lengths)[:, None]
        wanted[:, step] = np.where(running, new, 0.0)
        state = np.where(running, new, state)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    np.testing.assert_allclose(last, state, rtol=1e-6)


def test_a_transformer_has_layers_of_its_own_and_masks(run):
    net = nn.Transformer(8, 2, 2, 1, 16, dropout=0.0, normalize_before=True)
    source, target = data("s", [None, 5, 8]), data("t", [None, 3, 8])
    result = net(source, target, tgt_mask=net.generate_square_subsequent_mask(3))
    attention = nn.MultiHeadAttention(8, 2, need_weights=True)
    _, shares = attention(target, source, source, attn_mask=data("m", [None, 2, 3, 5], "int64"))
    random = np.random.default_rng(2)
    s, t = (random.normal(size=(2, n, 8)).astype(np.float32) for n in (5, 3))
    mask = np.ones((2, 2, 3, 5), np.int64)
    mask[..., 4] = 0
    got, weights = run([result, shares], s=s, t=t, m=mask)
    assert got.shape == (2, 3, 8)
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
    assert np.all(weights[..., 4] == 0)
    changed = t.copy()
    changed[:, 2] += 1.0
    (other,) = run([result], s=s, t=changed, m=mask)
    np.testing.assert_allclose(other[:, :2], got[:, :2], atol=1e-6)  # nothing sees what comes later
    assert len(net.encoder.layers) == 2
    assert len({p.name for p in net.parameters()}) == 2 * 16 + 26 + 4


def test_spectral_norm_divides_by_the_largest_singular_value(run):
    weight = np.random.default_rng(5).normal(size=(4, 3, 2)).astype(np.float32)
    norm = nn.SpectralNorm([4, 3, 2], dim=1, power_iters=50)
    (got,) = run([norm(data("w", [4, 3, 2]))], w=weight)
    largest = np.linalg.svd(weight.transpose(1, 0, 2).reshape(3, 8), compute_uv=False)[0]
    np.testing.assert_allclose(got, weight / largest, rtol=1e-4)
    assert not any(p.trainable for p in norm.parameters())


class Mixed(nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.Sequential(nn.BatchNorm1D(4))
        self.register_buffer("ones", ones([4]))
        self.register_buffer("counts", ones([4], "int64"))

    def forward(self, x):
        return self.norm(self.linear(x)) * self.ones


@pytest.mark.parametrize(
    ("change", "linear", "norm", "buffer"),
    [
        (lambda net: net.float16(), "float16", "float32", "float16"),
        (lambda net: net.bfloat16(), "bfloat16", "float32", "bfloat16"),
        (lambda net: net.float16(excluded_layers=[nn.Linear]), "float32", "float16", "float16"),
        (lambda net: net.float16(excluded_layers=nn.Linear), "float32", "float16", "float16"),
        (lambda net: net.astype("bfloat16"), "bfloat16", "bfloat16", "bfloat16"),
        (lambda net: net.to(dtype="float16"), "float16", "float16", "float16"),
        (lambda net: net.float16().float(), "float32", "float32", "float32"),
    ],
)
def test_the_type_of_a_layer_is_changed_before_its_use(change, linear, norm, buffer):
    net = Mixed()
    assert change(net) is net
    assert {p.dtype for p in net.linear.parameters()} == {linear}
    assert {p.dtype for p in net.norm.parameters()} == {norm}
    assert (net.ones.dtype, net.counts.dtype, net.norm[0]._mean.dtype) == (buffer, "int64", "float32")
    executor, scope = Executor(CPUPlace()), Scope()
    executor.run(default_startup_program(), scope=scope)
    for parameter in net.parameters():
        assert str(np.asarray(scope[parameter.name]).dtype) == parameter.dtype
    weight = np.asarray(scope[net.linear.weight.name], np.float32)
    assert 0.1 < weight.std() < 1.5


def test_a_layer_of_a_changed_type_computes_and_trains_in_it():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).float16()
    x = data("x", [None, 3], "float16")
    loss = (net(x) ** 2).mean()
    SGD(0.1, multi_precision=True).minimize(loss)
    executor, scope = Executor(CPUPlace()), Scope()
    executor.run(default_startup_program(), scope=scope)
    feed = {"x": np.random.default_rng(1).normal(size=(8, 3)).astype(np.float16)}
    losses = [float(executor.run(default_main_program(), feed, [loss], scope=scope)[0]) for _ in range(20)]
    assert losses[-1] < 0.3 * losses[0]
    assert scope[net[0].weight.name].dtype == np.float16
