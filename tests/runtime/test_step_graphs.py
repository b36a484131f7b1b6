"""CUDA graphs of steps: what keeps one from being captured, and that two sets of buffers take turns as they should."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.runtime import compile as compile_module
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.runtime.step_graphs import step_obstacle
from tests.runtime.capturing import CapturingPlace, normalized_network

ROWS = [
    ("g (float[4] x) => (float[2] y, float[2] z) { y, z = Split<axis=0, num_outputs=2>(x) }", ""),
    ("g (float[4] x) => (float[3] y, float[1] z) <int64[2] s = {3, 1}> { y, z = Split<axis=0>(x, s) }", "Split"),
    ("g (float[4] x, float[2] z) => (float[6] y) { y = Concat<axis=0>(x, z) }", ""),
    (f"g (float[4] x) => (float[132] y) {{ y = Concat<axis=0>({', '.join('x' * 33)}) }}", "Concat"),
    ("g (float[2,3,4] x, float[2,4,5] z) => (float[2,3,5] y) { y = MatMul(x, z) }", ""),
    ("g (float[2,3,4] x, float[4,5] z) => (float[2,3,5] y) { y = MatMul(x, z) }", ""),
    ("g (float[2,3,4] x, float[1,4,5] z) => (float[2,3,5] y) { y = MatMul(x, z) }", "MatMul"),
    ("g (float[2] x) => (int64[1,n] y) { y = NonZero(x) }", "NonZero 'y': the size of its result"),
]


@pytest.mark.parametrize(("body", "why"), ROWS, ids=[body for body, _ in ROWS])
def test_what_uploads_tables_is_not_captured(body, why):
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {body}')
    reason = step_obstacle(ir.from_proto(proto))
    assert reason.startswith(why)
    assert bool(reason) == bool(why)


@pytest.fixture
def captured(monkeypatch):
    """The steps that were opened to be captured."""
    opened = []

    def open_(message, model, settings, place):
        assert not step_obstacle(model)
        opened.append(place.open_session(message, settings))
        return opened[-1]

    monkeypatch.setattr(compile_module, "open_capturing", open_)
    return opened


def rate_by_steps():
    return optimizer.lr.StepDecay(0.1, step_size=2, steps_per_epoch=1)


def train(place, *, cuda_graph, steps=8):
    """Return losses as they came and as they are in the end, and the last state: rate, weights and feeds change."""
    rate = rate_by_steps()
    main, startup, loss = normalized_network(lambda: optimizer.AdamW(rate))
    scope, executor = static.Scope(), static.Executor(place, cuda_graph=cuda_graph)
    random, losses, seen = np.random.default_rng(0), [], []
    with static.scope_guard(scope):
        executor.run(startup)
        for step in range(steps):
            feed = {"x": random.normal(size=(8, 3)).astype("f"), "y": random.normal(size=(8, 1)).astype("f")}
            if step == 5:
                name = next(name for name in scope if "w" in name)
                scope[name] = scope[name] * 2
            if step == 6:
                feed["x"][0, 0] = np.inf
            not_finite = "skip" if step == 6 else None
            [value] = executor.run(main, feed, [loss], return_numpy=False, not_finite=not_finite)
            losses.append(value)
            seen.append(np.array(value.numpy()))
            rate.step()
        return np.array(seen), np.array([value.numpy() for value in losses]), {name: scope[name] for name in scope}


def test_two_graphs_that_take_turns_compute_what_plain_runs_do(captured):
    expected, _, state = train(CPUPlace(), cuda_graph=False)
    seen, losses, captured_state = train(CapturingPlace(), cuda_graph=True)
    assert captured
    assert seen.tobytes() == expected.tobytes()
    assert losses.tobytes() == expected.tobytes()  # later runs overwrite no loss that was handed out
    assert {name: array.tobytes() for name, array in captured_state.items()} == {
        name: array.tobytes() for name, array in state.items()
    }


def test_a_cpu_has_no_graphs_and_says_so(caplog):
    main, startup, loss = normalized_network(lambda: optimizer.AdamW(rate_by_steps()))
    with static.Executor(amp.CPUPlace(), cuda_graph=True) as executor, static.scope_guard(static.Scope()):
        executor.run(startup)
        executor.run(main, {"x": np.ones((8, 3), "f"), "y": np.ones((8, 1), "f")}, [loss])
    assert "no CUDA graph of this step: CPU has none" in caplog.text
