"""The cells of the feature table that say what Paddle's static AMP does, one small test each."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import amp_transpiler as amp
from amp_transpiler import debugging, optimizer, static
from amp_transpiler.cli.command import main as command
from tests import support
from tests.paddle import nets, text_nets
from tests.support import array, chain, parse
from tests.systems.feature_table import cell

PADDLE = "Paddle static"
SQUARE = array(4, 4, scale=0.4)
OLD, NEW = {"use_pure_fp16": True}, {"level": "O2"}  # keywords that choose the overload of PR 29544, and the later one
GOOD, BAD = 1.0, 60000.0  # feeds of `nets.one_layer`: BAD overflows float16


def cast(model, **options):
    """The model after `cast_model_to_fp16`, as a program."""
    program = amp.load(model)
    amp.cast_model_to_fp16(program, **options)
    support.assert_valid(program)
    return program


def low(program, dtype="FLOAT16"):
    """Names of the nodes that give `dtype`, casts left out."""
    return {n.name for n in support.nodes(program) if n.op_type != "Cast" and n.outputs[0].dtype.name == dtype}


def trained(text, *, inner=None, target=(None, 4), trainer=text_nets.trainer, weights=None, **decorated):
    """A started net that learns `y` from ONNX text."""
    inner = optimizer.AdamW(0.01) if inner is None else inner
    return trainer(inner, text, {"w": SQUARE} if weights is None else weights, target=target, **decorated)


def started(inner=None, **decorated):
    """A started `nets.one_layer` whose first scale is no overflow by itself."""
    inner = optimizer.SGD(2.0**-4, multi_precision=True) if inner is None else inner
    return nets.one_layer(inner, **{"init_loss_scaling": 64.0, **decorated})


def scale_of(net):
    return net.scope[net.scale_name].item()


# ---- what is rewritten ----


@cell("form", PADDLE)
def test_the_result_is_a_program_that_onnx_runtime_loads_by_itself(tmp_path):
    model = chain("MatMul({}, w)", "Relu({})", "Exp({})", w=SQUARE)
    amp.save(cast(model, level="O1"), tmp_path / "low.onnx")
    written = onnx.load(tmp_path / "low.onnx")
    assert [n.op_type for n in written.graph.node if n.op_type != "Cast"] == ["MatMul", "Relu", "Exp"]
    assert {n.domain for n in written.graph.node} == {""}
    session = ort.InferenceSession(tmp_path / "low.onnx", providers=["CPUExecutionProvider"])
    x = array(2, 4)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], support.run(model, {"x": x})["y"], rtol=2e-2)


@cell("low dtypes", PADDLE)
@pytest.mark.parametrize(("dtype", "name"), [("float16", "FLOAT16"), ("bfloat16", "BFLOAT16")])
def test_low_is_float16_or_bfloat16(dtype, name):
    model = chain("MatMul({}, w)", w=SQUARE)
    assert low(cast(model, dest_type=dtype), name) == {"y"}
    with pytest.raises(ValueError, match=r"float16.*bfloat16"):
        cast(model, dest_type="float64")


LISTED = chain("MatMul({}, w)", "Relu({})", "Exp({})", "Relu({})", w=SQUARE)  # v1 white, v2 gray, v3 black, y gray


@cell("list mode", PADDLE)
def test_o1_goes_by_white_gray_and_black():
    program = cast(LISTED, level="O1")
    assert low(program) == {"v1", "v2"}
    assert ("v2", "FLOAT16", "FLOAT") in support.casts(program)


@cell("pure mode", PADDLE)
@pytest.mark.parametrize("pure", [OLD, NEW])
def test_pure_mode_is_low_throughout(pure):
    assert low(cast(LISTED, level="O2")) == {"v1", "v2", "v3", "y"}
    text = "(float[n,4] x) => (float[n,4] y) { [m] m = MatMul (x, w) [e] y = Exp (m) }"
    net = trained(text, **pure)
    assert [text_nets.kind(net, name) for name in "me"] == ["FLOAT16"] * 2
    assert net.scope["w"].dtype == np.float16


@cell("white-only mode", PADDLE)
def test_od_lowers_white_operators_alone():
    assert low(cast(LISTED, level="OD")) == {"v1"}


@cell("unlisted op", PADDLE)
def test_unlisted_is_fp32_at_o1_and_low_at_o2_where_there_is_a_kernel():
    """Sqrt and Asinh are on no list; ONNX Runtime's CUDA provider computes Sqrt in float16 and Asinh not."""
    model = chain("MatMul({}, w)", "Sqrt({})", "Asinh({})", w=SQUARE)
    assert low(cast(model, level="O1")) == {"v1"}
    assert low(cast(model, level="O2")) == {"v1", "v2"}


@cell("gray/promotion rule", PADDLE)
@pytest.mark.parametrize("order", ["{0}, {1}", "{1}, {0}"])
@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [("black", "white", False), ("white", "z", True), ("black", "z", False), ("x", "z", False)],
)
def test_a_black_producer_wins_else_a_white_one(left, right, expected, order):
    """As the document says, whatever the order; a producer is no graph input. V2's code lets the last one win."""
    text = f"""(float[2,4] x, float[2,4] z) => (float[2,4] y, float[2,4] b, float[2,4] c) {{
        [white] white = MatMul (x, w) [black] black = Exp (x)
        [gray] y = Add ({order.format(left, right)}) [l] b = Log (black) [m] c = Exp (white)
    }}"""
    assert ("gray" in low(cast(parse(text, w=SQUARE), level="O1"))) is expected


# ---- what the user overrides ----


@cell("per-op override", PADDLE)
def test_custom_lists_move_operators():
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Exp"], custom_black_list=["matmul_v2"])
    assert low(cast(LISTED, amp_lists=lists, level="O1")) == {"v3", "y"}


@cell("per-tensor override", PADDLE)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_black_variables_keep_who_reads_or_writes_them(level):
    model = chain("MatMul({}, w)", "MatMul({}, w)", "MatMul({}, w)", "MatMul({}, w)", w=SQUARE)
    lists = amp.AutoMixedPrecisionLists(custom_black_varnames=["v2"])
    assert low(cast(model, amp_lists=lists, level=level)) == {"v1", "y"}


@cell("per-node override", PADDLE)
def test_only_what_is_built_inside_the_guard_is_low():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        outside = static.nn.fc(static.data("x", [None, 4]), size=4)
        with static.amp.fp16_guard():
            inside = static.nn.fc(outside, size=4)
        loss = text_nets.squared_error(main, inside, static.data("target", [None, 4]))
        static.amp.decorate(optimizer.SGD(0.1, multi_precision=True), use_pure_fp16=True).minimize(loss, startup)
    assert (outside.dtype, inside.dtype) == ("float32", "float16")
    assert [parameter.dtype for parameter in main.all_parameters()] == ["float32"] * 2 + ["float16"] * 2


@cell("list conflict", PADDLE)
def test_an_operator_on_both_lists_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="Exp"):
        amp.AutoMixedPrecisionLists(custom_white_list=["Exp", "Log"], custom_black_list=["exp"])
    onnx.save(LISTED, tmp_path / "m.onnx")
    assert command([str(tmp_path / "m.onnx"), "--white", "Exp", "--black", "Exp", "-q"]) == 2


# ---- parameters ----

LINEAR = "(float[n,4] x) => (float[n,4] y) { [m] y = MatMul (x, w) }"


@cell("param storage", PADDLE)
@pytest.mark.parametrize(("level", "dtype", "masters"), [("O1", np.float32, []), ("O2", np.float16, ["w"])])
def test_parameters_are_fp32_at_o1_and_low_with_masters_at_o2(level, dtype, masters):
    net = trained(LINEAR, level=level)
    assert text_nets.kind(net, "m") == "FLOAT16"
    assert net.scope["w"].dtype == dtype
    assert list(net.optimizer.master_weights) == masters
    assert all(net.scope[name].dtype == np.float32 for name in net.optimizer.master_weights.values())


@cell("shared param", PADDLE)
@pytest.mark.parametrize(("black", "dtype"), [([], np.float16), (["Gemm"], np.float32)])
def test_one_reader_that_demands_fp32_keeps_a_shared_parameter(black, dtype):
    text = "(float[n,4] x) => (float[n,4] y) { [m] m = MatMul (x, w) [g] y = Gemm (m, w) }"
    net = trained(text, level="O2", amp_lists=amp.AutoMixedPrecisionLists(custom_black_list=black))
    assert text_nets.kind(net, "m") == "FLOAT16"
    assert net.scope["w"].dtype == dtype


@cell("norm params", PADDLE)
@pytest.mark.parametrize("norm", ["BatchNormalization", "LayerNormalization", "InstanceNormalization"])
def test_parameters_of_normalisations_stay_fp32(norm):
    """ONNX types LayerNormalization's and InstanceNormalization's scale as their input: stored fp32, cast when read."""
    statistics = ", mean, var" if norm == "BatchNormalization" else ""
    text = f"""(float[n,4,4] x) => (float[n,4,4] y) {{
        m = MatMul (x, w) [norm] k = {norm} (m, s, b{statistics}) y = MatMul (k, v)
    }}"""
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    weights = {"w": SQUARE, "v": SQUARE.copy(), "s": ones, "b": zeros}
    weights |= {"mean": zeros, "var": ones} if statistics else {}
    net = trained(text, weights=weights, target=(None, 4, 4), level="O2")
    assert {name: net.scope[name].dtype.name for name in "wvsb"} == {
        "w": "float16",
        "v": "float16",
        "s": "float32",
        "b": "float32",
    }
    assert text_nets.kind(net, "norm") == "FLOAT16"


# ---- casts, inputs and outputs ----


@cell("cast dedup", PADDLE)
def test_a_tensor_is_cast_once_for_its_block_and_the_blocks_inside():
    text = """(float[2,4] x, bool c) => (float[2,4] y, float[2,4] z) {
        [a] y = MatMul (x, w)
        [if] z = If (c) <then_branch = t () => (float[2,4] p) { [b] p = MatMul (x, v) },
                         else_branch = e () => (float[2,4] q) { [d] q = MatMul (x, w) }>
    }"""
    program = cast(parse(text, w=SQUARE, v=array(4, 4, seed=1)), level="O1")
    assert low(program) >= {"a", "b", "d"}
    assert [row for row in support.casts(program) if row[0] == "x"] == [("x", "FLOAT", "FLOAT16")]


@cell("graph output dtype", PADDLE)
def test_outputs_come_as_computed_and_the_loss_in_fp32():
    """In a training program; here a loaded model keeps the types of its outputs, unless it is told not to."""
    net = trained(LINEAR, level="O2", init_loss_scaling=64.0)
    feed = {"x": array(2, 4), "target": array(2, 4, seed=1)}
    predicted, loss = net.step(feed, ["y", net.optimizer.get_scaled_loss()])
    assert (predicted.dtype, loss.dtype) == (np.float16, np.float32)
    model = chain("MatMul({}, w)", w=SQUARE)
    for options, expected in (({}, "FLOAT"), ({"keep_io_types": ["x"]}, "FLOAT16")):
        assert support.dtype_of(amp.transpile(model, level="O2", **options).program, "y") == expected


@cell("graph input dtype", PADDLE)
def test_inputs_keep_their_type_unless_told_otherwise():
    """V1's pure mode flipped inputs by itself; here that is `keep_io_types`."""
    model = chain("MatMul({}, w)", w=SQUARE)
    for options, expected in (({}, "FLOAT"), ({"keep_io_types": ["y"]}, "FLOAT16")):
        program = amp.transpile(model, level="O2", **options).program
        assert support.dtype_of(program, "x") == expected
        assert low(program) == {"y"}


@cell("control flow", PADDLE)
def test_bodies_are_decided_node_by_node():
    text = """(float[2,4] x, int64 n, bool c) => (float[2,4] y) {
        y = Loop (n, c, x) <body = b (int64 i, bool k, float[2,4] a) => (bool k2, float[2,4] a2) {
            k2 = Identity (k) [white] p = MatMul (a, w) [black] q = Exp (p) [last] a2 = MatMul (q, w)
        }>
    }"""
    model = parse(text, w=SQUARE)
    program = cast(model, level="O1")
    assert {"white", "last"} <= low(program)
    assert "black" not in low(program)
    feeds = {"x": array(2, 4), "n": np.array(2), "c": np.array(True)}
    support.assert_close(support.run(model, feeds), support.run_emulated(program, feeds), support.LIMITS["float16"])


@cell("int/double tensors", PADDLE)
def test_integers_and_doubles_are_untouched():
    text = """(float[2,4] x, double[2,4] d, int64[2,4] i) => (float[2,4] y, double[2,4] e, int64[2,4] j) {
        [low] y = MatMul (x, w) [double] e = Add (d, v) [int] j = Add (i, k)
    }"""
    weights = {"w": SQUARE, "v": np.full(4, 1e300), "k": np.full(4, 2**40)}
    program = cast(parse(text, **weights), level="O2")
    dtypes = {node.name: node.outputs[0].dtype.name for node in support.nodes(program) if node.op_type != "Cast"}
    assert dtypes == {"low": "FLOAT16", "double": "DOUBLE", "int": "INT64"}
    assert {to for _, _, to in support.casts(program)} == {"FLOAT16", "FLOAT"}
    for name in "vk":
        np.testing.assert_array_equal(support.constant(program, name), weights[name])


@cell("user cast", PADDLE)
def test_casts_that_the_user_wrote_stay_what_they_are():
    text = """(float[2,4] x) => (float[2,4] y, float16[2,4] z) {
        [a] a = MatMul (x, w) [up] b = Cast <to = 1> (a) [black] c = Exp (b) [down] d = Cast <to = 10> (c)
        [h] z = Relu (d) [last] y = Log (c)
    }"""
    program = cast(parse(text, w=SQUARE), level="O1")
    by_name = {node.name: node for node in support.nodes(program)}
    types = {name: (by_name[name].inputs[0].dtype.name, by_name[name].outputs[0].dtype.name) for name in ("up", "down")}
    assert types == {"up": ("FLOAT16", "FLOAT"), "down": ("FLOAT", "FLOAT16")}
    assert low(program) == {"a", "h"}


# ---- master weights and gradients ----


@cell("master weights", PADDLE)
@pytest.mark.parametrize("precise", [False, True])
def test_multi_precision_keeps_an_fp32_master(precise):
    """2**-14 is under half a step of float16 below 0.5: the update is lost unless a master holds it."""
    net = started(optimizer.SGD(2.0**-12, multi_precision=precise), **OLD)
    net.run(GOOD, factor=0.5)  # the gradient is 0.5 * 2 * (2 - 1) / outputs
    if not precise:
        assert not net.optimizer.master_weights
        assert (net.scope["w"] == 0.5).all()
        return
    assert net.master.startswith("w_fp32_master")
    master = net.scope[net.master]
    assert master.dtype == np.float32
    np.testing.assert_array_equal(master, np.float32(0.5 - 2.0**-14))
    np.testing.assert_array_equal(net.scope["w"], master.astype(np.float16))


@cell("master grads", PADDLE)
@pytest.mark.parametrize("given", [False, True])
def test_master_grad_unscales_in_fp32(given):
    """A gradient of 2**-27 is 2**-15 when it is scaled; unscaled, only float32 holds it, whether asked or not."""
    sgd = optimizer.SGD(2.0**10, multi_precision=True)
    net = started(sgd, **NEW, master_grad=given, use_amp_guard=True, init_loss_scaling=2.0**12)
    before = net.scope[net.master].copy()
    net.run(GOOD, factor=2.0**-26)
    assert (net.scope[net.master] != before).all()


# ---- the loss scale ----


@cell("loss scale start", PADDLE)
@pytest.mark.parametrize(("overload", "expected"), [(OLD, 2.0**15), (NEW, 2.0**16), ({}, 2.0**16)])
def test_the_scale_starts_where_the_overload_says(overload, expected):
    assert scale_of(nets.one_layer(optimizer.SGD(0.1, multi_precision=True), **overload)) == expected


@cell("grow / every", PADDLE)
@pytest.mark.parametrize(("overload", "every"), [(OLD, 1000), (NEW, 2000)])
def test_the_scale_doubles_after_so_many_good_steps(overload, every):
    net = started(**overload)
    state = net.optimizer.state_dict(net.scope)
    net.optimizer.load_state_dict({**state, "_growth_tracker": every - 2}, net.scope)
    scales = []
    for _ in range(2):
        net.run(GOOD)
        scales.append(scale_of(net))
    assert scales == [64.0, 128.0]
    assert net.optimizer.state_dict(net.scope)["_growth_tracker"] == 0


@cell("shrink / after", PADDLE)
@pytest.mark.parametrize(
    ("overload", "expected"), [(OLD, [64, 64, 64, 51.2, 51.2]), (NEW, [32, 32, 16, 8, 4])], ids=["old", "new"]
)
def test_the_scale_shrinks_after_so_many_bad_steps_in_a_row(overload, expected):
    net = started(**overload)
    scales = []
    for x in (BAD, GOOD, BAD, BAD, BAD):
        net.run(x)
        scales.append(scale_of(net))
    np.testing.assert_allclose(scales, expected, rtol=1e-6)


@cell("floor", PADDLE)
def test_the_scale_does_not_fall_below_one():
    net = started(**NEW, init_loss_scaling=1.5)
    for _ in range(3):
        net.run(BAD)
    assert scale_of(net) == 1.0


@cell("on overflow", PADDLE)
def test_a_step_that_overflows_has_zero_gradients_and_adam_skips_it():
    for adam in (optimizer.Adam(0.01), optimizer.AdamW(0.01, weight_decay=0.5)):
        net = started(adam, **NEW)
        net.run(GOOD)
        before = net.state()
        net.run(BAD)
        moved = {name for name, value in net.state().items() if not np.array_equal(value, before[name])}
        assert net.scale_name in moved
        assert moved <= net.scaling_names()
    net = started(optimizer.SGD(0.125, weight_decay=0.5), **NEW)
    net.run(BAD)
    np.testing.assert_allclose(net.scope[net.master], 0.5 * (1 - 0.125 * 0.5), rtol=1e-6)  # decay of w = 0.5 alone


@cell("bf16 scaling", PADDLE)
@pytest.mark.parametrize("overload", [{"use_bf16": True, "use_pure_fp16": True}, {**NEW, "dtype": "bfloat16"}])
def test_bfloat16_is_not_scaled(overload):
    net = nets.one_layer(optimizer.SGD(0.125, multi_precision=True), **overload)
    assert not net.has_counters
    assert not nets.nodes(net.main, "IsNaN")
    loss, scaled = net.run(GOOD, fetch=[net.loss, net.optimizer.get_scaled_loss()])
    assert net.scope["w"].dtype.name == "bfloat16"
    np.testing.assert_array_equal(loss.astype(np.float32), scaled)


# ---- what is there, what is found ----


@cell("device capability", PADDLE)
def test_operators_without_a_kernel_are_fp32_whatever_the_lists_say():
    """The kernels are those of the target: TensorRT is held to schemas alone, which permit Asinh in float16."""
    model = chain("MatMul({}, w)", "Asinh({})", "MatMul({}, w)", w=SQUARE)
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Asinh"])
    options = {"level": "O2", "amp_lists": lists, "verify": False}
    cuda, tensorrt = (amp.transpile(model, target=target, **options, prefer="size") for target in ("cuda", "tensorrt"))
    assert (support.decisions(cuda)["v2"], support.decisions(tensorrt)["v2"]) == ("high", "low")
    assert "no float16 kernel for Asinh" in support.reasons(cuda)["v2"]
    assert (cuda.missing_kernels, tensorrt.missing_kernels) == ({"Asinh": 1}, {})


@cell("stats / audit", PADDLE)
def test_operators_are_counted_by_the_type_they_work_in():
    program = cast(chain("MatMul({}, w)", "Relu({})", "Exp({})", "Relu({})", "MatMul({}, w)", w=SQUARE), level="O1")
    stats = debugging.collect_operator_stats(program)
    counted = {op: (stats[op].fp16, stats[op].fp32) for op in ("MatMul", "Relu", "Exp")}
    assert counted == {"MatMul": (2, 0), "Relu": (1, 1), "Exp": (0, 1)}


@cell("accuracy bar in own tests", PADDLE)
def test_pure_fp16_losses_are_within_a_hundredth_of_fp32():
    text = """(float[n,4] x) => (float[n,4] y) {
        h = MatMul (x, w) k = Add (h, b) r = Tanh (k) y = MatMul (r, v)
    }"""
    weights = {"w": SQUARE, "b": array(4, seed=1, scale=0.1), "v": array(4, 4, seed=2, scale=0.4)}
    batches = [{"x": array(8, 4, seed=s), "target": array(8, 4, seed=s + 9, scale=0.3)} for s in range(5)]
    losses_of = {}
    for name, decorated in (("fp32", {}), ("pure", {**OLD, "init_loss_scaling": 128.0})):
        momentum = optimizer.Momentum(0.05, 0.9, multi_precision=bool(decorated))
        losses_of[name] = text_nets.losses(trained(text, inner=momentum, weights=weights, **decorated), batches)
    assert losses_of["pure"] != losses_of["fp32"]
    np.testing.assert_allclose(losses_of["pure"], losses_of["fp32"], rtol=1e-2)
