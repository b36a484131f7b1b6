"""The forms of the report: table, explanation, JSON, HTML."""

import base64
import dataclasses
import hashlib
import html.parser
import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

from amp_transpiler.measuring.benchmark import CPU_TIMES, BenchmarkResult, Profile
from amp_transpiler.measuring.node_times import OperatorTime
from amp_transpiler.report import DecisionRow, OutputComparison, PredictedTimes, Report
from amp_transpiler.report.as_html import page
from amp_transpiler.report.as_json import dump, package_versions, report_as_dict
from amp_transpiler.report.explain import explain_lines
from amp_transpiler.report.table import (
    benchmark_table,
    human_bytes,
    outputs_worst_first,
    summary,
)
from amp_transpiler.report.wording import human_number, percent, reasons, remarks

HOSTILE = "<script>alert('x')</script>&\x1b[31m\n[bold]"


def make_report(**changes) -> Report:
    low = changes.get("dtype", "float16")
    report = Report(
        source="models/net.onnx",
        level="auto",
        dtype="float16",
        target="cuda",
        destination="models/net.fp16.onnx",
        decisions=(
            DecisionRow("conv_0", "Conv", low, "white list"),
            DecisionRow("relu_0", "Relu", low, "follows its neighbours"),
            DecisionRow("exp_0", "Exp", "float32", "black list", "loop_1/body"),
            DecisionRow("det_0", "Det", "float32", "no CUDA kernel in float16 at opset 17"),
            DecisionRow("shape_0", "Shape", "unchanged", "no float32 tensor"),
        ),
        nodes=5,
        low_nodes=2,
        high_nodes=2,
        casts=3,
        casts_removed=1,
        opset=(13, 17),
        weight_bytes=(418_123_456, 209_061_728),
        file_bytes=(418_200_000, 209_100_000),
        missing_kernels={"Det": 1},
        outputs={
            "logits": OutputComparison("logits", "float32", (1, 10), 1.25e-3, 4.1e-4, 0.9999991),
            "label": OutputComparison("label", "int64", (1,), 0.0, 0.0, 1.0),
        },
        verdict="verified: on 1 synthesised sample",
        checks=("types", "onnx.checker", "ONNX Runtime session"),
        notes=("inputs were made up",),
        seconds=2.25,
        phases={"load": 0.25},
    )
    return dataclasses.replace(report, **changes)


def shown(report: Report, *, width: int = 80, failed: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=width, markup=False, highlight=False, emoji=False).print(summary(report, failed=failed))
    return file.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.0 MB"),
        (418_123_456, "418.1 MB"),
        (3_000_000_000, "3.0 GB"),
        (5_000_000_000_000, "5.0 TB"),
    ],
)
def test_human_bytes(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0, "0%"),
        (0.012, "1.2%"),
        (0.00041, "0.041%"),
        (0.000764499, "0.0764%"),
        (1e-7, "1e-05%"),
        (1e-9, "1e-07%"),
        (1.2345e-9, "1.23e-07%"),
        (2.0, "200%"),
        (9.996, "1000%"),
        (12.3456, "1230%"),
        (9994.9, "999000%"),
        (1e4, "1e+06%"),
        (-0.5, "-50%"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_a_percentage_has_three_significant_digits(fraction, text):
    assert percent(fraction) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (1.25e-3, "1.25e-03"), (math.nan, "nan"), (math.inf, "inf")])
def test_human_number(value, text):
    assert human_number(value) == text


@pytest.mark.parametrize(
    "expected",
    [
        "models/net.onnx -> models/net.fp16.onnx",
        "level auto, float16, target cuda, 2.2 s",
        "5: 2 float16 (50% of those with a choice), 2 float32, 1 unchanged",
        "1x no CUDA kernel in float16 at opset 17",
        "3 inserted, 1 removed",
        "13 -> 17",
        "418.1 MB -> 209.1 MB (-50%)",
        "418.2 MB -> 209.1 MB (-50%)",
        "in float16 on cuda: Det 1",
        "types; onnx.checker; ONNX Runtime session",
        "verified: on 1 synthesised sample",
        "inputs were made up",
        "1.25e-03",
        "0.041%",
        "0.999999",
        "label int64 - - - - 0%",
    ],
)
def test_summary_says(expected):
    assert expected in shown(make_report()) or expected in " ".join(shown(make_report()).split())


PROMOTED = "torch's promote (add): promoted, input {} is float32"
GROUPS = {
    "names differ": ([PROMOTED.format("'x'"), PROMOTED.format("'y z'")], [(PROMOTED.format("'...'"), 2)]),
    "names with apostrophes": (
        [PROMOTED.format("'it's'"), PROMOTED.format("'x'"), PROMOTED.format("''")],
        [(PROMOTED.format("'...'"), 3)],
    ),
    "one name for all": ([PROMOTED.format("'x'")] * 2, [(PROMOTED.format("'x'"), 2)]),
    "two reasons": (
        ["no 'a' there", "'b' is wide", "no 'c' there", "black list"],
        [("no '...' there", 2), ("'b' is wide", 1), ("black list", 1)],
    ),
    "apostrophes quote nothing": (["torch's fp32 of RAF's", "torch's low of RAF's"], None),
}


@pytest.mark.parametrize("name", GROUPS)
def test_reasons_that_differ_in_names_alone_are_one(name):
    texts, expected = GROUPS[name]
    rows = tuple(DecisionRow(f"n{i}", "Add", "float32", text) for i, text in enumerate(texts))
    report = make_report(decisions=rows, nodes=len(rows), low_nodes=0)
    expected = expected if expected is not None else sorted((text, 1) for text in texts)
    assert reasons(report, "high") == expected
    table, html_text = " ".join(shown(report, width=200).split()), " ".join(Collector(page([(report, None)])).text)
    for reason, count in expected:
        assert f"{count}x {reason}" in table
        assert reason in html_text
    lines = list(explain_lines(report))
    assert [line.endswith(text) for line, text in zip(lines[1:], texts, strict=True)] == [True] * len(texts)


def test_summary_fits_eighty_columns_and_one_screen_for_a_large_model():
    rows = tuple(
        DecisionRow(f"n{i}", "Add", ("float16", "float32", "unchanged")[i % 3], f"reason {i} " * 9) for i in range(600)
    )
    outputs = {f"o{i}" * 40: OutputComparison(f"o{i}" * 40, "float32", (1,), 0.1, i / 1e4, 0.9) for i in range(100)}
    text = shown(make_report(decisions=rows, nodes=600, outputs=outputs, notes=tuple("abcdefghijkl")))
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 60
    assert "and 88 more, relative error at most 0.87%" in text
    assert "195x for 195 other reasons" in text


def test_summary_without_colour_has_no_escape_sequences_even_from_names():
    text = shown(make_report(source=HOSTILE, notes=(HOSTILE,), verdict=f"failed: {HOSTILE}"))
    assert "\x1b" not in text
    assert "[bold]" in text  # no markup is read out of names


def test_summary_begins_with_a_result_that_is_slower():
    times = {"device": "H100", "times": PredictedTimes(1.0, 1.25)}
    text = shown(make_report(**times))
    assert text.startswith("predicted slower than float32 at these shapes on H100: 1.25 ms instead of 1 ms")
    assert " predicted 1.25 ms instead of 1 ms on H100 (1.25 times as slow)" in " ".join(text.split())
    faster = shown(make_report(device="H100", times=PredictedTimes(1.25, 1.0)))
    assert faster.startswith("models/net.onnx")
    assert "predicted" not in shown(make_report())


def test_summary_of_a_failed_check_says_that_nothing_was_written():
    text = shown(make_report(verdict="failed: 3 non-finite"), failed=True)
    assert "models/net.onnx -> nothing written" in text
    assert "net.fp16.onnx" not in text


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (OutputComparison("y", "float32", (2,), 0.0, 0.0, 1.0, nonfinite=2, nonfinite_reference=5), "2 (5 in float32)"),
        (OutputComparison("y", "int64", (2,), 3.0, 0.0, 1.0, mismatched=1, elements=2), "50%"),
        (OutputComparison("y", "float32", (2,), math.nan, math.nan, math.nan), "nan"),
    ],
)
def test_summary_of_a_bad_output(output, expected):
    assert expected in shown(make_report(outputs={"y": output}))


def test_outputs_are_ordered_worst_first():
    def output(name, relative, nonfinite=0, mismatched=0):
        return OutputComparison(name, "float32", (1,), 0.0, relative, 1.0, nonfinite=nonfinite, mismatched=mismatched)

    outputs = [output("small", 0.1), output("nan", math.nan), output("inf", 0.0, 1), output("int", 0, 0, 4)]
    assert [worst.name for worst in outputs_worst_first(outputs)] == ["inf", "int", "nan", "small"]


@pytest.mark.parametrize(("dtype", "names"), [("float16", "float16"), ("bfloat16", "bfloat16")])
def test_readers_and_machines_see_the_same_words(dtype, names):
    report = make_report(dtype=dtype)
    words = [names, names, "float32", "float32", "unchanged"]
    assert [line.split()[0] for line in explain_lines(report)][1:] == words
    text = " ".join(Collector(page([(report, None)])).text).split()
    assert {"low", "high", "untouched"}.isdisjoint(text)
    assert {*words} <= {*text} & {*shown(report).replace(",", " ").split()}
    assert [row["precision"] for row in report_as_dict(report)["decisions"]] == words


def test_a_report_without_a_level_names_what_was_asked():
    report = make_report(level=None, asked="policy torch")
    assert "policy torch, float16, target cuda" in shown(report)
    assert "policy torch" in page([(report, None)])
    assert json.loads(dump(report_as_dict(report)))["level"] is None


def test_explain_has_one_line_a_node_in_program_order():
    lines = list(explain_lines(make_report()))
    assert [line.split()[2] for line in lines] == ["node", "conv_0", "relu_0", "exp_0", "det_0", "shape_0"]
    assert lines[3].split(maxsplit=4) == ["float32", "Exp", "exp_0", "loop_1/body", "black list"]


def test_explain_keeps_a_hostile_name_on_its_line():
    lines = list(explain_lines(make_report(decisions=(DecisionRow(HOSTILE, "Add", "float16", "x"),))))
    assert len(lines) == 2
    assert lines[1].isprintable()


def test_json_holds_every_field_but_the_program():
    report = make_report()
    record = json.loads(dump(report_as_dict(report)))
    assert set(record) == {field.name for field in dataclasses.fields(Report)} - {
        "program",
        "graphs",
        "times",
        "prices",
    } | {
        "predicted_ms",
        "predicted_graph_ms",
        "predicted_from",
        "slower",
        "pays_from",
        "needs_onnxruntime",
        "session_code",
        "verdict_word",
    }
    row = {"name": "exp_0", "op": "Exp", "precision": "float32", "reason": "black list", "scope": "loop_1/body"}
    unknown = dict.fromkeys(("error", "largest", "flushed", "bytes", "milliseconds", "milliseconds_fp32"))
    assert record["decisions"][2] == row | unknown | {
        "remedy": "",
        "sample": "",
        "bound": "",
        "histogram": None,
        "attributes": {},
    }
    assert record["opset"] == [13, 17]
    assert record["outputs"]["logits"]["relative"] == 4.1e-4


def test_json_holds_the_figures_that_follow_from_others():
    output = OutputComparison("y", "int64", (8,), 0.0, 0.0, 1.0, mismatched=3, elements=8, excused=1)
    record = report_as_dict(make_report(outputs={"y": output}))["outputs"]["y"]
    assert (record["snr_db"], record["mismatch"], record["top1"]) == ("Infinity", 0.25, None)


@pytest.mark.parametrize(
    ("relative", "decibels"), [(0.0, math.inf), (1.0, 0.0), (0.01, 40.0), (10.0, -20.0), (math.inf, -math.inf)]
)
def test_signal_to_noise_follows_from_the_relative_error(relative, decibels):
    assert OutputComparison("y", "float32", (2,), 0.0, relative, 1.0).snr_db == decibels


@pytest.mark.parametrize(
    ("mismatched", "excused", "elements", "share"), [(0, 0, 0, 0.0), (0, 0, 4, 0.0), (3, 0, 4, 0.75), (3, 1, 4, 0.5)]
)
def test_the_share_that_differs_leaves_out_what_is_excused(mismatched, excused, elements, share):
    counts = {"mismatched": mismatched, "excused": excused, "elements": elements}
    assert OutputComparison("y", "int64", (4,), 0.0, 0.0, 1.0, **counts).mismatch == share


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (np.float32(-np.inf), "-Infinity"),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (frozenset({"b", "a"}), ["a", "b"]),
        ((1, None), [1, None]),
        ("\udcff\x1b", "\udcff\x1b"),
    ],
)
def test_json_values(value, expected):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(dump({"x": value}), parse_constant=refuse) == {"x": expected}


def test_json_refuses_what_it_cannot_hold():
    with pytest.raises(TypeError, match="object"):
        dump({"x": object()})


def test_versions_name_what_decides_the_result():
    assert {"amp_transpiler", "python", "onnx", "onnx-ir", "numpy"} <= set(package_versions())


class Collector(html.parser.HTMLParser):
    """Checks that tags nest, and collects them with their attributes."""

    VOID = frozenset({"meta", "br", "rect", "line", "path", "circle", "input"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_well_formed_and_holds_the_figures():
    parsed = Collector(page([(make_report(), None)]))
    text = " ".join(parsed.text)
    for expected in ("models/net.onnx → models/net.fp16.onnx", "209.1 MB", "0.041%", "black list", "loop_1/body"):
        assert expected in text
    assert parsed.tags.count("svg") == 2
    assert parsed.tags.count("article") == 1


def test_html_fetches_nothing_and_runs_its_own_script_alone():
    text = page([(make_report(), None)])
    parsed = Collector(text)
    assert not {"link", "img", "iframe", "object"} & set(parsed.tags)
    assert not {"src", "srcset", "onclick", "onload"} & {name for name, _ in parsed.attributes}
    assert all(value.startswith("#") for name, value in parsed.attributes if name == "href")
    assert "url(" not in text
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(value for name, value in parsed.attributes if name == "content" and "default-src" in value)
    assert policy.split("; ")[0] == "default-src 'none'"
    assert policy.endswith(f"; script-src 'sha256-{digest}'")


def test_html_escapes_names_from_the_model():
    hostile = make_report(
        source=HOSTILE,
        destination=HOSTILE,
        verdict=HOSTILE,
        notes=(HOSTILE,),
        repaired=(HOSTILE,),
        missing_kernels={HOSTILE: 1},
        decisions=(DecisionRow(HOSTILE, HOSTILE, "float16", HOSTILE, HOSTILE),),
        outputs={HOSTILE: OutputComparison(HOSTILE, "float32", (1,), math.nan, math.inf, math.nan, nonfinite=1)},
    )
    text = page([(hostile, HOSTILE)])
    assert Collector(text).tags.count("script") == 1
    assert "alert('x')" not in text
    assert "\x1b" not in text


def test_html_of_several_models_tells_failed_from_written():
    parsed = Collector(page([(make_report(), None), (make_report(source="b.onnx"), "y is non-finite")]))
    text = " ".join(parsed.text)
    assert parsed.tags.count("article") == 2
    assert "b.onnx → nothing written" in text
    assert "y is non-finite" in text
    assert "amp-transpile: 2 models" in text


def test_html_of_an_empty_report():
    parsed = Collector(page([(Report("a.onnx", "O0", "bfloat16", "any"), None)]))
    assert "svg" not in parsed.tags


def test_html_groups_operators_beyond_what_a_picture_holds():
    rows = tuple(DecisionRow(f"n{i}", f"Op{i:02}", "float16", "x") for i in range(60))
    assert "37 other operators" in page([(make_report(decisions=rows), None)])


def benchmark_result(of_reference, of_low):
    """Return a float32 model of 2 ms and a low one of 1 ms, with changes of each."""
    common = {"place": "CPU", "runs": 20, "samples": 4, "memory": "resident"}
    products = OperatorTime("MatMul", "CPU", 3, 0.9, 0.9)
    reference = {"p50_ms": 2.0, "p90_ms": 3.0, "p99_ms": 4.0, "mean_ms": 2.0, "peak_bytes": 400_000_000}
    low = {"p50_ms": 1.0, "p90_ms": 2.0, "p99_ms": 3.0, "mean_ms": 1.0, "peak_bytes": 200_000_000}
    low["operators"] = (OperatorTime("MatMul", "CPU", 3, 0.6, 0.75), OperatorTime("Cast", "CPU", 2, 0.2, 0.25))
    if "samples" in of_low:
        low["mean_ms"] = 2.0
    return BenchmarkResult(
        Profile(**{**common, **reference, "operators": (products,), **of_reference}),
        Profile(**{**common, **low, **of_low}),
        notes=(CPU_TIMES,),
    )


def test_slower_than_fp32_is_red_and_a_field():
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system="standard")
    slower = benchmark_result({}, {"p50_ms": 2.5})
    console.print(benchmark_table(slower, "float16"))
    assert "\x1b[1;31mslower than float32 on CPU" in file.getvalue()
    assert json.loads(dump({"benchmark": slower}))["benchmark"]["slower_than_fp32"] is True
    assert benchmark_result({}, {}).slower_than_fp32 is False
    assert benchmark_result({}, {"p50_ms": 2.5, "emulated": True}).slower_than_fp32 is None, "the emulation is no model"


@pytest.mark.parametrize(
    ("of_reference", "of_low", "expected"),
    [
        ({}, {}, "latency, median of 20 2 ms 1 ms 2.00 times as fast"),
        ({}, {}, "latency, p90 3 ms 2 ms"),
        ({}, {}, "latency, p99 4 ms 3 ms"),
        ({}, {}, "throughput, samples a second 2000 4000"),
        ({}, {"samples": None}, "throughput, samples a second 2000 500"),
        ({}, {}, "peak memory (resident) 400.0 MB 200.0 MB 50%"),
        ({"peak_bytes": None}, {}, "peak memory (resident) - 200.0 MB -"),
        ({}, {}, "3x MatMul (75%) 0.9 ms 0.6 ms"),
        ({}, {}, "2x Cast (25%) - 0.2 ms"),
        ({}, {}, CPU_TIMES),
        ({}, {"p50_ms": 2.5}, "1.25 times as slow"),
        ({}, {"p50_ms": 2.5}, "slower than float32 on CPU"),
        ({}, {"cpu_nodes": ("Resize r",)}, "run on the CPU: Resize r"),
        ({}, {"copies": tuple(f"c{i} (to the host)" for i in range(8))}, "c5 (to the host) and 2 more"),
        ({}, {"emulated": True}, "latency, median of 20 2 ms 1 ms -"),
        ({}, {"emulated": True}, "peak memory (resident) 400.0 MB 200.0 MB -"),
    ],
)
def test_benchmark_table(of_reference, of_low, expected):
    file = io.StringIO()
    Console(file=file, width=80).print(benchmark_table(benchmark_result(of_reference, of_low), "float16"))
    assert expected in " ".join(file.getvalue().split())
    assert max(map(len, file.getvalue().splitlines())) <= 80


# Changes of a report -> its `repr`.
REPRS = {
    "converted": (
        {},
        (
            "<Report of models/net.onnx -> models/net.fp16.onnx, level auto: "
            "2 of 5 nodes float16, 2 float32, 3 casts; verified: on 1 synthesised sample>"
        ),
    ),
    "copied": (
        {"is_copy": True, "asked": "level O0", "destination": None, "verdict": "not checked"},
        "<Report of models/net.onnx, level O0: copied; not checked>",
    ),
}


@pytest.mark.parametrize("case", REPRS)
def test_a_report_is_short(case):
    changes, expected = REPRS[case]
    assert repr(make_report(**changes)) == expected


def test_the_rows_of_a_report_are_short():
    report = make_report()
    assert repr(report.decisions[0]) == "DecisionRow('conv_0', 'Conv', 'float16', 'white list')"
    assert repr(report.decisions[2]).endswith("'black list', scope='loop_1/body')")
    output = dataclasses.replace(report.outputs["logits"], nonfinite=3)
    assert repr(output) == (
        "OutputComparison('logits', 'float32', (1, 10), relative=0.00041, max_abs=0.00125, nonfinite=3)"
    )


def test_a_report_in_a_notebook_is_a_few_lines_without_styles():
    text = make_report(
        source="<b>\x1b", outputs={str(i): OutputComparison(str(i), "float32", (), i, i, 1) for i in range(9)}
    )
    text = text._repr_html_()
    assert "&lt;b&gt;\\x1b" in text
    assert "2 float16, 2 float32, 1 unchanged" in text
    assert (text.count("<tr>"), "style" in text) == (6, False)
    assert len(text) < 1500


QUANTIZED = DecisionRow("q", "DynamicQuantizeLinear", "unchanged", "")
FUSED = "com.microsoft::FusedConv"

# Changes of a report -> what its first note says, None where there is no advice.
ADVICE = {
    "quantized": ({"decisions": (QUANTIZED,), "weight_bytes": (100, 98)}, "quantized (1 nodes): weights shrink by 2%"),
    "quantized in part": ({"decisions": (QUANTIZED,), "weight_bytes": (100, 60)}, None),
    "quantized, without a cast": ({"decisions": (QUANTIZED,), "weight_bytes": (100, 98), "casts": 0}, None),
    "fused": ({"missing_kernels": {FUSED: 21, "Det": 1}}, "21 nodes without a float16 kernel: com.microsoft::Fused"),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice_to_convert_first(case):
    changes, expected = ADVICE[case]
    note = remarks(make_report(notes=(), **changes))
    assert [expected in text for text in note] == ([True] if expected else [])


def test_times_are_predicted_when_they_are_first_asked_for():
    predicted = []

    def predict():
        predicted.append(1)
        return PredictedTimes(1.0, 1.25, "batch=8")

    report = make_report(times=predict)
    assert not predicted
    assert (report.predicted_ms, report.pays_from, len(predicted)) == ((1.0, 1.25), "batch=8", 1)
    record = report_as_dict(report)
    assert (record["predicted_ms"], record["pays_from"], "times" in record) == ([1.0, 1.25], "batch=8", False)
