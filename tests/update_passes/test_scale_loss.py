"""Dynamic loss scaling put into training steps that this project did not make."""

import dataclasses

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.roles import role_of
from amp_transpiler.graph.training_step import State, TrainingStep
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.precision.training.cotangents import NotLinear, find_cotangents
from amp_transpiler.update_passes import ScaleLoss
from amp_transpiler.update_passes.aids import add_training_aids
from amp_transpiler.update_passes.loss_scaling import ScalingRule
from amp_transpiler.update_passes.scale_loss import FIRST_SCALE
from foreign.networks import NETWORKS
from foreign.own_steps import saved
from foreign.torch_steps import TORCH_NETWORKS
from tests.passes.foreign import by_hand, converted, foreign_step, prepared, trained
from tests.precision.test_training_step_forms import STEPS
from tests.support import assert_valid, nodes, parse

FIRST = {
    "loss_scaling": np.array(FIRST_SCALE, np.float32),
    "num_good_steps": np.array(0, np.int32),
    "num_bad_steps": np.array(0, np.int32),
}


def scaled(program, **options):
    """Scale the loss of a prepared program, its step with it."""
    cotangents = find_cotangents(program.model.graph, program.step)
    program.step = run_pass(ScaleLoss(program.step, cotangents, **options), program.model).step
    program.touch()
    return cotangents


def prepared_step(network, optimizer):
    step = foreign_step(network, optimizer)
    return step, prepared(step.model, step.bindings)[0]


def without_loss(model):
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    outputs_left = [value for value in copy.graph.output if value.name != "loss"]
    del copy.graph.output[:]
    copy.graph.output.extend(outputs_left)
    return copy


def with_every_value(model):
    """Hand every float of the forward and backward pass out, the gradients and the scaled values among them."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    typed = {value.name: value for value in onnx.shape_inference.infer_shapes(copy).graph.value_info}
    floats = [v for v in typed.values() if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    copy.graph.output.extend(floats)
    return copy


SHAPES = {"as it is": lambda model: model, "no loss": without_loss, "every value": with_every_value}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_scaling_changes_no_number_in_float32(network, shape):
    """A power of two scales exactly: every output and state is bit for bit what it was."""
    step = foreign_step(network, "adam")
    model = SHAPES[shape](step.model)
    program, *_ = prepared(model, step.bindings)
    cotangents = scaled(program)
    assert_valid(program)
    assert len(cotangents.carriers) >= len(step.parameters)
    expected, outputs = [], []
    trained(model, step.bindings, step.start, step.data(3), 6, expected.append)
    trained(program.to_onnx(), program.step.bindings, {**step.start, **FIRST}, step.data(3), 6, outputs.append)
    for before_value, other in zip(expected, outputs, strict=True):
        for name, value in before_value.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)
    assert outputs[-1]["num_good_steps_new"] == 6


def assert_scaling_is_exact(step):
    program, *_ = prepared(step.model, {})
    cotangents = scaled(program)
    assert_valid(program)
    expected, outputs = [], []
    trained(step.model, step.bindings, step.start, step.data(3), 5, expected.append)
    trained(program.to_onnx(), program.step.bindings, {**step.start, **FIRST}, step.data(3), 5, outputs.append)
    for before_value, other in zip(expected, outputs, strict=True):
        for name, value in before_value.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)
    assert outputs[-1]["num_good_steps_new"] == 5
    return cotangents


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("network", TORCH_NETWORKS)
def test_the_gradient_of_the_loss_itself_is_scaled_in_steps_from_torch(network, exporter, exported_step):
    """`torch.func` begins with a gradient of one, which is a constant: it is the seed."""
    (seed,) = assert_scaling_is_exact(exported_step(network, exporter)).seeds
    assert constant_of(seed) is not None or seed.producer().op_type == "ConstantOfShape"


def test_our_own_steps_of_float32_programs_are_scaled(tmp_path):
    seeds = assert_scaling_is_exact(saved("fp32", tmp_path)).seeds
    assert [seed.producer().op_type for seed in seeds] == ["ScatterElements"]  # of one less at the labels


@pytest.mark.parametrize("name", ["O1", "O2"])
def test_our_own_steps_of_amp_are_scaled_already(name, tmp_path):
    step = saved(name, tmp_path)
    program, policy, _ = prepared(step.model, {}, level="O2")
    wishes = dataclasses.replace(policy.wishes, loss_scaling=True)
    before = len(program.step.states)
    assert not add_training_aids(program, dataclasses.replace(policy, wishes=wishes)).warnings
    assert program.step.loss_scale.startswith("loss_scaling")
    assert len(program.step.states) == before
    assert any("scales its loss already" in note for note in program.notes)


def start_of(row):
    """Draw a value for every input of a row: whole numbers are indices."""
    generator, arrays = np.random.default_rng(0), {}
    for value in row.model.graph.input:
        shape = [size.dim_value or 5 for size in value.type.tensor_type.shape.dim]
        is_index = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        drawn = generator.integers(0, 5, shape) if is_index else generator.normal(size=shape).astype(np.float32)
        arrays[value.name] = np.asarray(drawn)
    return arrays


UNUSUAL = {
    "one sample, gradients by outer products": ["d", "dr"],
    "a recurrent network whose hidden state goes on, too": ["d"],
    "two updates in one step": ["d1"],
    "a gradient at the point that momentum leads to": ["d"],
    "a factorization: tables alone": ["d"],
    "a loss that is linear in the last layer, and weights that are kept small": ["d"],
    "an adaptive filter: a scalar product, and no sum in its gradient": ["e"],
    "products by Einsum, heads apart": ["d"],
    "an average of the weights beside them": ["d"],
}


@pytest.mark.parametrize("row", [row for row in STEPS if row.name in UNUSUAL], ids=lambda row: row.name)
def test_unusual_steps_are_scaled_where_the_gradient_begins(row):
    values = start_of(row)
    program, *_ = prepared(row.model, {})
    bindings = program.step.bindings
    start = {name: values[name] for name in bindings}
    data = [{name: value for name, value in values.items() if name not in start}]
    cotangents = scaled(program)
    assert_valid(program)
    assert sorted(str(value.name) for value in cotangents.seeds) == UNUSUAL[row.name]
    expected, outputs = [], []
    trained(row.model, bindings, start, data, 4, expected.append)
    trained(program.to_onnx(), program.step.bindings, {**start, **FIRST}, data, 4, outputs.append)
    for before_value, other in zip(expected, outputs, strict=True):
        for name, value in before_value.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_a_step_with_a_scale_of_its_own_keeps_it():
    (row,) = [row for row in STEPS if row.name == "a loss scale of its own"]
    program, *_ = prepared(row.model, {})
    assert program.step.loss_scale == "scale"


@pytest.mark.parametrize("network", NETWORKS)
def test_every_gradient_is_scaled_where_it_begins(network):
    """All that the backward pass computes is `scale` times as large: one seed, right behind the loss."""
    _, program = prepared_step(network, "sgd")
    cotangents = scaled(program)
    (seed,) = cotangents.seeds
    assert seed.producer().op_type in ("Mul", "Div")
    (times,) = [use.node for use in seed.uses() if use.node.op_type == "Mul" and role_of(use.node) == "optimize"]
    assert {use.node for use in times.outputs[0].uses()} <= set(cotangents.carriers)
    assert all(role_of(node) == "optimize" for node in cotangents.before)


def bad(feed):
    """A batch whose gradients overflow."""
    return {name: np.full_like(value, 3e38) if name == "x" else value for name, value in feed.items()}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw_clipped", "lamb"])
def test_a_step_that_overflows_changes_nothing_but_the_scale(optimizer):
    """50 steps, of which the 20th and 21st overflow, against the source that does not take those two."""
    step, program = prepared_step("mlp", optimizer)
    scaled(program, rule=ScalingRule(12, 1, 2.0, 0.5))
    batches = step.data(50)
    batches[19], batches[20] = bad(batches[19]), bad(batches[20])
    outputs = []
    end = trained(program.to_onnx(), program.step.bindings, {**step.start, **FIRST}, batches, 50, outputs.append)
    for row in step.states:
        for index in (19, 20):
            np.testing.assert_array_equal(outputs[index][row.output], outputs[index - 1][row.output])
    expected = trained(step.model, step.bindings, step.start, batches[:19] + batches[21:], 48)
    for name, value in expected.items():
        np.testing.assert_array_equal(end[name], value, err_msg=name)
    scale, good, held = FIRST_SCALE, 0, []
    for index in range(50):  # Paddle's rule, in Python
        if index in (19, 20):
            scale, good = scale / 2, 0
        else:
            good += 1
            if good == 12:
                scale, good = scale * 2, 0
        held.append((scale, good))
    assert [(float(o["loss_scaling_new"]), int(o["num_good_steps_new"])) for o in outputs] == held


def test_statistics_of_a_bad_step_are_kept():
    """As in Paddle: the forward pass has updated them."""
    step = foreign_step("batch_norm", "sgd")
    program, *_ = prepared(step.model, {})
    scaled(program)
    (feed,) = step.data(1)
    outputs = []
    trained(program.to_onnx(), program.step.bindings, {**step.start, **FIRST}, [bad(feed)], 1, outputs.append)
    for row in step.states:
        same = np.array_equal(outputs[0][row.output], row.start)
        assert same == (row.role != "statistic"), row.input


def test_in_float16_gradients_that_would_vanish_train():
    """A loss of 1e-7 times the usual: its gradients are zero in float16, unless they are scaled."""
    step = foreign_step("gemm", "adam", rate=1e-3)
    model = onnx.ModelProto.FromString(step.model.SerializeToString())
    (divisor,) = [node.input[1] for node in model.graph.node if node.output[0] == next_seed(model)]
    for tensor in model.graph.initializer:
        if tensor.name == divisor:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(8e7).reshape(()), divisor))
    ways = {}
    exact = trained(model, step.bindings, step.start, step.data(3))
    for scales in (False, True):
        before = scaled if scales else lambda program: None
        program = converted(model, step.bindings, before=before)
        assert_valid(program)
        start = {**step.start, **FIRST} if scales else step.start
        end = trained(amp.emulate(program).to_onnx(), program.step.bindings, start, step.data(3))
        ways[scales] = np.linalg.norm(end["a"] - step.start["a"])
    way = np.linalg.norm(exact["a"] - step.start["a"])
    assert ways[True] == pytest.approx(way, rel=0.05)
    assert ways[False] < 0.5 * way


def next_seed(model):
    (difference,) = [node for node in model.graph.node if node.op_type == "Sub" and "softmax" in node.input[0]]
    (node,) = [node for node in model.graph.node if difference.output[0] in node.input]
    assert node.op_type == "Div"
    return node.output[0]


def test_the_scale_and_its_counters_are_states_with_initial_values():
    _, program = prepared_step("linear", "sgd")
    before = program.step
    scaled(program)
    added = program.step.states[len(before.states) :]
    assert [(state.input, state.output, state.role) for state in added] == [
        ("loss_scaling", "loss_scaling_new", "counter"),
        ("num_good_steps", "num_good_steps_new", "counter"),
        ("num_bad_steps", "num_bad_steps_new", "counter"),
    ]
    assert program.step.loss_scale == "loss_scaling"
    values = {value.name: value for value in program.model.graph.inputs}
    assert {name: float(values[name].const_value.numpy()) for name in FIRST} == {k: float(v) for k, v in FIRST.items()}


def test_names_that_are_taken_are_not_used_again():
    step = foreign_step("linear", "sgd")
    model = onnx.ModelProto.FromString(step.model.SerializeToString())
    for node in model.graph.node[:2]:
        node.output[:] = ["loss_scaling" if name == model.graph.node[0].output[0] else name for name in node.output]
    model.graph.node[1].input[0] = "loss_scaling"
    program, *_ = prepared(model, step.bindings)
    scaled(program)
    assert_valid(program)
    assert program.step.loss_scale == "loss_scaling_1"


def test_every_inserted_node_is_the_optimizers():
    _, program = prepared_step("transformer", "adam")
    before = {node.name for node in nodes(program)}
    scaled(program)
    assert all(role_of(node) == "optimize" for node in program.model.graph if node.name not in before)


# ---- where it cannot be proven ----

STEP = "(float[4,3] x, float[4,2] t, float[3,3] a, float[3,2] b) => (float[3,3] a_new, float[3,2] b_new, float loss)"
FORWARD = """
 z = MatMul(x, a) h = Tanh(z) y = MatMul(h, b) d = Sub(y, t) sq = Mul(d, d) loss = ReduceMean <keepdims = 0> (sq)
 ht = Transpose <perm = [1, 0]> (h) gb = MatMul(ht, d) bt = Transpose <perm = [1, 0]> (b) dh = MatMul(d, bt)"""
UPDATE = """
 xt = Transpose <perm = [1, 0]> (x) ga = MatMul(xt, dz)
 sa = Mul(ga, rate) a_new = Sub(a, sa) sb = Mul(gb, rate) b_new = Sub(b, sb)"""
LINEAR = "hh = Mul(h, h) slope = Sub(one, hh) dz = Mul(dh, slope)"
NOT_LINEAR = {
    "Clip": "hh = Mul(h, h) slope = Sub(one, hh) dw = Mul(dh, slope) dz = Clip(dw, low, one)",
    "Sign": "dz = Sign(dh)",
    "Mul": "dz = Mul(dh, dh)",
    "ReduceL2": "n = ReduceL2 <keepdims = 0> (dh) dz = Div(dh, n)",
    "Cast": "i = Cast <to = 6> (dh) dz = Cast <to = 1> (i)",
    "Round": "zero = ConstantOfShape(s) e = Add(dh, zero) dz = Round(e)",
    "Greater": "big = Greater(dh, low) dz = Where(big, dh, low)",
}


def written(between):
    model = parse(
        f"{STEP} {{ {FORWARD} {between} {UPDATE} }}",
        rate=np.float32(0.1),
        one=np.float32(1),
        low=np.float32(-1),
        s=np.array([4, 3], np.int64),
    )
    states = [State(input=name, output=f"{name}_new", role="parameter", reason="test") for name in "ab"]
    program, *_ = prepared(model, {})
    optimizes = [node.name for node in program.model.graph if node.outputs[0].name in ("sa", "sb", "a_new", "b_new")]
    return model, by_hand(program, optimizes, states, {"a": "ga", "b": "gb"})


@pytest.mark.parametrize("named", NOT_LINEAR)
def test_a_backward_pass_that_is_not_linear_is_named(named):
    _, program = written(NOT_LINEAR[named])
    before = program.to_onnx()
    with pytest.raises(NotLinear, match=named) as caught:
        find_cotangents(program.model.graph, program.step)
    assert caught.value.node.op_type == named
    assert program.to_onnx() == before


def test_a_backward_pass_by_hand_is_proven():
    model, program = written(LINEAR)
    cotangents = scaled(program)
    assert [seed.name for seed in cotangents.seeds] == ["d"]
    assert_valid(program)
    feeds = {name: np.random.default_rng(0).normal(size=s).astype(np.float32) for name, s in SIZES.items()}
    start = {name: feeds.pop(name) for name in "ab"}
    bindings = {"a": "a_new", "b": "b_new"}
    expected = trained(model, bindings, start, [feeds], 5)
    end = trained(program.to_onnx(), program.step.bindings, {**start, **FIRST}, [feeds], 5)
    for name, value in expected.items():
        np.testing.assert_array_equal(end[name], value)


SIZES = {"x": (4, 3), "t": (4, 2), "a": (3, 3), "b": (3, 2)}


def test_without_gradients_there_is_nothing_to_scale():
    _, program = written(LINEAR)
    with pytest.raises(NotLinear, match="no gradient is known"):
        find_cotangents(program.model.graph, TrainingStep(program.step.states))
