"""A call that fails leaves the programs, the optimizer and the name counters as they were."""

import numpy as np
import pytest
from amp_transpiler.nn import functional
from amp_transpiler.utils import unique_name

import amp_transpiler as amp
from amp_transpiler import static, tensor
from tests.paddle.nets import CPU

WRAPPINGS = {
    "plain": {},
    "O1": {"level": "O1"},
    "O2 bfloat16": {"level": "O2", "dtype": "bfloat16"},
}


def state_of(program):
    """Everything that a program is, in comparable form."""
    graph = program.model.graph
    return {
        "nodes": [
            (n.name, n.op_type, [i and i.name for i in n.inputs], dict(n.metadata_props), str(n.attributes))
            for n in graph
        ],
        "values": [(v.name, str(v.dtype), str(v.shape)) for n in graph for v in n.outputs],
        "inputs": [(v.name, str(v.dtype), str(v.shape)) for v in graph.inputs],
        "constants": {name: value.const_value.tobytes() for name, value in graph.initializers.items()},
        "graph outputs": [v.name for v in graph.outputs],
        "versions": (program.model.ir_version, dict(graph.opset_imports)),
        "persistables": dict(program.persistables),
        "updates": dict(program.updates),
        "outputs": list(program.outputs),
        "no_gradient": set(program.no_gradient),
        "notes": list(program.notes),
    }


class Trial:
    """A small network whose training can be made to fail."""

    def __init__(self, wrapping):
        self.main, self.startup = static.Program(), static.Program()
        with static.program_guard(self.main, self.startup):
            x, label = static.data("x", [None, 4]), static.data("label", [None, 1], "int64")
            hidden = static.nn.batch_norm(static.nn.fc(x, 6, activation="relu"))
            self.hidden = functional.dropout(hidden, 0.1)
            self.logits = static.nn.fc(self.hidden, 3)
            self.loss = tensor.mean(functional.cross_entropy(self.logits, label))
            self.half = self.loss.astype("float16").astype("float32")
        self.inner = amp.optimizer.Adam(1e-3)
        self.optimizer = static.amp.decorate(self.inner, **WRAPPINGS[wrapping]) if WRAPPINGS[wrapping] else self.inner

    def state(self):
        """Everything that a failed call might have changed."""
        restore = unique_name.remember()
        probes = [unique_name.generate(key) for key in ("loss_scaling", "learning_rate", "fc", "num_good_steps")]
        restore()
        with static.program_guard(self.main, self.startup):
            attributes = {id(o): dict(vars(o)) for o in (self.optimizer, self.inner)}
        masters = dict(self.inner.master_weights)
        return state_of(self.main), state_of(self.startup), probes, attributes, masters

    def minimize(self, loss, **arguments):
        with static.program_guard(self.main, self.startup):
            return self.optimizer.minimize(loss, **arguments)

    def backward(self, loss, **arguments):
        with static.program_guard(self.main, self.startup):
            return self.optimizer.backward(loss, **arguments)

    def last_losses(self, loss):
        """The losses of three steps."""
        executor, scope = static.Executor(CPU), static.Scope()
        executor.run(self.startup, scope=scope)
        if hasattr(self.optimizer, "amp_init"):
            self.optimizer.amp_init(CPU, scope)
        feed = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "label": np.array([[0], [1], [2]])}
        return [executor.run(self.main, feed=feed, fetch_list=[loss], scope=scope)[0].item() for _ in range(3)]


def not_differentiable(trial):
    """A loss behind an operator that has no gradient."""
    with static.program_guard(trial.main, trial.startup):
        return _with_det(trial.hidden)


def _with_det(variable, op_type="Det"):
    """Append nodes, the last of which has no gradient; or another operator, which does not fit."""
    builder = variable.program.builder()
    square = tensor.matmul(tensor.transpose(variable, [1, 0]), variable)
    return amp.Variable(variable.program, str(builder.op(op_type, [square.value]).name))


def two_elements(trial):
    with static.program_guard(trial.main, trial.startup):
        return tensor.sum(trial.logits, axis=0)


def of_no_parameter(trial):
    with static.program_guard(trial.main, trial.startup):
        return tensor.mean(trial.main.var("x"))


FAULTS = {"no gradient": not_differentiable, "no scalar": two_elements, "no parameter": of_no_parameter}


@pytest.mark.parametrize("call", ["minimize", "backward"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_loss_that_cannot_be_minimized_changes_nothing(wrapping, fault, call):
    trial = Trial(wrapping)
    loss = FAULTS[fault](trial)
    before = trial.state()
    with pytest.raises((amp.InputError, amp.ModelError)):
        getattr(trial, call)(loss)
    assert trial.state() == before


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_second_minimize_changes_nothing(wrapping):
    trial = Trial(wrapping)
    trial.minimize(trial.loss)
    before = trial.state()
    with pytest.raises(amp.InputError, match="updated by this program already"):
        trial.minimize(trial.half)
    assert trial.state() == before
    assert len(set(trial.last_losses(trial.loss))) > 1


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_after_a_failure_minimize_gives_the_program_that_it_gives_at_once(wrapping):
    programs = []
    for fails_first in (True, False):
        with unique_name.guard():
            trial = Trial(wrapping)
            loss = not_differentiable(trial)
            if fails_first:
                with pytest.raises(amp.ModelError):
                    trial.minimize(loss)
            trial.minimize(trial.loss)
        programs.append((state_of(trial.main), state_of(trial.startup), trial.last_losses(trial.loss)))
    assert programs[0] == programs[1]


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_failure_in_the_update_takes_the_backward_pass_back_too(wrapping, monkeypatch):
    trial = Trial(wrapping)
    before = trial.state()
    calls = []

    def fails_at_the_second(update):
        calls.append(update)
        update.accumulator("half_done")
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(type(trial.inner), "_update", lambda self, update: fails_at_the_second(update))
    with pytest.raises(KeyboardInterrupt):
        trial.minimize(trial.loss)
    assert len(calls) == 2
    assert trial.state() == before


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_failure_in_apply_gradients_keeps_the_backward_pass(wrapping, monkeypatch):
    trial = Trial(wrapping)
    pairs = trial.backward(trial.loss)
    before = trial.state()
    with monkeypatch.context() as patch, static.program_guard(trial.main, trial.startup):
        patch.setattr(type(trial.inner), "_update", lambda self, update: _with_det(trial.main.var("x"), "MatMul"))
        with pytest.raises(amp.ModelError):
            trial.optimizer.apply_gradients(pairs)
    assert trial.state() == before
    with static.program_guard(trial.main, trial.startup):
        trial.optimizer.apply_gradients(pairs)
    assert len(set(trial.last_losses(trial.loss))) > 1


def test_gradients_that_cannot_be_computed_change_nothing():
    trial = Trial("plain")
    loss = not_differentiable(trial)
    before = trial.state()
    with pytest.raises(amp.ModelError), static.program_guard(trial.main, trial.startup):
        static.gradients([loss], [trial.hidden])
    assert trial.state() == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"level": "O7"},
        {"policy": "nobody"},
        {"scaler": "nobody", "fp32_params": True},
        {"weight_grad_reduce": "half", "fp32_params": True},
        {"incr_ratio": -1.0, "fp32_params": True},
        {"fp32_params": True, "policy": "torch", "level": "O2"},
        {"master_weight": False, "fp32_params": True},
    ],
)
def test_a_decoration_that_is_refused_leaves_the_optimizer_as_it_was(arguments):
    optimizer = amp.optimizer.Momentum(0.1)
    before = dict(vars(optimizer))
    with pytest.raises(amp.OptionError):
        static.amp.decorate(optimizer, **arguments)
    assert vars(optimizer) == before


def test_variables_made_before_a_failure_are_fetched_after_it():
    trial = Trial("O2 bfloat16")
    with pytest.raises(amp.ModelError):
        trial.minimize(not_differentiable(trial))
    [loss, half] = [
        static.Executor(CPU).run(
            trial.main,
            feed={"x": np.ones((2, 4), np.float32), "label": np.zeros((2, 1), np.int64)},
            fetch_list=[variable],
            scope=_started(trial),
        )[0]
        for variable in (trial.loss, trial.half)
    ]
    assert loss.dtype == half.dtype == np.float32


def _started(trial):
    scope = static.Scope()
    static.Executor(CPU).run(trial.startup, scope=scope)
    return scope
