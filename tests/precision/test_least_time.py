"""The least predicted time where the host runs ahead of the device: against every choice there is, and as predicted."""

import dataclasses
import itertools

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import convert, prepare
from amp_transpiler.cost import find_device, predict
from amp_transpiler.precision import least_time as module
from amp_transpiler.precision.assign import open_choices
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.systems.choice import Request, choose_policy
from tests.support import parse

SIZES = (8, 512, 2048)


def small_net(seed):
    """Products and cheap operators of differing size, one after the other or side by side."""
    draw = np.random.default_rng(seed)
    nodes, weights = [], {}
    last, width = "x", 64
    for index in range(int(draw.integers(3, 7))):
        kind = draw.integers(5)
        if kind < 2:
            wider = int(draw.choice(SIZES))
            weights[f"w{index}"] = np.full((width, wider), 0.01, np.float32)
            nodes.append(f"[n{index}] v{index} = MatMul ({last}, w{index})")
            width = wider
        elif kind == 2 and index:
            nodes.append(f"[n{index}] v{index} = Add ({last}, {last})")
        elif kind == 3:
            nodes.append(f"[n{index}] v{index} = Softmax ({last})")
        else:
            nodes.append(f"[n{index}] v{index} = Relu ({last})")
        last = f"v{index}"
    rows = int(draw.choice([1, 256, 4096]))
    return parse(
        f"(float[{rows},64] x) => (float[{rows},{width}] y) {{ {' '.join(nodes)} y = Neg ({last}) }}", **weights
    )


def opened(model, monkeypatch):
    """Return how the time of a choice is worked out, its choices, and the fastest one."""
    runs = []

    class Kept(module._Run):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            runs.append((self, arguments[0]))

    monkeypatch.setattr(module, "_Run", Kept)
    policy = dataclasses.replace(choose_policy(Request(level="auto")), objective="time")
    program = amp.load(model)
    prepare(program, policy, RangeFaults(policy.low))
    weights = open_choices(program.model, policy).weights
    run, choices = runs[0]
    return run, choices, run.tried(weights).seconds


class Exactly:
    """Weights by which one choice alone is possible."""

    def __init__(self, choices, low):
        self._low = {node for item, is_low in enumerate(low) if is_low for node in choices.nodes(item)}

    def low(self, node):
        return 0.0 if node in self._low else 1.0

    def high(self, node):
        return 1.0 if node in self._low else 0.0

    def cast_to_low(self, value):  # noqa: ARG002 - part of the interface
        return 0.0

    cast_to_high = cast_to_low


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_is_faster(seed, monkeypatch):
    run, choices, fastest = opened(small_net(seed), monkeypatch)
    items = len(choices.problem.low)
    every = (run.tried(Exactly(choices, low)).seconds for low in itertools.product((False, True), repeat=items))
    assert fastest <= (1 + module.LEAST_GAIN) * min(every)


def test_a_long_kernel_hides_the_calls_of_what_follows(monkeypatch):
    """Casts cost a call each, which nobody waits for behind a long product."""
    body = "[a] h = MatMul (x, w) [b] r = Softmax (h) [c] s = MatMul (r, v) y = Softmax (s)"
    weights = {"w": np.full((512, 2048), 0.01, np.float32), "v": np.full((2048, 64), 0.01, np.float32)}
    model = parse(f"(float[16384,512] x) => (float[16384,64] y) {{ {body} }}", **weights)
    run, _, fastest = opened(model, monkeypatch)
    alone = run.tried(run.plain).seconds
    assert fastest <= alone
    report = amp.transpile(model, prefer="time", verify=False)
    assert {row.name for row in report.decisions if row.precision == "low"} >= {"a", "c"}


@pytest.mark.parametrize("seed", range(6))
def test_neither_float32_nor_the_other_aim_is_predicted_faster(seed):
    model = small_net(seed)
    base = choose_policy(Request(level="auto"))
    times = {}
    for objective in ("time", "low"):
        policy = dataclasses.replace(base, objective=objective)
        program, ranges = amp.load(model), RangeFaults(policy.low)
        prepare(program, policy, ranges)
        times["float32"] = predict(program.model, find_device("H100"), fuse=True).milliseconds
        convert(program, policy, ranges)
        times[objective] = predict(program.model, find_device("H100"), fuse=True).milliseconds
    assert times["time"] <= (1 + module.LEAST_GAIN) * min(times.values())


def test_a_node_that_must_be_float32_is_priced_in_float32(monkeypatch):
    priced_low = []

    class Seen(module._Run):
        def __init__(self, choices, priced, plain, fixed):
            super().__init__(choices, priced, plain, fixed)
            priced_low.append({node.name for node in fixed})

    monkeypatch.setattr(module, "_Run", Seen)
    wide, model = choose_policy(Request(level="auto")), small_net(1)
    policy = dataclasses.replace(wide, objective="time", forced_high={"n0": Reason("update")})
    program = amp.load(model)
    prepare(program, policy, RangeFaults(policy.low))
    open_choices(program.model, policy)
    assert len(priced_low) == 1
    assert "n0" not in priced_low[0]
