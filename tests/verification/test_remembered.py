"""Evidence in the user's cache: made once for equal questions, anew for any other."""

from __future__ import annotations

import math

import numpy as np
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.user_cache import FOLDER_VARIABLE
from amp_transpiler.precision.evidence import Evidence, TensorRange
from amp_transpiler.verification import remembered
from amp_transpiler.verification.remembered import remembered_evidence

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1.0, 2.0, 3.0, 4.0}> { y = MatMul(x, w) }
"""
EVIDENCE = Evidence(
    ranges={"y": TensorRange(4.0, math.inf, "sample 1", 0.25)},
    node_errors={"MatMul_0": 1e-7, "other": math.inf},
    cast_errors={"x": 2e-8},
    node_errors_by_output={"y": {"MatMul_0": 1e-7}},
    cast_errors_by_output={"y": {"x": 2e-8}},
    alone_errors={"MatMul_0": 1.2e-7},
    estimated={"other": "no rule"},
    samples=("sample 1",),
    given=True,
)
SAMPLES = [{"x": np.float32([[1, 2], [3, 4]])}]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path / "evidence"


def ask(text: str = TEXT, samples=SAMPLES, words=("float16", "cuda")) -> tuple[Evidence, bool]:
    """Return the evidence, and whether runs were made for it."""
    made: list[bool] = []

    def collect() -> Evidence:
        made.append(True)
        return EVIDENCE

    return remembered_evidence(amp.load(onnx.parser.parse_model(text)), samples, words, collect), bool(made)


def test_an_equal_question_needs_no_runs(cache):
    assert ask() == (EVIDENCE, True)
    assert ask() == (EVIDENCE, False)


OTHERS = {
    "weights": {"text": TEXT.replace("4.0}", "5.0}")},
    "graph": {"text": TEXT.replace("MatMul(x, w)", "MatMul(w, x)")},
    "sample": {"samples": [{"x": np.float32([[1, 2], [3, 5]])}]},
    "number of samples": {"samples": SAMPLES * 2},
    "format": {"words": ("bfloat16", "cuda")},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_question_is_answered_anew(cache, other):
    ask()
    assert ask(**other)[1]


def test_a_damaged_record_is_made_anew(cache, caplog):
    ask()
    [file] = cache.iterdir()
    file.write_bytes(b'{"ranges": 3}')
    assert ask() == (EVIDENCE, True)
    assert "cannot be read" in caplog.text
    assert ask()[1] is False


def test_a_new_version_asks_anew(cache, monkeypatch):
    ask()
    monkeypatch.setattr(remembered, "__version__", "another")
    assert ask()[1]
