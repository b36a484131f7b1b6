"""The list of decisions that change because of what a device computes wrongly."""

import json
import subprocess
import sys

import onnx
import onnx.parser
import pytest

import fault_decisions
from amp_transpiler.precision.reasons import Reason

TEXT = """<ir_version: 8, opset_import: ["": 18]> g (float[4,16] x, float[16,16] w) => (float[4,16] y)
    { [product] a = MatMul (x, w) [gate] b = Sigmoid (a) [out] y = MatMul (b, w) }"""
GATE = "Sigmoid in bfloat16 is 0 for every probability below 0.0039"


@pytest.fixture
def folder(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "net.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    return tmp_path


def test_a_row_counts_low_nodes_and_names_the_rule(folder):
    row = fault_decisions.change_of(folder / "net.onnx", "O2", "bfloat16")
    assert (row.before, row.after, row.rules) == (3, 2, {GATE: ["gate"]})
    assert fault_decisions.change_of(folder / "net.onnx", "O2", "float16").rules == {}


ON_DEVICE = {"low": "float16", "device": "NVIDIA H100", "release": "1.31"}
WRONG = Reason("wrong-kernel", {"operator": "Softplus", "fault": "is 0", **ON_DEVICE})
MEAN = {"operator": "ReduceMean", "low": "float16", "terms": 5000, "mean": 16.0, "most": 65504.0}


@pytest.mark.parametrize(
    ("reason", "rule"),
    [
        (WRONG, "Softplus in float16 is 0"),
        (Reason("wrong-kernel-inside", {"operator": "Mish", "fault": WRONG}), "Mish: Softplus in float16 is 0"),
        (Reason("mean-beyond-range", MEAN), "ReduceMean in float16 sums before it divides"),
        (Reason("island", {"casts": 1, "operators": 1}), fault_decisions.BESIDE),
    ],
)
def test_the_rule_of_a_reason(reason, rule):
    assert fault_decisions.rule_of(reason) == rule


def test_the_command(folder, tmp_path):
    out = tmp_path / "rows.json"
    command = [sys.executable, fault_decisions.__file__, str(folder), "--level", "O2", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "O2 bfloat16: 1 models, low nodes 3 -> 2 (66.67%)" in done.stdout
    assert "refused" in done.stdout
    assert {(row["dtype"], row["after"]) for row in json.loads(out.read_text("utf-8")) if not row["refused"]} == {
        ("float16", 3),
        ("bfloat16", 2),
    }
