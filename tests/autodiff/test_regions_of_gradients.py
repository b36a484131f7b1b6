"""Backward nodes are in the regions of their forward nodes, in every scope."""

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.graph.regions import DISABLE_AMP, FP16_GUARD, inside_region_of, region_of
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.walk import bodies
from amp_transpiler.paddle.framework.persistables import create_persistable
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Persistable
from tests.paddle import nets, text_nets
from tests.support import array

OFF, GUARD = frozenset([DISABLE_AMP]), frozenset([FP16_GUARD])
KINDS = {"disable_amp": amp.disable_amp, "fp16_guard": amp.fp16_guard}


def mean(main, x):
    return static.Variable(main, main.builder().mean(x.value, keepdims=False).name)


def step(region=amp.disable_amp):
    """A finished training step: fc outside of a region, fc inside, squared, SGD."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        h = static.nn.fc(static.data("x", [None, 8]), 8)
        with region():
            y = static.nn.fc(h, 8)
        loss = mean(main, y * y)
        optimizer.SGD(0.1).minimize(loss, startup)
    return main, startup, loss


def regions(program, op_type, role):
    return [region_of(node) for node in nets.nodes(program, op_type, role)]


CONVERTERS = {
    "autocast": amp.autocast,
    "convert_model": amp.convert_model,
    "transpile at O1": lambda main: amp.transpile(main, level="O1").program,
    "transpile at O2": lambda main: amp.transpile(main, level="O2").program,
    "transpile as torch": lambda main: amp.transpile(main, policy="torch").program,
}


@pytest.mark.parametrize("name", CONVERTERS)
def test_the_backward_pass_of_a_disabled_region_stays_high(name):
    main, _, _ = step()
    low = CONVERTERS[name](main)
    forward = {region_of(node): nets.works_in(node) for node in nets.nodes(low, "MatMul", "forward")}
    backward = [(region_of(node), nets.works_in(node)) for node in nets.nodes(low, "MatMul", "backward")]
    assert forward == {frozenset(): "FLOAT16", OFF: "FLOAT"}
    assert sorted(backward, key=str) == sorted([(OFF, "FLOAT"), (OFF, "FLOAT"), (frozenset(), "FLOAT16")], key=str)
    high = [node for node in nets.nodes(low, role="backward") if region_of(node) == OFF and node.op_type != "Cast"]
    assert {kind for node in high for kind in (*nets.reads(node), *nets.makes(node))} & {"FLOAT16"} == set()


def test_only_the_backward_pass_of_what_is_guarded_is_low():
    main, _, _ = step(amp.fp16_guard)
    low = amp.transpile(main, level="O2", guard="^MatMul_1$").program  # one that is guarded anyway
    products = [(role_of(node), nets.works_in(node), region_of(node)) for node in nets.nodes(low, "MatMul")]
    inside, outside = ("FLOAT16", GUARD), ("FLOAT", frozenset())
    assert products == [
        ("forward", *outside),
        ("forward", *inside),
        ("backward", *inside),
        ("backward", *inside),
        ("backward", *outside),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_computes_what_it_computed_without_regions(kind):
    losses_of = []
    for region in (KINDS[kind], inside_region_of):
        with unique_name.guard():
            main, startup, loss = step(region)
        assert all(not region_of(node) for node in nets.nodes(main, role="optimize"))
        net = nets.Net(main, startup, loss, None)
        net.executor.run(startup, scope=net.scope)
        for index, (name, value) in enumerate(sorted(net.scope.items())):
            net.scope[name] = array(*value.shape, seed=index) if value.ndim else value
        losses_of.append([net.step({"x": array(4, 8, seed=9)})[0] for _ in range(3)])
    np.testing.assert_array_equal(*losses_of)


SHARED = {
    # name: (regions of the two products of one weight, region of the sum of its gradients)
    "both inside": (("disable_amp", "disable_amp"), OFF),
    "one inside": (("disable_amp", None), frozenset()),
    "in two kinds": (("disable_amp", "fp16_guard"), frozenset()),
}


@pytest.mark.parametrize("name", SHARED)
def test_the_sum_of_gradients_of_a_shared_weight_is_where_all_its_readers_are(name):
    kinds, expected = SHARED[name]
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 4])
        w = create_persistable(Persistable("w", "parameter"), (4, 4), 0.5)
        for kind in kinds:
            with KINDS[kind]() if kind else inside_region_of():
                x = x @ w
        static.append_backward(mean(main, x))
    [total] = nets.nodes(main, "Add", "backward")
    assert region_of(total) == expected


def test_where_the_caller_is_counts_as_well():
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        with amp.fp16_guard():
            y = static.nn.fc(static.data("x", [None, 4]), 4)
        z = static.nn.fc(y, 4)
        loss = mean(main, z)
        with amp.disable_amp():
            static.append_backward(loss)
    assert set(regions(main, "MatMul", "backward")) == {OFF, OFF | GUARD}
    assert set(regions(main, "MatMul", "forward")) == {frozenset(), GUARD}


BRANCHES = """(float[n,4] x, bool c) => (float[n,4] y) {
    [before] h = MatMul (x, w0)
    [branch] b = If (c) <
        then_branch = t () => (float[n,4] p) { [inside] q = MatMul (h, w1) [beside] p = MatMul (q, w2) },
        else_branch = e () => (float[n,4] r) { [other] r = Identity (h) }
    >
    [after] y = MatMul (b, w3)
}"""


def branched(caller, **marks):
    """`BRANCHES` as a training step, nodes in the regions given; the caller of minimize is in `caller`."""
    weights = {f"w{i}": array(4, 4, seed=i, scale=0.5) for i in range(4)}
    program = amp.load(text_nets.parse(BRANCHES, opset=18, **weights))
    for kind, pattern in marks.items():
        amp.mark_region(program, kind, nodes=pattern)
    startup = static.Program()
    main = static.from_onnx(program, startup_program=startup)
    with static.program_guard(main, startup):
        loss = text_nets.squared_error(main, main.var("y"), static.data("target", [None, 4]))
        with caller:
            optimizer.SGD(0.1).minimize(loss, startup)
    return main


def in_branch(main):
    """Regions of the products in the backward `If`: the forward pass run again, and the gradients."""
    [node] = [node for node in main.model.graph if node.op_type == "If" and role_of(node) == "backward"]
    return [region_of(inner) for _, body in bodies(node) for inner in body if inner.op_type == "MatMul"]


NONE = frozenset()
IN_BRANCHES = {
    # name: (where minimize is called, marks, regions: inside run again, then gradients of beside (2) and of inside (2))
    "a node of a branch": (inside_region_of, {"disable_amp": "^inside$"}, [OFF, NONE, NONE, OFF, OFF]),
    "the If": (inside_region_of, {"disable_amp": "^branch$"}, [OFF] * 5),
    "one in the other": (
        inside_region_of,
        {"fp16_guard": "^branch$", "disable_amp": "^inside$"},
        [GUARD | OFF, GUARD, GUARD, GUARD | OFF, GUARD | OFF],
    ),
    "called in another": (
        amp.fp16_guard,
        {"disable_amp": "^inside$"},
        [OFF, GUARD, GUARD, GUARD | OFF, GUARD | OFF],
    ),
}


@pytest.mark.parametrize("name", IN_BRANCHES)
def test_gradients_in_branches_are_where_their_nodes_are(name):
    caller, marks, expected = IN_BRANCHES[name]
    main = branched(caller(), **marks)
    assert in_branch(main) == expected
    assert DISABLE_AMP not in frozenset().union(*(region_of(n) for n in main.model.graph if n.name == "after"))
