"""The pages about the default, on a GPU and beside the former one, say what their files of results say."""

import json

import bench_default
import compare_defaults


def test_the_page_is_made_of_the_files():
    assert bench_default.PAGE.read_text(encoding="utf-8") == bench_default.page(
        sorted(bench_default.RESULTS.glob("*.jsonl"))
    )


def test_counts_and_order(tmp_path):
    base = {"model": "m.onnx", "dtype": "float16", "inputs": True, "nodes": 4, "verdict": "verified: ..."}
    times = {"fp32_ms": 2.0, "fp32_error": 0.0, "error": 0.001}
    records = [
        base | {"low_nodes": 0},
        base | times | {"low_nodes": 4, "ms": 2.4, "ratio": 1.2},
        base | times | {"low_nodes": 3, "ms": 1.0, "ratio": 0.5, "model": "fast.onnx"},
        {"model": "bad.onnx", "dtype": "float16", "inputs": False, "failed": "ModelError: no"},
        base | {"low_nodes": 2, "model": "late.onnx"},
    ]
    head = {"device": "a device", "date": "2026-01-01", "versions": "versions", "note": "A note."}
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, [head, *records])), encoding="utf-8")
    text = bench_default.page([path])
    assert "5 conversions: 1 stay float32, 2 were timed. Of these 1 take more than" in text
    assert text.index("fast.onnx") < text.index("| m.onnx")
    assert "- bad.onnx, float16: ModelError: no" in text
    assert bench_default.line(records[4]).endswith("not timed |")


def test_the_page_about_the_former_default_is_made_of_its_files():
    files = sorted(compare_defaults.RESULTS.glob("*.jsonl"))
    assert compare_defaults.PAGE.read_text(encoding="utf-8") == compare_defaults.page(files)


def test_what_is_slower_by_more_than_a_tenth_is_counted(tmp_path):
    def record(former, now):
        sides = {
            which: {"word": "verified", "error": 0.01, "bytes": 50, "milliseconds": time}
            for which, time in (("former", former), ("now", now))
        }
        return {"model": "a/m", "inputs": True, "bytes": 100, "milliseconds": 2.0, **sides}

    first = {"date": "2026-01-01", "former": "1" * 8, "now": "2" * 8, "versions": "versions", "device": "H100"}
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(map(json.dumps, [first, record(2.3, 2.0), record(2.21, 2.2), record(1.0, 1.0)])))
    text = compare_defaults.page([path])
    assert "slower than float32 on H100: 2 of 3\nbefore, 0 of 3 now." in text
    assert "| a/m | yes | 0.50 | 0.50 | verified: within 1% | verified: within 1% | 1.15 | 1.00 |" in text
