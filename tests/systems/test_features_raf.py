"""RAF's autocast: a test a cell of the feature table's column "RAF"."""

import pathlib

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import OptionError
from amp_transpiler.paddle.utils import unique_name
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

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
PRODUCT = "(float[4,4] x, float[4,4] w) => (float[4,4] y)"
X, W = array(4, 4), array(4, 4, seed=1, scale=0.5)


def converted(body, head=PRODUCT, *, opset=20, imports="", weights=None, **options):
    """The program that autocast makes of a graph; it must be valid."""
    program = amp.autocast(parse(f"{head} {{ {body} }}", opset=opset, imports=imports, **(weights or {})), **options)
    assert_valid(program)
    return program


def down(program):
    """The names of the values that are cast to float16, sorted."""
    return sorted(name for name, _, to in casts(program) if to == "FLOAT16")


def training_step():
    """A program that learns `mean((x @ w + b)^2)` by SGD, its startup program, and its loss."""
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        h = static.nn.fc(static.data("x", [None, 4]), 4)
        loss = tensor.mean(h * h)
        optimizer.SGD(0.1).minimize(loss, startup)
    return main, startup, loss


@cell("form", "RAF")
def test_a_whole_training_step_becomes_another_program():
    """A pass over forward, backward and update alike; ONNX graphs are flat, so there is no let-list."""
    main, _, _ = training_step()
    before = [(node.op_type, node.outputs[0].dtype) for node in nodes(main)]
    program = amp.autocast(main)
    assert dtypes(program, "MatMul") == ["FLOAT16", "FLOAT16"], "the product, and the gradient of its weight"
    assert [(node.op_type, node.outputs[0].dtype) for node in nodes(main)] == before
    assert dtypes(main, "MatMul") == ["FLOAT", "FLOAT"]


@cell("low dtypes", "RAF")
@pytest.mark.parametrize(("dtype", "name"), [("float16", "FLOAT16"), ("bfloat16", "BFLOAT16")])
def test_both_low_formats(dtype, name):
    """RAF claims bfloat16 and aborts on it; here it works."""
    program = converted("h = MatMul (x, w) y = Relu (h)", dtype=dtype, out_dtype="float32")
    assert dtypes(program, "MatMul") == dtypes(program, "Relu") == [name]
    assert relative(np.maximum(X @ W, 0), run_emulated(program, {"x": X, "w": W})["y"]) < 0.02


@cell("list mode", "RAF")
def test_always_infer_and_never():
    program = converted("h = MatMul (x, w) r = Relu (h) y = Exp (r)")
    assert [dtypes(program, op) for op in ("MatMul", "Relu", "Exp")] == [["FLOAT16"], ["FLOAT16"], ["FLOAT"]]
    program = converted("r = Relu (x) y = Exp (r)")
    assert casts(program) == [], "what infers follows its float32 input"


@cell("unlisted op", "RAF")
def test_operators_without_a_rule_are_an_error_that_counts_them():
    body = "<float[4,4] a, float[4,4] b> { a = my.own.Foo (x) b = my.own.Foo (a) y = my.own.Bar (b) }"
    model = parse(f"{PRODUCT} {body}", imports=', "my.own": 1')
    with pytest.raises(OptionError, match=r"my\.own::Bar \(1 node\), my\.own::Foo \(2 nodes\)"):
        amp.autocast(model)


@cell("gray/promotion rule", "RAF")
@pytest.mark.parametrize(
    ("call", "expected"),
    [("Max (h, x)", "FLOAT16"), ("Max (h, x, w)", "FLOAT"), ("Max (h, x, h)", "FLOAT16")],
)
def test_the_majority_decides_and_a_tie_goes_low(call, expected):
    assert dtypes(converted(f"h = MatMul (x, w) y = {call}"), "Max") == [expected]


@cell("per-op override", "RAF")
def test_a_rule_of_the_users_hints_every_input_within_its_block():
    def first_alone(node, inputs, low_dtype):
        return [low_dtype, None]

    def converted_foo():
        model = parse(
            f"{PRODUCT} <float[4,4] y> {{ h = MatMul (x, w) y = my.own.Foo (h, w) }}", imports=', "my.own": 1'
        )
        return nodes(amp.autocast(model), "Foo")[0]

    with amp.CustomTypeHint({"my.own::Foo": first_alone}):
        assert [value.dtype.name for value in converted_foo().inputs] == ["FLOAT16", "FLOAT"]
    with pytest.raises(OptionError, match="no casting rule"):
        converted_foo()


@cell("attribute-conditional", "RAF")
def test_a_rule_goes_by_the_types_that_arrive():
    """RAF tells a rule types alone; ours is given the node as well, so it can ask for attributes too."""

    def follow(node, inputs, low_dtype):
        assert node.attributes["axis"].as_int() == 1
        return [inputs[0].dtype]

    with amp.CustomTypeHint({"Softmax": follow}):
        program = converted("h = MatMul (x, w) a = Softmax <axis = 1> (h) b = Softmax <axis = 1> (x) y = Sub (a, b)")
    assert dtypes(program, "Softmax") == ["FLOAT16", "FLOAT"]


@cell("param storage", "RAF")
@cell("master weights", "RAF")
def test_parameters_stay_float32_in_the_scope_and_are_cast_in_the_graph():
    """They are the master weights: an update too small for float16 arrives."""
    main, startup, loss = training_step()
    program, scope, executor = amp.autocast(main), static.Scope(), static.Executor(amp.CPUPlace())
    executor.run(startup, scope=scope)
    [weight] = [parameter.name for parameter in main.all_parameters() if parameter.shape == (4, 4)]
    assert casts(program).count((weight, "FLOAT", "FLOAT16")) == 1
    [rate] = [name for name in scope if "learning_rate" in name]
    scope[rate] = np.full_like(scope[rate], 1e-6)
    scope[weight] = before = np.full((4, 4), 0.5, np.float32)
    executor.run(program, {"x": X}, [loss], scope=scope)
    after = np.array(scope[weight])
    assert after.dtype == np.float32
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(after.astype(np.float16), before.astype(np.float16))


@cell("shared param", "RAF")
def test_a_shared_parameter_is_low_for_one_reader_and_float32_for_another():
    """RAF casts it at every use; here the uses in one type share a cast."""
    program = converted("h = MatMul (x, w) g = MatMul (h, w) e = Exp (w) y = Add (g, e)")
    assert down(program).count("w") == 1
    assert [node.inputs[1].dtype.name for node in nodes(program, "MatMul")] == ["FLOAT16", "FLOAT16"]
    assert nodes(program, "Exp")[0].inputs[0].name == "w"


@cell("cast dedup", "RAF")
def test_an_elementwise_reader_shares_the_cast():
    """RAF gives a reader that it could fuse with the cast one of its own: here ONNX Runtime fuses, casts are shared."""
    program = converted("h = MatMul (x, w) y = Add (h, x)")
    assert down(program) == ["w", "x"]
    assert nodes(program, "Add")[0].inputs[1] is nodes(program, "MatMul")[0].inputs[0]


NORM = {"s": array(4, low=0.5), "b": array(4, seed=1), "m": array(4, seed=2), "v": array(4, seed=3, low=0.5)}


@cell("norm params", "RAF")
def test_parameters_of_normalisations():
    """CUDA's BatchNormalization has one type, so it is float32 whole; LayerNormalization's parameters go with its data.

    RAF has float32 parameters beside low data in both.
    """
    head = "(float[1,4,2,2] x, float[4,4,1,1] k) => (float[1,4,2,2] y)"
    program = converted("h = Conv (x, k) y = BatchNormalization (h, s, b, m, v)", head, weights=NORM)
    assert [value.dtype.name for value in nodes(program, "BatchNormalization")[0].inputs] == ["FLOAT"] * 5
    assert {constant(program, name).dtype.name for name in NORM} == {"float32"}
    scale = {"s": NORM["s"]}
    parameters = [
        [value.dtype.name for value in nodes(converted(body, weights=scale), "LayerNormalization")[0].inputs]
        for body in ("y = LayerNormalization (x, s)", "h = MatMul (x, w) y = LayerNormalization (h, s)")
    ]
    assert parameters == [["FLOAT", "FLOAT"], ["FLOAT16", "FLOAT16"]]


@cell("back-to-back cast removal", "RAF")
def test_casts_back_to_back_are_removed():
    """Two operators in a row that are low have no pair of casts between them, the user's own included."""
    body = "h = MatMul (x, w) up = Cast <to = 1> (h) again = Cast <to = 10> (up) y = MatMul (again, again)"
    program = converted(body, PRODUCT.replace("float[4,4] y", "float16[4,4] y"))
    assert down(program) == ["w", "x"]
    assert len(casts(program)) == 2


@cell("graph output dtype", "RAF")
def test_low_outputs_take_out_dtype_and_others_stay():
    head = PRODUCT.replace("=> (", "=> (float[4,4] e, ")
    for out_dtype, expected in ((None, "FLOAT16"), ("float16", "FLOAT16"), ("float32", "FLOAT")):
        program = converted("y = MatMul (x, w) e = Exp (x)", head, out_dtype=out_dtype)
        assert (dtype_of(program, "y"), dtype_of(program, "e")) == (expected, "FLOAT")


@cell("graph input dtype", "RAF")
def test_inputs_keep_their_types_and_args_are_checked_against_them():
    model = parse(f"{PRODUCT} {{ y = MatMul (x, w) }}")
    program = amp.autocast(model, {"x": X, "w": W})
    assert [dtype_of(program, name) for name in ("x", "w")] == ["FLOAT", "FLOAT"]
    with pytest.raises(amp.InputError):
        amp.autocast(model, {"x": X[:2], "w": W})


@cell("control flow", "RAF")
def test_both_branches_of_an_if_are_visited():
    """RAF leaves the type of an If behind; here its branches agree on it."""
    branches = """h = MatMul (x, w) y = If (c) <then_branch = t () => (float[4,4] a) { a = MatMul (h, w) },
        else_branch = e () => (float[4,4] b) { b = Exp (h) }>"""
    program = converted(branches, PRODUCT.replace("(float", "(bool c, float", 1))
    assert dtypes(program, "MatMul") == ["FLOAT16", "FLOAT16"]
    assert dtypes(program, "Exp") == ["FLOAT"]
    for flag, expected in ((True, X @ W @ W), (False, np.exp(X @ W))):
        result = run_emulated(program, {"c": np.array(flag), "x": X, "w": W})["y"]
        assert relative(expected, result) < 0.02


@cell("int/double tensors", "RAF")
def test_integers_and_doubles_are_untouched():
    program = converted(
        "y = MatMul (x, x) j = MatMulInteger (i, i)",
        "(double[4,4] x, uint8[4,4] i) => (double[4,4] y, int32[4,4] j)",
    )
    assert casts(program) == []


@cell("device capability", "RAF")
def test_what_has_no_low_kernel_stays_float32():
    """RAF asks TVM's patterns what fuses; here the table of ONNX Runtime's CUDA kernels says what can be low."""
    sizes = {"r": array(1, 12, 4, scale=0.3), "u": array(1, 12, 4, seed=1, scale=0.3)}
    for reset, expected in ((0, "FLOAT"), (1, "FLOAT16")):
        program = converted(
            f"y = GRU <hidden_size = 4, linear_before_reset = {reset}> (x, r, u)",
            "(float[3,1,4] x) => (float[3,1,1,4] y)",
            weights=sizes,
        )
        assert dtypes(program, "GRU") == [expected]


@cell("stats / audit", "RAF")
def test_casts_are_counted():
    """Of a convolution whose split result is joined again, only the two inputs are cast."""
    program = converted(
        "h = Conv (x, k) p, q = Split <axis = 1, num_outputs = 2> (h) y = Concat <axis = 1> (p, q)",
        "(float[1,4,2,2] x, float[4,4,1,1] k) => (float[1,4,2,2] y)",
    )
    stats = amp.debugging.collect_operator_stats(program)
    assert (stats["Cast"].fp32, stats["Cast"].fp16) == (2, 0)
    assert [stats[op].fp16 for op in ("Conv", "Split", "Concat")] == [1, 1, 1]


@cell("user cast", "RAF")
def test_a_cast_of_the_users_is_folded_where_it_says_nothing_new():
    """The user's casts up and down around a convolution of float16 inputs leave none."""
    head = "(float16[1,4,2,2] x, float16[4,4,1,1] k) => (float16[1,4,2,2] y)"
    body = "up = Cast <to = 1> (x) ku = Cast <to = 1> (k) h = Conv (up, ku) y = Cast <to = 10> (h)"
    program = converted(body, head)
    assert dtypes(program, "Conv") == ["FLOAT16"]
    assert casts(program) == []


UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # the largest relative error of one rounding
SUM = 2.0**-24 * 4 * 3 * 3  # of a float32 sum of as many products


@cell("accuracy bar in own tests", "RAF")
@pytest.mark.parametrize("dtype", UNIT)
def test_a_convolution_is_as_close_as_its_roundings_allow(dtype):
    """Of both inputs and of the result; RAF asks for 1e-1."""
    head, opset = "(float[1,4,8,8] x, float[4,4,3,3] k) => (float[1,4,6,6] y)", 22
    plain = parse(f"{head} {{ y = Conv (x, k) }}", opset=opset)
    feeds = {"x": array(1, 4, 8, 8), "k": array(4, 4, 3, 3, seed=1)}
    exact = run(plain, feeds)["y"].astype(np.float64)
    sizes = run(plain, {name: np.abs(value) for name, value in feeds.items()})["y"].astype(np.float64)
    program = converted("y = Conv (x, k)", head, opset=opset, dtype=dtype, out_dtype="float32")
    result, unit = run_emulated(program, feeds)["y"].astype(np.float64), UNIT[dtype]
    of_inputs = ((1 + unit) ** 2 - 1 + SUM) * sizes
    assert (np.abs(result - exact) <= of_inputs + unit * (np.abs(exact) + of_inputs)).all()
    assert np.abs(result - exact).max() > unit * np.abs(exact).mean(), "it was computed in float32"


@cell("accuracy bar in own tests", "RAF")
@pytest.mark.parametrize(("dtype", "bar"), [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_lenet_is_as_close_to_torchs_autocast_as_raf_asks(dtype, bar):
    """1e-3, and as many times more in bfloat16 as it is coarser. The network is written anew in torch."""
    torch = pytest.importorskip("torch", reason="torch is not installed: it is the reference")
    lenet, nn = MODELS / "paddle_lenet.onnx", torch.nn
    layers = [nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1014, 10)]
    net = nn.Sequential(*layers, nn.Softmax(-1)).eval()
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(lenet).graph.initializer}
    net.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()}, strict=False)
    feeds = dict(np.load(MODELS / "paddle_lenet.inputs.npz"))
    with torch.no_grad():
        plain = net(torch.from_numpy(feeds["image"])).numpy()
        with torch.autocast("cpu", getattr(torch, dtype)):
            expected = net(torch.from_numpy(feeds["image"]))
    assert expected.dtype == getattr(torch, dtype)
    results = run_emulated(amp.autocast(str(lenet), dtype=dtype, out_dtype="float32"), feeds)["predict"]
    np.testing.assert_allclose(results, expected.float().numpy(), rtol=bar, atol=0)
    assert np.abs(results / plain - 1).max() > UNIT[dtype] / 4, "it was computed in float32"
