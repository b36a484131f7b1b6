"""PyTorch's autocast and GradScaler: a test a cell of the feature table's column "PyTorch"."""

import collections

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.utils import unique_name
from tests.paddle import nets
from tests.support import (
    array,
    assert_valid,
    casts,
    constant,
    dtype_of,
    dtypes,
    nodes,
    parse,
    relative,
    run,
    run_emulated,
)
from tests.systems.feature_table import cell

PRODUCT = "(float[4,4] x, float[4,4] w) => (float[4,4] y)"
X, W = array(4, 4), array(4, 4, seed=1, scale=0.5)
GOOD, BAD = 1.0, 60000.0  # times the weight, BAD leaves float16


def converted(body, head=PRODUCT, *, opset=20, weights=None, **options):
    """The program that `policy="torch"` makes of a graph; it must be valid."""
    model = parse(f"{head} {{ {body} }}", opset=opset, **(weights or {}))
    program = amp.transpile(model, policy="torch", verify=False, **options).program
    assert_valid(program)
    return program


def down(program):
    """The names of the values that are cast to float16, sorted."""
    return sorted(name for name, _, to in casts(program) if to == "FLOAT16")


def scaled(**decorated):
    """A small net with PyTorch's rules and loss scaling, ready to train."""
    return nets.one_layer(optimizer.Momentum(0.01, 0.9), policy="torch", scaler="torch", **decorated)


def scale_and_tracker(net):
    state = net.optimizer.state_dict(net.scope)
    return state["scale"], state["_growth_tracker"]


@cell("form", "PyTorch")
def test_types_are_those_that_torch_gives_at_run_time():
    """The autocast demo; torch decides when an operator is called, we once, in the file."""
    program = converted("h = MatMul (x, w) y = Add (x, w)", PRODUCT.replace("=> (", "=> (float[4,4] h, "))
    assert (dtypes(program, "MatMul"), dtypes(program, "Add")) == (["FLOAT16"], ["FLOAT"])
    assert down(program) == ["w", "x"]


@cell("low dtypes", "PyTorch")
@pytest.mark.parametrize(("dtype", "name"), [("float16", "FLOAT16"), ("bfloat16", "BFLOAT16")])
def test_both_low_formats(dtype, name):
    program = converted("h = MatMul (x, w) y = Relu (h)", dtype=dtype)
    assert dtypes(program, "MatMul") == dtypes(program, "Relu") == [name]
    assert relative(np.maximum(X @ W, 0), run_emulated(program, {"x": X, "w": W})["y"]) < 0.02


@cell("list mode", "PyTorch")
@pytest.mark.parametrize(("second", "scatter"), [("h", "FLOAT16"), ("s", "FLOAT")])
def test_lower_precision_fp32_and_promote(second, scatter):
    program = converted(
        f'h = MatMul (x, w) s = Softmax (h) y = ScatterElements <reduction = "add"> (h, at, {second})',
        "(float[4,4] x, float[4,4] w, int64[4,4] at) => (float[4,4] y, float[4,4] s)",
    )
    types_of = [dtypes(program, op) for op in ("MatMul", "Softmax", "ScatterElements")]
    assert types_of == [["FLOAT16"], ["FLOAT"], [scatter]]


@cell("pure mode", "PyTorch")
def test_half_is_another_door_than_autocast():
    """`model.half()` is a call of its own in torch; here it is level O2 without float32 inputs and outputs."""
    model = parse("(float[4,4] x) => (float[4,4] y) { h = MatMul (x, w) y = Relu (h) }", w=W)
    program = amp.transpile(model, level="O2", keep_io_types=False).program
    assert casts(program) == []
    assert [dtype_of(program, name) for name in ("x", "y")] == ["FLOAT16", "FLOAT16"]
    assert constant(program, "w").dtype == np.float16
    with pytest.raises(OptionError, match="level O2 is Paddle's"):
        amp.transpile(model, policy="torch", level="O2")


@cell("unlisted op", "PyTorch")
@pytest.mark.parametrize(
    ("call", "expected"),
    [("Relu (h)", "FLOAT16"), ("Relu (x)", "FLOAT"), ("Sub (h, h)", "FLOAT16"), ("Sub (h, x)", "FLOAT")],
)
def test_an_operator_on_no_list_follows_or_promotes(call, expected):
    program = converted(f"h = MatMul (x, w) y = {call}", PRODUCT.replace("=> (", "=> (float[4,4] h, "))
    assert dtypes(program, call.split()[0]) == [expected]


@cell("gray/promotion rule", "PyTorch")
def test_promotion_is_to_the_widest_type():
    """A float32 value stays exact beside a low input."""
    program = converted("h = MatMul (x, w) y = Max (h, z)", PRODUCT.replace(") =>", ", float[4,4] z) =>"))
    z = np.full((4, 4), 70001.25, np.float32)
    np.testing.assert_array_equal(run_emulated(program, {"x": X, "w": W, "z": z})["y"], z)
    assert dtypes(program, "Max") == ["FLOAT"]


@cell("per-op override", "PyTorch")
def test_a_function_of_the_users_has_its_own_precision_forward_and_backward():
    """`custom_fwd` and `custom_bwd`: a function under `disable_amp` is float32, its gradient too.

    ONNX has no functions of the user's own with a backward pass, so it is built under the decorator, not marked later.
    """

    @amp.disable_amp()
    def exact(x):
        return static.nn.fc(x, 4)

    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        h = exact(static.nn.fc(static.data("x", [None, 4]), 4))
        loss = tensor.mean(h * h)
        amp.decorate(optimizer.SGD(0.1), policy="torch", scaler="torch").minimize(loss, startup)
    reads = collections.Counter(node.inputs[0].dtype.name for node in nodes(main, "MatMul"))
    # The function: product, gradient of its input and of its weight; the other layer's input needs no gradient.
    assert reads == {"FLOAT": 3, "FLOAT16": 2}


@cell("per-op override", "PyTorch")
def test_an_operator_takes_another_class_from_the_users_lists():
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Exp"], custom_black_list=["MatMul"])
    program = converted("h = MatMul (x, w) y = Exp (h)", amp_lists=lists)
    assert (dtypes(program, "MatMul"), dtypes(program, "Exp")) == (["FLOAT"], ["FLOAT16"])


@cell("per-tensor override", "PyTorch")
@cell("user cast", "PyTorch")
def test_a_cast_of_the_users_decides_what_follows():
    program = converted("h = MatMul (x, w) up = Cast <to = 1> (h) y = Relu (up)")
    assert dtypes(program, "Relu") == ["FLOAT"]
    program = converted(
        "low = Cast <to = 10> (x) a = Relu (low) y = Cast <to = 1> (a)", "(float[4,4] x) => (float[4,4] y)"
    )
    assert dtypes(program, "Relu") == ["FLOAT16"]
    assert len(casts(program)) == 2


@cell("per-node override", "PyTorch")
def test_a_region_without_autocast():
    """`autocast(enabled=False)` wants its inputs cast by the user; here they come as the region was written."""
    program = converted("h = MatMul (x, w) [off] g = MatMul (h, w) y = MatMul (g, w)", disable_amp=["^off$"])
    assert dtypes(program, "MatMul") == ["FLOAT16", "FLOAT", "FLOAT16"]


@cell("param storage", "PyTorch")
@cell("master weights", "PyTorch")
@cell("master grads", "PyTorch")
def test_parameters_and_their_gradients_are_float32_and_no_masters_are_needed():
    """An update too small for float16 arrives. A model for inference differs: its constants become low in the file."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        h = static.nn.fc(static.data("x", [None, 4]), 4)
        wrapped = amp.decorate(optimizer.SGD(1e-6), policy="torch", scaler="torch", init_loss_scaling=64.0)
        _, pairs = wrapped.minimize(tensor.mean(h * h), startup)
    assert {main.value(variable.name).dtype.name for pair in pairs for variable in pair} == {"FLOAT"}
    assert wrapped.master_weights == {}
    net = nets.Net(main, startup, None, wrapped).start()
    weight = next(parameter.name for parameter, _ in pairs if parameter.shape == (4, 4))
    net.scope[weight] = before = np.full((4, 4), 0.5, np.float32)
    net.step({"x": X}, [])
    after = np.array(net.scope[weight])
    assert (weight, "FLOAT", "FLOAT16") in casts(main)
    assert after.dtype == np.float32
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(after.astype(np.float16), before.astype(np.float16))
    inference = converted("y = MatMul (x, w)", "(float[4,4] x) => (float[4,4] y)", weights={"w": W})
    assert constant(inference, "w").dtype == np.float16


@cell("shared param", "PyTorch")
@cell("cast dedup", "PyTorch")
def test_a_weight_that_products_share_is_cast_once():
    """PyTorch's weight cache; without it torch casts three times. Here activations are cast once as well."""
    program = converted("a = MatMul (x, w) b = MatMul (a, w) c = MatMul (x, w) y = Sub (b, c)")
    assert down(program) == ["w", "x"]


NORM = {"s": array(4, low=0.5), "b": array(4, seed=1), "m": array(4, seed=2), "v": array(4, seed=3, low=0.5)}


@cell("norm params", "PyTorch")
def test_parameters_of_normalisations():
    """A layer norm is float32; torch's batch norm has float32 parameters beside low data, CUDA's kernel has not."""
    program = converted("h = MatMul (x, w) y = LayerNormalization (h, s)", weights={"s": NORM["s"]})
    assert [value.dtype.name for value in nodes(program, "LayerNormalization")[0].inputs] == ["FLOAT"] * 2
    program = converted(
        "h = Conv (x, k) r = Relu (h) y = BatchNormalization (r, s, b, m, v)",
        "(float[1,4,2,2] x, float[4,4,1,1] k) => (float[1,4,2,2] y)",
        weights=NORM,
    )
    assert {value.dtype.name for value in nodes(program, "BatchNormalization")[0].inputs} == {"FLOAT16"}


@cell("graph output dtype", "PyTorch")
@cell("graph input dtype", "PyTorch")
def test_outputs_come_as_they_result_and_inputs_stay():
    """Outputs are float32 again unless told otherwise, so that the file keeps its interface; torch leaves them low."""
    for keep, expected in ((True, "FLOAT"), (["x", "w"], "FLOAT16")):
        program = converted("y = MatMul (x, w)", keep_io_types=keep)
        assert [dtype_of(program, name) for name in ("x", "w", "y")] == ["FLOAT", "FLOAT", expected]


@cell("control flow", "PyTorch")
@pytest.mark.parametrize(("flag", "expected"), [(True, X @ W @ W), (False, np.exp(X @ W))])
def test_the_branch_that_runs_is_mixed(flag, expected):
    """Torch sees the branch that is taken alone; here both are converted."""
    program = converted(
        """h = MatMul (x, w) y = If (c) <then_branch = t () => (float[4,4] a) { a = MatMul (h, w) },
        else_branch = e () => (float[4,4] b) { b = Exp (h) }>""",
        PRODUCT.replace("(float", "(bool c, float", 1),
    )
    assert (dtypes(program, "MatMul"), dtypes(program, "Exp")) == (["FLOAT16", "FLOAT16"], ["FLOAT"])
    assert relative(expected, run_emulated(program, {"c": np.array(flag), "x": X, "w": W})["y"]) < 0.02


@cell("int/double tensors", "PyTorch")
def test_integers_are_untouched_and_doubles_ignored():
    program = converted(
        "y = MatMul (x, x) j = MatMulInteger (i, i)",
        "(double[4,4] x, uint8[4,4] i) => (double[4,4] y, int32[4,4] j)",
    )
    assert casts(program) == []


@cell("loss scale start", "PyTorch")
def test_the_scale_starts_at_65536():
    net = scaled()
    loss, times = net.run(GOOD, [net.loss, net.optimizer.get_scaled_loss()])
    np.testing.assert_array_equal(times, loss * 65536)


@cell("grow / every", "PyTorch")
def test_the_scale_doubles_after_2000_good_steps():
    net = scaled()
    state = net.optimizer.state_dict(net.scope)
    net.optimizer.load_state_dict({**state, "scale": 64.0, "_growth_tracker": 1998}, net.scope)
    scales = []
    for _ in range(3):
        net.run(GOOD)
        scales.append(scale_and_tracker(net))
    assert scales == [(64.0, 1999), (128.0, 0), (128.0, 1)]


@cell("shrink / after", "PyTorch")
@cell("on overflow", "PyTorch")
def test_every_bad_step_halves_the_scale_and_is_skipped():
    """Below 1 too: there is no floor. Velocity and weight stay as they are."""
    net = scaled(init_loss_scaling=1.0)
    net.run(GOOD)
    before, scales = net.state(), []
    for _ in range(2):
        net.run(BAD)
        scales.append(scale_and_tracker(net))
    assert scales == [(0.5, 0), (0.25, 0)]
    after = net.state()
    states = {name for name in before if "loss_scaling" not in name and "num_good_steps" not in name}
    assert any("velocity" in name for name in states)
    assert [name for name in states if not np.array_equal(before[name], after[name])] == []
    net.run(GOOD)
    assert not np.array_equal(net.scope["w"], after["w"])


@cell("bf16 scaling", "PyTorch")
def test_bfloat16_is_not_scaled_unless_asked():
    net = scaled(dtype="bfloat16")
    assert net.optimizer.state_dict(net.scope) == {}
    before = np.array(net.scope["w"])
    net.run(GOOD)
    assert not np.array_equal(net.scope["w"], before)
    net = scaled(dtype="bfloat16", init_loss_scaling=8.0)
    loss, times = net.run(GOOD, [net.loss, net.optimizer.get_scaled_loss()])
    np.testing.assert_array_equal(times, loss * 8)


BITWISE = {
    # operator: (call, inputs x and w, output)
    "MatMul": ("MatMul ({0}, {1})", "float[4,4] x, float[4,4] w", "float[4,4]", (X, W)),
    "Gemm": ("Gemm <transB = 1> ({0}, {1})", "float[4,4] x, float[4,4] w", "float[4,4]", (X, W)),
    "Einsum": ('Einsum <equation = "ij,kj->ik"> ({0}, {1})', "float[4,4] x, float[4,4] w", "float[4,4]", (X, W)),
    "Conv": (
        "Conv ({0}, {1})",
        "float[1,4,4,4] x, float[2,4,3,3] w",
        "float[1,2,2,2]",
        (array(1, 4, 4, 4), array(2, 4, 3, 3, seed=1)),
    ),
}


@cell("accuracy bar in own tests", "PyTorch")
@pytest.mark.parametrize("name", BITWISE)
def test_a_low_operator_equals_casts_by_hand_bit_for_bit(name):
    call, inputs, out, arrays = BITWISE[name]
    head, feeds = f"({inputs}) => ({out} y)", dict(zip("xw", arrays, strict=True))
    program = converted(f"y = {call.format('x', 'w')}", head)
    by_hand = f"a = Cast <to = 10> (x) b = Cast <to = 10> (w) h = {call.format('a', 'b')} y = Cast <to = 1> (h)"
    control = amp.load(parse(f"{head} {{ {by_hand} }}", opset=20))
    result = run_emulated(program, feeds)["y"]
    np.testing.assert_array_equal(result, run_emulated(control, feeds)["y"])
    exact = run(parse(f"{head} {{ y = {call.format('x', 'w')} }}", opset=20), feeds)["y"]
    assert not np.array_equal(result, exact), "nothing was rounded"
