"""Memory on a device: what a step's results take, and when room is made for them."""

import dataclasses

import numpy as np

from amp_transpiler import static
from amp_transpiler.paddle import tensor
from amp_transpiler.paddle.nn import functional
from amp_transpiler.paddle.optimizer import Momentum
from amp_transpiler.runtime import executor as executor_module
from amp_transpiler.runtime.compile import compile_step
from amp_transpiler.runtime.places import CPUPlace
from amp_transpiler.training_passes.alive import Memory
from tests.training_passes.training_step import step


def test_what_is_scattered_in_place_takes_nothing_more():
    inputs, sizes = "float[1] n, int64[2,1] i, float[2] u", "<int64[1] all = {12}>"
    nodes = "z = Expand (n, all) s = ScatterND (z, i, u) y = Neg (s)"
    for more, expected in (("", [48, 48, 96]), ("e = Exp (z)", [48, 96, 144, 144])):
        outputs = "float[12] y, float[12] e" if more else "float[12] y"
        before, *during = Memory(step(f"({inputs}) => ({outputs}) {sizes} {{ {nodes} {more} }}", "s").graph).alive()
        assert [size - before for size in during] == expected


def test_state_goes_to_the_device_before_room_is_made_and_its_first_memory_is_given_back(monkeypatch):
    """State would lie in the room for results. Behind the first run it is free, in pieces that little else fits in."""
    events = []
    hold = CPUPlace.hold
    monkeypatch.setattr(CPUPlace, "hold", lambda self, value: events.append("state") or hold(self, value))
    monkeypatch.setattr(CPUPlace, "make_room", lambda self, size: events.append(size))
    monkeypatch.setattr(CPUPlace, "release_unused_memory", lambda self: events.append("released"))
    monkeypatch.setattr(
        executor_module,
        "compile_step",
        lambda *arguments, **more: dataclasses.replace(compile_step(*arguments, **more), results=7),
    )
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [2, 3])
        loss = tensor.mean(functional.relu(static.nn.fc(x, 2)))
        Momentum(0.1).minimize(loss, startup)
    executor = static.Executor(CPUPlace())
    with static.scope_guard(static.Scope()):
        executor.run(startup)
        events.clear()
        counts = []
        for _ in range(3):
            executor.run(main, {"x": np.ones((2, 3), np.float32)}, [loss])
            counts.append(len(events))
    first = events[: counts[0]]
    assert first.index(7) > 0
    assert set(first[: first.index(7)]) == {"state"}
    assert [event for event in events if event != "state"] == [7, "released"]
    assert events.index("released") < counts[1]
