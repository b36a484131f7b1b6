"""Float32 masters of low parameters, in training steps that this project did not make."""

import dataclasses
import json

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import convert
from amp_transpiler.graph.training_step import UPDATES_KEY, State
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.systems.choice import Request, choose_policy
from amp_transpiler.update_passes import InsertMasters
from amp_transpiler.update_passes.aids import add_training_aids
from tests.passes.foreign import by_hand, converted, foreign_step, prepared, trained
from tests.precision.test_training_step_forms import STEPS
from tests.support import assert_valid, dtype_of

BY_HAND = [
    ("linear", "sgd"),
    ("mlp", "adamw_clipped"),
    ("mlp", "flattened"),
    ("conv", "momentum"),
    ("embedding", "lamb"),
]


def way(start, end, names):
    return np.concatenate([(end[name].astype(np.float64) - start[name]).ravel() for name in names])


@pytest.mark.parametrize(("network", "optimizer"), BY_HAND)
def test_low_parameters_learn_as_far_as_float32_ones(network, optimizer):
    """At this rate most updates are smaller than half a unit in the last place of float16."""
    step = foreign_step(network, optimizer, rate=1e-4)
    low = [name for row in step.states if row.role == "parameter" for name in (row.input, row.output)]
    program = converted(step.model, step.bindings, low)
    assert_valid(program)
    trained_step, batches = program.step, step.data(3)
    masters = {state.input: state.master for state in trained_step.parameters}
    assert all(masters.values())
    assert {dtype_of(program, name) for name in low} == {"FLOAT16"}
    assert {dtype_of(program, name) for name in masters.values()} == {"FLOAT"}
    start = {**step.start, **{master: step.start[name] for name, master in masters.items()}}
    exact = trained(step.model, step.bindings, step.start, batches)
    low_state = trained(amp.emulate(program).to_onnx(), trained_step.bindings, start, batches)
    expected = way(step.start, exact, masters)
    moved = way(step.start, {name: low_state[master] for name, master in masters.items()}, masters)
    assert np.linalg.norm(moved - expected) < 0.05 * np.linalg.norm(expected)
    for name, master in masters.items():
        np.testing.assert_array_equal(low_state[name], low_state[master].astype(np.float16))


def test_without_masters_low_parameters_stand_still():
    step = foreign_step("linear", "sgd", rate=1e-5)
    program = converted(step.model, step.bindings, ["a", "b"], masters=False)
    exact = trained(step.model, step.bindings, step.start, step.data(3))
    start = {name: value.astype(np.float16) for name, value in step.start.items()}
    end = trained(amp.emulate(program).to_onnx(), step.bindings, start, step.data(3))
    assert np.linalg.norm(way(step.start, exact, "a")) > 0
    assert np.linalg.norm(way(start, end, "a")) < 0.5 * np.linalg.norm(way(step.start, exact, "a"))


def test_a_program_with_masters_computes_the_same_in_float32():
    step = foreign_step("mlp", "adam")
    program, *_ = prepared(step.model, step.bindings)
    result = run_pass(InsertMasters(program.step, ["a", "c"]), program.model)
    assert (result.count, result.modified) == (2, True)
    start = {**step.start, "a_fp32_master_0": step.start["a"], "c_fp32_master_0": step.start["c"]}
    losses_low = trained(program.to_onnx(), result.step.bindings, start, step.data(3))
    for name, value in trained(step.model, step.bindings, step.start, step.data(3)).items():
        np.testing.assert_array_equal(losses_low[name], value)
    assert [state.master for state in result.step.parameters] == ["a_fp32_master_0", "", "c_fp32_master_0", ""]


def test_the_record_of_states_names_masters_and_goes_to_the_file():
    step = foreign_step("linear", "momentum")
    program = converted(step.model, step.bindings, ["a"])
    added = State(
        input="a_fp32_master_0",
        output="a_new_fp32_master_0",
        role="moment",
        reason="the float32 master weights of 'a'",
    )
    assert program.step.states[-1] == added
    written = json.loads(program.to_onnx().metadata_props[0].value)
    assert program.model.metadata_props[UPDATES_KEY] == json.dumps(written)
    assert written == {**step.bindings, added.input: added.output}
    assert dtype_of(program, "a_new") == "FLOAT16", "an output becomes low with its input"


def test_moments_stay_float32_with_a_note():
    step = foreign_step("linear", "adam")
    names = [name for row in step.states for name in (row.input, row.output)]
    program = converted(step.model, step.bindings, names)
    assert {dtype_of(program, row.input) for row in step.states if row.role != "parameter"} == {"FLOAT"}
    assert any("stay float32" in note and "m_a (moment)" in note for note in program.notes)


def test_masters_start_from_the_unrounded_values():
    step = foreign_step("linear", "sgd")
    model = onnx.ModelProto()
    model.CopyFrom(step.model)
    model.graph.initializer.append(onnx.numpy_helper.from_array(step.start["a"], "a"))
    program = converted(model, step.bindings, ["a"])
    assert_valid(program)
    values = {value.name: value.const_value for value in program.model.graph.inputs if value.const_value is not None}
    np.testing.assert_array_equal(values["a_fp32_master_0"].numpy(), step.start["a"])
    np.testing.assert_array_equal(values["a"].numpy(), step.start["a"].astype(np.float16))


def test_a_taken_name_is_not_used_again():
    step = foreign_step("linear", "sgd")
    model = onnx.ModelProto()
    model.CopyFrom(step.model)
    model.graph.node[0].output[0] = "a_fp32_master_0"
    model.graph.node[1].input[0] = "a_fp32_master_0"
    program = converted(model, step.bindings, ["a"])
    assert_valid(program)
    assert program.step.states[0].master == "a_fp32_master_0_1"


def test_a_second_time_there_is_nothing_to_do():
    step = foreign_step("mlp", "flattened")
    program, *_ = prepared(step.model, step.bindings)
    gradients = step.parameters
    first = run_pass(InsertMasters(program.step, gradients), program.model)
    again = run_pass(InsertMasters(first.step, gradients), program.model)
    # Nor if the record of the masters is lost: the update does not read the parameters any more.
    lost = run_pass(InsertMasters(program.step, gradients), program.model)
    assert [first.count, again.count, lost.count] == [len(gradients), 0, 0]


SPLIT = """
<ir_version: 10, opset_import: ["": 18]>
step (float[2,3] x, float[6] w, float[3,2] g) => (float[2,2] y, float[6] w_new)
<int64[2] s = {3, 2}, int64[1] f = {-1}> {
    [flat] m = Reshape(w, s)
    [product] y = MatMul(x, m)
    [update] n = Sub(m, g)
    [back] w_new = Reshape(n, f)
}"""


def test_a_movement_that_both_passes_read_is_split():
    """`Reshape(w)` goes to the matrix product and to the update: the update gets a copy that reads the master."""
    state = State(input="w", output="w_new", role="parameter", reason="test")
    program = by_hand(amp.load(onnx.parser.parse_model(SPLIT)), ("update", "back"), [state], {})
    policy = dataclasses.replace(choose_policy(Request(level="O2")), low_io=frozenset(["w"]))
    convert(program, add_training_aids(program, policy).policy, RangeFaults(policy.low))
    assert_valid(program)
    w, small = np.full(6, 0.1, np.float32), np.float32(1e-6)
    feeds = {"x": np.ones((2, 3), np.float32), "g": np.full((3, 2), small)}
    start = {"w": w.astype(np.float16), "w_fp32_master_0": w}
    losses_low = trained(amp.emulate(program).to_onnx(), program.step.bindings, start, [feeds], 1)
    np.testing.assert_array_equal(losses_low["w_fp32_master_0"], w - small)
    np.testing.assert_array_equal(losses_low["w"], w.astype(np.float16))


def test_a_table_that_rows_are_added_to_in_place_gets_a_master():
    (row,) = [row for row in STEPS if row.name == "a factorization: tables alone"]
    program = converted(row.model, {}, ["u", "v"])
    assert_valid(program)
    assert [state.master for state in program.step.parameters] == ["u_fp32_master_0", "v_fp32_master_0"]
    scatters = [node for node in program.model.graph if node.op_type == "ScatterND"]
    assert [node.inputs[0].name for node in scatters] == ["u_fp32_master_0", "v_fp32_master_0"]
