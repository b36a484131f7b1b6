"""A report with every field filled, of a model of any size."""

import dataclasses
import itertools

import numpy as np
import onnx
from onnx import helper

import amp_transpiler as amp
from amp_transpiler.report import FrontierPoint, OutputComparison, PredictedTimes

_BLOCK = ("MatMul", "Add", "Mul", "Exp", "Relu", "Sigmoid", "Neg", "Tanh", "Abs", "Softmax")
POINTS = (
    FrontierPoint(0.0, 3.1, 0.0, 0, measured=True),
    FrontierPoint(1e-4, 2.6, 0.3, 4),
    FrontierPoint(1e-3, 1.9, 0.9, 5, measured=True, chosen=True),
    FrontierPoint(3e-3, 1.85, 1.0, 2),
)


def deep_model(layers, blocks=5):
    """Return a model of `layers` scopes of `blocks` scopes of ten nodes each."""
    nodes, last = [], "x"
    for layer, block in itertools.product(range(layers), range(blocks)):
        scope = f"/encoder/layer.{layer}/block.{block}"
        for index, op in enumerate(_BLOCK):
            result = f"{scope}/{op}_{index}_output"
            second = {"Add": ["x"], "Mul": ["x"], "MatMul": ["w"]}.get(op, [])
            nodes.append(helper.make_node(op, [last, *second], [result], name=f"{scope}/{op}_{index}"))
            last = result
    nodes.append(helper.make_node("Identity", [last], ["y"], name="/out"))
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 4]) for name in ("x", "y")]
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "deep", value[:1], value[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def dressed(report):
    """Return the report with figures as the precision engine fills them in, made up from the place of each node."""
    rows = tuple(_dressed(row, index) for index, row in enumerate(report.decisions))
    outputs = {
        "logits": OutputComparison("logits", "float32", (1, 10), 1.2e-3, 4e-4, 0.99999, elements=10),
        "label": OutputComparison("label", "int64", (1,), 0.0, 0.0, 1.0, elements=1),
    }
    return dataclasses.replace(
        report,
        decisions=rows,
        outputs=outputs,
        device="H100",
        times=PredictedTimes(3.1, 1.9),
        frontier=POINTS,
        headroom=4.0,
        warnings=("a warning",),
        verdict="verified: on 8 samples",
    )


def _dressed(row, index):
    if row.precision == "untouched":
        return row
    return dataclasses.replace(
        row,
        error=1e-5 * (1 + index % 17),
        largest=1.5 * (1 + index % 23),
        sample=f"sample {index % 8}",
        flushed=0.01 * (index % 5),
        bytes=64 * (1 + index),
        milliseconds=0.002 + index % 7 / 1000,
        milliseconds_fp32=0.003 + index % 7 / 1000,
        bound=("launch", "bytes", "arithmetic")[index % 3],
        remedy="a larger headroom" if row.precision == "high" else "",
    )


def large_report(layers=40):
    """Return the report of a model of fifty nodes a layer."""
    return dressed(amp.transpile(deep_model(layers), level="O1", verify=False))
