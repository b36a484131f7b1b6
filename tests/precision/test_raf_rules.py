"""RAF's families on small graphs, and that no operator is forgotten."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.policy import Policy
from amp_transpiler.systems.paddle.default_colours import DEFAULT_COLOURS
from amp_transpiler.systems.raf.casting_rules import CustomTypeHint
from amp_transpiler.systems.raf.families import FAMILIES
from amp_transpiler.systems.raf.rules import RafRules
from amp_transpiler.targets import TARGETS
from tests.support import array, parse

W = array(4, 4, seed=1, scale=0.5)
HEAD = "(float[4,4] x, bool[4,4] c, int64[4] k) => (float[4,4] y)"


def decided(body, head=HEAD, *, low=FLOAT16, opset=20, lists=None, target="cuda", training=False, **weights):
    """Node name -> decision."""
    weights = weights or {name: W for name in ("w", "v") if f" {name})" in body and f" {name}" not in head}
    text = f"{head} {{ {body} }}"
    model = ir.from_proto(parse(text, opset=opset, imports=', "com.microsoft": 1, "ai.onnx.ml": 3', **weights))
    propagate_types(model)
    rules = RafRules(low, lists or amp.AutoMixedPrecisionLists())
    assigned = assign(model, Policy(low=low, target=TARGETS[target], training=training, rules=rules))
    return {node.name: decision for node, decision in assigned.decisions.items()}


# ---- the table ----


def float_operators():
    """Operators of ONNX's own domain with a float tensor in some version up to opset 26."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= 26:
            types = {text for formal in (*schema.inputs, *schema.outputs) for text in formal.types}
            if any("tensor(float)" in text for text in types):
                yield schema.name


def test_every_operator_has_a_family():
    standard = set(float_operators())
    assert len(standard) > 170
    assert standard - FAMILIES.keys() == set()
    contrib = {key for key in DEFAULT_COLOURS if key.startswith("com.microsoft::")}
    assert contrib - FAMILIES.keys() == set()


def test_every_row_names_an_operator_and_a_relative():
    operators = {key.partition("[")[0] for key in DEFAULT_COLOURS}
    assert FAMILIES.keys() - operators == set()
    for family in FAMILIES.values():
        assert family.reason
        assert family.kind in ("always", "never", "infer", "either", "concat", "follow", "data", "none")


# What RAF's own lists say, in ONNX's operators.
MEMBERS = {
    "always": "Conv ConvTranspose MatMul Gemm",
    "never": "Range Exp Pow Reciprocal Softmax LogSoftmax Erf Gelu Atan Tanh Mul ReduceSum GatherND"
    " NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "infer": "MaxPool AveragePool Pad Relu Abs Ceil Floor Round Sign Cos Sin Log Sigmoid Sqrt Equal Less Greater Max"
    " Min Mod Reshape Transpose Squeeze Unsqueeze Slice Resize Tile Where CumSum TopK ArgMax ReduceMean ReduceMax"
    " ReduceMin ReduceProd Div Gather ConstantOfShape OneHot",
    "either": "Add Sub",
    "concat": "Concat",
    "follow": "Split LayerNormalization",
    "data": "BatchNormalization",
    "none": "Cast CastLike",
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_rafs_own_members(kind):
    for operator in MEMBERS[kind].split():
        assert FAMILIES[operator].kind == kind, operator
        assert "not in RAF" not in FAMILIES[operator].reason


# ---- the families; h is low, x is not ----

NODES = {
    # name: (body of the node n behind h = MatMul (x, w), precision)
    "always, of float32": ("MatMul (x, v)", "low"),
    "always: Gemm": ("Gemm (x, v, v)", "low"),
    "never, of low": ("Exp (h)", "high"),
    "never: multiply": ("Mul (h, h)", "high"),
    "never: softmax": ("Softmax (h)", "high"),
    "never: gelu": ("Gelu (h)", "high"),
    "infer, of low": ("Relu (h)", "low"),
    "infer, of float32": ("Relu (x)", "high"),
    "infer: a tie goes low": ("Div (h, x)", "low"),
    "infer: a tie goes low, the other way around": ("Div (x, h)", "low"),
    "infer: a tie with a constant": ("Div (h, v)", "low"),
    "infer: two float32": ("Div (x, v)", "high"),
    "infer: most are float32": ("Max (h, x, v)", "high"),
    "infer: most are low": ("Max (h, h, x)", "low"),
    "infer: a tie of four": ("Max (h, h, x, v)", "low"),
    "infer: the condition does not vote": ("Where (c, h, x)", "low"),
    "infer: Where of float32": ("Where (c, v, x)", "high"),
    "infer: bounds do not vote": ("Clip (h, lo, hi)", "low"),
    "infer: the padding does not vote": ("Pad (h, pads, lo)", "low"),
    "infer: indices do not vote": ("Gather (h, k)", "low"),
    "infer: a table of parameters": ("Gather (v, k)", "high"),
    "infer: a mean": ("ReduceMean (h)", "low"),
    "either: both": ("Add (h, h)", "low"),
    "either: the first": ("Add (h, x)", "low"),
    "either: the second": ("Sub (x, h)", "low"),
    "either: none": ("Add (x, v)", "high"),
    "concat: most are low": ("Concat <axis = 0> (x, h, x, h, h)", "low"),
    "concat: most are float32": ("Concat <axis = 0> (x, h, x, h, x)", "high"),
    "concat: a tie is no majority": ("Concat <axis = 0> (x, h)", "high"),
    "concat: more than five": ("Concat <axis = 0> (x, x, x, h, h, h, h)", "high"),
    "concat: six, all low": ("Concat <axis = 0> (h, h, h, h, h, h)", "high"),
    "norm: layer_norm follows": ("LayerNormalization (h, v, v)", "low"),
    "norm: layer_norm of float32": ("LayerNormalization (x, v, v)", "high"),
    "cast is left alone": ("CastLike (x, h)", "high"),
    "no rule of RAF's": ("ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (h)", "high"),
    "look through a cast up": ("Relu (up)", "low"),
}


@pytest.mark.parametrize("name", NODES)
def test_families(name):
    call, expected = NODES[name]
    body = f"h = MatMul (x, w) up = Cast <to = 1> (h) [n] y = {call}"
    weights = {"w": W, "v": W, "lo": np.float32(0), "hi": np.float32(6), "pads": np.zeros(4, np.int64)}
    decision = decided(body, "(float[4,4] x, bool[4,4] c, int64[4] k) => (float y)", **weights)["n"]
    assert decision.precision == expected
    assert decision.reason


@pytest.mark.parametrize("call", ["m, y = TopK (h, two)", "m, i = Dropout (h)"])
def test_infer_leaves_several_outputs_alone(call):
    body = f"h = MatMul (x, w) [n] {call}"
    decision = decided(body, "(float[4,4] x) => (float[4,4] m)", w=W, two=np.array([2], np.int64))["n"]
    assert (decision.precision, "several outputs" in str(decision.reason)) == ("high", True)


@pytest.mark.parametrize("call", ["ConstantOfShape (s)", "RandomNormalLike (x)", "OneHot (s, s, two)"])
def test_infer_leaves_what_nothing_votes_on_alone(call):
    decision = decided(f"[n] y = {call}", "(float[4,4] x, int64[2] s, float[2] two) => (float y)")["n"]
    assert (decision.precision, "no float input that counts" in str(decision.reason)) == ("high", True)


@pytest.mark.parametrize(("source", "expected"), [("x", "high"), ("h", "low")])
def test_split_follows_its_input_and_concat_the_split(source, expected):
    """The split results of a product, joined again."""
    body = f"h = MatMul (x, w) [s] p, q = Split <axis = 0, num_outputs = 2> ({source}) [n] y = Concat <axis = 0> (p, q)"
    decisions = decided(body)
    assert (decisions["s"].precision, decisions["n"].precision) == (expected, expected)
    if expected == "low":
        assert decisions["s"].form.outputs == {0, 1}


BATCH = "(float[2,4,3] x, float[4] s, float[4] b, float[4] m, float[4] v) => (float[2,4,3] y)"


# ONNX Runtime's CUDA kernel has one type for data and statistics; a training program is rid of the operator.
BATCH_FORMS = {"tensorrt": ("tensorrt", False, {0}), "training": ("cuda", True, {0}), "cuda": ("cuda", False, None)}


@pytest.mark.parametrize("name", BATCH_FORMS)
def test_batch_norm_takes_low_data_and_float32_statistics(name):
    """Where the target has such a form, the data are low whatever they were."""
    target, training, expected = BATCH_FORMS[name]
    decision = decided("[n] y = BatchNormalization (x, s, b, m, v)", BATCH, target=target, training=training)["n"]
    if expected is None:
        assert (decision.precision, decision.form) == ("high", None)
        assert "no form with data in lower precision and float32 statistics" in str(decision.reason)
    else:
        assert (decision.form.inputs, decision.form.outputs) == (expected, {0})


def test_the_users_lists_win_over_rules_and_families():
    lists = amp.AutoMixedPrecisionLists(custom_white_list=["Exp"], custom_black_list=["MatMul"])
    decisions = decided("[m] h = MatMul (x, w) [e] y = Exp (h)", lists=lists)
    assert (decisions["m"].precision, decisions["e"].precision) == ("high", "low")
    with CustomTypeHint({"Exp": lambda node, inputs, low_dtype: [None]}):
        assert decided("[e] y = Exp (x)", lists=lists)["e"].precision == "low"


def test_the_default_lists_are_not_rafs():
    decisions = decided("h = MatMul (x, w) [log] l = Log (h) [sqrt] y = Sqrt (l)")
    assert (decisions["log"].precision, decisions["sqrt"].precision) == ("low", "low"), "Paddle's black, and unlisted"


def test_hints_for_slots_that_stay_float32_are_ignored():
    """Resize's scales are float32 whatever a rule says."""
    body = "[n] y = Resize (x, , s)"
    head = "(float[1,1,4,4] x, float[4] s) => (float y)"
    with CustomTypeHint({"Resize": lambda node, inputs, low_dtype: [low_dtype] * len(inputs)}):
        decision = decided(body, head)["n"]
    assert (decision.precision, decision.form.inputs) == ("low", {0})
    with CustomTypeHint({"Resize": lambda node, inputs, low_dtype: [None, None, low_dtype]}):
        assert decided(body, head)["n"].precision == "high"


def test_a_rule_may_ask_for_a_form_with_fewer_low_inputs():
    body = "[n] y = BatchNormalization (x, s, b, m, v)"

    def data(node, inputs, low_dtype):
        return [low_dtype, None, None, None, None]

    with CustomTypeHint({"BatchNormalization": data}):
        decision = decided(body, BATCH, target="tensorrt")["n"]
        with pytest.raises(ValueError, match=r"inputs 0 float16 and the others float32: expected hints"):
            decided(body, BATCH, target="cuda")
    assert (decision.form.inputs, decision.form.outputs) == ({0}, {0})


BIAS = "[conv] h = Conv (x, k) [bias] y = Add (h, b)"
ROW_53_HEAD = "(float[1,3,8,8] x, float[4,3,3,3] k, float[4,1,1] b) => (float y)"


def test_a_rule_of_the_users_and_the_default_again():
    def never(node, inputs, low_dtype):
        return ["float32", "float32"]

    def precisions():
        decisions = decided(BIAS, ROW_53_HEAD)
        return decisions["conv"].precision, decisions["bias"].precision

    assert precisions() == ("low", "low")
    with CustomTypeHint({"Add": never}):
        assert precisions() == ("low", "high")
    assert precisions() == ("low", "low")


def test_a_comparison_with_a_constant_is_a_tie():
    decision = decided("h = MatMul (x, w) [n] y = Equal (h, v)", "(float[4,4] x) => (bool[4,4] y)", w=W, v=W)["n"]
    assert (decision.precision, decision.form.inputs, decision.form.outputs) == ("low", {0, 1}, set())


def test_bfloat16():
    decisions = decided("[m] h = MatMul (x, w) [a] r = Add (h, x) [e] y = Exp (r)", low=BFLOAT16, opset=22)
    assert [decisions[name].precision for name in "mae"] == ["low", "low", "high"]
