"""Nodes of a drawing in groups, by scopes."""

import pytest

from amp_transpiler.view.groups import MOST, Group, grouped
from amp_transpiler.view.outline import Outline, OutlineNode


def graph(*nodes):
    return Outline(tuple(nodes), (), (), {})


def node(name, *, reads=(), makes=None, precision="float32", role="forward", modules=""):
    return OutlineNode("Add", name, tuple(reads), (makes or f"{name}_out",), precision, role, "", modules)


def tree(group):
    """Return a group as its title and what is in it: inner trees, and the number of single nodes."""
    inner = [tree(member) for member in group.members if isinstance(member, Group)]
    return group.title, inner, sum(isinstance(member, int) for member in group.members)


def layers(count, of, prefix="/encoder/layer.{}/"):
    return [node(f"{prefix.format(i)}n{j}") for i in range(count) for j in range(of)]


NAMED = [(f"layer.{i}", [], 30) for i in range(3)]
PYTORCH = "['', 'm', 'm.encoder', 'm.encoder.layer.{}', 'add_{}']"

CASES = {
    "few nodes are one level": (layers(2, 3), ("encoder", [], 6)),
    "scopes of names": (layers(3, 30), ("encoder", NAMED, 0)),
    "modules of PyTorch's exporter": (
        [node(f"n{i}_{j}", modules=PYTORCH.format(i, j)) for i in range(3) for j in range(30)],
        ("m/encoder", NAMED, 0),
    ),
    "modules that somebody else wrote": (
        [node(f"/a/n{i}", modules="os.exit(") for i in range(30)] + layers(1, 20, "/b/"),
        ("", [("a", [], 30), ("b", [], 20)], 0),
    ),
    "a scope of one node is none": (
        [*layers(2, 30, "/a/layer.{}/"), node("/b/single")],
        ("", [("a", [("layer.0", [], 30), ("layer.1", [], 30)], 0)], 1),
    ),
    "no scopes": (
        [node(f"n{i}") for i in range(60)],
        ("", [(f"nodes {1 + i} to {20 + i}", [], 20) for i in (0, 20, 40)], 0),
    ),
    "a training step": (
        [node(f"n{i}") for i in range(30)] + [node(f"g{i}", role="backward") for i in range(30)],
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_are_grouped(case):
    nodes, expected = CASES[case]
    groups = tree(grouped(graph(*nodes)))
    if expected is not None:
        assert groups == expected
    else:
        assert ("backward pass", [], 30) in groups[1]


def test_what_has_no_scope_goes_with_what_it_reads_or_with_its_reader():
    nodes = layers(2, 30, "/layer.{}/")
    cast = node("cast", reads=[nodes[3].outputs[0]], precision="cast")
    shape = node("shape", makes="s")
    reader = node("/layer.1/reader", reads=["s"])
    groups = grouped(graph(*nodes, cast, shape, reader))
    of = {index: member.title for member in groups.members for index in member.nodes}
    assert (of[60], of[61], of[62]) == ("layer.0", "layer.1", "layer.1")


@pytest.mark.parametrize("count", [MOST, MOST + 1, 500, 2000, 20_000])
@pytest.mark.parametrize("named", [False, True])
def test_no_level_has_more_than_a_reader_can_see_and_no_node_is_lost(count, named):
    names = [f"/l{i // 50}/b{i // 5 % 10}/n{i}" if named else f"n{i}" for i in range(count)]
    root = grouped(graph(*map(node, names)))
    pending, seen = [root], []
    while pending:
        group = pending.pop()
        assert 1 <= len(group.members) <= MOST
        assert list(group.nodes) == sorted(group.nodes)
        seen += [member for member in group.members if isinstance(member, int)]
        pending += [member for member in group.members if isinstance(member, Group)]
    assert sorted(seen) == list(range(count)) == list(root.nodes)


def test_an_empty_graph_is_one_empty_group():
    assert grouped(graph()) == Group("", (), ())


def test_deep_names_do_not_exhaust_the_stack():
    root = grouped(graph(*(node("/".join(f"s{j}" for j in range(2000)) + f"/n{i}") for i in range(50))))
    assert len(root.nodes) == 50
