"""Inference launches no more on the CUDA provider than fp32 and than what ONNX Runtime's converter makes."""

from __future__ import annotations

import pathlib

import pytest

from bench_inference import MODELS, limits_of, lost, measure


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
    for level in ("auto", "O2"):
        assert limits_of(model, counts).over(counts[level]["launches"]) == 0, level
        assert not lost(counts["fp32"]["fused"], counts[level]["fused"]), level
