"""The page of the runs on GPUs is made from their files, and says of predictions that they are."""

from __future__ import annotations

import json
import math

import pytest

from gpu import page as pages, results
from gpu.results import Results

RUNS = sorted(pages.FOLDER.glob("*.jsonl"))
STAGES = {"training", "torch_training", "compiled_training", "prepare", "inference", "torch", "compiled"}
RUN = {"device": "GPU", "driver": "1", "date": "2026-01-02", "versions": {"torch": None, "cuda": "13"}}


def test_the_page_is_what_the_files_give():
    assert pages.PAGE.read_text(encoding="utf-8") == pages.page(), "run `PYTHONPATH=. python lab/bench_gpu.py --page`"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_file_begins_with_its_run_and_every_record_has_a_stage(path):
    outcome = results.read(path)
    assert {"device", "driver", "date", "versions", "commit", "command", "seconds"} <= set(outcome.run)
    assert path.name.startswith(outcome.run["date"])
    assert {record["stage"] for record in outcome.records} <= STAGES | {"models", "nodes", "truths", "options", "part"}
    assert all("name" in record for record in outcome.records)


def test_there_is_a_run():
    assert RUNS


def page_of(tmp_path, *records, **run):
    Results({**RUN, "commit": "abc", "command": "it", "seconds": 3.0, **run}, records).write(tmp_path / "r.jsonl")
    return pages.page(tmp_path)


def timed(**more):
    plain = {"stage": "training", "name": "raf.O2.float16", "variant": "O2", "dtype": "float16", "ms": 2.0}
    return plain | {"p90_ms": 2.5, "loop_ms": 1.5} | more


def test_a_predicted_time_has_a_column_of_its_own_name(tmp_path):
    wide = timed(name="raf.fp32.float32", variant="fp32", dtype="float32", ms=4.0)
    text = page_of(tmp_path, wide, timed(predicted_ms=0.5, kernels=12.0, busy_ms=1.25))
    heads = next(line for line in text.splitlines() if line.startswith("| program"))
    assert heads == "| program | variant | format | ms | loop | busy | kernels | times fp32 | predicted ms |"
    assert "| raf | O2 | float16 | 2.000 | 1.500 | 1.250 | 12 | 2.00 | 0.500 |" in text
    assert "Measured over predicted time, training: 4.00" in text
    assert "predicted ms |" not in page_of(tmp_path, wide)


def test_models_show_both_errors_and_where_they_differ(tmp_path):
    def row(level, **more):
        return {"stage": "models", "name": "a.onnx", "variant": level, "dtype": "float16", **more}

    text = page_of(
        tmp_path,
        row("auto", error=0.03, emulated_error=0.01),
        row("O2", error=math.inf, emulated_error=2.5),
        {**row("auto", error=0.011, emulated_error=0.01), "dtype": "bfloat16"},
        row("onnxruntime", failed="no"),
    )
    assert "| a.onnx |  | **3 % / 1 %** | **infinite / 250 %** | 1.1 % / 1 % | failed |" in text
    assert "1 models, 3 conversions: 1 are within 1.5 times" in text


def test_wrong_node_cases_and_failures_are_listed(tmp_path):
    case = {"stage": "nodes", "name": "0-2", "case": "test_x", "fp32.float32": {"error": 0.0}}
    refused = {"stage": "nodes", "name": "0-2", "case": "test_y", "fp32.float32": {"failed": "no kernel"}}
    text = page_of(
        tmp_path,
        case | {"O2.float16": {"error_from_emulation": 0.5}},
        refused,
        timed(failed="InputError: <it> | failed"),
        {"stage": "part", "of": "torch", "name": "bert", "ended": "skipped: torch not installed", "s": 1.0},
    )
    assert "| test_x | float16 | 50 % from the emulation |" in text
    assert "Not run by the device in float32 either: `test_y`." in text
    assert "- training raf.O2.float16, O2 float16: `InputError: &lt;it> / failed`" in text
    assert "- torch bert: `skipped: torch not installed`" in text


def test_truths_are_summed_by_operator(tmp_path):
    def row(op, ulps, differing, **more):
        tried = {"max_ulp": ulps, "differing": differing, "nonfinite": 0}
        return {
            "stage": "truths",
            "name": "kernels",
            "probe": "unary",
            "op": op,
            "format": "float16",
            "condition": "some",
            "candidates": {"one": tried, "steps": {"max_ulp": 0, "differing": 0, "nonfinite": 0}},
            **more,
        }

    text = page_of(
        tmp_path,
        row("Exp", 0.0, 0),
        row("Elu", 2.0, 5, deterministic=False),
        {key: value for key, value in row("Log", 0, 0, refused="no kernel").items() if key != "candidates"},
    )
    assert "3 questions of the probe, 1 refused" in text
    assert "Another result in every run: Elu float16 (some)." in text
    assert "| unary | Exp | float16 | 1 | one | 0 |" in text
    assert "| unary | Elu | float16 | 1 | steps | 2 |" in text
    assert "| unary | Log | float16 | 1 |  | refused |" in text


def test_the_newest_run_comes_first(tmp_path):
    for date in ("2026-01-02", "2026-03-04"):
        line = {**RUN, "date": date, "commit": "abc", "command": "it", "seconds": 3.0}
        (tmp_path / f"{date}-x.jsonl").write_text(json.dumps({"run": line}) + "\n")
    text = pages.page(tmp_path)
    assert text.index("2026-03-04") < text.index("2026-01-02")
