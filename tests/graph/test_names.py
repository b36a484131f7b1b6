"""Names that are unique across every scope."""

import onnx_ir as ir

from amp_transpiler.graph.names import NameAllocator, name_nodes
from amp_transpiler.graph.walk import all_nodes
from tests.support import parse


def model():
    return ir.from_proto(
        parse(
            """(float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
                a = Add (x, w) [same] b = Neg (a)
                y = If (c) <
                    then_branch = t () => (float[2] p) <float[2] k = {1, 2}> { [same] val_0 = Relu (b) p = Add
                        (val_0, k) },
                    else_branch = e () => (float[2] p) { [relu] val_0 = Exp (b) p = Neg (val_0) }
                >
            }"""
        )
    )


def test_a_name_of_any_scope_is_taken():
    names = NameAllocator(model())
    for taken in ("x", "w", "a", "k", "val_0", "same", "p", "relu"):
        assert names.fresh(taken) == f"{taken}_1"


def test_reserved_names_are_taken_and_names_of_later_nodes_are_not_given_twice():
    program = model()
    names = NameAllocator(program, reserved=["mine"])
    program.graph.append(ir.node("Neg", [program.graph.inputs[0]], name="later"))
    assert [names.fresh(name) for name in ("mine", "later")] == ["mine_1", "later_1"]
    assert {"mine", "mine_1", "later", "x"} <= names.taken


def test_a_free_name_is_given_as_asked_for_and_once_only():
    names = NameAllocator(model())
    assert [names.fresh("free") for _ in range(3)] == ["free", "free_1", "free_2"]
    assert names.fresh("free_1") == "free_1_1"


def test_every_node_gets_a_name_of_its_own():
    work = model()
    name_nodes(work, NameAllocator(work))
    names = [node.name for node in all_nodes(work)]
    assert all(names)
    assert len(set(names)) == len(names)
    assert names.count("same") == 1


def test_names_that_are_their_nodes_own_are_kept_and_naming_twice_changes_nothing():
    work = model()
    name_nodes(work, NameAllocator(work))
    before = [node.name for node in all_nodes(work)]
    assert {"same", "relu"} <= set(before)
    name_nodes(work, NameAllocator(work))
    assert [node.name for node in all_nodes(work)] == before


def test_names_of_unnamed_nodes_say_what_they_are():
    work = model()
    name_nodes(work, NameAllocator(work))
    assert work.graph[0].name == "Add_a"
