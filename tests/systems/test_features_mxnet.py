"""MXNet 2's AMP: a test a cell of the feature table's column "MXNet 2"."""

import numpy as np
import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import amp_transpiler as amp
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.utils import unique_name
from tests.paddle import nets
from tests.support import (
    HAS_SWIGLU,
    array,
    assert_valid,
    casts,
    constant,
    decisions,
    dtype_of,
    dtypes,
    nodes,
    parse,
    reasons,
    relative,
    run,
    run_emulated,
)
from tests.systems.feature_table import cell

PRODUCT = "(float[4,4] x, float[4,4] w) => (float[4,4] y)"
X, W = array(4, 4), array(4, 4, seed=1, scale=0.5)
GOOD, BAD = 1.0, 60000.0  # times the weight, BAD leaves float16


def converted(body, head=PRODUCT, *, opset=20, weights=None, **options):
    """The program that `convert_model` makes of a graph; it must be valid."""
    program = amp.convert_model(parse(f"{head} {{ {body} }}", opset=opset, **(weights or {})), **options)
    assert_valid(program)
    return program


def down(program):
    """The names of the values that are cast to float16, sorted."""
    return sorted(name for name, _, to in casts(program) if to == "FLOAT16")


def scaled(chosen=None, **decorated):
    """A small net with MXNet's loss scaling, and its rules where no level is given, ready to train."""
    chosen = optimizer.Momentum(0.01, 0.9) if chosen is None else chosen
    rules = {} if "level" in decorated else {"policy": "mxnet"}
    return nets.one_layer(chosen, scaler="mxnet", **rules, **decorated)


def steps(net, batches):
    """The scale after each batch."""
    losses = []
    for x in batches:
        net.run(x)
        losses.append(net.optimizer.state_dict(net.scope)["scale"])
    return losses


@cell("form", "MXNet 2")
def test_a_graph_becomes_another_and_so_does_a_training_step():
    """MXNet patches its operators to train; here the training step is a graph, and the pass is the same."""
    model = parse(f"{PRODUCT} {{ y = MatMul (x, w) }}")
    before = model.SerializeToString()
    assert dtypes(amp.convert_model(model), "MatMul") == ["FLOAT16"]
    assert model.SerializeToString() == before
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        h = static.nn.fc(static.data("x", [None, 4]), 4)
        loss = tensor.mean(h * h)
        optimizer.SGD(0.1).minimize(loss, startup)
    program, scope, executor = amp.convert_model(main), static.Scope(), static.Executor(amp.CPUPlace())
    assert dtypes(program, "MatMul") == ["FLOAT16", "FLOAT16"], "the product, and the gradient of its weight"
    executor.run(startup, scope=scope)
    losses = [executor.run(program, {"x": X}, [loss], scope=scope)[0].item() for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]


@cell("low dtypes", "MXNet 2")
@pytest.mark.parametrize(("dtype", "name"), [("float16", "FLOAT16"), ("bfloat16", "BFLOAT16")])
def test_both_low_formats(dtype, name):
    program = converted("h = MatMul (x, w) y = Relu (h)", target_dtype=dtype)
    assert dtypes(program, "MatMul") == dtypes(program, "Relu") == [name]
    assert relative(np.maximum(X @ W, 0), run_emulated(program, {"x": X, "w": W})["y"]) < 0.02


@cell("list mode", "MXNet 2")
def test_target_fp32_neutral_widest_and_conditional():
    body = """h = MatMul (x, w) r = Relu (h) e = Exp (r) a = Add (h, r) b = Sub (r, e)
        l = LeakyRelu <alpha = 0.5> (h) m = LeakyRelu <alpha = 0.25> (h) c = Concat <axis = 0> (a, b, l, m)
        y = ReduceMax <keepdims = 0> (c)"""
    program = converted(body, PRODUCT.replace("[4,4] y", " y"), conditional_fp32_ops=[("LeakyRelu", "alpha", ["0.5"])])
    assert {op: dtypes(program, op) for op in ("MatMul", "Relu", "Exp", "Add", "Sub", "LeakyRelu")} == {
        "MatMul": ["FLOAT16"],
        "Relu": ["FLOAT16"],
        "Exp": ["FLOAT"],
        "Add": ["FLOAT16"],
        "Sub": ["FLOAT"],
        "LeakyRelu": ["FLOAT", "FLOAT16"],
    }


@cell("white-only mode", "MXNet 2")
def test_lists_make_a_white_only_mode():
    """Every other operator on the fp32 list: nothing but the target is low."""
    others = [*amp.list_fp32_ops(), *amp.list_widest_type_cast(), *amp.list_lp16_fp32_ops()]
    body = "h = MatMul (x, w) r = Relu (h) y = Add (r, h)"
    program = converted(body, fp32_ops=others, conditional_fp32_ops=[])
    assert [dtypes(program, op) for op in ("MatMul", "Relu", "Add")] == [["FLOAT16"], ["FLOAT"], ["FLOAT"]]
    assert dtypes(converted(body), "Add") == ["FLOAT16"]


@cell("unlisted op", "MXNet 2")
def test_an_operator_on_no_list_is_neutral_and_an_unknown_name_refused():
    """Without a schema or a kernel there is no low form to follow with, so the unlisted operator is a known one."""
    body, imports = "h = MatMul (x, w) y = com.microsoft.Gelu (h)", ', "com.microsoft": 1'
    model = parse(f"{PRODUCT} {{ {body} }}", imports=imports)
    lists = {"fp32_ops": ["Exp"], "target_dtype_ops": ["MatMul"]}
    assert dtypes(amp.convert_model(model, **lists), "Gelu") == ["FLOAT16"]
    program = amp.convert_model(parse("(float[4,4] x) => (float[4,4] y) { y = my.Foo (x) }", imports=', "my": 1'))
    assert program.notes == ["on none of MXNet's lists, so neutral: my::Foo"]
    with pytest.raises(OptionError, match=r"illegal operators: 'my::Foo'.*'Exxp'"):
        amp.convert_model(model, fp32_ops=["my::Foo", "Exxp"])


@cell("gray/promotion rule", "MXNet 2")
@pytest.mark.parametrize(("second", "expected"), [("h", "FLOAT16"), ("w", "FLOAT16"), ("z", "FLOAT")])
def test_the_widest_type_is_low_only_without_new_casts(second, expected):
    """`w` counts as low: the product has it cast already."""
    program = converted(f"h = MatMul (x, w) y = Add (h, {second})", PRODUCT.replace(") =>", ", float[4,4] z) =>"))
    assert dtypes(program, "Add") == [expected]
    assert down(program) == ["w", "x"]


@cell("per-op override", "MXNet 2")
def test_a_list_that_is_given_replaces_the_default():
    program = converted("h = Softmax (x) y = MatMul (h, w)", target_dtype_ops=["Softmax"], fp32_ops=["Relu"])
    assert dtypes(program, "Softmax") == ["FLOAT16"]
    program = converted("h = MatMul (x, w) e = Exp (h) y = Relu (e)", fp32_ops=["Relu"])
    assert (dtypes(program, "Exp"), dtypes(program, "Relu")) == (["FLOAT16"], ["FLOAT"])


@cell("per-node override", "MXNet 2")
def test_nodes_are_excluded_by_name_or_region():
    body = "[a] h = MatMul (x, w) [b] g = MatMul (h, w) [c] y = MatMul (g, w)"
    model = parse(f"{PRODUCT} {{ {body} }}")
    amp.mark_region(model, "disable_amp", nodes="^b$")
    assert dtypes(amp.convert_model(model, excluded_sym_names=["c"]), "MatMul") == ["FLOAT16", "FLOAT", "FLOAT"]


@cell("attribute-conditional", "MXNet 2")
def test_an_attribute_keeps_a_node_as_it_is():
    body = "h = Gemm <transB = 1> (x, w) y = Gemm (h, w)"
    program = converted(body, conditional_fp32_ops=[("Gemm", "transB", ["1"])])
    assert dtypes(program, "Gemm") == ["FLOAT", "FLOAT16"]
    program = converted(body, conditional_fp32_ops=[("Gemm", "transB", ["0"])])
    assert dtypes(program, "Gemm") == ["FLOAT16", "FLOAT"], "a default is an attribute too"


@cell("list conflict", "MXNet 2")
@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (1, 2)])
def test_an_operator_on_two_lists_is_refused(one, other):
    """A ValueError here, an AssertionError in MXNet."""
    lists = [
        ("target_dtype_ops", ["Gemm"]),
        ("fp32_ops", ["Gemm"]),
        ("conditional_fp32_ops", [("Gemm", "transB", ["1"])]),
    ]
    both = dict([lists[one], lists[other]])
    with pytest.raises(ValueError, match="Gemm in both {} and {}".format(*both)):
        converted("y = Gemm (x, w)", **both)


@cell("param storage", "MXNet 2")
@pytest.mark.parametrize(("offline", "stored", "cast"), [(False, "float32", ["w", "x"]), (True, "float16", ["x"])])
def test_parameters_are_float32_or_converted_offline(offline, stored, cast):
    head = "(float[4,4] x) => (float[4,4] y)"
    program = converted("y = MatMul (x, w)", head, weights={"w": W}, cast_params_offline=offline)
    assert constant(program, "w").dtype.name == stored
    assert down(program) == cast


@cell("shared param", "MXNet 2")
def test_a_parameter_is_stored_low_only_if_every_reader_wants_it_low():
    head = "(float[4,4] x) => (float[4,4] y)"
    body = "h = MatMul (x, w) g = MatMul (h, v) e = Exp (v) y = Add (g, e)"
    program = converted(body, head, weights={"w": W, "v": X}, cast_params_offline=True)
    assert {name: constant(program, name).dtype.name for name in "wv"} == {"w": "float16", "v": "float32"}
    assert down(program) == ["v", "x"]


NORM = {"s": array(4, low=0.5), "b": array(4, seed=1), "m": array(4, seed=2), "v": array(4, seed=3, low=0.5)}


@cell("norm params", "MXNet 2")
def test_batch_normalization_keeps_its_parameters():
    """CUDA's kernel has one type, so the stored float32 parameters are cast for it; with TensorRT they are read so."""
    head = "(float[1,4,2,2] x, float[4,4,1,1] k) => (float[1,4,2,2] y)"
    body = "h = Conv (x, k) r = Relu (h) y = BatchNormalization (r, s, b, m, v)"
    program = converted(body, head, weights=NORM)
    assert {constant(program, name).dtype.name for name in NORM} == {"float32"}
    assert down(program) == sorted(["x", "k", *NORM])
    model = parse(f"{head} {{ {body} }}", opset=20, **NORM)
    program = amp.transpile(model, policy="mxnet", target="tensorrt", verify=False).program
    [node] = nodes(program, "BatchNormalization")
    assert [value.dtype.name for value in node.inputs] == ["FLOAT16", *["FLOAT"] * 4]


@cell("cast dedup", "MXNet 2")
def test_one_cast_a_tensor_and_type():
    body = "h = MatMul (x, w) g = MatMul (h, w) a = Exp (h) b = Log (h) c = MatMul (x, g) y = Sum (a, b, c)"
    program = converted(body)
    assert len(casts(program)) == len(set(casts(program)))
    assert down(program) == ["w", "x"]
    assert [name for name, _, to in casts(program) if to == "FLOAT"].count("h") == 1


@cell("graph output dtype", "MXNet 2")
def test_outputs_have_their_types_again():
    head = PRODUCT.replace("=> (", "=> (float[4,4] h, float[4,4] r, ")
    program = converted("h = MatMul (x, w) r = Relu (h) y = Exp (r)", head)
    assert [dtype_of(program, name) for name in "hry"] == ["FLOAT"] * 3
    assert dtypes(program, "Relu") == ["FLOAT16"]


@cell("graph input dtype", "MXNet 2")
def test_inputs_keep_their_types_unless_input_dtypes_says_otherwise():
    """MXNet's symbols have no types, so it requires them; an ONNX graph has its own, so they are optional."""
    types_of = []
    for asked in (None, {"x": "float32", "w": "float32"}, {"x": "float16"}):
        program = converted("y = MatMul (x, w)", input_dtypes=asked)
        types_of.append([dtype_of(program, name) for name in "xw"])
    assert types_of == [["FLOAT", "FLOAT"], ["FLOAT", "FLOAT"], ["FLOAT16", "FLOAT"]]
    with pytest.raises(OptionError, match="'w' is float32: expected float32 or float16, got int64"):
        converted("y = MatMul (x, w)", input_dtypes={"w": "int64"})


@cell("control flow", "MXNet 2")
@pytest.mark.parametrize(("flag", "expected"), [(True, X @ W @ W), (False, X)])
def test_an_if_is_neutral(flag, expected):
    """MXNet leaves what is in its bodies alone; here they are converted as the rest is."""
    program = converted(
        """h = MatMul (x, w) y = If (c) <then_branch = t () => (float[4,4] a) { a = MatMul (h, w) },
        else_branch = e () => (float[4,4] b) { b = Identity (x) }>""",
        PRODUCT.replace("(float", "(bool c, float", 1),
    )
    assert dtypes(program, "MatMul") == ["FLOAT16", "FLOAT16"]
    assert relative(expected, run_emulated(program, {"c": np.array(flag), "x": X, "w": W})["y"]) < 0.02


@cell("int/double tensors", "MXNet 2")
def test_integers_and_doubles_are_untouched():
    program = converted(
        "y = MatMul (x, x) j = MatMulInteger (i, i)",
        "(double[4,4] x, uint8[4,4] i) => (double[4,4] y, int32[4,4] j)",
    )
    assert casts(program) == []


@cell("master weights", "MXNet 2")
def test_the_optimizers_multi_precision_has_float32_masters():
    """An update too small for float16 arrives in the master; parameters are low at level O2, which is Paddle's."""
    net = scaled(optimizer.SGD(1e-6, multi_precision=True), level="O2", init_loss_scaling=64.0)
    before = np.array(net.scope[net.master])
    net.run(GOOD)
    assert (net.scope["w"].dtype, net.scope[net.master].dtype) == (np.float16, np.float32)
    assert not np.array_equal(net.scope[net.master], before)
    np.testing.assert_array_equal(net.scope["w"], before.astype(np.float16))


@cell("loss scale start", "MXNet 2")
def test_the_scale_starts_at_65536():
    net = scaled()
    loss, times = net.run(GOOD, [net.loss, net.optimizer.get_scaled_loss()])
    np.testing.assert_array_equal(times, loss * 65536)


@cell("grow / every", "MXNet 2")
@pytest.mark.parametrize(("first", "then"), [(64.0, 128.0), (2.0**23, 2.0**24), (2.0**24, 2.0**24)])
def test_the_scale_doubles_after_2000_good_steps_up_to_its_cap(first, then):
    """The new scale holds from the next check on."""
    net = scaled(amp_lists=amp.AutoMixedPrecisionLists(custom_black_list=["Sub", "Mul", "MatMul"]))
    state = net.optimizer.state_dict(net.scope)
    state |= {"scale": first, "_next_scale": first, "_growth_tracker": 1998}
    net.optimizer.load_state_dict(state, net.scope)
    assert steps(net, [GOOD] * 4) == [first, first, then, then]


@cell("shrink / after", "MXNet 2")
@cell("on overflow", "MXNet 2")
def test_every_bad_step_halves_the_scale_and_is_skipped():
    """The halved scale holds from the next check on; velocity and weight stay as they are."""
    net = scaled(init_loss_scaling=64.0)
    net.run(GOOD)
    before = net.state()
    assert steps(net, [BAD, BAD, BAD]) == [64.0, 32.0, 16.0]
    after = net.state()
    states = {name for name in before if "loss_scaling" not in name and "num_good_steps" not in name}
    assert any("velocity" in name for name in states)
    assert [name for name in states if not np.array_equal(before[name], after[name])] == []
    net.run(GOOD)
    assert not np.array_equal(net.scope["w"], after["w"])


@cell("device capability", "MXNet 2")
def test_what_type_inference_cannot_make_low_stays_as_written():
    """MXNet's inference fails on it and warns; here schemas and kernels say so, and a report has the reason."""
    model = parse(f"{PRODUCT} <float[4,4] h> {{ h = my.Foo (x) y = MatMul (h, w) }}", imports=', "my": 1')
    program = amp.convert_model(model, target_dtype_ops=["my::Foo", "MatMul"])
    assert (dtypes(program, "Foo"), dtypes(program, "MatMul")) == (["FLOAT"], ["FLOAT16"])
    sizes = {"r": array(1, 12, 4, scale=0.3), "u": array(1, 12, 4, seed=1, scale=0.3)}
    head = "(float[3,1,4] x) => (float[3,1,1,4] y)"
    report = amp.transpile(
        parse(f"{head} {{ [gru] y = GRU <hidden_size = 4> (x, r, u) }}", **sizes), policy="mxnet", verify=False
    )
    assert decisions(report)["gru"] == "high"
    assert "no float16 kernel" in reasons(report)["gru"]


@HAS_SWIGLU
@cell("stats / audit", "MXNet 2")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_lists_cover_operators_that_exist_once_each(dtype):
    queries = (amp.list_lp16_ops, amp.list_fp32_ops, amp.list_widest_type_cast, amp.list_lp16_fp32_ops)
    every = [name for query in queries for name in query(dtype)]
    assert len(every) == len(set(every))
    schemas = [*onnx.defs.get_all_schemas_with_history(), *get_all_operator_schema()]
    known = {f"{schema.domain}::{schema.name}".removeprefix("::") for schema in schemas}
    conditional = [name for name, _, _ in amp.list_conditional_fp32_ops(dtype)]
    assert {name.partition("[")[0] for name in [*every, *conditional]} - known == set()


@cell("user cast", "MXNet 2")
def test_a_cast_of_the_users_stays():
    program = converted("h = MatMul (x, w) up = Cast <to = 1> (h) y = Relu (up)")
    assert dtypes(program, "Relu") == ["FLOAT"]
    program = converted("low = Cast <to = 10> (x) a = Relu (low) y = Cast <to = 1> (a)")
    assert dtypes(program, "Relu") == ["FLOAT16"]
    assert len(casts(program)) == 2


ACCURATE = {
    "MatMul": ("MatMul (x, w)", "float[4,4] x, float[4,4] w", "float[4,4]", (X, W)),
    "Gemm": ("Gemm <transB = 1> (x, w)", "float[4,4] x, float[4,4] w", "float[4,4]", (X, W)),
    "Einsum": ('Einsum <equation = "ij,kj->ik"> (x, w)', "float[4,4] x, float[4,4] w", "float[4,4]", (X, W)),
    "Conv": (
        "Conv (x, w)",
        "float[1,4,4,4] x, float[2,4,3,3] w",
        "float[1,2,2,2]",
        (array(1, 4, 4, 4), array(2, 4, 3, 3, seed=1)),
    ),
    "ConvTranspose": (
        "ConvTranspose (x, w)",
        "float[1,4,4,4] x, float[4,2,3,3] w",
        "float[1,2,6,6]",
        (array(1, 4, 4, 4), array(4, 2, 3, 3, seed=1)),
    ),
}


@cell("accuracy bar in own tests", "MXNet 2")
@pytest.mark.parametrize("name", ACCURATE)
def test_a_low_operator_is_within_a_hundredth(name):
    call, inputs, out, arrays = ACCURATE[name]
    head, feeds = f"({inputs}) => ({out} y)", dict(zip("xw", arrays, strict=True))
    program = converted(f"y = {call}", head)
    assert dtypes(program, name) == ["FLOAT16"]
    expected = run(parse(f"{head} {{ y = {call} }}", opset=20), feeds)["y"]
    result = run_emulated(program, feeds)["y"]
    assert 0 < relative(expected, result) < 1e-2
