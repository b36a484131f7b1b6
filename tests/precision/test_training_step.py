"""A training step that somebody else wrote: its states are found by dataflow, and its optimizer stays float32."""

import pathlib

import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import fitted, prepare
from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.roles import role_of
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.precision.reasons import reason_of
from amp_transpiler.precision.training import find_training_step
from amp_transpiler.systems.choice import Request, choose_policy
from foreign.library import BY_HAND, by_hand
from foreign.not_training import NOT_TRAINING
from foreign.own_steps import saved
from foreign.writer import anonymous

LINEAR = """
<ir_version: 9, opset_import: ["" : 18]>
step (float[N, 4] x, float[N, 3] y, float[4, 3] w, float[3] b) => (float loss, float[4, 3] w_new, float[3] b_new)
<float rate = {0.001}, int64[1] rows = {0}> {
    h = MatMul(x, w)
    p = Add(h, b)
    d = Sub(p, y)
    s = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(s)
    xt = Transpose(x)
    gw = MatMul(xt, d)
    gb = ReduceSum<keepdims = 0>(d, rows)
    uw = Mul(rate, gw)
    ub = Mul(rate, gb)
    w_new = Sub(w, uw)
    b_new = Sub(b, ub)
}
"""


def linear():
    return onnx.parser.parse_model(LINEAR)


def prepared(model, **request):
    program = load(model)
    policy = fitted(choose_policy(Request(**request)), program)
    prepare(program, policy, RangeFaults(policy.low, strict=False))
    return program


@pytest.mark.parametrize(("network", "optimizer"), BY_HAND)
def test_every_state_of_a_foreign_step_is_found_whatever_it_is_called(network, optimizer):
    step = anonymous(by_hand(network, optimizer))
    step_roles = prepared(step.model).step
    assert {(s.input, s.output, s.role) for s in step_roles.states} == {
        (s.input, s.output, s.role) for s in step.states
    }
    assert step_roles.gradients.keys() == {s.input for s in step.states if s.role == "parameter"}


@pytest.mark.parametrize("row", NOT_TRAINING, ids=lambda row: row.name)
def test_what_only_looks_alike_is_not_a_training_step(row):
    assert prepared(row.model()).step is None


@pytest.mark.parametrize("network", ["mlp", "batch_norm"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw_clipped", "flattened"])
def test_named_states_have_the_roles_that_they_would_have_anyway(network, optimizer):
    step = by_hand(network, optimizer)
    step_roles = find_training_step(prepared(step.model).model, step.bindings)
    assert {(s.input, s.output, s.role) for s in step_roles.states} == {
        (s.input, s.output, s.role) for s in step.states
    }


def test_the_square_of_a_gradient_belongs_to_the_optimizer():
    """Without a batch a gradient is an elementwise product, and so is its square: both have the activation in them."""
    program = prepared(by_hand("unbatched", "adam").model, level="O2")
    squares = [n for n in program.model.graph if n.op_type == "Mul" and n.inputs[0] is n.inputs[1] and role_of(n)]
    ours = [node for node in squares if node.outputs[0].uses()[0].node.op_type == "Mul"]
    assert {role_of(node) for node in ours} == {"optimize"}
    assert all(len(names) == 1 for names in program.step.gradients.values())


def test_a_clipped_gradient_belongs_to_the_optimizer():
    program = prepared(by_hand("unbatched", "adamw_clipped").model, level="O2")
    producers = {value.name: node for node in program.model.graph for value in node.outputs}
    (root,) = [node for node in program.model.graph if node.op_type == "Min"]
    assert role_of(root) == "optimize"
    assert {producers[name].op_type for (name,) in program.step.gradients.values()} == {"Mul"}


def test_running_statistics_that_the_file_names_are_statistics(tmp_path):
    step = saved("fp32", tmp_path)
    roles = {state.input: state.role for state in prepared(step.model).step.states}
    assert {row.input: row.role for row in step.states if row.role == "statistic"}.items() <= roles.items()


def test_the_optimizer_begins_where_the_gradients_come_out():
    program = prepared(linear())
    assert program.step.gradients == {"w": ("gw",), "b": ("gb",)}
    marked = {node.outputs[0].name for node in program.model.graph if role_of(node) == "optimize"}
    assert marked == {"uw", "ub", "w_new", "b_new"}


REQUESTS = [
    *({"level": level, "dtype": dtype} for level in ("auto", "OD", "O1", "O2") for dtype in ("float16", "bfloat16")),
    *({"policy": policy} for policy in ("torch", "raf", "mxnet")),
    *({"preset": preset} for preset in ("mp1", "mp4", "default")),
    {"mixed_ops": "gemm"},
    {"target": "any"},
    {"target": "cpu"},
    {"level": "O2", "include": "."},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_updates_stay_float32_whatever_is_asked(request_):
    report = amp.transpile(linear(), verify=False, **request_, prefer="size")
    assert [(state.input, state.role) for state in report.states] == [("w", "parameter"), ("b", "parameter")]
    update = [row for row in report.decisions if reason_of(row.reason).code == "optimizer"]
    assert [row.precision for row in update] == ["high"] * 4
    assert report.low_nodes > 0


def test_a_named_state_needs_no_proof():
    text = LINEAR.replace("gw = MatMul(xt, d)", "c = CumSum(d, zero) gw = MatMul(xt, c)").replace(
        "{0.001}", "{0.001}, int64 zero = {0}"
    )
    report = amp.transpile(onnx.parser.parse_model(text), verify=False, state={"w": "w_new"})
    assert next(state for state in report.states if state.input == "w").reason == "named with --state"


WRONG_STATES = [
    ({"v": "w_new"}, "no input 'v'"),
    ({"w": "v"}, "no output 'v'"),
    ({"w": "b_new"}, "has the shape and type of its state"),
    ({"w": "w_new", "b": "w_new"}, "'b'"),
]


@pytest.mark.parametrize(("state", "said"), WRONG_STATES, ids=str)
def test_a_state_that_cannot_be_is_refused(state, said):
    with pytest.raises(OptionError, match=said):
        amp.transpile(linear(), state=state)


def test_master_weights_without_a_parameter_are_refused():
    model = next(row for row in NOT_TRAINING).model()
    with pytest.raises(OptionError, match="--state IN=OUT"):
        amp.transpile(model, master_weights=True)


def test_loss_scaling_is_for_float16():
    with pytest.raises(OptionError, match="bfloat16 has float32's range"):
        amp.transpile(linear(), dtype="bfloat16", loss_scaling=True)


@pytest.mark.parametrize(("dtype", "warned"), [("float16", True), ("bfloat16", False)])
def test_float16_gradients_may_underflow(dtype, warned):
    report = amp.transpile(linear(), dtype=dtype, verify=False, prefer="size")
    assert any("gradients" in warning for warning in report.warnings) == warned


@pytest.mark.parametrize("path", sorted(pathlib.Path("models").glob("*.onnx")), ids=lambda path: path.stem)
def test_models_that_predict_are_no_training_steps(path):
    assert prepared(path).step is None


LOW_STEP = """<ir_version: 10, opset_import: ["" : 21]>
    step (float16[8, 3] x, float16[8, 2] t, float16[3, 2] w) => (float16[3, 2] w_new) {
        y = MatMul(x, w) d = Sub(y, t) xt = Transpose(x) g = MatMul(xt, d) w_new = Sub(w, g)
    }"""


def test_masters_of_what_is_low_in_the_source_are_refused():
    with pytest.raises(OptionError, match="--master-weights: parameter 'w' is float16 in the source"):
        amp.transpile(onnx.parser.parse_model(LOW_STEP), level="O2", master_weights=True)


@pytest.mark.parametrize(("disable", "warned"), [((), True), (("",), False)])
def test_float16_gradients_are_warned_of_where_something_is_low(disable, warned):
    model = onnx.parser.parse_model(LOW_STEP.replace("float16", "float"))
    report = amp.transpile(model, level="O2", disable_amp=disable, verify=False)
    assert (report.low_nodes > 0) == warned
    assert any("gradients are computed in float16" in text for text in report.warnings) == warned
