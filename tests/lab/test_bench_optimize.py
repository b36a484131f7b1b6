"""The table of launches with and without ONNX Runtime's optimizer."""

import numpy as np
import onnx

import bench_inference
import bench_optimize
from tests.support import array, parse


def test_a_row_has_launches_casts_and_errors(tmp_path, monkeypatch):
    model, inputs = tmp_path / "model.onnx", tmp_path / "inputs.npz"
    onnx.save(parse("(float[2,4] x) => (float[2,4] y) { y = MatMul(x, w) }", w=array(4, 4)), model)
    np.savez(inputs, x=array(2, 4))
    counts = iter([{"launches": 9, "kinds": {}}, {"launches": 8, "kinds": {}}, {"launches": 7, "kinds": {"cast": 2}}])
    monkeypatch.setattr(bench_inference, "count", lambda *_: next(counts))
    *cells, plain, optimized = bench_optimize.row("name", model, inputs)
    assert cells == ["name", "9", "8", "7", "2"]
    assert plain == optimized
    assert 0 < float(plain.rstrip("%")) < 1


def test_a_model_that_is_missing_is_named(tmp_path, capsys):
    assert list(bench_optimize.models(tmp_path, ["GPT-2"])) == []
    assert "missing: GPT-2 (exported/gpt2_small/dynamo.onnx)" in capsys.readouterr().err


def test_models_without_attention_are_left_out():
    assert set(bench_inference.MODELS) >= bench_optimize.WITHOUT_ATTENTION
