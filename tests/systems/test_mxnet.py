"""`convert_model` by MXNet's rules, and what MXNet refuses.

Upstream counts what nodes make: a weight is a variable there and no such tensor. `stats` does the same.
"""

import logging

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import convert, prepare
from amp_transpiler.errors import ModelError, OptionError
from amp_transpiler.graph.dtypes import FLOAT16
from amp_transpiler.precision.policy import Policy
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.systems.mxnet.conversion import convert_model, list_lp16_ops
from amp_transpiler.systems.mxnet.lists import default_mxnet_lists
from amp_transpiler.systems.mxnet.rules import MxnetRules
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.targets import CUDA, TARGETS
from tests.support import (
    LIMITS,
    array,
    assert_close,
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

FORMATS = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def stats(program, dtype="float16"):
    """Casts to low, other casts, and low tensors that nodes make."""
    low = {"float16": "FLOAT16", "bfloat16": "BFLOAT16"}[dtype]
    to = [target for _, _, target in casts(program)]
    results = [value for node in nodes(program) for value in node.outputs if node.op_type != "Constant"]
    return to.count(low), len(to) - to.count(low), sum(value.dtype.name == low for value in results)


def converted(model, dtype="float16", feeds=None, **options):
    """Convert, and assert that the source is as it was, the result valid, its outputs' types kept and values close."""
    before = model.SerializeToString(deterministic=True)
    program = convert_model(model, target_dtype=dtype, **options)
    assert model.SerializeToString(deterministic=True) == before
    assert_valid(program)
    outputs = [(v.name, v.type.tensor_type.elem_type) for v in program.to_onnx().graph.output]
    assert outputs == [(v.name, v.type.tensor_type.elem_type) for v in model.graph.output]
    if feeds is not None:
        assert_close(run(model, feeds), run_emulated(program, feeds), LIMITS[dtype])
    return program


WEIGHTS = {"w1": array(4, 4, seed=1), "b1": array(4, seed=2), "w2": array(4, 4, seed=3), "b2": array(4, seed=4)}
X = {"x": array(2, 4)}


@FORMATS
def test_two_gemms_and_a_reshape(dtype):
    model = parse(
        """(float[2,4] x, float[4,4] w1, float[4] b1, float[4,4] w2, float[4] b2) => (float[2,4] y)
            <int64[2] s = {2,4}> { h = Gemm (x, w1, b1) r = Reshape (h, s) y = Gemm (r, w2, b2) }"""
    )
    program = converted(model, dtype, {**X, **WEIGHTS})
    assert stats(program, dtype) == (5, 1, 8)


CONVOLUTIONS = """(float[1,2,4,4] x) => (float[1,3] y) <int64[2] s = {1,32}> {
    c = Conv (x, cw) t = ConvTranspose (c, tw) r = Reshape (t, s) y = Gemm <transB = 1> (r, w, b)
}"""


def convolutions():
    weights = {"cw": array(2, 2, 1, 1), "tw": array(2, 2, 1, 1, seed=1), "w": array(3, 32, seed=2), "b": array(3)}
    return parse(CONVOLUTIONS, **weights), {"x": array(1, 2, 4, 4)}


def test_parameters_are_cast_offline():
    model, feeds = convolutions()
    options = {"target_dtype_ops": ["Conv"], "fp32_ops": ["Gemm"], "feeds": feeds}
    program = converted(model, cast_params_offline=True, **options)
    assert stats(program) == (1, 1, 4)
    stored = {name: constant(program, name).dtype.name for name in ("cw", "tw", "w", "b")}
    assert stored == {"cw": "float16", "tw": "float16", "w": "float32", "b": "float32"}
    program = converted(model, **options)
    assert stats(program) == (3, 1, 6), "not offline: two more casts, of the weights of Conv and ConvTranspose"
    assert all(constant(program, name).dtype == np.float32 for name in stored)


def test_a_shared_bias_stays_float32_offline():
    model = parse(
        """(float[4,4] x) => (float[4,12] y) <int64[1] axis = {1}> {
            h = Gemm (x, w, b1) x1 = Gemm (h, w, b2)
            e = Unsqueeze (h, axis) c = Conv (e, cw, b2) x2 = Flatten (c) y = Concat <axis = 1> (x1, x2)
        }""",
        w=array(4, 4),
        b1=array(4),
        b2=array(4, seed=1),
        cw=array(4, 1, 3),
    )
    program = converted(
        model, feeds={"x": array(4, 4)}, target_dtype_ops=["Gemm"], fp32_ops=["Conv"], cast_params_offline=True
    )
    assert stats(program) == (2, 2, 5)
    assert dtype_of(program, "w") == dtype_of(program, "b1") == "FLOAT16"
    assert dtype_of(program, "b2") == "FLOAT"
    assert dtypes(program, "Concat") == ["FLOAT"]


@pytest.mark.parametrize("calls", ["f = Flatten (p) g = Gemm (p, w)", "g = Gemm (p, w) f = Flatten (p)"])
def test_the_order_of_independent_nodes_makes_no_difference(calls):
    body = f"(float[2,4] x) => (float[2,4] f, float[2,4] g) <float two = {{2}}> {{ p = Pow (x, two) {calls} }}"
    program = converted(parse(body, w=WEIGHTS["w1"]), feeds=X, cast_params_offline=True)
    assert stats(program) == (1, 2, 3)


def two_gemms():
    body = """(float[2,4] x) => (float[2,4] y) {
        [one] h = Gemm <transB = 0> (x, w1, b1) [two] y = Gemm <transB = 1> (h, w2, b2)
    }"""
    return parse(body, **WEIGHTS)


def test_exclusion_by_attribute():
    program = converted(two_gemms(), feeds=X, conditional_fp32_ops=[("Gemm", "transB", ["1"])])
    assert dtypes(program, "Gemm") == ["FLOAT16", "FLOAT"]
    assert stats(program) == (3, 1, 4)


def test_exclusion_by_an_attribute_that_stands_at_its_default():
    program = converted(two_gemms(), conditional_fp32_ops=[("Gemm", "transA", ["0"])])
    assert casts(program) == []


def test_exclusion_by_names():
    program = converted(two_gemms(), feeds=X, excluded_sym_names=["one", "two"])
    assert casts(program) == []
    program = converted(two_gemms(), feeds=X, excluded_sym_names=("one",))
    assert dtypes(program, "Gemm") == ["FLOAT", "FLOAT16"]


def test_exclusion_by_the_default_of_a_runtime_operator():
    body = "(float[2,4] x) => (float[2,4] y) { y = com.microsoft.FusedMatMul (x, w1) }"
    model = parse(body, imports=', "com.microsoft": 1', w1=WEIGHTS["w1"])
    condition = ("com.microsoft::FusedMatMul", "alpha")
    assert casts(converted(model, conditional_fp32_ops=[(*condition, ["1"])])) == []
    assert dtypes(converted(model, conditional_fp32_ops=[(*condition, ["0.5"])]), "FusedMatMul") == ["FLOAT16"]


def test_operators_on_no_list_are_reported_and_neutral():
    body = "(float[2,4] x) => (float[2,4] y) { h = Gemm (x, w1) y = my.domain.Foo (h) }"
    model = parse(body, imports=', "my.domain": 1', w1=WEIGHTS["w1"])
    program = convert_model(model)
    assert program.notes == ["on none of MXNet's lists, so neutral: my.domain::Foo"]


@pytest.mark.parametrize("operator", ["Sum", "Concat <axis = 0>", "Max"])
def test_inputs_are_cast_to_the_widest_type(operator):
    """A low and two float32 inputs: all float32, and what was float32 keeps its exact values, NaN included."""
    rows = 6 if "Concat" in operator else 2
    body = f"(float[2,4] x, float[2,4] z) => (float[{rows},4] y) {{ h = Gemm (x, w1) y = {operator} (h, z, z) }}"
    program = converted(parse(body, w1=WEIGHTS["w1"]))
    name = operator.split()[0]
    assert {value.dtype.name for value in nodes(program, name)[0].inputs} == {"FLOAT"}
    z = array(2, 4, seed=9) + np.float32(1e-4)
    z[0, 0], z[1, 1] = np.nan, np.float32(1e30)
    gemm = parse("(float[2,4] x) => (float[2,4] h) { h = Gemm (x, w1) }", w1=WEIGHTS["w1"])
    h = run_emulated(convert_model(gemm), X)["h"]
    expected = {"Sum": h + z + z, "Max": np.maximum(h, z), "Concat": np.concatenate([h, z, z])}[name]
    np.testing.assert_array_equal(run_emulated(program, {**X, "z": z})["y"], expected)


def test_concat_with_a_float32_input():
    body = "(float[2,4] x, float[2,4] z) => (float[4,4] y) { h = Gemm (x, w1) y = Concat <axis = 0> (h, z) }"
    program = converted(parse(body, w1=WEIGHTS["w1"]), feeds={**X, "z": array(2, 4, seed=5)})
    assert dtypes(program, "Concat") == ["FLOAT"]
    assert casts(program)[-1][1:] == ("FLOAT16", "FLOAT")


def test_concat_of_two_low_outputs():
    body = """(float[2,4] x) => (float[4,4] y) {
        [one] a = Gemm (x, w1) [two] b = Gemm (x, w2) y = Concat <axis = 0> (a, b)
    }"""
    model = parse(body, w1=WEIGHTS["w1"], w2=WEIGHTS["w2"])
    program = converted(model, feeds=X, cast_params_offline=True)
    assert dtypes(program, "Concat") == ["FLOAT16"]
    assert stats(program) == (1, 1, 4)
    program = converted(model, feeds=X, cast_params_offline=True, excluded_sym_names=["two"])
    assert dtypes(program, "Concat") == ["FLOAT"]
    assert stats(program) == (1, 1, 2)


def test_branches_share_one_cast_back():
    body = """(float[2,4] x) => (float[2,4] y, float[2,4] z, float[2,4] h) {
        h = Gemm (x, w1) y = Exp (h) z = Log (h)
    }"""
    program = converted(parse(body, w1=WEIGHTS["w1"]), cast_params_offline=True)
    assert stats(program) == (1, 1, 2)


def through_a_pass(model, folder):
    program = ir.from_proto(model)
    assert passes.IdentityEliminationPass()(program).modified
    return ir.to_proto(program)


def through_a_file(model, folder):
    onnx.save(model, folder / "model.onnx")
    return onnx.load(folder / "model.onnx")


@pytest.mark.parametrize("treat", [through_a_pass, through_a_file])
def test_an_exclusion_survives(treat, tmp_path):
    body = """(float[2,4] x) => (float[2,4] y) {
        [one] h = Gemm (x, w1, b1) i = Identity (h) [two] y = Gemm (i, w2, b2)
    }"""
    model = parse(body, **WEIGHTS)
    amp.mark_region(model, "disable_amp", nodes="^two$")
    program = converted(treat(model, tmp_path), feeds=X)
    assert dtypes(program, "Gemm") == ["FLOAT16", "FLOAT"]
    # The Identity is neutral, hence low, and another low tensor where it is still there.
    identities = len(nodes(program, "Identity"))
    assert stats(program) == (3, 1, 4 + identities)
    again = convert_model(converted(parse(body, **WEIGHTS), excluded_sym_names=["one", "two"]))
    assert casts(again) == [], "what was excluded once stays so"


MS = ', "com.microsoft": 1'
SINGLE = {
    "Conv": ("(float[1,2,4,4] x) => (float[1,2,4,4] y) { y = Conv (x, w) }", {"w": array(2, 2, 1, 1)}),
    "ConvTranspose": (
        "(float[1,2,4,4] x) => (float[1,2,5,5] y) { y = ConvTranspose (x, w) }",
        {"w": array(2, 2, 2, 2)},
    ),
    "Gemm": ("(float[3,4] x) => (float[3,4] y) { y = Gemm (x, w, b) }", {"w": array(4, 4), "b": array(4)}),
    "MatMul": ("(float[2,3,4] x) => (float[2,3,5] y) { y = MatMul (x, w) }", {"w": array(4, 5)}),
    "Einsum": (
        '(float[3,4] x) => (float[3,5] y) { y = Einsum <equation = "ij,jk->ik"> (x, w) }',
        {"w": array(4, 5)},
    ),
    "LSTM": (
        "(float[5,1,4] x) => (float[5,1,1,3] y) { y = LSTM <hidden_size = 3> (x, w, r) }",
        {"w": array(1, 12, 4), "r": array(1, 12, 3)},
    ),
    "GRU": (
        "(float[5,1,4] x) => (float[5,1,1,3] y) { y = GRU <hidden_size = 3, linear_before_reset = 1> (x, w, r) }",
        {"w": array(1, 9, 4), "r": array(1, 9, 3)},
    ),
    "RNN": (
        "(float[5,1,4] x) => (float[5,1,1,3] y) { y = RNN <hidden_size = 3> (x, w, r) }",
        {"w": array(1, 3, 4), "r": array(1, 3, 3)},
    ),
    "Attention": ("(float[1,2,4,8] x) => (float[1,2,4,8] y) { y = Attention (x, x, x) }", {}),
    "com.microsoft::FusedMatMul": (
        "(float[3,4] x) => (float[3,5] y) { y = com.microsoft.FusedMatMul <alpha = 0.5> (x, w) }",
        {"w": array(4, 5)},
    ),
    "com.microsoft::TransposeMatMul": (
        "(float[3,4] x) => (float[3,5] y) { y = com.microsoft.TransposeMatMul (x, w) }",
        {"w": array(4, 5)},
    ),
    "com.microsoft::MultiHeadAttention": (
        "(float[1,4,8] x) => (float[1,4,8] y) { y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x) }",
        {},
    ),
    "com.microsoft::Attention": (
        "(float[1,4,8] x) => (float[1,4,8] y) { y = com.microsoft.Attention <num_heads = 2> (x, w, b) }",
        {"w": array(8, 24), "b": array(24)},
    ),
}


@pytest.mark.parametrize("operator", SINGLE)
def test_a_target_operator_is_close_to_float32(operator):
    body, weights = SINGLE[operator]
    model = parse(body, imports=MS, opset=23 if operator == "Attention" else 18, **weights)
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": array(*dims, seed=7)}
    program = converted(model, cast_params_offline=True)
    name = operator.rpartition("::")[2]
    assert dtypes(program, name) == ["FLOAT16"]
    assert relative(run(model, feeds)["y"], run_emulated(program, feeds)["y"]) < 1e-2


def test_every_target_operator_of_onnx_with_a_cuda_kernel_is_tried():
    keys = {key for key in list_lp16_ops() if "::" not in key and CUDA.table.mentions("", key, "float16")}
    assert keys <= SINGLE.keys()


# ---- beyond the rows ----


def test_bfloat16_lists_are_bfloat16s():
    body = "(float[2,4] x) => (float[2,4] y) { h = Gemm (x, w1) y = Softmax (h) }"
    model = parse(body, w1=WEIGHTS["w1"])
    assert dtypes(converted(model, "float16", X), "Softmax") == ["FLOAT"]
    assert dtypes(converted(model, "bfloat16", X), "Softmax") == ["BFLOAT16"]


def test_a_constant_of_one_element_is_an_attribute():
    body = "(float[2,4] x) => (float[2,4] y) <float two = {2}> { h = Gemm (x, w1) m = Mul (h, two) y = Relu (m) }"
    program = converted(parse(body, w1=WEIGHTS["w1"]), feeds=X, cast_params_offline=True)
    assert stats(program) == (1, 1, 4)
    body = "(float[2,4] x) => (float[2,4] y) { h = Gemm (x, w1) y = Add (h, b1) }"
    program = converted(parse(body, w1=WEIGHTS["w1"], b1=WEIGHTS["b1"]), feeds=X, cast_params_offline=True)
    assert dtypes(program, "Add") == ["FLOAT"], "a vector would need a new cast"


@pytest.mark.parametrize(("target", "parameters"), [("tensorrt", "FLOAT"), ("cuda", "FLOAT16")])
def test_batch_normalization_keeps_its_parameters_where_there_is_a_kernel(target, parameters):
    body = """(float[1,2,4,4] x) => (float[1,2,4,4] y) {
        c = Conv (x, w) r = Relu (c) y = BatchNormalization (r, s, b, m, v)
    }"""
    weights = {"s": array(2, low=0.5), "b": array(2), "m": array(2, seed=1), "v": array(2, low=0.5)}
    program = amp.load(parse(body, w=array(2, 2, 1, 1), **weights)).clone()
    rules = MxnetRules(FLOAT16, AutoMixedPrecisionLists())
    policy = Policy(low=FLOAT16, target=TARGETS[target], rules=rules, constants="whole")
    ranges = RangeFaults(FLOAT16, strict=False)
    prepare(program, policy, ranges)
    convert(program, policy, ranges)
    (node,) = nodes(program, "BatchNormalization")
    assert [value.dtype.name for value in node.inputs] == ["FLOAT16", *[parameters] * 4]
    assert dtypes(program, "BatchNormalization") == ["FLOAT16"]


def test_lists_of_the_users_win_over_the_tables():
    """`AutoMixedPrecisionLists`, which the other doors take."""
    program = amp.load(two_gemms()).clone()
    lists = AutoMixedPrecisionLists(custom_black_list=["Gemm"])
    policy = Policy(low=FLOAT16, target=CUDA, rules=MxnetRules(FLOAT16, lists))
    ranges = RangeFaults(FLOAT16, strict=False)
    prepare(program, policy, ranges)
    assert {str(d.reason) for d in convert(program, policy, ranges).assignment.decisions.values()} == {
        "Gemm is on the custom black list"
    }


def test_a_low_input():
    program = converted(two_gemms(), input_dtypes={"x": "float16"}, cast_params_offline=True)
    assert dtype_of(program, "x") == "FLOAT16"
    assert stats(program) == (0, 1, 2)
    same = converted(two_gemms(), input_dtypes={"x": np.float32}, cast_params_offline=True)
    assert dtype_of(same, "x") == "FLOAT"


@pytest.mark.parametrize("shape", [True, False], ids=["shape", "no shape"])
@pytest.mark.parametrize(("given", "arrives"), [("float32", "FLOAT"), (np.float32, "FLOAT"), ("float16", "FLOAT16")])
def test_an_input_without_a_type_has_that_of_input_dtypes(shape, given, arrives):
    """The pull request: the user gives the data types of the model's inputs."""
    model = two_gemms()
    if shape:
        model.graph.input[0].type.tensor_type.ClearField("elem_type")
    else:
        model.graph.input[0].ClearField("type")
    with pytest.raises(ModelError, match=r"input 'x' has no type: .*input_dtypes"):
        convert_model(model)
    program = convert_model(model, {"x": given})
    assert dtype_of(program, "x") == arrives
    assert dtypes(program, "Gemm") == ["FLOAT16", "FLOAT16"]
    assert not model.graph.input[0].type.tensor_type.elem_type, "the message is not changed"


def test_an_integer_input_without_a_type():
    model = parse("(int64[2] i) => (float[2,4] y) { y = Gather (w1, i) }", w1=WEIGHTS["w1"])
    model.graph.input[0].ClearField("type")
    assert dtype_of(convert_model(model, {"i": "int64"}), "i") == "INT64"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("cast_optional_params", "renamed it to cast_params_offline"),
        ("arg_params", "holds its parameters"),
        ("data_names", "input_dtypes"),
        ("nonsense", "no argument 'nonsense'$"),
    ],
)
def test_an_earlier_argument_is_refused_with_what_replaced_it(name, remedy):
    with pytest.raises(TypeError, match=f"'{name}'.*{remedy}|{remedy}"):
        convert_model(two_gemms(), **{name: True})


def test_everything_that_holds_a_program_is_taken(tmp_path):
    model = two_gemms()
    onnx.save(model, tmp_path / "model.onnx")
    expected = stats(convert_model(model))
    for source in (str(tmp_path / "model.onnx"), tmp_path / "model.onnx", ir.from_proto(model), amp.load(model)):
        assert stats(convert_model(source)) == expected
    source = amp.load(model)
    convert_model(source, excluded_sym_names=["one"])
    assert source.to_onnx().SerializeToString() == amp.load(model).to_onnx().SerializeToString()


def test_excluded_names_that_are_not_there_are_warned_of_and_left_alone(caplog):
    names = ["one", "three"]
    with caplog.at_level(logging.WARNING):
        program = convert_model(two_gemms(), excluded_sym_names=names)
    assert "no node 'three'" in caplog.text
    assert names == ["one", "three"]
    assert dtypes(program, "Gemm") == ["FLOAT", "FLOAT16"]
    assert dtypes(convert_model(two_gemms()), "Gemm") == ["FLOAT16", "FLOAT16"]


def test_a_list_of_the_users_beats_a_default_one():
    body = "(float[2,4] x) => (float[2,4] y) { h = Softmax (x) e = Exp (h) y = Gemm (e, w1) }"
    model = parse(body, w1=WEIGHTS["w1"])
    program = converted(model, feeds=X, target_dtype_ops=["Softmax"])
    types_of = {op: dtypes(program, op)[0] for op in ("Softmax", "Exp", "Gemm")}
    assert types_of == {"Softmax": "FLOAT16", "Exp": "FLOAT", "Gemm": "FLOAT"}
    body = "(float[2,4] x) => (float[2,4] y) { h = Gemm (x, w1) e = Exp (h) y = Softmax (e) }"
    program = converted(parse(body, w1=WEIGHTS["w1"]), feeds=X, fp32_ops=["Softmax"])
    assert dtypes(program, "Exp") == ["FLOAT16"], "the list given does not name it, hence it is neutral"
    assert dtypes(program, "Softmax") == ["FLOAT"]


def test_default_lists_are_never_changed():
    before = default_mxnet_lists("float16")
    convert_model(two_gemms(), target_dtype_ops=["Softmax"], fp32_ops=["Gemm"])
    assert default_mxnet_lists("float16") == before
    assert "Gemm" in before.target


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_dtype": "int8"}, "int8"),
        ({"target_dtype": "float32"}, "float32"),
        ({"target_dtype_ops": "Conv"}, r"target_dtype_ops: .* write \['Conv'\]"),
        ({"fp32_ops": {"Conv": 1}}, "fp32_ops: expected a list"),
        ({"fp32_ops": [1]}, "fp32_ops: expected a list"),
        ({"excluded_sym_names": "one"}, "excluded_sym_names"),
        ({"conditional_fp32_ops": "Gelu"}, "conditional_fp32_ops"),
        ({"conditional_fp32_ops": [("Gelu", "approximate")]}, "operator, attribute, list"),
        ({"conditional_fp32_ops": [("Gelu", "approximate", "tanh")]}, "operator, attribute, list"),
        ({"conditional_fp32_ops": [("Gemm", "transB", [1])]}, "operator, attribute, list"),
        ({"target_dtype_ops": ["Conv"], "fp32_ops": ["Conv"]}, "Conv in both target_dtype_ops and fp32_ops"),
        (
            {"target_dtype_ops": ["Gemm"], "conditional_fp32_ops": [("Gemm", "transB", ["1"])]},
            "Gemm in both target_dtype_ops and conditional_fp32_ops",
        ),
        (
            {"fp32_ops": ["Gemm"], "conditional_fp32_ops": [("Gemm", "transB", ["1"])]},
            "Gemm in both fp32_ops and conditional_fp32_ops",
        ),
        ({"target_dtype_ops": ["Convv"]}, "illegal operators: 'Convv' .*Conv"),
        ({"fp32_ops": ["FullyConnected"]}, "illegal operators: 'FullyConnected' .*Gemm"),
        ({"conditional_fp32_ops": [("my.domain::Foo", "a", ["1"])]}, "illegal operators: 'my.domain::Foo'"),
        ({"conditional_fp32_ops": [("Gemm", "gamma", ["1"])]}, "node 'one': .* 'gamma' of Gemm"),
        ({"input_dtypes": ["x"]}, "expected a dict"),
        ({"input_dtypes": {"z": "float16"}}, "'z', which is no input: x"),
        ({"input_dtypes": {"x": "bfloat16"}}, "expected float32 or float16, got bfloat16"),
        ({"input_dtypes": {"x": "int64"}}, "expected float32 or float16, got int64"),
        ({"input_dtypes": {"x": "nonsense"}}, "nonsense"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        convert_model(two_gemms(), **options)


def test_an_integer_input_keeps_its_type():
    model = parse("(int64[2] i) => (float[2,4] y) { y = Gather (w1, i) }", w1=WEIGHTS["w1"])
    assert dtype_of(convert_model(model, {"i": "int64"}), "i") == "INT64"
    with pytest.raises(OptionError, match="input 'i' is int64: expected int64, got float16"):
        convert_model(model, {"i": "float16"})


def test_a_custom_operator_of_the_program_is_legal():
    body = "(float[2,4] x) => (float[2,4] y) { y = my.domain.Foo (x) }"
    program = convert_model(parse(body, imports=', "my.domain": 1'), target_dtype_ops=["my.domain::Foo"])
    assert casts(program) == [], "no schema: it stays as it is"


def test_nodes_of_functions_and_bodies_are_excluded_by_name():
    model = parse(
        "(float[2,4] x, bool c) => (float[2,4] y) {"
        "[f] h = f.F (x, w1) [i] y = If (c) <then_branch = g () => (a) { [inner] a = Gemm (h, w1) },"
        " else_branch = e () => (b) { b = Gemm (h, w2) }> }",
        '<domain: "f", opset_import: ["": 18]> F (x, w) => (y) { [in_f] y = MatMul (x, w) }',
        imports=', "f": 1',
        w1=WEIGHTS["w1"],
        w2=WEIGHTS["w2"],
    )
    plain = convert_model(model)
    assert dtypes(plain, "MatMul") == ["FLOAT16"]
    assert dtypes(plain, "Gemm") == ["FLOAT16", "FLOAT16"]
    program = convert_model(model, excluded_sym_names=["in_f", "inner"])
    assert dtypes(program, "MatMul") == ["FLOAT"]
    assert sorted(dtypes(program, "Gemm")) == ["FLOAT", "FLOAT16"]
    assert casts(convert_model(model, excluded_sym_names=["f", "i"])) == []
