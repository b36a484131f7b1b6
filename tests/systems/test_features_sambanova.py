"""The cells of the feature table that say what SambaNova's GraphAMP does, one small test each."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.cli.command import main as command
from tests import support
from tests.paddle import nets, text_nets
from tests.support import array, chain, parse
from tests.systems.feature_table import cell

SAMBANOVA = "SambaNova"
SQUARE = array(4, 4, scale=0.4)
LOW = "BFLOAT16"
LAYERS = chain("Relu({})", "MatMul({}, w)", "Tanh({})", "Gemm({}, w)", "Softmax({})", w=SQUARE)  # v1, v2, v3, v4, y


def transpiled(model, **options):
    """The program that `transpile` makes of a model."""
    program = amp.transpile(model, **options, prefer="size").program
    support.assert_valid(program)
    return program


def types(program):
    """Node name -> (type of the first input, type of the output), casts left out."""
    computing = (node for node in support.nodes(program) if node.op_type != "Cast")
    return {node.name: (node.inputs[0].dtype.name, node.outputs[0].dtype.name) for node in computing}


def low(program):
    """Names of the nodes that give the low format."""
    return {name for name, (_, output) in types(program).items() if output == LOW}


@cell("form", SAMBANOVA)
def test_it_is_a_decision_pass_over_the_graph(tmp_path):
    """Every node of every scope is decided without running anything, and the result is a program for any runtime."""
    text = """(float[2,4] x, bool c) => (float[2,4] z) {
        [out] y = MatMul (x, w)
        [if] z = If (c) <then_branch = t () => (float[2,4] p) { [then] p = MatMul (y, w) },
                         else_branch = e () => (float[2,4] q) { [else] q = Exp (y) }>
    }"""
    model = parse(text, w=SQUARE)
    report = amp.transpile(model, tmp_path / "low.onnx", preset="mp1", dtype="float16", verify=False)
    decided = {"out": "low", "if": "untouched", "then": "low", "else": "high"}
    assert support.decisions(report) == decided
    session = ort.InferenceSession(tmp_path / "low.onnx", providers=["CPUExecutionProvider"])
    for branch in (True, False):
        feeds = {"x": array(2, 4), "c": np.array(branch)}
        np.testing.assert_allclose(session.run(None, feeds)[0], support.run(model, feeds)["z"], rtol=2e-2, atol=1e-2)


@cell("low dtypes", SAMBANOVA)
def test_low_is_bfloat16():
    """float16, which GraphAMP does not have, must be asked for."""
    assert {to for _, _, to in support.casts(transpiled(LAYERS, preset="mp1"))} == {LOW, "FLOAT"}
    assert low(transpiled(LAYERS, preset="mp4")) == {"v1", "v2", "v3", "v4", "y"}
    half = transpiled(LAYERS, preset="mp4", dtype="float16")
    assert {to for _, _, to in support.casts(half)} == {"FLOAT16", "FLOAT"}


@cell("list mode", SAMBANOVA)
@cell("white-only mode", SAMBANOVA)
def test_mp1_lowers_gemm_like_operators_alone():
    """ONNX's products give what they take, so the result is rounded before it goes up to float32."""
    program = transpiled(LAYERS, preset="mp1")
    mixed, high = (LOW, LOW), ("FLOAT", "FLOAT")
    assert types(program) == {"v1": high, "v2": mixed, "v3": high, "v4": mixed, "y": high}
    assert sorted(support.casts(program)) == [
        ("v1", "FLOAT", LOW),
        ("v2", LOW, "FLOAT"),
        ("v3", "FLOAT", LOW),
        ("v4", LOW, "FLOAT"),
    ]


@cell("pure mode", SAMBANOVA)
@pytest.mark.parametrize("preset", ["mp4", "default"])
def test_mp4_and_default_are_low_throughout(preset):
    assert set(types(transpiled(LAYERS, preset=preset)).values()) == {(LOW, LOW)}


@cell("unlisted op", SAMBANOVA)
@pytest.mark.parametrize(("wanted", "dtype"), [(1, "FLOAT"), (16, LOW)])
def test_an_operator_that_is_no_gemm_follows_its_input(wanted, dtype):
    model = chain(f"Cast <to = {wanted}> ({{}})", "Relu({})", "Tanh({})", "Cast <to = 1> ({})")
    program = transpiled(model, preset="mp1")
    assert [types(program)[name] for name in ("v2", "v3")] == [(dtype, dtype)] * 2


@cell("gray/promotion rule", SAMBANOVA)
@pytest.mark.parametrize("preset", ["mp4", "default"])
def test_low_reaches_upstream_as_far_as_there_are_kernels(preset):
    """Casts stand where low begins, not at the product. mp1 stays at the product, as in the document's picture."""
    model = chain("Asinh({})", "Transpose <perm = [0, 1]> ({})", "Relu({})", "MatMul({}, w)", opset=22, w=SQUARE)
    whole = chain("Transpose <perm = [0, 1]> ({})", "Relu({})", "MatMul({}, w)", opset=22, w=SQUARE)

    def down(source, chosen):
        return [name for name, _, to in support.casts(transpiled(source, preset=chosen)) if to == LOW]

    assert (down(model, preset), down(whole, preset)) == (["v1"], ["x"])  # there is no low Asinh in the CUDA provider
    assert (down(model, "mp1"), down(whole, "mp1")) == (["v3"], ["v2"])


# ---- what the user says of operators, tensors, nodes ----


@cell("per-op override", SAMBANOVA)
@pytest.mark.parametrize("preset", [None, "mp0", "mp1"])
def test_mixed_operators_are_chosen_whatever_the_preset(preset):
    """gemm: low in, float32 out; softmax: float32 in, low out, which a Cast behind it makes."""
    model = chain("MatMul({}, w)", "Softmax({})", "MatMul({}, w)", w=SQUARE)
    program = transpiled(model, preset=preset, mixed_ops=["gemm", "softmax"])
    assert types(program) == {"v1": (LOW, LOW), "v2": ("FLOAT", "FLOAT"), "y": (LOW, LOW)}
    assert [(source, to) for _, source, to in support.casts(program)].count(("FLOAT", LOW)) == 2
    softmax_alone = transpiled(model, preset=None, mixed_ops="softmax")
    assert low(softmax_alone) == set()
    assert [(source, to) for _, source, to in support.casts(softmax_alone)] == [("FLOAT", LOW), (LOW, "FLOAT")]


@cell("per-tensor override", SAMBANOVA)
@pytest.mark.parametrize("options", [{"preset": "mp1"}, {"mixed_ops": "gemm"}], ids=str)
def test_a_tensor_that_is_written_in_bfloat16_stays_so(options):
    text = """(float[2,4] x) => (bfloat16[2,4] y, float[2,4] z) {
        xb = Cast <to = 16> (x) wb = Cast <to = 16> (w) [written] h = MatMul (xb, wb) [behind] y = Relu (h)
        [mixed] g = MatMul (x, w) [float] z = Relu (g)
    }"""
    program = transpiled(parse(text, w=SQUARE), **options)
    expected = {"written": (LOW, LOW), "behind": (LOW, LOW), "mixed": (LOW, LOW), "float": ("FLOAT", "FLOAT")}
    assert types(program) == expected
    assert [name for name, _, to in support.casts(program) if to == "FLOAT"] == ["g"]


@cell("per-node override", SAMBANOVA)
def test_what_is_built_inside_disable_amp_stays_as_it_is_written(tmp_path):
    @amp.disable_amp()
    def decorated(x):
        return static.nn.fc(x, size=4, bias_attr=False)

    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        first = static.nn.fc(static.data("x", [2, 4]), size=4, bias_attr=False)
        with amp.disable_amp():
            second = static.nn.fc(first, size=4, bias_attr=False)
        main.outputs.append(decorated(second).name)
    scope = static.Scope()
    static.Executor(nets.CPU).run(startup, scope=scope)
    written = main.to_onnx(scope)
    for preset in ("mp1", "mp4", "default"):
        assert support.dtypes(transpiled(written, preset=preset), "MatMul") == [LOW, "FLOAT", "FLOAT"]
    onnx.save(LAYERS, tmp_path / "m.onnx")
    assert command([str(tmp_path / "m.onnx"), "-q", "--preset", "mp1", "--disable-amp", "^v4$"]) == 0
    assert low(onnx.load(tmp_path / "m.bf16.onnx")) == {"v2"}


@cell("user cast", SAMBANOVA)
def test_a_conversion_to_float_stops_the_default_preset():
    model = chain("MatMul({}, w)", "Cast <to = 1> ({})", "MatMul({}, w)", "Relu({})", w=SQUARE)
    assert low(transpiled(model, preset="default")) == {"v1"}
    assert low(transpiled(model, preset="mp4")) == {"v1", "v3", "y"}


@cell("graph input dtype", SAMBANOVA)
@pytest.mark.parametrize("preset", ["mp0", "mp1", "mp4", "default"])
def test_inputs_keep_their_type(preset):
    program = amp.transpile(LAYERS, preset=preset).program
    assert support.dtype_of(program, "x") == "FLOAT"
    feeds = {"x": array(2, 4)}
    support.assert_close(support.run(LAYERS, feeds), support.run_emulated(program, feeds), support.LIMITS["bfloat16"])


@cell("device capability", SAMBANOVA)
def test_the_target_decides_what_can_be_low():
    """The kernel tables take the place of the SambaNova compiler's knowledge of its device."""
    model = chain("MatMul({}, w)", "Asinh({})", "MatMul({}, w)", opset=22, w=SQUARE)
    reports = {t: amp.transpile(model, preset="mp4", target=t, verify=False) for t in ("cuda", "tensorrt", "cpu")}
    decisions = {target: support.decisions(report) for target, report in reports.items()}
    assert decisions["cuda"] == {"v1": "low", "v2": "high", "y": "low"}
    assert decisions["tensorrt"] == {"v1": "low", "v2": "low", "y": "low"}
    assert decisions["cpu"] == {"v1": "high", "v2": "high", "y": "high"}
    assert "no bfloat16 kernel for Asinh" in support.reasons(reports["cuda"])["v2"]


# ---- training ----


@cell("param storage", SAMBANOVA)
@pytest.mark.parametrize("flag", [False, True])
def test_parameters_are_bfloat16_with_an_fp32_copy_by_the_flag(flag):
    keywords = {"fp32_params": True} if flag else {"master_weight": False}
    net = nets.one_layer(optimizer.SGD(0.125), level="O2", dtype="bfloat16", **keywords)
    assert net.scope["w"].dtype.name == "bfloat16"
    copies = [net.scope[name] for name in net.optimizer.master_weights.values()]
    assert [copy.dtype.name for copy in copies] == (["float32"] if flag else [])
    [held] = transpiled(LAYERS, preset="mp4").model.graph.initializers.values()
    assert held.dtype.name == LOW


@cell("master weights", SAMBANOVA)
def test_fp32_params_updates_a_copy_that_starts_rounded():
    """The model is expected to start in bfloat16, so the copy starts from there, not from what was rounded."""
    net = nets.one_layer(optimizer.SGD(2.0**-11), start=False, level="O2", dtype="bfloat16", fp32_params=True)
    net.executor.run(net.startup, scope=net.scope)
    third = np.float32(1 / 3)
    for name in ("w", net.master):
        net.scope[name] = np.full((4, 4), third, np.float32)
    net.optimizer.amp_init(nets.CPU, net.scope)
    start = net.scope["w"].astype(np.float32)
    assert (start != third).all()
    np.testing.assert_array_equal(net.scope[net.master], start)
    net.run(-1.0)  # an update far below a step of bfloat16
    np.testing.assert_array_equal(net.scope["w"].astype(np.float32), start)
    assert (net.scope[net.master] != start).all()


@cell("master grads", SAMBANOVA)
@pytest.mark.parametrize(("reduce", "expected", "low_sums"), [("fp32", "FLOAT", 0), ("low", LOW, 2)])
def test_weight_grad_reduce_is_the_format_of_sums_over_the_batch(reduce, expected, low_sums):
    """`low` rounds to nearest where SambaNova's bf16sr rounds stochastically."""
    text = "(float[n,3,4] x) => (float[n,3,4] y) { m = MatMul (x, w) y = Add (m, b) }"
    options = {"level": "O2", "dtype": "bfloat16", "weight_grad_reduce": reduce}
    weights = {"w": SQUARE, "b": array(4, seed=1)}
    net = text_nets.trainer(optimizer.SGD(0.1), text, weights, target=(None, 3, 4), **options)
    sums = nets.nodes(net.main, "ReduceSum", "backward")
    assert [(nets.works_in(node), *nets.makes(node)) for node in sums].count((LOW, LOW)) == low_sums
    bias = net.main.value("b@GRAD").producer()
    while bias.op_type != "ReduceSum":
        bias = bias.inputs[0].producer()
    assert (nets.works_in(bias), *nets.makes(bias)) == (expected, expected)
    feed = {"x": array(2, 3, 4), "target": array(2, 3, 4, seed=1)}
    trained = text_nets.losses(net, [feed] * 3)
    assert trained[-1] < trained[0]
