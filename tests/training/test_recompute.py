"""`Executor(recompute=True)`: the same training, to the bit, with fewer bytes kept for the backward pass."""

import functools

import numpy as np
import pytest
from amp_transpiler.nn import functional
from amp_transpiler.utils import unique_name

import amp_transpiler as amp
from amp_transpiler import paddle, static, tensor
from amp_transpiler.paddle.incubate.optimizer import RecomputeOptimizer
from amp_transpiler.runtime.liveness import kept_bytes

ROWS = 32
FEED = {
    "x": np.random.default_rng(1).normal(size=(ROWS, 3, 8, 8)).astype(np.float32),
    "label": np.arange(ROWS)[:, None] % 5,
}


def built(level, wrapped=lambda optimizer: optimizer):
    """Convolution, normalisations, activations, dropout and attention's softmax; returns programs and loss."""
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = 7
    with static.program_guard(main, startup), unique_name.guard():
        image, label = static.data("x", [ROWS, 3, 8, 8]), static.data("label", [ROWS, 1], "int64")
        h = functional.relu(static.nn.batch_norm(static.nn.conv2d(image, 16, 3, padding=1)))
        h = functional.dropout(functional.gelu(static.nn.conv2d(h, 16, 3, padding=1)), 0.25)
        h = static.nn.layer_norm(tensor.reshape(h, [ROWS, 16, 64]), begin_norm_axis=2)
        h = tensor.matmul(functional.softmax(tensor.matmul(h, h, transpose_y=True)), functional.sigmoid(h))
        logits = static.nn.fc(tensor.reshape(h, [ROWS, 1024]), 5)
        loss = tensor.mean(functional.cross_entropy(logits.astype("float32"), label))
        optimizer = amp.optimizer.Adam(1e-2, multi_precision=level == "O2")
        if level:
            optimizer = static.amp.decorate(optimizer, level=level)
        wrapped(optimizer).minimize(loss)
    return main, startup, loss


@functools.cache
def plain(level):
    """Return a program that asks for nothing, and what it gives: losses, values, and the bytes that are kept."""
    program = built(level)
    return program, *trained(program, False), kept_bytes(program[0], [program[2].name])


def trained(program, recompute):
    main, startup, loss = program
    scope, executor = static.Scope(), static.Executor(amp.CPUPlace(), recompute=recompute)
    executor.run(startup, scope=scope)
    losses = [executor.run(main, feed=FEED, fetch_list=[loss], scope=scope)[0] for _ in range(3)]
    return losses, {name: scope[name] for name in scope}


@pytest.mark.parametrize("level", [None, "O1", "O2"])
def test_training_is_the_same_to_the_bit(level):
    program, losses, values, _ = plain(level)
    again, others = trained(program, True)
    np.testing.assert_array_equal(losses, again)
    assert losses[0] != losses[2]
    assert values.keys() == others.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(value, others[name], err_msg=name)


@pytest.mark.parametrize("level", [None, "O1", "O2"])
def test_fewer_bytes_are_kept(level):
    (main, _, loss), _, _, held = plain(level)
    assert kept_bytes(main, [loss.name], recompute=True) < 0.75 * held


def by_fleet(optimizer):
    strategy = paddle.distributed.fleet.DistributedStrategy()
    strategy.recompute, strategy.recompute_configs = True, {"checkpoints": ["h"]}
    return paddle.distributed.fleet.distributed_optimizer(optimizer, strategy)


def merged_by_fleet(optimizer):
    strategy = paddle.distributed.fleet.DistributedStrategy()
    strategy.recompute = strategy.gradient_merge = True
    return paddle.distributed.fleet.distributed_optimizer(optimizer, strategy)


def with_checkpoints(optimizer):
    recomputing = RecomputeOptimizer(optimizer)
    recomputing._set_checkpoints(["h"])
    return recomputing


class InTwoSteps:
    """`backward`, then `apply_gradients`."""

    def __init__(self, optimizer):
        self.optimizer = RecomputeOptimizer(optimizer)

    def minimize(self, loss):
        self.optimizer.apply_gradients(self.optimizer.backward(loss))


WRAPPED = {
    "optimizer": RecomputeOptimizer,
    "checkpoints": with_checkpoints,
    "two steps": InTwoSteps,
    "fleet": by_fleet,
    "fleet, gradients merged": merged_by_fleet,
    "look ahead": lambda optimizer: paddle.incubate.LookAhead(RecomputeOptimizer(optimizer), alpha=1.0),
}


@pytest.mark.parametrize("level", [None, "O2"])
@pytest.mark.parametrize("name", WRAPPED)
def test_a_program_may_ask_for_it(name, level):
    _, losses, values, held_here = plain(level)
    main, _, loss = asking = built(level, WRAPPED[name])
    again, others = trained(asking, False)
    np.testing.assert_array_equal(losses, again)
    for held, value in values.items():
        np.testing.assert_array_equal(value, others[held], err_msg=held)
    assert kept_bytes(main, [loss.name]) < 0.75 * held_here
