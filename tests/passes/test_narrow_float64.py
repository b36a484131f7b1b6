"""NarrowFloat64: what becomes float32, what keeps float64, and what is refused."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx.parser import parse_model

from amp_transpiler.errors import OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.graph.constness import constant_array
from amp_transpiler.graph.regions import DISABLE_AMP, mark_region
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import verify
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.narrow_float64 import NarrowFloat64

HEAD = '<ir_version: 10, opset_import: ["": 22, "ai.onnx.ml": 5, "my.domain": 1]>'
SHORT = {"DOUBLE": "fp64", "FLOAT": "fp32", "INT64": "int64", "BOOL": "bool"}


def narrowed(text, new_io=(), disabled=None):
    program = load(parse_model(f"{HEAD} {text}"))
    if disabled is not None:
        mark_region(program, DISABLE_AMP, nodes=disabled)
    propagate_types(program.model)
    result = run_pass(NarrowFloat64(new_io), program.model)
    verify(program.model, "the test")
    return program.model, result


def steps(model):
    """Return the nodes in order: the operator, and the types of its inputs and outputs."""
    lines = []
    for node in all_nodes(model):
        types = [[SHORT[value.dtype.name] for value in values if value] for values in (node.inputs, node.outputs)]
        lines.append(f"{node.op_type}: {' '.join(types[0])} -> {' '.join(types[1])}")
    return lines


# Text -> the nodes afterwards.
CASES = {
    "inputs and outputs keep their types": (
        "g (double[2] x) => (double[2] y) { y = Relu (x) }",
        ["Cast: fp64 -> fp32", "Relu: fp32 -> fp32", "Cast: fp32 -> fp64"],
    ),
    "a part between casts of the source": (
        (
            "g (float[2] x) => (float[2] y) <double[1] w = {0.1}> { a = Cast <to = 11> (x) b = Mul (a, w) "
            "y = Cast <to = 1> (b) }"
        ),
        ["Mul: fp32 fp32 -> fp32"],
    ),
    "types in attributes": (
        (
            "g (float[2, 2] x) => (float[2, 2] y) { a = EyeLike <dtype = 11> (x) s = Shape (x) "
            "f = ConstantOfShape <value = double[1] {1.5}> (s) b = Add (a, f) y = Cast <to = 1> (b) }"
        ),
        [
            "EyeLike: fp32 -> fp32",
            "Shape: fp32 -> int64",
            "ConstantOfShape: int64 -> fp32",
            "Add: fp32 fp32 -> fp32",
        ],
    ),
    "numbers of positions": (
        (
            "g (int64[2] x) => (int64[2] y) <double w = {3}> { a = Cast <to = 11> (x) b = Div (a, w) c = Floor (b) "
            "y = Cast <to = 7> (c) }"
        ),
        ["Cast: int64 -> fp32", "Div: fp32 fp32 -> fp32", "Floor: fp32 -> fp32", "Cast: fp32 -> int64"],
    ),
    "a body": (
        """g (float[2] x, bool c) => (float[2] y) { a = Cast <to = 11> (x)
            d = If (c) <then_branch = t () => (double[2] p) { p = Neg (a) },
            else_branch = e () => (double[2] q) { q = Identity (a) }> y = Cast <to = 1> (d) }""",
        ["If: bool -> fp32", "Neg: fp32 -> fp32", "Identity: fp32 -> fp32"],
    ),
    "an operator that nobody knows, with its constant": (
        (
            "g (float[2] x) => (double[2] y) <double[2] w = {0.1, 0.2}> { a = Cast <to = 11> (x) b = Neg (a) "
            "y = my.domain.Own (b, w) }"
        ),
        ["Neg: fp32 -> fp32", "Cast: fp32 -> fp64", "Own: fp64 fp64 -> fp64"],
    ),
    "bits are not reinterpreted": (
        "g (double[2] x) => (int64[2] y) { a = Neg (x) y = my.domain.Bits (a) }",
        ["Cast: fp64 -> fp32", "Neg: fp32 -> fp32", "Cast: fp32 -> fp64", "Bits: fp64 -> int64"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_what_becomes_float32(text, expected):
    proto = parse_model(f"{HEAD} {text}")
    model = load(proto).model
    propagate_types(model)
    result = run_pass(NarrowFloat64(), model)
    verify(model, "the test")
    assert sorted(steps(model)) == sorted(expected)
    assert result.modified


@pytest.mark.parametrize(
    ("new_io", "types"),
    [({"x"}, "FLOAT DOUBLE"), ({"y"}, "DOUBLE FLOAT"), ({"x", "y"}, "FLOAT FLOAT"), ((), "DOUBLE DOUBLE")],
)
def test_inputs_and_outputs_that_may_change(new_io, types):
    model, result = narrowed("g (double[2] x) => (double[2] y) { y = Relu (x) }", new_io)
    assert f"{model.graph.inputs[0].dtype.name} {model.graph.outputs[0].dtype.name}" == types
    notes_kept = [note for note in result.notes if "stayed float64 (--float64 float32-io changes them)" in note]
    assert bool(notes_kept) is ("DOUBLE" in types)


def test_nodes_of_a_region_keep_float64_and_pass_it_on_unrounded():
    text = """g (double[2] x) => (double[2] y) <double[1] w = {0.1}> {
        [keep_a] a = Mul (x, w) [keep_b] b = Add (a, w) [c] c = Mul (b, w) [keep_d] y = Sub (c, b) }"""
    model, result = narrowed(text, disabled="^keep")
    assert steps(model) == [
        "Cast: fp64 -> fp32",  # of the constant, for c alone
        "Mul: fp64 fp64 -> fp64",
        "Add: fp64 fp64 -> fp64",
        "Cast: fp64 -> fp32",
        "Mul: fp32 fp32 -> fp32",
        "Cast: fp32 -> fp64",
        "Sub: fp64 fp64 -> fp64",
    ]
    assert any("3 nodes stayed float64, between casts: 'keep_a' (Mul)" in note for note in result.notes)


def test_constants_are_rounded_once():
    text = "g (double[3] x) => (double[3] y) <double[3] w = {0.1, 1e-50, 2}> { y = Add (x, w) }"
    model, result = narrowed(text)
    [add] = [node for node in model.graph if node.op_type == "Add"]
    assert np.array_equal(constant_array(add.inputs[1]), np.array([0.1, 1e-50, 2]).astype(np.float32))
    [(name, before)] = result.constants
    assert (name, before.dtype) == ("w", ir.DataType.DOUBLE)


BEYOND = {
    "an initializer": "g (double[1] x) => (double[1] y) <double[1] w = {1e39}> { y = Min (x, w) }",
    "a Constant": "g (double[1] x) => (double[1] y) { w = Constant <value = double[1] {-1e300}> () y = Max (x, w) }",
    "in a body": """g (double[1] x, bool c) => (double[1] y) {
        y = If (c) <then_branch = t () => (double[1] p) { w = Constant <value = double[1] {1e39}> () p = Min (x, w) },
        else_branch = e () => (double[1] q) { q = Identity (x) }> }""",
    "what fills a tensor": """g (double[1] x) => (double[1] y) { s = Shape (x)
        w = ConstantOfShape <value = double[1] {1e39}> (s) y = Min (x, w) }""",
}


@pytest.mark.parametrize("text", BEYOND.values(), ids=BEYOND)
def test_constants_beyond_the_range_are_refused_by_name(text):
    with pytest.raises(OptionError, match=r"constant 'w' holds numbers beyond float32's range, .*--disable-amp"):
        narrowed(text)


def test_infinity_is_in_range_and_so_is_what_only_float64_nodes_read():
    proto = parse_model(f"{HEAD} g (double[1] x) => (double[1] y) <double[1] v = {{1e39}}> {{ [keep] y = Min (x, v) }}")
    proto.graph.initializer.add(name="w", data_type=11, dims=[1], raw_data=np.float64([np.inf]).tobytes())
    proto.graph.node.add(op_type="Max", input=["x", "w"], output=["z"], name="free")
    proto.graph.output.add(name="z").type.tensor_type.elem_type = 11
    program = load(proto)
    mark_region(program, DISABLE_AMP, nodes="^keep")
    propagate_types(program.model)
    run_pass(NarrowFloat64(), program.model)
    verify(program.model, "the test")
    assert "Min: fp64 fp64 -> fp64" in steps(program.model)
    assert "Max: fp32 fp32 -> fp32" in steps(program.model)


def test_a_tree_keeps_the_type_of_its_numbers():
    text = """g (double[1, 1] x) => (double[1, 1] y) { a = Neg (x)
        y = ai.onnx.ml.TreeEnsemble <n_targets = 1, aggregate_function = 1, post_transform = 0, tree_roots = [0],
        nodes_modes = uint8[1] {0}, nodes_featureids = [0], nodes_splits = double[1] {0.5}, nodes_truenodeids = [0],
        nodes_trueleafs = [1], nodes_falsenodeids = [1], nodes_falseleafs = [1], leaf_targetids = [0, 0],
        leaf_weights = double[2] {1, 2}> (a) }"""
    model, _ = narrowed(text)
    assert steps(model) == [
        "Cast: fp64 -> fp32",
        "Neg: fp32 -> fp32",
        "Cast: fp32 -> fp64",
        "TreeEnsemble: fp64 -> fp64",
    ]


def test_a_program_without_float64_is_left_alone():
    model, result = narrowed("g (float[2] x) => (float[2] y) { y = Relu (x) }")
    assert (result.modified, result.count, result.notes) == (False, 0, ())
    assert steps(model) == ["Relu: fp32 -> fp32"]


def test_a_sequence_at_the_border_must_change_its_type():
    text = "g (seq(double[2]) s) => (double[2] y) { k = Constant <value = int64 {0}> () y = SequenceAt (s, k) }"
    with pytest.raises(OptionError, match=r"input 's' .* cannot be cast: .* --float64 float32-io, which changes 's'"):
        narrowed(text)
    assert steps(narrowed(text, {"s"})[0])[-1] == "Cast: fp32 -> fp64"
