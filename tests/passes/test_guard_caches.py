"""Caches that grow have sizes of their own where the graph makes what they were before."""

import onnx_ir as ir
import pytest

from amp_transpiler.passes.guard_caches import GuardCaches

NAMED = ["p__size_0", 2, "p__size_2", 8]
# The past: fed or made by a Cast, and its sizes; sizes of the cache after the run, before and behind the pass.
CASES = {
    "unknown": ("cast", ["b", 2, "past", 8], [None, 2, None, 8], NAMED),
    "no shape": ("cast", ["b", 2, "past", 8], None, [f"p__size_{axis}" for axis in range(4)]),
    "those of the past": ("cast", ["b", 2, "past", 8], ["b", 2, "past", 8], NAMED),
    "names of its own": ("cast", ["b", 2, "past", 8], ["b", 2, "total", 8], ["b", 2, "total", 8]),
    "numbers": ("cast", [1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]),
    "a shared buffer of callers": ("fed", ["b", 2, "past", 8], [None, 2, None, 8], [None, 2, None, 8]),
}


def attention(made, before, after):
    fed = ir.Value(name="fed", shape=ir.Shape(before), type=ir.TensorType(ir.DataType.FLOAT))
    rest = [ir.Value(name=name) for name in "qkv"]
    nodes, past = [], fed
    if made == "cast":
        cast = ir.Node("", "Cast", [fed], [ir.AttrInt64("to", 10)])
        past = cast.outputs[0]
        past.name, past.shape = "past", ir.Shape(before)
        nodes = [cast]
    node = ir.Node("com.microsoft", "GroupQueryAttention", [*rest, past], num_outputs=2)
    node.outputs[0].name, node.outputs[1].name = "y", "p"
    node.outputs[1].shape = None if after is None else ir.Shape(after)
    imports = {"": 20, "com.microsoft": 1}
    graph = ir.Graph([fed, *rest], [node.outputs[0]], nodes=[*nodes, node], opset_imports=imports, name="g")
    return ir.Model(graph, ir_version=10), node.outputs[1]


@pytest.mark.parametrize(("made", "before", "after", "expected"), CASES.values(), ids=CASES)
def test_sizes_of_caches(made, before, after, expected):
    model, cache = attention(made, before, after)
    modified = GuardCaches()(model).modified
    sizes = None if cache.shape is None else [s if isinstance(s, int) else s.value for s in cache.shape]
    assert sizes == expected
    assert modified is (expected != after)
