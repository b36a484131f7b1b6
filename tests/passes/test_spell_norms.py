"""Root mean square normalisation by a reciprocal is written as a division of one."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.spell_norms import SpellNorms
from tests import support
from tests.support import array, parse, run

_MEAN = "m = ReduceMean (p, last) e = Add (m, eps)"
NORM = f"p = Pow (x, two) {_MEAN} s = Sqrt (e) [i] i = Reciprocal (s) y = Mul (x, i)"
OTHERS = {
    "of another value": f"p = Pow (x, two) {_MEAN} s = Sqrt (e) [i] i = Reciprocal (s) z = Neg (x) y = Mul (z, i)",
    "of no square": f"p = Pow (x, eps) {_MEAN} s = Sqrt (e) [i] i = Reciprocal (s) y = Mul (x, i)",
    "without a root": f"p = Pow (x, two) {_MEAN} [i] i = Reciprocal (e) y = Mul (x, i)",
    "that is added": f"p = Pow (x, two) {_MEAN} s = Sqrt (e) [i] i = Reciprocal (s) y = Add (x, i)",
}


def model(body):
    return parse(
        f"(float[2,4] x) => (float[2,4] y) {{ {body} }}", two=np.float32(2), eps=np.float32(1e-6), last=np.array([-1])
    )


def spelled(proto):
    program = ir.from_proto(proto)
    propagate_types(program)
    count = SpellNorms()(program).count
    return count, ir.to_proto(program)


@pytest.mark.parametrize("body", [NORM, NORM.replace("Add (m, eps)", "Add (eps, m)")], ids=["mean", "epsilon first"])
def test_it_gives_the_same_numbers(body):
    count, changed = spelled(model(body))
    feeds = {"x": array(2, 4)}
    assert count == 1
    assert "Reciprocal" not in {node.op_type for node in changed.graph.node}
    assert np.array_equal(run(model(body), feeds)["y"], run(changed, feeds)["y"])


@pytest.mark.parametrize("name", OTHERS)
def test_other_reciprocals_stay(name):
    assert spelled(model(OTHERS[name]))[0] == 0


@pytest.mark.parametrize("level", ["auto", "O2"])
def test_it_is_seen_through_casts(level):
    proto = parse(
        f"(float[2,4] x0) => (float[2,4] y0) {{ x = MatMul (x0, w) {NORM} y0 = MatMul (y, w) }}",
        w=array(4, 4),
        two=np.float32(2),
        eps=np.float32(1e-6),
        last=np.array([-1]),
    )
    report = support.convert(proto, {"x0": array(2, 4)}, level)
    assert not support.nodes(report.program, "Reciprocal")
    assert support.decisions(report)["i"] == ("high" if level == "auto" else "low")


def test_what_becomes_float32_is_left():
    proto = model(NORM)
    report = amp.transpile(proto, dtype="float32", verify=False)
    assert len(support.nodes(report.program, "Reciprocal")) == 1
