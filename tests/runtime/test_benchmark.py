"""Benchmarks: latency in turns, and memory in a separate process."""

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

from amp_transpiler.runtime import benchmark as benchmark_module
from amp_transpiler.runtime.benchmark import CPU_TIMES, EMULATED_TIMES, _Measured as Measured, benchmark
from amp_transpiler.runtime.ort import ORT_ERRORS
from amp_transpiler.runtime.places import CPUPlace
from tests.support import doubling_matmul

BF16 = ml_dtypes.bfloat16


def model(body, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {body}')


def test_the_two_programs_take_turns():
    calls = []
    times = benchmark_module._alternate(lambda: calls.append("a"), lambda: calls.append("b"), runs=3, warmup=1)
    assert "".join(calls) == "abababab"
    assert [len(t) for t in times] == [3, 3]


def test_a_benchmark_on_the_cpu_says_what_low_precision_buys(monkeypatch):
    measured = iter([Measured(200), Measured(100)])
    monkeypatch.setattr(benchmark_module, "_in_child", lambda *_args, **_options: next(measured))
    result = benchmark(
        doubling_matmul(np.float32),
        doubling_matmul(np.float16),
        {"x": np.ones((1, 64), np.float32)},
        CPUPlace(),
        runs=3,
    )
    assert (result.place, result.runs, result.memory) == ("CPU", 3, "resident")
    assert (result.reference_peak, result.low_peak) == (200, 100)
    assert result.reference_ms > 0.0
    assert result.speedup == result.reference_ms / result.low_ms
    assert result.notes == (CPU_TIMES,)


MULTIPLY = "g ({0}[N] x) => ({0}[N] y) {{ y = Mul(x, x) }}"


@pytest.mark.parametrize("crashed", [False, True])
def test_a_benchmark_emulates_what_does_not_run(crashed, monkeypatch):
    measured = iter([Measured(200), Measured(failure="SIGSEGV", crashed=crashed), Measured(100)])
    emulated = []

    def in_child(*_args, emulate=True):
        emulated.append(emulate)
        return next(measured)

    monkeypatch.setattr(benchmark_module, "_in_child", in_child)
    feeds = {"x": np.ones(2, np.float32)}
    result = benchmark(model(MULTIPLY.format("float")), model(MULTIPLY.format("bfloat16")), feeds, CPUPlace(), runs=1)
    assert emulated == [True, False, True]
    assert (result.reference_peak, result.low_peak) == (200, 100)
    assert (result.emulated, result.speedup) == (True, None), "the emulation is neither fast nor slow"
    assert result.notes == (EMULATED_TIMES,)


def test_a_program_that_crashes_ends_a_process_of_its_own(monkeypatch):
    dying = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr(benchmark_module, "_CODE", dying)
    program = model(MULTIPLY.format("float"))
    with pytest.raises(ORT_ERRORS, match=r"crashed \(SIGSEGV\)"):
        benchmark(program, program, {"x": np.ones(2, np.float32)}, CPUPlace())


@pytest.mark.slow
def test_peak_memory_is_that_of_a_process_of_its_own():
    weight = onnx.numpy_helper.from_array(np.ones((4096, 4096), np.float32), "w")  # 64 MB
    proto = model("g (float[N, 4096] x) => (float[N, 4096] y) { y = MatMul(x, w) }")
    proto.graph.initializer.append(weight)
    peak = benchmark_module.measure_peak(proto, {"x": np.ones((1, 4096), np.float32)}, CPUPlace())
    assert 60 << 20 < peak < 400 << 20


@pytest.mark.slow
@pytest.mark.parametrize("feed", [np.ones(2, BF16), np.array(["a", "b"], object)], ids=["bfloat16", "string"])
def test_feeds_of_any_type_reach_that_process(feed):
    kind = "string" if feed.dtype == object else "bfloat16"
    proto = model(f"g ({kind}[N] x) => ({kind}[N] y) {{ y = Identity(x) }}")
    assert benchmark_module.measure_peak(proto, {"x": feed}, CPUPlace()) is not None


@pytest.mark.slow
def test_a_process_that_fails_is_a_warning(caplog):
    proto = model("g (float[N] x) => (float[N] y) { y = Identity(x) }")
    assert benchmark_module.measure_peak(proto, {"z": np.ones(1, np.float32)}, CPUPlace()) is None
    assert "unknown input 'z'" in caplog.text
