"""The library of foreign steps itself: its gradients are gradients, its steps train, its lookalikes run."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from foreign.library import BY_HAND, by_hand
from foreign.networks import NETWORKS
from foreign.not_training import NOT_TRAINING
from foreign.own_steps import OWN, saved
from foreign.training_info import with_training_info
from foreign.writer import anonymous
from tests.support import assert_close, open_ort, run

RATE = 1e-2


def steps(step, count):
    """Run a step with plain ONNX Runtime, its states fed back; return the losses and the last state."""
    session, state, losses = open_ort(step.model), step.start, []
    names = [info.name for info in session.get_outputs()]
    batches = step.data(3)
    for index in range(count):
        feed = batches[index % len(batches)]
        results = dict(zip(names, session.run(None, {**state, **feed}), strict=True))
        state = {row.input: results[row.output] for row in step.states}
        losses.append(float(results[step.loss]))
    return losses, state


@pytest.mark.parametrize("network", NETWORKS)
def test_the_gradients_are_gradients(network):
    step = by_hand(network, "sgd", rate=1.0)
    feed, start = step.data(1)[0], step.start
    results = run(step.model, {**start, **feed})
    for row in step.states:
        if row.role != "parameter":
            continue
        gradient = (row.start - results[row.output]).astype(np.float64)
        size = np.linalg.norm(gradient)
        direction = gradient / size
        width = 1e-2
        ends = [start | {row.input: (row.start + sign * width * direction).astype(np.float32)} for sign in (1, -1)]
        high, low = (float(run(step.model, {**end, **feed})[step.loss]) for end in ends)
        assert (high - low) / (2 * width) == pytest.approx(size, rel=0.02, abs=1e-4), row.input


@pytest.mark.parametrize(("network", "optimizer"), BY_HAND)
def test_every_step_trains(network, optimizer):
    losses, state = steps(by_hand(network, optimizer, RATE), 60)
    assert np.mean(losses[-9:]) < np.mean(losses[:9])
    assert all(np.isfinite(value).all() for value in state.values())


def test_names_say_nothing_about_an_anonymous_step():
    step = by_hand("mlp", "adam", RATE)
    hidden = anonymous(step)
    assert steps(hidden, 3)[0] == steps(step, 3)[0]
    names = {value.name for value in (*hidden.model.graph.input, *hidden.model.graph.output)}
    assert all(name[0] == "t" and name[1:].isdigit() for name in names)
    assert [value.name for value in hidden.model.graph.input] != [row.input for row in hidden.states]


@pytest.mark.parametrize("row", NOT_TRAINING, ids=lambda row: row.name)
def test_a_lookalike_runs_and_has_a_pair_that_could_be_state(row):
    model = row.model()
    inputs = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input}
    shapes = [[d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.output]
    assert any(shape in shapes for shape in inputs.values())
    integers = {v.name for v in model.graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.INT64}
    feeds = {name: np.full(shape, 0.1, np.float32) for name, shape in inputs.items()}
    feeds |= {name: np.zeros(inputs[name], np.int64) for name in integers}
    assert all(np.isfinite(value).all() for value in run(model, feeds).values())


@pytest.mark.parametrize("name", OWN)
def test_a_saved_program_trains(tmp_path, name):
    step = saved(name, tmp_path, 1e-2)
    session, state, losses = amp.Session(step.model, amp.CPUPlace()), step.start, []
    names = [value.name for value in step.model.graph.output]
    batches = step.data(3)
    for index in range(12):
        results = dict(zip(names, session.run({**state, **batches[index % 3]}), strict=True))
        state = {row.input: results[row.output] for row in step.states}
        losses.append(float(results[step.loss]))
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    roles = [row.role for row in step.states]
    assert roles.count("parameter") == 6
    assert roles.count("statistic") == 2


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_a_training_algorithm_beside_a_graph_is_the_same_step(network):
    step = by_hand(network, "adamw_clipped")
    model = with_training_info(step)
    onnx.checker.check_model(model, full_check=True)
    (info,) = model.training_info
    assert {entry.key: entry.value for entry in info.update_binding} == step.bindings
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for field in ("input", "output", "initializer", "node"):
        getattr(whole.graph, field).extend(getattr(info.algorithm, field))
    feed = step.data(1)[0]
    expected = run(step.model, {**step.start, **feed})
    results = run(whole, feed)
    assert_close(expected, {name: results[name] for name in expected}, 1e-6)
