"""Startup programs: what they state is set without a session, and is what a session would compute."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.errors import NotFiniteError
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime.known_updates import known_updates
from amp_transpiler.runtime.scope import Scope


@pytest.fixture
def opened(monkeypatch):
    """Return a list that grows with every session."""
    sessions = []
    make = onnxruntime.InferenceSession.__init__

    def count(self, *arguments, **more):
        sessions.append(self)
        make(self, *arguments, **more)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", count)
    return sessions


def programs(*, low: bool = False, bias: object = None):
    """Return the startup and the training program of a linear layer, trained with Adam."""
    main, startup = static.Program(), static.Program()
    startup.random_seed = 7
    with amp.utils.unique_name.guard(), static.program_guard(main, startup):
        x, y = static.data("x", [None, 3]), static.data("y", [None, 4])
        loss = functional.mse_loss(static.nn.fc(x, size=4, bias_attr=bias), y)
        rule = optimizer.Adam(0.001, multi_precision=low)
        (static.amp.decorate(rule, level="O2", dtype="bfloat16") if low else rule).minimize(loss, startup)
    return startup, main


def computed(program, executor):
    """Return what a session computes for every update of a program."""
    names = list(program.updates)
    values = executor.run(program, fetch_list=[program.updates[name] for name in names], scope=Scope())
    return dict(zip(names, values, strict=True))


def test_a_startup_program_of_constants_opens_no_session(opened):
    startup, _ = programs()
    scope, executor = Scope(), static.Executor(amp.CPUPlace())
    executor.run(startup, scope=scope)
    assert not opened
    expected = computed(startup, executor)
    assert opened
    assert set(scope) == set(expected)
    for name, array in expected.items():
        assert scope[name].dtype == array.dtype
        assert (scope[name] == array).all()
    assert any(array.any() for array in expected.values())


def test_what_is_computed_still_needs_one(opened):
    startup, _ = programs()
    name = next(name for name, info in startup.persistables.items() if info.kind == "parameter")
    startup.updates[name] = str(startup.builder().neg(startup.value(startup.updates[name])).name)
    assert set(known_updates(startup)) == set(startup.updates) - {name}
    scope, executor = Scope(), static.Executor(amp.CPUPlace())
    executor.run(startup, scope=scope)
    assert len(opened) == 1
    expected = computed(startup, executor)
    assert expected[name].any()
    assert all((scope[name] == array).all() for name, array in expected.items())


def test_a_master_weight_is_the_value_that_its_parameter_is_drawn_as(opened):
    startup, _ = programs(low=True)
    known = known_updates(startup)
    masters = [name for name in known if name.endswith("_fp32_master_0")]
    assert masters
    assert len(known) == len(startup.updates)
    assert all(known[name] is known[name.removesuffix("_fp32_master_0")] for name in masters)
    static.Executor(amp.CPUPlace()).run(startup, scope=Scope())
    assert not opened


def test_a_second_run_sets_the_values_again_and_old_copies_stay():
    startup, main = programs()
    scope, executor = Scope(), static.Executor(amp.CPUPlace())
    executor.run(startup, scope=scope)
    first = {name: scope[name] for name in scope}
    feeds = {"x": np.ones((2, 3), np.float32), "y": np.zeros((2, 4), np.float32)}
    executor.run(main, feeds, scope=scope)
    assert any((scope[name] != array).any() for name, array in first.items())
    executor.run(startup, scope=scope)
    assert all((scope[name] == array).all() for name, array in first.items())


def test_an_initial_value_that_is_not_finite_is_found():
    startup, _ = programs(bias=amp.ParamAttr(initializer=amp.nn.initializer.Constant(np.inf)))
    with pytest.raises(NotFiniteError, match="inf"):
        static.Executor(amp.CPUPlace()).run(startup, scope=Scope(), not_finite="stop")
