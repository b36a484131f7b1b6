"""PyTorch's check for -1 in the sizes of an `expand` goes where there can be none."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.passes.skip_expand_checks import SkipExpandChecks
from tests import support
from tests.support import array, parse, run

_SIZES = "s = Shape (x) n = Gather (s, zero) u = Unsqueeze (n, at0) j = Concat <axis = 0> (four1, u)"
_ONES = "z = Shape (f) o = ConstantOfShape <value = int64[1] {1}> (z) m = Mul (o, minus)"
_END = "e = Equal (f, m) [w] w = Where (e, o, f) y = Expand (x, w)"

# name: (body, whether the check goes)
BODIES = {
    "as the exporter writes it": (f"{_SIZES} f = Reshape (j, flat) {_ONES} {_END}", True),
    "of the list itself": (f"{_SIZES} f = Identity (j) {_ONES} {_END}", True),
    "against a constant": (
        f"{_SIZES} f = Identity (j) e = Equal (f, flat) w = Where (e, ones, f) y = Expand (x, w)",
        True,
    ),
    "a size that may be -1": (
        f"{_SIZES} k = Concat <axis = 0> (flat, u) f = Reshape (k, flat) {_ONES} {_END}",
        False,
    ),
    "a size that the caller gives": (
        f"j = Concat <axis = 0> (four1, given) f = Reshape (j, flat) {_ONES} {_END}",
        False,
    ),
    "a difference of sizes": (
        f"{_SIZES} d = Sub (j, none) f = Reshape (d, flat) {_ONES} {_END}",
        False,
    ),
    "another number": (
        f"{_SIZES} f = Reshape (j, flat) {_ONES.replace('minus', 'two')} {_END}",
        False,
    ),
    "another choice": (
        f"{_SIZES} f = Reshape (j, flat) {_ONES} e = Equal (j, m) w = Where (e, o, f) y = Expand (x, w)",
        False,
    ),
}


def model(body):
    return parse(
        f"(float[N] x, int64[1] given) => (float[A,B] y) {{ {body} }}",
        zero=np.int64(0),
        at0=np.array([0]),
        four1=np.array([4]),
        flat=np.array([-1]),
        minus=np.int64(-1),
        two=np.int64(-2),
        none=np.array([0]),
        ones=np.array([1, 1]),
    )


@pytest.mark.parametrize("name", BODIES)
def test_which_checks_go(name):
    body, goes = BODIES[name]
    program = ir.from_proto(model(body))
    assert SkipExpandChecks()(program).count == goes
    assert ("Where" not in {node.op_type for node in program.graph}) is goes
    feeds = {"x": array(3), "given": np.array([3])}
    before = run(model(body), feeds)
    after = run(ir.to_proto(program), feeds)
    assert np.array_equal(before["y"], after["y"])


def test_what_is_expanded_has_a_known_shape_then():
    proto = model(BODIES["as the exporter writes it"][0])
    written = amp.transpile(proto, verify=False, prefer="size").program.to_onnx()
    assert not support.nodes(amp.transpile(proto, verify=False, prefer="size").program, "Where")
    [output] = written.graph.output
    assert [dim.dim_param for dim in output.type.tensor_type.shape.dim] == ["A", "B"]


def test_a_check_that_is_an_output_stays():
    body = f"{_SIZES} f = Reshape (j, flat) {_ONES} e = Equal (f, m) w = Where (e, o, f)"
    proto = parse(
        f"(float[N] x) => (int64[2] w) {{ {body} }}",
        zero=np.int64(0),
        at0=np.array([0]),
        four1=np.array([4]),
        flat=np.array([-1]),
        minus=np.int64(-1),
    )
    assert SkipExpandChecks()(ir.from_proto(proto)).count == 0
