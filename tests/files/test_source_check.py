"""A model is looked at once where it is read: what ONNX Runtime refuses is refused in one line, the rest is mended."""

import functools
import logging

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import AttributeProto, TensorProto, helper

import amp_transpiler as amp
from amp_transpiler.errors import ModelError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.runtime.ort import ORT_ERRORS
from tests.work import counted_work

TEXT = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
g (float[N,4] x) => (float[N,4] y)
<float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[4] b = {1,2,3,4}>
{ h = MatMul(x, w)
  t = Add(h, b)
  y = Softmax<axis=-1>(t) }
<domain: "f", opset_import: ["" : 17]> F (a) => (r) { r = Relu(a) }
"""


def _call(m, *, outputs=1):
    m.graph.node[0].CopyFrom(helper.make_node("F", ["x"], ["h", "h2"][:outputs], domain="f"))


def _branches(m, nodes, output="o2", initializers=()):
    body = helper.make_graph(nodes, "body", [], [helper.make_tensor_value_info(output, 1, None)], initializers)
    m.graph.node.append(helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", 9, [], [True])))
    m.graph.node.append(helper.make_node("If", ["c"], ["o"], then_branch=body, else_branch=body))
    m.graph.output.add(name="o")


def _deep(m):
    graph = m.graph
    for level in range(40):  # in place: protobuf copies nothing so deep
        node = graph.node.add(op_type="If", input=["x"], output=[f"v{level}"])
        graph = node.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g
        graph.name = f"body{level}"


def _sparse(m, *, indices=(1, 3), shape=(4,)):
    sparse = m.graph.sparse_initializer.add(dims=shape)
    sparse.values.CopyFrom(helper.make_tensor("s", 1, [2], [5, 6]))
    sparse.indices.CopyFrom(helper.make_tensor("i", 7, [2], indices))
    m.graph.node[1].input[1] = "s"


def _attribute(m, **fields):
    m.graph.node[2].attribute[0].CopyFrom(AttributeProto(name="axis", **fields))


def _constant(m, **fields):
    m.graph.node.append(helper.make_node("Constant", [], ["k"], value=TensorProto(**fields)))
    m.graph.output.add(name="k")


def _weight(m, **fields):
    m.graph.initializer[0].CopyFrom(TensorProto(name="w", **fields))


def _unused(m, **fields):
    m.graph.initializer.append(TensorProto(name="unused", **fields))


def _function_reads(m, name):
    m.functions[0].node[0].input[0] = name


def _circle(m, length):
    for index in range(length):
        function = m.functions.add(domain="f", name=f"C{index}", input=["a"], output=["r"])
        function.opset_import.add(domain="f", version=1)
        function.node.add(op_type=f"C{(index + 1) % length}", domain="f", input=["a"], output=["r"])
    m.graph.node[0].CopyFrom(helper.make_node("C0", ["x"], ["h"], domain="f"))


def _bomb(m, levels=30):
    for index in range(levels):
        function = m.functions.add(domain="f", name=f"B{index}", input=["a"], output=["r"])
        function.opset_import.add(domain="f", version=1)
        function.node.add(op_type=f"B{index + 1}", domain="f", input=["a"], output=["q"])
        function.node.add(op_type=f"B{index + 1}", domain="f", input=["q"], output=["r"])
    m.functions[-1].ClearField("node")
    m.functions[-1].node.add(op_type="Relu", input=["a"], output=["r"])
    m.functions[-1].opset_import.add(domain="", version=17)
    m.graph.node[0].CopyFrom(helper.make_node("B0", ["x"], ["h"], domain="f"))


def _repeated(field, index=0):
    def edit(m):
        values = getattr(m.graph, field)
        values.append(values[index])

    return edit


def _replaced(old, new):
    return lambda m: m.SerializeToString().replace(old, new)


REFUSED = {
    "no graph": (lambda m: m.ClearField("graph"), "no graph"),
    "no operator set": (lambda m: m.ClearField("opset_import"), "imports no operator set"),
    "no IR version": (lambda m: m.ClearField("ir_version"), "no IR version"),
    # Element types, dimensions and data of tensors.
    "undefined element type": (lambda m: _weight(m, dims=[4, 4], raw_data=bytes(64)), "'w' has the element type UNDEF"),
    "unknown element type": (lambda m: _weight(m, data_type=999, dims=[4]), "'w' has the element type 999"),
    "unused, undefined": (lambda m: _unused(m, dims=[0]), "'unused' has the element type UNDEFINED"),
    "raw data short": (lambda m: _weight(m, data_type=1, dims=[4, 4], raw_data=bytes(60)), "'w' has 60 bytes of data"),
    "raw data long": (lambda m: _weight(m, data_type=1, dims=[4, 4], raw_data=bytes(68)), "needs 64"),
    "empty raw data": (lambda m: _weight(m, data_type=1, dims=[4, 4], raw_data=b""), "has 0 bytes of data"),
    "entries short": (lambda m: m.graph.initializer[0].float_data.pop(), "'w' has 15 entries of float_data"),
    "entries long": (lambda m: m.graph.initializer[0].float_data.append(1), "'w' has 17 entries of float_data"),
    "no data": (lambda m: _weight(m, data_type=1, dims=[4, 4]), "'w' has 0 entries of float_data"),
    "another field": (lambda m: _weight(m, data_type=1, dims=[4, 4], double_data=[1.0] * 16), "has 0 entries of float"),
    "too few strings": (lambda m: _weight(m, data_type=8, dims=[2], string_data=[b"a"]), "1 entries of string_data"),
    "negative sizes": (lambda m: m.graph.initializer[0].dims.__setitem__(slice(2), [-4, -4]), r"\[-4, -4\]"),
    "huge sizes": (lambda m: _weight(m, data_type=1, dims=[2**62, 2**62]), "'w' has dimensions"),
    "constant's data": (
        lambda m: _constant(m, data_type=1, dims=[4], raw_data=b"1234"),
        "Constant 'k': tensor of attri",
    ),
    "constant's type": (
        lambda m: _constant(m, dims=[1], raw_data=b"1234"),
        "Constant 'k': tensor of attribute 'value'",
    ),
    "constant's data beside a reference, which is dropped": (
        lambda m: (
            _constant(m, data_type=1, dims=[4], raw_data=b"1234"),
            setattr(m.graph.node[-1].attribute[0], "ref_attr_name", "alpha"),
        ),
        "Constant 'k': tensor of attribute 'value'",
    ),
    "constant's field": (lambda m: _constant(m, data_type=22, dims=[3], int32_data=[1, 2, 3]), "INT4 of shape .* 2"),
    # Attributes.
    "attribute in another field": (
        lambda m: _attribute(m, type=1, i=-1),
        "Softmax 'y': attribute 'axis' has type FLOAT",
    ),
    "attribute in two fields": (lambda m: _attribute(m, type=2, i=-1, f=1.0), "its value is in field 'f'"),
    "attribute without type": (lambda m: _attribute(m, i=-1), "attribute 'axis' has no type"),
    "attribute without name": (lambda m: m.graph.node[2].attribute.add(type=2, i=1), "attribute '' has no name"),
    "attribute twice": (lambda m: m.graph.node[2].attribute.append(m.graph.node[2].attribute[0]), "is there twice"),
    "attribute without graph": (
        lambda m: m.graph.node.add(op_type="If", input=["x"], output=["o"]).attribute.add(name="then_branch", type=5),
        "If 'o': attribute 'then_branch' has no graph",
    ),
    # Names.
    "nothing computes an input": (
        lambda m: m.graph.node[1].input.__setitem__(1, "zz"),
        "Add 't' reads 'zz', which noth",
    ),
    "nothing computes an output": (lambda m: m.graph.output.add(name="zz"), "an output of graph 'g' reads 'zz'"),
    "nothing computes a body's input": (
        lambda m: _branches(m, [helper.make_node("Relu", ["zz"], ["o2"])]),
        "Relu 'o2' reads 'zz', which nothing computes",
    ),
    "a body returns an outer value": (lambda m: _branches(m, [], "x"), "an output of graph 'body' reads 'x'"),
    "a circle of nodes": (lambda m: m.graph.node[0].input.__setitem__(0, "y"), "the graph has a cycle: "),
    "computed twice": (lambda m: m.graph.node[1].output.__setitem__(0, "h"), "Add 'h' computes 'h', defined before"),
    "computed and an input": (lambda m: m.graph.input.add(name="h"), "MatMul 'h' computes 'h', defined before"),
    "computed and an initializer": (
        lambda m: m.graph.initializer.append(helper.make_tensor("h", 1, [1], [1])),
        "MatMul 'h' computes 'h', defined before",
    ),
    "a body computes what it read": (
        lambda m: _branches(m, [helper.make_node("Relu", ["h"], ["o2"]), helper.make_node("Relu", ["x"], ["h"])]),
        "Relu 'h' computes 'h', of which nodes before it read the enclosing graph's",
    ),
    "two inputs of one name": (_repeated("input"), "two inputs of graph 'g' have the same name"),
    "two initializers of one name": (
        lambda m: m.graph.initializer.append(helper.make_tensor("b", 1, [1], [1])),
        "two initializers of graph 'g' are named 'b'",
    ),
    "the same in a body": (
        lambda m: _branches(
            m, [helper.make_node("Relu", ["s"], ["o2"])], "o2", [helper.make_tensor("s", 1, [1], [1])] * 2
        ),
        "two initializers of graph 'body' are named 's'",
    ),
    "an input without type": (lambda m: m.graph.input[0].ClearField("type"), "input 'x' has no type"),
    "an input of type UNDEFINED": (
        lambda m: m.graph.input[0].type.tensor_type.ClearField("elem_type"),
        "input 'x' has no type",
    ),
    "an input of an unknown type": (
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99),
        "malformed ONNX: the type of 'x' has the unknown element type 99",
    ),
    "a sequence of nothing": (
        lambda m: m.graph.value_info.add(name="h").type.sequence_type.SetInParent(),
        "malformed ONNX: the type of 'h' is a sequence of nothing",
    ),
    # Versions and functions.
    "opset beyond 32 bits": (lambda m: setattr(m.opset_import[0], "version", 2**40), "opset 1099511627776 of ai.onnx"),
    "a function's opset": (
        lambda m: (_call(m), setattr(m.functions[0].opset_import[0], "version", 2**40)),
        "function 'f::F' imports opset 1099511627776",
    ),
    "a function's undefined value": (
        lambda m: (_call(m), _function_reads(m, "zz")),
        "function 'f::F': Relu 'r' reads 'zz', which nothing computes",
    ),
    "a function's output": (
        lambda m: (_call(m), m.functions[0].output.append("zz")),
        "an output of function 'f::F' re",
    ),
    "two functions of one name": (lambda m: m.functions.append(m.functions[0]), "functions have the same name"),
    "a function that calls itself": (lambda m: _circle(m, 1), "in a circle: f::C0 -> f::C0"),
    "a circle of functions": (lambda m: _circle(m, 200), "in a circle: f::C0 -> f::C1"),
    "a sparse tensor's index": (lambda m: _sparse(m, indices=(1, 30)), "'s' has an index outside of its shape"),
}

ACCEPTED = {
    "raw data and entries": lambda m: setattr(m.graph.initializer[0], "raw_data", bytes(64)),
    "zero and huge sizes": lambda m: _unused(m, data_type=1, dims=[0, 2**62, 2**62]),
    "unused without data": lambda m: _unused(m, data_type=1, dims=[4]),
    "unused with wrong data": lambda m: _unused(m, data_type=1, dims=[4], raw_data=b"abc"),
    "unused with too few strings": lambda m: _unused(m, data_type=8, dims=[2], string_data=[b"a"]),
    "two initializers of one name and form": lambda m: m.graph.initializer.append(m.graph.initializer[1]),
    "an output twice": _repeated("output"),
    "INT attribute without a value": lambda m: _attribute(m, type=2),
    "negative size of an input": lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -1),
    "negative size of an output": lambda m: setattr(m.graph.output[0].type.tensor_type.shape.dim[1], "dim_value", -1),
    "negative sizes inside": lambda m: m.graph.value_info.append(helper.make_tensor_value_info("h", 1, [-1, -(2**63)])),
    "huge sizes inside": lambda m: m.graph.value_info.append(helper.make_tensor_value_info("h", 1, [2**62, 2**62])),
    "huge size of an input": lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**62),
    "an output without type": lambda m: m.graph.output[0].ClearField("type"),
    "a type inside that says nothing": lambda m: m.graph.value_info.add(name="h").type.SetInParent(),
    "nodes out of order": lambda m: m.graph.node.append(m.graph.node.pop(0)),
    "a body reads what comes later": lambda m: (
        _branches(m, [helper.make_node("Relu", ["t"], ["o2"])]),
        m.graph.node.insert(0, m.graph.node.pop()),
        m.graph.node.insert(0, m.graph.node.pop()),
    ),
    "IR version 2": lambda m: setattr(m, "ir_version", 2),
    "a reference outside of functions": lambda m: setattr(m.graph.node[2].attribute[0], "ref_attr_name", "axis"),
    "a negative IR version": lambda m: setattr(m, "ir_version", -1),
    "a strange version of another domain": lambda m: m.opset_import.add(domain="com.microsoft", version=2**40),
    "a negative version of another domain": lambda m: m.opset_import.add(domain="foo", version=-(2**40)),
    "a broken function that nothing calls": lambda m: _function_reads(m, "zz"),
    "a function that computes twice, uncalled": lambda m: m.functions[0].node.append(m.functions[0].node[0]),
    "a sparse initializer": _sparse,
    "op_type in ai.onnx": lambda m: setattr(m.graph.node[0], "domain", "ai.onnx"),
    "node name not UTF-8": lambda m: (
        setattr(m.graph.node[0], "name", "QQQQ"),
        m.SerializeToString().replace(b"QQQQ", b"QQQ\xff"),
    )[1],
    "value name not UTF-8": lambda m: m.SerializeToString().replace(b"\x01h", b"\x01\xff"),
    "producer not UTF-8": lambda m: (
        setattr(m, "producer_name", "QQQQ"),
        m.SerializeToString().replace(b"QQQQ", b"QQQ\xff"),
    )[1],
    "text of a size not UTF-8": _replaced(b"\x01N", b"\x01\xff"),
    "metadata not UTF-8": lambda m: (
        m.graph.node[0].metadata_props.add(key="k", value="QQQQ"),
        m.SerializeToString().replace(b"QQQQ", b"QQQ\xff"),
    )[1],
}


def _edited(edit):
    model = onnx.parser.parse_model(TEXT)
    result = edit(model)
    return result if isinstance(result, bytes) else model.SerializeToString()


def _loads_in_onnx_runtime(data):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except (*ORT_ERRORS, UnicodeDecodeError):
        return False
    return True


@pytest.mark.parametrize(("edit", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_in_one_line(edit, words, tmp_path):
    data = _edited(edit)
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=words) as caught:
        load(tmp_path / "model.onnx")
    assert len(str(caught.value)) <= 300
    assert str(caught.value).isprintable()
    with pytest.raises(ModelError, match=words):
        load(onnx.ModelProto.FromString(data))
    assert not _loads_in_onnx_runtime(data)


@pytest.mark.parametrize("edit", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_onnx_runtime_loads_is_converted(edit, tmp_path):
    data = _edited(edit)
    assert _loads_in_onnx_runtime(data)
    (tmp_path / "model.onnx").write_bytes(data)
    proto = onnx.ModelProto.FromString(data)
    for source in (tmp_path / "model.onnx", proto):
        program = load(source)
        assert _loads_in_onnx_runtime(to_proto(program.model).SerializeToString())
    assert proto.SerializeToString() == onnx.ModelProto.FromString(data).SerializeToString()  # as it was


def test_sparse_initializers_are_written_out():
    for indices, dims, shape in (((1, 3), (2,), (4,)), ((0, 1, 1, 2), (2, 2), (2, 4))):
        model = onnx.parser.parse_model(TEXT)
        _sparse(model, shape=shape)
        model.graph.sparse_initializer[0].indices.CopyFrom(helper.make_tensor("i", 7, dims, indices))
        dense = load(model).model.graph.initializers["s"].const_value.numpy()
        expected = [0, 5, 0, 6] if len(shape) == 1 else [[0, 5, 0, 0], [0, 0, 6, 0]]
        assert dense.tolist() == expected


def _sparse_constant(dims, values, indices, op_type="Constant", name="sparse_value", type_=TensorProto.FLOAT):
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("", type_, [len(values)], values),
        helper.make_tensor("", TensorProto.INT64, np.shape(indices), np.ravel(indices)),
        dims,
    )
    return helper.make_node(op_type, [], ["k"], name="K", **{name: sparse})


SPARSE = {
    "positions": ([5, 4], [0.5, -1.5, 2.0], [0, 7, 13], TensorProto.FLOAT),
    "coordinates": ([5, 4], [0.5, -1.5], [[0, 1], [4, 3]], TensorProto.FLOAT),
    "three axes": ([2, 2, 2], [1.0], [[1, 0, 1]], TensorProto.FLOAT),
    "nothing but zeros": ([3, 2], [], [], TensorProto.FLOAT),
    "float64": ([4], [1.0, 3.0], [1, 2], TensorProto.DOUBLE),
    "bfloat16": ([4], [1.0, 3.0], [1, 2], TensorProto.BFLOAT16),
    "integers": ([4], [1, 3], [1, 2], TensorProto.INT64),
    "numbers of 4 bits": ([4], [1, 3], [1, 2], TensorProto.INT4),
}


@pytest.mark.parametrize("form", SPARSE)
def test_sparse_constants_are_written_out(form):
    dims, values, indices, type_ = SPARSE[form]
    model = onnx.parser.parse_model(TEXT)
    model.graph.node.append(_sparse_constant(dims, values, indices, type_=type_))
    model.graph.output.add(name="k")
    wanted = np.zeros(dims)
    for value, index in zip(values, indices, strict=True):
        wanted[tuple(index) if np.ndim(index) else np.unravel_index(index, dims)] = value
    node = next(node for node in load(model).model.graph if node.name == "K")
    tensor = node.attributes["value"].as_tensor()
    assert tensor.dtype == type_
    np.testing.assert_array_equal(tensor.numpy().astype(np.float64), wanted)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (_sparse_constant([4], [1.0], [9]), "Constant 'K': the sparse tensor .* has an index outside"),
        (
            _sparse_constant([4], [b"a"], [1], type_=TensorProto.STRING),
            "Constant 'K': the sparse tensor .* holds texts",
        ),
        (_sparse_constant([2**40], [1.0], [1]), "Constant 'K': the sparse tensor .* are written out"),
        (_sparse_constant([4], [1.0], [1], "Own", "table"), "Own 'K': attribute 'table' is a sparse tensor"),
        (_sparse_constant([4], [1.0], [1], name="table"), "Constant 'K': attribute 'table' is a sparse tensor"),
    ],
)
def test_other_sparse_attributes_are_refused(node, message):
    model = onnx.parser.parse_model(TEXT)
    model.graph.node.append(node)
    with pytest.raises(ModelError, match=message):
        load(model)


@pytest.mark.parametrize("inputs", [[], ["x"], ["x", "h"], [""], ["w"]])
@pytest.mark.parametrize("op_type", ["", "Relu", "Add"])
def test_nodes_without_outputs_are_left_out(op_type, inputs):
    model = onnx.parser.parse_model(TEXT)
    model.graph.node.extend([helper.make_node(op_type, inputs, []), helper.make_node("Relu", ["y"], ["r"])])
    model.graph.node.append(helper.make_node("Print", ["y"], [], domain="own"))
    model.opset_import.append(helper.make_opsetid("own", 1))
    before = model.SerializeToString()
    operators = [node.op_type for node in load(model).model.graph if node.op_type != "Constant"]
    assert operators == ["MatMul", "Add", "Softmax", "Relu", "Print"]
    assert model.SerializeToString() == before


def test_a_huge_sparse_initializer_is_refused():
    model = onnx.parser.parse_model(TEXT)
    _sparse(model, shape=(2**40, 4))
    with pytest.raises(ModelError, match=r"sparse initializer 's' has dimensions .* are written out"):
        load(model)


def test_negative_sizes_are_unknown_ones():
    model = onnx.parser.parse_model(TEXT)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    model.graph.value_info.append(helper.make_tensor_value_info("h", 1, [-1, 4]))
    model.graph.value_info.append(helper.make_tensor_value_info("t", 1, [2**31 - 1, 4]))
    program = load(model)
    assert list(program.value("t").shape) == [ir.SymbolicDim(None), 4]
    assert list(program.value("x").shape) == [ir.SymbolicDim(None), 4]
    assert list(program.value("h").shape) == [ir.SymbolicDim(None), 4]


def test_the_last_of_two_initializers_counts():
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(helper.make_tensor("b", 1, [4], [100, 0, 0, 0]))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.ones((1, 4), np.float32)}
    again = to_proto(load(model).model).SerializeToString()
    ours = onnxruntime.InferenceSession(again, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(ours.run(None, feeds)[0], session.run(None, feeds)[0])


def test_bodies_nested_deeper_than_protobuf_reads_are_refused():
    model = onnx.parser.parse_model(TEXT)
    _deep(model)
    with pytest.raises(ModelError, match="graph 'body31' lies in more than 32 others"):
        load(model)


def test_functions_that_would_fill_the_memory_are_refused_at_once():
    model = onnx.parser.parse_model(TEXT)
    _bomb(model)
    with (
        pytest.raises(ModelError, match=r"536870914 nodes would take their place; at most 100000"),
        counted_work() as work,
    ):
        load(model)
    assert work.calls < 100_000


def test_an_onnx_ir_model_is_looked_at_too():
    for edit, words in (
        (lambda m: _function_reads(m, "zz"), "Relu '' reads 'zz', which nothing computes"),
        (lambda m: _circle(m, 3), "f::C0 -> f::C1 -> f::C2 -> f::C0"),
        (lambda m: m.graph.input[0].ClearField("type"), "input 'x' has no type"),
        (functools.partial(_bomb, levels=50), "so often that 10\\^14 nodes"),
    ):
        model = onnx.parser.parse_model(TEXT)
        edit(model)
        with pytest.raises(ModelError, match=words):
            load(ir.from_proto(model))


def test_names_from_a_file_reach_no_terminal_raw():
    model = onnx.parser.parse_model(TEXT)
    model.graph.node[1].input[1] = "\x1b]0;owned\a\u202e" + "n" * 10**6
    with pytest.raises(ModelError) as caught:
        load(model)
    assert str(caught.value).isprintable()
    assert "\\x1b]0;owned\\x07\\u202e" in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_what_onnx_ir_logs_is_shown_as_ours(caplog):
    load(onnx.parser.parse_model(TEXT))
    logging.getLogger("onnx_ir.serde").warning("Input '%s' of node is odd", "\x1b]0;owned\a\u202e")
    [record] = [record for record in caplog.records if record.name.startswith("amp_transpiler")]
    assert record.getMessage() == "Input '\\x1b]0;owned\\x07\\u202e' of node is odd"
    assert not logging.getLogger("onnx_ir").propagate  # else other handlers would print it as it is


@pytest.mark.parametrize("convert", [amp.transpile, amp.autocast, amp.convert_model])
def test_an_invalid_node_beside_an_unknown_operator_is_named(convert):
    """ONNX is asked for the unknown operator's type, and refuses the other node."""
    text = """<ir_version: 10, opset_import: ["": 21, "my": 1]>
    g (float[4] x, int64[1] k) => (float[m] z) { [broken] y, i = TopK (x, k) o = my.Unknown (y) z = Relu (o) }"""
    model = onnx.parser.parse_model(text)
    model.graph.node[0].output[1] = ""
    with pytest.raises(ModelError, match=r"invalid as it is.*TopK.*broken.*Output 1"):
        convert(model)
