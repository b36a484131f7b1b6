"""The sign of a rotation of positions is taken into the angles, where that changes nothing else."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.sign_rotations import SignRotations
from tests import support
from tests.support import array, parse, run

ANGLES = "p = Mul (t, f) a = Concat <axis = 2> (p, p) "
WAVES = "c = Cos (a) s = Sin (a) c4 = Unsqueeze (c, one) s4 = Unsqueeze (s, one) "
HALVES = "x1, x2 = Split <axis = 3, num_outputs = 2> (x) "
TURN = "n = Neg (x2) r = Concat <axis = -1> (n, x1) "
MIX = "l = Mul (x, c4) q = Mul (r, s4) y = Add (l, q)"
PLAIN = ANGLES + WAVES + HALVES + TURN + MIX


def model(body, opset=18):
    return parse(
        f"(float[2,3,5,8] x, float[1,5,1] t) => (float[2,3,5,8] y) {{ {body} }}",
        opset=opset,
        f=array(4, low=0.1),
        g=array(5, 1, low=0.1),
        one=np.array([1]),
        scale=np.float32(0.5),
        two=np.array([4, 4]),
    )


def signed(proto):
    program = ir.from_proto(proto)
    propagate_types(program)
    count = SignRotations()(program).count
    return count, ir.to_proto(program)


def kinds(proto):
    return [node.op_type for node in proto.graph.node]


TWICE = TURN.replace("n =", "n2 =").replace("(n,", "(n2,").replace("r =", "r2 =") + "k = Mul (r2, s4) z = Add (q, k) "
TAKEN = {
    "plain": (PLAIN, 1),
    "scaled": (PLAIN.replace("Unsqueeze (s, one)", "Unsqueeze (h, one)").replace("s4 =", "h = Mul (s, scale) s4 ="), 1),
    "constant first": (PLAIN.replace("Mul (t, f)", "Mul (f, t)"), 1),
    "two layers": (PLAIN.replace("y = Add (l, q)", TWICE + "y = Add (l, z)"), 2),
}
LEFT = {
    "the sine is read elsewhere": PLAIN.replace("Add (l, q)", "Add (l, z)").replace("y =", "z = Add (q, s4) y ="),
    "angles are read elsewhere": PLAIN.replace("c = Cos (a)", "w = Neg (a) c = Cos (w)"),
    "angles are not twice the same": PLAIN.replace("Concat <axis = 2> (p, p)", "Concat <axis = 2> (p, o)").replace(
        "a = C", "o = Exp (p) a = C"
    ),
    "another half is negative": PLAIN.replace("(n, x1)", "(x1, n)"),
    "the second factor is no constant": PLAIN.replace("Mul (t, f)", "Mul (t, e)")
    .replace("p =", "e = Exp (t4) p =")
    .replace("p = Mul", "p = Mul")
    .replace("e = Exp (t4)", "t4 = Concat <axis = 2> (t, t, t, t) e = Exp (t4)"),
    "the minus is read elsewhere": PLAIN.replace("q = Mul (r, s4)", "m = Mul (r, s4) v = Exp (r) q = Add (m, v)"),
    "halves of unequal width": PLAIN.replace("num_outputs = 2> (x)", "num_outputs = 2> (x)")
    .replace("x1, x2 = Split <axis = 3, num_outputs = 2> (x)", "x1, x2 = Split <axis = 3> (x, uneven)")
    .replace("p = Mul", "uneven = Constant <value_ints = [3, 5]> () p = Mul"),
    "another axis": PLAIN.replace("Concat <axis = -1> (n, x1)", "Concat <axis = 3> (n, x1)").replace(
        "a = Concat <axis = 2> (p, p)",
        "b = Concat <axis = 0> (p, p) h0, h1 = Split <axis = 0, num_outputs = 2> (b) a = Concat <axis = 2> (h0, h1)",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_sign_moves_and_the_numbers_stay(name):
    body, times = TAKEN[name]
    proto, feeds = model(body), {"x": array(2, 3, 5, 8), "t": np.arange(5, dtype=np.float32).reshape(1, 5, 1)}
    count, changed = signed(proto)
    assert count == times
    assert "Neg" not in kinds(changed)
    assert kinds(changed).count("Concat") == kinds(proto).count("Concat") - 1
    assert {item.name for item in changed.graph.initializer} == {"one", "g", "scale", "two"}
    assert np.array_equal(run(proto, feeds)["y"], run(changed, feeds)["y"])


@pytest.mark.parametrize("name", LEFT)
def test_other_forms_stay(name):
    proto = model(LEFT[name])
    count, changed = signed(proto)
    assert count == 0
    assert kinds(changed) == kinds(proto)


@pytest.mark.parametrize("level", ["auto", "O2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_converted_model_has_no_minus(level, dtype):
    body = "h = MatMul (x, w) " + PLAIN.replace("(x)", "(h)").replace("Mul (x, c4)", "Mul (h, c4)")
    proto = parse(
        f"(float[2,3,5,8] x, float[1,5,1] t) => (float[2,3,5,8] y) {{ {body} }}",
        f=array(4, low=0.1),
        w=array(8, 8),
        one=np.array([1]),
    )
    feeds = {"x": array(2, 3, 5, 8), "t": np.arange(5, dtype=np.float32).reshape(1, 5, 1)}
    report = support.convert(proto, feeds, level, dtype, limit=0.05)
    assert not support.nodes(report.program, "Neg")
