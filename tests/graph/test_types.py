"""Types of every value, from the operators' signatures, whatever the file declares."""

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph import types
from amp_transpiler.graph.node_kind import kind_of
from amp_transpiler.graph.types import parse_type, propagate_types, set_dtype
from amp_transpiler.ops.dtype_attributes import DTYPE_ATTRIBUTES
from amp_transpiler.ops.schema import signature, type_string
from tests.support import parse

# name: (graph, value -> type)
PROPAGATED = {
    "from an input": ("(float16[2] x) => (float16[2] z) { y = Relu (x) z = Neg (y) }", {"y": "tensor(float16)"}),
    "a stale declaration gives way": (
        "(float16[2] x) => (float16[2] z) <float[2] y> { y = Relu (x) z = Neg (y) }",
        {"y": "tensor(float16)"},
    ),
    "output of one type only": (
        "(float[2] x) => (int64[1] z) { y = Shape (x) z = Identity (y) }",
        {"y": "tensor(int64)"},
    ),
    "comparison": ("(float[2] x) => (bool[2] z) { y = Less (x, x) z = Not (y) }", {"y": "tensor(bool)"}),
    "Cast": ("(float[2] x) => (double[2] z) { y = Cast <to = 11> (x) z = Neg (y) }", {"y": "tensor(double)"}),
    "CastLike": (
        "(float[2] x, float16 l) => (float16[2] z) { y = CastLike (x, l) z = Neg (y) }",
        {"y": "tensor(float16)"},
    ),
    "ConstantOfShape by default": (
        "(int64[1] s) => (float[N] z) { y = ConstantOfShape (s) z = Neg (y) }",
        {"y": "tensor(float)"},
    ),
    "ConstantOfShape by value": (
        "(int64[1] s) => (int32[N] z) { y = ConstantOfShape <value = int32[1] {3}> (s) z = Neg (y) }",
        {"y": "tensor(int32)"},
    ),
    "EyeLike by default": (
        "(float16[2,2] x) => (float16[2,2] z) { y = EyeLike (x) z = Neg (y) }",
        {"y": "tensor(float16)"},
    ),
    "EyeLike by attribute": (
        "(int32[2,2] x) => (float[2,2] z) { y = EyeLike <dtype = 1> (x) z = Neg (y) }",
        {"y": "tensor(float)"},
    ),
    "RandomNormal by default": (
        "() => (float[2] z) { y = RandomNormal <shape = [2]> () z = Neg (y) }",
        {"y": "tensor(float)"},
    ),
    "RandomNormalLike": (
        "(float16[2] x) => (float16[2] z) { y = RandomNormalLike (x) z = Neg (y) }",
        {"y": "tensor(float16)"},
    ),
    "Multinomial by default": (
        "(float[2,4] x) => (int32[2,1] z) { y = Multinomial (x) z = Neg (y) }",
        {"y": "tensor(int32)"},
    ),
    "window": (
        "(int64 n) => (double[N] z) { y = HannWindow <output_datatype = 11> (n) z = Neg (y) }",
        {"y": "tensor(double)"},
    ),
    "LayerNormalization": (
        """(float16[2,4] x, float16[4] s) => (float16[2,4] y, float[2,1] z) { y, m, i = LayerNormalization (x, s) z
            = Neg (m) }""",
        {"y": "tensor(float16)", "m": "tensor(float)", "i": "tensor(float)"},
    ),
    "DequantizeLinear as its scale": (
        "(int8[2] q, float16 s) => (float16[2] z) { y = DequantizeLinear (q, s) z = Neg (y) }",
        {"y": "tensor(float16)"},
    ),
    "QuantizeLinear without a zero point": (
        "(float[2] x, float s) => (uint8[2] z) { y = QuantizeLinear (x, s) z = Identity (y) }",
        {"y": "tensor(uint8)"},
    ),
    "Constant": ("() => (float[1] z) { y = Constant <value = float[1] {1}> () z = Neg (y) }", {"y": "tensor(float)"}),
    "SequenceConstruct and SequenceAt": (
        "(float16[2] x, int64 i) => (float16[2] z) { s = SequenceConstruct (x, x) y = SequenceAt (s, i) z = Neg (y) }",
        {"s": "seq(tensor(float16))", "y": "tensor(float16)"},
    ),
    "ConcatFromSequence": (
        """(float16[2] x) => (float16[4] z) { s = SequenceConstruct (x, x) y = ConcatFromSequence <axis = 0> (s) z
            = Neg (y) }""",
        {"y": "tensor(float16)"},
    ),
    "SplitToSequence": (
        "(float16[2] x) => (float16[1] z) <int64 i = {0}> { s = SplitToSequence (x) z = SequenceAt (s, i) }",
        {"s": "seq(tensor(float16))"},
    ),
    "SequenceEmpty": (
        "(float16[2] x) => (seq(float16[2]) z) { s = SequenceEmpty <dtype = 10> () z = SequenceInsert (s, x) }",
        {"s": "seq(tensor(float16))"},
    ),
    "Optional": (
        "(float16[2] x) => (float16[2] z) { o = Optional (x) y = OptionalGetElement (o) z = Neg (y) }",
        {"o": "optional(tensor(float16))", "y": "tensor(float16)"},
    ),
    "If": (
        """(float16[2] x, bool c) => (float16[2] z) {
            y = If (c) <then_branch = t () => (float16[2] p) { p = Relu (x) }, else_branch = e () => (float16[2]
                q) { q = Neg (x) }>
            z = Neg (y)
        }""",
        {"y": "tensor(float16)", "p": "tensor(float16)"},
    ),
    "Loop: state, scan outputs and what the body makes of them": (
        """(float16[2] x, int64 n, bool c) => (float16[2] y, float16[N,2] s) {
            y, s = Loop (n, c, x) <body = b (int64 i, bool k, float[2] a) => (bool k2, float[2] a2, float[2] o) {
                k2 = Identity (k) a2 = Relu (a) o = Neg (a2)
            }>
        }""",
        {
            "a": "tensor(float16)",
            "a2": "tensor(float16)",
            "o": "tensor(float16)",
            "y": "tensor(float16)",
            "s": "tensor(float16)",
        },
    ),
    "Scan": (
        """(float16[2] x, float16[5,2] xs) => (float16[2] y, float16[5,2] ys) {
            y, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] v) => (float[2] s2, float[2] o) {
                s2 = Add (s, v) o = Neg (s)
            }> (x, xs)
        }""",
        {"s": "tensor(float16)", "v": "tensor(float16)", "o": "tensor(float16)", "ys": "tensor(float16)"},
    ),
    "an initializer's own type": (
        "(float16[2] x) => (float16[2] z) <float16[2] w = {1, 2}> { y = Identity (w) z = Add (x, y) }",
        {"y": "tensor(float16)"},
    ),
    "an unknown operator, by its reader": (
        "(float[2] x) => (float[2] z) { y = my.domain.Any (x) z = Add (x, y) }",
        {"y": "tensor(float)"},
    ),
    "an unknown operator, by the last of a chain of readers": (
        """(float[1,2,4,4] x, float[8,2] w) => (float[1,2] z) {
            a = my.domain.Any (x) b = Relu (a) c = MaxPool <kernel_shape = [2,2]> (b) d = Flatten (c) z = MatMul (d, w)
        }""",
        dict.fromkeys("abcd", "tensor(float)"),
    ),
    "an unknown operator whose one reader tells what the other gives": (
        "(float[2] x) => (float[2] z, float[2] v) { y = my.domain.Any (x) u = Relu (y) z = Add (x, y) v = Neg (u) }",
        {"y": "tensor(float)", "u": "tensor(float)"},
    ),
    "two unknown operators, the second typed by the first one's other reader": (
        """(float[2] x, double[2] e) => (double[2] z) {
            a = my.domain.Any (x) b = my.domain.Any (x) c = Mul (a, b) d = Add (b, e) z = Neg (c)
        }""",
        dict.fromkeys("abcd", "tensor(double)"),
    ),
    "contrib operator": (
        "(float16[2,4] x, float16[4,4] w) => (float16[2,4] z) { y = com.microsoft.FusedMatMul (x, w) z = Neg (y) }",
        {"y": "tensor(float16)"},
    ),
}


@pytest.mark.parametrize("name", PROPAGATED)
def test_every_value_gets_its_type(name):
    text, expected = PROPAGATED[name]
    proto = parse(text, imports=', "my.domain": 1, "com.microsoft": 1')
    model = ir.from_proto(proto)
    propagate_types(model)
    values = {v.name: v for node in model.graph.all_nodes() for v in (*node.inputs, *node.outputs) if v is not None}
    assert {value: type_string(values[value].type) for value in expected} == expected


TEXTS = {
    "tensor(float)": ir.TensorType(ir.DataType.FLOAT),
    "tensor(bfloat16)": ir.TensorType(ir.DataType.BFLOAT16),
    "seq(tensor(int64))": ir.SequenceType(ir.TensorType(ir.DataType.INT64)),
    "optional(seq(tensor(float16)))": ir.OptionalType(ir.SequenceType(ir.TensorType(ir.DataType.FLOAT16))),
}


@pytest.mark.parametrize("text", TEXTS)
def test_types_are_read_and_written_as_schemas_do(text):
    assert parse_type(text) == TEXTS[text]
    assert type_string(TEXTS[text]) == text


@pytest.mark.parametrize("text", ["map(int64, tensor(float))", "T", "", "seq(map(string, tensor(float)))"])
def test_types_that_hold_no_tensors_are_none(text):
    assert parse_type(text) is None


def test_a_type_is_set_without_the_shape():
    value = ir.Value(name="v", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, "n"]))
    set_dtype(value, ir.DataType.FLOAT16)
    assert (value.dtype, [str(size) for size in value.shape]) == (ir.DataType.FLOAT16, ["2", "n"])


# ---- registries are complete ----

# Attributes whose name speaks of a type and that set none, with the reason.
NOT_TYPES = {
    ("Constant", "value"): "handled as a constant",
    ("SequenceEmpty", "dtype"): "it makes a sequence",
    ("RMSNormalization", "stash_type"): "it types nothing that leaves the operator",
    ("GroupNormalization", "stash_type"): "it types nothing that leaves the operator",
    ("Range", "stash_type"): "it types nothing that leaves the operator",
    ("Attention", "softmax_precision"): "it types nothing that leaves the operator",
    ("LinearAttention", "accumulation_precision"): "it types nothing that leaves the operator",
}


def _speaks_of_types(schema, name):
    words = ("dtype", "data_type", "datatype", "stash_type", "precision")
    return any(word in name for word in words) or (schema.name in ("Cast", "BitCast") and name == "to")


def test_every_attribute_that_sets_an_element_type_has_a_row():
    """Each of these was forgotten by somebody."""
    missing = set()
    for schema in onnx.defs.get_all_schemas():
        if schema.domain:
            continue
        for name in schema.attributes:
            row = DTYPE_ATTRIBUTES.get(schema.name)
            known = (row is not None and row.attribute == name) or (schema.name, name) in NOT_TYPES
            if _speaks_of_types(schema, name) and not known:
                missing.add((schema.name, name))
    assert missing == {("QuantizeLinear", "output_dtype"), ("QuantizeLinear", "precision")}  # integers; internal


@pytest.mark.parametrize("op_type", DTYPE_ATTRIBUTES)
def test_every_row_names_an_attribute_that_exists(op_type):
    schema = onnx.defs.get_schema(op_type)
    row = DTYPE_ATTRIBUTES[op_type]
    assert row.attribute in schema.attributes
    assert all(index < len(schema.outputs) for index in row.outputs)


# ---- signatures ----

SIGNATURES = {
    # (domain, operator, opset): since_version, or None where unknown
    ("", "Relu", 6): 6,
    ("", "Relu", 13): 13,
    ("", "Relu", 26): 14,
    ("ai.onnx", "Relu", 26): 14,
    ("", "Gelu", 19): None,
    ("", "Gelu", 20): 20,
    ("com.microsoft", "FusedMatMul", 1): 1,
    ("my.domain", "Relu", 1): None,
    ("ai.onnx.ml", "Scaler", 3): 1,
}


@pytest.mark.parametrize("key", SIGNATURES, ids=str)
def test_the_signature_in_force_at_an_opset(key):
    in_force = signature(*key)
    assert (in_force.since_version if in_force else None) == SIGNATURES[key]


def test_slots_of_a_signature():
    resize = signature("", "Resize", 18)
    assert [slot.name for slot in resize.inputs] == ["X", "roi", "scales", "sizes"]
    assert resize.types(resize.input(2)) == {"tensor(float)"}
    assert resize.input(4) is None
    concat = signature("", "Concat", 13)
    assert concat.input(17).variadic
    assert concat.input(17).homogeneous
    assert not signature("", "Loop", 13).input(5).homogeneous


FORMS = {
    "value = float16[1] {1}": ir.DataType.FLOAT16,
    "value_float = 1.0": ir.DataType.FLOAT,
    "value_floats = [1.0]": ir.DataType.FLOAT,
    "value_int = 1": ir.DataType.INT64,
    "value_ints = [1]": ir.DataType.INT64,
    'value_string = "a"': ir.DataType.STRING,
    'value_strings = ["a"]': ir.DataType.STRING,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_constant_is_typed_by_its_attribute_without_asking_onnx(form, monkeypatch):
    monkeypatch.setattr(types, "_infer_missing", lambda _: pytest.fail("ONNX was asked"))
    model = ir.from_proto(parse(f"(float[2] x) => (float[2] y) {{ c = Constant <{form}> () y = Neg (x) }}"))
    propagate_types(model)
    assert model.graph[0].outputs[0].dtype == FORMS[form]


def test_nodes_of_one_kind_are_typed_alike_and_others_apart():
    text = """(float[2] x, float16[2] z) => (float[2] a, float[2] b, float16[2] c) {
        a = Relu (x) b = Relu (a) c = Relu (z)
    }"""
    model = ir.from_proto(parse(text))
    for node in model.graph:
        node.outputs[0].type = None
    propagate_types(model)
    dtypes = [node.outputs[0].dtype for node in model.graph]
    assert dtypes == [ir.DataType.FLOAT, ir.DataType.FLOAT, ir.DataType.FLOAT16]
    assert model.graph[0].outputs[0].type is not model.graph[1].outputs[0].type  # each value's type can be changed


OUTPUT_TYPES = {
    # call: types of its outputs, from a float16 x, an int64 n and a sequence s of float16
    "Relu (x)": ("tensor(float16)",),
    "Shape (x)": ("tensor(int64)",),
    "Cast <to = 1> (x)": ("tensor(float)",),
    "RandomNormalLike (x)": ("tensor(float16)",),
    "ConstantOfShape (n)": ("tensor(float)",),
    "ConstantOfShape <value = int64[1] {1}> (n)": ("tensor(int64)",),
    "SequenceConstruct (x)": ("seq(tensor(float16))",),
    "SequenceAt (s, n)": ("tensor(float16)",),
    "my.domain.Any (x)": (None,),
}


@pytest.mark.parametrize("call", OUTPUT_TYPES)
def test_output_types_follow_from_the_kind(call):
    text = f"(float16[2] x, int64[1] n, seq(float16[2]) s) => (float[2] y) {{ y = {call} }}"
    (node,) = ir.from_proto(parse(text, imports=', "my.domain": 1')).graph
    assert types.output_types(kind_of(node, 18, outputs=False), 1) == OUTPUT_TYPES[call]
