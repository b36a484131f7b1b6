"""Low-rank adapters: the formula, what trains and what stays, files of their own, refusals."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import paddle
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.paddle import static

NETWORK = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[batch, 4] x) => (float[batch, 3] y)
{
    hidden = MatMul(x, up)
    active = Relu(hidden)
    middle = MatMul(active, down)
    y = Gemm <transB = 1> (middle, head, bias)
}
"""
RNG = np.random.default_rng(0)
X = RNG.standard_normal([8, 4]).astype(np.float32)
LABELS = RNG.integers(0, 3, [8, 1])


def network():
    model = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(1)
    shapes = {"up": [4, 6], "down": [6, 5], "head": [3, 5], "bias": [3]}
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


class Tuning:
    """A network with adapters, and a step that trains them."""

    def __init__(self, pattern="up|head", rank=2, level="O0", dtype="float16", steps=0, **options):
        self.scope, self.startup = static.Scope(), static.Program()
        self.startup.random_seed = 7
        with static.scope_guard(self.scope), static.program_guard(static.Program(), self.startup):
            self.main = static.from_onnx(network(), self.startup)
            self.adapters = static.add_lora(self.main, pattern, rank, startup_program=self.startup, **options)
            self.inference = self.main.clone()
            with static.program_guard(self.main, self.startup):
                labels = static.data("labels", ["batch", 1], "int64")
                loss = paddle.nn.functional.cross_entropy(self.main.var("y"), labels)
                optimizer = paddle.optimizer.Adam(0.05, multi_precision=True)
                if level != "O0":
                    optimizer = static.amp.decorate(optimizer, level=level, dtype=dtype, init_loss_scaling=128.0)
                optimizer.minimize(loss, self.startup)
            self.exe = static.Executor(paddle.CPUPlace())
            self.exe.run(self.startup)
            self.start = {name: np.array(self.scope[name]) for name in self.scope}
            if level == "O2":
                optimizer.amp_init(paddle.CPUPlace(), self.scope)
            feed = {"x": X, "labels": LABELS}
            self.losses = [self.exe.run(self.main, feed=feed, fetch_list=[loss])[0].item() for _ in range(steps)]

    def outputs(self):
        with static.scope_guard(self.scope):
            return self.exe.run(self.inference, feed={"x": X}, fetch_list=["y"])[0]


def by_formula(values, scale):
    """Return the network's output in numpy, with the pairs that `values` has."""

    def delta(name):
        if f"{name}.lora_A" not in values:
            return 0.0
        return scale * (values[f"{name}.lora_A"].astype(np.float64) @ values[f"{name}.lora_B"])

    hidden = np.maximum(X @ (values["up"] + delta("up")), 0)
    return hidden @ (values["down"] + delta("down")) @ (values["head"].T + delta("head")) + values["bias"]


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1.0), (8, 4.0)])
def test_outputs_are_those_of_the_formula(alpha, scale):
    tuned = Tuning(alpha=alpha, steps=0)
    values = dict(tuned.start)
    np.testing.assert_allclose(
        tuned.outputs(), by_formula({k: values[k] for k in ("up", "down", "head", "bias")}, 1), rtol=1e-5
    )
    for adapter in tuned.adapters:
        values[adapter.name] = tuned.scope[adapter.name] = RNG.standard_normal(adapter.shape).astype(np.float32)
    np.testing.assert_allclose(tuned.outputs(), by_formula(values, scale), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("level", "dtype"), [("O0", "float16"), ("O1", "float16"), ("O2", "float16"), ("O2", "bfloat16")]
)
def test_adapters_alone_train(level, dtype):
    tuned = Tuning(level=level, dtype=dtype, steps=25)
    assert tuned.losses[-1] < 0.7 * tuned.losses[0]
    assert [adapter.name for adapter in tuned.adapters] == ["up.lora_A", "up.lora_B", "head.lora_A", "head.lora_B"]
    for name in ("up", "down", "head", "bias"):
        start = tuned.start[name]
        np.testing.assert_array_equal(
            tuned.scope[name], start.astype(tuned.scope[name].dtype)
        )  # rounded at O2, else as it was
    for name in ("up.lora_A", "up.lora_B", "head.lora_B"):
        assert not np.array_equal(np.asarray(tuned.scope[name], np.float32), tuned.start[name])
    updated = {op.input("Param")[0] for op in tuned.main.ops if "Param" in op.input_names}
    assert updated == {adapter.name for adapter in tuned.adapters}


def test_levels_train_alike():
    exact = Tuning(steps=10).losses
    for level in ("O1", "O2"):
        np.testing.assert_allclose(Tuning(level=level, steps=10).losses, exact, rtol=0.02, atol=5e-3)


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_adapters_are_saved_apart_and_come_back(tmp_path, level):
    tuned = Tuning(level=level, steps=5)
    with static.scope_guard(tuned.scope):
        static.save_lora(tuned.main, tmp_path / "adapters")
    state = static.load_program_state(tmp_path / "adapters")
    assert sorted(state) == sorted(adapter.name for adapter in tuned.adapters)
    assert {array.dtype.name for array in state.values()} == {"float32"}
    again = Tuning(level=level, steps=0)
    static.load_lora(again.main, tmp_path / "adapters", again.scope)
    for adapter in tuned.adapters:
        np.testing.assert_array_equal(again.scope[adapter.name], tuned.scope[adapter.name])
    np.testing.assert_array_equal(again.outputs(), tuned.outputs())


def test_built_programs_and_a_weight_that_two_products_share():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        shared = paddle.nn.Linear(4, 4, bias_attr=False).weight
        twice = paddle.matmul(paddle.matmul(x, shared), shared)
        names = [v.name for v in static.add_lora(main, "linear", 1, startup_program=startup)]
    assert names == [f"{shared.name}.lora_A", f"{shared.name}.lora_B"]
    assert twice.shape == (-1, 4)
    assert [op.type for op in main.ops].count("elementwise_add") == 2


def built(make):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = static.data("x", [None, 4, 9, 9])
        y = make()(x)
        adapters = static.add_lora(main, ".", 2, startup_program=startup)
    return main, startup, y, adapters


nn = paddle.nn


def turned(rows):
    weight = paddle.create_parameter([rows, 9], "float32")
    return lambda x: paddle.matmul(x, weight, transpose_y=True)


KINDS = {
    "conv 1d": lambda: lambda x: nn.Conv1D(4, 6, 3, padding=1)(x[:, :, 0]),
    "conv 2d": lambda: nn.Conv2D(4, 6, 3, stride=2, padding=1),
    "dilated": lambda: nn.Conv2D(4, 6, 3, dilation=2, bias_attr=False),
    "same": lambda: nn.Conv2D(4, 6, [3, 5], padding="SAME"),
    "grouped": lambda: nn.Conv2D(4, 6, 3, groups=2),
    "of one pixel": lambda: nn.Conv2D(4, 6, 1),
    "linear": lambda: nn.Linear(9, 7),
    "turned": lambda: turned(7),
    "square and turned": lambda: turned(9),
    "twice": lambda: nn.Sequential(*[nn.Linear(9, 9)] * 2),
    "both": lambda: nn.Sequential(nn.Conv2D(4, 6, 3, padding=1), nn.ReLU(), nn.Linear(9, 7)),
}
IMAGES = RNG.standard_normal([2, 4, 9, 9]).astype(np.float32)


@pytest.mark.parametrize("alpha", [None, 6.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_merged_program_computes_the_same_without_pairs(kind, alpha, tmp_path):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), paddle.utils.unique_name.guard():
        y = KINDS[kind]()(static.data("x", [None, 4, 9, 9]))
        adapters = static.add_lora(main, ".", 2, alpha, startup_program=startup)
    with static.scope_guard(static.Scope()) as _:
        exe, scope = static.Executor("cpu"), static.global_scope()
        exe.run(startup)
        [start] = exe.run(main, {"x": IMAGES}, [y])
        for adapter in adapters:
            scope[adapter.name] = RNG.standard_normal(adapter.shape).astype(np.float32)
        [tuned] = exe.run(main, {"x": IMAGES}, [y])
        assert np.abs(tuned - start).max() > 0.1
        merged = static.merge_lora(main)
        assert not [name for name in merged.vars if "lora" in name]
        for program in (merged, main):  # the pair of `main` adds nothing from now on
            [value] = exe.run(program, {"x": IMAGES}, [y.name])
            np.testing.assert_allclose(value, tuned, rtol=1e-4, atol=1e-4 * np.abs(tuned).max())
        static.save_inference_model(
            str(tmp_path / "merged"), [merged.var("x")], [merged.var(y.name)], exe, program=merged
        )
    [again] = amp.Session(tmp_path / "merged.onnx").run({"x": IMAGES})
    np.testing.assert_allclose(again, tuned, rtol=1e-4, atol=1e-4 * np.abs(tuned).max())


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_s_pair_is_of_its_groups(groups):
    _, _, _, adapters = built(lambda: nn.Conv2D(4, 6, 3, groups=groups))
    assert [adapter.shape for adapter in adapters] == [(2 * groups, 4 // groups, 3, 3), (6, 2, 1, 1)]


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_merged_after_training(level):
    tuned = Tuning(level=level, steps=5)
    expected = tuned.outputs()
    with static.scope_guard(tuned.scope):
        merged = static.merge_lora(tuned.main)
        [predicted] = tuned.exe.run(merged, {"x": X, "labels": LABELS}, ["y"])
        [again] = tuned.exe.run(tuned.inference, {"x": X}, ["y"])
    assert not np.any(tuned.scope["up.lora_B"])
    tolerance = 1e-5 if level == "O0" else 1e-2
    for value in (predicted, again):
        np.testing.assert_allclose(np.asarray(value, np.float32), expected, rtol=tolerance, atol=tolerance)


def tied():
    weight = paddle.create_parameter([9, 9], "float32", name="tied")
    return lambda x: paddle.matmul(F.embedding(paddle.cast(x[:, :, 0] > 0, "int64"), weight), weight)


def both_ways():
    weight = paddle.create_parameter([9, 9], "float32", name="both")
    return lambda x: paddle.matmul(paddle.matmul(x, weight), weight, transpose_y=True)


@pytest.mark.parametrize(
    ("make", "message"), [(tied, "'tied' is read by Gather"), (both_ways, "as it is, and turned")], ids=["tied", "both"]
)
def test_what_cannot_be_merged_is_refused_and_changes_nothing(make, message):
    main, startup, _, _ = built(make)
    with static.scope_guard(static.Scope()):
        static.Executor("cpu").run(startup)
        scope = static.global_scope()
        before = {name: np.array(scope[name]) for name in main.persistables}
        with pytest.raises(InputError, match=message):
            static.merge_lora(main)
        for name, value in before.items():
            np.testing.assert_array_equal(scope[name], value)


def test_nothing_to_merge():
    with pytest.raises(InputError, match="has no adapters"):
        static.merge_lora(static.Program())
    main, _, _, _ = built(lambda: nn.Linear(9, 7))
    with static.scope_guard(static.Scope()), pytest.raises(InputError, match="run the startup program first"):
        static.merge_lora(main)


REFUSED = (
    ({"rank": 0}, OptionError, "rank must be 1 or more, got 0"),
    ({"rank": 4}, OptionError, r"rank 4 saves nothing beside 'up' of \[4, 6\]"),
    ({"pattern": "uq"}, OptionError, r"pattern 'uq' matches no product with a weight; weights of products are .*'up'"),
    ({"pattern": ["up", "none"]}, OptionError, "pattern 'none'"),
)


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_what_makes_no_sense_is_refused_and_changes_nothing(options, error, message):
    startup = static.Program()
    main = static.from_onnx(network(), startup)
    before = str(main), str(startup)
    with pytest.raises(error, match=message):
        static.add_lora(main, **{"pattern": "up", "rank": 2, "startup_program": startup, **options})
    assert (str(main), str(startup)) == before


def test_programs_and_files_without_adapters_are_named(tmp_path):
    startup = static.Program()
    main = static.from_onnx(network(), startup)
    scope = static.Scope()
    with pytest.raises(InputError, match="call add_lora first"):
        static.save_lora(main, tmp_path / "a", scope)
    with static.scope_guard(scope):
        static.Executor(paddle.CPUPlace()).run(startup)
        static.save(main, tmp_path / "base", scope)
    static.add_lora(main, "up", 2, startup_program=startup)
    with pytest.raises(InputError, match="adapters already"):
        static.add_lora(main, "up", 2, startup_program=startup)
    with pytest.raises(InputError, match="run the startup program first"):
        static.save_lora(main, tmp_path / "a", scope)
    with pytest.raises(InputError, match="holds no adapters"):
        static.load_lora(main, tmp_path / "base", scope)
