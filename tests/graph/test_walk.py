"""Walking a model: scopes, bodies, and the ports of control flow."""

import onnx_ir as ir
import pytest

from amp_transpiler.graph.walk import all_nodes, bodies, control_ports, scopes
from tests.support import parse

NESTED = parse(
    """(float[2,4] x, bool c, int64 n) => (float[2,4] y) {
        [outer] y = If (c) <
            then_branch = t () => (float[2,4] p) {
                [loop] p = Loop (n, c, x) <body = b (int64 i, bool k, float[2,4] a) => (bool k2, float[2,4] a2) {
                    [cond] k2 = Identity (k) [deep] a2 = Relu (a)
                }>
            },
            else_branch = e () => (float[2,4] q) { [flat] q = Exp (x) }
        >
        [after] z = Neg (y)
    }"""
)


def model():
    return ir.from_proto(NESTED)


def test_scopes_come_outer_first_with_their_paths():
    paths = [(scope.path, scope.owner.name if scope.owner else None) for scope in scopes(model())]
    assert paths[0] == ("", None)
    assert set(paths) == {
        ("", None),
        ("outer/then_branch", "outer"),
        ("outer/else_branch", "outer"),
        ("outer/then_branch/loop/body", "loop"),
    }
    assert paths.index(("outer/then_branch", "outer")) < paths.index(("outer/then_branch/loop/body", "loop"))


def test_every_node_of_every_scope_is_found_once():
    names = [node.name for node in all_nodes(model())]
    assert sorted(names) == ["after", "cond", "deep", "flat", "loop", "outer"]


def test_bodies_are_named_by_their_attributes():
    outer = next(node for node in all_nodes(model()) if node.name == "outer")
    assert [name for name, _ in bodies(outer)] == ["then_branch", "else_branch"]
    assert list(bodies(next(node for node in all_nodes(model()) if node.name == "after"))) == []


LOOP = """(float[2] x, int64 n, bool c) => (float[2] y, float[N,2] s) {
    y, s = Loop (n, c, x) <body = b (int64 i, bool k, float[2] a) => (bool k2, float[2] a2, float[2] o) {
        k2 = Identity (k) a2 = Relu (a) o = Neg (a)
    }>
}"""
IF = """(float[2] x, bool c) => (float[2] y, float[2] z) {
    y, z = If (c) <
        then_branch = t () => (float[2] p, float[2] r) { p = Relu (x) r = Neg (x) },
        else_branch = e () => (float[2] q, float[2] s) { q = Exp (x) s = Abs (x) }
    >
}"""
SCAN = """(float[2] x, float[5,2] xs) => (float[2] y, float[5,2] ys) {
    y, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] v) => (float[2] s2, float[2] o) {
        s2 = Add (s, v) o = Neg (s)
    }> (x, xs)
}"""
OLD_SCAN = """(int64[1] lens, float[1,2] x, float[1,5,2] xs) => (float[1,2] y, float[1,5,2] ys) {
    y, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] v) => (float[2] s2, float[2] o) {
        s2 = Add (s, v) o = Neg (s)
    }> (lens, x, xs)
}"""
PORTS = {
    # text, opset: kind, definitions, values used there
    "Loop": (LOOP, 18, [("state", ["a", "y"], ["x", "a2"]), ("scan", ["s"], ["o"])]),
    "If": (IF, 18, [("branch", ["y"], ["p", "q"]), ("branch", ["z"], ["r", "s"])]),
    "Scan": (SCAN, 18, [("state", ["s", "y"], ["x", "s2"]), ("scan", ["v"], ["xs"]), ("scan", ["ys"], ["o"])]),
    "Scan of opset 8": (
        OLD_SCAN,
        8,
        [("state", ["s", "y"], ["x", "s2"]), ("scan", ["v"], ["xs"]), ("scan", ["ys"], ["o"])],
    ),
}


@pytest.mark.parametrize("name", PORTS)
def test_ports_of_control_flow(name):
    text, opset, expected = PORTS[name]
    graph = ir.from_proto(parse(text, opset=opset)).graph
    (node,) = graph
    listed = [
        (port.kind, [value.name for value in port.definitions], [use.value.name for use in port.uses])
        for port in control_ports(node)
    ]
    assert listed == expected


def test_an_operator_of_unknown_meaning_has_opaque_ports():
    graph = ir.from_proto(
        parse(
            """(float[2] x) => (float[2] y) {
                y = my.domain.Each <body = b (float[2] a) => (float[2] a2) { a2 = Relu (a) }> (x)
            }""",
            imports=', "my.domain": 1',
        )
    ).graph
    assert [port.kind for port in control_ports(graph[0])] == ["opaque", "opaque"]


def test_a_node_without_bodies_has_no_ports():
    assert control_ports(next(node for node in all_nodes(model()) if node.name == "after")) == []
