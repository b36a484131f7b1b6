"""Shapes in converted models: known ones survive, all others are inferred as far as ONNX's operators let it."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.proto import proto_graphs
from amp_transpiler.graph.shape_inference import add_shapes
from amp_transpiler.graph.types import propagate_types
from tests.decoders import Decoder
from tests.support import array, parse

MICROSOFT = ', "com.microsoft": 1'


def shapes(proto):
    """Return the dimensions of every described value: numbers, names, None for open ones; None without a shape."""
    infos = [info for graph in proto_graphs(proto.graph) for info in (*graph.value_info, *graph.output)]
    return {
        info.name: [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
        if tensor.HasField("shape")
        else None
        for info in infos
        for tensor in [info.type.tensor_type]
    }


def filled(graph, *, opset=18, imports=MICROSOFT, **weights):
    program = amp.load(parse(graph, opset=opset, imports=imports, **weights))
    propagate_types(program.model)
    return shapes(add_shapes(program.to_onnx()))


# graph, weights, the shapes of some results
GRAPHS = {
    "symbols": (
        "(float[b,8,16] x) => (float[b,8,4] y) { a = MatMul(x, w) h = Relu(a) y = Identity(h) }",
        {"w": array(16, 4)},
        {"a": ["b", 8, 4], "h": ["b", 8, 4]},
    ),
    "computed sizes": (
        """(float[b,8,16] x) => (float[b,8,4,4] y) { s = Shape(x) n = Gather(s, one) k = Unsqueeze(n, zero)
        t = Concat<axis=0>(minus, k, four, four) y = Reshape(x, t) z = Transpose<perm=[0,2,1,3]>(y) }""",
        {name: np.array(v, np.int64) for name, v in {"one": 1, "zero": [0], "minus": [-1], "four": [4]}.items()},
        {"s": [3], "n": [], "k": [1], "t": [4], "z": ["b", 4, 8, 4]},
    ),
    "a scalar weight": (
        "(float[b,8] x, bool c) => (float[b,8] y) { a = And(c, t) h = Where(a, x, x) y = Relu(h) }",
        {"t": np.array(True)},
        {"a": [], "h": ["b", 8]},
    ),
    "a body": (
        """(float[b,8] x, bool c) => (float[b,4] y) { y = If(c) <then_branch = t () => (p) { m = MatMul(x, w)
        p = Relu(m) }, else_branch = e () => (q) { k = MatMul(x, w) q = Neg(k) }> }""",
        {"w": array(8, 4)},
        {"m": ["b", 4], "p": ["b", 4], "k": ["b", 4], "q": ["b", 4]},
    ),
    "the same shape as before": (
        """(float[b,8,16] x) => (float[b,8,16] y) { a = SimplifiedLayerNormalization<axis=-1>(x, s)
        [p] p, , , q = com.microsoft.SkipSimplifiedLayerNormalization(a, x, s) [g] g = com.microsoft.FastGelu(q)
        [h] h = com.microsoft.BiasGelu(g, s) y = Add(h, p) }""",
        {"s": array(16)},
        {key: ["b", 8, 16] for key in "apqgh"},
    ),
    "fused products": (
        """(float[b,8,16] x) => (float[b,8,8] y) { [a] a = com.microsoft.FusedMatMul<transB=1>(x, x)
        [c] c = com.microsoft.FusedMatMul<transA=1>(x, x) [d] d = com.microsoft.FusedMatMul(a, x) y = Relu(a) }""",
        {},
        {"a": ["b", 8, 8], "c": ["b", 16, 16], "d": ["b", 8, 16]},
    ),
    "fused convolution and Gemm": (
        """(float[b,3,8,8] x) => (float[b,5] y) {
        [c] c = com.microsoft.FusedConv<strides=[2,2], activation="Relu">(x, k)
        f = Flatten(c) [y] g = com.microsoft.FusedGemm<transB=1, activation="Relu">(f, w) y = Relu(g) }""",
        {"k": array(4, 3, 2, 2), "w": array(5, 64)},
        {"c": ["b", 4, 4, 4], "f": ["b", 64], "g": ["b", 5]},
    ),
    "embedding and attention": (
        """(int32[b,s] ids) => (float[b,s,16] y) {
        [e] e, m = com.microsoft.EmbedLayerNormalization(ids, , words, places, , t, t)
        [q] q = com.microsoft.Attention<num_heads=2>(e, w, v) y = Relu(q) }""",
        {"words": array(30, 16), "places": array(9, 16), "t": array(16), "w": array(16, 48), "v": array(48)},
        {"e": ["b", "s", 16], "q": ["b", "s", 16]},
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_shapes_are_inferred(name):
    graph, weights, expected = GRAPHS[name]
    inferred = filled(graph, **weights)
    assert {value: inferred[value] for value in expected} == expected


KNOWN = [
    ("float[2,4] a", [2, 4]),  # declared, more than inference finds
    ("float[b,4] a", ["b", 4]),
]


@pytest.mark.parametrize(("declared", "expected"), KNOWN)
def test_known_shapes_stay(declared, expected):
    graph = f"(float[m,4] x) => (float[m,4] y) <{declared}> {{ [n] a = some.domain.Custom(x) y = Relu(a) }}"
    assert filled(graph, imports=', "some.domain": 1')["a"] == expected


def test_open_sizes_are_filled_in_and_outputs_get_no_made_up_names():
    inferred = filled("(float[b,4] x, int64[1] n) => (y, z) <float[?,?] a> { a = Relu(x) y = Neg(a) z = Expand(x, n) }")
    assert (inferred["a"], inferred["y"], inferred["z"]) == (["b", 4], ["b", 4], ["b", 4])
    inferred = filled("(float[b,4] x, bool[b] c) => (y) { a = Compress<axis=0>(x, c) y = Relu(a) }")
    assert inferred["y"] == [None, 4]
    assert isinstance(inferred["a"][0], str)


def test_a_negative_size_is_an_open_one():
    model = parse("(float[2,4] x) => (float[2,4] y) <float[2,4] a> { a = Relu(x) y = Neg(a) }")
    model.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert shapes(add_shapes(model))["a"] == [2, 4]


@pytest.mark.parametrize("options", [{}, {"rotary": "operator"}, {"quantised": True}])
def test_a_written_decoder_has_every_shape(tmp_path, options):
    amp.transpile(Decoder(**options).build(), tmp_path / "low.onnx", verify=False, prefer="size")
    graph = onnx.load(tmp_path / "low.onnx").graph
    described = {info.name for info in graph.value_info if info.type.tensor_type.HasField("shape")}
    described |= {info.name for info in graph.output}
    assert {name for node in graph.node for name in node.output if name} <= described


def test_shapes_let_the_runtime_fuse(tmp_path):
    """SkipLayerNormalization is fused only if both summands are known to have one shape."""
    model = parse(
        """(float[b,s,16] x) => (float[b,s,16] y) { n = Shape(x) b1 = Gather(n, zero) s1 = Gather(n, one)
        b2 = Unsqueeze(b1, axes) s2 = Unsqueeze(s1, axes) t = Concat<axis=0>(b2, s2, heads, width)
        p = MatMul(x, w) r = Reshape(p, t) u = Transpose<perm=[0,2,1,3]>(r) v = Transpose<perm=[0,2,1,3]>(u)
        z = Concat<axis=0>(b2, s2, all) m = Reshape(v, z) a = Add(m, x) y = LayerNormalization(a, g, g) }""",
        w=array(16, 16),
        g=array(16),
        **{k: np.array(v, np.int64) for k, v in {"zero": 0, "one": 1, "axes": [0], "heads": [2], "width": [8]}.items()},
        all=np.array([16], np.int64),
    )
    amp.transpile(model, tmp_path / "low.onnx", level="O2", verify=False, fuse="none")
    by_name = shapes(onnx.load(tmp_path / "low.onnx"))
    names = [value for value, shape in by_name.items() if shape == ["b", "s", 16]]
    assert {"m", "a"} <= set(names)
