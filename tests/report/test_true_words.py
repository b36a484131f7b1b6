"""What reports say is known: causes, opsets, devices, what was emulated, and one word for one thing."""

from __future__ import annotations

import io
import json
import re

import onnx_ir as ir
import pytest
from rich.console import Console

import amp_transpiler as amp
from amp_transpiler.report import DecisionRow, Report
from amp_transpiler.report.as_html import page
from amp_transpiler.report.as_json import dump, report_as_dict
from amp_transpiler.report.explain import explain_lines
from amp_transpiler.report.precision import Precision, kind_of
from amp_transpiler.report.table import summary
from amp_transpiler.report.wording import opset_words, remarks
from amp_transpiler.targets.devices import DEVICES
from tests.support import array, chain

W = array(4, 4, seed=2)
MODEL = chain("MatMul ({}, w)", "Sigmoid ({})", w=W)
X = {"x": array(2, 4)}


def shown(report):
    file = io.StringIO()
    Console(file=file, width=1000, markup=False, highlight=False, emoji=False).print(summary(report))
    return file.getvalue()


FUSED = [f"com.microsoft::{name}" for name in ("FusedConv", "FusedMatMul", "FusedGemm")] + ["com.microsoft.nchwc::Conv"]


@pytest.mark.parametrize("operator", FUSED)
def test_operators_of_an_optimizer_may_be_written_by_others(operator):
    report = Report("m", "auto", "float16", "cuda", low_nodes=1, missing_kernels={operator: 2})
    [note] = remarks(report)
    assert note.startswith(f"2 nodes without a float16 kernel: {operator}, which ONNX Runtime's optimizer makes; if it")


# imports of the model, its node: the opset before, and after where casts come in, and in words.
OPSETS = {
    "com.microsoft alone": ('["com.microsoft": 1]', "com.microsoft.FusedMatMul (x, w)", "none of ONNX's own -> "),
    "ai.onnx.ml beside": ('["com.microsoft": 1, "ai.onnx.ml": 3]', "com.microsoft.FusedMatMul (x, w)", "none of ONN"),
    "a domain of others": ('["mine": 7]', "mine.Any (x, w)", "none of ONNX's own"),
    "both": ('["com.microsoft": 1, "": 17]', "com.microsoft.FusedMatMul (x, w)", "17"),
    "ONNX's own": ('["": 17]', "MatMul (x, w)", "17"),
    "ONNX's own, by name": ('["ai.onnx": 17]', "MatMul (x, w)", "17"),
}


@pytest.mark.parametrize("case", OPSETS)
def test_the_opset_is_that_of_onnx_s_own_domain_before_and_after(case):
    imports, body, words = OPSETS[case]
    graph = f"g (float[2, 4] x, float[4, 4] w) => (float[2, 4] y) {{ y = {body} }}"
    model = ir.from_onnx_text(f"<ir_version: 10, opset_import: {imports}> {graph}")
    report = amp.transpile(model, prefer="size", verify=False)
    assert opset_words(*report.opset).startswith(words)
    assert "opset 1 " not in page([(report, None)])
    assert words in shown(report)


# options: what the verdict says of rounding
BLACK = amp.AutoMixedPrecisionLists(None, {"MatMul", "Sigmoid"})
ROUNDED = {
    "float16": ({}, "arithmetic of H100"),
    "on the CPU": ({"target": "cpu"}, "rounding emulated"),
    "TensorRT": ({"target": "tensorrt"}, "rounding emulated"),
    "all black": ({"level": "O1", "amp_lists": BLACK}, "nothing rounded"),
    "a tiny limit": ({"tolerance": 1e-9, "target": "cpu"}, "nothing rounded"),
    "a tiny limit, TensorRT": ({"tolerance": 1e-9, "target": "tensorrt"}, "nothing rounded"),
    "disabled": ({"disable_amp": [".*"]}, "nothing rounded"),
    "float16 outputs alone": ({"disable_amp": [".*"], "keep_io_types": False, "target": "cpu"}, "rounding emulated"),
}


@pytest.mark.parametrize("case", ROUNDED)
def test_emulated_is_what_was_rounded(case):
    options, words = ROUNDED[case]
    report = amp.transpile(MODEL, inputs=X, prefer="size", **options)
    assert words in report.verdict
    if words == "nothing rounded":
        assert re.match(
            r"(verified|compared): within 0% of float32(, allowed [\d.]+%,)? on 1 given sample, nothing rounded",
            report.verdict,
        )
        assert "emulat" not in shown(report)


@pytest.mark.parametrize("target", ["cpu", "tensorrt"])
def test_no_device_is_named_where_no_time_is_predicted(target):
    report = amp.transpile(MODEL, inputs=X, target=target, frontier=True)
    assert (report.device, report.predicted_ms, report.pays_from) == ("", (None, None), "")
    assert report.frontier
    assert {point.milliseconds for point in report.frontier} == {None}
    everywhere = shown(report) + page([(report, None)]) + dump(report_as_dict(report))
    assert not [name for name in DEVICES if name in everywhere]


def test_no_time_is_told_where_no_node_has_a_price():
    text = '<ir_version: 10, opset_import: ["ai.onnx.ml": 1]> g (float[2, 4] x) => (float[2, 4] y) '
    model = ir.from_onnx_text(text + "{ y = ai.onnx.ml.Normalizer (x) }")
    report = amp.transpile(model, inputs=X, frontier=True)
    assert (report.predicted_ms, report.predicted_graph_ms, report.predicted_from) == ((None, None), (None, None), "")
    assert [point.milliseconds for point in report.frontier] == [None]


@pytest.mark.parametrize("device", ["L4", "T4", "a100", "RTX 4090", "H200"])
def test_a_device_for_the_cpu_is_refused(device):
    with pytest.raises(amp.OptionError, match="with target cpu, which runs on no GPU: drop one of the two"):
        amp.transpile(MODEL, target="cpu", device=device)


@pytest.mark.parametrize("target", ["cuda", "any", "tensorrt"])
@pytest.mark.parametrize("level", ["auto", "O1", "O2"])
def test_bfloat16_on_a_device_without_it_is_refused(target, level):
    with pytest.raises(amp.OptionError, match=r"a T4 has no bfloat16: take float16, or a device that has it \(H100,"):
        amp.transpile(MODEL, target=target, device="T4", dtype="bfloat16", level=level)


@pytest.mark.parametrize("options", [{"level": "O0"}, {"target": "cpu", "device": "H100"}, {"dtype": "float16"}])
def test_other_requests_take_the_same_device(options):
    amp.transpile(MODEL, **{"device": "T4", "verify": False, **options})


def test_lists_of_the_user_keep_device_and_sizes():
    lists = amp.AutoMixedPrecisionLists(custom_black_list={"Sigmoid"})
    assert amp.transpile(MODEL, amp_lists=lists, device="L4", verify=False).device == "L4"


# low format: its word, and those of the others
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_precisions_have_one_word_everywhere(dtype):
    model = chain("MatMul ({}, w)", "Mod <fmod = 1> ({}, w2)", w=W, w2=array(4))
    report = amp.transpile(model, dtype=dtype, inputs=X, frontier=True, prefer="size")
    words = {str(row.precision) for row in report.decisions}
    assert words <= {dtype, "float32", "unchanged"}
    assert dtype in words
    assert {row["precision"] for row in json.loads(dump(report_as_dict(report)))["decisions"]} == words
    assert {line.split()[0] for line in list(explain_lines(report))[1:]} == words
    html = page([(report, None)])
    assert not [word for word in (">low<", ">high<", ">untouched<", "low nodes", "without floats") if word in html]
    assert "low nodes" not in shown(report)


# word -> what it equals besides
FORMER = {"float16": "low", "bfloat16": "low", "float32": "high", "unchanged": "untouched"}


@pytest.mark.parametrize("word", FORMER)
def test_a_precision_equals_its_former_word_too(word):
    precision = Precision(word)
    assert precision == word
    assert precision == FORMER[word] == kind_of(precision)
    assert hash(precision) == hash(word)
    assert {other for other in (*FORMER, *FORMER.values()) if precision == other} == {word, FORMER[word]}
    assert str(precision) == f"{precision}" == json.loads(json.dumps(precision)) == word
    assert repr(DecisionRow("n", "Relu", precision, "why")) == f"DecisionRow('n', 'Relu', '{word}', 'why')"


def test_a_copy_is_unchanged():
    assert {str(row.precision) for row in amp.transpile(MODEL, level="O0").decisions} == {"unchanged"}


def test_float32_is_counted_once_where_it_is_what_is_wanted():
    report = amp.transpile(MODEL, dtype="float32")
    assert "nodes      2: 2 float32, 0 unchanged" in shown(report)
