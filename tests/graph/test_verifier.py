"""The verifier of types: ill-typed graphs are refused, well-typed ones are not."""

import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.errors import VerificationError
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.verifier import faults, verify
from tests.support import parse
from tests.trap_cases import TRAPS

CONTRIB = ', "com.microsoft": 1'

# name: (graph, operator and part of the message, keywords of parse)
ILL_TYPED = {
    "MatMul of float32 and float16": (
        "(float[2,4] x, float16[4,4] w) => (float[2,4] y) { y = MatMul (x, w) }",
        "MatMul 'm'",
        "float16",
        {},
    ),
    "MatMul that turns float16 into float32": (
        "(float16[2,4] x, float16[4,4] w) => (float[2,4] y) { y = MatMul (x, w) }",
        "MatMul 'm'",
        "tensor(float)",
        {},
    ),
    "Add of bfloat16 and float16": (
        "(bfloat16[2] x, float16[2] w) => (bfloat16[2] y) { y = Add (x, w) }",
        "Add 'm'",
        "float16",
        {},
    ),
    "variadic: Concat of two types": (
        "(float[2] x, float16[2] w) => (float[4] y) { y = Concat <axis = 0> (x, w) }",
        "Concat 'm'",
        "float16",
        {},
    ),
    "type that the opset does not permit": (
        "(bfloat16[1,2,4,4] x, bfloat16[2,2,1,1] w) => (bfloat16[1,2,4,4] y) { y = Conv (x, w) }",
        "Conv 'm'",
        "bfloat16",
        {},
    ),
    "Resize with float16 scales": (
        "(float16[1,1,2,2] x, float16[4] w) => (float16[1,1,4,4] y) { y = Resize (x, , w) }",
        "Resize 'm'",
        "scales",
        {},
    ),
    "Cast whose result is declared otherwise": (
        "(float[2] x) => (float16[2] y) { y = Cast <to = 1> (x) }",
        "Cast 'm'",
        "attribute to",
        {},
    ),
    "ConstantOfShape of float16 without a value": (
        "(int64[2] x) => (float16[A,B] y) { y = ConstantOfShape (x) }",
        "ConstantOfShape 'm'",
        "attribute value",
        {},
    ),
    "LayerNormalization's Mean in float16": (
        "(float16[2,4] x, float16[4] w) => (float16[2,4] y, float16[2,1] m) { y, m = LayerNormalization (x, w) }",
        "LayerNormalization 'm'",
        "float16",
        {},
    ),
    "window of float16": (
        "(int64 x) => (float16[N] y) { y = HannWindow (x) }",
        "HannWindow 'm'",
        "output_datatype",
        {},
    ),
    "QuantizeLinear with a float16 scale below opset 19": (
        "(float16[2] x, float16 w, int8 z) => (int8[2] y) { y = QuantizeLinear (x, w, z) }",
        "QuantizeLinear 'm'",
        "float16",
        {},
    ),
    "contrib operator with mixed types": (
        "(float[2,4] x, float16[4,4] w) => (float[2,4] y) { y = com.microsoft.FusedMatMul (x, w) }",
        "FusedMatMul 'm'",
        "float16",
        {"imports": CONTRIB},
    ),
    "ai.onnx.ml operator in float16": (
        "(float16[2,4] x) => (float[2,4] y) { y = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (x) }",
        "Scaler 'm'",
        "float16",
        {"imports": ', "ai.onnx.ml": 3'},
    ),
    "branches of an If that differ in type": (
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] p) { p = Relu (x) },
                        else_branch = e () => (float16[2] q) { q = Cast <to = 10> (x) }>
        }""",
        "If 'm'",
        "branch values",
        {},
    ),
    "Loop whose state changes its type": (
        """(float[2] x, int64 n, bool c) => (float[2] y) {
            y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] a) => (bool k2, float16[2] a2) {
                k2 = Identity (k) a2 = Cast <to = 10> (a)
            }>
        }""",
        "Loop 'm'",
        "state values",
        {},
    ),
    "Scan whose scan output differs from the body's": (
        """(float[2] x, float[5,2] xs) => (float[2] y, float16[5,2] ys) {
            y, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] v) => (float[2] s2, float[2] o) {
                s2 = Add (s, v) o = Neg (s)
            }> (x, xs)
        }""",
        "Scan 'm'",
        "scan values",
        {},
    ),
    "sequence of mixed types": (
        "(float[2] x, float16[2] w) => (seq(float[2]) y) { y = SequenceConstruct (x, w) }",
        "SequenceConstruct 'm'",
        "float16",
        {},
    ),
    "If whose condition is a float": (
        """(float[2] x, float c) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] p) { p = Relu (x) }, else_branch = e () => (float[2] q) {
                q = Neg (x) }>
        }""",
        "If 'm'",
        "cond",
        {},
    ),
    "too many inputs": ("(float[2] x, float[2] w) => (float[2] y) { y = Relu (x, w) }", "Relu 'm'", "beyond", {}),
}


@pytest.mark.parametrize("name", ILL_TYPED)
def test_an_ill_typed_graph_is_refused(name):
    text, culprit, part, keywords = ILL_TYPED[name]
    proto = parse(text, **keywords)
    proto.graph.node[0].name = "m"
    with pytest.raises(VerificationError) as caught:
        verify(ir.from_proto(proto), "a pass")
    message = str(caught.value)
    assert message.startswith(f"after a pass: {culprit}")
    assert part in message
    assert "  > " in message  # the culprit among its neighbours


def test_onnx_s_checker_alone_accepts_some_of_these():
    """The reason for a verifier of our own."""
    text = ILL_TYPED["MatMul of float32 and float16"][0]
    onnx.checker.check_model(parse(text))
    text, _, _, keywords = ILL_TYPED["contrib operator with mixed types"]
    onnx.checker.check_model(parse(text, **keywords), full_check=True)


def test_a_fault_in_a_body_names_its_scope():
    model = ir.from_proto(
        parse(
            """(float[2,2] x, float16[2,2] w, bool c) => (float[2,2] y) {
                [branch] y = If (c) <then_branch = t () => (float[2,2] p) { [bad] p = MatMul (x, w) },
                                     else_branch = e () => (float[2,2] q) { q = Relu (x) }>
            }"""
        )
    )
    problems = list(faults(model))
    assert any(fault.startswith("MatMul 'bad' in branch/then_branch: ") for fault in problems)


def test_an_initializer_whose_declared_type_is_not_its_own_is_a_fault():
    model = ir.from_proto(parse("(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }"))
    model.graph.initializers["w"].type = ir.TensorType(ir.DataType.FLOAT16)
    with pytest.raises(VerificationError, match="initializer 'w' holds FLOAT but is declared"):
        verify(model, "a pass")


@pytest.mark.parametrize("name", TRAPS)
def test_a_well_typed_graph_is_not(name):
    model = ir.from_proto(TRAPS[name].model)
    propagate_types(model)
    assert list(faults(model)) == []


def test_unknown_operators_are_not_judged():
    model = ir.from_proto(
        parse("(float[2] x, float16[2] w) => (float[2] y) { y = my.domain.Any (x, w) }", imports=', "my.domain": 1')
    )
    assert list(faults(model)) == []


def test_a_sound_node_does_not_hide_a_faulty_one_of_the_same_operator():
    text = """(float[2] x, float16[2] z) => (float[2] y) {
        [good] a = Add (x, x) [bad] b = Add (x, z) [also_good] c = Add (x, x) [also_bad] y = Add (x, z)
    }"""
    model = ir.from_proto(parse(text))
    propagate_types(model)
    assert [fault.split(": ")[0] for fault in faults(model)] == ["Add 'bad'", "Add 'also_bad'"]


@pytest.mark.parametrize("name", ILL_TYPED)
def test_examples_of_typing_stand_for_all_nodes(name):
    text, _, _, keywords = ILL_TYPED[name]
    proto = parse(text, **keywords)
    model = ir.from_proto(proto)
    propagate_types(model)
    examples = propagate_types(model)
    whole = list(faults(model))
    if not whole:  # what typing mends
        verify(model, "a pass", examples)
        return
    with pytest.raises(VerificationError) as caught:
        verify(model, "a pass", examples)
    assert str(caught.value) == f"after a pass: {whole[0]}"


def test_one_node_stands_for_its_kind():
    model = ir.from_proto(parse("(float[2] x) => (float[2] y) { a = Relu (x) b = Relu (a) c = Neg (b) y = Relu (c) }"))
    propagate_types(model)
    examples = propagate_types(model)
    assert examples is not None
    assert [node.op_type for node in examples] == ["Relu", "Neg"]


def test_no_node_stands_for_others_where_a_type_changed():
    """Nodes that come before what they read, which ONNX forbids, were walked over with the old type."""
    model = ir.from_proto(parse("(float[2] x) => (float[2] y) { a = Relu (x) y = Add (a, x) }"))
    propagate_types(model)
    relu, add = model.graph
    model.graph.remove(add)
    model.graph.insert_before(relu, add)
    relu.replace_input_with(0, ir.Value(name="z", type=ir.TensorType(ir.DataType.FLOAT16), shape=ir.Shape([2])))
    assert propagate_types(model) is None
    with pytest.raises(VerificationError, match="Add"):
        verify(model, "a pass", None)
