"""Benchmarks: latency in turns, and memory in a separate process."""

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

import amp_transpiler as amp
import amp_transpiler.paddle.nn.functional as F
from amp_transpiler import static
from amp_transpiler.measuring import benchmark as benchmark_module
from amp_transpiler.measuring.benchmark import CPU_TIMES, EMULATED_TIMES, _Measured as Measured, benchmark
from amp_transpiler.runtime.ort import ORT_ERRORS
from amp_transpiler.runtime.places import CPUPlace
from tests.support import doubling_matmul

BF16 = ml_dtypes.bfloat16


def model(body, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {body}')


@pytest.mark.parametrize(("runs", "seconds", "expected"), [(3, 60.0, 3), (100, 0.0, 5), (0, 0.0, 1)])
def test_the_two_programs_take_turns(runs, seconds, expected):
    calls = []
    functions = [lambda: calls.append("a"), lambda: calls.append("b")]
    times = benchmark_module._in_turns(functions, runs=runs, warmup=1, seconds=seconds)
    assert "".join(calls) == "ab" * (1 + expected), "five turns at least, where so many are asked for"
    assert [len(t) for t in times] == [expected, expected]


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
    assert [row.operator for row in result.reference.operators if "MatMul" in row.operator]
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


def profiled(monkeypatch, program, feeds, **options):
    monkeypatch.setattr(benchmark_module, "_in_child", lambda *_args, **_options: Measured(100))
    return benchmark_module.profile(program, feeds, CPUPlace(), runs=6, warmup=1, **options)


def test_a_profile_has_latencies_throughput_memory_and_operators(monkeypatch):
    profile = profiled(monkeypatch, doubling_matmul(np.float32), {"x": np.ones((3, 64), np.float32)})
    assert (profile.place, profile.runs, profile.samples, profile.peak_bytes) == ("CPU", 6, 3, 100)
    assert 0 < profile.p50_ms <= profile.p90_ms <= profile.p99_ms
    assert profile.throughput == 3e3 / profile.mean_ms
    (row,) = [row for row in profile.operators if "MatMul" in row.operator]
    assert (row.provider, row.nodes) == ("CPU", 1)
    assert 0 < sum(row.share for row in profile.operators) <= 1.0 + 1e-9
    assert (profile.cpu_nodes, profile.copies, profile.notes) == ((), (), ())
    assert "a second" in str(profile)


def test_a_low_program_on_the_cpu_is_not_what_a_gpu_runs(monkeypatch):
    feeds = {"x": np.ones((1, 64), np.float32)}
    assert profiled(monkeypatch, doubling_matmul(np.float16), feeds).notes == (CPU_TIMES,)


def test_a_session_is_timed_as_it_is():
    session = amp.Session(doubling_matmul(np.float32), CPUPlace())
    profile = amp.profile(session, {"x": np.ones((1, 64), np.float32)}, runs=2)
    assert (profile.runs, profile.peak_bytes, profile.operators) == (2, None, ())
    assert "profile the model" in str(profile)
    with pytest.raises(amp.InputError, match="runs on CPU"):
        amp.profile(session, {}, amp.CUDAPlace(0))


def test_a_training_program_has_another_profile():
    main = static.Program()
    with static.program_guard(main, static.Program()):
        loss = F.mse_loss(static.nn.fc(static.data("x", [2, 4]), 4), static.data("t", [2, 4]))
        amp.optimizer.SGD(0.1).minimize(loss)
    with pytest.raises(amp.InputError, match="profile_step"):
        amp.profile(main, {})


SAMPLES = {"one": ({"a": 4, "b": 4}, 4), "two": ({"a": 4, "b": 3}, None), "scalars": ({"a": 4, "c": None}, 4)}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_number_of_samples_is_what_inputs_share(name):
    sizes, expected = SAMPLES[name]
    feeds = {key: np.zeros(() if size is None else (size, 2)) for key, size in sizes.items()}
    assert benchmark_module._samples(feeds) == expected
