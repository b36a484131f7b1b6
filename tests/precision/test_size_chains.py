"""Floats that decide sizes, or how often a loop runs: what computes them, and nothing else."""

import re

import numpy as np
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.precision.size_chains import size_chains
from tests.support import array, parse

BODY = "(int64 k, bool go, float[4] s) => (bool on, float[4] r)"
COUNT = "[f] f = Mul (t, q) [c] c = Cast <to = 7> (f)"

# what the graph computes -> names of the nodes that decide a size, of those that are named
DECIDE = {
    "Tile": (f"{COUNT} y = Tile (x, c)", {"f", "c"}),
    "ConstantOfShape": (f"{COUNT} y = ConstantOfShape (c)", {"f", "c"}),
    "OneHot": (f"{COUNT} y = OneHot (i, c, v)", {"f", "c"}),
    "TopK": (f"{COUNT} y, p = TopK (x, c)", {"f", "c"}),
    "Resize by scales": ("[f] f = Mul (t, q) y = Resize (x, , f)", {"f"}),
    "Unique": ("[f] f = Mul (x, q) y = Unique (f)", {"f"}),
    "Unique of a chain": ("[e] e = Exp (x) [f] f = Floor (e) y = Unique (f)", {"e", "f"}),
    "Unique of labels": ("[e] e = Exp (x) a = ArgMax (e) y = Unique (a)", set()),
    "a number of trips": (
        f"{COUNT} z = Squeeze (c) y = Loop (z, , x) <body = b {BODY} {{ on = Identity (go) [r] r = Neg (s) }}>",
        {"f", "c"},
    ),
    "a loop that stops on a float": (
        f"y = Loop (, yes, x) <body = b {BODY} {{ [r] r = Mul (s, q) [d] d = ReduceMax (r) [on] on = Less (d, q) }}>",
        {"d", "on", "r"},
    ),
    "numbers alone": ("[f] f = Mul (x, q) y = Relu (f)", set()),
    "a fixed size": ("[f] f = Mul (x, q) y = Tile (f, two)", set()),
}


@pytest.mark.parametrize("case", DECIDE)
def test_what_decides_a_size_is_found(case):
    body, expected = DECIDE[case]
    constants = {"q": np.float32([0.9]), "two": np.int64([2]), "i": np.int64([0, 1]), "v": array(2), "yes": np.bool_(1)}
    used = {name: value for name, value in constants.items() if re.search(rf"[ (]{name}\b", body)}
    model = ir.from_proto(parse(f"(float[4] x, float[1] t) => (float[N] y) {{ {body} }}", **used))
    propagate_types(model)
    named = {"f", "c", "e", "d", "on", "r"}
    assert {str(node.name) for node in size_chains(all_nodes(model))} & named == expected
