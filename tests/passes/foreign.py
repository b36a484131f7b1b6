"""Training steps that somebody else wrote, with their states and roles known, for tests of passes."""

import dataclasses

import numpy as np

import amp_transpiler as amp
from amp_transpiler.conversion import convert, prepare
from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.training import TrainingWishes
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.update_passes.aids import add_training_aids
from foreign.networks import NETWORKS
from foreign.optimizers import OPTIMIZERS
from foreign.writer import Writer
from tests.support import open_ort


def foreign_step(network, optimizer, rate=1e-2):
    """Write a step of a network and an optimizer."""
    writer = Writer()
    gradients = NETWORKS[network](writer)
    OPTIMIZERS[optimizer](writer, gradients, rate)
    return writer.step(gradients.batch, gradients.loss)


def by_hand(program, optimizes, states, gradients):
    """Set states and roles as the author of a step knows them."""
    for node in program.model.graph.all_nodes():
        if node.name in optimizes:
            node.metadata_props[ROLE_KEY] = "optimize"
    program.step = TrainingStep(tuple(states), {name: (value,) for name, value in gradients.items()})
    return program


def prepared(model, bindings, **request):
    """Load and prepare a step whose states are named; return it, its policy and its ranges."""
    policy = choose_policy(Request(**request))
    policy = dataclasses.replace(policy, wishes=TrainingWishes(state=bindings))
    ranges = RangeFaults(policy.low, strict=policy.strict_ranges)
    program = amp.load(model)
    prepare(program, policy, ranges)
    return program, policy, ranges


def converted(model, bindings, low_io=(), before=lambda program: None, masters=True, **request):
    """Prepare a step whose states are named, let `before` edit it, make its states low and convert it."""
    program, policy, ranges = prepared(model, bindings, level="O2", **request)
    before(program)
    wishes = dataclasses.replace(policy.wishes, master_weights=masters)
    policy = dataclasses.replace(policy, low_io=frozenset(low_io), wishes=wishes)
    convert(program, add_training_aids(program, policy).policy, ranges)
    return program


def trained(model, bindings, start, batches, count=50, watch=lambda outputs: None):
    """Run a step `count` times, its states fed back; return the last state."""
    session, state = open_ort(model), dict(start)
    names = [info.name for info in session.get_outputs()]
    kinds = {info.name: info.type for info in (*session.get_inputs(), *session.get_overridable_initializers())}
    for index in range(count):
        feed = {**state, **batches[index % len(batches)]}
        feed = {name: value.astype(np.float16) if "float16" in kinds[name] else value for name, value in feed.items()}
        outputs = dict(zip(names, session.run(None, feed), strict=True))
        watch(outputs)
        state = {old: outputs[new] for old, new in bindings.items()}
    return state
