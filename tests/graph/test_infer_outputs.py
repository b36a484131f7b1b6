"""Results of ONNX's inference that are kept: each is what ONNX says about that very node."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.errors import ModelError
from amp_transpiler.graph import infer_outputs as module
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.infer_outputs import infer_outputs
from amp_transpiler.graph.shape_inference import infer_shapes


def value(name, *sizes, dtype=ir.DataType.FLOAT):
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(sizes))


def constant(content, dtype=ir.DataType.INT64):
    result = value("c", *np.shape(content), dtype=dtype)
    result.const_value = ir.tensor(np.array(content, dtype.numpy()), name="c")
    return result


F16 = ir.DataType.FLOAT16
X, Y = value("x", 2, 3), value("y", 3, 4)
# Rows that differ in one fact each, which the result depends on.
NODES = [
    ("MatMul", [X, Y], {}),
    ("MatMul", [value("x", 5, 3), Y], {}),
    ("MatMul", [value("x", "n", 3), Y], {}),
    ("MatMul", [value("x", "m", 3), Y], {}),
    ("MatMul", [value("x", 2, 3, dtype=F16), value("y", 3, 4, dtype=F16)], {}),
    ("Transpose", [X], {}),
    ("Transpose", [X], {"perm": [0, 1]}),
    ("Reshape", [X, constant([3, 2])], {}),
    ("Reshape", [X, constant([6])], {}),
    ("ReduceSum", [X, constant([0])], {}),
    ("ReduceSum", [X, constant([1])], {}),
    ("ReduceSum", [X, constant([1])], {"keepdims": 0}),
    ("Cast", [X], {"to": 10}),
    ("Cast", [X], {"to": 16}),
    ("Clip", [X, None, constant(1.0, ir.DataType.FLOAT)], {}),
    ("ConstantOfShape", [constant([2])], {}),
    ("ConstantOfShape", [constant([2])], {"value": ir.tensor(np.zeros(1, np.float16))}),
    ("Constant", [], {"value": ir.tensor(np.zeros(3, np.float16))}),
    ("Constant", [], {"value": ir.tensor(np.zeros(4, np.float16))}),
]


def inferred(row, opset=20):
    op_type, inputs, attributes = row
    constants = [port for port in inputs if port is not None and port.const_value is not None]
    graph = ir.Graph([], [], nodes=[], initializers=constants, opset_imports={"": opset}, name="g")
    model = ir.Model(graph, ir_version=10)
    out = ir.Value(name="out")
    node = ir.Node("", op_type, inputs, list(ir.convenience.convert_attributes(attributes)), outputs=[out], name="n")
    infer_outputs(model, node)
    graph.initializers.clear()  # the next row has a model of its own
    return str(out.type), str(out.shape)


def test_what_is_kept_is_what_onnx_says():
    fresh = []
    for row in NODES:
        module._known.clear()
        fresh.append(inferred(row))
    module._known.clear()
    for _ in range(2):
        assert [inferred(row) for row in NODES] == fresh
    assert len(module._known) == len(NODES)


def test_types_and_shapes_are_not_shared():
    first, second = ([], [])
    for output in (first, second):
        model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="g"), ir_version=10)
        output.append(GraphBuilder(model).op("MatMul", [X, Y]))
    first[0].dtype = F16
    first[0].shape[0] = 7
    assert (second[0].dtype, second[0].shape) == (ir.DataType.FLOAT, ir.Shape([2, 4]))


def test_sequences_are_inferred():
    results = []
    for _ in range(2):
        model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="g"), ir_version=10)
        results.append(GraphBuilder(model).op("SequenceConstruct", [X, X]))
    assert [str(result.type) for result in results] == ["Sequence(Tensor(FLOAT))"] * 2


def test_equal_nodes_are_inferred_once(monkeypatch):
    module._known.clear()
    count = itertools.count()
    real = module._inferred
    monkeypatch.setattr(module, "_inferred", lambda *arguments: (next(count), real(*arguments))[1])
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 20}, name="g"), ir_version=10)
    builder = GraphBuilder(model)
    for _ in range(5):
        assert builder.op("MatMul", [X, Y]).shape == ir.Shape([2, 4])
    assert next(count) == 1
    for row in range(5):
        assert builder.op("Gather", [X, builder.constant(np.array([row % 2], np.int64))]).shape == ir.Shape([1, 3])
    assert next(count) == 3  # one of Gather: the rows' numbers do not count


def test_an_error_is_not_kept():
    for _ in range(2):
        with pytest.raises(ModelError, match="MatMul"):
            inferred(("MatMul", [X, X], {}))


def test_what_is_kept_is_bounded(monkeypatch):
    module._known.clear()
    monkeypatch.setattr(module, "_MOST", 3)
    for size in range(1, 9):
        inferred(("Relu", [value("x", size)], {}))
        assert len(module._known) <= 3


def test_a_model_of_known_shapes_is_not_inferred_again(monkeypatch):
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 20]> g (float[n, 3] x) => (float[n, 3] y) { a = Neg (x)  y = Neg (a) }'
    )
    infer_shapes(model)
    assert [str(node.outputs[0].shape) for node in model.graph] == ["[n,3]", "[n,3]"]
    asked = []
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda proto, **_: asked.append(proto) or proto)
    infer_shapes(model)
    assert len(asked) == 1  # n may be known by now
    for value in (*model.graph.inputs, *(node.outputs[0] for node in model.graph)):
        value.shape = ir.Shape([2, 3])
    infer_shapes(model)
    assert len(asked) == 1


@pytest.mark.parametrize("op_type", ["GroupNormalization", "MeanVarianceNormalization"])
def test_what_onnx_defines_by_a_function_alone_is_like_its_first_input(op_type):
    scales = [value("s", 4, dtype=F16), value("b", 4, dtype=F16)] if op_type[0] == "G" else []
    attributes = {"num_groups": 2} if op_type[0] == "G" else {}
    x = value("x", "n", 4, 8, dtype=F16)
    assert inferred((op_type, [x, *scales], attributes), opset=21) == (str(x.type), str(x.shape))
