"""The page about what is fused by default: made of its files, and it counts what breaks the gate."""

import json

import bench_fusion


def test_the_page_is_made_of_its_files():
    assert bench_fusion.PAGE.read_text("utf-8") == bench_fusion.page(sorted(bench_fusion.RESULTS.glob("*.jsonl")))


def record(before, after):
    def side(milliseconds, error, word="verified"):
        return {
            "word": word,
            "error": error,
            "low": 9,
            "casts": 2,
            "fused": {"com.microsoft::BiasGelu": 2},
            "milliseconds": milliseconds,
            "source": 2.0,
            "bytes": 1_500_000,
        }

    return {"model": "a/m", "inputs": True, "none": side(*before), "default": side(*after)}


def test_what_is_slower_worse_or_less_accurate_is_counted(tmp_path):
    cases = {
        "faster": ((1.0, 0.001), (0.9, 0.001), True),
        "slower": ((1.0, 0.001), (1.1, 0.001), False),
        "another verdict": ((1.0, 0.001), (0.9, 0.001, "estimated"), False),
        "an error that matters little": ((1.0, 0.0001), (0.9, 0.0019), True),
        "an error that is a little larger": ((1.0, 0.015), (0.9, 0.0175), True),
        "an error that matters": ((1.0, 0.005), (0.9, 0.0075), False),
    }
    for name, (before, after, is_kept) in cases.items():
        assert bench_fusion.keeps_gate(record(before, after)) is is_kept, name
    first = {"date": "2026-01-01", "commit": "1" * 8, "versions": "versions", "models": 9, "prefer": "balance"}
    path = tmp_path / "run.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, [first, *(record(before, after) for before, after, _ in cases.values())]))
    )
    text = bench_fusion.page([path])
    assert "Something can be fused in 6 of 9 models." in text
    assert "a tenth of the limit more: 3 of them." in text
    assert "| a/m | 2 BiasGelu | verified: 0.1% | verified: 0.1% | 2.000 | 1.000 | 0.900 | 1.50 | 1.50 |" in text
