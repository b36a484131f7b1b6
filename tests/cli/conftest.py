"""Fixtures of several commands' tests."""

import onnx
import pytest

from tests.support import array, parse


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = parse("(float[2,4] x) => (float[2,4] y) { y = MatMul(x, w) }", w=array(4, 4))
    for name in ("a.onnx", "low.onnx"):
        onnx.save(model, name)
    return tmp_path
