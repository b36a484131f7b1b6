"""`transpile` on training steps from elsewhere: low parameters with masters, and loss scaling."""

import functools

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from foreign.library import by_hand
from foreign.writer import anonymous
from tests.support import assert_valid, dtype_of, open_ort

LEVELS = [
    {"level": "auto"},
    {"level": "OD"},
    {"level": "O1"},
    {"level": "O2"},
    {"policy": "torch"},
    {"policy": "raf"},
    {"policy": "mxnet"},
    {"preset": "mp1", "dtype": "float16"},
    {"preset": "mp4", "dtype": "float16"},
    {"preset": "default", "dtype": "float16"},
]


def samples(step, count=3):
    return [{**step.start, **feed} for feed in step.data(count)]


def train(program, states, start, batches, count=50):
    """Run a program emulated, its states fed back; return the last state and the outputs of every step."""
    session, state, history = open_ort(amp.emulate(program).to_onnx()), dict(start), []
    names = [info.name for info in session.get_outputs()]
    types = {info.name: info.type for info in (*session.get_inputs(), *session.get_overridable_initializers())}
    for index in range(count):
        feed = {**state, **batches[index % len(batches)]}
        feed = {name: value.astype(np.float16) if "float16" in types[name] else value for name, value in feed.items()}
        outputs = dict(zip(names, session.run(None, feed), strict=True))
        state = {row.input: outputs[row.output] for row in states}
        history.append(outputs)
    return state, history


def way(start, end, names):
    return np.concatenate([(np.asarray(end[n], np.float64) - start[n]).ravel() for n in names])


@functools.cache
def trained_in_float32():
    """The step that every system trains, and the state that it ends in as it is."""
    step = anonymous(by_hand("mlp", "adamw_clipped", 1e-5))
    return step, train(amp.load(step.model), step.states, step.start, step.data(3))[0]


@pytest.mark.parametrize("options", LEVELS, ids=lambda options: "-".join(options.values()))
def test_every_system_trains_with_masters_and_a_scaled_loss(options):
    step, exact = trained_in_float32()
    report = amp.transpile(step.model, inputs=samples(step), keep_io_types=False, loss_scaling=True, **options)
    assert_valid(report.program)
    masters = {state.input: state.master for state in report.states if state.role == "parameter"}
    assert masters.keys() == set(step.parameters)
    assert all(dtype_of(report.program, master) == "FLOAT" for master in masters.values())
    assert {dtype_of(report.program, name) for name in masters} == {"FLOAT16"}
    others = {name: value for name, value in step.start.items() if name not in masters}
    start = {**step.start, **{master: step.start[name] for name, master in masters.items()}}
    end, _ = train(report.program, report.states, start, step.data(3))
    assert others
    moved = way(step.start, {name: end[master] for name, master in masters.items()}, masters)
    expected = way(step.start, exact, masters)
    assert np.linalg.norm(moved - expected) < 0.05 * np.linalg.norm(expected)


def test_a_first_step_that_overflows_is_no_error_of_the_conversion():
    """With targets of a few thousand the first scale overflows; the result is judged with one that does not."""
    step = by_hand("linear", "sgd", 1e-4)
    overflowing = [{**sample, "t": 4000 * sample["t"]} for sample in samples(step)]
    report = amp.transpile(step.model, inputs=overflowing, level="auto", loss_scaling=True)
    assert str(report.verdict).startswith("verified")
    assert report.low_nodes > 0
    start = {**step.start, "loss_scaling": np.array(2.0**15, np.float32)}
    feed = {name: value for name, value in overflowing[0].items() if name not in step.start}
    _, history = train(report.program, report.states, start, [feed], 1)
    assert history[0]["loss_scaling_new"] == 2.0**14
    np.testing.assert_array_equal(history[0]["a_new"], step.start["a"])


def test_the_result_is_transpiled_again_without_harm(tmp_path):
    step = by_hand("mlp", "adam", 1e-3)
    first = amp.transpile(
        step.model, tmp_path / "low.onnx", inputs=samples(step), level="O2", keep_io_types=False, loss_scaling=True
    )
    again = amp.transpile(tmp_path / "low.onnx", level="O2", keep_io_types=False, loss_scaling=True, verify=False)
    assert_valid(again.program)
    names = [value.name for value in again.program.model.graph.inputs]
    assert names == [value.name for value in first.program.model.graph.inputs]
    states = {state.input: state for state in again.program.step.states}
    assert states["a"].master == "a_fp32_master_0"
    assert again.program.step.loss_scale == "loss_scaling"
    assert any("scales its loss already" in note for note in again.program.notes)


def test_another_format_keeps_the_masters(tmp_path):
    step = by_hand("mlp", "adam", 1e-3)
    amp.transpile(step.model, tmp_path / "low.onnx", inputs=samples(step), level="O2", keep_io_types=False)
    report = amp.transpile(tmp_path / "low.onnx", level="O2", dtype="bfloat16", keep_io_types=False, verify=False)
    assert_valid(report.program)
    assert {dtype_of(report.program, name) for name in ("a", "b", "c", "e")} == {"BFLOAT16"}
    assert {dtype_of(report.program, f"{name}_fp32_master_0") for name in ("a", "b", "c", "e")} == {"FLOAT"}


def test_parameters_that_stay_float32_get_no_masters():
    step = by_hand("mlp", "sgd", 1e-3)
    report = amp.transpile(step.model, inputs=samples(step), level="O2")
    assert {state.master for state in report.states} == {""}
    assert len(report.program.model.graph.inputs) == len(step.model.graph.input)


def test_without_master_weights_there_is_a_warning():
    step = by_hand("mlp", "sgd", 1e-3)
    report = amp.transpile(step.model, inputs=samples(step), level="O2", keep_io_types=False, master_weights=False)
    assert {state.master for state in report.states} == {""}
    assert any("without float32 master weights" in warning for warning in report.warnings)


def test_what_cannot_be_proven_linear_is_converted_without_scaling():
    step = by_hand("mlp", "sgd", 1e-3)
    model = onnx.ModelProto.FromString(step.model.SerializeToString())
    (mask,) = [node for node in model.graph.node if node.op_type == "Where"]
    at = list(model.graph.node).index(mask)
    clipped = onnx.helper.make_node("Tanh", [mask.input[1]], ["clipped"], "TheClip")
    model.graph.node.insert(at, clipped)
    mask.input[1] = "clipped"
    model.graph.node[at + 1].input[1] = "clipped"
    report = amp.transpile(model, inputs=samples(step), level="O2", loss_scaling=True)
    assert any("Tanh 'TheClip'" in warning and "not scaled" in warning for warning in report.warnings)
    assert len(report.program.model.graph.inputs) == len(model.graph.input)


def test_a_step_that_is_low_already_gets_its_loss_scaled(tmp_path):
    step = by_hand("mlp", "sgd", 1e-3)
    amp.transpile(step.model, tmp_path / "low.onnx", inputs=samples(step), level="O2", keep_io_types=False)
    report = amp.transpile(tmp_path / "low.onnx", level="O2", keep_io_types=False, loss_scaling=True, verify=False)
    assert_valid(report.program)
    assert report.program.step.loss_scale == "loss_scaling"
    masters = {state.input: state.master for state in report.states if state.master}
    assert masters.keys() == set(step.parameters)
    start = {**step.start, **{master: step.start[name] for name, master in masters.items()}}
    end, history = train(report.program, report.states, start, step.data(3), 20)
    exact, _ = train(amp.load(step.model), step.states, step.start, step.data(3), 20)
    assert history[-1]["num_good_steps_new"] == 20
    expected = way(step.start, exact, masters)
    moved = way(step.start, {name: end[master] for name, master in masters.items()}, masters)
    assert np.linalg.norm(moved - expected) < 0.02 * np.linalg.norm(expected)


OLD = """
<ir_version: 8, opset_import: ["": {opset}]>
step (float[8,4] x, float[8,2] t, float[4,2] w) => (float[4,2] w_new)
<float rate = {{0.001}}, float share = {{0.125}}> {{
    y = MatMul (x, w)
    d = Sub (y, t)
    dy = Mul (d, share)
    xt = Transpose <perm = [1, 0]> (x)
    g = MatMul (xt, dy)
    change = Mul (g, rate)
    w_new = Sub (w, change)
}}"""


@pytest.mark.parametrize("opset", [9, 11, 13, 22])
def test_old_and_new_opsets(opset):
    model = onnx.parser.parse_model(OLD.format(opset=opset))
    generator = np.random.default_rng(0)
    shapes = {"x": (8, 4), "t": (8, 2), "w": (4, 2)}
    start = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    report = amp.transpile(model, inputs=start, opset=opset, level="O2", keep_io_types={"w": "low"}, loss_scaling=True)
    assert_valid(report.program)
    assert report.opset == (opset, opset)
    assert [state.role for state in report.states] == ["parameter", "counter", "counter", "counter", "moment"]
