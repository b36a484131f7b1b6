"""Places: what they tell of themselves, the default one, and why CUDA cannot be used."""

import ctypes
import logging
import pathlib
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from amp_transpiler import static
from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.paddle import device
from amp_transpiler.paddle.device import cuda as device_cuda
from amp_transpiler.runtime import cuda, memory, ort, places
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace
from amp_transpiler.runtime.session import Session
from amp_transpiler.runtime.values import to_ort


@pytest.fixture(autouse=True)
def fresh_answers(monkeypatch):
    monkeypatch.delenv(places.PLACE_VARIABLE, raising=False)
    cached = (places._logged_place, cuda.driver_device_count, cuda.cuda_problem)

    def clear():
        for function in cached:
            if hasattr(function, "cache_clear"):  # a test may have put something else in its place
                function.cache_clear()

    clear()
    yield
    clear()


class _Driver:
    """A stand-in for libcuda: what its two functions return, and how many devices there are."""

    def __init__(self, init, count_status, count):
        self._init, self._count_status, self._count = init, count_status, count

    def cuInit(self, _flags):  # noqa: N802  the driver's own name
        return self._init

    def cuDeviceGetCount(self, pointer):  # noqa: N802  likewise
        pointer._obj.value = self._count
        return self._count_status

    def cuDeviceGet(self, pointer, index):  # noqa: N802  likewise
        pointer._obj.value = index
        return 0

    def cuDeviceGetName(self, buffer, _size, handle):  # noqa: N802  likewise
        buffer.value = f"Device {handle.value}".encode()
        return 0

    def cuDeviceGetAttribute(self, pointer, attribute, handle):  # noqa: N802  likewise
        pointer._obj.value = {75: 8, 76: handle.value}[attribute]
        return 0


@pytest.mark.parametrize(("name", "number"), [(None, 0), (1, 1), ("gpu:1", 1), ("gpu", 0), (places.CUDAPlace(1), 1)])
def test_the_driver_tells_of_a_device(monkeypatch, name, number):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: _Driver(0, 0, 2))
    assert device_cuda.get_device_capability(name) == (8, number)
    assert device_cuda.get_device_name(name) == f"Device {number}"


def test_a_device_that_the_driver_does_not_see(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: _Driver(0, 0, 1))
    with pytest.raises(EnvironmentProblem, match="there is no CUDA device 1: the driver sees 1"):
        device_cuda.get_device_capability(1)


@pytest.mark.parametrize(
    ("init", "status", "count", "expected"),
    [(0, 0, 2, 2), (0, 0, 0, 0), (100, 0, 2, 0), (0, 3, 2, 0)],
    ids=["two devices", "none", "driver does not start", "count fails"],
)
def test_the_driver_is_asked_for_devices(monkeypatch, init, status, count, expected):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: _Driver(init, status, count))
    assert cuda.driver_device_count() == expected


def test_no_driver_is_no_device(monkeypatch):
    def refuse(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert cuda.driver_device_count() == 0
    assert memory.device_memory_in_use() is None


def test_places_are_values():
    assert CUDAPlace() == CUDAPlace(0) != CUDAPlace(1)
    assert CPUPlace() == CPUPlace()
    assert [str(CPUPlace()), str(CUDAPlace(1))] == ["CPU", "CUDA:1"]
    with pytest.raises(InputError, match="-1"):
        CUDAPlace(-1)


@pytest.mark.parametrize("place", [CPUPlace(), CUDAPlace(), CUDAPlace(3)], ids=str)
def test_a_place_is_found_by_its_name(place):
    assert places.place_named(str(place)) == place


@pytest.mark.parametrize("name", ["", "TPU", "CUDA:x", "CUDA:-1", "CPU:1"])
def test_an_unknown_place_is_refused(name):
    with pytest.raises(OptionError, match=r"place|device_id"):
        places.place_named(name)


@pytest.mark.parametrize(
    ("place", "emulates_low", "in_main_memory", "reads_gemm_options", "providers"),
    [
        (CPUPlace(), True, True, False, ["CPUExecutionProvider"]),
        (CUDAPlace(1), False, False, True, [("CUDAExecutionProvider", {"device_id": "1"}), "CPUExecutionProvider"]),
    ],
    ids=str,
)
def test_a_place_describes_itself(place, emulates_low, in_main_memory, reads_gemm_options, providers):
    assert (place.emulates_low, place.in_main_memory, place.reads_gemm_options, place.providers()) == (
        emulates_low,
        in_main_memory,
        reads_gemm_options,
        providers,
    )


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_cpu_holds_values_where_they_are(dtype):
    value = to_ort(np.array([1.5, -2.0], dtype))
    assert CPUPlace().hold(value) is value
    back = places.to_host(value)
    assert (back.dtype, back.tolist()) == (dtype, [1.5, -2.0])


class _OtherDevice(CPUPlace):
    """A device of its own memory, run by the CPU provider: all that a further device takes is such a class."""

    device = "other"
    emulates_low = False
    in_main_memory = False

    def __str__(self):
        return "OTHER"

    def bind_output(self, binding, name):
        binding.bind_output(name, "cpu")


def test_a_session_and_an_executor_run_on_a_further_device():
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float16[N] x) => (float16[N] y) { y = Add(x, x) }'
    )
    place, x = _OtherDevice(), np.array([1.5], np.float16)
    session = Session(proto, place)
    assert (session.emulated, session.cpu_nodes) == (False, ("Add",))
    assert session.run({"x": x})[0].tolist() == [3.0]
    [y] = static.Executor(place).run(static.from_onnx(proto), {"x": x}, ["y"])
    assert y.tolist() == [3.0]


@pytest.mark.parametrize(
    ("devices", "problem", "expected", "level", "words"),
    [
        (0, None, CPUPlace(), logging.INFO, "no NVIDIA device answers"),
        (1, None, CUDAPlace(0), logging.INFO, "CUDA:0"),
        (1, "install it", CPUPlace(), logging.WARNING, "install it"),
    ],
    ids=["no device", "device", "device without libraries"],
)
def test_the_default_place_is_said_once(monkeypatch, caplog, devices, problem, expected, level, words):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: devices)
    monkeypatch.setattr(cuda, "cuda_problem", lambda _device_id=0: problem)
    with caplog.at_level(logging.INFO, logger="amp_transpiler.runtime.places"):
        assert places.default_place() == expected
        assert places.default_place() == expected
    assert [record.levelno for record in caplog.records] == [level]
    assert words in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("cpu", CPUPlace()), ("CPU", CPUPlace()), ("cuda", CUDAPlace(0)), ("CUDA:1", CUDAPlace(1))],
)
@pytest.mark.parametrize("devices", [0, 2])
def test_the_variable_decides_the_default_place(monkeypatch, caplog, wanted, expected, devices):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: devices)
    monkeypatch.setattr(cuda, "cuda_problem", lambda _device_id=0: None)
    monkeypatch.setenv("AMP_TRANSPILER_PLACE", wanted)
    with caplog.at_level(logging.INFO, logger="amp_transpiler.runtime.places"):
        assert [places.default_place(), places.default_place()] == [expected, expected]
    assert [record.getMessage() for record in caplog.records] == [
        f"running on {expected}, as AMP_TRANSPILER_PLACE says"
    ]


@pytest.mark.parametrize("changed", ["cpu", None], ids=["changed", "unset"])
def test_the_variable_may_change_within_a_process(monkeypatch, changed):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 1)
    monkeypatch.setattr(cuda, "cuda_problem", lambda _device_id=0: None)
    monkeypatch.setenv("AMP_TRANSPILER_PLACE", "CUDA:1")
    assert (places.default_place(), device.get_device()) == (CUDAPlace(1), "gpu:1")
    if changed is None:
        monkeypatch.delenv("AMP_TRANSPILER_PLACE")
        assert (places.default_place(), device.get_device()) == (CUDAPlace(0), "gpu:0")
    else:
        monkeypatch.setenv("AMP_TRANSPILER_PLACE", changed)
        assert (places.default_place(), device.get_device()) == (CPUPlace(), "cpu")


@pytest.mark.parametrize("wanted", ["gpu", "TPU:0", "CUDA:x", "CUDA:-1", "CPU:1", " "])
def test_a_variable_that_names_no_place_is_refused(monkeypatch, wanted):
    monkeypatch.setenv("AMP_TRANSPILER_PLACE", wanted)
    for _ in range(2):  # an error is not remembered as an answer
        with pytest.raises(OptionError, match=r"AMP_TRANSPILER_PLACE is .*: expected a place .* unset it"):
            places.default_place()


def test_a_device_of_the_variable_that_is_not_there_is_no_cpu(monkeypatch):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 1)
    monkeypatch.setattr(cuda, "cuda_problem", cuda.cuda_problem.__wrapped__)
    monkeypatch.setenv("AMP_TRANSPILER_PLACE", "CUDA:5")
    with pytest.raises(EnvironmentProblem, match=r"AMP_TRANSPILER_PLACE says CUDA:5.*no CUDA device 5: 1 visible"):
        places.default_place()


def test_sessions_and_executors_open_where_the_variable_says(monkeypatch):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 1)
    monkeypatch.setattr(cuda, "cuda_problem", lambda _device_id=0: None)
    monkeypatch.setenv("AMP_TRANSPILER_PLACE", "cpu")
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1] x) => (float[1] y) { y = Exp(x) }'
    )
    assert Session(proto).place == CPUPlace()
    assert static.Executor().place == CPUPlace()


@pytest.mark.parametrize(
    ("devices", "device_id", "providers", "cudnn", "provider", "words"),
    [
        (0, 0, ["CUDAExecutionProvider"], True, True, "no NVIDIA device answers"),
        (2, 2, ["CUDAExecutionProvider"], True, True, "no CUDA device 2: 2 visible"),
        (1, 0, ["CPUExecutionProvider"], True, True, "pip install --force-reinstall --no-deps onnxruntime-gpu"),
        (1, 0, ["CUDAExecutionProvider"], False, True, "the cuDNN libraries: `pip install 'amp_transpiler[cuda]'`"),
        (1, 0, ["CUDAExecutionProvider"], True, False, "the CUDA libraries: `pip install 'amp_transpiler[cuda]'`"),
    ],
)
def test_why_cuda_cannot_be_had(monkeypatch, devices, device_id, providers, cudnn, provider, words):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: devices)
    monkeypatch.setattr(cuda.onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(cuda, "_preload_cuda_libraries", lambda: None)
    monkeypatch.setattr(cuda, "_cudnn_loads", lambda: cudnn)
    monkeypatch.setattr(cuda, "_provider_loads", lambda _device_id: provider)
    problem = cuda.cuda_problem(device_id)
    assert words in problem
    assert "\n" not in problem
    with pytest.raises(EnvironmentProblem, match=f"cannot run on CUDA:{device_id}"):
        CUDAPlace(device_id).open_session(b"")


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        ((12, 4), "knows CUDA 12.4, and the installed onnxruntime-gpu is built for CUDA 13.0 (CUDA error 35)"),
        ((13, 0), None),
        ((14, 1), None),
        (None, None),
    ],
)
def test_a_driver_that_is_too_old_is_called_so(monkeypatch, driver, problem):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 1)
    monkeypatch.setattr(cuda, "driver_cuda_version", lambda: driver)
    monkeypatch.setattr(cuda.onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(cuda.onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    for name in ("_preload_cuda_libraries", "_cudnn_loads"):
        monkeypatch.setattr(cuda, name, lambda: True)
    monkeypatch.setattr(cuda, "_provider_loads", lambda _device_id: True)
    reason = cuda.cuda_problem(0)
    assert reason == problem or (problem in reason and "update the driver to 580.65.06 or newer" in reason)


def test_cuda_is_had_where_everything_answers(monkeypatch):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 1)
    monkeypatch.setattr(cuda.onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    for name in ("_preload_cuda_libraries", "_cudnn_loads"):
        monkeypatch.setattr(cuda, name, lambda: True)
    monkeypatch.setattr(cuda, "_provider_loads", lambda _device_id: True)
    assert cuda.cuda_problem(0) is None


class _Session:
    """A session of ONNX Runtime that has other providers than it was asked for, and no word about it."""

    got = ("CPUExecutionProvider",)

    def __init__(self, *_arguments, **_options):
        pass

    def get_providers(self):
        return list(self.got)


@pytest.mark.parametrize(
    "open_it",
    [
        lambda providers: ort.open_session(b"", providers=providers),
        lambda providers: ort.create_session(b"", ort.SessionSettings(), providers),
        lambda providers: ort.create_plain_session(b"", providers),
    ],
    ids=["checked", "by settings", "by default"],
)
def test_a_provider_that_is_dropped_in_silence_is_an_error(open_it, monkeypatch):
    monkeypatch.setattr(ort.onnxruntime, "InferenceSession", _Session)
    words = (
        "ONNX Runtime opened a session on CPUExecutionProvider, and was asked for CUDAExecutionProvider, "
        "CPUExecutionProvider: `amp-transpile doctor` says what is missing; use CPUPlace() to run on the CPU"
    )
    with pytest.raises(EnvironmentProblem, match=re.escape(words)):
        open_it(cuda.providers(0))
    assert open_it([ort.CPU_PROVIDER]).get_providers() == ["CPUExecutionProvider"]


def test_the_preferred_provider_comes_first(monkeypatch):
    monkeypatch.setattr(_Session, "got", ("CPUExecutionProvider", "CUDAExecutionProvider"))
    monkeypatch.setattr(ort.onnxruntime, "InferenceSession", _Session)
    with pytest.raises(EnvironmentProblem, match="opened a session on CPUExecutionProvider, CUDAExecutionProvider"):
        ort.create_plain_session(b"", cuda.providers(0))


def test_onnx_runtime_itself_drops_a_provider_that_its_build_lacks():
    head = '<ir_version: 8, opset_import: ["": 13]>'
    model = onnx.parser.parse_model(f"{head} g (float[1] x) => (float[1] y) {{ y = Neg(x) }}").SerializeToString()
    known = {"CoreMLExecutionProvider", "OpenVINOExecutionProvider"}  # no build has both
    absent = min(known - set(ort.onnxruntime.get_available_providers()))
    with (
        pytest.warns(UserWarning, match=absent),
        pytest.raises(EnvironmentProblem, match=f"was asked for {absent}, CPUExecutionProvider"),
    ):
        ort.open_session(model, providers=[absent, ort.CPU_PROVIDER])


def test_a_probe_without_the_cuda_provider_is_no_error(monkeypatch):
    monkeypatch.setattr(ort.onnxruntime, "InferenceSession", _Session)
    cuda._probed_options.cache_clear()
    try:
        assert not cuda._provider_loads(0)
        assert not cuda.sessions_bring_an_allocator(0)
    finally:
        cuda._probed_options.cache_clear()


def test_without_a_device_nothing_is_printed():
    code = (
        "from amp_transpiler.runtime.places import default_place; default_place();"
        "from amp_transpiler.runtime.ort import ORT_ERRORS, open_session\n"
        "try: open_session(b'no model')\n"
        "except ORT_ERRORS: pass"
    )
    root = pathlib.Path(places.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
