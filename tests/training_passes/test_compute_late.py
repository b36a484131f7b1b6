"""Nodes of a step that wait until their large results are read."""

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.training_passes import ComputeLate
from amp_transpiler.training_passes.alive import Memory
from tests.support import parse

# name: (nodes, their order afterwards)
ORDERS = {
    "what it reads is alive anyway": (
        "a = Exp (x) u = Concat <axis = 0> (a, a) b = Sin (a) c = Cos (b) v = Add (c, a) y = Concat <axis = 0> (u, v)",
        "Exp Sin Cos Add Concat Concat",
    ),
    "an input of the graph": (
        "u = Neg (x) b = Sin (x) c = Cos (b) d = Abs (c) y = Add (u, d)",
        "Sin Cos Abs Neg Add",
    ),
    "a view and what it is of": (
        "u = Neg (x) v = Reshape (u, flat) b = Sin (x) c = Cos (b) d = Reshape (c, flat) y = Add (v, d)",
        "Sin Cos Reshape Neg Reshape Add",
    ),
    "what it reads would be alive for it": (
        "a = Concat <axis = 0> (x, x) u = Slice (a, zero, one) b = Sin (x) c = Cos (b) y = Add (u, c)",
        "Concat Slice Sin Cos Add",
    ),
    "a result of the graph": ("b = Sin (x) y = Neg (b) c = Cos (b) z = Abs (c)", "Sin Neg Cos Abs"),
    "a result of inputs alone": ("y = Neg (x) b = Sin (x) c = Cos (b) z = Abs (c)", "Sin Cos Abs Neg"),
    "a result of another one": ("y = Neg (x) z = Exp (y) b = Sin (x) c = Cos (b)", "Neg Sin Cos Exp"),
    "results at the end": ("b = Sin (x) y = Neg (x) z = Exp (y)", "Sin Neg Exp"),
    "small results": ("s = Neg (t) b = Sin (x) c = Cos (b) y = Add (s, c)", "Neg Sin Cos Add"),
}


def model_of(nodes):
    text = (
        f"(float[200,100] x, float[100] t) => (float[a,b] y{', float[c,d] z' if 'z =' in nodes else ''}) "
        f"<int64[2] flat = {{100, 200}}, int64[1] zero = {{0}}, int64[1] one = {{200}}> {{ {nodes} }}"
    )
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parse(text, opset=21)))
    propagate_types(model)
    return model


def most_alive(model):
    return max(Memory(model.graph).alive())


@pytest.mark.parametrize(("nodes", "order"), ORDERS.values(), ids=ORDERS)
def test_where_nodes_go(nodes, order):
    model = model_of(nodes)
    before, most = [node.op_type for node in model.graph], most_alive(model)
    moved = ComputeLate()(model)
    assert [node.op_type for node in model.graph] == order.split()
    assert moved.modified == (before != order.split())
    assert most_alive(model) <= most
