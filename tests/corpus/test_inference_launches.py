"""Inference launches no more on the CUDA provider than fp32 and than what ONNX Runtime's converter makes."""

from __future__ import annotations

import pathlib

import pytest

from bench_inference import MODELS, limits_of, lost, measure

# What is above the limits all the same, and why.
ABOVE = {
    # The cosine and the sine of positions are float32: float16 cannot count beyond 2048. The converter casts positions.
    "Llama, 2 layers, older exporter": {"auto": 2},
    # The grid of anchors is made of float32 ranges, which are cast once. The converter makes no model that runs.
    "nudenet YOLO": {"auto": 1, "O2": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_launches(name: str, corpus: pathlib.Path) -> None:
    model = corpus / MODELS[name]
    if not model.is_file():
        pytest.skip(f"the corpus lacks {MODELS[name]}")
    beside = model.with_suffix(".inputs.npz"), model.with_name("inputs.npz")
    try:
        counts = measure(model, next((path for path in beside if path.is_file()), None))
    except SystemExit as cannot_count:
        pytest.skip(str(cannot_count))
    limits = limits_of(model, counts)
    for level in ("auto", "O2"):
        assert limits.over(counts[level]["launches"]) <= ABOVE.get(name, {}).get(level, 0), level
        assert not lost(counts["fp32"]["fused"], counts[level]["fused"]), level
