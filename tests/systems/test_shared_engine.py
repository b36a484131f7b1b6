"""The parts that all systems share, and may configure: folding, constants behind Identity, biases, the opset."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable
from amp_transpiler.systems.raf import casting_rules
from amp_transpiler.systems.raf.casting_rules import find_rule
from tests import support
from tests.support import array, parse

POLICIES = ("paddle", "torch", "raf", "mxnet")
NORM = {name: array(8, seed=i, low=0.5) for i, name in enumerate(("scale", "shift", "mean", "var"))}
NETWORK = """(float[1,4,8,8] x) => (float[1,8,8,8] y) {
    [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w) [norm] n = BatchNormalization (c, scale, shift, mean, var)
    [relu] y = Relu (n)
}"""


def network():
    return parse(NETWORK, w=array(8, 4, 3, 3, scale=0.2), **NORM)


def operators(program):
    return [node.op_type for node in support.nodes(program) if node.op_type != "Cast"]


# ---- folding ----


def test_raf_folds_a_normalization_whose_parameters_could_not_stay_float32():
    assert operators(amp.transpile(network(), policy="raf").program) == ["Conv", "Relu"]


@pytest.mark.parametrize(
    "lists",
    [
        {"custom_black_list": ["BatchNormalization"]},
        {"custom_black_list": ["Conv"]},
        {"custom_black_varnames": ["c"]},
        {"custom_black_varnames": ["scale"]},
    ],
    ids=str,
)
def test_what_the_user_lists_is_not_folded(lists):
    report = amp.transpile(network(), policy="raf", amp_lists=amp.AutoMixedPrecisionLists(**lists))
    assert operators(report.program) == ["Conv", "BatchNormalization", "Relu"]


@pytest.mark.parametrize("operator", ["Conv", "BatchNormalization"])
def test_what_the_user_has_a_rule_for_is_not_folded(operator):
    asked = []

    def rule(node, inputs, low_dtype):
        asked.append(len(inputs))
        return [None] * len(inputs)

    with amp.CustomTypeHint({operator: rule}):
        program = amp.autocast(network())
    assert operators(program) == ["Conv", "BatchNormalization", "Relu"]
    assert set(asked) == {2 if operator == "Conv" else 5}, "the rule sees the node as it was written"


def test_a_preset_of_products_folds_nothing():
    assert operators(amp.transpile(network(), preset="mp1").program) == ["Conv", "BatchNormalization", "Relu"]


# ---- constants behind Identity ----


@pytest.mark.parametrize("policy", POLICIES)
def test_a_constant_behind_identity_is_a_constant(policy):
    """Exporters write it so where layers share a parameter: all layers are decided alike, and weights are low once."""
    graph = """(float[2,4] x) => (float[2,4] y) {
        w2 = Identity (w) b2 = Identity (b)
        m1 = MatMul (x, w) [first] a1 = Add (m1, b) r = Relu (a1)
        m2 = MatMul (r, w2) [second] y = Add (m2, b2)
    }"""
    report = amp.transpile(parse(graph, w=array(4, 4), b=array(4)), policy=policy, level="auto", prefer="size")
    decisions = support.decisions(report)
    assert decisions["first"] == decisions["second"] == "low"
    assert "Identity" not in operators(report.program)
    assert [name for name, _, to in support.casts(report.program) if to != "FLOAT"] == ["x"]


def test_an_identity_that_is_an_output_stays():
    graph = "(float[2,4] x) => (float[2,4] y, float[4,4] z) { y = MatMul (x, w) z = Identity (w) }"
    program = amp.transpile(parse(graph, w=array(4, 4)), prefer="size").program
    assert operators(program) == ["MatMul", "Identity"]
    support.assert_valid(program)


# ---- linear layers ----


@pytest.mark.parametrize(
    ("policy", "expected"), [("torch", "low"), ("mxnet", "low"), ("raf", "low"), ("paddle", "low")]
)
def test_the_bias_of_a_linear_layer_goes_with_the_product(policy, expected):
    graph = "(float[2,4] x) => (float[2,4] y) { m = MatMul (x, w) [bias] a = Add (m, b) y = Exp (a) }"
    report = amp.transpile(parse(graph, w=array(4, 4), b=array(4)), policy=policy, level="auto", prefer="size")
    assert support.decisions(report)["bias"] == expected


def test_mxnet_heeds_a_list_that_names_add():
    graph = "(float[2,4] x) => (float[2,4] y) { m = MatMul (x, w) [bias] y = Add (m, b) }"
    program = amp.convert_model(parse(graph, w=array(4, 4), b=array(4)), fp32_ops=["Add"])
    assert support.dtypes(program, "Add") == ["FLOAT"]


# ---- the opset ----


@pytest.mark.parametrize(("options", "opset"), [({"preset": "mp1"}, 18), ({"preset": "mp4"}, 22), ({}, 22)])
def test_the_opset_is_raised_only_for_what_may_become_low(options, opset):
    graph = "(float[1,4,8,8] x) => (float[1,8,6,6] y) { c = Conv (x, w) y = Relu (c) }"
    report = amp.transpile(parse(graph, w=array(8, 4, 3, 3)), dtype="bfloat16", **options, prefer="size")
    assert report.opset == (18, opset)


# ---- the default preset and numbers ----


def test_a_single_number_that_an_exporter_casts_is_no_conversion():
    graph = """(float[2,4] x) => (float[2,4] y) {
        s = Shape (x) i = Gather (s, one) f = Cast <to = 1> (i) r = Sqrt (f) c = Cast <to = 1> (r)
        [scaled] d = Div (x, c) [last] y = Tanh (d)
    }"""
    report = amp.transpile(parse(graph, one=np.array(1)), preset="default")
    assert support.decisions(report)["last"] == "low"


def test_the_reason_names_the_conversion():
    graph = "(float[2,4] x) => (float[2,4] y) { r = Relu (x) [to_float] c = Cast <to = 1> (r) [last] y = Tanh (c) }"
    report = amp.transpile(parse(graph), preset="default")
    assert "'to_float'" in support.reasons(report)["last"]


# ---- what is refused is refused before anything changes ----


@pytest.mark.parametrize(
    "options", [{"preset": 4}, {"mixed_ops": 3}, {"mixed_ops": ","}, {"mixed_ops": [","]}], ids=str
)
def test_what_is_no_name_is_one_clear_error(options):
    with pytest.raises(OptionError, match=r"preset|mixed"):
        amp.transpile(network(), **options, prefer="size")


def test_decorate_that_is_refused_leaves_the_optimizer_alone():
    sgd = optimizer.SGD(0.1)
    before = sgd.multi_precision
    with pytest.raises(OptionError):
        amp.decorate(sgd, policy="torch", level="O2", fp32_params=True)
    assert sgd.multi_precision == before


def test_type_hints_may_end_in_another_order_than_they_nest():
    def keep(node, inputs, low_dtype):
        return [None] * len(inputs)

    outer, inner = amp.CustomTypeHint({"Add": keep}), amp.CustomTypeHint({"Mul": keep})
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert find_rule("", "Add", 18) is None
    assert find_rule("", "Mul", 18) is keep
    inner.__exit__(None, None, None)
    assert find_rule("", "Mul", 18) is None


# ---- training programs go every way alike ----

WAYS = {
    "O1": lambda program: amp.transpile(program, level="O1", verify=False).program,
    "O2": lambda program: amp.transpile(program, level="O2", verify=False).program,
    "torch": lambda program: amp.transpile(program, policy="torch", verify=False).program,
    "raf": lambda program: amp.transpile(program, policy="raf", verify=False).program,
    "mxnet": lambda program: amp.transpile(program, policy="mxnet", verify=False).program,
    "mp4": lambda program: amp.transpile(program, preset="mp4", dtype="float16", verify=False).program,
    "autocast": amp.autocast,
    "convert_model": amp.convert_model,
}


def step():
    """A complete training step of one linear layer, with momentum."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x, target = static.data("x", [None, 4]), static.data("target", [None, 4])
        loss = F.mse_loss(F.relu(static.nn.fc(x, 4)), target)
        optimizer.Momentum(0.1).minimize(loss, startup)
    return main, startup, loss


@pytest.mark.parametrize("way", WAYS)
def test_a_training_step_keeps_its_state_float32_and_trains(way):
    main, startup, loss = step()
    low = WAYS[way](main)
    written = low.to_onnx()
    types = {value.name: value.type.tensor_type.elem_type for value in (*written.graph.input, *written.graph.output)}
    for name, update in low.updates.items():
        assert types[name] == types[update] == onnx.TensorProto.FLOAT, name
    feed = {"x": array(8, 4), "target": array(8, 4, seed=1)}
    losses = {}
    for name, program in (("fp32", main), (way, low)):
        executor, scope = static.Executor(amp.CPUPlace()), static.Scope()
        amp.seed(3)
        executor.run(startup, scope=scope)
        losses[name] = [float(executor.run(program, feed, [loss.name], scope=scope)[0]) for _ in range(4)]
        assert all(scope[key].dtype == np.float32 for key in low.updates)
    np.testing.assert_allclose(losses[way], losses["fp32"], rtol=1e-2)
    assert "FLOAT16" in support.dtypes(low, "MatMul")


@pytest.mark.parametrize("way", WAYS)
def test_a_startup_program_still_starts(way):
    main, startup, _ = step()
    executor, scope = static.Executor(amp.CPUPlace()), static.Scope()
    executor.run(WAYS[way](startup), scope=scope)
    assert {name for name in main.persistables if name in scope} >= {p.name for p in main.all_parameters()}
    assert all(scope[p.name].dtype == np.float32 for p in main.all_parameters())


def test_low_inputs_of_a_training_step_are_its_feeds_alone():
    main, _, _ = step()
    program = amp.transpile(main, policy="torch", keep_io_types=False, verify=False).program
    types = {value.name: value.dtype.name for value in program.model.graph.inputs}
    assert types.pop("x") == types.pop("target") == "FLOAT16"
    assert {types[name] for name in program.persistables} == {"FLOAT"}


def test_a_state_that_a_product_replaces_stays_float32():
    program = static.Program()
    with static.program_guard(program, static.Program()):
        x = static.data("x", [4, 4])
        program.persistables["x"] = Persistable("x", "state")
        program.updates["x"] = tensor.matmul(x, static.data("w", [4, 4])).name
    for way in WAYS.values():
        low = way(program)
        assert low.value(low.updates["x"]).dtype.name == low.value("x").dtype.name == "FLOAT"


# ---- constants that others read exactly ----


@pytest.mark.parametrize("way", WAYS)
def test_a_cast_of_the_users_reads_a_constant_exactly(way):
    graph = """(float[2,4] x) => (float[2,4] y, int64[1] i, double[4,4] d) {
        h = MatMul (x, w) y = Mul (h, c) i = Cast <to = 7> (c) d = Cast <to = 11> (w)
    }"""
    w = array(4, 4)
    model = parse(graph, w=w, c=np.array([2049.0], np.float32))
    results = support.run_emulated(WAYS[way](model), {"x": array(2, 4)})
    assert results["i"] == [2049]
    np.testing.assert_array_equal(results["d"], w.astype(np.float64))


def test_offline_parameters_are_low_only_if_every_reader_wants_them_so():
    graph = "(float[2,4] x) => (float[2,4] y, double[4,4] d) { y = MatMul (x, w) d = Cast <to = 11> (w) }"
    model = parse(graph, w=array(4, 4))
    program = amp.convert_model(model, cast_params_offline=True)
    assert support.dtype_of(program, "w") == "FLOAT"


def test_a_cast_to_the_very_format_costs_no_second_copy():
    graph = "(float[2,4] x) => (float[2,4] y, float16[4,4] d) { y = MatMul (x, w) d = Cast <to = 10> (w) }"
    model = parse(graph, w=array(4, 4))
    program = amp.transpile(model, level="O2").program
    assert support.dtype_of(program, "w") == "FLOAT16"
    assert len(program.model.graph.initializers) == 1


def test_a_parameter_that_is_an_output_keeps_its_type():
    graph = "(float[2,4] x) => (float[2,4] y, float[4,4] w) { y = MatMul (x, w) }"
    program = amp.autocast(parse(graph, w=array(4, 4)))
    assert [value.dtype.name for value in program.model.graph.outputs] == ["FLOAT16", "FLOAT"]


# ---- rules of the systems ----


def test_mxnets_tables_are_those_of_the_format_of_the_conversion():
    model = support.chain("MatMul ({}, w)", "Softmax ({})", "MatMul ({}, w)", w=array(4, 4))
    lists = amp.AutoMixedPrecisionLists(custom_black_list=["Exp"])  # made without a dtype
    for asked in (None, lists):
        report = amp.transpile(model, policy="mxnet", dtype="bfloat16", amp_lists=asked)
        assert set(support.decisions(report).values()) == {"low"}, "softmax is neutral in bfloat16"


@pytest.mark.parametrize(
    "options",
    [
        {"fp32_ops": ["BatchNormalization"]},
        {"conditional_fp32_ops": [("BatchNormalization", "epsilon", ["1e-05"])]},
    ],
    ids=str,
)
def test_mxnet_folds_nothing_that_it_keeps(options):
    statistics = {**NORM, "var": np.full(8, 1e6, np.float32)}  # beyond float16, so that it would be folded
    program = amp.convert_model(parse(NETWORK, w=array(8, 4, 3, 3, scale=0.2), **statistics), **options)
    assert support.dtypes(program, "BatchNormalization") == ["FLOAT"]


@pytest.mark.parametrize("text", ["1", "1.0", "1e0"])
def test_numbers_of_conditions_are_numbers(text):
    model = support.chain("MatMul ({}, w)", "LeakyRelu <alpha = 1.0> ({})", w=array(4, 4))
    program = amp.convert_model(model, target_dtype_ops=["MatMul", "LeakyRelu"], fp32_ops=[])
    assert support.dtypes(program, "LeakyRelu") == ["FLOAT16"]
    program = amp.convert_model(model, fp32_ops=[], conditional_fp32_ops=[("LeakyRelu", "alpha", [text])])
    assert support.dtypes(program, "LeakyRelu") == ["FLOAT"]


def test_mxnet_warns_of_a_target_operator_that_cannot_be_low(caplog):
    graph = "(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) y = my.Foo (h) }"
    model = parse(graph, imports=', "my": 1', w=array(4, 4))
    amp.convert_model(model, target_dtype_ops=["MatMul", "my::Foo"])
    assert "my::Foo is on the target list but stays as written" in caplog.text


SINCE = [
    pytest.param(27, 28, True, marks=support.needs_onnx("1.23", "it ends at opset 27")),
    *[(27, 26, False), (13, 12, False), (13, 13, True)],
]


@pytest.mark.parametrize(("since", "opset", "applies"), SINCE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_since_speaks_of_the_opset_that_the_program_was_written_in(since, opset, applies, dtype, monkeypatch):
    monkeypatch.setattr(casting_rules, "_registered", {})
    amp.casting_rule("Relu", since=since)(lambda node, inputs, low_dtype: ["float32"])
    model = support.chain("MatMul ({}, w)", "Relu ({})", opset=opset, w=array(4, 4))
    model.ir_version = 10
    program = amp.autocast(model, dtype=dtype)
    assert (support.dtypes(program, "Relu") == ["FLOAT"]) == applies


def test_a_custom_operator_in_a_disabled_region_needs_no_rule():
    graph = "(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) [off] y = my.Foo (h) }"
    model = parse(graph, imports=', "my": 1', w=array(4, 4))
    with pytest.raises(OptionError, match="my::Foo"):
        amp.autocast(model)
    amp.mark_region(model, "disable_amp", nodes="off")
    assert support.dtypes(amp.autocast(model), "MatMul") == ["FLOAT16"]


@pytest.mark.parametrize("target", ["cuda", "cpu", "any"])
def test_a_mixed_softmax_is_stored_low_whatever_kernels_there_are(target):
    model = support.chain("Softmax ({})", "Relu ({})")
    program = amp.transpile(model, mixed_ops="softmax", target=target).program
    assert [to for _, _, to in support.casts(program)] == ["BFLOAT16", "FLOAT"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: amp.CustomTypeHint(None),
        lambda: amp.CustomTypeHint(["Add"]),
        lambda: amp.CustomTypeHint({1: lambda node, inputs, low_dtype: []}),
        lambda: amp.casting_rule(3)(lambda node, inputs, low_dtype: []),
        lambda: amp.autocast(network(), args=5),
        lambda: amp.autocast(network(), args="x"),
        lambda: amp.autocast(network(), out_dtype="int64"),
        lambda: amp.autocast(network(), dtype="bfloat16", out_dtype="float16"),
    ],
)
def test_what_is_of_another_kind_is_one_of_the_packages_errors(call):
    with pytest.raises(amp.InputError):
        call()


@pytest.mark.parametrize("out_dtype", [np.float32, "float32", np.dtype("float32")])
def test_out_dtype_takes_what_dtype_takes(out_dtype):
    program = amp.autocast(network(), out_dtype=out_dtype)
    assert program.model.graph.outputs[0].dtype.name == "FLOAT"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("replaced_by", ["constant", "parameter"])
def test_a_state_replaced_by_what_others_read_low_stays_float32(way, replaced_by):
    program, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(program, startup):
        x = static.data("x", [4, 4])
        if replaced_by == "parameter":
            value = program.add_persistable(Persistable("w", "parameter"), ir.DataType.FLOAT, [4, 4])
        else:
            value = program.builder().constant(np.full((4, 4), 0.1, np.float32))
        program.add_persistable(Persistable("s", "state"), ir.DataType.FLOAT, [4, 4])
        program.updates["s"] = str(value.name)
        program.outputs.append(str(program.builder().matmul(x.value, value).name))
    low = WAYS[way](program)
    assert low.value(low.updates["s"]).dtype.name == low.value("s").dtype.name == "FLOAT"
