"""What grows with an open size stays float32, whatever short inputs show."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import in_order
from amp_transpiler.precision.known_shapes import KnownShapes
from amp_transpiler.precision.range_growth import growing
from tests import support
from tests.support import array, parse

NUMBERS = {
    "axis": np.int64([1]),
    "last": np.int64([2]),
    "end": np.int64([1]),
    "place": np.int64(1),
    "zero": np.int64(0),
    "step": np.int64(1),
    "tenth": np.float32(0.1),
    "w": array(8, 8, seed=1),
}
LENGTH = "s = Shape (x) n = Gather (s, place)"

# name: (body, whether y grows)
GROWTH = {
    "positions": (f"{LENGTH} r = Range (zero, n, step) y = Cast <to = 1> (r)", True),
    "positions that are scaled": (f"{LENGTH} r = Range (zero, n, step) f = Cast <to = 1> (r) y = Mul (f, tenth)", True),
    "not their sine": (f"{LENGTH} r = Range (zero, n, step) f = Cast <to = 1> (r) y = Sin (f)", False),
    "a length": (f"{LENGTH} y = Cast <to = 1> (n)", True),
    "the root of one": (f"{LENGTH} f = Cast <to = 1> (n) y = Sqrt (f)", True),
    "a running sum": ("y = CumSum (x, place)", True),
    "more than a running sum": ("c = CumSum (x, place) y = Add (c, tenth)", True),
    "a sum": ("y = ReduceSum (x, axis)", True),
    "a sum of everything": ("y = ReduceSum (x)", True),
    "a norm": ("y = ReduceL2 (x, axis)", True),
    "a sum of magnitudes": ("y = ReduceL1 (x, axis)", True),
    "the sum of a sum": ("a = ReduceSum (x, axis) y = ReduceSum (a, last)", True),
    "not a sum along a fixed size": ("y = ReduceSum (x, last)", False),
    "not a running sum along a fixed size": ("y = CumSum (x, last)", False),
    "not a mean": ("y = ReduceMean (x, axis)", False),
    "not a sum over another one": ("a = ReduceSum (x, axis) b = ReduceL1 (x, axis) y = Div (a, b)", False),
    "not a product with weights": ("a = CumSum (x, place) y = MatMul (a, w)", False),
    "a length that is fed": ("y = Cast <to = 1> (lengths)", True),
    "not a mask that is fed": ("y = Cast <to = 1> (mask)", False),
}


def typed(text):
    inputs = "(float[2, L, 8] x, int64[2] lengths, int64[2, L] mask)"
    model = ir.from_proto(parse(f"{inputs} => (float y) {{ {text} }}", **NUMBERS))
    propagate_types(model)
    for index, node in enumerate(model.graph):
        node.name = f"n{index}"  # as a prepared program has them
    return model


@pytest.mark.parametrize(("text", "expected"), GROWTH.values(), ids=GROWTH)
def test_what_grows(text, expected):
    model = typed(text)
    grown = growing(model, list(in_order(model.graph)), KnownShapes(model, {}))
    assert (model.graph.outputs[0] in grown) is expected


# name: a body that level auto keeps float32, whose ranges on short data fit with headroom
KEPT = {
    "positions": f"{LENGTH} r = Range (zero, n, step) f = Cast <to = 1> (r) [b] g = Mul (f, tenth) c = Sin (g) "
    "u = Unsqueeze (c, end) h = Add (x, u)",
    "their sine": f"{LENGTH} r = Range (zero, n, step) f = Cast <to = 1> (r) g = Mul (f, tenth) [b] c = Sin (g) "
    "u = Unsqueeze (c, end) h = Add (x, u)",
    "the sine of a running sum": "c = CumSum (x, place) [b] h = Sin (c)",
    "a running sum": "[b] h = CumSum (x, place)",
    "what is added to it": "c = CumSum (x, place) [b] h = Add (c, tenth)",
    "a sum": "[b] s = ReduceSum (x, axis) t = Tanh (s) h = Add (x, t)",
    "a norm": "[b] s = ReduceL2 (x, axis) t = Tanh (s) h = Add (x, t)",
    "a sum that is scaled": "s = ReduceSum (x, axis) [b] q = Mul (s, tenth) t = Tanh (q) h = Add (x, t)",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_a_tolerance_makes_nothing_low_that_grows(text):
    model = parse(f"(float[2, L, 8] x) => (float[2, L, 8] y) {{ {text} y = MatMul (h, w) }}", **NUMBERS)
    feeds = {"x": array(2, 4, 8, seed=3, scale=0.1)}
    report = amp.transpile(model, inputs=feeds, tolerance=0.05, prefer="size")
    assert support.decisions(report)["b"] in ("high", "untouched")
