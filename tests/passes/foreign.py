"""Training steps that somebody else wrote, with their states and roles known, for tests of passes."""

import dataclasses

import numpy as np

import amp_transpiler as amp
from amp_transpiler.conversion import convert, prepare
from amp_transpiler.graph.roles import ROLE_KEY
from amp_transpiler.graph.training_step import State, TrainingStep
from amp_transpiler.passes.training.low_states import make_states_low
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.systems.choice import Request, choose_policy
from foreign.networks import NETWORKS
from foreign.optimizers import OPTIMIZERS
from foreign.writer import Writer
from tests.support import open_ort


def foreign_step(network, optimizer, rate=1e-2):
    """Write a step; return it with the names of the optimizer's nodes and each parameter's gradient."""
    writer = Writer()
    gradients = NETWORKS[network](writer)
    border = len(writer.nodes)
    OPTIMIZERS[optimizer](writer, gradients, rate)
    nodes = [node.name for node in writer.nodes[border:]]
    return writer.step(gradients.batch, gradients.loss), nodes, dict(gradients.of)


def program_of(step, optimizer_nodes, gradients, model=None):
    """Load a step as a recognised one: states and roles as its author knows them."""
    program = amp.load(step.model if model is None else model)
    marked = set(optimizer_nodes)
    for node in program.model.graph.all_nodes():
        if node.name in marked:
            node.metadata_props[ROLE_KEY] = "optimize"
    states = [State(input=s.input, output=s.output, role=s.role, reason="test") for s in step.states]
    program.step = TrainingStep(tuple(states), {name: (value,) for name, value in gradients.items()})
    return program


def converted(program, low_io=(), before=lambda program: None, **request):
    """Prepare a recognised program, let `before` edit it, make its states low and convert it."""
    policy = choose_policy(Request(**request))
    ranges = RangeFaults(policy.low, strict=policy.strict_ranges)
    prepare(program, policy, ranges)
    before(program)
    policy = dataclasses.replace(policy, low_io=make_states_low(program, low_io))
    convert(program, policy, ranges)
    return program


def trained(model, bindings, start, batches, count=50, watch=lambda outputs: None):
    """Run a step `count` times, its states fed back; return the last state."""
    session, state = open_ort(model), dict(start)
    names = [info.name for info in session.get_outputs()]
    kinds = {info.name: info.type for info in session.get_inputs()}
    for index in range(count):
        feed = {**state, **batches[index % len(batches)]}
        feed = {name: value.astype(np.float16) if "float16" in kinds[name] else value for name, value in feed.items()}
        outputs = dict(zip(names, session.run(None, feed), strict=True))
        watch(outputs)
        state = {old: outputs[new] for old, new in bindings.items()}
    return state
