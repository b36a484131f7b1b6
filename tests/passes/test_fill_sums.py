"""A tensor of one number, written as a fill and a sum, becomes a fill."""

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.fill_sums import FillSums
from tests import support
from tests.support import array, parse, run

FILL = "s = Shape (x) c = ConstantOfShape (s) "
ROWS = {
    "a number": (FILL + "f = Add (c, two) y = Mul (x, f)", 1),
    "the other way round": (FILL + "f = Add (two, c) y = Mul (x, f)", 1),
    "with a filler": (FILL.replace("(s)", "<value = float[1] {3.0}> (s)") + "f = Add (c, two) y = Mul (x, f)", 1),
    "a vector": (FILL + "f = Add (c, four) y = Mul (x, f)", 0),
    "no constant": (FILL + "f = Add (c, x) y = Mul (x, f)", 0),
    "read twice": (FILL + "f = Add (c, two) g = Sub (f, c) y = Mul (x, g)", 0),
    "no sum": (FILL + "f = Sub (c, two) y = Mul (x, f)", 0),
}


@pytest.mark.parametrize("name", ROWS)
def test_sums_with_a_number_are_taken_in(name):
    body, times = ROWS[name]
    proto = parse(
        f"(float[2,N] x) => (float[2,N] y) {{ {body} }}", two=np.float32(2), four=np.array([4, 5, 6, 7], np.float32)
    )
    program = ir.from_proto(proto)
    propagate_types(program)
    assert FillSums()(program).count == times
    changed = ir.to_proto(program)
    assert len(changed.graph.node) == len(proto.graph.node) - times
    feeds = {"x": array(2, 4)}
    assert np.array_equal(run(proto, feeds)["y"], run(changed, feeds)["y"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_low_fill_is_taken_in_too(dtype):
    body = f"h = MatMul (x, w) {FILL.replace('(x)', '(h)')} f = Add (c, two) g = Add (h, f) y = MatMul (g, w)"
    proto = parse(f"(float[2,4] x) => (float[2,4] y) {{ {body} }}", two=np.float32(2), w=array(4, 4))
    report = support.convert(proto, {"x": array(2, 4)}, "O2", dtype)
    assert "c" not in {node.name for node in support.nodes(report.program)}
