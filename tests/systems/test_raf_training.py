"""`autocast` of complete training steps by RAF's rules."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import InputError
from amp_transpiler.graph.verifier import verify
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable
from tests.support import LOW_NAMES, NUMPY, array, casts, dtypes, nodes

FORMATS = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def run(program, feed, fetch=(), scope=None):
    return static.Executor(amp.CPUPlace()).run(program, feed, list(fetch), scope=scope)


# ---- what is updated in place ----


def in_place(compute):
    """A program that replaces a persistable `x` by a function of it and of what is fed as `w`."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        main.add_persistable(Persistable("x", "state"), ir.DataType.FLOAT, [4, 4])
        main.updates["x"] = compute(main.var("x"), static.data("w", [4, 4])).name
    return main


IN_PLACE = {
    "product": (tensor.matmul, lambda x, w: x @ w),
    "sum": (lambda x, w: tensor.add(tensor.matmul(x, w), x), lambda x, w: x @ w + x),
}


@FORMATS
@pytest.mark.parametrize("out_dtype", [None, "float32"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_an_update_is_of_the_type_of_what_it_replaces(name, out_dtype, dtype):
    build, reference = IN_PLACE[name]
    program = amp.autocast(in_place(build), dtype=dtype, out_dtype=out_dtype)
    low = LOW_NAMES[dtype]
    # RAF: 4, since its function returns the shared value too, in out_dtype. Here an update is all that leaves the
    # program, in its own type: 3, x and w down and the result up. The sum reads the product's cast of x.
    assert [to for _, _, to in casts(program)] == [low, low, "FLOAT"]
    assert {of for of, _, to in casts(program) if to == low} == {"x", "w"}
    update = program.value(program.updates["x"])
    assert update.dtype == program.value("x").dtype == ir.DataType.FLOAT
    assert update.producer().op_type == "Cast"
    scope, x, w = static.Scope(), array(4, 4), array(4, 4, seed=1)
    scope["x"] = x
    for _ in range(2):
        x = reference(x, w)
        run(program, {"w": w}, scope=scope)
    assert scope["x"].dtype == np.float32
    unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    np.testing.assert_allclose(scope["x"], x, rtol=0, atol=8 * unit * np.abs(x).max())
    assert not np.array_equal(scope["x"], x), "it was computed in float32"
    assert np.array_equal(scope["x"], scope["x"].astype(NUMPY[dtype]).astype(np.float32)), "a low result, cast up"


# ---- RAF's batch_norm_infer and batch_norm_train ----

MOMENTUM, EPSILON = 0.9, 1e-5
CHANNELS = (1, 4, 1, 1)


def normalised(x, statistics, training):
    """Batch normalisation of what is stored low, computed in float64: the result, and the statistics after it."""
    mean, variance = statistics["mean"], statistics["variance"]
    if training:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        after = {
            "mean": MOMENTUM * statistics["mean"] + (1 - MOMENTUM) * mean,
            "variance": MOMENTUM * statistics["variance"] + (1 - MOMENTUM) * variance,
        }
    else:
        after = {"mean": mean, "variance": variance}
    shifted = (x - mean.reshape(CHANNELS)) / np.sqrt(variance.reshape(CHANNELS) + EPSILON)
    return shifted * statistics["scale"].reshape(CHANNELS) + statistics["bias"].reshape(CHANNELS), after


@FORMATS
@pytest.mark.parametrize("training", [False, True], ids=["batch_norm_infer", "batch_norm_train"])
def test_batch_normalisation_with_float32_statistics(training, dtype):
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [8, 4, 5, 6])
        y = static.nn.batch_norm(
            x,
            is_test=not training,
            momentum=MOMENTUM,
            epsilon=EPSILON,
            param_attr="scale",
            bias_attr="bias",
            moving_mean_name="mean",
            moving_variance_name="variance",
        )
    main.outputs = [y.name]
    program = amp.autocast(main, {"x": array(8, 4, 5, 6)}, dtype)
    low = LOW_NAMES[dtype]
    assert casts(program) == [("x", "FLOAT", low)]
    (node,) = nodes(program, "BatchNormalization")
    assert [value.dtype.name for value in node.inputs] == [low, "FLOAT", "FLOAT", "FLOAT", "FLOAT"]
    assert [value.dtype.name for value in node.outputs] == [low, "FLOAT", "FLOAT"][: len(node.outputs)]

    # Not numbers that either format holds: rounded statistics would be found out.
    values = {"scale": 1.001 + array(4, seed=1) / 7, "bias": array(4, seed=2), "mean": array(4, seed=3)}
    values["variance"] = np.abs(array(4, seed=4)) + np.float32(0.3)
    scope = static.Scope()
    for name, value in values.items():
        scope[name] = value
    batch = array(8, 4, 5, 6, scale=3.0)
    (result,) = run(program, {"x": batch}, [y.name], scope)
    assert result.dtype in (NUMPY[dtype], np.float32)
    exact = {name: value.astype(np.float64) for name, value in values.items()}
    reference, after = normalised(batch.astype(NUMPY[dtype]).astype(np.float64), exact, training)
    margin = 1e-5 * np.maximum(1, np.abs(reference))
    if training:  # normalised, scaled and shifted are results of their own, and the bias is rounded for the last
        half, bias = 2.0 ** -{"float16": 11, "bfloat16": 8}[dtype], exact["bias"].reshape(CHANNELS)
        margin += half * (2 * np.abs(reference - bias) + np.abs(bias))
    lowest, highest = ((reference + sign * margin).astype(NUMPY[dtype]).astype(np.float64) for sign in (-1, 1))
    result = result.astype(np.float64)
    assert (lowest <= result).all()
    assert (result <= highest).all()
    for name, value in after.items():
        assert scope[name].dtype == np.float32
        np.testing.assert_allclose(scope[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


# ---- whole steps ----

STEPS = 5
OPTIMIZERS = {
    "sgd": lambda: optimizer.SGD(0.1),
    "momentum": lambda: optimizer.Momentum(0.05, 0.9),
    "adamw": lambda: optimizer.AdamW(0.01, weight_decay=0.01),
}
BATCHES = [
    {"image": array(8, 1, 8, 8, seed=i), "label": np.random.default_rng(i).integers(0, 5, (8, 1))} for i in range(STEPS)
]


def network():
    image = static.data("image", [None, 1, 8, 8])
    label = static.data("label", [None, 1], "int64")
    x = F.relu(static.nn.batch_norm(static.nn.conv2d(image, 4, 3, padding=1)))
    x = F.avg_pool2d(x, kernel_size=2, stride=2)
    x = F.relu(static.nn.fc(x, 16))
    return F.cross_entropy(static.nn.fc(x, 5), label, reduction="mean")


def training_step(optimize):
    """A whole step in float32: main program, startup program, name of the loss."""
    main, startup = static.Program(), static.Program()
    startup.random_seed = 3
    with unique_name.guard(), static.program_guard(main, startup):
        loss = network()
        optimize().minimize(loss, startup)
    main.outputs = [loss.name]
    return main, startup, loss.name


def started(startup):
    scope = static.Scope()
    run(startup, {}, scope=scope)
    return scope


def train(program, loss, scope, batches=BATCHES):
    executor = static.Executor(amp.CPUPlace())
    return [float(executor.run(program, batch, [loss], scope=scope)[0]) for batch in batches]


@FORMATS
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_keeps_parameters_and_updates_in_float32(name, dtype):
    main, _, _ = training_step(OPTIMIZERS[name])
    before = (main.to_onnx().SerializeToString(deterministic=True), main.version, dict(main.updates))
    program = amp.autocast(main, BATCHES[0], dtype)
    verify(program.model, "autocast")
    onnx.checker.check_model(program.to_onnx(), full_check=True)
    assert (main.to_onnx().SerializeToString(deterministic=True), main.version, dict(main.updates)) == before

    assert program.persistables == main.persistables
    assert program.updates.keys() == main.updates.keys()
    for state in main.persistables:
        assert program.value(state).dtype == main.value(state).dtype, state
    for state, update in main.updates.items():
        assert program.value(program.updates[state]).dtype == main.value(update).dtype, state
    proto = program.to_onnx()
    inputs = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    assert {inputs[parameter.name] for parameter in main.all_parameters()} == {onnx.TensorProto.FLOAT}
    # Forward and backward products are low alike.
    products = dtypes(program, "Conv") + dtypes(program, "MatMul") + dtypes(program, "Gemm")
    assert len(products) > 3
    assert set(products) == {LOW_NAMES[dtype]}


@FORMATS
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_like_float32(name, dtype):
    main, startup, loss = training_step(OPTIMIZERS[name])
    program = amp.autocast(main, dtype=dtype)
    scope, low_scope = started(startup), started(startup)
    expected, result = train(main, loss, scope), train(program, loss, low_scope)
    np.testing.assert_allclose(result, expected, rtol={"float16": 1e-3, "bfloat16": 1e-2}[dtype])
    assert result != expected, "it was computed in float32"
    initial = started(startup)
    for parameter in main.all_parameters():
        value = low_scope[parameter.name]
        assert value.dtype == np.float32, parameter.name
    weight = main.all_parameters()[0].name
    assert not np.array_equal(low_scope[weight], initial[weight])
    stored = low_scope[weight].astype(NUMPY[dtype]).astype(np.float32)
    assert not np.array_equal(low_scope[weight], stored), "an update is of float32, not of what the low format holds"


@FORMATS
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_checkpoints_pass_between_both_programs(name, dtype, tmp_path):
    main, startup, loss = training_step(OPTIMIZERS[name])
    program = amp.autocast(main, dtype=dtype)
    scope = started(startup)
    train(main, loss, scope, BATCHES[:2])
    static.save(main, tmp_path / "fp32", scope)
    resumed = static.Scope()
    static.load(program, tmp_path / "fp32", resumed)
    assert all(np.array_equal(resumed[state], scope[state]) for state in main.persistables)
    losses = train(program, loss, resumed, BATCHES[2:4])
    static.save(program, tmp_path / "low", resumed)
    again, plain = static.Scope(), static.Scope()
    static.load(program, tmp_path / "low", again)
    assert train(program, loss, again, BATCHES[4:]) == train(program, loss, resumed, BATCHES[4:])
    static.load(main, tmp_path / "low", plain)
    assert train(main, loss, plain, BATCHES[4:])[0] == pytest.approx(
        train(main, loss, scope, BATCHES[2:])[-1], rel=0.01
    )
    assert np.isfinite(losses).all()


def test_both_programs_can_share_a_scope():
    main, startup, loss = training_step(OPTIMIZERS["sgd"])
    program, scope = amp.autocast(main), started(startup)
    (first,) = train(program, loss, scope, BATCHES[:1])
    (second,) = train(main, loss, scope, BATCHES[:1])
    assert second < first, "the float32 program goes on from what the other one learnt"


def test_the_loss_takes_out_dtype_and_updates_do_not():
    main = in_place(tensor.matmul)
    with static.program_guard(main, static.Program()):
        product = tensor.matmul(main.var("w"), main.var("w"))
    main.outputs = [product.name]
    narrow, wide = amp.autocast(main), amp.autocast(main, out_dtype="float32")
    assert narrow.value(product.name).dtype == ir.DataType.FLOAT16, "fetches come as computed"
    assert wide.value(product.name).dtype == ir.DataType.FLOAT
    for program in (narrow, wide):
        assert program.value(program.updates["x"]).dtype == ir.DataType.FLOAT


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"image": BATCHES[0]["image"]}, "args: missing input 'label'"),
        ({**BATCHES[0], "conv2d_0.w_0": array(4, 1, 3, 3)}, "args: unknown input 'conv2d_0.w_0'"),
        ([*BATCHES[0].values(), array(1)], "got 3 arrays, the program has 2 inputs: image, label"),
        ([BATCHES[0]["image"][..., :7], BATCHES[0]["label"]], "args: input 'image' has the wrong shape"),
    ],
)
def test_args_are_the_feeds_not_the_parameters(args, message):
    main, _, _ = training_step(OPTIMIZERS["sgd"])
    with pytest.raises(InputError, match=message):
        amp.autocast(main, args)
    assert amp.autocast(main, list(BATCHES[0].values())).to_onnx() == amp.autocast(main).to_onnx()


def test_a_custom_rule_reaches_the_backward_pass():
    main, _, _ = training_step(OPTIMIZERS["sgd"])
    with amp.CustomTypeHint({"MatMul": lambda _node, inputs, _low: [None] * len(inputs)}):
        program = amp.autocast(main)
    assert set(dtypes(program, "MatMul")) == {"FLOAT"}
    assert set(dtypes(program, "Conv")) == {"FLOAT16"}
