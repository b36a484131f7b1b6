"""The check of training steps: what it finds on places with planted faults, and that good ones pass."""

from __future__ import annotations

import ctypes
import logging
import types
from typing import ClassVar

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.errors import InputError, OptionError, StepCheckFailed
from amp_transpiler.paddle.distributed import DataParallelExecutor
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime import step_check
from amp_transpiler.runtime.agreement import EVERYTHING, Gap, Limits, Value, decided_by_comparison, gap
from amp_transpiler.runtime.places import CPUPlace
from tests.runtime.capturing import CapturingPlace
from tests.runtime.test_step_graphs import captured

__all__ = ["captured"]  # a fixture

LIMITS = Limits(0.01, 0.02)


class Device(CPUPlace):
    """A CPU that multiplies float32 in TF32, as a device does: factors have 11 significant bits.

    One product of a step, or none, is off by `factor`.
    """

    product: ClassVar[int | None] = None
    factor: ClassVar[float] = 1.05

    def open_session(self, model, settings):
        return super().open_session(_in_tf32(model, self.product, self.factor), settings)


def _in_tf32(message, wrong, factor):
    proto = onnx.load_from_string(message)
    graph, nodes = proto.graph, []
    numbers = {"@split@": 2.0**13 + 1, "@factor@": factor}
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value, np.float32), name) for name, value in numbers.items()
    )
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm", "Conv") and not node.domain]
    for node in graph.node:
        nodes.append(node)
        if node not in products:
            continue
        nodes.pop()
        for index in range(2):
            value, name = node.input[index], f"{node.output[0]}@tf32_{index}"
            large, rest = f"{name}@large", f"{name}@rest"  # Veltkamp's way to round
            nodes.append(onnx.helper.make_node("Mul", [value, "@split@"], [large]))
            nodes.append(onnx.helper.make_node("Sub", [large, value], [rest]))
            nodes.append(onnx.helper.make_node("Sub", [large, rest], [name]))
            node.input[index] = name
        nodes.append(node)
        if wrong is not None and node is products[wrong % len(products)]:
            result, node.output[0] = node.output[0], f"{node.output[0]}@right"
            nodes.append(onnx.helper.make_node("Mul", [node.output[0], "@factor@"], [result]))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return proto.SerializeToString()


class _Faulty:
    """A session of which one run, or each, hands out other numbers."""

    def __init__(self, session, run, change):
        self._session, self._run, self._change, self.runs = session, run, change, 0

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run_with_iobinding(self, binding, options=None):
        self._session.run_with_iobinding(binding, options)
        self.runs += 1
        if self._run in (None, self.runs):
            for value in binding.get_outputs():
                if value.data_type() == "tensor(float)":
                    pointer = ctypes.cast(value.data_ptr(), ctypes.POINTER(ctypes.c_float))
                    numbers = np.ctypeslib.as_array(pointer, [value.tensor_size_in_bytes() // 4])
                    numbers[:] = self._change(numbers)


def faulty(run, change, place=Device):
    """A place on which a run of each session is wrong."""

    def open_session(self, model, settings):
        return _Faulty(place.open_session(self, model, settings), run, change)

    return types.new_class(
        f"Faulty{place.__name__}", (place,), {}, lambda body: body.update(open_session=open_session)
    )()


class Raw(CPUPlace):
    """A CPU that computes float16 in float32 and rounds little of it."""

    emulates_low = False


OPTIMIZERS = {
    "SGD": lambda low: optimizer.SGD(0.05),
    "Momentum": lambda low: optimizer.Momentum(0.05, 0.9, multi_precision=low),
    "Adam": lambda low: optimizer.Adam(1e-3, multi_precision=low),
    "AdamW": lambda low: optimizer.AdamW(1e-3, multi_precision=low),
}
LEVELS = [("fp32", "float32"), ("O1", "float16"), ("O2", "float16"), ("O1", "bfloat16"), ("O2", "bfloat16")]


class Net:
    """A small convolutional network with a normalisation, its executor and its scope."""

    def __init__(self, place, name="SGD", level="fp32", dtype="float16", *, build=None, scale=None, **options):
        self.main, startup = static.Program(), static.Program()
        self.main.random_seed = startup.random_seed = 3
        with amp.utils.unique_name.guard(), static.program_guard(self.main, startup):
            self.loss = (build or _network)()
            chosen = OPTIMIZERS[name](level == "O2")
            if level != "fp32":
                scaling = {} if scale is None else {"init_loss_scaling": scale, "use_dynamic_loss_scaling": True}
                chosen = static.amp.decorate(chosen, level=level, dtype=dtype, **scaling)
            chosen.minimize(self.loss, startup)
        self.scope, self.executor = static.Scope(), static.Executor(place, **{"check": True, **options})
        self.executor.run(startup, scope=self.scope)
        if hasattr(chosen, "amp_init"):
            chosen.amp_init(CPUPlace(), self.scope)
        self.random = np.random.default_rng(0)

    def step(self, *fetch):
        x = self.random.normal(size=(8, 1, 6, 6)).astype("f")
        feed = {"x": x, "y": self.random.integers(0, 4, (8, 1))}
        return self.executor.run(self.main, feed, [self.loss, *fetch], scope=self.scope)

    def state(self):
        return {name: self.scope[name] for name in self.scope}


def _network():
    x, y = static.data("x", [8, 1, 6, 6]), static.data("y", [8, 1], "int64")
    hidden = functional.relu(static.nn.batch_norm(static.nn.conv2d(x, 4, 3)))
    hidden = functional.relu(static.nn.fc(functional.max_pool2d(hidden, 2, 2), 16))
    return functional.cross_entropy(static.nn.fc(hidden, 4), y)


@pytest.fixture
def told(caplog):
    """What the check logs."""
    caplog.set_level(logging.INFO, "amp_transpiler.runtime")
    return lambda: [r.getMessage() for r in caplog.records if "emulation" in r.getMessage()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("level", "dtype"), LEVELS)
def test_a_device_that_rounds_otherwise_agrees_and_the_log_says_so_once(told, name, level, dtype):
    net = Net(Device(), name, level, dtype)
    for _ in range(6):
        net.step()
    [line] = told()
    assert line.startswith("3 steps of Program(")
    assert "agree with their emulation: loss and what is fetched within" in line


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_float16_without_rounding_agrees(told, level):
    net = Net(Raw(), "Momentum", level)
    for _ in range(6):
        net.step()
    assert "agree with their emulation" in told()[0]


def test_on_the_cpu_another_form_of_the_program_is_compared(told):
    net = Net(CPUPlace(), "Adam")
    for _ in range(4):
        net.step()
    assert "on CPU agree with their emulation: loss and what is fetched within" in told()[0]


def test_a_fault_of_the_second_run_alone_is_found_and_changes_nothing():
    net = Net(faulty(2, lambda numbers: numbers[::-1].copy()), "Adam")
    net.step()
    before = net.state()
    with pytest.raises(
        StepCheckFailed, match=r"run 2 of a step of .* on CPU contradicts its emulation on the CPU in \d"
    ):
        net.step()
    assert {name: array.tobytes() for name, array in net.state().items()} == {
        name: array.tobytes() for name, array in before.items()
    }


@pytest.mark.parametrize(("level", "dtype"), LEVELS)
def test_results_that_are_5_percent_too_large_are_found(level, dtype):
    net = Net(faulty(None, lambda numbers: numbers * np.float32(1.05)), "Adam", level, dtype)
    with pytest.raises(StepCheckFailed, match=r"run 1 .*expected .* \(norms\): size off by \+5\.0"):
        net.step()


@pytest.mark.parametrize("product", [0, 1, 2, 3])
@pytest.mark.parametrize(("level", "dtype"), LEVELS)
def test_a_kernel_that_is_5_percent_off_is_found(monkeypatch, product, level, dtype):
    monkeypatch.setattr(Device, "product", product)
    net = Net(Device(), "SGD", level, dtype, scale=256.0)  # nothing overflows
    with pytest.raises(StepCheckFailed, match=r"run 1 .*state '.*' went .* expected"):
        net.step()


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_numbers_that_are_not_finite_where_the_emulation_s_are_is_found(number):
    net = Net(faulty(2, lambda numbers: np.where(np.arange(numbers.size) == 0, np.float32(number), numbers)))
    net.step()
    with pytest.raises(StepCheckFailed, match="is not finite where it should be: 1 of"):
        net.step()


def test_after_three_steps_nothing_is_computed_twice():
    place = faulty(4, lambda numbers: numbers * 2)
    net = Net(place)
    for _ in range(5):
        net.step()


def test_steps_that_overflow_are_left_out_on_both_sides_and_do_not_count(told):
    net = Net(Device(), "SGD", "O1", scale=2.0**21)
    values = []
    for _ in range(12):
        net.step()
        values.append(told())
    [line] = values[-1]
    assert not values[3]
    assert line.startswith("3 steps of")
    assert "left all parameters as they were" in line


def test_dropout_draws_alike_and_is_compared(told):
    def build():
        x, y = static.data("x", [8, 1, 6, 6]), static.data("y", [8, 1], "int64")
        return functional.cross_entropy(static.nn.fc(functional.dropout(static.nn.fc(x, 32), 0.5), 4), y)

    net = Net(Device(), "Adam", build=build)
    for _ in range(3):
        net.step()
    assert "3 steps of" in told()[0]


def test_a_program_that_draws_by_itself_is_not_compared_and_the_log_says_why(told):
    def build():
        x, y = static.data("x", [8, 1, 6, 6]), static.data("y", [8, 1], "int64")
        hidden, b = static.nn.fc(x, 8), x.program.builder()
        noisy = static.Variable(x.program, str(b.add(hidden.value, b.op("RandomNormalLike", [hidden.value])).name))
        return functional.cross_entropy(static.nn.fc(noisy, 4), y)

    net = Net(Device(), build=build)
    for _ in range(2):
        net.step()
    [line] = told()
    assert "are not compared with their emulation: RandomNormalLike '" in line
    assert "draws other random numbers in each run" in line


def test_a_program_that_the_cpu_cannot_run_is_not_compared_and_the_log_says_why(told, monkeypatch):
    def refuse(*_, **__):
        raise InputError("no kernel")

    monkeypatch.setattr(step_check, "open_ready", refuse)
    Net(Device()).step()
    assert "are not compared with their emulation: its emulation cannot be opened (no kernel)" in told()[0]


def test_without_the_check_nothing_more_is_opened_and_a_fault_stays():
    net = Net(faulty(2, lambda numbers: numbers * 2), check=False)
    for _ in range(2):
        net.step()
    assert not hasattr(net.executor._steps, "_checks")


def test_each_session_is_checked_and_a_startup_program_is_not(told):
    net = Net(Device())
    assert not told()
    for _ in range(3):
        net.step()
    assert len(told()) == 1
    net.executor._steps.place.__class__.product = 0
    try:
        with pytest.raises(StepCheckFailed, match="run 1 "):
            net.step(net.main.all_parameters()[0])  # another session
    finally:
        Device.product = None


def test_graphs_are_checked_as_they_are_captured_and_as_they_are_repeated(captured, told):
    net = Net(CapturingPlace(), cuda_graph=True)
    for _ in range(5):
        net.step()
    assert captured
    assert not told()
    net.step()
    assert told()[0].startswith("6 steps of")


@pytest.mark.slow
def test_a_fault_of_a_repeated_graph_is_found(captured):
    net = Net(faulty(5, lambda numbers: numbers * 2, CapturingPlace), cuda_graph=True)
    for _ in range(4):
        net.step()
    with pytest.raises(StepCheckFailed, match="run 5 "):
        net.step()
    assert captured


def test_several_processes_refuse_the_check():
    with pytest.raises(OptionError, match="cannot be checked: run a few steps of the same program in one process"):
        DataParallelExecutor(check=True)


# ---- the rule ----


def test_what_comparisons_decide_is_not_judged_and_a_loss_is():
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x, y = static.data("x", [8, 4]), static.data("y", [8, 1], "int64")
        right = tensor.cast(tensor.equal(tensor.argmax(x, axis=1, keepdim=True), y), "float32")
        smooth = functional.relu(x)
    names = {"right": right.name, "smooth": smooth.name, "x": x.name}
    assert decided_by_comparison(main, names) == {"right"}


def state(new, old):
    return Value(np.array(new, np.float32), np.array(old, np.float32))


WAY = np.linspace(-1, 1, 101)
ROWS = [
    ("another size", WAY * 1.05, False),
    ("a size within the limits", WAY * 1.005, True),
    ("one sign", np.where(np.arange(101) == 0, 1.0, WAY), True),
    ("one wild element", np.where(np.arange(101) == 0, 30.0, WAY), False),
    ("another direction", WAY[::-1].copy(), False),
    ("no way at all", np.zeros(101), False),
    ("an infinity", np.where(np.arange(101) == 0, np.inf, WAY), False),
    ("the same", WAY, True),
]


@pytest.mark.parametrize(("change", "is_fine"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_how_far_a_state_may_be_off(change, is_fine):
    start = np.full(101, 2.0)
    assert gap(state(start + change, start), state(start + WAY, start)).within(LIMITS) == is_fine


def test_what_the_stored_number_cannot_show_is_no_difference():
    start = np.ones(8)
    last = np.full(8, 2.0**-23)
    assert gap(state(start + last, start), state(start, start)).within(LIMITS)
    assert not gap(state(start + 100 * last, start), state(start, start)).within(LIMITS)


def test_counters_are_equal_and_shapes_are_the_same():
    first, other = Value(np.array([3])), Value(np.array([4]))
    assert gap(first, first).within(LIMITS)
    assert gap(first, other).fault == "has 1 of 1 integers or booleans that differ"
    assert "has the shape [1], expected [2]" in gap(first, Value(np.array([3, 4]))).fault


def test_two_infinities_agree_and_a_finite_number_in_their_place_does_not():
    infinite, finite = Value(np.array([np.inf, 1.0])), Value(np.array([2.0, 1.0]))
    assert gap(infinite, infinite).within(LIMITS)
    assert gap(finite, infinite).fault == "is finite: 1 of 2 numbers"


@pytest.mark.parametrize(
    ("noise", "allowed"),
    [
        (Gap(size=0.01, distance=0.01), Limits(0.04, 0.04)),
        (Gap(size=0.0, distance=0.001), LIMITS),
        (Gap(size=0.0, distance=0.3), EVERYTHING),
        (Gap(fault="is not finite"), EVERYTHING),
    ],
)
def test_noise_widens_what_is_allowed(noise, allowed):
    assert noise.allowed_beside(LIMITS) == allowed
