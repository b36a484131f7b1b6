"""Attributes of a node in words: in the report, in JSON, and folded into its row of the page."""

import dataclasses
import html
import json
import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.report import DecisionRow, Report
from amp_transpiler.report.as_html import page
from amp_transpiler.report.as_json import dump, report_as_dict
from amp_transpiler.report.attributes import attribute_words
from amp_transpiler.report.sections import nodes_table
from tests.support import array, chain, parse

EMPTY = Report("a.onnx", "auto", "float16", "cuda", device="H100", low_nodes=3, high_nodes=1, casts=2)


def graph(name):
    return ir.Graph([], [], nodes=[], name=name)


def tensor(*values, dtype=np.float32):
    return ir.tensor(np.array(values, dtype))


SPARSE = onnx.helper.make_sparse_tensor(
    onnx.helper.make_tensor("v", onnx.TensorProto.FLOAT, [1], [1.0]),
    onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0]),
    [4],
)

# an attribute -> its words
VALUES = {
    "a number": (ir.AttrInt64("a", 2), "2"),
    "a fraction": (ir.AttrFloat32("a", 0.1), "0.1"),
    "a small fraction": (ir.AttrFloat32("a", 1e-5), "1e-05"),
    "text": (ir.AttrString("a", "NOTSET"), '"NOTSET"'),
    "numbers": (ir.AttrInt64s("a", [3, 3]), "[3, 3]"),
    "fractions": (ir.AttrFloat32s("a", [0.5, 2.0]), "[0.5, 2]"),
    "texts": (ir.AttrStrings("a", ["Tanh", "Relu"]), '["Tanh", "Relu"]'),
    "nothing": (ir.AttrInt64s("a", []), "[]"),
    "many numbers": (ir.AttrInt64s("a", range(100)), "[0, 1, 2, 3, 4, 5, 6, 7, … 100 in all]"),
    "long text": (ir.AttrString("a", "x" * 10_000), '"' + "x" * 58 + "…"),
    "long texts": (ir.AttrStrings("a", ["x" * 100] * 3), '["' + "x" * 57 + "…"),
    "a tensor": (ir.AttrTensor("a", tensor(1.5, 2.0)), "float32[2] [1.5, 2]"),
    "a scalar": (ir.AttrTensor("a", ir.tensor(np.array(7, np.int64))), "int64[] [7]"),
    "truth": (ir.AttrTensor("a", tensor(True, dtype=np.bool_)), "bool[1] [True]"),
    "a large tensor": (ir.AttrTensor("a", ir.tensor(np.zeros((30, 40), np.float32))), "float32[30,40]"),
    "text tensor": (ir.AttrTensor("a", ir.StringTensor([b"x"], shape=ir.Shape([1]))), "string[1]"),
    "a body": (ir.AttrGraph("a", graph("then_branch")), "body then_branch"),
    "a body without a name": (ir.AttrGraph("a", graph("")), "a body"),
    "bodies": (ir.AttrGraphs("a", [graph("b"), graph("c")]), "[body b, body c]"),
    "of a function": (ir.RefAttr("a", "alpha", ir.AttributeType.FLOAT), "@alpha"),
    "a sparse tensor": (ir.Attr("a", ir.AttributeType.SPARSE_TENSOR, SPARSE), "a sparse tensor"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_value_in_words(case):
    attribute, expected = VALUES[case]
    assert attribute_words(ir.Node("", "Op", [], [attribute])) == {"a": expected}


def test_a_file_is_not_read_for_it(tmp_path):
    lost = ir.ExternalTensor("gone.bin", 0, 4, ir.DataType.FLOAT, shape=ir.Shape([1]), name="w", base_dir=tmp_path)
    assert attribute_words(ir.Node("", "Constant", [], [ir.AttrTensor("value", lost)])) == {"value": "float32[1]"}


# a model -> an operator and its attributes in the report
CONV = parse(
    "(float[1,3,8,8] x) => (float[1,8,8,8] y) { y = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w) }",
    w=array(8, 3, 3, 3),
)
BRANCHES = parse(
    """(float[2,4] x, bool c) => (float[2,4] y) {
        y = If (c) <then_branch = yes () => (float[2,4] p) { p = Exp(x) },
                    else_branch = no () => (float[2,4] q) { q = Abs(x) }>
    }"""
)
MODELS = {
    "Conv": (CONV, {}, {"kernel_shape": "[3, 3]", "pads": "[1, 1, 1, 1]"}),
    "Conv, copied": (CONV, {"level": "O0"}, {"kernel_shape": "[3, 3]", "pads": "[1, 1, 1, 1]"}),
    "If": (BRANCHES, {"level": "O1"}, {"then_branch": "body yes", "else_branch": "body no"}),
    "Softmax": (chain("Softmax <axis=1> ({})"), {"level": "O2"}, {"axis": "1"}),
    "Transpose": (chain("Transpose <perm=[0,1]> ({})"), {"policy": "torch"}, {"perm": "[0, 1]"}),
    "Relu": (chain("Relu ({})"), {}, {}),
}


@pytest.mark.parametrize("case", MODELS)
def test_attributes_are_in_the_report_in_json_and_folded_into_the_operator(case):
    model, options, expected = MODELS[case]
    op = case.partition(",")[0]
    report = amp.transpile(model, verify=False, **options)
    (row,) = [row for row in report.decisions if row.op == op]
    assert row.attributes == expected
    (record,) = [each for each in json.loads(dump(report_as_dict(report)))["decisions"] if each["op"] == op]
    assert record["attributes"] == expected
    lines = "".join(f"<div>{html.escape(f'{name}={value}')}</div>" for name, value in expected.items())
    assert (f"<summary>{op}</summary>{lines}</details>" in page([(report, None)])) == bool(expected)


def test_a_table_is_as_wide_as_without():
    row = DecisionRow("n", "Conv", "float16", "why", attributes={"kernel_shape": "[3, 3]"})
    bare = dataclasses.replace(row, attributes={})
    with_some, without = (nodes_table(dataclasses.replace(EMPTY, decisions=(decision,))) for decision in (row, bare))
    assert with_some.heads == without.heads
    assert [cell.text for cell in with_some.rows[0]] == [cell.text for cell in without.rows[0]]


def test_hostile_attributes_are_text():
    row = DecisionRow("n", "Op", "float16", "why", attributes={"<b>": '"<script>alert(1)</script>\x1b"'})
    text = page([(dataclasses.replace(EMPTY, decisions=(row,)), None)])
    assert text.count("<script>") == 1
    assert "<b>" not in re.sub(r"<div><b>[^<]*</b>", "", text)  # the tiles' own
    assert "\x1b" not in text
