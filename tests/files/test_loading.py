"""What `load` takes and refuses, what it puts in order, and whose objects it changes."""

import logging
import os
import pathlib
import types

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from amp_transpiler.errors import ModelError
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import save
from amp_transpiler.program.program import Program
from tests.support import array, parse, run

GRAPH = "(float[2,4] x) => (float[2,4] y) { h = MatMul (x, w) r = Relu (h) y = Add (r, x) }"


def model(**weights):
    return parse(GRAPH, **{"w": array(4, 4)} | weights)


# ---- kinds of objects ----


def test_a_path_a_message_and_torchs_program_are_loaded_alike(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    held = ir.from_proto(model())
    sources = [tmp_path / "m.onnx", str(tmp_path / "m.onnx"), model(), held, types.SimpleNamespace(model=held)]
    programs = [load(source) for source in sources]
    expected = run(model(), {"x": array(2, 4)})["y"]
    for program in programs:
        np.testing.assert_array_equal(run(program, {"x": array(2, 4)})["y"], expected)
    assert [program.source for program in programs] == [tmp_path / "m.onnx"] * 2 + [None] * 3


def test_programs_and_models_of_onnx_ir_are_not_copied():
    program, held = load(model()), ir.from_proto(model())
    assert load(program) is program
    assert load(held).model is held
    assert load(types.SimpleNamespace(model=held)).model is held


def test_a_message_is_not_changed():
    source = out_of_order(model())
    source.graph.name = "g"
    before = source.SerializeToString(deterministic=True)
    load(source).model.graph.name = "another"
    assert source.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("odd", [None, 3, b"bytes", ["m.onnx"], types.SimpleNamespace(model="m.onnx"), Program])
def test_other_objects_are_refused_by_their_kind(odd):
    with pytest.raises(TypeError, match=f"cannot load a {type(odd).__name__}: expected a path, an onnx.ModelProto"):
        load(odd)


# ---- files ----


def _fifo(path):
    os.mkfifo(path)


def _truncated(path):
    data = model().SerializeToString()
    path.write_bytes(data[: len(data) // 2])


def _link_to_nothing(path):
    path.symlink_to("nowhere.onnx")


UNREADABLE = {
    "nothing": (lambda path: None, "no such file"),
    "a link to nothing": (_link_to_nothing, "no such file"),
    "a folder": (pathlib.Path.mkdir, "is a folder; give the .onnx file in it"),
    "a pipe": (_fifo, "not a regular file"),
    "an empty file": (pathlib.Path.touch, "the file is empty"),
    "half a model": (_truncated, "not an ONNX model, or truncated"),
    "text": (lambda path: path.write_text("This is no model."), "not an ONNX model, or truncated"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_model_is_refused_in_one_line(kind, tmp_path):
    make, words = UNREADABLE[kind]
    make(tmp_path / "m.onnx")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.onnx")
    assert str(caught.value).startswith(f"{tmp_path / 'm.onnx'}: {words}")


def test_a_file_that_the_system_does_not_give_is_refused_with_its_reason(tmp_path, monkeypatch):
    onnx.save(model(), tmp_path / "m.onnx")

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(onnx, "load_model", refused)
    with pytest.raises(ModelError, match=r"m\.onnx: cannot be read: Permission denied"):
        load(tmp_path / "m.onnx")


def test_external_weights_stay_on_the_disk(tmp_path):
    source = model(large=array(64, 64))
    onnx.save(source, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    tensor = load(tmp_path / "m.onnx").model.graph.initializers["large"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    np.testing.assert_array_equal(tensor.numpy(), array(64, 64))


@pytest.mark.parametrize(
    ("kind", "location"),
    [
        ("path", "gone.bin"),
        ("message", "gone.bin"),
        ("onnx_ir", "gone.bin"),
        ("torch", "gone.bin"),
        ("path", "../w.bin"),
    ],
)
def test_weights_that_are_missing_or_outside_of_the_models_folder_are_refused(kind, location, tmp_path, monkeypatch):
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(model(), folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "w.bin").rename(tmp_path / "w.bin")
    proto = onnx.load(folder / "m.onnx", load_external_data=False)
    [entry] = [e for e in proto.graph.initializer[0].external_data if e.key == "location"]
    entry.value = location
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    monkeypatch.chdir(folder)  # where a message's weights lie
    sources = {"path": lambda: folder / "m.onnx", "message": lambda: proto, "onnx_ir": lambda: ir.from_proto(proto)}
    sources["torch"] = lambda: types.SimpleNamespace(model=ir.from_proto(proto))
    with pytest.raises(ModelError, match=r"gone\.bin|w\.bin"):
        load(sources[kind]())


# ---- order ----


def out_of_order(given):
    given.graph.node.append(given.graph.node.pop(0))
    return given


def test_nodes_out_of_order_are_sorted_whatever_the_source(tmp_path, caplog):
    onnx.save(out_of_order(model()), tmp_path / "m.onnx")
    held = ir.from_proto(model())
    first = held.graph[0]
    held.graph.remove(first)
    held.graph.append(first)
    for source in (tmp_path / "m.onnx", out_of_order(model()), held):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            program = load(source)
        assert [node.op_type for node in program.model.graph] == ["MatMul", "Relu", "Add"]
        assert "sorted" in caplog.text
    for source in (model(), ir.from_proto(model())):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            load(source)
        assert "sorted" not in caplog.text


BODY = """(float[2,4] x, bool c) => (float[2,4] y) {
    y = If (c) <then_branch = t () => (float[2,4] a) { a = Relu (h) }, else_branch = e () => (float[2,4] b) {
        b = Neg (h) }>
    h = MatMul (x, w)
}"""


def test_what_a_body_reads_counts_for_the_order():
    held = ir.from_proto(parse(BODY.replace("y = If", "k = Relu (x) y = If"), w=array(4, 4)))
    for source in (parse(BODY, w=array(4, 4)), held):
        assert [node.op_type for node in load(source).model.graph][-1] == "If"


def circle(given, *, through_a_body=False):
    given.graph.node[0].input[0] = "r"
    given.graph.node[1].name = "the one"
    if through_a_body:
        body = helper.make_graph(
            [helper.make_node("Neg", ["r"], ["b"])], "b", [], [helper.make_tensor_value_info("b", 1, None)]
        )
        given.graph.node[0].CopyFrom(helper.make_node("If", ["c"], ["h"], then_branch=body, else_branch=body))
        given.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    return given


@pytest.mark.parametrize("through_a_body", [False, True])
def test_a_circle_is_refused_and_a_node_of_it_is_named(through_a_body):
    with pytest.raises(ModelError) as caught:
        load(circle(model(), through_a_body=through_a_body))
    said = str(caught.value)
    assert "the graph has a cycle: " in said
    assert "reads its own result" in said
    assert "'the one'" in said or "'h'" in said, "Add waits for the circle and is not in it"
    waiting = circle(model(), through_a_body=through_a_body)
    waiting.graph.node.insert(0, waiting.graph.node.pop())
    with pytest.raises(ModelError, match=r"(Relu 'the one'|(MatMul|If) 'h') reads its own result"):
        load(waiting)


def test_nodes_before_a_circle_are_not_blamed_for_it():
    source = circle(model())
    for name, read in (("before", "x"), ("between", "before")):
        source.graph.node.insert(0, helper.make_node("Neg", [read], [name], name))
    with pytest.raises(ModelError, match=r"(Relu 'the one'|MatMul 'h') reads its own result"):
        load(source)


def test_a_value_that_nothing_computes_is_refused_in_a_model_of_onnx_ir_too():
    held = ir.from_proto(model())
    held.graph[1].replace_input_with(0, ir.Value(name="from nowhere"))
    with pytest.raises(ModelError, match=r"Relu .* reads 'from nowhere', which nothing computes"):
        load(held)
    held = ir.from_proto(model())
    held.graph.outputs[0] = ir.Value(name="from nowhere")
    with pytest.raises(ModelError, match="an output of the graph reads 'from nowhere'"):
        load(held)


# ---- sparse initializers ----


def sparse(values, indices, shape, *, rank=None, data_type=TensorProto.FLOAT):
    """A model that adds a sparse initializer to x."""
    proto = parse(GRAPH.replace("Add (r, x)", "Add (r, s)"), w=array(4, 4))
    listed = proto.graph.sparse_initializer.add(dims=shape)
    listed.values.CopyFrom(helper.make_tensor("s", data_type, [len(values)], values))
    dims = [len(indices)] if rank is None else [len(indices) // rank, rank]
    listed.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, dims, indices))
    return proto


DENSE = np.array([[0, 5, 0, 0], [0, 0, 6, 7]], np.float32)
HELD = {
    "by place": (sparse([5, 6, 7], [1, 6, 7], [2, 4]), DENSE),
    "by coordinates": (sparse([5, 6, 7], [0, 1, 1, 2, 1, 3], [2, 4], rank=2), DENSE),
    "nothing": (sparse([], [], [2, 4]), np.zeros((2, 4), np.float32)),
    "the last place": (sparse([7], [7], [2, 4]), np.eye(8, dtype=np.float32)[7].reshape(2, 4) * 7),
}
WRONG = {
    "a place beyond the end": (sparse([5], [8], [2, 4]), "has an index outside of its shape [2, 4]"),
    "a place before the start": (sparse([5], [-1], [2, 4]), "has an index outside of its shape [2, 4]"),
    "a coordinate beyond the end": (sparse([5], [0, 4], [2, 4], rank=2), "has an index outside of its shape [2, 4]"),
    "fewer places than values": (sparse([5, 6], [1], [2, 4]), "has [2] values, but [1] indices"),
    "coordinates of another rank": (sparse([5], [0, 0, 1], [2, 4], rank=3), "has [1] values, but [1, 3] indices"),
    "no dimensions": (sparse([5], [0], []), "has dimensions []"),
    "a negative size": (sparse([5], [0], [-2, 4]), "has dimensions [-2, 4]"),
    "more than is written out": (sparse([5], [0], [2**29, 2]), "at most 2147483648 bytes are written out"),
}


@pytest.mark.parametrize("kind", HELD)
def test_a_sparse_initializer_is_written_out(kind, tmp_path):
    source, dense = HELD[kind]
    program = load(source)
    np.testing.assert_array_equal(program.model.graph.initializers["s"].const_value.numpy(), dense)
    save(program, tmp_path / "m.onnx")
    written = onnx.load(tmp_path / "m.onnx")
    assert not written.graph.sparse_initializer
    assert len(source.graph.sparse_initializer) == 1, "the message that was given is as it was"
    x = array(2, 4)
    expected = np.maximum(x @ array(4, 4), 0) + dense  # processors sum in other orders
    np.testing.assert_allclose(run(written, {"x": x})["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_sparse_initializer_is_refused_by_its_name(kind):
    source, words = WRONG[kind]
    with pytest.raises(ModelError) as caught:
        load(source)
    assert f"sparse initializer 's' {words}" in str(caught.value) or words in str(caught.value)
    assert "'s'" in str(caught.value)


def test_the_largest_sparse_initializer_that_is_written_out_is_two_gigabytes(monkeypatch):
    from amp_transpiler.files import source_check

    monkeypatch.setattr(source_check, "_LARGEST_DENSE", 2 * 4 * 4)
    load(sparse([5], [0], [2, 4]))
    with pytest.raises(ModelError, match="at most 32 bytes are written out"):
        load(sparse([5], [0], [3, 3]))
