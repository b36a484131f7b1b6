"""Sizes as numbers and symbols, by dataflow."""

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.sizes import Sizes
from tests.support import parse

# body over `(float[b,l,8] x, int64[b,l] i)` -> the shape of `y`; `?` is a symbol of its own
SHAPES = {
    "y = Relu(x)": ("b", "l", 8),
    "y = MatMul(x, w)": ("b", "l", 6),
    "y = Transpose<perm=[2,0,1]>(x)": (8, "b", "l"),
    "y = Transpose(x)": (8, "l", "b"),
    "y = Reshape(x, heads)": ("b", "l", 2, 4),
    "y = Reshape<allowzero=1>(x, known)": (5, 8),
    "s = Shape(x) n = Gather(s, zero) u = Unsqueeze(n, axis) t = Concat<axis=0>(u, rest) y = Reshape(x, t)": (
        "b",
        "l",
        8,
    ),
    "s = Shape<start=1, end=2>(x) t = Concat<axis=0>(s, minus, eight) y = Reshape(x, t)": ("l", "b", 8),
    "s = Shape(x) t = Slice(s, zeros, two, zeros) q = Concat<axis=0>(t, eight) y = Reshape(x, q)": ("b", "l", 8),
    "y = Gather(w, i)": ("b", "l", 6),
    "y = Unsqueeze(x, both)": ("b", 1, 1, "l", 8),
    "u = Unsqueeze(x, both) y = Squeeze(u, both)": ("b", "l", 8),
    "a, b2 = Split<axis=2, num_outputs=2>(x) y = Relu(b2)": ("b", "l", 4),
    "y = Slice(x, zeros, two, third)": ("b", "l", 2),
    "y = Concat<axis=2>(x, x)": ("b", "l", 16),
    "y = Concat<axis=1>(x, x)": ("b", "?", 8),
    "y = ReduceSum<keepdims=0>(x, axis2)": ("b", "l"),
    "y = ReduceMax(x, axis2)": ("b", "l", 1),
    "s = Shape(x) n = Gather(s, step) r = Range(zero, n, step) y = Unsqueeze(r, axis)": (1, "l"),
    "s = Shape(i) y = Expand(one, s)": ("b", "l"),
    "s = Shape(i) m = Mul(ones2, minus1) c = Equal(s, m) t = Where(c, ones2, s) y = Expand(one, t)": ("b", "l"),
    "y = Flatten(x)": ("b", "?"),
    "y = Conv(x, kernel)": ("b", 3, "?"),
    "y = Add(x, unknown)": ("b", "l", 8),
    'y = Einsum<equation="bld, dk -> kbl">(x, w)': (6, "b", "l"),
    'y = Einsum<equation="bld,bmd->blm">(x, unknown)': ("b", "l", 1),
    "y = GRU<hidden_size=2>(x, gates, states)": ("b", 1, "l", 2),
    "r, y = GRU<hidden_size=2, layout=1>(x, gates, states)": ("b", 1, 2),
    "y, places = TopK(x, two)": ("b", "l", 2),
    "r, y = TopK<axis=1>(x, two)": ("b", 2, 8),
    "n = Gather(w, zero) m = Size(n) k = Reshape(m, zeros1) y, places = TopK(x, k)": ("b", "l", "?"),
    "y = NonZero(x)": (3, "?"),
}
CONSTANTS = {
    "w": np.ones((8, 6), np.float32),
    "heads": np.array([0, 0, 2, 4]),
    "known": np.array([5, 8]),
    "zero": np.int64(0),
    "step": np.int64(1),
    "axis": np.array([0]),
    "axis2": np.array([-1]),
    "rest": np.array([-1, 8]),
    "minus": np.array([-1]),
    "minus1": np.array([-1]),
    "eight": np.array([8]),
    "both": np.array([1, 2]),
    "zeros": np.array([0]),
    "two": np.array([2]),
    "third": np.array([2]),
    "ones2": np.array([1, 1]),
    "one": np.float32(1),
    "kernel": np.ones((3, 4, 2), np.float32),
    "unknown": np.ones((1, 1, 8), np.float32),
    "gates": np.ones((1, 6, 8), np.float32),
    "states": np.ones((1, 6, 2), np.float32),
    "zeros1": np.array([1]),
}


def sizes_of(body):
    proto = parse(f"(float[b,l,8] x, int64[b,l] i) => (float z) {{ {body} z = Identity(y) }}", **CONSTANTS)
    graph = amp.load(proto).model.graph
    return Sizes(graph), {str(value.name): value for node in graph for value in node.outputs}


@pytest.mark.parametrize("body", SHAPES)
def test_a_shape_by_dataflow(body):
    sizes, values = sizes_of(body)
    shape = sizes.shape(values["y"])
    if body.startswith("y = NonZero"):
        assert shape is None, "an operator without a rule says nothing"
        return
    assert tuple("?" if str(dim).startswith("?") else dim for dim in shape) == SHAPES[body]


def test_two_sizes_that_are_not_known_are_not_the_same():
    sizes, values = sizes_of("a = Conv(x, kernel) d = Conv(x, kernel) y = Add(a, d)")
    assert sizes.shape(values["a"])[2] != sizes.shape(values["d"])[2]


def test_a_number_is_stronger_than_a_name():
    sizes, values = sizes_of("s = Concat<axis=0>(minus, eight) r = Reshape(w, s) y = Add(x, r)")
    assert sizes.shape(values["r"]) == (6, 8)
    assert sizes.shape(values["y"]) == ("b", 6, 8)


def test_the_same_sizes_give_the_same_sum():
    sizes, values = sizes_of("c = Concat<axis=1>(x, x) d = Concat<axis=1>(x, unknown, x) y = Concat<axis=1>(x, x)")
    assert sizes.shape(values["c"]) == sizes.shape(values["y"])
    assert sizes.shape(values["d"]) != sizes.shape(values["y"])


CONTRADICTIONS = {
    "more axes than there are": "y = Transpose<perm=[0,2,1,3]>(x)",
    "parts of other ranks": "y = Concat<axis=2>(x, w)",
    "a slice of a scalar": "s = ReduceSum<keepdims=0>(x) y = Slice(s, zeros, two, third)",
    "two starts and three axes": "y = Slice(x, zeros, two, both)",
    "an axis beyond the rank": "f = Flatten(x) y = Unsqueeze(f, far)",
    "letters of another rank": 'y = Einsum<equation="ij->i">(x)',
    "a letter of no term": 'y = Einsum<equation="ijk->l">(x)',
    "a flat scalar": "s = ReduceSum<keepdims=0>(x) y = Flatten<axis=-1>(s)",
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_sizes_that_contradict_each_other_are_unknown_or_guessed(case):
    """Shape inference leaves such models alone where a shape is not declared; nobody may trip over them."""
    body = CONTRADICTIONS[case]
    text = f"(float[b,l,8] x, int64[b,l] i) => (float z) {{ {body} z = Identity(y) }}"
    graph = ir.from_proto(parse(text, far=np.array([9]), **CONSTANTS)).graph
    for value in (value for node in graph for value in node.outputs):
        Sizes(graph).shape(value)
