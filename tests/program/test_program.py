"""A program: copies are independent, content can be taken over."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.program.program import install
from tests import support
from tests.support import array, chain
from tests.trap_cases import TRAPS

W = array(4, 4, seed=1)


def model():
    return chain("MatMul ({}, w)", "Relu ({})", w=W)


@pytest.mark.parametrize("name", TRAPS)
def test_loading_and_writing_keeps_a_model(name):
    proto = TRAPS[name].model
    back = amp.load(proto).to_onnx()
    feeds = TRAPS[name].feeds
    assert {n.op_type for n in back.graph.node} == {n.op_type for n in proto.graph.node}
    if not TRAPS[name].random:
        support.assert_close(support.run(proto, feeds), support.run(back, feeds), 0.0)


def test_a_copy_is_independent_and_shares_weights():
    program = amp.load(model())
    program.notes.append("a note")
    copy = program.clone()
    copy.model.graph[0].name = "renamed"
    copy.model.graph.initializers["w"].name = "other"
    copy.notes.append("another")
    assert program.model.graph[0].name == "v1"
    assert "w" in program.model.graph.initializers
    assert program.notes == ["a note"]
    assert copy.model.graph.initializers["other"].const_value is program.model.graph.initializers["w"].const_value


def test_converting_a_copy_leaves_the_original(tmp_path):
    program = amp.load(model())
    before = program.to_onnx().SerializeToString(deterministic=True)
    amp.cast_model_to_fp16(program.clone())
    assert program.to_onnx().SerializeToString(deterministic=True) == before


def test_content_is_taken_over_whole():
    target, content = ir.from_proto(model()), ir.from_proto(chain("Exp ({})", opset=21))
    content.metadata_props["key"] = "value"
    content.ir_version = 9
    install(target, content)
    assert [node.op_type for node in target.graph] == ["Exp"]
    assert target.opset_imports[""] == 21
    assert (target.ir_version, dict(target.metadata_props)) == (9, {"key": "value"})


def test_a_program_says_what_it_is(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    assert "m.onnx" in repr(amp.load(tmp_path / "m.onnx"))
    assert "2 nodes" in repr(amp.load(model()))


def test_saved_inline_and_outside_a_program_is_the_same(tmp_path):
    program = amp.load(model())
    amp.save(program, tmp_path / "inline.onnx")
    amp.save(program, tmp_path / "outside.onnx", external=True)
    weights = [support.constant(amp.load(tmp_path / name), "w") for name in ("inline.onnx", "outside.onnx")]
    np.testing.assert_array_equal(weights[0], W)
    np.testing.assert_array_equal(weights[1], W)
