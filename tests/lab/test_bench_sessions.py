"""Launches and prices of a file in a default session, and in one with options."""

import onnx
import pytest

import bench_sessions
from tests.support import array, parse

TEXT = """(float[4,32,64] x) => (float[4,32,64] y)
{ m = MatMul (x, w) p = Add (m, b) a = Div (p, r) e = Erf (a) f = Add (e, one) g = Mul (p, f) y = Mul (g, half) }"""
# Session -> launches: a Gemm with its bias and a Gelu; a product and a BiasGelu.
LAUNCHES = {"default": 3, "no MatMulAddFusion": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("sessions") / "gelu.onnx"
    numbers = {name: array() * 0 + value for name, value in {"r": 2**0.5, "one": 1, "half": 0.5}.items()}
    onnx.save(parse(TEXT, w=array(64, 64), b=array(64), **numbers), path)
    return path


@pytest.mark.parametrize("session", LAUNCHES)
def test_launches_and_kernels_of_a_session(saved, session):
    try:
        record = bench_sessions.measure(saved, bench_sessions.SESSIONS[session])
    except SystemExit as reason:
        pytest.skip(f"launches: {reason}")
    assert record["launches"] == record["predicted"] == LAUNCHES[session]
    assert 0 < record["busy"] == pytest.approx(sum(time for _, time in record["kernels_ms"].values()))
