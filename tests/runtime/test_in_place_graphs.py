"""CUDA graphs of steps that overwrite their state: when a step may, and that it computes what plain runs do."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.errors import OptionError
from amp_transpiler.runtime import compile as compile_module
from amp_transpiler.runtime.in_place import in_place_obstacle
from amp_transpiler.runtime.in_place_graphs import InPlaceGraph
from amp_transpiler.runtime.places import CPUPlace
from tests.runtime.capturing import CapturingPlace, normalized_network

OBSTACLES = {
    # the body, the beginning of the reason
    "a sum writes what it reads": ("(float[3] w, float[3] g) => (float[3] new) { new = Sub(w, g) }", ""),
    "all readers come before": (
        "(float[3] w, float[3] g) => (float[3] new) { y = Neg(w)  s = Mul(y, g)  new = Sub(w, s) }",
        "",
    ),
    "a late reader": (
        "(float[3] w, float[3] g) => (float[3] new, float[3] y) { new = Sub(w, g)  y = Neg(w) }",
        "Neg 'y' may read 'w' after Sub 'new' has overwritten it",
    ),
    "a late reader of a view": (
        (
            "(float[3] w, float[3] g) => (float[3] new, float[3,1] y) <int64[2] shape = {3, 1}> {"
            " new = Sub(w, g)  v = Reshape(w, shape)  y = Neg(v) }"
        ),
        "Reshape 'v' may read 'w' after",
    ),
    "a product reads what it writes": (
        "(float[3,3] w, float[3,3] g) => (float[3,3] new) { new = MatMul(w, g) }",
        "MatMul 'new' overwrites 'w' while it reads it",
    ),
    "a broadcast reads a number again": (
        "(float[1] w, float[3] g) => (float[3] new) { new = Add(w, g) }",
        "Add 'new' overwrites 'w' while it reads it",
    ),
    "a view is read by the writer": (
        (
            "(float[3] w, float[3,1] g) => (float[3,1] new) <int64[2] shape = {3, 1}> {"
            " v = Reshape(w, shape)  new = Sub(v, g) }"
        ),
        "Sub 'new' overwrites 'w' while it reads it",
    ),
    "nothing reads it": ("(float[3] g) => (float[3] new) { new = Neg(g) }", "'w' is written without being read"),
    "an unknown size": (
        "(float[n] w, float[n] g) => (float[n] new) { new = Sub(w, g) }",
        "the size of output 'new' is not known",
    ),
}


@pytest.mark.parametrize(("body", "why"), OBSTACLES.values(), ids=OBSTACLES)
def test_state_is_overwritten_only_if_nothing_reads_it_late(body, why):
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> step {body}')
    reason = in_place_obstacle(ir.from_proto(proto), {"w": "new"})
    assert reason.startswith(why)
    assert bool(reason) == bool(why)


class _Capturing:
    """A session that computes a step three times when it is captured, each time from what it has written, and fails if
    `refuses`."""

    def __init__(self, session, *, refuses=False):
        self._session, self._refuses, self.captures = session, refuses, 0

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, binding, options):
        captured = options.get_run_config_entry("gpu_graph_id") == "1"
        if captured and not self.captures:
            self._session.run_with_iobinding(binding, options)
            self._session.run_with_iobinding(binding, options)
            if self._refuses:
                raise Fail("[ONNXRuntimeError] : 1 : FAIL : the device captures nothing")
        self.captures += captured
        self._session.run_with_iobinding(binding, options)


@pytest.fixture
def opened(monkeypatch, request):
    """The sessions that were opened to be captured."""
    sessions = []

    def open_(message, model, settings, place):
        sessions.append(_Capturing(place.open_session(message, settings), refuses=getattr(request, "param", False)))
        return sessions[-1]

    monkeypatch.setattr(compile_module, "open_capturing", open_)
    return sessions


OPTIMIZERS = {
    "AdamW": lambda: optimizer.AdamW(0.1),
    "Momentum": lambda: optimizer.Momentum(0.1),
    "Lamb": lambda: optimizer.Lamb(0.1),
    "decorated": lambda: amp.decorate(optimizer.Adam(0.1), use_pure_fp16=True, init_loss_scaling=8.0),
}


def train(place, optimizer_of, **options):
    """Return losses as they came and as they are in the end, and the last state. Somebody sets a weight meanwhile, and
    a step is to be skipped if it is not finite."""
    main, startup, loss = normalized_network(optimizer_of)
    scope, executor = static.Scope(), static.Executor(place, **options)
    random, handed_out, losses = np.random.default_rng(0), [], []
    with static.scope_guard(scope):
        executor.run(startup)
        for step in range(8):
            feed = {"x": random.normal(size=(8, 3)).astype("f"), "y": random.normal(size=(8, 1)).astype("f")}
            if step == 5:
                name = next(name for name in scope if ".w_0" in name)
                scope[name] = scope[name] * 2
            if step == 6:
                feed["x"][0, 0] = np.inf
            not_finite = "skip" if step == 6 else None
            [value] = executor.run(main, feed, [loss], return_numpy=False, not_finite=not_finite)
            handed_out.append(value)
            losses.append(np.array(value.numpy()))
        return np.array(losses), np.array([value.numpy() for value in handed_out]), {n: scope[n] for n in scope}


@pytest.mark.parametrize("optimizer_of", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_step_that_overwrites_its_state_computes_what_plain_runs_do(opened, optimizer_of, caplog):
    expected, _, state = train(CPUPlace(), optimizer_of)
    losses, handed_out, last_state = train(CapturingPlace(), optimizer_of, cuda_graph=True, in_place=True)
    assert sum(session.captures for session in opened) >= 6
    assert losses.tobytes() == expected.tobytes()
    assert handed_out.tobytes() == expected.tobytes()
    assert {name: array.tobytes() for name, array in last_state.items()} == {
        name: array.tobytes() for name, array in state.items()
    }
    reasons = {text.partition(": ")[2] for text in caplog.messages if "no state in place" in text}
    assert reasons == {"a step whose values are not finite is to change nothing"}


@pytest.mark.parametrize("opened", [True], indirect=True)
def test_a_device_that_refuses_leaves_the_state_as_it_was(opened, caplog):
    expected, _, state = train(CPUPlace(), OPTIMIZERS["AdamW"])
    losses, _, last_state = train(CapturingPlace(), OPTIMIZERS["AdamW"], cuda_graph=True, in_place=True)
    assert "no CUDA graph of this step: FAIL : the device captures nothing" in caplog.text
    assert losses.tobytes() == expected.tobytes()
    assert all(last_state[name].tobytes() == array.tobytes() for name, array in state.items())


def test_an_interrupt_while_a_step_is_captured_leaves_the_state_as_it_was(opened, monkeypatch):
    main, startup, loss = normalized_network(OPTIMIZERS["AdamW"])
    feed = {"x": np.ones((8, 3), "f"), "y": np.ones((8, 1), "f")}
    executor = static.Executor(CapturingPlace(), cuda_graph=True, in_place=True)
    with static.scope_guard(scope := static.Scope()):
        executor.run(startup)
        before = {name: scope[name].tobytes() for name in scope}
        run = _Capturing.run_with_iobinding

        def interrupted(self, binding, options):
            run(self, binding, options)
            raise KeyboardInterrupt

        monkeypatch.setattr(_Capturing, "run_with_iobinding", interrupted)
        with pytest.raises(KeyboardInterrupt):
            executor.run(main, feed, [loss])
        assert {name: scope[name].tobytes() for name in scope} == before


def test_the_scope_has_the_memory_that_a_step_overwrites(opened):
    main, startup, loss = normalized_network(OPTIMIZERS["AdamW"])
    feed = {"x": np.ones((8, 3), "f"), "y": np.ones((8, 1), "f")}
    executor = static.Executor(CapturingPlace(), cuda_graph=True, in_place=True)
    with static.scope_guard(scope := static.Scope()):
        executor.run(startup)
        addresses = []
        for _ in range(3):
            executor.run(main, feed, [loss])
            addresses.append({name: scope.held(name).data_ptr() for name in scope})
        assert addresses[0] == addresses[1] == addresses[2]
    assert [type(step.graph) for step in executor._steps._steps.values()] == [type(None), InPlaceGraph]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_place": True}, "give cuda_graph=True"),
        ({"in_place": True, "cuda_graph": True, "check": True}, "leave in_place out"),
    ],
)
def test_options_that_exclude_it_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        static.Executor(CPUPlace(), **options)
