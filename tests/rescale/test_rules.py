"""Every row of the rules, by numbers: with inputs times powers of two that it allows, results are equal to the bit."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.program.program import Program
from amp_transpiler.rescale.apply import scaled_copy
from amp_transpiler.rescale.places import Place
from amp_transpiler.rescale.rules import ROWS, parsed
from amp_transpiler.rescale.system import system_of

RNG = np.random.default_rng(7)
A = RNG.normal(size=(2, 4, 6, 6)).astype(np.float32)
B = RNG.normal(size=(2, 4, 6, 6)).astype(np.float32)
M, N = RNG.normal(size=(4, 5)).astype(np.float32), RNG.normal(size=(5, 3)).astype(np.float32)
P = np.abs(A) + np.float32(0.25)
VEC = RNG.normal(size=4).astype(np.float32)
LAST = RNG.normal(size=6).astype(np.float32)
ROW = RNG.normal(size=3).astype(np.float32)
W = RNG.normal(size=(8, 4, 3, 3)).astype(np.float32)
Q = RNG.normal(size=(1, 2, 5, 8)).astype(np.float32)
INDEX, SHAPE = np.array([1, 0], np.int64), np.array([2, -1], np.int64)
MASK = RNG.random(size=(2, 4, 6, 6)) < 0.5
SCALE = np.array(0.5, np.float32)
MS = "com.microsoft"

# Operator, its inputs (float32 ones may be scaled), attributes, how many exponents are free, and further outputs.
CASES = [
    *((name, [A], {}, 1) for name in ("Abs", "GlobalAveragePool", "GlobalMaxPool", "Identity", "LeakyRelu", "Neg")),
    *((name, [A], {}, 1) for name in ("Flatten", "Relu", "Transpose", "Trilu")),
    *((name, [A], {"kernel_shape": [2, 2]}, 1) for name in ("AveragePool", "MaxPool", "LpPool")),
    *((name, [A], {"keepdims": 0}, 1) for name in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")),
    ("ReduceSum", [A, np.array([1], np.int64)], {}, 1),
    ("PRelu", [A, np.array([0.25], np.float32)], {}, 1),
    ("Expand", [A, np.array([2, 4, 6, 6], np.int64)], {}, 1),
    ("Gather", [A, INDEX], {"axis": 1}, 1),
    ("Reshape", [A, SHAPE], {}, 1),
    ("Slice", [A, np.array([1], np.int64), np.array([3], np.int64), np.array([1], np.int64)], {}, 1),
    ("Squeeze", [A[:1], np.array([0], np.int64)], {}, 1),
    ("Unsqueeze", [A, np.array([0], np.int64)], {}, 1),
    ("Tile", [A, np.array([1, 2, 1, 1], np.int64)], {}, 1),
    ("DepthToSpace", [A], {"blocksize": 2}, 1),
    ("SpaceToDepth", [A], {"blocksize": 2}, 1),
    ("CumSum", [A, np.array(1, np.int64)], {}, 1),
    ("Dropout", [A], {}, 1),
    ("Cast", [A], {"to": onnx.TensorProto.FLOAT}, 1),
    ("Cast", [A], {"to": onnx.TensorProto.FLOAT16}, 0),
    ("Clip", [A, np.array(-0.5, np.float32), np.array(0.5, np.float32)], {}, 1),
    ("Pad", [A, np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), np.array(0.75, np.float32)], {}, 1),
    ("Resize", [A, None, np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"}, 1),
    ("Where", [MASK, A, B], {}, 1),
    ("ScatterND", [A, np.array([[0], [1]], np.int64), B], {}, 1),
    ("ScatterND", [A, np.array([[0], [1]], np.int64), B], {"reduction": "mul"}, 0),
    *((name, [A, B], {}, 1) for name in ("Add", "Max", "Mean", "Min", "Sub", "Sum")),
    ("Concat", [A, B, A], {"axis": 1}, 1),
    *((name, [A, B], {}, 2) for name in ("Mul", "Div")),
    ("MatMul", [M, N], {}, 2),
    ("Gemm", [M, N, ROW], {"alpha": 0.5, "beta": 2.0}, 2),
    ("Conv", [A, W, RNG.normal(size=8).astype(np.float32)], {}, 2),
    ("ConvTranspose", [A, RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)], {}, 2),
    ("Einsum", [M, N], {"equation": "ij,jk->ik"}, 2),
    ("Pow", [A, np.array(2.0, np.float32)], {}, 1),
    ("Pow", [P, np.array(0.5, np.float32)], {}, 1),
    ("Pow", [P, np.array(-1.0, np.float32)], {}, 1),
    ("Pow", [P, np.array(0.3, np.float32)], {}, 0),
    ("Sqrt", [P], {}, 1),
    ("Reciprocal", [P], {}, 1),
    ("ReduceSumSquare", [A], {}, 1),
    ("LayerNormalization", [A, LAST, LAST], {"epsilon": 1e-3}, 2),
    ("LayerNormalization", [A, LAST], {}, 2),
    ("InstanceNormalization", [A, VEC, VEC], {"epsilon": 1e-3}, 2),
    ("BatchNormalization", [A, VEC, VEC, VEC, np.abs(VEC)], {}, 2),
    ("LpNormalization", [A], {}, 1),
    ("SkipLayerNormalization", [A[0, 0:1], A[0, 1:2], LAST, LAST, LAST], {"epsilon": 1e-3}, 2),
    ("SkipSimplifiedLayerNormalization", [A[0, 0:1], A[0, 1:2], LAST], {"epsilon": 1e-3}, 2),
    ("Attention", [Q, Q, Q], {}, 2),
    *((name, [A], {}, 1) for name in ("ArgMax", "IsNaN", "Sign", "NonZero")),
    *((name, [A, B], {}, 1) for name in ("Equal", "Greater", "LessOrEqual")),
    ("QuantizeLinear", [A, SCALE, np.array(3, np.uint8)], {}, 1),
    ("DequantizeLinear", [np.arange(6, dtype=np.uint8), SCALE, np.array(3, np.uint8)], {}, 1),
    *((name, [A], {}, 0) for name in ("Exp", "Sigmoid", "Softmax", "Tanh", "Gelu", "Erf", "Log", "Elu", "Softplus")),
]
DOMAINS = {"SkipLayerNormalization": MS, "SkipSimplifiedLayerNormalization": MS}


def program_of(operator, arrays, attributes):
    """A node whose float inputs and results are multiplied by constants, which take any exponent."""
    nodes, initializers, inputs, names, samples = [], [], [], [], {}
    exponents_stay = operator in ("Pow", "PRelu", "Resize")  # their further inputs are no data

    for index, array in enumerate(arrays):
        if array is None:
            names.append("")
            continue
        name = f"x{index}"
        is_data = array.dtype == np.float32 and not (exponents_stay and index)
        if not is_data:
            initializers.append(numpy_helper.from_array(array, name))
            names.append(name)
            continue
        samples[name] = array
        inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape))
        initializers.append(numpy_helper.from_array(np.array(1.5, np.float32), f"c{index}"))
        nodes.append(helper.make_node("Mul", [name, f"c{index}"], [f"m{index}"]))
        names.append(f"m{index}")
    nodes.append(helper.make_node(operator, names, ["r"], "node", domain=DOMAINS.get(operator, ""), **attributes))
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="r")], initializers)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MS, 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    propagate_types(model)
    model.graph.outputs.clear()
    node = next(node for node in model.graph if node.name == "node")
    result = node.outputs[0]
    if result.dtype == ir.DataType.FLOAT:
        constant = ir.Value(name="d", const_value=ir.tensor(np.array(1.25, np.float32), name="d"))
        constant.type, constant.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(())
        model.graph.register_initializer(constant)
        last = ir.Node("", "Mul", [result, constant], name="last")
        last.outputs[0].name = "out"
        model.graph.append(last)
        result = last.outputs[0]
    model.graph.outputs.append(result)
    propagate_types(model)
    return Program(model), samples


def results(program, samples):
    session = onnxruntime.InferenceSession(
        ir.to_proto(program.model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, samples)


def drawn(system, generator):
    """Random whole exponents that solve a system, by place."""
    while True:
        numbers = {number: generator.randint(-5, 5) for number in system.free}
        exponents = {
            unknown: sum(factor * numbers[number] for number, factor in exponent.items())
            for unknown, exponent in system.exponents.items()
        }
        if all(exponent.denominator == 1 for exponent in exponents.values() if exponent):
            return {unknown.key: int(e) for unknown, e in exponents.items() if isinstance(unknown, Place) and e}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}{len(case[1])}")
def test_a_row_keeps_every_bit(case):
    operator, arrays, attributes, free = case
    program, samples = program_of(operator, arrays, attributes)
    system = system_of(program.model)
    assert len(system.free) == free
    expected, generator = results(program, samples), random.Random(3)
    for _ in range(4 if free else 0):
        exponents = drawn(system, generator)
        scaled = scaled_copy(program, exponents)
        for first, second in zip(expected, results(scaled, samples), strict=True):
            assert first.dtype == second.dtype
            assert first.tobytes() == second.tobytes(), exponents


def test_every_row_can_be_read():
    texts = [row for row in ROWS.values() if isinstance(row, str)]
    assert all(parsed(row).mentioned for row in texts)


def test_rows_that_no_case_tries_are_few():
    tried = {f"{DOMAINS[case[0]]}::{case[0]}" if case[0] in DOMAINS else case[0] for case in CASES}
    assert len(set(ROWS) - tried) < 40
