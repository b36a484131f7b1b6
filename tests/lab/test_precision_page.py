"""The tables of docs/benchmarks/precision.md: when a goal is missed, and that the page has a place for each table."""

import json
import os

import pytest

import bench_precision
from programs import peer, precision_page


def record(ms, error, casts=2, **more):
    return {
        "nodes": 3,
        "ms": ms,
        "error_found": error,
        "casts": casts,
        "low": 0.5,
        "launches": 4,
        "correct": True,
    } | more


def named(**forms):
    return {form: row | {"form": form} for form, row in forms.items()}


FASTER = "none within the tolerance is faster"
AS_ACCURATE = "none that is as accurate is faster"
ACCURATE = "none that is as fast is more accurate"
CASTS = "none that is as fast runs fewer casts"
CASES = {
    # name: (the other's record, goals that are missed against it)
    "equal": (record(1.0, 1e-3), set()),
    "slower and more accurate": (record(1.1, 1e-4, casts=0), set()),
    "faster and less accurate": (record(0.9, 2e-3), {FASTER}),
    "faster and as accurate": (record(0.9, 1e-3), {FASTER, AS_ACCURATE}),
    "faster by nothing": (record(0.99999, 1e-3), set()),
    "as fast, more accurate": (record(1.0, 1e-4), {ACCURATE}),
    "as accurate but for the order of sums": (record(1.0, 0.999e-3), set()),
    "fewer casts in its file, as many that run": (record(1.0, 2e-3, casts=1, **{"casts that run": 2}), set()),
    "as fast, more accurate by the rounding of constants": (record(1.0, 1e-4, **{"same choice": ["time"]}), set()),
    "as fast, fewer casts": (record(1.0, 2e-3, casts=1), {CASTS}),
    "faster, more accurate, fewer casts": (record(0.5, 0.0, casts=0), {FASTER, AS_ACCURATE, ACCURATE, CASTS}),
    "beyond the tolerance": (record(0.5, 0.0, casts=0, correct=False), set()),
    "invalid": ({"invalid": "refused"}, set()),
    "none": ({"error": "it ended"}, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_goals(name):
    other, missed = CASES[name]
    models = {"m": named(fp32=record(2.0, 0.0, 0), time=record(1.0, 1e-3), AutoCast=other)}
    assert {words for _, _, words in precision_page.misses(models)} == missed


def test_times_at_a_batch_are_compared_with_what_was_aimed_at_them():
    more = {"ms at 32": 5.0, "launches at 32": 4}
    forms = {
        "time": record(1.0, 0.0, **more),
        precision_page.BATCHED: record(1.2, 0.0, **{**more, "ms at 32": 3.0}),
        "O2": record(1.0, 0.0, **{**more, "ms at 32": 4.0}),
    }
    without = named(time=record(1.0, 0.0), O2=record(0.5, 0.0))
    compared = precision_page.at_batch({"m": named(**forms), "no batch": without})
    assert list(compared) == ["m"]
    assert compared["m"]["time"]["ms"] == 3.0
    assert not list(precision_page.misses(compared))


def test_later_lines_replace_earlier_ones(tmp_path):
    lines = [{"model": "m", "form": "O2", "ms": ms} for ms in (1.0, 2.0)]
    path = tmp_path / "found.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert bench_precision.read(path) == {"m": {"O2": lines[1]}}


def test_every_table_has_its_place_on_the_page(tmp_path):
    page = tmp_path / "precision.md"
    page.write_text(bench_precision.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    forms = named(fp32=record(2.0, 0.0, 0), time=record(1.0, 1e-3, seconds=1.0), O2=record(0.5, 1e-3))
    models = {"m": forms}
    precision_page.write(page, models)
    words = page.read_text(encoding="utf-8")
    for heading, make in precision_page.TABLES:
        assert words.count(f"\n{heading}\n") == 1
        assert make(models) in words
    precision_page.write(page, models)
    assert page.read_text(encoding="utf-8") == words


def test_what_a_tool_raises_is_its_record(capfd, monkeypatch):
    def refuses(source, inputs):
        os.write(1, b"names of nodes")
        raise ValueError(f"{source} with {inputs}\nis refused")

    monkeypatch.setitem(peer.TOOLS, "refuses", (refuses, "onnx"))
    peer.main("refuses", "model.onnx", "data.npz", "out.onnx", "60")
    said = json.loads(capfd.readouterr().out)
    assert said.pop("tool").startswith("onnx ")
    assert said == {"error": "ValueError: model.onnx with data.npz is refused"}
