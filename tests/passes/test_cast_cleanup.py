"""Removing casts: only those that change nothing."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.passes.clean_casts import CleanCasts
from tests import support
from tests.support import parse

T = onnx.TensorProto
SHORT = {
    "f32": (T.FLOAT, "float"),
    "f16": (T.FLOAT16, "float16"),
    "bf16": (T.BFLOAT16, "bfloat16"),
    "f64": (T.DOUBLE, "double"),
    "i64": (T.INT64, "int64"),
    "i32": (T.INT32, "int32"),
    "i16": (T.INT16, "int16"),
    "i8": (T.INT8, "int8"),
    "u64": (T.UINT64, "uint64"),
    "u32": (T.UINT32, "uint32"),
    "u16": (T.UINT16, "uint16"),
    "u8": (T.UINT8, "uint8"),
    "bool": (T.BOOL, "bool"),
}


def cast_chain(types, opset=18):
    """A model that casts x from the first type to the second and so on; the ends are held by an Identity each."""
    names = [f"v{index}" for index in range(len(types))]
    calls = " ".join(
        f"{to} = Cast <to = {SHORT[t][0]}> ({of})" for of, to, t in zip(names, names[1:], types[1:], strict=False)
    )
    first, last = SHORT[types[0]][1], SHORT[types[-1]][1]
    return parse(
        f"({first}[N] x) => ({last}[N] y) {{ v0 = Identity (x) {calls} y = Identity ({names[-1]}) }}", opset=opset
    )


def cleaned(proto):
    model = ir.from_proto(proto)
    propagate_types(model)
    removed = CleanCasts()(model).removed
    verify(model, "cleaning")
    return model, removed


def left(model):
    """Types along the chain that is left, the first included."""
    node = model.graph[-1]
    values = []
    while True:
        value = node.inputs[0]
        values.append(next(short for short, (number, _) in SHORT.items() if number == value.dtype))
        node = value.producer()
        if node is None or node.op_type != "Cast":
            return " ".join(reversed(values))


CHAINS = {
    # casts given: casts left
    "f32 f32": "f32",
    "f32 f16": "f32 f16",
    # Rule 2: the first of two loses nothing
    "f16 f32 f16": "f16",
    "bf16 f32 bf16": "bf16",
    "f16 f32 bf16": "f16 bf16",
    "f16 f32 f64": "f16 f64",
    "f32 f64 f32": "f32",
    "f32 f64 f16": "f32 f16",
    "f16 f32 i64": "f16 i64",
    "f16 f32 f16 f32 f16": "f16",
    "f16 f32 f16 f32": "f16 f32",
    "i8 f32 f16": "i8 f16",
    "i8 f16 f32": "i8 f32",
    "i64 f32 f16": "i64 f16",
    "i64 f32 bf16": "i64 bf16",
    "i32 f32 f16": "i32 f16",
    "i16 f32 f16": "i16 f16",
    "u64 f32 f16": "u64 f16",
    "u32 f32 f16": "u32 f16",
    "u16 f32 f16": "u16 f16",
    "u8 f32 f16": "u8 f16",
    "bool f32 f16": "bool f16",
    "i16 f32 i16": "i16",
    "u16 f32 f64": "u16 f64",
    "u32 f32 f64": "u32 f32 f64",
    "u64 f64 f32": "u64 f64 f32",
    "u32 f64 f32": "u32 f32",
    "i64 f64 f16": "i64 f64 f16",
    "i64 f16 bf16": "i64 f16 bf16",
    "i64 f32 f64": "i64 f32 f64",
    # a round trip that rounds is no round trip
    "f32 f16 f32": "f32 f16 f32",
    "f32 bf16 f32": "f32 bf16 f32",
    "f64 f32 f64": "f64 f32 f64",
    "f64 f32 f16": "f64 f32 f16",
    "f16 bf16 f16": "f16 bf16 f16",
    "bf16 f16 bf16": "bf16 f16 bf16",
    "f32 f16 f32 f16 f32": "f32 f16 f32",
    # truncation
    "f32 i64 f32": "f32 i64 f32",
    "f32 i32 f16": "f32 i32 f16",
    "f16 i8 f16": "f16 i8 f16",
    "f32 bool f32": "f32 bool f32",
    "f32 i64 i8 f32": "f32 i64 i8 f32",
    # integers that float32 does not hold
    "i64 f32 i64": "i64 f32 i64",
    "i32 f32 f64": "i32 f32 f64",
    "i32 f64 f32": "i32 f32",
    "i64 f16 f32": "i64 f16 f32",
    "u8 bf16 f32": "u8 f32",
}


@pytest.mark.parametrize("given", CHAINS)
def test_a_chain_of_casts(given):
    types = given.split()
    model, removed = cleaned(cast_chain(types))
    assert left(model) == CHAINS[given]
    assert removed == len(types) - len(CHAINS[given].split())


@pytest.mark.parametrize("given", CHAINS)
def test_cleaning_twice_is_cleaning_once(given):
    model, _ = cleaned(cast_chain(given.split()))
    assert CleanCasts()(model).removed == 0


RUNNABLE = sorted(set(SHORT) - {"bf16"})  # numpy hands ONNX Runtime no bfloat16; the casts in between may be
VALUES = st.lists(
    st.floats(-120, 120, width=32) | st.sampled_from([0.5, 1.5, -0.5, 2049.0, 0.1, 1e-7]), min_size=1, max_size=8
)


@hypothesis.settings(max_examples=60, deadline=None, database=None, derandomize=True)
@hypothesis.given(
    ends=st.tuples(st.sampled_from(RUNNABLE), st.sampled_from(RUNNABLE)),
    middle=st.lists(st.sampled_from(sorted(SHORT)), max_size=5),
    values=VALUES,
)
def test_no_cast_that_changes_a_value_is_removed(ends, middle, values):
    types = [ends[0], *middle, ends[1]]
    proto = cast_chain(types)
    # negative to unsigned is undefined
    numbers = np.abs(values) if {"u8", "u16", "u32", "u64", "bool"} & set(types) else np.array(values)
    if {"i8", "u8"} & set(types):
        numbers = np.clip(numbers, -120, 120)  # beyond the range it is undefined too
    feeds = {"x": numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(SHORT[ends[0]][0]))}
    model, _ = cleaned(proto)
    expected = support.run(proto, feeds)["y"]
    np.testing.assert_array_equal(support.run(ir.to_proto(model), feeds)["y"], expected)


GRAPHS = {
    # name: (graph, casts left, casts removed)
    "Rule 3: twice the same": (
        "(float[2] x) => (float16[2] z) { a = Cast <to = 10> (x) b = Cast <to = 10> (x) z = Add (a, b) }",
        [("x", "FLOAT16")],
        1,
    ),
    "to two types": (
        """(float[2] x) => (float16[2] y, double[2] z) { a = Cast <to = 10> (x) b = Cast <to = 11> (x) y = Neg (a)
            z = Neg (b) }""",
        [("x", "FLOAT16"), ("x", "DOUBLE")],
        0,
    ),
    "Rule 4: read by nothing": (
        "(float[2] x) => (float[2] y) { a = Cast <to = 10> (x) b = Cast <to = 1> (a) y = Neg (x) }",
        [],
        2,
    ),
    "an output keeps its name": (
        "(float16[2] x) => (float16[2] y) { a = Cast <to = 1> (x) y = Cast <to = 10> (a) }",
        None,
        None,
    ),
    "an output that is a value computed": (
        "(float16[2] x) => (float16[2] y) { n = Neg (x) a = Cast <to = 1> (n) y = Cast <to = 10> (a) }",
        [],
        2,
    ),
    "two outputs that are one value": (
        """(float16[2] x) => (float16[2] y, float16[2] z) { n = Neg (x) a = Cast <to = 1> (n) y = Cast <to = 10>
            (a) z = Cast <to = 10> (a) }""",
        None,
        None,
    ),
    "the same cast as an output and inside": (
        "(float[2] x) => (float16[2] y, float16[2] z) { y = Cast <to = 10> (x) a = Cast <to = 10> (x) z = Neg (a) }",
        [("x", "FLOAT16")],
        1,
    ),
    "the same cast as two outputs": (
        "(float[2] x) => (float16[2] y, float16[2] z) { y = Cast <to = 10> (x) z = Cast <to = 10> (x) }",
        None,
        None,
    ),
    "an input that is an output, too": (
        "(float[2] x) => (float[2] x, float[2] y) { a = Cast <to = 1> (x) y = Neg (a) }",
        [],
        1,
    ),
    "the wide value is read by others": (
        """(float16[2] x) => (float16[2] y, float[2] z) { n = Neg (x) f = Cast <to = 1> (n) a = Cast <to = 10> (f)
            y = Neg (a) z = Neg (f) }""",
        [("n", "FLOAT")],
        1,
    ),
    "a residual that rounds and one that does not": (
        """(float16[2] x) => (float16[2] y) {
            f = Cast <to = 1> (x) e = Exp (f) l = Cast <to = 10> (e) u = Cast <to = 1> (l) s = Add (u, f) y =
                Cast <to = 10> (s)
        }""",
        [("x", "FLOAT"), ("e", "FLOAT16"), ("l", "FLOAT"), ("s", "FLOAT16")],
        0,
    ),
    "a body uses the cast of its own scope": (
        """(float[2] x, bool c) => (float16[2] y) {
            a = Cast <to = 10> (x)
            y = If (c) <then_branch = t () => (float16[2] p) { b = Cast <to = 10> (x) p = Neg (b) },
                        else_branch = e () => (float16[2] q) { q = Neg (a) }>
        }""",
        [("x", "FLOAT16"), ("x", "FLOAT16")],
        0,
    ),
    "a body that only casts what it captures": (
        """(float16[2] x, bool c) => (float16[2] y) {
            f = Cast <to = 1> (x)
            y = If (c) <then_branch = t () => (float16[2] p) { p = Cast <to = 10> (f) },
                        else_branch = e () => (float16[2] q) { q = Neg (x) }>
        }""",
        None,
        None,
    ),
    "a body whose input is its output": (
        """(float16[2] x, int64 n, bool c) => (float16[2] y) {
            y = Loop (n, c, x) <body = b (int64 i, bool k, float16[2] a) => (bool k2, float16[2] a2) {
                k2 = Identity (k) f = Cast <to = 1> (a) a2 = Cast <to = 10> (f)
            }>
        }""",
        None,
        None,
    ),
    "saturating casts are left alone": (
        """(float[2] x) => (float[2] y) {
            a = Cast <to = 17, saturate = 0> (x) b = Cast <to = 17> (x) f = Cast <to = 1> (a) g = Cast <to = 1>
                (b) y = Add (f, g)
        }""",
        [("x", "FLOAT8E4M3FN"), ("x", "FLOAT8E4M3FN"), ("a", "FLOAT"), ("b", "FLOAT")],
        0,
    ),
    "an integer, where the float is read by others": (
        """(int64[2] x) => (float16[2] y, float[2] z) { n = Neg (x) f = Cast <to = 1> (n) a = Cast <to = 10> (f)
            y = Neg (a) z = Neg (f) }""",
        [("n", "FLOAT"), ("n", "FLOAT16")],
        0,
    ),
    "rounding options hold a cast, two alike too": (
        """(float[2] x) => (float[2] y) {
            a = Cast <to = 17, saturate = 0> (x) b = Cast <to = 17, saturate = 0> (x) f = Cast <to = 1> (a)
            g = Cast <to = 1> (b) y = Add (f, g)
        }""",
        [("x", "FLOAT8E4M3FN"), ("x", "FLOAT8E4M3FN"), ("a", "FLOAT"), ("b", "FLOAT")],
        0,
    ),
    "a value of unknown type": (
        """(float[2] x) => (float16[2] y) { u = my.domain.Any (x) a = Cast <to = 1> (u) b = Cast <to = 10> (a)
            y = Neg (b) }""",
        [("u", "FLOAT"), ("a", "FLOAT16")],
        0,
    ),
    "Casts of another domain, two alike": (
        """(float[2] x) => (float16[2] y) <float16[2] a, float16[2] b> { a = my.domain.Cast <to = 10> (x)
            b = my.domain.Cast <to = 10> (x) y = Add (a, b) }""",
        [("x", "FLOAT16"), ("x", "FLOAT16")],
        0,
    ),
    "Cast of another domain": (
        "(float[2] x) => (float16[2] y) { a = my.domain.Cast <to = 10> (x) y = Neg (a) }",
        [("x", "FLOAT16")],
        0,
    ),
}


def _outputs_of(graph):
    return [(value.name, value.dtype) for value in graph.outputs]


@pytest.mark.parametrize("name", GRAPHS)
def test_casts_in_a_graph(name):
    text, expected, removed = GRAPHS[name]
    proto = parse(text, opset=19, imports=', "my.domain": 1')
    model = ir.from_proto(proto)
    propagate_types(model)
    outputs, before = _outputs_of(model.graph), ir.to_proto(model)
    result = CleanCasts()(model)
    count = result.removed
    assert result.modified == (result.count > 0) == (ir.to_proto(model) != before)
    verify(model, "cleaning")
    assert _outputs_of(model.graph) == outputs
    if "my.domain" not in text:
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
    if expected is not None:
        casts = [(node.inputs[0].name, node.outputs[0].dtype.name) for node in support.nodes(model, "Cast")]
        assert sorted(casts) == sorted(expected)
        assert count == removed
    if "my.domain" in text or "saturate" in text:
        return
    feeds = {
        v.name: np.array([2049.3, -0.1]).astype(v.dtype.numpy()) for v in model.graph.inputs if v.shape.rank() == 1
    }
    feeds |= {v.name: np.array(1, v.dtype.numpy()) for v in model.graph.inputs if v.shape.rank() == 0}
    expected_values, values = support.run(proto, feeds), support.run(ir.to_proto(model), feeds)
    for output in expected_values:
        np.testing.assert_array_equal(values[output], expected_values[output])


COUNTS = {
    # name of a graph above: edits
    "to two types": 0,
    "an input that is an output, too": 2,
    "Rule 3: twice the same": 2,
    "Rule 4: read by nothing": 2,
    "an integer, where the float is read by others": 1,
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_edit_is_counted_once(name):
    model = ir.from_proto(parse(GRAPHS[name][0], opset=19))
    propagate_types(model)
    result = CleanCasts()(model)
    assert (result.count, result.modified) == (COUNTS[name], COUNTS[name] > 0)
