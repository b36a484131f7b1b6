"""Where magnitudes are to blame, powers of two mend a model with fewer float32 nodes."""

import math

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from tests.rescale.test_rescaling import SAMPLE, stream
from tests.support import array, parse


@pytest.fixture(scope="module")
def large():
    return stream(3e5)


def test_powers_of_two_leave_fewer_nodes_float32(large, tmp_path):
    diagnosis = amp.debug(large, inputs=SAMPLE, fix=tmp_path / "fixed.onnx")

    assert diagnosis.guilty is not None
    assert diagnosis.guilty.fault == "overflow"
    cure = diagnosis.cure
    assert cure is not None
    assert cure.rescaled
    assert len(cure.nodes) <= 3  # 21 without
    assert cure.excess <= 1.0

    assert cure.written is not None
    before, after = (
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for model in (large, onnx.load(cure.written))
    )
    for name in ("down0", "down1", "down2"):
        ratio = math.log2(float(np.max(np.abs(before[name]))) / float(np.max(np.abs(after[name].astype(np.float32)))))
        assert ratio == pytest.approx(-cure.rescaled[name], abs=0.01)
    recipe = amp.transpile(large, recipe=tmp_path / "fixed.recipe.toml", inputs=SAMPLE)
    assert recipe.rescaled == cure.rescaled


def test_one_node_in_float32_is_as_good_as_a_constant():
    text = """(float[2,4] x) => (float[2,4] y) {
        h = MatMul(x, w) [large] i = Mul(h, many) [back] j = Mul(i, few) y = MatMul(j, w)
    }"""
    model = parse(text, w=array(4, 4), many=np.float32(1e6), few=np.float32(1e-6))

    cure = amp.debug(model, inputs={"x": array(2, 4, seed=9)}).cure

    assert cure is not None
    assert len(cure.nodes) <= 2
    assert not cure.rescaled


def test_bfloat16_is_not_rescaled(large):
    cure = amp.debug(large, inputs=SAMPLE, dtype="bfloat16").cure
    assert cure is None or not cure.rescaled
