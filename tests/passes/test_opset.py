"""Raising the opset changes no value and loses nothing; what cannot be raised is refused and left as it was."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.ops.limits import NEWEST_OPSET
from amp_transpiler.passes.convert_opset import ConvertOpset, OpsetConversionError
from amp_transpiler.passes.opset_adapters import ADAPTERS
from amp_transpiler.passes.schema_changes import SEMANTICS_CHANGED, only_widens, schema_history

RANDOM = np.random.default_rng(11)


def parse(text, opset, imports=""):
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{imports}]> {text}'))


def feeds_for(model):
    feeds = {}
    for value in model.graph.inputs:
        shape = tuple(size if isinstance(size, int) else 4 for size in value.shape)
        values = RANDOM.normal(0, 2, shape)
        feeds[value.name] = (
            np.asarray(values > 0) if value.dtype == ir.DataType.BOOL else values.astype(value.dtype.numpy())
        )
    return feeds


def operators(model):
    return [node.op_type for node in model.graph.all_nodes() if node.op_type != "Constant"]


# opset, type of x, expression for y (of x's element type), constants
CALLS = [
    (10, "float[2,3,4]", "Softmax (x)", ""),
    (10, "float[2,3,4]", "Softmax <axis=2> (x)", ""),
    (11, "float[2,3,4]", "Softmax <axis=-2> (x)", ""),
    (9, "float[2,3,4]", "LogSoftmax <axis=0> (x)", ""),
    (12, "float[2,3,4]", "Hardmax (x)", ""),
    (9, "float[4,5]", "Slice <starts=[1], ends=[3]> (x)", ""),
    (9, "float[4,5]", "Slice <starts=[1,0], ends=[-1,9], axes=[1,0]> (x)", ""),
    (10, "float[N,4]", "Clip <min=-0.5> (x)", ""),
    (10, "float[N,4]", "Clip <max=0.5> (x)", ""),
    (10, "float[N,4]", "Clip (x)", ""),
    (10, "float[3,4]", "Pad <pads=[0,1,2,0]> (x)", ""),
    (10, "float[3,4]", "Pad <pads=[0,1,2,0], value=1.5> (x)", ""),
    (10, "float[3,4]", 'Pad <pads=[0,1,2,0], mode="reflect"> (x)', ""),
    (10, "float[1,4]", "Squeeze <axes=[0]> (x)", ""),
    (12, "float[3,4]", "Unsqueeze <axes=[0,2]> (x)", ""),
    (12, "float[3,4]", "ReduceSum <axes=[1], keepdims=0> (x)", ""),
    (12, "float[3,4]", "ReduceSum (x)", ""),
    (17, "float[3,4]", "ReduceMean <axes=[-1]> (x)", ""),
    (13, "float[3,4]", "ReduceMax <axes=[0,1], keepdims=0> (x)", ""),
    (17, "float[3,4]", "ReduceLogSumExp (x)", ""),
    (8, "float[1,2,3,4]", "Upsample <scales=[1.0,1.0,2.0,3.0]> (x)", ""),
    (8, "float[1,2,3,4]", 'Upsample <scales=[1.0,1.0,2.0,2.0], mode="linear"> (x)', ""),
    (9, "float[1,2,3,4]", "Upsample (x, s)", "float[4] s = {1.0, 1.0, 1.5, 2.0}"),
    (10, "float[1,2,3,4]", "Resize (x, s)", "float[4] s = {1.0, 1.0, 2.0, 2.5}"),
    (10, "float[1,2,7,8]", "Resize (x, s)", "float[4] s = {1.0, 1.0, 0.6, 0.5}"),
    (10, "float[1,2,7,8]", 'Resize <mode="linear"> (x, s)', "float[4] s = {1.0, 1.0, 0.5, 2.0}"),
    (10, "float[1,2,3,4]", 'Resize <mode="nearest"> (x, s)', "float[4] s = {1.0, 1.0, 2.5, 1.0}"),
    (10, "float[1,2,7,8]", 'Resize <mode="nearest"> (x, s)', "float[4] s = {1.0, 1.0, 1.0, 0.3}"),
    (11, "float[1,2,3,4]", "Resize (x, none, s)", "float[0] none = {}, float[4] s = {1.0, 1.0, 2.0, 2.0}"),
    (9, "float[1,4]", "Squeeze (x)", ""),
    (13, "float[2,3,4]", "BatchNormalization (x, s, s, s, s)", "float[3] s = {0.5, 2.0, 3.0}"),
    (11, "float[1,2,3,4]", "Resize (x, none, none, s)", "float[0] none = {}, int64[4] s = {1, 2, 6, 5}"),
    (10, "float[N,4]", "Dropout <ratio=0.3> (x)", ""),
    (7, "float[N,4]", "Dropout (x)", ""),
    (8, "float[2,3,4]", "BatchNormalization <spatial=1> (x, s, s, s, s)", "float[3] s = {1.0, 2.0, 3.0}"),
    (13, "float[2,3,4]", "BatchNormalization (x, s, s, s, s)", "float[3] s = {1.0, 2.0, 3.0}"),
    (9, "float[2,4]", "Scatter <axis=1> (x, i, u)", "int64[2,1] i = {1, 2}, float[2,1] u = {5.0, 6.0}"),
    (11, "float[N]", "Erf (x)", ""),
    (16, "float[1,1,4,4]", "GridSample (x, g)", "float[1,1,2,2] g = {0.1, 0.2, -0.5, 0.9}"),
    (19, "float[1,1,4,4]", 'GridSample <mode="bilinear"> (x, g)', "float[1,1,2,2] g = {0.1, 0.2, -0.5, 0.9}"),
    (16, "float[1,1,4,4]", 'GridSample <mode="bicubic"> (x, g)', "float[1,1,2,2] g = {0.1, 0.2, -0.5, 0.9}"),
    (16, "float[1,1,4,4]", 'GridSample <mode="nearest"> (x, g)', "float[1,1,2,2] g = {0.1, 0.2, -0.5, 0.9}"),
    (17, "float[2,4,1]", "DFT <axis=1> (x)", ""),
    (17, "float[2,3,4,1]", "DFT <axis=2> (x)", ""),
    (17, "float[2,3,4,1]", "DFT (x)", ""),
    (
        15,
        "float[1,1,6,6]",
        "RoiAlign <output_height=2, output_width=2> (x, r, i)",
        "float[1,4] r = {0.0, 0.0, 4.0, 4.0}, int64[1] i = {0}",
    ),
    (7, "float[2,3,4]", "Identity (x)", ""),
]


def expression(opset, x, call, constants):
    out = x.split("[")[0]
    model = parse(f"agraph ({x} x) => ({out}[A] y) <{constants}> {{ [the_node] y = {call} }}", opset)
    model.graph.outputs[0].shape = None
    inferred = onnx.shape_inference.infer_shapes(ir.to_proto(model))
    if not inferred.graph.output[0].type.tensor_type.HasField("shape"):
        inferred.graph.output[0].CopyFrom(
            onnx.helper.make_tensor_value_info("y", int(model.graph.inputs[0].dtype), [None] * (x.count(",") + 1))
        )
    return ir.from_proto(inferred)


@pytest.mark.parametrize(("opset", "x", "call", "constants"), CALLS)
@pytest.mark.parametrize("target", [21, 22, 26])
def test_values_stay(run, opset, x, call, constants, target):
    if "RoiAlign" in call and target > 21:
        target = 21  # the CPU provider has no newer kernel
    model = expression(opset, x, call, constants)
    feeds = feeds_for(model)
    expected = run(model, feeds)
    ConvertOpset(target)(model)
    assert model.graph.opset_imports[""] == target
    for actual, wanted in zip(run(model, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_new_inputs_have_the_type_of_the_data(run, dtype):
    """The CPU provider has no such Clip at opset 10: the expected value is numpy's."""
    model = parse(f"agraph ({dtype}[N] x) => ({dtype}[N] y) {{ v = Neg (x) y = Clip <min=-0.5, max=0.5> (v) }}", 10)
    feeds = feeds_for(model)
    ConvertOpset(21)(model)
    np.testing.assert_array_equal(run(model, feeds)[0], np.clip(-feeds["x"], -0.5, 0.5))


GRAPHS = [
    (11, "agraph (float[6,2] x) => (float[P,Q] y, float[P,Q] z) { y, z = Split <split=[2,4]> (x) }"),
    (12, "agraph (float[6,2] x) => (float[P,Q] y, float[P,Q] z) { y, z = Split (x) }"),
    (17, "agraph (float[4,2] x) => (float[P,Q] y, float[P,Q] z) { y, z = Split <axis=1> (x) }"),
    (17, 'agraph (float[4,2] x) => (float[P,Q] y, float[P,Q] z) { y, z = Split <axis=1> (x, "") }'),
    (
        13,
        """agraph (float[4,2] x) => (float[P,Q] y, float[P,Q] z) <int64[2] s = {1, 3}> { y, z = Split (x, s) }""",
    ),
    (9, "agraph (float[3,7] x) => (float[P,Q] y) { y, m = Dropout (x) }"),
    (
        10,
        """agraph (float[1,1,3,4] x, float[4] unused) => (float[P,Q,R,S] y)
        <float[4] two = {1.0, 1.0, 2.0, 0.5}, float[4] one = {0.0, 0.0, 0.0, 0.0}>
        { zero = Mul (unused, one) scales = Add (two, zero) y = Resize <mode="linear"> (x, scales) }""",
    ),
    (9, "agraph (float[3,7] x) => (float[P,Q] y, int64[P,Q] i) { y, i = TopK <k=2> (x) }"),
    (
        9,
        """agraph (float[1,2,3,4] x, float[4] unused) => (float[P,Q,R,S] y)
        <float[4] two = {1.0, 1.0, 2.0, 2.0}, float[4] one = {0.0, 0.0, 0.0, 0.0}>
        { zero = Mul (unused, one) scales = Add (two, zero) y = Upsample (x, scales) }""",
    ),
    (
        11,
        """agraph (float[2,3] x, bool c) => (float[P,Q] y) {
            y = If (c) <
                then_branch = t () => (float[P,Q] p) { a = Relu (x) v = Softmax <axis=0> (a) p = Relu (v) },
                else_branch = e () => (float[P,Q] q) { s = ReduceSum <axes=[0]> (x) q = Add (s, x) }
            >
        }""",
    ),
]


@pytest.mark.parametrize(("opset", "text"), GRAPHS)
@pytest.mark.parametrize("target", [18, 22])
def test_values_of_graphs_stay(run, opset, text, target):
    model = parse(text, opset)
    feeds = feeds_for(model)
    expected = run(model, feeds)
    ConvertOpset(target)(model)
    for actual, wanted in zip(run(model, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-6)


# ONNX Runtime has no kernels for opset 6: the expected value is written out.
OPSET_6 = [
    ("Add <broadcast=1, axis=1> (x, b)", lambda x, b: x + b[None, :, None, None]),
    ("Mul <broadcast=1> (x, d)", lambda x, _: x * np.array([1.0, 2.0, 3.0, 4.0], np.float32)),
    ("Sub <broadcast=1, axis=0> (x, b)", lambda x, b: x - b[:, None, None, None]),
    ("Div <broadcast=1, axis=-1> (x, d)", lambda x, _: x / np.array([1.0, 2.0, 3.0, 4.0], np.float32)),
    ("PRelu (x, b)", lambda x, b: np.where(x < 0, x * b[None, :, None, None], x)),
    ("PRelu (x, a)", lambda x, _: np.where(x < 0, x * np.float32(0.5), x)),
    ("PRelu (x, c)", lambda x, _: np.where(x < 0, x * np.array([2.0, -3.0], np.float32)[:, None, None], x)),
    ("Add <broadcast=1, axis=1> (x, m)", lambda x, _: x + np.arange(6, dtype=np.float32).reshape(2, 3, 1)),
    ("Add <broadcast=0, axis=1> (x, x)", lambda x, _: x + x),
    ("Upsample <height_scale=1.0, width_scale=1.0> (x)", lambda x, _: x),
    ("Dropout <is_test=1> (x)", lambda x, _: x),
    ("BatchNormalization <is_test=1, epsilon=0.0> (x, one, b, b, one)", lambda x, _: x),
]


@pytest.mark.parametrize(("call", "expected"), OPSET_6)
def test_from_opset_6(run, call, expected):
    text = f"""agraph (float[2,2,3,4] x) => (float[2,2,3,4] y) <float[2] b = {{2.0, -3.0}}, float[1] a = {{0.5}},
        float[2] one = {{1.0, 1.0}}, float[4] d = {{1.0, 2.0, 3.0, 4.0}}, float[2,1,1] c = {{2.0, -3.0}},
        float[2,3] m = {{0, 1, 2, 3, 4, 5}}> {{ y = {call} }}"""
    model = parse(text, 6)
    feeds = feeds_for(model)
    ConvertOpset(21)(model)
    b = np.array([2.0, -3.0], np.float32)
    np.testing.assert_allclose(run(model, feeds)[0], expected(feeds["x"], b), rtol=1e-6)


# What a node becomes: no more nodes than it takes, the name on the operator, defaults left out.
# opset, inputs, constants, call, the nodes at opset 21: operator, attributes, inputs that are constants by position
WRITTEN = {
    "Softmax along the last axis": (10, "float[2,3] x", "", "Softmax (x)", ["Softmax {'axis': -1} {}"]),
    "Softmax that says so": (12, "float[2,3,4] x", "", "Softmax <axis=-1> (x)", ["Softmax {'axis': -1} {}"]),
    "Softmax that says so, of any rank": (
        12,
        "float[A,B] u, int64[R] s",
        "r = Reshape (u, s)",
        "Softmax <axis=-1> (r)",
        ["Reshape {} {}", "Softmax {'axis': -1} {}"],
    ),
    "Softmax along all axes but the first": (
        10,
        "float[2,3,4] x",
        "",
        "Softmax (x)",
        ["Shape {} {}", "Flatten {'axis': 1} {}", "Softmax {'axis': -1} {} the_node", "Reshape {} {}"],
    ),
    "Pad with its default": (
        10,
        "float[3,4] x",
        "",
        "Pad <pads=[0,1,2,0], value=0.0> (x)",
        ["Pad {} {1: [0, 1, 2, 0]}"],
    ),
    "Pad with a value": (
        10,
        "float[3,4] x",
        "",
        "Pad <pads=[0,1,2,0], value=2.0> (x)",
        ["Pad {} {1: [0, 1, 2, 0], 2: 2.0}"],
    ),
    "Slice of the first axes": (
        9,
        "float[4,5,6] x",
        "",
        "Slice <starts=[1,0], ends=[3,2]> (x)",
        ["Slice {} {1: [1, 0], 2: [3, 2], 3: [0, 1]}"],
    ),
    "Slice of one axis": (
        9,
        "float[4,5] x",
        "",
        "Slice <starts=[1], ends=[3], axes=[1]> (x)",
        ["Slice {} {1: [1], 2: [3], 3: [1]}"],
    ),
    "Mul of the last axis": (6, "float[2,3] x, float[3] b", "", "Mul <broadcast=1, axis=1> (x, b)", ["Mul {} {}"]),
    "Mul that does not broadcast": (
        6,
        "float[2,3] x, float[2,3] b",
        "",
        "Mul <broadcast=0, axis=0> (x, b)",
        ["Mul {} {}"],
    ),
    "Mul of a first axis": (
        6,
        "float[2,3] x, float[2] b",
        "",
        "Mul <broadcast=1, axis=0> (x, b)",
        ["Reshape {} {1: [0, 1]}", "Mul {} {}"],
    ),
    "PRelu of a matrix": (6, "float[2,3] x, float[3] b", "", "PRelu (x, b)", ["PRelu {} {}"]),
    "PRelu of one slope": (6, "float[2,3,4] x", "", "PRelu (x, half)", ["PRelu {} {1: [0.5]}"]),
    "Gemm": (6, "float[2,3] x, float[3,4] b, float[4] c", "", "Gemm <broadcast=1> (x, b, c)", ["Gemm {} {}"]),
    "GRU": (
        6,
        "float[3,1,2] x, float[1,6,2] w",
        "",
        "GRU <hidden_size=2, output_sequence=1> (x, w, w)",
        ["GRU {'hidden_size': 2} {}"],
    ),
    "LSTM": (
        6,
        "float[3,1,2] x, float[1,8,2] w",
        "",
        "LSTM <hidden_size=2, output_sequence=1> (x, w, w)",
        ["LSTM {'hidden_size': 2} {}"],
    ),
    "RNN": (
        6,
        "float[3,1,2] x, float[1,2,2] w",
        "",
        "RNN <hidden_size=2, output_sequence=0> (x, w, w)",
        ["RNN {'hidden_size': 2} {}"],
    ),
    "Upsample": (
        6,
        "float[1,2,3,4] x",
        "",
        "Upsample <height_scale=2.0, width_scale=3.0> (x)",
        ["Resize {'coordinate_transformation_mode': 'asymmetric', 'nearest_mode': 'floor'} {2: [1.0, 1.0, 2.0, 3.0]}"],
    ),
    "Dropout of a ratio": (10, "float[2,3] x", "", "Dropout <ratio=0.25> (x)", ["Dropout {} {1: 0.25}"]),
    "RoiAlign": (
        15,
        "float[1,1,6,6] x, float[1,4] r, int64[1] i",
        "",
        "RoiAlign (x, r, i)",
        ["RoiAlign {'coordinate_transformation_mode': 'output_half_pixel'} {}"],
    ),
    "LayerNormalization of ONNX Runtime": (
        16,
        "float[2,3] x, float[3] s",
        "",
        "LayerNormalization <stash_type=1> (x, s)",
        ["LayerNormalization {'stash_type': 1} {}"],
    ),
    "GroupNormalization in double": (
        18,
        "double[2,4,5] x, double[2] s",
        "",
        "GroupNormalization <num_groups=2> (x, s, s)",
        ["Reshape {} {1: [-1, 1]}", "Expand {} {1: [1, 2]}", "Reshape {} {1: [-1]}"] * 2
        + ["GroupNormalization {'num_groups': 2, 'stash_type': 11} {}"],
    ),
}


def _described(node):
    constants = {}
    for index, value in enumerate(node.inputs):
        array = constant_array(value)
        if array is not None and array.size:
            constants[index] = array.tolist()
    attributes = {name: attribute.value for name, attribute in sorted(node.attributes.items())}
    return f"{node.op_type} {attributes} {constants}"


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_node_becomes(name):
    opset, inputs, before, call, expected = WRITTEN[name]
    model = parse(
        f"agraph ({inputs}) => (float[A] y) <float[1] half = {{0.5}}> {{ {before} [the_node] y = {call} }}", opset
    )
    model.graph.outputs[0].type, model.graph.outputs[0].shape = model.graph.inputs[0].type, None
    ConvertOpset(21)(model)
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    assert [_described(node) for node in nodes] == [row.removesuffix(" the_node") for row in expected]
    marked = [index for index, row in enumerate(expected) if row.endswith("the_node")] or [len(expected) - 1]
    assert nodes[marked[0]].name == "the_node"
    assert [node.name for node in nodes].count("the_node") == 1


@pytest.mark.parametrize("letters", ["2,4,5", "N,C,5"])
def test_group_normalization_takes_a_scale_per_channel_from_21_on(run, letters):
    text = f"agraph (float[{letters}] x, float[2] s, float[2] b) => (float[2,4,5] y)"
    model = parse(f"{text} {{ y = GroupNormalization <num_groups=2> (x, s, b) }}", 18)
    feeds = feeds_for(model) | {"x": RANDOM.normal(0, 1, (2, 4, 5)).astype(np.float32)}
    groups = feeds["x"].reshape(2, 2, -1).astype(np.float64)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    expected = (normal * feeds["s"][:, None] + feeds["b"][:, None]).reshape(2, 4, 5)
    ConvertOpset(21)(model)
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-4, atol=1e-5)


RICH = """agraph (float[1,3,4] x, bool c, float[2] w) => (float[A,B,C] y, float[A,B,C] z)
    <float[2] w = {1.0, 2.0}, float[4] big = {1.0, 2.0, 3.0, 4.0}, float[A,B,C] t> {
        t = Softmax (x)
        [contrib] u = com.microsoft.FastGelu (t, big)
        own, ""  = the.domain.Custom (u, "", w)
        y = If (c) <
            then_branch = tb () => (float[A,B,C] p) { s = Squeeze <axes=[0]> (t) [un] p = Unsqueeze <axes=[0]> (s) },
            else_branch = eb () => (float[A,B,C] q) { q = Dropout <ratio=0.1> (u) }
        >
        z = Identity (own)
    }"""


def rich_model():
    model = parse(RICH, 11, imports=', "com.microsoft": 1, "the.domain": 3')
    model.metadata_props["key"] = "value"
    model.doc_string, model.graph.doc_string, model.graph.name = "about the model", "about the graph", "a_name"
    for index, node in enumerate(model.graph.all_nodes()):
        node.metadata_props["index"] = str(index)
        node.doc_string = f"doc of {index}"
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.doc_string = f"doc of {value.name}"
        value.metadata_props["about"] = str(value.name)
    return model


def test_nothing_is_lost():
    model, before = rich_model(), rich_model()
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    ConvertOpset(18)(model)
    graph = model.graph
    assert dict(graph.opset_imports) == {"": 18, "com.microsoft": 1, "the.domain": 3}
    assert model.ir_version == before.ir_version
    assert model.metadata_props == before.metadata_props
    assert (model.doc_string, graph.doc_string, graph.name) == ("about the model", "about the graph", "a_name")
    for ours, theirs in ((graph.inputs, before.graph.inputs), (graph.outputs, before.graph.outputs)):
        assert [(v.name, str(v.type), str(v.shape), v.doc_string, dict(v.metadata_props)) for v in ours] == [
            (v.name, str(v.type), str(v.shape), v.doc_string, dict(v.metadata_props)) for v in theirs
        ]
    assert {name: value.const_value for name, value in graph.initializers.items()} == tensors
    assert graph.initializers["w"].is_graph_input()
    by_index = {node.metadata_props["index"]: node for node in graph.all_nodes() if node.op_type != "Constant"}
    for node in before.graph.all_nodes():
        same = [n for n in graph.all_nodes() if n.metadata_props["index"] == node.metadata_props["index"]]
        assert node.op_type in {n.op_type for n in same}
        assert node.name in {n.name for n in same}
        assert [v.name for v in node.outputs] in [[v.name for v in n.outputs] for n in same]
        assert {n.doc_string for n in same} == {node.doc_string}
    custom = next(node for node in graph if node.op_type == "Custom")
    assert [value.name if value is not None else None for value in custom.inputs] == ["u", None, "w"]
    assert [value.name for value in custom.outputs] == ["own", ""]
    assert custom is by_index[custom.metadata_props["index"]]
    assert graph.outputs[0].producer().op_type == "If"


def test_where_no_operator_changes_the_very_graph_stays():
    model = parse("agraph (float[N] x, bool c) => (float[N] y) { a = Exp (x) y = Relu (a) }", 13)
    graph, nodes = model.graph, list(model.graph)
    ConvertOpset(22)(model)
    assert model.graph is graph
    assert list(model.graph) == nodes
    assert model.graph.opset_imports == {"": 22}


def test_weights_are_not_read():
    model = parse("agraph (float[N,64] x) => (float[N,64] y) { m = MatMul (x, w) y = Softmax (m) }", 11)

    def never():
        raise AssertionError("the weights were read")

    weight = ir.LazyTensor(never, ir.DataType.FLOAT, ir.Shape([64, 64]), name="w")
    value = next(node for node in model.graph if node.op_type == "MatMul").inputs[1]
    value.const_value, value.type, value.shape = weight, ir.TensorType(weight.dtype), ir.Shape([64, 64])
    model.graph.register_initializer(value)
    ConvertOpset(21)(model)
    assert model.graph.initializers["w"].const_value is weight


def test_new_names_are_free_in_every_scope():
    model = parse(
        """agraph (float[2,3,4] x, bool c) => (float[A,B,C] y) {
            [s] t = Softmax (x)
            y = If (c) <
                then_branch = a () => (float[A,B,C] p) { taken = Exp (t) [s] p = Softmax (taken) },
                else_branch = b () => (float[A,B,C] q) { q = Identity (t) }
            >
        }""",
        11,
    )
    next(node for node in model.graph.all_nodes() if node.op_type == "Exp").outputs[0].name = "s/Shape_output"
    ConvertOpset(21)(model)
    names = [value.name for node in model.graph.all_nodes() for value in node.outputs]
    assert len(names) == len(set(names))


SCAN = """agraph (float[1,2,4] x) => (float[A,B,C] y) {
    y = Scan <num_scan_inputs=1, body = b (float[4] i) => (float[4] o) { o = Identity (i) }> ("", x)
}"""

REFUSED = [
    (8, SCAN, "Scan"),
    (6, "agraph (float[N] x) => (float[N] y) { y = Dropout (x) }", "is_test"),
    (6, "agraph (float[2,3] x, float[3] s) => (float[A,B] y) { y = BatchNormalization (x, s, s, s, s) }", "is_test"),
    (6, "agraph (float[2,3] x, float[3] s) => (float[A,B] y) { y = BatchNormalization <is_test=0> (x, s, s, s, s) }",
     "is_test"),
    (8, "agraph (float[2,3] x, float[3] s) => (float[A,B] y) { y = BatchNormalization <spatial=0> (x, s, s, s, s) }",
     "spatial"),
    (9, "agraph (float[2,3] x, float[3] s) => (float[A,B] y, float[3] m) { y, m = BatchNormalization (x, s, s, s, s) }",
     "trains"),
    (10, "agraph (float[1,1,4,4] x, float[4] s) => (float[A,B,C,D] y) { y = Resize (x, s) }", "enlarges"),
    (10, "agraph (float[1,1,4,4] x) => (float[A,B,C,D] y) <float[4] s = {1.0, 1.0, 0.5, 2.0}> { y = Resize (x, s) }",
     "enlarges"),
    (8, "agraph (float[N] x) => (float[N] y, float[N] m) { y, m = Dropout (x) }", "mask"),
    (13, "agraph (float[N] x) => (float[N] y) { z = NoSuchOperator (x) y = Relu (z) }", "NoSuchOperator"),
]  # fmt: skip

UNKNOWN = "the.domain.Any"
REFUSED += [
    (8, "agraph (float[N] x) => (float[N] y) { d, m = Dropout (x) y = Add (d, m) }", "mask 'm'"),
    *(
        (6, f"agraph (float[2,3] x, float[2] b) => (float[A,B] y) {{ u = {UNKNOWN} ({of}) y = {call} }}", word)
        for of, call, word in (
            ("x", "Add <broadcast=1, axis=0> (u, b)", "axis=0, and the number of axes of an input is unknown"),
            ("b", "Add <broadcast=1, axis=0> (x, u)", "axis=0, and the number of axes of an input is unknown"),
            ("x", "PRelu (u, b)", "number of axes"),
            ("b", "PRelu (x, u)", "number of axes"),
        )
    ),
    (10, f"agraph (float[N] x) => (float[N] y) {{ u = {UNKNOWN} (x) y = Clip <min=0.0> (u) }}", "type of input 'u'"),
    (
        11,
        """agraph (float[1,1,2,2] x) => (float[A,B,C,D] y) <float[8] r = {0, 0, 0, 0, 1, 1, 1, 1},
        float[4] s = {1.0, 1.0, 2.0, 2.0}, int64[4] z = {1, 1, 4, 4}> { y = Resize (x, r, s, z) }""",
        "both scales 's' and sizes 'z'",
    ),
    *(
        (16, f"agraph ({inputs}) => (float[A,B] y) {{ {body} }}", "differ in type")
        for inputs, body in (
            ("float16[2,3] x, float[3] s", "y = LayerNormalization (x, s)"),
            ("float16[2,3] x, float16[3] s", "y = LayerNormalization <stash_type=10> (x, s)"),
            ("float[2,3] x, float[3] s", f"u = {UNKNOWN} (x) y = LayerNormalization (u, s)"),
            ("float[2,3] x", f"u = {UNKNOWN} (x) y = LayerNormalization (u, u)"),
        )
    ),
]


@pytest.mark.parametrize(("opset", "text", "word"), REFUSED)
def test_refused_and_left_as_it_was(opset, text, word):
    model = parse(text, opset, ', "the.domain": 1')
    before, graph = ir.to_proto(model), model.graph
    with pytest.raises(OpsetConversionError, match=word) as caught:
        ConvertOpset(21)(model)
    assert f"from opset {opset} to 21" in str(caught.value)
    assert model.graph is graph
    assert ir.to_proto(model) == before


def test_functions_must_be_inlined_first():
    text = """agraph (float[N] x) => (float[N] y) { y = local.f (x) }
        <opset_import: ["": 11], domain: "local"> f (a) => (b) { b = Relu (a) }"""
    with pytest.raises(ModelError, match=r"local::f.*inlined|inlined.*local::f"):
        ConvertOpset(21)(parse(text, 11, imports=', "local": 1'))


@pytest.mark.parametrize("target", [12, NEWEST_OPSET + 1])
def test_target_out_of_range(target):
    with pytest.raises(ValueError, match="13"):
        ConvertOpset(target)(parse("agraph (float[N] x) => (float[N] y) { y = Relu (x) }", 13))


WIDENS = [
    ("Relu", 6, 26, True),
    ("MatMul", 9, 22, True),
    ("MaxPool", 8, 22, True),
    ("Reshape", 5, 26, True),
    ("Cast", 9, 26, True),
    ("LSTM", 7, 22, True),
    ("Constant", 9, 26, True),
    ("Softmax", 11, 13, False),
    ("Hardmax", 11, 13, False),
    ("Split", 17, 18, False),
    ("Split", 13, 17, True),
    ("GroupNormalization", 20, 21, False),
    ("RoiAlign", 15, 16, False),
    ("Upsample", 9, 10, False),
    ("Clip", 10, 11, False),
    ("BatchNormalization", 13, 14, False),
    ("BatchNormalization", 14, 26, True),
    ("ReduceMean", 17, 18, False),
    ("NoSuchOperator", 9, 10, False),
    ("SimplifiedLayerNormalization", 13, 26, True),
    ("LayerNormalization", 13, 16, True),
    ("LayerNormalization", 16, 17, False),
    ("Attention", 22, 23, False),
]


@pytest.mark.parametrize(("op", "old", "new", "expected"), WIDENS)
def test_only_widens(op, old, new, expected):
    assert only_widens("", op, old, new) is expected


def test_every_change_from_opset_6_on_has_an_adapter_or_is_refused():
    """A new version of an operator in the installed onnx must not slip through."""
    refused = {("Scan", 9)}
    changes = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        versions = [s.since_version for s in schema_history("", schema.name)] if schema.domain == "" else []
        for old, new in itertools.pairwise(versions):
            if 6 < new <= NEWEST_OPSET and not only_widens("", schema.name, max(old, 6), new):
                changes.add((schema.name, new))
    in_runtime_before = {("ThresholdedRelu", 10), ("LayerNormalization", 17)}  # ONNX took them over from ONNX Runtime
    assert changes | in_runtime_before == set(ADAPTERS) | refused
    assert {key for key in SEMANTICS_CHANGED if key[1] <= NEWEST_OPSET} <= set(ADAPTERS)
