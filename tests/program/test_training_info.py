"""`ModelProto.training_info`: kept by load and save, converted with the rest."""

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import ModelError
from amp_transpiler.program.training_info import merge, split

INFERENCE = """<ir_version: 10, opset_import: ["" : 21]>
    net (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {0.5, -0.25, 0.125, 1.0, 0.75, -0.5}> {
        y = MatMul(x, w)
    }"""
ALGORITHM = """sgd (float[N, 2] t, float rate) => (float loss, float[3, 2] w_new, int64 steps_new)
    <int64 steps = {0}> {
        d = Sub(y, t)
        dd = Mul(d, d)
        loss = ReduceMean<keepdims = 0>(dd)
        xt = Transpose(x)
        g = MatMul(xt, d)
        change = Mul(rate, g)
        w_new = Sub(w, change)
        one = Constant<value_int = 1>()
        steps_new = Add(steps, one)
    }"""
BINDINGS = {"w": "w_new", "steps": "steps_new"}


def model(inference=INFERENCE, algorithms=(ALGORITHM,), bindings=(BINDINGS,)):
    proto = onnx.parser.parse_model(inference)
    for text, bound in zip(algorithms, bindings, strict=True):
        info = proto.training_info.add()
        info.algorithm.CopyFrom(onnx.parser.parse_graph(text))
        info.update_binding.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in bound.items())
    return proto


def combined(proto):
    """The graph that ONNX defines as the step: the model's own, then the algorithm's."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    del whole.training_info[:]
    for info in proto.training_info:
        for field in ("input", "output", "initializer", "node"):
            getattr(whole.graph, field).extend(getattr(info.algorithm, field))
    return whole


FEEDS = {
    "x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "t": np.ones((4, 2), np.float32),
    "rate": np.float32(1e-4),
}


def step(proto):
    """Run one step, emulated if the model is low, and return its outputs by name."""
    whole = combined(proto)
    onnx.checker.check_model(whole, full_check=True)
    outputs = amp.Session(whole, amp.CPUPlace()).run(FEEDS)
    return dict(zip([value.name for value in whole.graph.output], outputs, strict=True))


def test_load_and_save_keep_it(tmp_path):
    source = model()
    onnx.save(source, tmp_path / "a.onnx")
    amp.save(amp.load(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    assert onnx.load(tmp_path / "b.onnx").training_info == source.training_info
    assert amp.load(source).to_onnx().training_info == source.training_info


def test_a_session_runs_the_models_own_graph():
    (y,) = amp.Session(amp.load(model()), amp.CPUPlace()).run({"x": FEEDS["x"]})
    assert y.shape == (4, 2)


@pytest.mark.parametrize("level", ["auto", "O1", "O2"])
def test_transpile_converts_it_with_the_graph(tmp_path, level):
    source = model()
    report = amp.transpile(source, tmp_path / "low.onnx", level=level, inputs=FEEDS, tolerance="2%", prefer="size")
    low = onnx.load(tmp_path / "low.onnx")
    assert report.verdict.startswith("verified")
    assert [node.op_type for node in low.graph.node if node.op_type == "MatMul"] == ["MatMul"]
    assert {t.name: t.data_type for t in low.graph.initializer if t.name == "w"} == {"w": onnx.TensorProto.FLOAT}
    (info,) = low.training_info
    assert {entry.key: entry.value for entry in info.update_binding} == BINDINGS
    assert [value.name for value in info.algorithm.input] == ["t", "rate"]
    assert [value.name for value in info.algorithm.output] == ["loss", "w_new", "steps_new"]
    assert "steps" in {tensor.name for tensor in info.algorithm.initializer}
    types = {v.name: v.type.tensor_type.elem_type for v in info.algorithm.value_info}
    assert types["change"] == onnx.TensorProto.FLOAT  # the update is float32 at every level
    before, after = step(source), step(low)
    moved = before["w_new"] - onnx.numpy_helper.to_array(source.graph.initializer[0])
    assert np.linalg.norm(after["w_new"] - before["w_new"]) < 0.01 * np.linalg.norm(moved)
    assert after["steps_new"] == 1
    assert [(s.input, s.role) for s in report.states] == [("w", "parameter"), ("steps", "counter")]
    assert {state.reason for state in report.states} == {"the file says so"}


def test_the_algorithm_is_part_of_what_is_low():
    low = amp.transpile(model(), level="O2", verify=False).program.to_onnx()
    (info,) = low.training_info
    casts = {node.output[0]: node for node in (*low.graph.node, *info.algorithm.node) if node.op_type == "Cast"}
    products = [node for node in info.algorithm.node if node.op_type == "MatMul"]
    assert len(products) == 1
    types = {v.name: v.type.tensor_type.elem_type for v in info.algorithm.value_info}
    assert all(name in casts or types.get(name) == onnx.TensorProto.FLOAT16 for name in products[0].input)


def test_masters_and_a_loss_scale_become_state_of_the_algorithm():
    source = model()
    before = source.SerializeToString()
    (info,) = source.training_info
    info.initialization.CopyFrom(
        onnx.parser.parse_graph("init () => (float[3, 2] w0) { w0 = RandomNormal<shape = [3, 2], seed = 1.0>() }")
    )
    info.initialization_binding.add(key="w", value="w0")
    report = amp.transpile(source, level="O2", inputs=FEEDS, keep_io_types={"w": "low"}, loss_scaling=True)
    low = report.program.to_onnx()
    (info,) = low.training_info
    bound = {entry.key: entry.value for entry in info.update_binding}
    added = {"w_fp32_master_0", "loss_scaling", "num_good_steps", "num_bad_steps"}
    assert set(bound) == {"w", "steps", *added} == {state.input for state in report.states}
    held = {tensor.name: tensor for tensor in info.algorithm.initializer}
    assert added <= set(held)
    assert onnx.numpy_helper.to_array(held["w_fp32_master_0"])[0, 0] == 0.5
    assert {t.name: t.data_type for t in low.graph.initializer} == {"w": onnx.TensorProto.FLOAT16}
    after = step(low)
    assert after[bound["w"]].dtype == np.float16
    assert after[bound["loss_scaling"]] in (16384, 32768)
    starts = {entry.key: entry.value for entry in info.initialization_binding}
    assert starts["w_fp32_master_0"] == "w0"
    initialization = onnx.helper.make_model(info.initialization, opset_imports=low.opset_import, ir_version=10)
    names = [value.name for value in info.initialization.output]
    first = dict(zip(names, onnx.reference.ReferenceEvaluator(initialization).run(None, {}), strict=True))
    np.testing.assert_array_equal(first[starts["w"]], first["w0"].astype(np.float16))
    assert before == model().SerializeToString()
    assert [tensor.name for tensor in source.graph.initializer] == ["w"]  # the caller's message is as it was


@pytest.mark.parametrize("convert", ["cast_model_to_fp16", "autocast", "convert_model"])
def test_the_other_doors_convert_it_too(convert):
    source = model()
    if convert == "cast_model_to_fp16":
        low = model()
        amp.cast_model_to_fp16(low)
    elif convert == "autocast":
        low = amp.autocast(source, {"x": FEEDS["x"]}).to_onnx()
    else:
        low = amp.convert_model(source).to_onnx()
    before, after = step(source), step(low)
    assert np.linalg.norm(after["w_new"] - before["w_new"]) < 1e-5
    assert onnx.TensorProto.FLOAT16 in {v.type.tensor_type.elem_type for v in low.graph.value_info}


def test_two_algorithms_with_the_same_names():
    second = (
        ALGORITHM.replace("steps", "count")
        .replace("w_new", "b_new")
        .replace("change = Mul(rate, g)", "change = Mul(t2, g)")
    )
    second = second.replace("float rate", "float t2")
    source = model(algorithms=(ALGORITHM, second), bindings=(BINDINGS, {"count": "count_new"}))
    program = amp.load(source)
    merge(program)
    split(program)
    first, two = program.training_info
    assert [node.op_type for node in two.algorithm.node] == [
        node.op_type for node in source.training_info[1].algorithm.node
    ]
    assert [v.name for v in two.algorithm.input] == ["t", "t2"]
    assert {v.name for v in two.algorithm.output} == {"loss", "b_new", "count_new"}
    assert [v.name for v in first.algorithm.output] == ["loss", "w_new", "steps_new"]


OPAQUE = """alg (float[N, 2] t) => (float loss, float[3, 2] w_new) <float rate = {0.1}> {
        d = Sub(y, t)
        dd = Mul(d, d)
        loss = ReduceMean<keepdims = 0>(dd)
        g = ai.onnx.preview.training.Gradient<xs = ["w"], zs = ["x", "t"], y = "loss">(w, x, t)
        change = Mul(rate, g)
        w_new = Sub(w, change)
    }"""


def test_an_algorithm_that_names_values_stays_as_it_is():
    text = INFERENCE.replace('["" : 21]', '["" : 21, "ai.onnx.preview.training" : 1]')
    source = model(text, (OPAQUE,), ({"w": "w_new"},))
    low = amp.transpile(source, level="O2").program.to_onnx()
    assert low.training_info == source.training_info
    assert {t.name: t.data_type for t in low.graph.initializer}["w"] == onnx.TensorProto.FLOAT
    assert [v.type.tensor_type.elem_type for v in low.graph.output] == [onnx.TensorProto.FLOAT]
    assert "MatMul" in {node.op_type for node in low.graph.node}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda proto: setattr(proto, "ir_version", 6), "which IR version 6 does not have"),
        (lambda proto: setattr(proto.training_info[0].update_binding[0], "key", "v"), "no initializer 'v'"),
        (lambda proto: setattr(proto.training_info[0].update_binding[0], "value", "v_new"), "no output 'v_new'"),
        (
            lambda proto: proto.training_info[0].algorithm.node[0].input.append("nothing"),
            "'nothing', which nothing computes",
        ),
    ],
)
def test_a_malformed_one_is_refused(change, message):
    proto = model()
    change(proto)
    with pytest.raises(ModelError, match=message):
        amp.load(proto)


def test_a_cycle_in_an_algorithm_is_refused():
    proto = model()
    product = next(node for node in proto.training_info[0].algorithm.node if node.op_type == "MatMul")
    product.input[1] = "g"
    with pytest.raises(ModelError, match="reads its own result"):
        amp.transpile(proto, verify=False, prefer="size")


def test_external_data_of_an_algorithm_is_read(tmp_path):
    proto = model()
    tensor = proto.training_info[0].algorithm.initializer.add()
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "momentum"))
    onnx.external_data_helper.set_external_data(tensor, "m.data")
    (tmp_path / "m.data").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    (tmp_path / "a.onnx").write_bytes(proto.SerializeToString())
    (info,) = amp.load(tmp_path / "a.onnx").training_info
    assert onnx.numpy_helper.to_array(info.algorithm.initializer[1]).sum() == 15
    with pytest.raises(ModelError, match="load the model's file"):
        amp.load(proto)
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match="'momentum' of training_info cannot be read"):
        amp.load(tmp_path / "a.onnx")
