"""Predicted sensitivities rank nodes as emulation of each node alone does."""

from __future__ import annotations

import pathlib

import pytest

from bench_sensitivity import MODELS, examine


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV3", "MiniLM"])
def test_rank_correlation(name: str, corpus: pathlib.Path) -> None:
    model = corpus / MODELS[name][1]
    if not model.is_file():
        pytest.skip(f"the corpus lacks {MODELS[name][1]}")
    finding = examine(model, "float16")
    assert len(finding.true) >= 50
    assert finding.spearman > 0.9
