"""Messages of running and of distributed runs that no other test provokes: what a user does, and words of the message.

Other ranks, CUDA devices and other builds of PyTorch are stand-ins, so that one process on a CPU meets every message.
"""

import dataclasses
import sys
import types

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler import CPUPlace, CUDAPlace, distributed, errors, optimizer, static
from amp_transpiler.cli.command import main
from amp_transpiler.paddle.distributed import environment
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.runtime import cuda, cuda_runtime, places
from amp_transpiler.runtime.distributed import executor as distributed_executor
from amp_transpiler.runtime.values import from_ort
from amp_transpiler.systems import mxnet


def model(body, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {body}')


# ---- one process on a CPU ----

TWO_STATES = "g (float[2] a, float[2] b) => (float[2] y) { y = Add(a, b) }"
SEQUENCE = "g (seq(float[N]) s) => (seq(float[N]) t, int64 n) { t = Identity(s) n = SequenceLength(s) }"
EMPTY = "g (float[N] x) => (optional(float[N]) o, float[N] y) { o = Optional<type = float[N]>() y = Neg(x) }"
OPTIONAL = "g (optional(float[N]) o) => (float[N] y) { y = OptionalGetElement(o) }"
LOW_OPTIONAL = "g (float[N] x) => (optional(bfloat16[N]) o) { o = Optional<type = bfloat16[N]>() }"
X = {"x": np.zeros(2, np.float32)}


def executed(body, feed, fetch):
    return static.Executor(CPUPlace()).run(amp.load(model(body)), feed, fetch)


def session(body, **options):
    return amp.Session(model(body), CPUPlace(), **options)


def low_value_of_a_device():
    """Return a bfloat16 value as it lies on a device, whose memory cannot be read here."""
    return types.SimpleNamespace(
        has_value=lambda: True,
        is_tensor=lambda: True,
        element_type=lambda: onnx.TensorProto.BFLOAT16,
        device_name=lambda: "cuda",
    )


# Words of the message -> what is done.
ALONE = {
    "output 'y' is the update of another input already": lambda: amp.transpile(
        model(TWO_STATES), state={"a": "y", "b": "y"}, verify=False
    ),
    "have no effect where nothing is changed": lambda: amp.transpile(
        model(TWO_STATES), level="O0", state={"a": "y"}, verify=False
    ),
    "input 's' is not a tensor, so it cannot be fed": lambda: executed(SEQUENCE, {"s": X["x"]}, ["n"]),
    "'o' is optional(tensor(float)): an executor fetches only tensors": lambda: executed(EMPTY, X, ["o"]),
    "'s' is seq(tensor(float)): an executor fetches only tensors": lambda: executed(
        "g (float[N] x) => (seq(float[N]) s) { s = SequenceConstruct(x) }", X, ["s"]
    ),
    "value on cuda cannot be read: bind that output to the CPU": lambda: from_ort(low_value_of_a_device()),
    "output 'o' is optional(tensor(bfloat16)): ONNX Runtime's": lambda: session(LOW_OPTIONAL, emulate=False).run(X),
    "the scope has no value for 'w': run the startup program": lambda: static.Scope().var("w").get_tensor(),
    "Invalid rank for input: o Got: 2": lambda: session(OPTIONAL).run({"o": np.zeros((2, 3), np.float32)}),
    "cannot be opened on CPU: NOT_IMPLEMENTED": lambda: session(
        "g (bfloat16[N] x) => (bfloat16[N] y) { y = Mul(x, x) }", emulate=False
    ),
    "input 'x' is also an output": lambda: mxnet.convert_model(
        model("g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }"), input_dtypes={"x": "float16"}
    ),
}


@pytest.mark.parametrize("words", ALONE)
def test_what_one_process_is_refused_for(words):
    with pytest.raises(errors.InputError) as caught:
        ALONE[words]()
    assert words in str(caught.value)


@pytest.mark.slow  # memory is measured in processes of their own
def test_a_benchmark_of_what_onnx_runtime_refuses_is_a_warning(tmp_path, capfd):
    proto = model("g (float[2] x) => (float[2] y) { h = Exp(x) y = own.domain.Wish(h) }")
    proto.opset_import.add(domain="own.domain", version=1)
    onnx.save(proto, tmp_path / "wish.onnx")
    np.savez(tmp_path / "x.npz", x=X["x"])
    options = ["--no-verify", "--benchmark", "--inputs", str(tmp_path / "x.npz")]
    assert main([str(tmp_path / "wish.onnx"), *options]) == 0
    said = " ".join(capfd.readouterr().err.split())
    assert "no benchmark: Program(" in said
    assert "memory could not be measured: amp_transpiler.errors.InputError: Program(" in said


# ---- devices that are not there ----


def test_a_driver_older_than_the_cuda_of_onnx_runtime(monkeypatch):
    monkeypatch.setattr(cuda, "driver_device_count", lambda: 1)
    monkeypatch.setattr(cuda, "driver_cuda_version", lambda: (12, 4))
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(cuda, "cuda_problem", cuda.cuda_problem.__wrapped__)  # without what it remembers
    with pytest.raises(errors.EnvironmentProblem, match=r"the NVIDIA driver knows CUDA 12\.4, and the installed"):
        CUDAPlace(0).open_session(b"")


def test_a_cuda_runtime_that_is_not_installed(monkeypatch):
    def gone(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda_runtime.ctypes, "CDLL", gone)
    monkeypatch.setattr(cuda_runtime, "_library", cuda_runtime._library.__wrapped__)
    with pytest.raises(errors.EnvironmentProblem, match=r"CUDA's runtime, cannot be loaded \(.*: cannot open shared"):
        cuda_runtime.PinnedBuffer(8)


@dataclasses.dataclass(frozen=True)
class GraphlessPlace(places.CPUPlace):
    """A device on which ONNX Runtime refuses to capture a graph."""

    in_main_memory = False
    has_provider_options = True

    def open_session(self, form, settings):
        if dict(settings.provider_options).get("enable_cuda_graph"):
            raise onnxruntime.capi.onnxruntime_pybind11_state.Fail("This session cannot use the graph capture feature")
        return super().open_session(form, settings)


def test_a_device_that_captures_no_graph():
    proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(errors.OptionError, match="but no graph is possible: 1 of its nodes run on the CPU: Relu"):
        amp.Session(proto, GraphlessPlace(), cuda_graph=True)


# ---- joining the other ranks ----

LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
NO_TORCH = {"torch": None}


def torch(is_available=True, gloo=True, nccl=True, has_cuda=True, devices=1):
    """Return a build of PyTorch that meets nobody."""

    def rendezvous(*_, **__):
        raise RuntimeError("The client socket has timed out after 60000ms")

    built, part = types.ModuleType("torch"), types.ModuleType("torch.distributed")
    built.__version__, built.distributed = "2.13.0", part
    built.cuda = types.SimpleNamespace(is_available=lambda: has_cuda, device_count=lambda: devices)
    part.is_available, part.rendezvous = lambda: is_available, rendezvous
    part.is_gloo_available, part.is_nccl_available = lambda: gloo, lambda: nccl
    return {"torch": built, "torch.distributed": part}


# Words of the message -> the class, the PyTorch that is installed, the place, and why that place cannot be used.
JOINING = {
    "distributed training needs PyTorch (": ("EnvironmentProblem", NO_TORCH, CPUPlace(), None),
    "this PyTorch (2.13.0) was built without torch.distributed": (
        "EnvironmentProblem",
        torch(is_available=False),
        CPUPlace(),
        None,
    ),
    "cannot run on CUDA:0: no NVIDIA device": ("EnvironmentProblem", torch(), CUDAPlace(0), "no NVIDIA device"),
    "this PyTorch has no gloo backend": ("EnvironmentProblem", torch(gloo=False), CPUPlace(), None),
    "PyTorch cannot use CUDA:0: install its CUDA build": (
        "EnvironmentProblem",
        torch(has_cuda=False),
        CUDAPlace(0),
        None,
    ),
    "there is no CUDA:3: PyTorch sees 2 devices": ("EnvironmentProblem", torch(devices=2), CUDAPlace(3), None),
    "rank 1 did not meet the other 1 at 127.0.0.1:29500 within 60 s: The client socket": (
        "DistributedError",
        torch(),
        CPUPlace(),
        None,
    ),
}


@pytest.mark.parametrize("words", JOINING)
def test_why_a_process_does_not_join(words, monkeypatch):
    kind, modules, place, problem = JOINING[words]
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(environment, "_joined", [])
    monkeypatch.setattr(CUDAPlace, "problem", lambda _: problem)
    with pytest.raises(getattr(errors, kind)) as caught:
        distributed.init_parallel_env(place)
    assert words in str(caught.value)


# ---- steps of several ranks ----


class TwoRanks:
    """A world of this process and another one, which says the same unless it says something else."""

    size, backend, step, is_broken, timeout = 2, "gloo", 0, False, 60.0

    def __init__(self, rank=0, other=None, first=None):
        self.rank, self.place, self.failures = rank, CPUPlace(), []
        self._other, self._first = other, first

    def gather(self, text):
        told = text if self._other is None else self._other
        return [text, told] if self.rank == 0 else [told, text]

    def from_first(self, text):
        return text if self.rank == 0 else self._first

    def fail(self, error):
        self.failures.append(error)


class NothingExchanged:
    """An exchange with a rank that has the same values, and perhaps another size of the batch."""

    are_equal = True

    def __init__(self, _world):
        pass

    def start_sum(self, _value):
        return lambda: None

    def start_comparison(self, _numbers):
        return lambda: self.are_equal

    def copies(self, items):
        return [item.value for item in items]


class OtherSizes(NothingExchanged):
    are_equal = False


@pytest.fixture
def ranks(monkeypatch):
    """Return a function that makes the executor of one of two ranks."""

    def world_of(world, exchange=NothingExchanged, **options):
        monkeypatch.setattr(environment, "_joined", [world])
        monkeypatch.setattr(distributed_executor, "Exchange", exchange)
        return distributed.DataParallelExecutor(**options)

    yield world_of
    monkeypatch.undo()


def network(*, normalized=False):
    """Return a training program with its startup program and loss.

    A `normalized` one has a gradient through a BatchNormalization that no update reads, and keeps its statistics.
    """
    main, startup = static.Program(), static.Program()
    with unique_name.guard(), static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        h = static.nn.fc(x, 3)
        loss = (h * h).mean()
        if normalized:
            static.gradients([static.nn.batch_norm(h * h)], [h])
            main.updates.clear()
        optimizer.SGD(0.1).minimize(loss)
    return main, startup, loss


FED = {"x": np.ones((2, 4), np.float32)}


def stepped(exe, fetch=None, *, normalized=False, started=True, **options):
    main, startup, loss = network(normalized=normalized)
    scope = static.Scope()
    if started:
        exe.run(startup, scope=scope)
    return exe.run(main, FED, [loss] if fetch is None else fetch, scope=scope, **options)


def saved_where_nothing_can_be(ranks):
    exe = ranks(TwoRanks())
    main, startup, _ = network()
    scope = static.Scope()
    exe.run(startup, scope=scope)
    exe.save(main, "/dev/null/checkpoint", scope)


def loaded_from_a_first_rank_that_cannot(ranks):
    exe = ranks(TwoRanks(rank=1, first="the file cannot be read"))
    exe.load(network()[0], "checkpoint", static.Scope())


# Words of the message -> the class, and what a rank does.
TOGETHER = {
    "accumulate_steps must be a whole number from 1 on, got 0": (
        "OptionError",
        lambda ranks: ranks(TwoRanks(), accumulate_steps=0),
    ),
    "the ranks feed batches of different sizes": (
        "DistributedError",
        lambda ranks: stepped(ranks(TwoRanks(), OtherSizes)),
    ),
    "rank 0 has no value for fc_0.w_0": ("InputError", lambda ranks: stepped(ranks(TwoRanks()), started=False)),
    "/dev/null/checkpoint": ("InputError", saved_where_nothing_can_be),
    "rank 0: the file cannot be read": ("InputError", loaded_from_a_first_rank_that_cannot),
    "the program of rank 1 is not that of rank 0 (Program(": (
        "DistributedError",
        lambda ranks: stepped(ranks(TwoRanks(other="0123456789abcdef"))),
    ),
    "so it cannot be fetched here": (
        "InputError",
        lambda ranks: stepped(ranks(TwoRanks(), shard_optimizer=True), ["fc_0.w_0", "fc_0.b_0"]),
    ),
    "its batch statistics cannot be exchanged: leave sync_batch_norm out": (
        "ModelError",
        lambda ranks: stepped(ranks(TwoRanks(), sync_batch_norm=True), normalized=True),
    ),
    "not_finite='stop' would stop or skip a step on one rank alone": (
        "OptionError",
        lambda ranks: stepped(ranks(TwoRanks()), not_finite="stop"),
    ),
}


@pytest.mark.parametrize("words", TOGETHER)
def test_what_stops_a_rank(words, ranks):
    kind, act = TOGETHER[words]
    with pytest.raises(getattr(errors, kind)) as caught:
        act(ranks)
    assert words in str(caught.value)
