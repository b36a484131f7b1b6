"""Nodes evaluated with numpy: as ONNX's reference does, symbols and places moved like numbers."""

import math

import numpy as np
import onnx.reference
import onnx_ir as ir
import pytest

from amp_transpiler.graph.evaluate import MOST_ELEMENTS, MOVES, evaluate
from tests.support import parse

A = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
B = np.array([[3, -2, 0, 5]])
HALF = np.array([0.5, 4.0], np.float32)
# node over `a` and `b` -> further inputs
NODES = {
    "y = Add(a, b)": {},
    "y = Sub(a, b)": {},
    "y = Mul(a, b)": {},
    "y = Div(a, p)": {"p": np.array([7, 2, 3, 5])},
    "y = Mod(a, p)": {"p": np.array([7, 2, 3, 5])},
    "y = Equal(a, b)": {},
    "y = Max(a, b)": {},
    "y = Where(c, a, b)": {"c": np.array([True, False, True, False])},
    "y = Gather<axis = 1>(a, i)": {"i": np.array([[2, -1], [0, 0]])},
    "y = Slice(a, s, e, x, t)": {
        "s": np.array([0, -1]), "e": np.array([9, -9]), "x": np.array([1, 2]), "t": np.array([2, -1])
    },
    "y = Slice(a, s, e)": {"s": np.array([1]), "e": np.array([2**62])},
    "y = Squeeze(d, x)": {"d": A[:1], "x": np.array([0])},
    "y = Squeeze(d)": {"d": A[:1]},
    "y = Unsqueeze(a, x)": {"x": np.array([0, -1])},
    "y = Concat<axis = -1>(a, a)": {},
    "y = Reshape(a, s)": {"s": np.array([0, -1])},
    "y = Flatten<axis = 2>(a)": {},
    "y = Flatten<axis = 0>(a)": {},
    "y = Transpose<perm = [2, 0, 1]>(a)": {},
    "y = Transpose(a)": {},
    "z, y = Split<axis = 2>(a, s)": {"s": np.array([1, 3])},
    "z, y = Split<axis = 1, num_outputs = 2>(a)": {},
    "y = Expand(b, s)": {"s": np.array([3, 1, 4])},
    "y = Tile(b, r)": {"r": np.array([2, 3])},
    "y = Range(s, e, t)": {"s": np.int64(2), "e": np.int64(11), "t": np.int64(4)},
    "y = ConstantOfShape<value = int64[1] {7}>(s)": {"s": np.array([2, 3])},
    "y = ReduceProd(a, x)": {"x": np.array([1])},
    "y = ReduceMax<keepdims = 0>(a, x)": {"x": np.array([0, 2])},
    "y = ScatterND(a, i, u)": {"i": np.array([[0, 1], [1, 2]]), "u": A[0, :2] * 100},
    "y = Cast<to = 1>(a)": {},
    "y = Sqrt(f)": {"f": HALF},
    "y = Reciprocal(f)": {"f": HALF},
    "y = Sin(f)": {"f": HALF},
    "y = Cos(f)": {"f": HALF},
    "y = Clip(f, l, h)": {"f": HALF, "l": np.float32(1.0), "h": np.float32(2.0)},
    "y = Clip(f, , h)": {"f": HALF, "h": np.float32(2.0)},
}  # fmt: skip


def case(text):
    feeds = {"a": A, "b": B, **NODES[text]}
    outputs = text.split("=")[0].replace(" ", "").split(",")
    types = ", ".join(f"{'float' if array.dtype.kind == 'f' else 'bool' if array.dtype.kind == 'b' else 'int64'}"
                      f"[{', '.join(map(str, array.shape))}] {name}" for name, array in feeds.items())  # fmt: skip
    proto = parse(f"({types}) => ({', '.join(f'int64 {name}' for name in outputs)}) {{ {text} }}")
    node = next(iter(ir.from_proto(proto).graph))
    return proto, node, feeds, len(outputs) - 1


@pytest.mark.parametrize("text", NODES)
def test_as_onnx_computes_it(text):
    proto, node, feeds, output = case(text)
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, {name: feeds[name] for name in feeds})[output]
    result = evaluate(node, [value and feeds[str(value.name)] for value in node.inputs], output=output)
    assert result is not None
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("text", [text for text in NODES if any(f"= {move}" in text for move in MOVES)])
def test_symbols_move_like_numbers(text):
    _, node, feeds, output = case(text)
    inputs = [feeds[str(value.name)] for value in node.inputs]
    count = len(inputs) if node.op_type == "Concat" else 1
    numbers = evaluate(node, inputs, output=output)
    words = [np.array([f"n{number}" for number in array.reshape(-1)], object).reshape(array.shape) for array in inputs]
    symbols = evaluate(node, [*words[:count], *inputs[count:]], output=output)
    assert symbols.tolist() == np.vectorize(lambda number: f"n{number}", otypes=[object])(numbers).tolist()


MISFITS = {
    "y = Gather<axis = 1>(a, i)": {"i": np.array([3])},
    "y = Reshape(a, s)": {"s": np.array([5, 5])},
    "y = Transpose<perm = [2, 0, 1]>(a)": {"a": B},
    "y = Add(a, b)": {"b": np.arange(5)},
    "y = Expand(b, s)": {"s": np.array([1 << 20, 4])},
    "y = Tile(b, r)": {"r": np.array([1 << 10, 1 << 10])},
    "y = Concat<axis = -1>(a, a)": {"a": np.zeros(MOST_ELEMENTS + 1, np.int64)},
}


@pytest.mark.parametrize("text", MISFITS)
def test_of_inputs_that_do_not_fit_nothing_is_known(text):
    _, node, feeds, output = case(text)
    inputs = [(feeds | MISFITS[text])[str(value.name)] for value in node.inputs]
    assert evaluate(node, inputs, output=output) is None


def test_values_of_a_run_have_no_limit():
    _, node, _, _ = case("y = Concat<axis = -1>(a, a)")
    large = np.zeros(MOST_ELEMENTS, np.int64)
    assert evaluate(node, [large, large]) is None
    assert evaluate(node, [large, large], most=math.inf).size == 2 * MOST_ELEMENTS
