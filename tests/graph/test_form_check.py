"""Nodes that their operator's schema does not allow are refused by name."""

import numpy as np
import onnx
import pytest

import amp_transpiler as amp
from amp_transpiler.errors import ModelError
from tests.support import array, parse

LOOP = """(float[2,4] x) => (float[2,4] y) { y = Loop (n, c, x) <body = b (int64 i, bool k, float[2,4] a)
    => (bool k2, float[2,4] a2) { k2 = Identity (k) a2 = Relu (a) }> }"""
SCAN = """(float[2,4] x, float[5,2,4] s) => (float[2,4] y) { y = Scan <num_scan_inputs = 1,
    body = b (float[2,4] a, float[2,4] v) => (float[2,4] a2) { a2 = Add (a, v) }> (x, s) }"""
IF = """(float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] a) { a = Relu (x) },
    else_branch = e () => (float[2] b) { b = Neg (x) }> }"""
CAST = "(float[2] x) => (float[2] y) { y = Cast <to = 1> (x) }"


def only(model):
    return model.graph.node[0]


def body(model):
    return only(model).attribute[-1].g


def refer(model):
    attribute = only(model).attribute[0]
    before = (attribute.name, attribute.type)
    attribute.Clear()
    attribute.name, attribute.type = before
    attribute.ref_attr_name = "slope"


def ordered(*axes):
    def damage(model):
        del only(model).attribute[0].ints[:]
        only(model).attribute[0].ints.extend(axes)

    return damage


CASES = [
    *(
        ("(float[2,3,4] x) => (float[4,3,2] y) { y = Transpose <perm = [2, 1, 0]> (x) }", ordered(*axes), message)
        for axes, message in {
            (0, -1, 2): "Transpose 'y' has an attribute 'perm' of [0, -1, 2], expected each axis from 0 on, once",
            (-9, 1, 2): "'perm' of [-9, 1, 2]",
            (0, 1, 3): "'perm' of [0, 1, 3]",
            (1, 1, 2): "'perm' of [1, 1, 2]",
            (2**40, 1, 0): "'perm' of [1099511627776, 1, 0]",
            tuple(range(1, 200)): "'perm' of [1, 2, 3,",
        }.items()
    ),
    (CAST, lambda m: only(m).input.pop(), "Cast 'y' has 0 inputs, expected 1"),
    (CAST, lambda m: only(m).input.append("x"), "Cast 'y' has 2 inputs, expected 1"),
    (CAST, lambda m: only(m).attribute.pop(), "Cast 'y' lacks its attribute 'to'"),
    (CAST, lambda m: setattr(only(m).attribute[0], "i", 99), "Cast 'y' has an attribute 'to' of 99"),
    (
        CAST,
        lambda m: only(m).attribute[0].CopyFrom(onnx.helper.make_attribute("to", 1.0)),
        "of type FLOAT, expected INT",
    ),
    (CAST, refer, "Cast 'y' has an attribute 'to' of 0, which is no element type"),
    (
        "(float[2] x) => (float[2] y) { y = Mul (x, x) }",
        lambda m: only(m).input.__setitem__(0, ""),
        "lacks its input 0 (A)",
    ),
    (
        '(float[1,4,2,2] x) => (float[1,1,4,4] y) { y = DepthToSpace <blocksize = 2, mode = "DCR"> (x) }',
        lambda m: setattr(only(m).attribute[1], "s", b"\xff\xfe"),
        "DepthToSpace 'y' has an attribute 'mode' that is not UTF-8",
    ),
    (LOOP, lambda m: only(m).input.pop(), "Loop 'y' has 2 inputs, its body 3, expected 2"),
    (LOOP, lambda m: body(m).output.pop(), "Loop 'y' has 1 outputs and 1 states, its body 1 outputs"),
    (LOOP, lambda m: only(m).attribute.pop(), "Loop 'y' lacks its attribute 'body'"),
    (SCAN, lambda m: setattr(only(m).attribute[0], "i", 9), "'num_scan_inputs' of 9, its body 2 inputs"),
    (SCAN, lambda m: only(m).output.append("z"), "Scan 'y' has 2 outputs, its body 1"),
    (SCAN, lambda m: m.opset_import.add(domain="", version=0), "Scan 'y' is no operator of opset 0"),
    (
        "(float[4,2] x) => (float[2,2] y, float[2,2] z) { y, z = Split <num_outputs = 2> (x) }",
        lambda m: setattr(only(m).attribute[0], "i", 1),
        "Split 'y' has an attribute 'num_outputs' of 1, but 2 outputs",
    ),
    (IF, lambda m: only(m).output.append("z"), "If 'y' has 2 outputs, its then_branch 1"),
    (IF, lambda m: only(m).attribute.pop(), "If 'y' lacks its attribute 'else_branch'"),
    (IF, lambda m: body(m).input.add(name="z"), "If 'y' has an attribute 'else_branch' with 1 inputs, expected none"),
    (CAST, lambda m: setattr(only(m), "op_type", "Gelu"), "Gelu 'y' is no operator of opset 18"),
    (CAST, lambda m: setattr(only(m), "op_type", "Attention"), "Attention 'y' is no operator of opset 18"),
    (CAST, lambda m: setattr(only(m), "op_type", "RMSNormalization"), "RMSNormalization 'y' is no operator of"),
    (CAST, lambda m: setattr(only(m), "op_type", "AffineGrid"), "AffineGrid 'y' is no operator of"),
    (CAST, lambda m: setattr(only(m), "op_type", "StringConcat"), "StringConcat 'y' is no operator of"),
    (CAST, lambda m: m.opset_import[0].__setattr__("version", 5), "Cast 'y' has an attribute 'to' of type INT"),
]


ENDLESS = {  # condition in front of the body and in it -> whether the loop may end
    ("yes", "k2 = Identity (k)"): False,
    ('""', "k2 = Identity (k)"): False,
    ("yes", "k1 = Identity (k) k2 = Identity (k1)"): False,
    ("yes", "k2 = Identity (yes)"): False,
    ('""', "k2 = Constant <value = bool {1}> ()"): False,
    ("no", "k2 = Identity (k)"): True,
    ("no", "k2 = Identity (yes)"): True,
    ("yes", "k2 = Identity (no)"): True,
    ("c", "k2 = Identity (k)"): True,
    ("yes", "s = ReduceSum <keepdims = 0> (a2) k2 = Less (s, most)"): True,
}


@pytest.mark.parametrize(("first", "again"), ENDLESS)
@pytest.mark.parametrize("count", ['""', "n"])
def test_a_loop_that_never_ends_is_refused(first, again, count):
    model = parse(
        f"(float[2,4] x, bool c) => (float[2,4] y) {{ y = Loop ({count}, {first}, x) <body = b (int64 i, bool k,"
        f" float[2,4] a) => (bool k2, float[2,4] a2) {{ a2 = Add (a, one) {again} }}> }}",
        n=5, yes=True, no=False, one=np.float32(1), most=np.float32(9),
    )  # fmt: skip
    if ENDLESS[first, again] or count == "n":
        amp.transpile(model, level="O2", verify=False)
    else:
        with pytest.raises(amp.ModelError, match="Loop 'y' never ends: it has no trip count"):
            amp.transpile(model, level="O2", verify=False)


@pytest.mark.parametrize(("text", "damage", "message"), CASES)
@pytest.mark.parametrize("verify", [True, False])
def test_refused(text, damage, message, verify):
    model = parse(text, n=5, c=True) if text is LOOP else parse(text)
    amp.transpile(model, level="O2", verify=False)
    damage(model)
    with pytest.raises(amp.ModelError) as refusal:
        amp.transpile(model, level="O2", verify=verify)
    assert message in str(refusal.value)
    assert len(str(refusal.value)) <= 300
    assert "\n" not in str(refusal.value)


def test_a_reference_beside_a_value_is_dropped_as_onnx_runtime_does():
    model = parse(
        "(float[2,4] x) => (float[2,4] y) { [m] h = MatMul (x, w) y = LeakyRelu <alpha = 0.5> (h) }", w=array(4, 4)
    )
    model.graph.node[1].attribute[0].ref_attr_name = "slope"
    assert amp.transpile(model, prefer="size").verdict_word == "plausible"


def test_data_in_a_second_field_is_ignored_as_onnx_runtime_does():
    model = parse("(float[2,4] x) => (float[2,4] y) { y = Add (x, w) }", w=array(4))
    model.graph.initializer[0].int32_data.append(7)
    assert amp.transpile(model, prefer="size").verdict_word == "plausible"


def test_a_cycle_in_a_body_of_a_function():
    model = parse(
        "(float[2] x, bool c) => (float[2] y) { y = local.f (x, c) }",
        '<domain: "local", opset_import: ["": 18]> f (x, c) => (y) { y = If (c) <then_branch = t () => (a)'
        " { a = Relu (a) }, else_branch = e () => (b) { b = Neg (x) }> }",
        imports=', "local": 1',
    )
    with pytest.raises(amp.ModelError, match="Relu 'a' reads 'a', which nothing computes"):
        amp.transpile(model, prefer="size")


def test_a_graph_given_to_a_function():
    model = parse(
        "(float[2] x, bool c) => (float[2] y) { y = local.f (x, c) }",
        '<domain: "local", opset_import: ["": 18]> f (x, c) => (y) { y = If (c) <then_branch = t () => (a)'
        " { a = Relu (x) }, else_branch = e () => (b) { b = Neg (x) }> }",
        imports=', "local": 1',
    )
    attribute = model.functions[0].node[0].attribute[0]
    attribute.ClearField("g")
    attribute.ref_attr_name = "branch"
    with pytest.raises(amp.ModelError, match="If 'y': attribute 'then_branch' refers to a graph"):
        amp.transpile(model, prefer="size")


def test_a_cycle_names_a_node_on_it():
    text = "(float[2] x) => (float[2] y) { [in] a = Neg (x) [one] b = Add (a, c) [two] c = Neg (b) [out] y = Neg (c) }"
    with pytest.raises(amp.ModelError, match=r"the graph has a cycle: (Add 'one'|Neg 'two') reads its own result"):
        amp.transpile(parse(text), prefer="size")


@pytest.mark.parametrize("options", [{"target": "any", "level": "O2"}, {"mixed_ops": "softmax"}])
def test_bfloat16_where_the_opset_has_no_casts_and_cannot_be_raised(options):
    """An unknown operator keeps the opset; others that know bfloat16 would need casts that opset 9 lacks."""
    model = parse(
        """(float[2,8] x) => (float[2,8] y) { a = NoSuchOperator (x) [norm] b = SimplifiedLayerNormalization (a, g)
            [soft] y = Softmax (b) }""",
        opset=9,
        g=array(8),
    )
    report = amp.transpile(model, dtype="bfloat16", verify=False, **options, prefer="size")
    assert report.low_nodes == report.casts == 0


def test_inputs_too_large_to_be_made_up():
    report = amp.transpile(
        parse("(float[1048576,1048576] x) => (float[1048576,1048576] y) { y = Neg (x) }"), prefer="size"
    )
    assert report.verdict.startswith("structure only: no inputs could be made up")


def test_an_untyped_input_has_the_type_of_its_default():
    model = parse("(float[2,4] x, float[4] w) => (float[2,4] y) { y = Add (x, w) }", w=array(4))
    model.graph.input[1].ClearField("type")
    assert amp.transpile(model, prefer="size").verdict_word == "plausible"


def test_two_functions_of_one_name():
    function = '<domain: "local", opset_import: ["": 18]> f (x) => (y) { y = Neg (x) }'
    text = "(float[2] x) => (float[2] y) { y = local.f (x) }"
    with pytest.raises(amp.ModelError, match="two model-local functions have the same name, 'local::f'"):
        amp.transpile(parse(text, function, function, imports=', "local": 1'), prefer="size")


def test_a_value_that_hides_a_namesake_before_it_is_computed_is_refused():
    """ONNX Runtime calls such a body a cycle."""
    text = """(float[2] x, bool c) => (float[2] y) { w = Neg (x) y = If (c) <
        then_branch = t () => (float[2] a) { b = Relu (w) w = Neg (b) a = Add (b, w) },
        else_branch = e () => (float[2] d) { d = Neg (x) }> }"""
    with pytest.raises(ModelError, match=r"the model is invalid: .*'w|w.* used by node"):
        amp.transpile(parse(text), prefer="size")
