"""The list of decisions that change because of what a device computes wrongly."""

import json
import subprocess
import sys

import onnx
import onnx.parser
import pytest

import fault_decisions

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


@pytest.mark.parametrize(
    ("reason", "rule"),
    [
        (f"{GATE} (NVIDIA H100, ONNX Runtime 1.31)", GATE),
        (
            "CUDA computes Mish by its definition: Softplus in float16 is 0 (NVIDIA H100, ONNX Runtime 1.31)",
            "Mish: Softplus in float16 is 0",
        ),
        (
            "CUDA's ReduceMean sums 5000 float16 numbers before it divides; means may reach 16, whose sum is beyond 6",
            "ReduceMean in float16 sums before it divides",
        ),
        ("an island: lower precision costs 1 more cast for 1 cheap operator", fault_decisions.BESIDE),
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
