"""Types that a user declares of operators without a schema (`--custom-op-types`)."""

import onnx
import pytest
from onnx import TensorProto

import amp_transpiler as amp
from amp_transpiler.cli import main
from amp_transpiler.errors import OptionError
from amp_transpiler.options.conversion import ConversionOptions
from tests.support import array, parse

TEXT = """(float[4,8] x, float[4] s, int64[1] n) => (float[4,8] y) <float[4,8] a, float[4,8] b> {
    [first] a = MatMul (x, w) [mine] b = my.ops.Scale (a, s, n) [last] y = MatMul (b, w) }"""
NAMES = {1: "fp32", 10: "fp16", 16: "bf16", 7: "int64"}


def model(text=TEXT):
    parsed = parse(text, w=array(8, 8))
    parsed.opset_import.append(onnx.helper.make_opsetid("my.ops", 1))
    return parsed


def ports(converted, op_type="Scale"):
    """Return the types of the inputs and outputs of a custom operator, each as one text."""
    graph = converted.graph
    types = {info.name: info.type.tensor_type.elem_type for info in (*graph.input, *graph.output, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    node = next(node for node in graph.node if node.op_type == op_type)
    return " ".join(NAMES[types[name]] for name in node.input), " ".join(NAMES[types[name]] for name in node.output)


def converted(declared, source=None, op_type="Scale", **options):
    report = amp.transpile(model() if source is None else source, None, custom_op_types=declared, **options)
    return report, ports(report.program.to_onnx(), op_type)


DECLARED = {
    "one type": ({"Scale": "fp16"}, ("fp16 fp16 int64", "fp16")),
    "lists": ({"my.ops::Scale": (["fp16", "fp32", "any"], ["fp16"])}, ("fp16 fp32 int64", "fp16")),
    "a text": ("Scale:[fp32,float16,-]:[fp32]", ("fp32 fp16 int64", "fp32")),
    "texts": (["my.ops::Scale:[fp16,fp32,any]:[fp32]"], ("fp16 fp32 int64", "fp32")),
    "float32": ({"Scale": "fp32"}, ("fp32 fp32 int64", "fp32")),
}


@pytest.mark.parametrize("level", ["auto", "O1", "O2"])
@pytest.mark.parametrize("case", DECLARED)
def test_the_operator_has_the_types_that_are_declared(case, level):
    declared, expected = DECLARED[case]
    assert converted(declared, level=level)[1] == expected


def test_the_reason_names_the_option():
    report, _ = converted({"Scale": "fp16"}, level="O2")
    reasons = {row.name: row.reason for row in report.decisions}
    assert reasons["mine"] == "my.ops::Scale has the types that --custom-op-types declares"


def test_every_policy_heeds_them_and_bfloat16_too():
    assert converted({"Scale": "fp16"}, policy="torch")[1] == ("fp16 fp16 int64", "fp16")
    assert converted({"Scale": "bf16"}, dtype="bfloat16", target="tensorrt")[1] == ("bf16 bf16 int64", "bf16")


def test_lists_and_guards_of_the_user_do_not_change_them():
    options = {"amp_lists": amp.AutoMixedPrecisionLists(custom_black_list=["my.ops::Scale"]), "guard": "first"}
    assert converted({"Scale": "fp16"}, level="O2", **options)[1] == ("fp16 fp16 int64", "fp16")


def test_nodes_in_bodies_have_them():
    text = """(float[4,8] x, bool c) => (float[4,8] y) {
        y = If (c) <then_branch = t () => (float[4,8] p) <float[4,8] p> { p = my.ops.Scale (x) },
                    else_branch = e () => (float[4,8] q) { q = Relu (x) }> }"""
    report = amp.transpile(model(text), None, custom_op_types="Scale:fp16", level="O2")
    row = next(row for row in report.decisions if row.op == "my.ops::Scale")
    assert row.precision == "float16"


def test_a_recipe_holds_them(tmp_path):
    report, _ = converted({"Scale": (["fp16", "fp32", "any"], ["fp32"])}, level="O2")
    report.save_recipe(tmp_path / "r.toml")
    assert "[fp16,fp32,any]:[fp32]" in (tmp_path / "r.toml").read_text(encoding="utf-8")
    again = amp.transpile(model(), None, recipe=tmp_path / "r.toml")
    assert ports(again.program.to_onnx()) == ("fp16 fp32 int64", "fp32")


def test_the_command_takes_several(tmp_path, capsys):
    text = TEXT.replace("y = MatMul (b, w)", "d = my.ops.Turn (b) y = MatMul (d, w)")
    text = text.replace("float[4,8] b>", "float[4,8] b, float[4,8] d>")
    onnx.save(model(text), tmp_path / "m.onnx")
    place = tmp_path / "o.onnx"
    flags = ["--custom-op-types", "Scale:[fp16,fp32,any]:[fp16]", "--custom-op-types", "my.ops::Turn:fp32"]
    assert main([str(tmp_path / "m.onnx"), "-o", str(place), "--level", "O2", *flags]) == 0
    written = onnx.load(place)
    assert ports(written) == ("fp16 fp32 int64", "fp16")
    assert ports(written, "Turn") == ("fp32", "fp32")
    assert main([str(tmp_path / "m.onnx"), "--custom-op-types", "Scale"]) == 2
    assert "is no OP:[TYPES]:[TYPES]" in capsys.readouterr().err


WRONG = {
    "unknown": ({"Scal": "fp16"}, r"the model has no operator 'Scal'; those without a schema: my.ops::Scale"),
    "of ONNX": ({"MatMul": "fp16"}, "'MatMul' has a schema or a body, which says what its types may be"),
    "inputs": ("Scale:[fp16]:[fp16]", r"types of 'my.ops::Scale' are for 1 input, and node 'mine' has 3"),
    "outputs": ("Scale:[fp16,fp32,any]:[]", r"types of 'my.ops::Scale' are for 0 outputs, and node 'mine' has 1"),
    "type": ({"Scale": "fp8"}, "'fp8' of operator 'Scale' is no type: expected fp16, bf16, fp32, or any"),
    "format": ({"Scale": "bf16"}, "'Scale' is declared bf16, and the conversion is to float16"),
    "integer": ("Scale:[fp16,fp16,fp16]:[fp16]", "input 2 'n' is declared fp16, and is int64 in the model"),
    "no types": ("Scale", r"'Scale' is no OP:\[TYPES\]:\[TYPES\]"),
    "no operator": (":fp16", r"':fp16' is no OP:\[TYPES\]:\[TYPES\]"),
    "a number": ({"Scale": 3}, "'Scale' has the types 3: expected such as"),
    "another kind": (5, "got int, expected such as .* or a dict"),
    "twice": (["Scale:fp16", "Scale:fp32"], "'Scale' has the types fp16 and fp32: drop one"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case):
    declared, message = WRONG[case]
    with pytest.raises(OptionError, match=message):
        converted(declared, level="O2")


def test_what_has_no_meaning_is_said():
    with pytest.raises(OptionError, match="inside a disable_amp region as well"):
        converted({"Scale": "fp16"}, disable_amp="mine")
    for options in ({"dtype": "float32"}, {"level": "O0"}):
        with pytest.raises(OptionError, match="custom_op_types has no meaning where"):
            converted({"Scale": "fp16"}, **options)


def test_an_output_without_a_type_has_to_be_declared_by_the_model():
    text = "(float[4,8] x) => (float[4,8] y) { [mine] b = my.ops.Scale (x) [cast] y = Cast <to = 1> (b) }"
    with pytest.raises(OptionError, match="output 0 'b' is declared fp16, and the model does not say its type"):
        converted({"Scale": "fp16"}, model(text), level="O2")


def test_include_has_to_match_a_node_beside_them():
    with pytest.raises(OptionError, match="matches no node"):
        converted({"Scale": "fp16"}, include="nothing", level="O2")


def test_without_a_word_there_are_none():
    assert ConversionOptions().checked().custom_op_types is None
    assert TensorProto.FLOAT16 == 10


PLUGIN = """(float[4,8] x, float[4] s, int64[1] n) => (float[4,8] y) <float[4,8] a, float[4,8] b> {
    [first] a = MatMul (x, w) [mine] b = FastScale (a, s, n) [last] y = MatMul (b, w) }"""
PLUGIN_IN_A_BODY = """(float[4,8] x, bool c) => (float[4,8] y) {
    y = If (c) <then_branch = t () => (float[4,8] p) <float[4,8] p> { p = FastScale (x) },
                else_branch = e () => (float[4,8] q) { q = Relu (x) }> }"""


@pytest.mark.parametrize(
    ("options", "opset"),
    [({}, None), ({"level": "O2"}, None), ({"opset": 18}, 18), ({"opset": 22}, 22), ({"target": "cuda"}, None)],
)
def test_a_plugin_in_the_domain_of_onnx_has_its_types(options, opset):
    """ONNX's checker is asked about everything else, and no opset changes the operator."""
    declared = {"FastScale": (["fp16", "fp32", "any"], ["fp16"])}
    report, types = converted(
        declared, parse(PLUGIN, w=array(8, 8)), op_type="FastScale", **{"target": "tensorrt"} | options
    )
    assert types == ("fp16 fp32 int64", "fp16")
    assert report.verdict_word == "structure only"
    assert "onnx.checker, full" in report.checks
    assert {row.name: row.precision for row in report.decisions}["last"] == "float16"
    assert opset is None or report.program.to_onnx().opset_import[0].version == opset


def test_a_plugin_in_bfloat16_and_in_a_body():
    report = amp.transpile(
        parse(PLUGIN_IN_A_BODY), None, custom_op_types="FastScale:bf16", dtype="bfloat16", target="tensorrt", build="no"
    )
    row = next(row for row in report.decisions if row.op == "FastScale")
    assert row.precision == "bfloat16"


def test_a_fault_beside_a_plugin_is_one():
    text = PLUGIN.replace("MatMul (b, w)", "Nonsense (b, w)")
    with pytest.raises(amp.ModelError, match=r"no operator Nonsense; .*--custom-op-types 'Nonsense:fp16'"):
        amp.transpile(parse(text, w=array(8, 8)), None, custom_op_types="FastScale:fp16", target="tensorrt")


def test_the_written_file_has_it_where_it_was(tmp_path):
    source = parse(PLUGIN, w=array(8, 8))
    amp.transpile(source, tmp_path / "o.onnx", custom_op_types="FastScale:fp16", target="tensorrt", build="no")
    node = next(node for node in onnx.load(tmp_path / "o.onnx").graph.node if node.op_type == "FastScale")
    assert (node.domain, node.name) == ("", "mine")
    assert not node.metadata_props


def test_the_verdict_says_that_a_plugin_does_not_run_here():
    report, _ = converted({"my.ops::Scale": "fp16"}, target="tensorrt", build="no", level="O2")
    assert "ONNX Runtime has no operator my.ops::Scale, so a model with this plugin does not run here" in report.verdict
    assert "registered" not in " ".join((report.verdict, *report.notes))


def test_the_same_of_one_in_the_domain_of_onnx():
    text = TEXT.replace("my.ops.Scale", "MyScale").replace("(float[4,8] x, float[4] s, int64[1] n)", "(float[4,8] x)")
    source = parse(text.replace("(a, s, n)", "(a)"), w=array(8, 8))
    report, _ = converted({"MyScale": "fp16"}, source, "MyScale", target="tensorrt", build="no", level="O2")
    assert "ONNX Runtime has no operator MyScale, so a model with this plugin does not run here" in report.verdict
