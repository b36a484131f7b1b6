"""`autocast` by RAF's casting rules; programs that train are in test_raf_training.py.

Weights are graph inputs, as they are there. A value is cast once however many nodes read it, where RAF gives every
elementwise reader a cast of its own: the tests assert our count and cite theirs.
"""

import json

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler import cli
from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.verifier import verify
from amp_transpiler.systems.raf import casting_rules
from tests import support
from tests.support import (
    LIMITS,
    LOW_NAMES,
    NUMPY,
    array,
    assert_close,
    assert_valid,
    casts,
    constant,
    dtype_of,
    dtypes,
    nodes,
    parse,
    reasons,
)

FORMATS = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
TO = {"float16": 10, "bfloat16": 16}  # ONNX's numbers of the types

X, W, B = array(1, 2, 4, 4), array(2, 2, 1, 1, seed=1), array(2, 1, 1, seed=2)
A, M, V = array(2, 4), array(4, 3, seed=1), array(3, seed=2)


def autocast(model, feeds, dtype="float16", **options):
    """Autocast; assert that the source is as it was, the result valid, its inputs' types kept and its values close."""
    before = model.SerializeToString(deterministic=True)
    program = amp.autocast(model, feeds, dtype, **options)
    assert model.SerializeToString(deterministic=True) == before
    assert_valid(program)
    assert [v.type for v in program.to_onnx().graph.input] == [v.type for v in model.graph.input]
    assert_close(run(model, feeds), run(program, feeds), LIMITS[dtype])
    return program


def run(model, feeds):
    """Run on the CPU, a low program emulated, and return the outputs by name."""
    names = [value.name for value in amp.load(model).model.graph.outputs]
    return dict(zip(names, amp.Session(model, amp.CPUPlace()).run(feeds), strict=True))


def output_types(program):
    return [value.dtype.name for value in program.model.graph.outputs]


def went(program, to):
    """Names of the values that are cast to a type, sorted."""
    return sorted(name for name, _, target in casts(program) if target == to)


def never(_node, inputs, _low_dtype):
    return ["float32"] * len(inputs)


def as_it_is(_node, inputs, _low_dtype):
    return [None] * len(inputs)


def always(_node, inputs, low_dtype):
    return [low_dtype] * len(inputs)


@pytest.fixture
def registry(monkeypatch):
    """No rules registered, and what the test registers is gone after it."""
    monkeypatch.setattr(casting_rules, "_registered", {})


# ---- RAF's test of a convolution and its bias ----


BIAS = "(float[1,2,4,4] x, float[2,2,1,1] w, float[2,1,1] b) => (float[1,2,4,4] y) { c = Conv (x, w) y = Add (c, b) }"
BIAS_FIRST = BIAS.replace("(c, b)", "(b, c)")
BIAS_FEEDS = {"x": X, "w": W, "b": B}


@FORMATS
def test_convolution_and_bias(dtype):
    program = autocast(parse(BIAS), BIAS_FEEDS, dtype)
    assert went(program, LOW_NAMES[dtype]) == ["b", "w", "x"]
    assert len(casts(program)) == 3
    assert output_types(program) == [LOW_NAMES[dtype]]


@FORMATS
def test_a_bias_that_is_never_cast(dtype):
    model, low = parse(BIAS), LOW_NAMES[dtype]
    with amp.CustomTypeHint({"Add": never}):
        program = autocast(model, BIAS_FEEDS, dtype)
    assert (went(program, low), went(program, "FLOAT")) == (["w", "x"], ["c"])
    assert len(casts(program)) == 3
    assert (dtypes(program, "Add"), output_types(program)) == (["FLOAT"], ["FLOAT"])
    again = autocast(model, BIAS_FEEDS, dtype)
    assert (went(again, low), output_types(again)) == (["b", "w", "x"], [low]), "the rule is gone outside of the block"


def follow_first(_node, inputs, low_dtype):
    """The document's `cast_bias_add`: as the first input comes."""
    target = low_dtype if inputs[0].dtype == low_dtype else "float32"
    return [target, target]


@FORMATS
def test_the_casting_rule_of_the_document(dtype, registry):
    amp.casting_rule("Add")(follow_first)
    low = LOW_NAMES[dtype]
    program = autocast(parse(BIAS), BIAS_FEEDS, dtype)
    assert (went(program, low), output_types(program)) == (["b", "w", "x"], [low])
    turned = autocast(parse(BIAS_FIRST), BIAS_FEEDS, dtype)
    assert (went(turned, low), went(turned, "FLOAT")) == (["w", "x"], ["c"]), "float32 comes first"
    assert output_types(turned) == ["FLOAT"]
    with amp.CustomTypeHint({"Add": always}):
        assert output_types(autocast(parse(BIAS_FIRST), BIAS_FEEDS, dtype)) == [low], "a block wins over it"


def test_the_default_of_add_is_low_if_either_is():
    assert output_types(autocast(parse(BIAS_FIRST), BIAS_FEEDS)) == ["FLOAT16"]


# ---- two outputs, split results, casts of the user's own, comparisons ----


@FORMATS
@pytest.mark.parametrize(("out_dtype", "count"), [("low", 2), ("float32", 4)])
def test_two_outputs(dtype, out_dtype, count):
    model = parse(
        "(float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] c, float[1,2,4,4] r) { c = Conv (x, w) r = Relu (c) }"
    )
    program = autocast(model, {"x": X, "w": W}, dtype, out_dtype=dtype if out_dtype == "low" else out_dtype)
    assert len(casts(program)) == count
    assert output_types(program) == [LOW_NAMES[dtype] if out_dtype == "low" else "FLOAT"] * 2
    assert [value.name for value in program.model.graph.outputs] == ["c", "r"]
    assert dtypes(program, "Conv") == dtypes(program, "Relu") == [LOW_NAMES[dtype]]


@FORMATS
def test_split_results_joined_again_cast_the_inputs_alone(dtype):
    model = parse(
        """(float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] y) {
            c = Conv (x, w) a, b = Split <axis = 1, num_outputs = 2> (c) y = Concat <axis = 1> (a, b)
        }"""
    )
    program = autocast(model, {"x": X, "w": W}, dtype)
    assert len(casts(program)) == 2
    assert went(program, LOW_NAMES[dtype]) == ["w", "x"]
    assert output_types(program) == [LOW_NAMES[dtype]]


def behind_casts(dtype, op_type):
    """A low model that computes one operator in float32, as its author wrote it."""
    inputs = {"x": X, "w": W} if op_type == "Conv" else {"x": X}
    declared = ", ".join(f"{dtype}[{','.join(map(str, a.shape))}] {name}" for name, a in inputs.items())
    up = " ".join(f"{name}f = Cast <to = 1> ({name})" for name in inputs)
    body = f"{up} r = {op_type} ({', '.join(f'{name}f' for name in inputs)}) y = Cast <to = {TO[dtype]}> (r)"
    model = parse(f"({declared}) => ({dtype}[1,2,4,4] y) {{ {body} }}")
    return model, {name: a.astype(NUMPY[dtype]) for name, a in inputs.items()}


@FORMATS
@pytest.mark.parametrize("op_type", ["Conv", "Relu"])
@pytest.mark.parametrize(("out_dtype", "count"), [("low", 0), ("float32", 1)])
def test_casts_of_the_users_own(dtype, op_type, out_dtype, count):
    model, feeds = behind_casts(dtype, op_type)
    program = autocast(model, feeds, dtype, out_dtype=dtype if out_dtype == "low" else out_dtype)
    assert len(casts(program)) == count
    assert dtypes(program, op_type) == [LOW_NAMES[dtype]]
    assert output_types(program) == ["FLOAT" if count else LOW_NAMES[dtype]]


@FORMATS
def test_a_product_compared_with_a_float32_constant(dtype):
    model = parse("(float[2,4] x, float[4,3] w, float[3] v) => (bool[2,3] y) { m = MatMul (x, w) y = Less (m, v) }")
    program = autocast(model, {"x": A, "w": M, "v": V}, dtype)
    if dtype == "float16":
        assert went(program, "FLOAT16") == ["v", "w", "x"], "one low, one float32: a tie goes low"
    else:  # ONNX Runtime's CUDA provider compares no bfloat16, so the product is cast back: as many casts
        assert (went(program, "BFLOAT16"), went(program, "FLOAT")) == (["w", "x"], ["m"])
    assert len(casts(program)) == 3
    assert output_types(program) == ["BOOL"]


# ---- casts that are reused, concatenation, where ----


@FORMATS
def test_casts_are_reused(dtype):
    model = parse(
        """(float[4,4] x, float[4,4] w) => (float[4,4] out5) {
            out1 = MatMul (x, w) out6 = MatMul (x, w)
            out2 = Softmax (out1) out3 = Exp (out1) out4 = Add (out2, out3) out5 = Add (out4, out6)
        }"""
    )
    program = autocast(model, {"x": array(4, 4), "w": array(4, 4, seed=1, scale=0.5)}, dtype)
    # RAF: 5, since Softmax and Exp each get a cast of out1, to be fused with. Here they share it: 4.
    assert went(program, LOW_NAMES[dtype]) == ["out4", "w", "x"]
    assert went(program, "FLOAT") == ["out1"]
    assert len(casts(program)) == 4
    assert output_types(program) == [LOW_NAMES[dtype]]


@FORMATS
@pytest.mark.parametrize(
    ("high", "low", "count", "is_low"),
    [
        pytest.param(2, 3, 2, True, id="most are low"),
        pytest.param(3, 2, 2, False, id="most are float32"),
        pytest.param(3, 4, 4, False, id="more than five"),
        pytest.param(2, 2, 2, False, id="a tie is no majority"),
        pytest.param(0, 5, 0, True, id="five are not too many"),
    ],
)
def test_a_concatenation_follows_a_strict_majority(dtype, high, low, count, is_low):
    feeds = {f"f{i}": array(2, 4, seed=i) for i in range(high)}
    feeds |= {f"l{i}": array(2, 4, seed=10 + i).astype(NUMPY[dtype]) for i in range(low)}
    declared = ", ".join(f"{'float' if name[0] == 'f' else dtype}[2,4] {name}" for name in feeds)
    up = " ".join(f"u{i} = Cast <to = 1> (l{i})" for i in range(low))
    parts = ", ".join([*(f"f{i}" for i in range(high)), *(f"u{i}" for i in range(low))])
    model = parse(f"({declared}) => (float[2,{4 * (high + low)}] y) {{ {up} y = Concat <axis = 1> ({parts}) }}")
    program = autocast(model, feeds, dtype)
    assert len(casts(program)) == count
    assert dtypes(program, "Concat") == output_types(program) == [LOW_NAMES[dtype] if is_low else "FLOAT"]


@FORMATS
def test_where_casts_its_inputs_and_not_its_condition(dtype):
    model = parse(
        """(bool[2,3] condition, float[2,4] x, float[4,3] w, float[3] v) => (float[2,3] y) {
            m = MatMul (x, w) y = Where (condition, m, v)
        }"""
    )
    condition = np.array([[True, False, True], [False, True, False]])
    program = autocast(model, {"condition": condition, "x": A, "w": M, "v": V}, dtype)
    assert went(program, LOW_NAMES[dtype]) == ["v", "w", "x"]
    assert len(casts(program)) == 3
    assert dtype_of(program, "condition") == "BOOL"
    assert output_types(program) == [LOW_NAMES[dtype]]


# ---- RAF's LeNet ----


LENET = """(float[8,1,28,28] image) => (float[8,10] logits) {
    a = Conv <pads = [2, 2, 2, 2]> (image, w0, b0) ar = Relu (a)
    ap = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (ar)
    b = Conv (ap, w1, b1) br = Relu (b)
    bp = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (br)
    f = Flatten (bp) c = Gemm <transB = 1> (f, w2, b2) cr = Relu (c)
    d = Gemm <transB = 1> (cr, w3, b3) dr = Relu (d) logits = Gemm <transB = 1> (dr, w4, b4)
}"""


def torch_lenet(torch):
    torch.manual_seed(0)
    nn = torch.nn
    layers = [
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
    ]
    layers += [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("image_scale", [1.0, 10.0])
def test_lenet_is_torchs_autocast(image_scale):
    """The reference is `torch.autocast("cpu", torch.float16)`, which knows float16 since PyTorch 2.3."""
    torch = pytest.importorskip("torch")
    net = torch_lenet(torch)
    weights = {}
    for index, layer in enumerate(layer for layer in net if hasattr(layer, "weight")):
        weights |= {f"w{index}": layer.weight.detach().numpy(), f"b{index}": layer.bias.detach().numpy()}
    image = array(8, 1, 28, 28, scale=image_scale)
    with torch.no_grad():
        plain = net(torch.from_numpy(image)).numpy()
        with torch.autocast("cpu", torch.float16):
            expected = net(torch.from_numpy(image))
    assert expected.dtype == torch.float16
    model = parse(LENET, **weights)
    program = autocast(model, {"image": image})
    result = run(program, {"image": image})["logits"]
    assert result.dtype == np.float16
    largest = expected.abs().max().item()  # below 1, where RAF's atol is no bar at all
    np.testing.assert_allclose(result.astype(np.float32), expected.float().numpy(), rtol=1e-3, atol=1e-3 * largest)
    assert not np.array_equal(result, plain.astype(np.float16)), "it was computed in float32"
    assert went(program, "FLOAT16") == ["image"], "weights inside the model are converted in the file"
    assert {constant(program, name).dtype.name for name in weights} == {"float16"}


# ---- rules of the user's own ----


CONTRIB = """(float[2,4] x, float[4,3] w, float[3] b) => (float[2,3] y) {
    m = com.microsoft.FusedMatMul (x, w) y = com.microsoft.BiasGelu (m, b)
}"""


def contrib():
    return parse(CONTRIB, imports=', "com.microsoft": 1'), {"x": A, "w": M, "b": V}


@FORMATS
def test_a_rule_on_a_contrib_operator(dtype):
    model, feeds = contrib()
    low = LOW_NAMES[dtype]
    program = autocast(model, feeds, dtype)
    assert (dtypes(program, "FusedMatMul"), dtypes(program, "BiasGelu")) == ([low], ["FLOAT"])
    assert (went(program, low), went(program, "FLOAT")) == (["w", "x"], ["m"])
    with amp.CustomTypeHint({"com.microsoft::BiasGelu": always, "com.microsoft::FusedMatMul": as_it_is}):
        program = autocast(model, feeds, dtype)
    assert (dtypes(program, "FusedMatMul"), dtypes(program, "BiasGelu")) == (["FLOAT"], [low])
    assert went(program, low) == ["b", "m"]


FOO = """(float[2,4] x, float[4,4] w, int64[2] n) => (float[2,4] y)
    <float[2,4] f, float[2,4] g, float[2,4] h> {
    m = MatMul (x, w) f = my.domain.Foo (m, w, n) g = my.domain.Foo (f, w, n) h = my.domain.Bar (g) y = Relu (h)
}"""


def foo(version=1):
    return parse(FOO, imports=f', "my.domain": {version}')


@FORMATS
def test_a_rule_on_an_operator_of_another_domain(dtype):
    model, asked = foo(), []

    def all_floats(node, inputs, low_dtype):
        asked.append((node.op_type, [about.dtype for about in inputs], low_dtype))
        return [low_dtype, low_dtype, None]

    with amp.CustomTypeHint({"my.domain::Foo": all_floats, "my.domain::Bar": as_it_is}):
        program = amp.autocast(model, dtype=dtype)
    low = LOW_NAMES[dtype]
    assert set(map(str, asked)) == {str(("Foo", [dtype, "float32", "int64"], dtype))}
    assert (dtypes(program, "Foo"), dtypes(program, "Bar")) == ([low, low], ["FLOAT"])
    assert (went(program, low), went(program, "FLOAT")) == (["w", "x"], ["g"])
    verify(program.model, "autocast")
    onnx.checker.check_model(program.to_onnx(), full_check=True)
    assert {entry.domain: entry.version for entry in program.to_onnx().opset_import}["my.domain"] == 1


def test_an_operator_without_a_rule_is_refused_with_all_offenders():
    model = foo()
    before = model.SerializeToString(deterministic=True)
    with pytest.raises(OptionError, match=r"my\.domain::Bar \(1 node\), my\.domain::Foo \(2 nodes\)") as caught:
        amp.autocast(model)
    assert isinstance(caught.value, ValueError)
    assert "casting_rule" in str(caught.value)
    assert "CustomTypeHint" in str(caught.value)
    with (
        amp.CustomTypeHint({"my.domain::Foo": lambda *_: [None] * 3}),
        pytest.raises(OptionError, match=r"no casting rule for my\.domain::Bar \(1 node\):"),
    ):
        amp.autocast(model)
    with pytest.raises(OptionError, match=r"my\.domain::Foo \(2 nodes\)"):
        amp.transpile(model, policy="raf")
    assert model.SerializeToString(deterministic=True) == before


# ---- arguments ----


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"x": X, "w": W, "bias": B}, "args: unknown input 'bias'"),
        ({"x": X, "w": W}, "args: missing input 'b'"),
        ({"x": X, "w": W, "b": B[0]}, "args: input 'b' has the wrong rank"),
        ({"x": X[:, :, :3], "w": W, "b": B}, "args: input 'x' has the wrong shape"),
        ([X, W, B, B], "got 4 arrays, the program has 3 inputs: x, w, b"),
        ([X, W], "args: missing input 'b'"),
        ([W, X, B], "args: input 'x' has the wrong shape"),
        ([X, W, np.array([["a"]])], "args: input 'b'"),
    ],
)
def test_args_that_do_not_fit_are_refused(args, message):
    with pytest.raises(InputError, match=message):
        amp.autocast(parse(BIAS), args)


@pytest.mark.parametrize("args", [None, [X, W, B], (X, W, B), {"b": B, "w": W, "x": X}])
def test_args_do_not_change_the_result(args):
    assert amp.autocast(parse(BIAS), args).to_onnx() == amp.autocast(parse(BIAS)).to_onnx()


@pytest.mark.parametrize(
    "options", [{"out_dtype": "bfloat16"}, {"out_dtype": "int8"}, {"out_dtype": "half-ish"}, {"dtype": "float64"}]
)
def test_wrong_types_are_refused(options):
    with pytest.raises(OptionError) as caught:
        amp.autocast(parse(BIAS), **options)
    assert repr(next(iter(options.values()))) in str(caught.value)


def test_the_low_type_of_out_dtype_follows_dtype():
    with pytest.raises(OptionError, match="'float32' or the low format, 'bfloat16'"):
        amp.autocast(parse(BIAS), dtype="bfloat16", out_dtype="float16")


# ---- the other doors ----


def small():
    return parse(
        """(float[2,4] x) => (float[2,3] y) {
            [product] m = MatMul (x, w) [shift] a = Add (m, b) [soft] y = Softmax (a)
        }""",
        w=M,
        b=V,
    )


@FORMATS
def test_transpile_keeps_the_types_of_inputs_and_outputs(dtype):
    report = amp.transpile(small(), policy="raf", dtype=dtype, inputs={"x": A})
    assert_valid(report.program)
    assert (dtype_of(report.program, "x"), output_types(report.program)) == ("FLOAT", ["FLOAT"])
    assert [dtypes(report.program, op)[0] for op in ("MatMul", "Add", "Softmax")] == [LOW_NAMES[dtype]] * 2 + ["FLOAT"]
    assert len(casts(report.program)) == report.casts == 2
    assert "RAF: MatMul always runs in lower precision (matmul, batch_matmul)" in reasons(report)["product"]
    relu = parse("(float[2,4] x, float[4,3] w) => (float[2,3] y) { m = MatMul (x, w) y = Relu (m) }")
    converted = amp.transpile(relu, policy="raf", dtype=dtype).program
    assert (dtypes(converted, "Relu"), output_types(converted)) == ([LOW_NAMES[dtype]], ["FLOAT"])
    assert output_types(amp.autocast(relu, dtype=dtype)) == [LOW_NAMES[dtype]], "autocast leaves the output low"


@FORMATS
def test_the_command(dtype, tmp_path, capsys):
    source, target, told = tmp_path / "m.onnx", tmp_path / "o.onnx", tmp_path / "o.json"
    onnx.save(small(), source)
    options = ["--policy", "raf", "--dtype", dtype, "--explain", "--json", str(told)]
    assert cli.main([str(source), "-o", str(target), *options]) == 0
    program = amp.load(target)
    assert_valid(program)
    assert [dtypes(program, op)[0] for op in ("MatMul", "Add", "Softmax")] == [LOW_NAMES[dtype]] * 2 + ["FLOAT"]
    assert output_types(program) == ["FLOAT"]
    assert json.loads(told.read_text())["low_nodes"] == 2
    assert "RAF: Softmax never runs in lower precision" in " ".join(capsys.readouterr().out.split())


def test_the_command_refuses_what_has_no_rule(tmp_path, capsys):
    source = tmp_path / "m.onnx"
    onnx.save(foo(), source)
    assert cli.main([str(source), "-o", str(tmp_path / "o.onnx"), "--policy", "raf"]) == 2
    assert "my.domain::Foo (2 nodes)" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "o.onnx").exists()
    # On the black list an operator stays float32, and the rest is converted.
    black = ["--black", "my.domain::Foo", "--black", "my.domain::Bar", "--no-verify"]
    assert cli.main([str(source), "-o", str(tmp_path / "o.onnx"), "--policy", "raf", *black]) == 0
    program = amp.load(tmp_path / "o.onnx")
    assert (dtypes(program, "MatMul"), dtypes(program, "Foo")) == (["FLOAT16"], ["FLOAT", "FLOAT"])
    assert {node.op_type for node in nodes(program)} == {"MatMul", "Foo", "Bar", "Relu", "Cast"}


def test_batch_normalization_is_folded_where_its_statistics_could_not_stay_float32():
    """RAF keeps them float32; CUDA's kernel has one type for all, so that they go into the convolution's weights."""
    statistics = {
        name: array(8, seed=i, scale=1.0, low=0.5) for i, name in enumerate(("scale", "shift", "mean", "var"))
    }
    graph = """(float[1,4,8,8] x) => (float[1,8,8,8] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w) n = BatchNormalization (c, scale, shift, mean, var) y = Relu (n)
    }"""
    model = parse(graph, w=array(8, 4, 3, 3, scale=0.2), **statistics)
    program = amp.autocast(model)
    assert [node.op_type for node in support.nodes(program) if node.op_type != "Cast"] == ["Conv", "Relu"]
    assert support.dtypes(program, "Relu") == ["FLOAT16"]
    feed = {"x": array(1, 4, 8, 8)}
    result = support.run_emulated(program, feed)["y"].astype(np.float32)
    assert support.relative(support.run(model, feed)["y"], result) < 0.01
    amp.mark_region(guarded := amp.load(model), "disable_amp", nodes="n")
    assert "BatchNormalization" in {node.op_type for node in support.nodes(amp.autocast(guarded))}
