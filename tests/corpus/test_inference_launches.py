"""Inference launches no more on the CUDA provider than float32 and than what ONNX Runtime's converter makes."""

from __future__ import annotations

import pathlib

import pytest

from amp_transpiler.verification import signal_levels
from bench_inference import MODELS, limits_of, lost, measure

_ERRS = "QuickGelu"  # rounds every step in float16: x * Sigmoid(x) is kept from it, for a launch more


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_launches(name: str, corpus: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A limit that holds at other levels of a picture, too, may cost casts, and no converter keeps one: forms are
    # compared as the sample alone asks for them.
    monkeypatch.setattr(signal_levels, "_GAINS", {})
    model = corpus / MODELS[name]
    if not model.is_file():
        pytest.skip(f"the corpus lacks {MODELS[name]}")
    beside = model.with_suffix(".inputs.npz"), model.with_name("inputs.npz")
    try:
        counts = measure(model, next((path for path in beside if path.is_file()), None))
    except SystemExit as cannot_count:
        pytest.skip(str(cannot_count))
    expected = {name: count for name, count in counts["fp32"]["fused"].items() if name != _ERRS}
    for level in ("auto", "O2"):
        apart = counts["fp32"]["fused"].get(_ERRS, 0) - counts[level]["fused"].get(_ERRS, 0)
        # Level auto keeps a limit, which the converter does not: its casts beyond those of O2 are the price.
        casts = {of_level: counts[of_level]["kinds"].get("cast", 0) for of_level in (level, "O2")}
        price = max(0, casts[level] - casts["O2"])
        assert limits_of(model, counts).over(counts[level]["launches"]) <= apart + price, level
        assert not lost(expected, counts[level]["fused"]), level
