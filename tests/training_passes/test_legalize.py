"""Low nodes without a kernel go to float32 between casts; nothing else changes."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import all_nodes, bodies
from amp_transpiler.targets import CUDA
from amp_transpiler.targets.operator import operator_of
from amp_transpiler.training_passes import Legalize
from tests.support import array, parse

BF = np.dtype(ml_dtypes.bfloat16)


def model_of(text, opset=22, **weights):
    model = ir.from_proto(parse(text, opset=opset, **weights))
    propagate_types(model)
    return model


def has_cuda_kernel(node, opset):
    return CUDA.has_kernel(operator_of(node, (("", opset),)))


def emulated(model, x, **feeds):
    """The first output of the emulated program, as float32."""
    return np.asarray(amp.Session(ir.to_proto(model), amp.CPUPlace()).run({"x": x, **feeds})[0], np.float32)


def outline(model):
    """Operators in order, a Cast as the type it gives."""
    return " ".join(node.outputs[0].dtype.name if node.op_type == "Cast" else node.op_type for node in model.graph)


W = array(3, 2, 3, 3).astype(BF)
PADS = np.array([0, 0, 1, 1, 0, 0, 1, 1])

# name: (graph, weights, nodes moved, what is left)
CASES = {
    "a kernel, nothing to do": ("y = Add (x, x)", {}, 0, "Add"),
    "Log": ("y = Log (x)", {}, 1, "FLOAT Log BFLOAT16"),
    "Greater, Where": ("c = Greater (x, z) y = Where (c, x, x)", {"z": np.zeros((), BF)}, 1, "FLOAT Greater Where"),
    "Pad": (
        "h = Pad (x, pads, z) y = Add (h, h)",
        {"pads": PADS, "z": np.zeros((), BF)},
        1,
        "FLOAT Pad BFLOAT16 Add",
    ),
    "ConvTranspose": ("y = ConvTranspose (x, w)", {"w": W}, 1, "FLOAT ConvTranspose BFLOAT16"),
    "a chain keeps its rounding": ("h = Log (x) y = Log (h)", {}, 2, "FLOAT Log BFLOAT16 FLOAT Log BFLOAT16"),
    "movement has none to keep": (
        "h = Pad (x, pads) y = Log (h)",
        {"pads": PADS},
        2,
        "FLOAT Pad Log BFLOAT16",
    ),
    "one cast for two readers": (
        "a = Log (x) b = Floor (x) y = Add (a, b)",
        {},
        2,
        "FLOAT Floor BFLOAT16 Log BFLOAT16 Add",
    ),
    "the program's own casts meet": (
        "h = Cast <to = 1> (x) l = Cast <to = 16> (h) m = Log (l) y = Cast <to = 1> (m)",
        {},
        1,
        "FLOAT Log BFLOAT16 FLOAT",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_on_cuda(name):
    body, weights, moved, expected = CASES[name]
    out = "float" if name == "the program's own casts meet" else "bfloat16"
    text = f"(bfloat16[2,3,6,6] x) => ({out}[A,B,C,D] y) {{ {body} }}"
    before, model = model_of(text, **weights), model_of(text, **weights)
    assert Legalize(CUDA, BFLOAT16)(model).count == moved
    assert sorted(outline(model).split()) == sorted(expected.split())
    assert all(has_cuda_kernel(node, 22) for node in model.graph)
    assert [(v.name, v.dtype) for v in model.graph.outputs] == [(v.name, v.dtype) for v in before.graph.outputs]
    x = np.abs(array(2, 3, 6, 6)) + 3.0  # the logarithm of whose logarithm there is
    # The emulation of the source rounds each result once, as the legalized program must.
    np.testing.assert_array_equal(emulated(model, x), emulated(before, x))
    assert Legalize(CUDA, BFLOAT16)(model).count == 0


FLOAT16_CASES = [
    ("y = Log (x)", 0),
    ("y = Pad (x, pads)", 0),
    ("y = Celu (x)", 1),  # float32 alone by schema
    ("y = MaxPool <kernel_shape = [2,2]> (x)", 0),  # no kernel at opset 22 in float32 either
    ("y = Atan (x)", 0),  # on the CPU, which casts float16 by itself
]


@pytest.mark.parametrize(("body", "moved"), FLOAT16_CASES)
def test_float16_on_cuda(body, moved):
    model = model_of(f"(float16[2,3,6,6] x) => (float16[A,B,C,D] y) {{ {body} }}", pads=PADS)
    assert Legalize(CUDA, FLOAT16)(model).count == moved
    assert ("Cast" in {node.op_type for node in model.graph}) == bool(moved)


def test_bfloat16_that_no_provider_runs_is_float32_on_the_cpu():
    model = model_of("(bfloat16[4] x) => (bfloat16[4] y) { y = Atan (x) }")
    assert Legalize(CUDA, BFLOAT16)(model).count == 1
    assert outline(model) == "FLOAT Atan BFLOAT16"


def test_the_opset_counts():
    text = "(float16[2,3,6,6] x) => (float16[A,B,C,D] y) { y = Elu (x) }"
    assert [Legalize(CUDA, FLOAT16)(model_of(text, opset)).count for opset in (21, 22)] == [0, 0]
    text = text.replace("float16", "bfloat16")
    assert [Legalize(CUDA, BFLOAT16)(model_of(text, opset)).count for opset in (21, 22)] == [1, 1]


def test_mixed_types_without_a_kernel(run):
    text = """(float16[2,3,4] x, float[3] s) => (float16[2,3,4] y) {
        [bn] y = BatchNormalization (x, s, s, s, s)
    }"""
    model = model_of(text, opset=21)
    assert Legalize(CUDA, FLOAT16)(model).count == 1
    assert outline(model) == "FLOAT BatchNormalization FLOAT16"
    assert all(has_cuda_kernel(node, 21) for node in model.graph)
    (y,) = run(model, {"x": array(2, 3, 4).astype(np.float16), "s": np.ones(3, np.float32)})
    assert y.dtype == np.float16


def test_constants_get_a_float32_copy_and_go_where_nothing_else_reads_them():
    text = """(bfloat16[2,3,6,6] x) => (bfloat16[A,B,C,D] y, bfloat16[3,2,3,3] kept) {
        z = Constant <value = float {0.5}> ()
        k = Cast <to = 16> (z)
        a = ConvTranspose (x, w)
        b = ConvTranspose (x, v)
        s = Add (a, b)
        kept = Neg (v)
        c = Greater (s, k)
        y = Where (c, s, s)
    }"""
    model = model_of(text, w=W, v=W)
    assert Legalize(CUDA, BFLOAT16)(model).count == 3
    initializers = model.graph.initializers
    assert "w" not in initializers
    assert initializers["v"].dtype == ir.DataType.BFLOAT16
    copies = [value for name, value in initializers.items() if name != "v"]
    assert [value.dtype for value in copies] == [ir.DataType.FLOAT] * 2
    for copy in copies:
        np.testing.assert_array_equal(copy.const_value.numpy(), W.astype(np.float32))


def test_a_constant_node_gets_a_copy_too():
    model = model_of("(bfloat16[4] x) => (bool[4] y) { y = Greater (x, z) }", z=np.zeros((), BF))
    value = model.graph.initializers.pop("z")
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], name="k")
    node.outputs[0].name, node.outputs[0].type = "k", ir.TensorType(ir.DataType.BFLOAT16)
    model.graph.insert_before(model.graph[0], node)
    model.graph[1].replace_input_with(1, node.outputs[0])
    assert Legalize(CUDA, BFLOAT16)(model).count == 1
    assert outline(model) == "FLOAT Greater"


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    [
        ("y = EyeLike (x)", 21, "FLOAT EyeLike BFLOAT16"),
        ("y = EyeLike <dtype = 16> (x)", 21, "FLOAT EyeLike BFLOAT16"),
    ],
)
def test_attributes_that_type_an_output_follow(body, opset, expected):
    model = model_of(f"(bfloat16[4,4] x) => (bfloat16[4,4] y) {{ {body} }}", opset=opset)
    assert Legalize(CUDA, BFLOAT16)(model).count == 1
    assert outline(model) == expected
    assert model.graph.outputs[0].dtype == ir.DataType.BFLOAT16


def test_bodies_captured_values_and_metadata():
    text = """(bfloat16[4] x, bool c) => (bfloat16[4] y) {
        h = Relu (x)
        y = If (c) <
            then_branch = a () => (bfloat16[4] p) { [log] p = Log (h) },
            else_branch = b () => (bfloat16[4] q) { [floor] q = Floor (h) }
        >
    }"""
    model = model_of(text)
    for node in all_nodes(model):
        node.metadata_props["role"] = f"of {node.name}"
    assert Legalize(CUDA, BFLOAT16)(model).count == 2
    inner = {graph.name: list(graph) for node in model.graph for _, graph in bodies(node)}
    assert [node.op_type for node in inner["a"]] == ["Log", "Cast"]
    assert [node.op_type for node in inner["b"]] == ["Floor", "Cast"]
    assert [node.metadata_props["role"] for node in inner["a"]] == ["of log"] * 2
    casts = [node for node in model.graph if node.op_type == "Cast"]
    assert len(casts) == 1  # of the captured value, once for both branches
    verify(model, "the test")
    x = (np.abs(array(4)) + 1).astype(BF).astype(np.float32)
    np.testing.assert_array_equal(emulated(model, x, c=np.array(True)), np.log(x).astype(BF).astype(np.float32))


def test_sequences_are_left_alone():
    model = model_of(
        """(float16[4] x, int64 i) => (float16[4] y) {
            s = SequenceConstruct (x, x)
            y = SequenceAt (s, i)
        }"""
    )
    assert Legalize(CUDA, FLOAT16)(model).count == 0
    assert outline(model) == "SequenceConstruct SequenceAt"


def test_a_value_that_is_an_output_and_read_elsewhere():
    model = model_of("(bfloat16[4] x) => (bfloat16[4] h, bfloat16[4] y) { h = Log (x) y = Log (h) }")
    assert Legalize(CUDA, BFLOAT16)(model).count == 2
    assert [value.name for value in model.graph.outputs] == ["h", "y"]
    assert [value.dtype for value in model.graph.outputs] == [ir.DataType.BFLOAT16] * 2
    assert outline(model) == "FLOAT Log BFLOAT16 FLOAT Log BFLOAT16"
