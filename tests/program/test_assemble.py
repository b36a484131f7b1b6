"""A program under construction becomes a complete model: chosen outputs, updates, nothing that they do not need."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.errors import InputError
from amp_transpiler.graph.roles import role_of
from amp_transpiler.program.assemble import assemble, with_values
from amp_transpiler.program.program import Persistable, Program

FLOAT = ir.DataType.FLOAT


@pytest.fixture
def program():
    """`y = x + w`, with `w` replaced by `w * 2` after a run; `unused` is read by nothing."""
    program = Program()
    x = program.add_input("x", FLOAT, [2])
    w = program.add_persistable(Persistable("w", "parameter"), FLOAT, [2])
    program.add_input("unused", FLOAT, [2])
    program.builder().op("Add", [x, w], name="y")
    program.builder("optimize").op("Mul", [w, program.builder().constant(2.0)], name="w_new")
    program.updates["w"] = "w_new"
    return program


@pytest.mark.parametrize(
    ("fetch", "updates", "operators", "outputs", "feeds", "state"),
    [
        (["y"], True, ["Add", "Mul"], ["y", "w_new"], ("x",), ("w",)),
        (["y"], False, ["Add"], ["y"], ("x",), ("w",)),
        (["w"], True, ["Mul"], ["w_new"], (), ("w",)),
        (["w"], False, ["Identity"], ["w__out"], (), ("w",)),
        (["x", "x"], False, ["Identity"], ["x__out"], ("x",), ()),
        ([], True, ["Mul"], ["w_new"], (), ("w",)),
    ],
    ids=["all", "no updates", "updated", "before the run", "an input, twice", "updates alone"],
)
def test_only_what_is_fetched_or_updated_stays(program, fetch, updates, operators, outputs, feeds, state):
    assembled = assemble(program, fetch, updates=updates)
    graph = assembled.model.graph
    assert [node.op_type for node in graph] == operators
    assert [value.name for value in graph.outputs] == outputs
    assert (assembled.feeds, assembled.state) == (feeds, state)
    assert assembled.updates == ({"w": "w_new"} if updates else {})
    assert list(assembled.fetches) == list(dict.fromkeys(fetch))
    assert all(role_of(node) == "optimize" for node in graph if node.op_type == "Identity")
    assert not program.model.graph.outputs  # the program itself is as it was


def test_what_does_not_exist_cannot_be_fetched(program):
    with pytest.raises(InputError, match="no variable 'z'"):
        assemble(program, ["z"])


def test_values_of_a_scope_become_initializers(program):
    model = assemble(program, ["y"], updates=False).model
    with pytest.raises(InputError, match="no value for 'w'"):
        with_values(model, program, {})
    with_values(model, program, {"w": np.array([1.0, 2.0])})
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert model.graph.initializers["w"].const_value.numpy().tolist() == [1.0, 2.0]
    assert model.graph.initializers["w"].dtype == FLOAT
