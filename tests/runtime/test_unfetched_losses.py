"""A training step whose loss is not fetched is lowered as the same step whose loss is."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.paddle.nn import functional
from amp_transpiler.program.assemble import assemble
from amp_transpiler.runtime.lowering import ready_to_open
from amp_transpiler.runtime.unfetched_losses import leave_out, unfetched_losses
from amp_transpiler.update_passes import CUDA_WORTH

FEED = {
    "x": np.random.default_rng(0).normal(size=(6, 4)).astype("f"),
    "label": np.array([[0], [1], [-100], [2], [4], [0]]),
    "gain": np.ones(1, "f"),
}


def network(level="fp32"):
    """Five classes, samples that are ignored, and a second output of one number, which alone reads a feed."""
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 1
    with amp.utils.unique_name.guard(), static.program_guard(main, startup):
        x, label = static.data("x", [6, 4]), static.data("label", [6, 1], "int64")
        scores = static.nn.fc(functional.relu(static.nn.fc(x, 8)), 5)
        loss = functional.cross_entropy(scores, label)
        shown = loss * static.data("gain", [1])
        chosen = optimizer.Momentum(0.1)
        if level != "fp32":
            chosen = amp.decorate(chosen, level=level, init_loss_scaling=64.0)
        chosen.minimize(loss, startup)
        main.outputs.append(shown.name)
    return main, startup, loss, shown


@pytest.mark.parametrize("level", ["fp32", "O1", "O2"])
def test_a_step_trains_alike_whether_its_loss_is_fetched_or_not(level):
    states = []
    for is_fetched in (True, False):
        main, startup, loss, _ = network(level)
        scope, executor = static.Scope(), static.Executor(amp.CPUPlace())
        executor.run(startup, scope=scope)
        for _ in range(3):
            executor.run(main, FEED, [loss] if is_fetched else [], scope=scope)
        states.append({name: scope[name].tobytes() for name in scope})
    assert states[0] == states[1]


def ready(program, fetch):
    losses = unfetched_losses(program, fetch)
    assembled = assemble(program, (*fetch, *losses))
    shapes = {name: array.shape for name, array in FEED.items()}
    lowered = ready_to_open(assembled, shapes, worth=CUDA_WORTH, tensor_cores=True)
    return losses, leave_out(lowered, losses)


def test_what_only_the_loss_needs_is_left_out():
    main, _, loss, _ = network()
    losses, step = ready(main, [])
    assert losses == (loss.name,)
    assert step.feeds == ("x", "label")
    assert step.fetches == {}
    assert {value.name for value in step.model.graph.outputs} == set(step.updates.values())
    # The samples that do not count are left out of the layer's inputs, as where the loss is fetched.
    assert [node.outputs[0].shape for node in step.model.graph if node.op_type == "Where"].count(ir.Shape([6, 5])) == 0


def test_a_loss_that_needs_another_feed_is_not_asked_for():
    main, startup, loss, shown = network()
    scope, executor = static.Scope(), static.Executor(amp.CPUPlace())
    executor.run(startup, scope=scope)
    executor.run(main, {name: FEED[name] for name in ("x", "label")}, [], scope=scope)
    assert unfetched_losses(main, [shown.name]) == (loss.name,)


def test_a_fetched_loss_stays():
    main, _, loss, shown = network()
    losses, step = ready(main, [shown.name])
    assert losses == (loss.name,)
    assert set(step.fetches) == {shown.name}
    assert step.feeds == ("x", "label", "gain")


def test_an_output_of_many_numbers_is_no_loss():
    main, _, loss, _ = network()
    [scores] = [value.name for value in main.list_vars() if value.shape == (6, 5)][-1:]
    main.outputs.append(scores)
    assert unfetched_losses(main, []) == (loss.name,)
    assert unfetched_losses(main.clone(for_test=True), []) == ()
