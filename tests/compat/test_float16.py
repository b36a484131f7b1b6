"""The behaviours of onnxconverter-common's and ONNX Runtime's float16 converters, by the names of their arguments."""

import inspect
import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import amp_transpiler as amp
from amp_transpiler.compat import convert_float_to_float16, convert_float_to_float16_model_path
from amp_transpiler.compat.float16 import (
    DEFAULT_OP_BLOCK_LIST,
    convert_np_to_float16,
    convert_tensor_float_to_float16,
    remove_identity_node_from_model,
)
from tests.support import array, assert_valid, parse, run

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def mlp(opset=17):
    """Two products with a Relu between them, and a Softmax."""
    return parse(
        """(float[2,8] x) => (float[2,4] y) {
            [first] a = MatMul(x, w1) [relu] b = Relu(a) [second] c = MatMul(b, w2) [last] y = Softmax(c) }""",
        opset=opset,
        w1=array(8, 8),
        w2=array(8, 4, seed=1),
    )


def io_types(model):
    return [info.type.tensor_type.elem_type for info in (*model.graph.input, *model.graph.output)]


def stored(model):
    return {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def types_read(model):
    """Return node name -> the element types of its inputs."""
    loaded = ir.from_proto(onnx.shape_inference.infer_shapes(model, strict_mode=True))
    return {n.name: [v.dtype.value for v in n.inputs if v is not None and v.name] for n in loaded.graph.all_nodes()}


def fed(model, **values):
    """Run on ONNX Runtime's CPU provider with inputs of the types that the model wants."""
    wanted = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    dtypes = {FLOAT: np.float32, FLOAT16: np.float16, TensorProto.INT64: np.int64}
    return run(model, {name: np.asarray(value, dtypes[wanted[name]]) for name, value in values.items()})


def plain(**options):
    return convert_float_to_float16(mlp(), **options)


# ---- what is converted ----


def test_inputs_outputs_and_weights_become_float16():
    model = plain()
    assert io_types(model) == [FLOAT16, FLOAT16]
    assert set(stored(model).values()) == {FLOAT16}
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Relu", "MatMul", "Softmax"]
    x = array(2, 8)
    np.testing.assert_allclose(fed(model, x=x)["y"], fed(mlp(), x=x)["y"], atol=1e-2)


def test_the_model_given_is_not_changed():
    model = mlp()
    before = model.SerializeToString(deterministic=True)
    convert_float_to_float16(model, op_block_list=["Relu"], max_finite_val=0.5)
    assert model.SerializeToString(deterministic=True) == before


IO_TYPES = {
    "true": (True, [FLOAT, FLOAT]),
    "false": (False, [FLOAT16, FLOAT16]),
    "input": (["x"], [FLOAT, FLOAT16]),
    "output": (["y"], [FLOAT16, FLOAT]),
    "both": (["x", "y"], [FLOAT, FLOAT]),
    "none": ([], [FLOAT16, FLOAT16]),
    "tuple": (("y",), [FLOAT16, FLOAT]),
}


@pytest.mark.parametrize(("kept", "types"), IO_TYPES.values(), ids=IO_TYPES)
def test_keep_io_types(kept, types):
    model = plain(keep_io_types=kept)
    assert io_types(model) == types
    assert_valid(model)


def test_names_in_keep_io_types_are_names_and_unknown_ones_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        model = plain(keep_io_types=["x", "past.*"])
    assert io_types(model) == [FLOAT, FLOAT16]
    assert "keep_io_types names nothing in the model: past.*" in caplog.text


BLOCKED = {
    "operator": ({"op_block_list": ["Softmax"]}, {"last"}),
    "two operators": ({"op_block_list": {"Softmax", "Relu"}}, {"last", "relu"}),
    "one node of two": ({"node_block_list": ["second"]}, {"second"}),
    "operator and node": ({"op_block_list": ["Relu"], "node_block_list": ["first"]}, {"first", "relu"}),
    "none": ({"op_block_list": [], "node_block_list": []}, set()),
    "an operator that is not there": ({"op_block_list": ["Conv", "NoSuchOperator"]}, set()),
}


@pytest.mark.parametrize(("arguments", "high"), BLOCKED.values(), ids=BLOCKED)
@pytest.mark.parametrize("kept", [True, False])
def test_blocked_nodes_stay_float32(arguments, high, kept):
    model = plain(keep_io_types=kept, **arguments)
    wide = {name for name, types in types_read(model).items() if FLOAT in types} & {"first", "relu", "second", "last"}
    assert wide == high
    assert io_types(model) == [FLOAT if kept else FLOAT16] * 2
    assert_valid(model)


def test_names_of_nodes_are_no_patterns(caplog):
    with caplog.at_level(logging.WARNING):
        model = plain(node_block_list=["f.*", "second"])
    assert FLOAT not in types_read(model)["first"]
    assert "node_block_list names nothing in the model: f.*" in caplog.text


def test_an_operator_of_the_default_list_stays_float32_unless_the_list_is_given():
    model = parse("(float[2,8] x) => (float[2,8] y) { a = Relu(x) [top] y = Max(a, c) }", c=array(8))
    assert FLOAT in types_read(convert_float_to_float16(model))["top"]
    assert FLOAT not in types_read(convert_float_to_float16(model, op_block_list=[]))["top"]
    assert {"Range", "CumSum", "Min", "Max", "Upsample", "TopK", "RoiAlign"} <= set(DEFAULT_OP_BLOCK_LIST)


def test_weights_of_blocked_nodes_stay_float32_unless_forced():
    assert stored(plain(node_block_list=["first"])) == {"w1": FLOAT, "w2": FLOAT16}
    forced = plain(node_block_list=["first"], force_fp16_initializers=True)
    assert stored(forced) == {"w1": FLOAT16, "w2": FLOAT16}
    assert FLOAT16 not in types_read(forced)["first"]
    assert_valid(forced)


def test_blocked_nodes_may_be_bfloat16():
    model = plain(node_block_list=["second"], use_bfloat16_as_blocked_nodes_dtype=True)
    read = types_read(model)
    assert set(read["second"]) == {BFLOAT16}
    assert set(read["first"]) == {FLOAT16}
    assert FLOAT not in {type_ for types in read.values() for type_ in types}
    onnx.checker.check_model(model, full_check=True)


# ---- Resize and Upsample, with and without names ----


def scaled(operator, opset, count, named=False):
    names, nodes, weights = ["input", *(f"out_{i}" for i in range(count - 1)), "output"], [], []
    for index in range(count):
        extra = [f"roi_{index}", f"scales_{index}"] if opset > 10 else [f"scales_{index}"]
        name = f"node_{index}" if named else ""
        nodes.append(helper.make_node(operator, [names[index], *extra], [names[index + 1]], name=name, mode="nearest"))
        weights += [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), f"scales_{index}")]
        if opset > 10:
            weights += [numpy_helper.from_array(np.array([], np.float32), f"roi_{index}")]
    side = 4 * 2**count
    x = helper.make_tensor_value_info("input", FLOAT, [1, 1, 4, 4])
    y = helper.make_tensor_value_info("output", FLOAT, [1, 1, side, side])
    graph = helper.make_graph(nodes, "scaled", [x], [y], weights)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


SCALED = {"Resize-11": ("Resize", 11), "Resize-10": ("Resize", 10), "Upsample-9": ("Upsample", 9)}


@pytest.mark.parametrize(("operator", "opset"), SCALED.values(), ids=SCALED)
@pytest.mark.parametrize("blocked", [None, ["Resize"]], ids=["default", "Resize"])
def test_scales_stay_float32_and_casts_have_names_of_their_own(operator, opset, blocked):
    model = convert_float_to_float16(scaled(operator, opset, 3), keep_io_types=True, op_block_list=blocked)
    assert set(stored(model).values()) == {FLOAT}
    names = [node.name for node in model.graph.node if node.name]
    values = [value for node in model.graph.node for value in node.output]
    assert len(set(names)) == len(names)
    assert len(set(values)) == len(values)
    x = array(1, 1, 4, 4)
    np.testing.assert_allclose(fed(model, input=x)["output"], fed(scaled(operator, opset, 3), input=x)["output"], 1e-3)


def test_the_data_of_a_resize_is_float16():
    model = convert_float_to_float16(scaled("Resize", 11, 1, named=True))
    assert io_types(model) == [FLOAT16, FLOAT16]
    assert types_read(model)["node_0"] == [FLOAT16, FLOAT, FLOAT]


def test_forced_initializers_hold_scales_too():
    model = convert_float_to_float16(scaled("Resize", 11, 1), keep_io_types=True, force_fp16_initializers=True)
    assert stored(model)["scales_0"] == FLOAT16
    assert fed(model, input=array(1, 1, 4, 4))["output"].shape == (1, 1, 8, 8)


# ---- control flow ----

LOOP = """(float[n,m] data) => (float[m] total, float[n,m] sums) {
    shape = Shape(data) zero = Constant<value = int64 {0}>() rows = Gather(shape, zero)
    one = Constant<value = int64[1] {1}>() columns = Gather(shape, one) start = ConstantOfShape(columns)
    yes = Constant<value = bool {1}>()
    total, sums = Loop(rows, yes, start) <body = body(int64 i, bool go, float[m] before)
        => (bool again, float[m] after, float[m] row) {
            again = Identity(go) picked = Gather(data, i) after = Add(before, picked) row = Identity(after) }> }"""
IF = """(float[1] x, float[1] y) => (float[1] z) {
    larger = Less(x, y) flag = Squeeze(larger)
    z = If(flag) <then_branch = yes() => (float[1] a) { a = Add(x, y) },
        else_branch = no() => (float[1] b) { b = Sub(x, y) }>
}"""


@pytest.mark.parametrize("kept", [True, False])
def test_values_pass_through_a_loop(kept):
    data = np.array([[2, 3], [4, 5], [6, 7]], np.float32)
    model = parse(LOOP)
    expected, result = fed(model, data=data), fed(convert_float_to_float16(model, keep_io_types=kept), data=data)
    for name, value in expected.items():
        assert result[name].dtype == (np.float32 if kept else np.float16)
        np.testing.assert_allclose(result[name], value)


@pytest.mark.parametrize("kept", [True, False])
def test_values_pass_through_a_branch(kept):
    result = fed(convert_float_to_float16(parse(IF), keep_io_types=kept), x=[1.0], y=[2.0])["z"]
    assert result.dtype == (np.float32 if kept else np.float16)
    np.testing.assert_allclose(result, [3.0])


def test_the_body_of_a_blocked_node_is_blocked():
    (node,) = (n for n in convert_float_to_float16(parse(IF), op_block_list=["If"]).graph.node if n.op_type == "If")
    types = {value.type.tensor_type.elem_type for attribute in node.attribute for value in attribute.g.output}
    assert types == {FLOAT}


# ---- what has no float16 form, and functions ----

FUNCTION = '<domain: "own", opset_import: ["": 18]> Grown (x) => (y) { [inside] y = Exp(x) }'
ODD = {
    "an unknown operator": ("{ [odd] a = own.Fancy(x) y = Relu(a) }", {}, ["Cast", "Fancy", "Cast", "Relu"]),
    "a sequence": (
        "{ i = Constant<value = int64 {0}>() s = SequenceConstruct(x) a = SequenceAt(s, i) y = Relu(a) }",
        {},
        ["Cast", "Constant", "SequenceConstruct", "SequenceAt", "Cast", "Relu"],
    ),
    "an operator in a function": ("{ a = own.Grown(x) y = Relu(a) }", {"op_block_list": ["Exp"]}, []),
    "a node in a function": ("{ a = own.Grown(x) y = Relu(a) }", {"node_block_list": ["inside"]}, []),
}


@pytest.mark.parametrize(("body", "arguments", "operators"), ODD.values(), ids=ODD)
def test_what_has_no_float16_form_stays_float32(body, arguments, operators):
    functions = [FUNCTION] if "Grown" in body else []
    model = parse(f"(float[2] x) => (float[2] y) {body}", *functions, imports=', "own": 1')
    low_model = convert_float_to_float16(model, **arguments)
    assert io_types(low_model) == [FLOAT16, FLOAT16]
    assert [node.op_type for node in low_model.graph.node] == (operators or ["Cast", "Exp", "Cast", "Relu"])


# ---- the range of constants ----


def test_constants_are_limited_on_request(caplog):
    scale = np.array([1e-12, -1e-9, 0, 0.5, 2e4, -1e6], np.float32)
    model = parse("(float[6] x) => (float[6] y) { y = Mul(x, scale) }", scale=scale)
    with caplog.at_level(logging.WARNING):
        (tensor,) = convert_float_to_float16(model, 1e-7, 1e4).graph.initializer
    expected = np.array([1e-7, -1e-7, 0, 0.5, 1e4, -1e4], np.float32).astype(np.float16)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected)
    assert "constant 'scale': 4 elements clipped to 1e-07 ... 10000" in caplog.text


def test_constants_of_blocked_nodes_keep_their_range():
    model = parse("(float[2] x) => (float[2] y) { a = Relu(x) [kept] y = Mul(a, scale) }", scale=np.float32([1e6, 1]))
    (tensor,) = convert_float_to_float16(model, max_finite_val=1e4, node_block_list=["kept"]).graph.initializer
    assert numpy_helper.to_array(tensor).tolist() == [1e6, 1]


def test_constants_in_attributes_are_limited_too():
    model = parse("(float[2] x) => (float[2] y) { c = Constant<value = float[2] {1e5, 1.0}>() y = Mul(x, c) }")
    result = fed(convert_float_to_float16(model, max_finite_val=1000.0), x=[1.0, 1.0])["y"]
    assert result.tolist() == [1000.0, 1.0]


def test_a_constant_beyond_the_range_keeps_its_reader_in_float32_unless_it_is_limited():
    model = parse("(float[2] x) => (float[2] y) { [by] y = Mul(x, scale) }", scale=np.float32([1e5, 1]))
    assert FLOAT in types_read(convert_float_to_float16(model))["by"]
    assert FLOAT not in types_read(convert_float_to_float16(model, max_finite_val=65504.0))["by"]


def test_arrays_are_limited_to_float16s_range():
    numbers = np.array([1e-10, -2.0, 15, -1e-9, 65536.1, -100000, 0, np.inf, -np.inf, np.nan])
    least, most = np.float16(2.0**-24), np.float16(65504)
    expected = np.array([least, -2, 15, -least, most, -most, 0, np.inf, -np.inf, np.nan], np.float16)
    np.testing.assert_array_equal(convert_np_to_float16(numbers), expected)
    np.testing.assert_array_equal(convert_np_to_float16(np.float32([0.5, 20]), 1, 10), np.float16([1, 10]))


def test_a_tensor_becomes_float16_in_place():
    for tensor in (numpy_helper.from_array(array(3), "t"), helper.make_tensor("t", FLOAT, [3], array(3))):
        assert convert_tensor_float_to_float16(tensor) is tensor
        assert tensor.data_type == FLOAT16
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), array(3).astype(np.float16))
    whole = numpy_helper.from_array(np.arange(3), "t")
    assert convert_tensor_float_to_float16(whole).data_type == TensorProto.INT64
    with pytest.raises(ValueError, match="TensorProto"):
        convert_tensor_float_to_float16(array(3))


def test_identities_between_nodes_are_removed():
    model = parse("(float[2] x) => (float[2] y) { a = Relu(x) b = Identity(a) y = Neg(b) }")
    assert [node.op_type for node in remove_identity_node_from_model(model).graph.node] == ["Relu", "Neg"]
    assert len(model.graph.node) == 3


# ---- models: files, sizes, formats ----


def test_a_path_will_do(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path)
    for low_model in (
        convert_float_to_float16(str(path)),
        convert_float_to_float16_model_path(path),
        convert_float_to_float16_model_path(str(path), keep_io_types=True),
    ):
        assert set(stored(low_model).values()) == {FLOAT16}


def test_weights_outside_of_the_file_are_read(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, size_threshold=0)
    low_model = convert_float_to_float16_model_path(path)
    np.testing.assert_allclose(fed(low_model, x=array(2, 8))["y"], fed(mlp(), x=array(2, 8))["y"], atol=1e-2)


def test_a_model_in_float16_is_refused_unless_asked_for():
    half = plain()
    with pytest.raises(ValueError, match=r"already converted to float16.*check_fp16_ready=False"):
        convert_float_to_float16(half)
    assert stored(convert_float_to_float16(half, check_fp16_ready=False)) == stored(half)
    partly = plain(keep_io_types=True, node_block_list=["second"])
    assert set(stored(convert_float_to_float16(partly, check_fp16_ready=False)).values()) == {FLOAT16}


def test_other_options_are_those_of_transpile():
    assert set(stored(plain(dtype="bfloat16", target="tensorrt")).values()) == {BFLOAT16}
    assert stored(plain(level="O0", keep_io_types=True)) == {"w1": FLOAT, "w2": FLOAT}
    assert plain(opset=20).opset_import[0].version == 20


# ---- refusals ----

WRONG = {
    "model": ({"model": 3}, ValueError, "expected an onnx.ModelProto or a path, got int"),
    "file": ({"model": "no_such_file.onnx"}, ValueError, "no_such_file"),
    "least": ({"min_positive_val": 1e-9}, ValueError, "min_positive_val is 1e-09: float16's smallest"),
    "most": ({"max_finite_val": 1e5}, ValueError, "max_finite_val is 100000.0: float16's largest"),
    "crossed": ({"min_positive_val": 2.0, "max_finite_val": 1.0}, ValueError, "is more than max_finite_val"),
    "operators as text": ({"op_block_list": "Softmax"}, ValueError, r"op_block_list: .* write \['Softmax'\]"),
    "nodes as numbers": ({"node_block_list": [3]}, ValueError, "node_block_list: expected a list of names, got 3"),
    "forced inputs": (
        {"force_fp16_inputs": {"Resize": [2]}},
        ValueError,
        "force_fp16_inputs.*is not supported.*target=",
    ),
    "unknown": ({"op_blocklist": []}, TypeError, r"no argument 'op_blocklist'"),
    "misspelt option": ({"tolerence": 0.1}, TypeError, "did you mean 'tolerance'"),
    "two formats and data": (
        {"use_bfloat16_as_blocked_nodes_dtype": True, "inputs": {}},
        ValueError,
        "goes only with target and ort, got inputs",
    ),
}


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        convert_float_to_float16(**{"model": mlp(), **arguments})


def test_values_that_become_infinite_are_refused_with_a_remedy():
    model = parse("(float[2,64] x) => (float[2,64] y) { [big] a = Exp(x) [root] y = Sqrt(a) }")
    feeds = {"x": np.full((2, 64), 20.0, np.float32)}
    with pytest.raises(amp.CheckFailed, match=r"level='auto'.*verify=False") as caught:
        convert_float_to_float16(model, inputs=feeds)
    assert caught.value.report.low_nodes == 2
    assert FLOAT in types_read(convert_float_to_float16(model, inputs=feeds, level="auto"))["big"]


ORIGINALS = {
    "onnxconverter_common.float16": {"convert_float_to_float16", "convert_float_to_float16_model_path"},
    "onnxruntime.transformers.float16": {"convert_float_to_float16"},
}


@pytest.mark.parametrize(("module", "functions"), ORIGINALS.items(), ids=ORIGINALS)
def test_every_argument_of_the_original_is_known_and_in_its_place(module, functions):
    original = pytest.importorskip(module, reason=f"{module} is not installed: install the extra [bench]")
    for function in functions:
        theirs = list(inspect.signature(getattr(original, function)).parameters)
        ours = inspect.signature(globals()[function]).parameters
        # Beyond the seventh, the two originals disagree: there, a name is needed.
        in_place = [name for name, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert theirs[: len(in_place)] == [name if name != "model" else theirs[0] for name in in_place][: len(theirs)]
        assert set(theirs) <= set(ours)


@pytest.mark.parametrize("blocked", [["n0"], ["n1", "n2"], ["n2", "n1"], ["n0", "n1", "n2"], ["n0", "n0"], []])
def test_names_that_are_there_are_not_warned_of(blocked, caplog):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n,2] x) => (float[n,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }""")
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    convert_float_to_float16(model, keep_io_types=["x", "y"], node_block_list=blocked)
    assert "names nothing" not in caplog.text
